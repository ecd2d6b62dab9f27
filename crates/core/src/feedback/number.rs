//! Numbers as providers write them.
//!
//! Promises: only ASCII `digits[.digits]` is a number. Signs, exponents, hex, separators, `NaN`,
//! `Infinity` and digits of other scripts are malformed, and malformed means absent. No float
//! leaves this module, and no wait is rounded down.
//!
//! Never: guesses what a malformed number might mean.

use crate::time::Span;

/// The longest number accepted. Nineteen digits hold every epoch in nanoseconds and fit a `u64`;
/// a longer number is an overflow or an attack.
const DIGITS_MAX: usize = 19;

/// The largest count accepted: a JSON double represents it exactly, and the shared ledgers can
/// store it.
pub const COUNT_MAX: u64 = 1 << 53;

const MICROS_PER_UNIT: u32 = 1_000_000;

/// A non-negative decimal number, precise to a millionth (further digits round up).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Decimal {
    whole: u64,
    /// May be a full million: 0.9999999 rounds up without becoming one whole.
    millionths: u32,
}

impl Decimal {
    pub(super) const ZERO: Decimal = Decimal {
        whole: 0,
        millionths: 0,
    };

    /// Reads `digits[.digits]`; the caller trims blanks.
    pub(super) fn parse(text: &str) -> Option<Decimal> {
        let (whole, fraction) = match text.split_once('.') {
            Some((whole, fraction)) => (whole, Some(fraction)),
            None => (text, None),
        };
        let fraction = fraction.map(digits).unwrap_or(Some(""))?;
        let whole = digits(whole)?;
        if whole.len() + fraction.len() > DIGITS_MAX {
            return None;
        }
        Some(Decimal {
            whole: whole.parse().ok()?,
            millionths: millionths(fraction),
        })
    }

    /// Reads a JSON number. A float prints as the shortest text that reads back the same, so it is
    /// read as text.
    pub(super) fn from_json(number: &serde_json::Number) -> Option<Decimal> {
        if let Some(whole) = number.as_u64() {
            return Some(Decimal {
                whole,
                millionths: 0,
            });
        }
        let float = number
            .as_f64()
            .filter(|float| float.is_finite() && *float >= 0.0)?;
        // Rust prints floats without exponents and with the fewest digits that read back the
        // same. A tiny fraction still has many digits; cut those that no longer matter.
        let text = float.to_string();
        let (whole, fraction) = text.split_once('.').unwrap_or((text.as_str(), ""));
        let fraction: String = fraction.chars().take(DIGITS_MAX).collect();
        Some(Decimal {
            whole: digits(whole)?.parse().ok()?,
            millionths: millionths(&fraction),
        })
    }

    /// The number as a count: whole units only, because 0.6 of a request is none.
    pub(super) fn count(self) -> Option<u64> {
        Some(self.whole).filter(|count| *count <= COUNT_MAX)
    }

    pub(super) fn is_fractional(self) -> bool {
        self.millionths != 0
    }

    pub(super) fn whole(self) -> u64 {
        self.whole
    }

    /// The number in millionths: exact, and wide enough for nineteen digits.
    pub(super) fn in_millionths(self) -> u128 {
        u128::from(self.whole) * u128::from(MICROS_PER_UNIT) + u128::from(self.millionths)
    }

    /// The number times a unit of time given in nanoseconds, rounded up to the microsecond.
    pub(super) fn times_nanos(self, unit_ns: u64) -> Option<Span> {
        let scaled = self.in_millionths().checked_mul(u128::from(unit_ns))?;
        let micros = scaled.div_ceil(1_000 * u128::from(MICROS_PER_UNIT));
        u64::try_from(micros).ok().map(Span)
    }

    pub(super) fn seconds(self) -> Option<Span> {
        self.times_nanos(1_000_000_000)
    }

    pub(super) fn millis(self) -> Option<Span> {
        self.times_nanos(1_000_000)
    }
}

/// The text if it is one or more ASCII digits.
pub(super) fn digits(text: &str) -> Option<&str> {
    Some(text).filter(|text| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Up to six fraction digits as millionths; further digits round up.
fn millionths(fraction: &str) -> u32 {
    let mut value = 0;
    let mut rest = 0;
    for index in 0..fraction.len().max(6) {
        let digit = fraction
            .as_bytes()
            .get(index)
            .map_or(0, |byte| u32::from(byte - b'0'));
        if index < 6 {
            value = value * 10 + digit;
        } else {
            rest |= digit;
        }
    }
    value + u32::from(rest != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(text: &str) -> Option<u64> {
        Decimal::parse(text)
            .and_then(Decimal::seconds)
            .map(|span| span.0)
    }

    #[test]
    fn only_plain_ascii_decimals_are_numbers() {
        for text in [
            "",
            " ",
            "-1",
            "+1",
            "1e3",
            "0x10",
            "1_000",
            "1,000",
            "NaN",
            "Infinity",
            ".5",
            "5.",
            "1.2.3",
            "१०",
            "３０",
            "1 0",
            "٣",
            "²",
            "20000000000000000000",
            "--",
            "1.",
        ] {
            assert_eq!(Decimal::parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn seconds_keep_their_fraction_and_round_up() {
        assert_eq!(seconds("30"), Some(30_000_000));
        assert_eq!(seconds("0.25"), Some(250_000));
        assert_eq!(seconds("46.074824224"), Some(46_074_825));
        assert_eq!(seconds("0.0000001"), Some(1));
        assert_eq!(seconds("007"), Some(7_000_000));
        assert_eq!(
            seconds("9223372036854775807"),
            None,
            "beyond what microseconds can hold"
        );
    }

    #[test]
    fn counts_are_whole_and_bounded() {
        let count = |text| Decimal::parse(text).and_then(Decimal::count);
        assert_eq!(count("99.0"), Some(99));
        assert_eq!(count("0.6"), Some(0));
        assert_eq!(
            count("0.99999999"),
            Some(0),
            "rounding a wait up must not invent a request"
        );
        assert_eq!(count("9007199254740992"), Some(COUNT_MAX));
        assert_eq!(count("9007199254740993"), None);
    }

    #[test]
    fn json_numbers_read_like_their_text() {
        let read = |text: &str| {
            let number: serde_json::Number = serde_json::from_str(text).unwrap();
            Decimal::from_json(&number)
                .and_then(Decimal::seconds)
                .map(|span| span.0)
        };
        assert_eq!(read("64.57"), Some(64_570_000));
        assert_eq!(read("30"), Some(30_000_000));
        assert_eq!(read("1e1"), Some(10_000_000), "an exponent is plain JSON");
        assert_eq!(read("-1"), None);
        assert_eq!(read("-0.5"), None);
        assert_eq!(read("1e300"), None);
        assert_eq!(read("0.00000012345678901234567"), Some(1));
    }
}
