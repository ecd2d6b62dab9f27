//! Amounts as people write them: lengths of time, shares, plain numbers, lifetimes.
//!
//! Promises: exact. `1.5s` is 1 500 000 µs and `0.2` is 200 000 millionths; nothing passes through
//! a float. A number that is too large is rejected, never wrapped.
//!
//! Never: guesses a unit. `period: 10` is rejected.

use std::fmt;

use tollgate_core::limit::AMOUNT_MAX;
use tollgate_core::time::Span;

/// Units of time, largest first, in microseconds.
const UNITS: [(&str, u64); 6] = [
    ("w", 7 * 86_400_000_000),
    ("d", 86_400_000_000),
    ("h", 3_600_000_000),
    ("ms", 1_000),
    ("m", 60_000_000),
    ("s", 1_000_000),
];

/// A number with six decimals: `1.1` is 1 100 000 millionths. Shares are the same: `20%` is
/// 200 000.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Millionths(pub u64);

impl Millionths {
    /// One, or all of it.
    pub const ONE: Millionths = Millionths(1_000_000);

    /// This share of a number, rounded up.
    #[must_use]
    pub fn of(self, whole: u64) -> u64 {
        let share = (u128::from(whole) * u128::from(self.0)).div_ceil(1_000_000);
        u64::try_from(share).unwrap_or(u64::MAX)
    }
}

impl fmt::Display for Millionths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = format!("{}.{:06}", self.0 / 1_000_000, self.0 % 1_000_000);
        f.write_str(text.trim_end_matches('0').trim_end_matches('.'))
    }
}

/// How long a response is cached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lifetime {
    /// Not at all.
    #[default]
    Off,
    /// This long.
    For(Span),
    /// At least and at most this long; where in between is the cache's choice.
    Between(Span, Span),
    /// Until it is purged.
    Forever,
}

impl fmt::Display for Lifetime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Lifetime::Off => f.write_str("off"),
            Lifetime::For(span) => f.write_str(&in_hours(*span)),
            Lifetime::Between(least, most) => {
                write!(f, "{}..{}", in_hours(*least), in_hours(*most))
            }
            Lifetime::Forever => f.write_str("forever"),
        }
    }
}

/// A part of a limit: a number, or a share of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// This many.
    Number(u64),
    /// This share.
    Share(Millionths),
}

impl Part {
    /// How many that is, rounded up.
    #[must_use]
    pub fn of(self, whole: u64) -> u64 {
        match self {
            Part::Number(number) => number,
            Part::Share(share) => share.of(whole),
        }
    }
}

/// A number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

/// Units of bytes, largest first.
const SIZES: [(&str, u64); 4] = [
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("B", 1),
];

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fits = |(_, size): &&(&str, u64)| self.0 >= *size && self.0.is_multiple_of(*size);
        let (unit, size) = SIZES.iter().find(fits).unwrap_or(&("B", 1));
        write!(f, "{}{unit}", self.0 / size)
    }
}

/// Bytes a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteRate(pub u64);

impl fmt::Display for ByteRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/s", Size(self.0))
    }
}

/// Bytes a second: `1KiB/s`.
#[must_use]
pub fn byte_rate(text: &str) -> Option<ByteRate> {
    let per_second = text.strip_suffix("/s")?;
    size(per_second.trim_end()).map(|size| ByteRate(size.0))
}

/// A number of bytes: `50MiB`, `512KiB`, `4096`.
#[must_use]
pub fn size(text: &str) -> Option<Size> {
    let (digits, unit) = SIZES
        .iter()
        .find_map(|(name, size)| Some((text.strip_suffix(name)?, *size)))
        .unwrap_or((text, 1));
    number(digits.trim_end())?.checked_mul(unit).map(Size)
}

/// A whole number: digits, with optional `_` between them.
#[must_use]
pub fn number(text: &str) -> Option<u64> {
    let digits = text.replace('_', "");
    let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    let ends = text.starts_with('_') || text.ends_with('_');
    if !plain || ends {
        return None;
    }
    digits.parse().ok().filter(|&number| number <= AMOUNT_MAX)
}

/// A length of time: `30s`, `5m`, `6h`, `1d`, `1m30s`, `1.5s`, `200ms`.
#[must_use]
pub fn span(text: &str) -> Option<Span> {
    let mut rest = text.trim();
    let mut total: u64 = 0;
    let mut last = u64::MAX;
    while !rest.is_empty() {
        let end = rest.find(|letter: char| letter != '.' && !letter.is_ascii_digit())?;
        let (amount, tail) = rest.split_at(end);
        let (unit, micros) = UNITS.iter().find(|(unit, _)| {
            let after = tail.strip_prefix(unit);
            after.is_some_and(|after| !after.starts_with(|letter: char| letter.is_alphabetic()))
        })?;
        // Units go down, each once: `1m30s`, not `30s1m`.
        if *micros >= last {
            return None;
        }
        last = *micros;
        let amount = millionths(amount)?;
        let part = u128::from(amount.0) * u128::from(*micros) / 1_000_000;
        total = total.checked_add(u64::try_from(part).ok()?)?;
        rest = tail.strip_prefix(unit).unwrap_or_default();
    }
    (last != u64::MAX).then_some(Span(total))
}

/// One unit of time: `s`, `m`, `h`.
#[must_use]
pub fn one_unit(text: &str) -> Option<Span> {
    let unit = UNITS.iter().find(|(unit, _)| *unit == text)?;
    Some(Span(unit.1))
}

