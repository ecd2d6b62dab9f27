//! Times for people.
//!
//! Promises: UTC, and it says so.
//!
//! Never: reads a clock.

use std::time::Duration;

use serde_json::Value;

/// An epoch second as UTC time of day.
pub(crate) fn time_of_day(epoch: &Value) -> String {
    let seconds = epoch.as_f64().unwrap_or_default().max(0.0);
    let seconds = Duration::try_from_secs_f64(seconds).unwrap_or_default();
    let of_day = seconds.as_secs() % 86_400;
    let (hour, minute) = (of_day / 3_600, of_day / 60 % 60);
    format!("{hour:02}:{minute:02}:{:02} UTC", of_day % 60)
}

/// An epoch second as UTC day and minute.
pub(crate) fn day_and_time(epoch: &Value) -> String {
    let seconds = Duration::try_from_secs_f64(epoch.as_f64().unwrap_or_default().max(0.0));
    let seconds = i64::try_from(seconds.unwrap_or_default().as_secs()).unwrap_or(i64::MAX);
    let at = jiff::Timestamp::from_second(seconds).unwrap_or(jiff::Timestamp::MAX);
    at.strftime("%Y-%m-%d %H:%M UTC").to_string()
}
