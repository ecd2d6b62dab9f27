//! Times as cron writes them: minute, hour, day of the month, month, day of the week. In UTC.
//!
//! Promises: what is accepted here, every cron reads, and it means the same: if both days are restricted, either of
//! them is enough.
//!
//! Never: reads a clock. Searches no further than eight years, in which every date occurs.

use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::TimeZone;

use crate::time::Wall;

/// A 29 February may be eight years away (1896, 1904).
const DAYS_MAX: u32 = 8 * 366;

/// The least and the greatest number of each field, and its names from the least number on.
const FIELDS: [(u32, u32, &[&str]); 5] = [
    (0, 59, &[]),
    (0, 23, &[]),
    (1, 31, &[]),
    (
        1,
        12,
        &[
            "jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec",
        ],
    ),
    // Sunday is 0 and 7.
    (0, 7, &["sun", "mon", "tue", "wed", "thu", "fri", "sat"]),
];

/// Times such as `*/5 6-18 * * mon,fri`: of each field the numbers that match, as bits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cron {
    minutes: u64,
    hours: u64,
    days: u64,
    months: u64,
    weekdays: u64,
    /// One of the two days is `*`: both must match. Otherwise either.
    needs_both_days: bool,
}

impl Cron {
    /// Reads five fields. `None`: it is not cron, or a date that never comes such as 31 February.
    #[must_use]
    pub fn parse(text: &str) -> Option<Cron> {
        let fields: Vec<&str> = text.split_whitespace().collect();
        let [minute, hour, day, month, weekday] = fields.as_slice() else {
            return None;
        };
        let bits = |field: &str, at: usize| {
            let parts = field.split(',').map(|part| part_bits(part, FIELDS[at]));
            parts.reduce(|all, part| Some(all? | part?)).flatten()
        };
        let weekdays = bits(weekday, 4)?;
        let cron = Cron {
            minutes: bits(minute, 0)?,
            hours: bits(hour, 1)?,
            days: bits(day, 2)?,
            months: bits(month, 3)?,
            weekdays: weekdays | (weekdays >> 7 & 1),
            needs_both_days: day.starts_with('*') || weekday.starts_with('*'),
        };
        cron.after(Wall(0)).is_some().then_some(cron)
    }

    /// The first time after this one.
    #[must_use]
    pub fn after(&self, now: Wall) -> Option<Wall> {
        let micros = i64::try_from(now.0).ok()?;
        let now = Timestamp::from_microsecond(micros).ok()?;
        let now = TimeZone::UTC.to_datetime(now);
        let begun = u32::try_from(now.hour()).ok()? * 60 + u32::try_from(now.minute()).ok()?;
        let mut date = now.date();
        let mut from = begun + 1;
        for _ in 0..=DAYS_MAX {
            if self.has_date(date)
                && let Some(minute) = self.minute_of_day(from)
            {
                let (hour, minute) = (minute / 60, minute % 60);
                let time = date.at(hour.try_into().ok()?, minute.try_into().ok()?, 0, 0);
                let at = TimeZone::UTC.to_timestamp(time).ok()?.as_microsecond();
                return u64::try_from(at).ok().map(Wall);
            }
            date = date.tomorrow().ok()?;
            from = 0;
        }
        None
    }

    fn has_date(&self, date: Date) -> bool {
        let is_day = has(self.days, u32::from(date.day().unsigned_abs()));
        let weekday = date.weekday().to_sunday_zero_offset();
        let is_weekday = has(self.weekdays, u32::from(weekday.unsigned_abs()));
        let is_day = match self.needs_both_days {
            true => is_day && is_weekday,
            false => is_day || is_weekday,
        };
        is_day && has(self.months, u32::from(date.month().unsigned_abs()))
    }

    /// The first minute of a day from this one on.
    fn minute_of_day(&self, from: u32) -> Option<u32> {
        (from..24 * 60)
            .find(|minute| has(self.hours, minute / 60) && has(self.minutes, minute % 60))
    }
}

fn has(bits: u64, number: u32) -> bool {
    bits >> number & 1 == 1
}

/// The numbers of `*`, `5`, `1-5`, and with a step `*/15`, `0-30/10`.
fn part_bits(part: &str, bounds: (u32, u32, &[&str])) -> Option<u64> {
    let (range, step) = match part.split_once('/') {
        Some((range, step)) => (range, Some(number(step)?)),
        None => (part, None),
    };
    let (least, most, _) = bounds;
    let (from, to) = match range.split_once('-') {
        None if range == "*" => (least, most),
        // Not every cron knows a step behind a single number.
        None => {
            let only = value(range, bounds).filter(|_| step.is_none())?;
            (only, only)
        }
        Some((from, to)) => (value(from, bounds)?, value(to, bounds)?),
    };
    let step = step.unwrap_or(1);
    if from > to || !(1..=most).contains(&step) {
        return None;
    }
    let numbers = (from..=to).step_by(usize::try_from(step).ok()?);
    Some(numbers.fold(0, |bits, number| bits | 1 << number))
}

fn value(text: &str, (least, most, names): (u32, u32, &[&str])) -> Option<u32> {
    let named = names
        .iter()
        .position(|name| text.eq_ignore_ascii_case(name));
    let named = named
        .and_then(|at| u32::try_from(at).ok())
        .map(|at| at + least);
    let value = named.or_else(|| number(text))?;
    (least..=most).contains(&value).then_some(value)
}

/// Digits only: `parse` would also take a sign.
fn number(text: &str) -> Option<u32> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| is_plain)
}
