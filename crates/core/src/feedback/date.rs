//! Points in time as text: the three HTTP-date forms, JavaScript's `Date`, ISO 8601.
//!
//! Promises: the weekday is redundant and ignored; a day that does not exist is malformed; a
//! two-digit year more than fifty years ahead means the past (RFC 9110 5.6.7).
//!
//! Never: reads a clock or a time zone database. Only offsets written in the text count.

use crate::time::Wall;
use jiff::ToSpan;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;

/// The longest date text accepted: JavaScript's form with a long zone name has about 70 bytes.
const TEXT_MAX: usize = 128;

const MICROS_PER_SECOND: i64 = 1_000_000;
const MONTHS: [&str; 12] = [
    "jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec",
];

/// Microseconds since 1970, negative before. Wider than [`Wall`], because a provider may name any
/// year.
pub(crate) type Instant = i64;

/// Reads any of the accepted forms. `now` decides the century of a two-digit year.
pub(crate) fn parse(text: &str, now: Wall) -> Option<Instant> {
    if text.len() > TEXT_MAX || !text.is_ascii() {
        return None;
    }
    if text.starts_with(|first: char| first.is_ascii_digit()) {
        return iso8601(text);
    }
    if let Some((weekday, rest)) = text.split_once(',') {
        word(weekday)?;
        return http_date(rest, now);
    }
    without_comma(text)
}

/// Reads the two HTTP-date forms that follow `weekday,`.
fn http_date(rest: &str, now: Wall) -> Option<Instant> {
    let mut words = rest.split_ascii_whitespace();
    let first = words.next()?;
    let (day, month, year) = match first.split('-').collect::<Vec<_>>().as_slice() {
        [day] => (*day, words.next()?, words.next()?),
        [day, month, year] => (*day, *month, *year),
        _ => return None,
    };
    let (clock, zone) = (words.next()?, words.next()?);
    if words.next().is_some() || !is_utc(zone) {
        return None;
    }
    let (month, day) = (month_number(month)?, number(day, 1, 2)?);
    let clock = clock_time(clock)?;
    if year.len() > 2 {
        return instant(number(year, 4, 4)?, month, day, clock);
    }
    let year = latest_year(number(year, 2, 2)?, now)?;
    let later = instant(year, month, day, clock);
    // In the last year of the fifty the date may still be too late; then it is a century earlier.
    later
        .filter(|later| *later <= fifty_years_after(now))
        .or_else(|| instant(year - 100, month, day, clock))
}

/// Reads asctime (`Sun Nov 15 12:02:00 2026`) and JavaScript's form
/// (`Sun Nov 15 2026 13:00:02 GMT+0100 (Central European Standard Time)`).
fn without_comma(text: &str) -> Option<Instant> {
    let (text, comment) = match text.split_once('(') {
        Some((text, comment)) => (text, Some(comment)),
        None => (text, None),
    };
    if comment.is_some_and(|comment| !comment.ends_with(')')) {
        return None;
    }
    let words: Vec<&str> = text.split_ascii_whitespace().take(7).collect();
    match (words.as_slice(), comment) {
        ([weekday, month, day, clock, year], None) => {
            word(weekday)?;
            let (month, day) = (month_number(month)?, number(day, 1, 2)?);
            instant(number(year, 4, 4)?, month, day, clock_time(clock)?)
        }
        ([weekday, month, day, year, clock, zone], _) => {
            word(weekday)?;
            let (month, day) = (month_number(month)?, number(day, 1, 2)?);
            let local = instant(number(year, 4, 4)?, month, day, clock_time(clock)?)?;
            let offset = zone
                .strip_prefix("GMT")
                .or_else(|| zone.strip_prefix("UTC"))?;
            Some(local - offset_micros(offset)?)
        }
        _ => None,
    }
}

/// Reads `2026-11-15T12:01[:30[.5]][Z|±hh[:mm]]`; a blank may stand for the `T`, no zone is UTC.
fn iso8601(text: &str) -> Option<Instant> {
    let (date, rest) = text.split_once(['T', 't', ' '])?;
    let mut parts = date.split('-');
    let year = number(parts.next()?, 4, 4)?;
    let month = number(parts.next()?, 2, 2)?;
    let day = number(parts.next()?, 2, 2)?;
    if parts.next().is_some() {
        return None;
    }
    let zone_at = rest.find(['Z', 'z', '+', '-', ' ']).unwrap_or(rest.len());
    let (clock, zone) = rest.split_at_checked(zone_at)?;
    let offset = match zone.trim_start_matches(' ') {
        "" | "Z" | "z" | "UTC" | "GMT" => 0,
        written => offset_micros(written)?,
    };
    let (clock, fraction) = match clock.split_once('.') {
        Some((clock, fraction)) => (clock, fraction_micros(fraction)?),
        None => (clock, 0),
    };
    Some(instant(year, month, day, clock_time(clock)?)? + fraction - offset)
}

