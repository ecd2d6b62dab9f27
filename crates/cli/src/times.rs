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
