//! Access to real time: the one module of this crate that reads a clock or arms a timer.
//!
//! Promises: follows tokio's paused time in tests, except for the wall clock.
//!
//! Never: used by the pure half of the crate, which receives time as a value.
#![expect(
    clippy::disallowed_methods,
    reason = "a provider and a relay on real sockets have real delays; they are made here"
)]

use std::time::{SystemTime, UNIX_EPOCH};

use tokio::time::{Instant, Sleep};
use tollgate_core::time::{Span, Wall};

/// Monotonic time.
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// The host's wall clock; a clock before 1970 reads as 1970.
pub(crate) fn wall_now() -> Wall {
    let since_epoch = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    Wall(Span::from(since_epoch).0)
}

/// Fires when `span` has passed.
pub(crate) fn sleep(span: Span) -> Sleep {
    tokio::time::sleep(span.into())
}

/// Fires at `instant`.
pub(crate) fn sleep_until(instant: Instant) -> Sleep {
    tokio::time::sleep_until(instant)
}