/// A number with at most six decimals: `2`, `1.1`, `0.05`.
#[must_use]
pub fn millionths(text: &str) -> Option<Millionths> {
    let (whole, part) = text.split_once('.').unwrap_or((text, "0"));
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(whole) || !digits(part) || part.len() > 6 {
        return None;
    }
    let whole: u64 = whole.parse().ok()?;
    let part: u64 = format!("{part:0<6}").parse().ok()?;
    whole
        .checked_mul(1_000_000)?
        .checked_add(part)
        .map(Millionths)
}

/// A share of one: `0.2` or `20%`.
#[must_use]
pub fn share(text: &str) -> Option<Millionths> {
    let share = match text.strip_suffix('%') {
        Some(percent) => Millionths(millionths(percent.trim_end())?.0.div_ceil(100)),
        None => millionths(text)?,
    };
    (share <= Millionths::ONE).then_some(share)
}

/// A part of a limit: `50` or `5%`.
#[must_use]
pub fn part(text: &str) -> Option<Part> {
    if text.ends_with('%') {
        share(text).map(Part::Share)
    } else {
        number(text).map(Part::Number)
    }
}

/// A lifetime: `24h`, `24h..48h`, `forever`, `0s`.
#[must_use]
pub fn lifetime(text: &str) -> Option<Lifetime> {
    if text == "forever" {
        return Some(Lifetime::Forever);
    }
    if let Some((least, most)) = text.split_once("..") {
        let (least, most) = (span(least)?, span(most)?);
        return (least <= most && most > Span::ZERO).then_some(Lifetime::Between(least, most));
    }
    match span(text)? {
        Span::ZERO => Some(Lifetime::Off),
        length => Some(Lifetime::For(length)),
    }
}

/// Lifetimes of less than a week read better in hours: `24h..48h`.
fn in_hours(span: Span) -> String {
    const HOUR: u64 = 3_600_000_000;
    let hours = span.0 / HOUR;
    if span.0.is_multiple_of(HOUR) && hours < 7 * 24 {
        format!("{hours}h")
    } else {
        HumanSpan(span).to_string()
    }
}

/// A length of time as people write it: `1m30s`, `24h`, `1.5s`.
#[derive(Clone, Copy, Debug)]
pub struct HumanSpan(pub Span);

impl fmt::Display for HumanSpan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micros = self.0.0;
        if micros == 0 {
            return f.write_str("0s");
        }
        // The largest unit that it is a whole number of: a day and a half is `36h`.
        for (unit, size) in [
            ("d", 86_400_000_000),
            ("h", 3_600_000_000),
            ("m", 60_000_000),
        ] {
            if micros.is_multiple_of(size) {
                return write!(f, "{}{unit}", micros / size);
            }
        }
        let minutes = micros / 60_000_000;
        let seconds = Millionths(micros % 60_000_000);
        match minutes {
            0 => write!(f, "{seconds}s"),
            minutes => write!(f, "{minutes}m{seconds}s"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// H1: `30s`, `5m`, `6h`, `1d`; also compound and fractional lengths.
    #[test]
    fn h1_lengths_of_time_are_read() {
        for (text, micros) in [
            ("30s", 30_000_000),
            ("5m", 300_000_000),
            ("6h", 21_600_000_000),
            ("1d", 86_400_000_000),
            ("1m30s", 90_000_000),
            ("1.5s", 1_500_000),
            ("200ms", 200_000),
            ("1m200ms", 60_200_000),
            ("0s", 0),
        ] {
            assert_eq!(span(text), Some(Span(micros)), "{text}");
        }
        for text in [
            "",
            "10",
            "s",
            "10 s",
            "-1s",
            "1s1m",
            "1s1s",
            "1.s",
            ".5s",
            "1y",
            "1mo",
            "1.1234567s",
            "99999999999d",
        ] {
            assert_eq!(span(text), None, "{text}");
        }
    }

    #[test]
    fn a_unit_alone_is_one_of_it() {
        assert_eq!(one_unit("s"), Some(Span::from_secs(1)));
        assert_eq!(one_unit("ms"), Some(Span::from_millis(1)));
        for text in ["", "1s", "S", "min", "second", " s"] {
            assert_eq!(one_unit(text), None, "{text}");
        }
    }

    #[test]
    fn lengths_of_time_are_written_as_they_are_read() {
        for text in ["30s", "5m", "6h", "1d", "1m30s", "1.5s", "0s", "0.2s"] {
            assert_eq!(HumanSpan(span(text).unwrap()).to_string(), text);
        }
    }

    #[test]
    fn numbers_and_shares_are_exact() {
        assert_eq!(number("100_000"), Some(100_000));
        assert_eq!(number("007"), Some(7));
        for text in ["", "_1", "-1", "1.0", "1e3", "0x10", "99999999999999999999"] {
            assert_eq!(number(text), None, "{text}");
        }
        assert_eq!(share("0.2"), Some(Millionths(200_000)));
        assert_eq!(share("20%"), share("0.20"));
        assert_eq!(share("1.5"), None);
        assert_eq!(part("5%").unwrap().of(1_001), 51);
        assert_eq!(millionths("1.1").unwrap().to_string(), "1.1");
    }

    /// M11: lifetimes for ever, and as a range.
    #[test]
    fn m11_lifetimes_are_read() {
        assert_eq!(lifetime("forever"), Some(Lifetime::Forever));
        assert_eq!(lifetime("0s"), Some(Lifetime::Off));
        assert_eq!(
            lifetime("24h..48h"),
            Some(Lifetime::Between(
                Span::from_secs(86_400),
                Span::from_secs(172_800)
            ))
        );
        assert_eq!(lifetime("10m..5m"), None);
        assert_eq!(lifetime("ever"), None);
    }
}