/// A fraction of a second, to the microsecond.
fn fraction_micros(fraction: &str) -> Option<i64> {
    let text: String = super::number::digits(fraction)?
        .chars()
        .chain("00000".chars())
        .collect();
    text.get(..6)?.parse().ok()
}

/// `±hhmm`, `±hh:mm`, `±hh` or nothing.
fn offset_micros(text: &str) -> Option<i64> {
    let (sign, digits) = match text.split_at_checked(1) {
        None => return Some(0),
        Some(("+", digits)) => (1, digits),
        Some(("-", digits)) => (-1, digits),
        Some(_) => return None,
    };
    let (hours, minutes) = match digits.split_once(':') {
        Some((hours, minutes)) => (hours, minutes),
        None if digits.len() == 4 => digits.split_at_checked(2)?,
        None => (digits, "00"),
    };
    let (hours, minutes) = (number(hours, 2, 2)?, number(minutes, 2, 2)?);
    if hours > 23 || minutes > 59 {
        return None;
    }
    Some(sign * i64::from(hours * 60 + minutes) * 60 * MICROS_PER_SECOND)
}

#[derive(Clone, Copy)]
struct ClockTime {
    hour: i16,
    minute: i16,
    second: i16,
}

/// `hh:mm:ss`, or `hh:mm` as Jira writes it.
fn clock_time(text: &str) -> Option<ClockTime> {
    let mut parts = text.split(':');
    let hour = number(parts.next()?, 2, 2)?;
    let minute = number(parts.next()?, 2, 2)?;
    let second = parts
        .next()
        .map_or(Some(0), |second| number(second, 2, 2))?;
    parts.next().is_none().then_some(ClockTime {
        hour,
        minute,
        second,
    })
}

/// The instant in UTC; a leap second counts as the second after it.
fn instant(year: i16, month: i16, day: i16, clock: ClockTime) -> Option<Instant> {
    let leap = i64::from(clock.second == 60);
    let byte = |value: i16| i8::try_from(value).ok();
    let second = byte(clock.second)? - i8::try_from(leap).ok()?;
    let civil = DateTime::new(
        year,
        byte(month)?,
        byte(day)?,
        byte(clock.hour)?,
        byte(clock.minute)?,
        second,
        0,
    );
    let zoned = civil.ok()?.to_zoned(TimeZone::UTC).ok()?;
    Some(zoned.timestamp().as_microsecond() + leap * MICROS_PER_SECOND)
}

/// The latest year with these two digits that begins within fifty years of `now`.
fn latest_year(two_digits: i16, now: Wall) -> Option<i16> {
    let latest = civil(now)?.year() + 50;
    let year = latest - latest.rem_euclid(100) + two_digits;
    Some(if year > latest { year - 100 } else { year })
}

/// The same moment of the calendar fifty years later.
fn fifty_years_after(now: Wall) -> Instant {
    let later = civil(now).and_then(|now| now.checked_add(50.years()).ok());
    let later = later.and_then(|later| later.to_zoned(TimeZone::UTC).ok());
    later.map_or(Instant::MAX, |later| later.timestamp().as_microsecond())
}

fn civil(at: Wall) -> Option<DateTime> {
    let at = jiff::Timestamp::from_microsecond(i64::try_from(at.0).ok()?).ok()?;
    Some(at.to_zoned(TimeZone::UTC).datetime())
}

fn month_number(name: &str) -> Option<i16> {
    let index = MONTHS
        .iter()
        .position(|month| month.eq_ignore_ascii_case(name))?;
    i16::try_from(index + 1).ok()
}

fn is_utc(zone: &str) -> bool {
    zone.eq_ignore_ascii_case("GMT") || zone.eq_ignore_ascii_case("UTC")
}

/// Any word of letters, for the weekday, which is redundant.
fn word(text: &str) -> Option<()> {
    (!text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphabetic())).then_some(())
}

