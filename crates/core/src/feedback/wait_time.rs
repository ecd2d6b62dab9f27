//! Converts every unit of time that providers use into a wait from now.
//!
//! Promises: a point in time is measured on the server's own clock where its `Date` is plausible,
//! so clock skew does not lengthen or shorten a wait. A time in the past is a wait of zero. A time
//! more than [`HORIZON`] ahead is malformed, and malformed means absent.
//!
//! Never: returns a wait longer than the horizon, or adds a floor or jitter; the governor does.

use super::date;
use super::number::Decimal;
use crate::time::{Span, Wall};

/// The longest wait accepted: a monthly quota is the longest limit there is.
pub const HORIZON: Span = Span::from_secs(31 * 24 * 3_600);

/// How far the server's `Date` may differ from our clock and still be used. A difference of more
/// than a day is a stuck clock or a cached header, not skew.
const SKEW_MAX: Span = Span::from_secs(24 * 3_600);

/// The most parts a duration may have: `1h2m3s4ms5us6ns` uses every unit once.
const DURATION_PARTS_MAX: usize = 6;

const EPOCH_SECONDS_FROM: u64 = 1_000_000_000;
const EPOCH_MILLIS_FROM: u64 = 100_000_000_000;
const EPOCH_MICROS_FROM: u64 = 100_000_000_000_000;
const INVALID_FROM: u64 = 100_000_000_000_000_000;

/// What a bare number means where a time is expected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TimeUnit {
    /// By its size: an epoch in seconds, milliseconds or microseconds, else seconds from now.
    #[default]
    BySize,
    /// Seconds from now.
    Seconds,
    /// Seconds from now with a fraction, even where it happens to be zero.
    FractionalSeconds,
    /// Milliseconds from now.
    Millis,
    /// Seconds since 1970.
    EpochSeconds,
    /// Milliseconds since 1970.
    EpochMillis,
}

impl TimeUnit {
    /// Whether every number in this unit can express fractions of a second.
    pub(super) fn has_subseconds(self) -> bool {
        match self {
            TimeUnit::FractionalSeconds | TimeUnit::Millis | TimeUnit::EpochMillis => true,
            TimeUnit::BySize | TimeUnit::Seconds | TimeUnit::EpochSeconds => false,
        }
    }
}

/// Our clock, and the server's if its `Date` is plausible.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clocks {
    now: Wall,
    server: Wall,
}

impl Clocks {
    /// `date` is the response's `Date`.
    pub(super) fn new(now: Wall, date: Option<&str>) -> Clocks {
        let stated = date.and_then(|text| date::parse(text, now));
        let stated = stated
            .and_then(|instant| u64::try_from(instant).ok())
            .map(Wall);
        let server = stated.filter(|stated| stated.since(now).max(now.since(*stated)) <= SKEW_MAX);
        Clocks {
            now,
            server: server.unwrap_or(now),
        }
    }

    /// The wait that `text` states: a number in `unit`, a duration, or a date.
    pub(super) fn wait(self, text: &str, unit: TimeUnit) -> Option<Span> {
        let text = text.trim_matches([' ', '\t']);
        if let Some(number) = Decimal::parse(text) {
            return self.wait_number(number, unit);
        }
        if let Some(length) = duration(text) {
            return within_horizon(length);
        }
        date::parse(text, self.now).and_then(|instant| self.until(instant.into()))
    }

    /// The wait that a bare number states.
    pub(super) fn wait_number(self, number: Decimal, unit: TimeUnit) -> Option<Span> {
        match unit {
            TimeUnit::Seconds | TimeUnit::FractionalSeconds => within_horizon(number.seconds()?),
            TimeUnit::Millis => within_horizon(number.millis()?),
            TimeUnit::EpochSeconds => self.until_epoch(number, 1_000_000),
            TimeUnit::EpochMillis => self.until_epoch(number, 1_000),
            TimeUnit::BySize => match number.whole() {
                INVALID_FROM.. => None,
                EPOCH_MICROS_FROM.. => self.until_epoch(number, 1),
                EPOCH_MILLIS_FROM.. => self.until_epoch(number, 1_000),
                EPOCH_SECONDS_FROM.. => self.until_epoch(number, 1_000_000),
                0.. => within_horizon(number.seconds()?),
            },
        }
    }

    fn until_epoch(self, number: Decimal, micros_per_unit: u64) -> Option<Span> {
        let scaled = number
            .in_millionths()
            .checked_mul(u128::from(micros_per_unit))?;
        self.until(i128::try_from(scaled.div_ceil(1_000_000)).ok()?)
    }

    /// From the server's current time to `instant`; an instant in the past is a wait of zero.
    fn until(self, instant: i128) -> Option<Span> {
        let ahead = (instant - i128::from(self.server.0)).max(0);
        within_horizon(Span(u64::try_from(ahead).ok()?))
    }
}

/// The wait, unless it exceeds the horizon.
pub(super) fn within_horizon(wait: Span) -> Option<Span> {
    (wait <= HORIZON).then_some(wait)
}

