//! The one place of the HTTP provider that reads a clock.
//!
//! Promises: both readings come from one steady clock and so never disagree: the calendar is read once
//! at the start and then only carried forward, so a step of the host's wall clock never moves a window
//! edge in the middle of a judgement. Follows tokio's paused time in tests.
//!
//! Never: used by the pure half of the crate.

use std::time::{SystemTime, UNIX_EPOCH};

use tokio::time::Instant;
use tollgate_core::time::{Micros, Span, Wall};

/// The provider's clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    start: Instant,
    start_wall: Wall,
}

/// One reading.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading {
    /// Time since the provider started: what fault plans go by.
    pub(crate) since_start: Micros,
    /// The provider's calendar: what its windows and its headers go by.
    pub(crate) wall: Wall,
}

impl Clock {
    #[expect(
        clippy::disallowed_methods,
        reason = "the provider's edge: its clock starts here"
    )]
    pub(crate) fn start() -> Clock {
        let since_epoch = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        Clock {
            start: Instant::now(),
            start_wall: Wall(Span::from(since_epoch).0),
        }
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "the provider's edge: its clock is read here"
    )]
    pub(crate) fn now(&self) -> Reading {
        let passed = Span::from(Instant::now().saturating_duration_since(self.start));
        Reading {
            since_start: Micros(0) + passed,
            wall: self.start_wall + passed,
        }
    }
}

impl Reading {
    /// The reading as an instant for the rules: aligned windows have their edges where UTC has them.
    pub(crate) fn at(self) -> Micros {
        Micros(self.wall.0)
    }
}