fn number(text: &str, width_min: usize, width_max: usize) -> Option<i16> {
    if text.len() < width_min || text.len() > width_max {
        return None;
    }
    super::number::digits(text)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2026-11-15T12:00:00Z.
    const NOON: i64 = 1_794_744_000;
    const NOW: Wall = Wall(1_794_744_000_000_000);

    fn seconds(text: &str) -> Option<i64> {
        parse(text, NOW).map(|instant| instant.div_euclid(MICROS_PER_SECOND) - NOON)
    }

    #[test]
    fn a9_the_three_http_dates_mean_the_same() {
        assert_eq!(seconds("Sun, 15 Nov 2026 12:01:30 GMT"), Some(90));
        assert_eq!(seconds("Sunday, 15-Nov-26 12:01:30 GMT"), Some(90));
        assert_eq!(seconds("Sun Nov 15 12:01:30 2026"), Some(90));
        assert_eq!(seconds("sun, 15 NOV 2026 12:01:30 gmt"), Some(90));
        assert_eq!(
            seconds("Sun Nov  5 12:00:00 2026"),
            Some(-864_000),
            "asctime pads the day"
        );
    }

    #[test]
    fn the_weekday_is_ignored_but_must_be_a_word() {
        assert_eq!(seconds("Tue, 15 Nov 2026 12:00:01 GMT"), Some(1));
        assert_eq!(seconds("Xyz, 15 Nov 2026 12:00:01 GMT"), Some(1));
        assert_eq!(seconds("7, 15 Nov 2026 12:00:01 GMT"), None);
    }

    #[test]
    fn a_two_digit_year_far_ahead_means_the_past() {
        assert!(seconds("Monday, 15-Nov-99 12:00:45 GMT").is_some_and(|ahead| ahead < 0));
        assert!(seconds("Monday, 15-Nov-77 12:00:45 GMT").is_some_and(|ahead| ahead < 0));
        assert!(seconds("Monday, 15-Nov-76 12:00:45 GMT").is_some_and(|ahead| ahead < 0));
        assert!(seconds("Monday, 15-Nov-76 12:00:00 GMT").is_some_and(|ahead| ahead > 0));
        assert_eq!(seconds("Monday, 15-Nov-26 12:00:45 GMT"), Some(45));
        let year_2080 = Wall(3_471_292_800_000_000);
        let soon = parse("Friday, 01-Jan-05 00:00:00 GMT", year_2080);
        assert!(
            soon.is_some_and(|instant| instant > 4_000_000_000_000_000),
            "2105, not 2005"
        );
    }

    #[test]
    fn iso_8601_with_every_part_optional_after_the_minute() {
        assert_eq!(seconds("2026-11-15T12:01Z"), Some(60));
        assert_eq!(seconds("2026-11-15T12:01"), Some(60));
        assert_eq!(seconds("2026-11-15 12:00:10"), Some(10));
        assert_eq!(seconds("2026-11-15t12:00:10z"), Some(10));
        assert_eq!(seconds("2026-11-15T13:00:10+01:00"), Some(10));
        assert_eq!(seconds("2026-11-15T06:30:10-0530"), Some(10));
        assert_eq!(seconds("2026-11-15T13:00:10+01"), Some(10));
        assert_eq!(seconds("2026-11-15 12:00:10 UTC"), Some(10));
        assert_eq!(
            parse("2026-11-15T12:00:10.25Z", NOW),
            Some(NOON * 1_000_000 + 10_250_000)
        );
        assert_eq!(
            parse("2026-11-15T12:00:10.123456789Z", NOW),
            Some(NOON * 1_000_000 + 10_123_456)
        );
    }

    #[test]
    fn javascript_dates_with_their_offset() {
        let zone = "(Central European Standard Time)";
        assert_eq!(
            seconds(&format!("Sun Nov 15 2026 13:00:02 GMT+0100 {zone}")),
            Some(2)
        );
        assert_eq!(seconds("Sun Nov 15 2026 12:00:02 GMT+0000"), Some(2));
        assert_eq!(seconds("Sun Nov 15 2026 12:00:02 GMT"), Some(2));
        assert_eq!(seconds("Sun Nov 15 2026 07:00:02 GMT-0500 (EST)"), Some(2));
    }

    #[test]
    fn days_and_times_that_do_not_exist_are_malformed() {
        for text in [
            "Sun, 30 Feb 2027 00:00:10 GMT",
            "Sun, 15 Nov 2026 24:00:00 GMT",
            "15 Nov 2026",
            "Sun, 15 Nov 2026 12:61:00 GMT",
            "Sun, 15 Nov 2026 12:00:61 GMT",
            "Sun, 00 Nov 2026",
            "Sun, 15 Nov 2026 12:00:00",
            "Sun, 15 Nov 2026 12:00:00 PST",
            "2026-11-15",
            "2026-13-01T00:00:00Z",
            "2026-11-15T12:00:00+25:00",
            "2026-11-15T12Z",
            "tomorrow",
            "Sun, 29 Feb 2027 00:00:00 GMT",
            "Sun Nov 15 12:00:00 26",
            "",
            ",",
            "(",
            "Sun (",
            "2026-11-15T12:00:00.Z",
            "2026-11-15T12:00:00 (",
            "+2026-11-15T12:00:00Z",
        ] {
            assert_eq!(parse(text, NOW), None, "{text:?}");
        }
        assert!(parse("Tue, 29 Feb 2028 00:00:00 GMT", NOW).is_some());
    }

    #[test]
    fn a_leap_second_is_the_second_after_it() {
        let leap = parse("Wed, 31 Dec 2008 23:59:60 GMT", NOW);
        assert_eq!(leap, parse("Thu, 01 Jan 2009 00:00:00 GMT", NOW));
    }
}