/// A duration as Go prints it: `6m0s`, `12ms`, `1h2m3.5s`.
pub(super) fn duration(text: &str) -> Option<Span> {
    let mut rest = text;
    let mut total = Span::ZERO;
    for _ in 0..DURATION_PARTS_MAX {
        let digits_end = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, tail) = rest.split_at_checked(digits_end)?;
        let unit_end = tail
            .find(|c: char| c.is_ascii_digit())
            .unwrap_or(tail.len());
        let (unit, tail) = tail.split_at_checked(unit_end)?;
        let unit_ns = match unit {
            "h" => 3_600_000_000_000,
            "m" => 60_000_000_000,
            "s" => 1_000_000_000,
            "ms" => 1_000_000,
            "us" | "µs" | "μs" => 1_000,
            "ns" => 1,
            _ => return None,
        };
        total = total + Decimal::parse(number)?.times_nanos(unit_ns)?;
        if tail.is_empty() {
            return Some(total);
        }
        rest = tail;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Wall = Wall(1_794_744_000_000_000);

    fn wait(text: &str) -> Option<u64> {
        Clocks::new(NOW, None)
            .wait(text, TimeUnit::BySize)
            .map(|span| span.0)
    }

    #[test]
    fn bare_numbers_are_read_by_their_size() {
        assert_eq!(wait("17"), Some(17_000_000));
        assert_eq!(wait("2678400"), Some(2_678_400_000_000));
        assert_eq!(wait("2678401"), None, "beyond the horizon");
        assert_eq!(wait("999999999"), None);
        assert_eq!(wait("1000000000"), Some(0), "2001 is the past");
        assert_eq!(wait("1794744025"), Some(25_000_000));
        assert_eq!(wait("1794744025500"), Some(25_500_000));
        assert_eq!(wait("1794744025500250"), Some(25_500_250));
        assert_eq!(wait("1794744064.570"), Some(64_570_000));
        assert_eq!(wait("100000000000000000"), None);
        assert_eq!(wait("1894744025"), None, "years ahead");
    }

    #[test]
    fn a_preset_unit_beats_the_size() {
        let clocks = Clocks::new(NOW, None);
        let micros = |text, unit| clocks.wait(text, unit).map(|span| span.0);
        assert_eq!(micros("600000", TimeUnit::Millis), Some(600_000_000));
        assert_eq!(micros("1500.5", TimeUnit::Millis), Some(1_500_500));
        assert_eq!(micros("1794744025", TimeUnit::Seconds), None);
        assert_eq!(
            micros("1794744025", TimeUnit::EpochSeconds),
            Some(25_000_000)
        );
        assert_eq!(
            micros("1794744025000", TimeUnit::EpochMillis),
            Some(25_000_000)
        );
    }

    #[test]
    fn durations_as_go_prints_them() {
        assert_eq!(wait("6m0s"), Some(360_000_000));
        assert_eq!(wait("12ms"), Some(12_000));
        assert_eq!(wait("1h2m3.5s"), Some(3_723_500_000));
        assert_eq!(wait("250us"), Some(250));
        assert_eq!(wait("250µs"), Some(250));
        assert_eq!(wait("1ns"), Some(1), "rounds up");
        assert_eq!(wait("800h"), None, "beyond the horizon");
        for text in [
            "s",
            "1",
            "5x",
            "-5s",
            "1s2",
            "ms",
            "1h2m3s4ms5us6ns7s",
            "5 s",
            "1.s",
            ".5s",
        ] {
            assert_eq!(duration(text), None, "{text:?}");
        }
    }

    #[test]
    fn a9_the_servers_date_corrects_the_skew_both_ways() {
        let wait = |date, text| Clocks::new(NOW, Some(date)).wait(text, TimeUnit::BySize);
        let ahead = "Sun, 15 Nov 2026 12:10:00 GMT";
        assert_eq!(
            wait(ahead, "Sun, 15 Nov 2026 12:10:20 GMT"),
            Some(Span::from_secs(20))
        );
        assert_eq!(wait(ahead, "1794744620"), Some(Span::from_secs(20)));
        assert_eq!(
            wait(ahead, "20"),
            Some(Span::from_secs(20)),
            "a length needs no clock"
        );
        let behind = "Sun, 15 Nov 2026 11:58:00 GMT";
        assert_eq!(
            wait(behind, "Sun, 15 Nov 2026 11:59:00 GMT"),
            Some(Span::from_secs(60))
        );
    }

    #[test]
    fn a9_a_date_more_than_a_day_off_is_not_used() {
        let wait = |date| Clocks::new(NOW, Some(date)).wait("1794744010", TimeUnit::BySize);
        assert_eq!(
            wait("Sat, 14 Nov 2026 12:00:00 GMT"),
            Some(Span::from_secs(86_410))
        );
        assert_eq!(
            wait("Sat, 14 Nov 2026 11:59:59 GMT"),
            Some(Span::from_secs(10))
        );
        assert_eq!(
            wait("Thu, 01 Jan 1970 00:00:00 GMT"),
            Some(Span::from_secs(10))
        );
        assert_eq!(wait("nonsense"), Some(Span::from_secs(10)));
    }
}
