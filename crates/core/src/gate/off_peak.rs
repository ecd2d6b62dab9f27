//! Off-peak hours: when deferrable calls may go.
//!
//! Promises: hours follow the time zone, across midnight and clock changes.
//!
//! Never: reads a clock or the time zone database; the zone is a value.

use jiff::civil::{DateTime, Time};
use jiff::tz::{AmbiguousOffset, TimeZone};
use jiff::{Timestamp, ToSpan};

use crate::ask::Priority;
use crate::time::{Span, Wall};

/// A window of the day, for example 22:00 to 06:00 in Europe/Berlin.
#[derive(Clone, Debug, PartialEq)]
pub struct OffPeak {
    from: Time,
    to: Time,
    zone: TimeZone,
    max_priority: Priority,
}

/// Why off-peak hours cannot be built.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OffPeakError {
    /// A time of day that does not exist.
    #[error("`{0}` minutes is not a time of day; write 00:00 to 23:59")]
    Minute(u16),
    /// The window has no length.
    #[error("the off-peak hours start and end at the same time; write two different times")]
    Empty,
}

impl OffPeak {
    /// From one minute of the day to another; over midnight if `to` is before `from`.
    pub fn new(from_minute: u16, to_minute: u16, zone: TimeZone) -> Result<OffPeak, OffPeakError> {
        if from_minute == to_minute {
            return Err(OffPeakError::Empty);
        }
        Ok(OffPeak {
            from: time(from_minute)?,
            to: time(to_minute)?,
            zone,
            max_priority: Priority::Low,
        })
    }

    /// Applies to calls of this priority and below. The default is background calls only.
    #[must_use]
    pub fn applies_up_to(mut self, priority: Priority) -> OffPeak {
        self.max_priority = priority;
        self
    }

    /// The highest priority that is restricted to these hours.
    #[must_use]
    pub fn max_priority(&self) -> Priority {
        self.max_priority
    }

    /// How long until restricted calls may go; `None` = now. Outside the years that the calendar
    /// library supports they may always go.
    #[must_use]
    pub fn opens_after(&self, wall: Wall) -> Option<Span> {
        let local = Timestamp::from_microsecond(i64::try_from(wall.0).ok()?).ok()?;
        let local = local.to_zoned(self.zone.clone());
        let now = local.time();
        let is_open = if self.from < self.to {
            self.from <= now && now < self.to
        } else {
            self.from <= now || now < self.to
        };
        if is_open {
            return None;
        }
        let day = if now < self.from {
            local.date()
        } else {
            local.date().checked_add(1.day()).ok()?
        };
        let opens = self.next_start(day.to_datetime(self.from), local.timestamp())?;
        let opens = u64::try_from(opens.as_microsecond()).ok()?;
        Some(Wall(opens).since(wall).max(Span(1)))
    }

    /// The next instant at which the zone's clocks show `from`. If a clock change skips that time,
    /// the first instant after the change.
    fn next_start(&self, from: DateTime, now: Timestamp) -> Option<Timestamp> {
        let ambiguous = self.zone.to_ambiguous_zoned(from);
        let first = ambiguous.clone().earlier().ok()?.timestamp();
        if matches!(ambiguous.offset(), AmbiguousOffset::Gap { .. }) {
            let mut changes = self.zone.following(first);
            return changes.next().map(|change| change.timestamp());
        }
        // An hour that a clock change repeats begins twice.
        if first > now {
            Some(first)
        } else {
            Some(ambiguous.later().ok()?.timestamp())
        }
    }
}

fn time(minute: u16) -> Result<Time, OffPeakError> {
    let (hour, rest) = (minute / 60, minute % 60);
    let parts = i8::try_from(hour).ok().zip(i8::try_from(rest).ok());
    parts
        .and_then(|(hour, rest)| Time::new(hour, rest, 0, 0).ok())
        .ok_or(OffPeakError::Minute(minute))
}
