//! The provider's clock: time since its start, and its wall time.
//!
//! Promises: both readings come from one monotonic clock and so never disagree: the wall clock is
//! read once at the start and then only advanced, so a step of the host's wall clock never moves a
//! window edge during a run.
//!
//! Never: used by the pure half of the crate.

use tokio::time::Instant;
use tollgate_core::time::{Micros, Span, Wall};

use crate::real_time;

/// The provider's clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    start: Instant,
    start_wall: Wall,
}

/// One reading.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading {
    /// Time since the provider started; fault plans use it.
    pub(crate) since_start: Micros,
    /// The provider's wall time; its windows and its headers use it.
    pub(crate) wall: Wall,
}

impl Clock {
    pub(crate) fn start() -> Clock {
        Clock {
            start: real_time::now(),
            start_wall: real_time::wall_now(),
        }
    }

    pub(crate) fn now(&self) -> Reading {
        let passed = Span::from(real_time::now().saturating_duration_since(self.start));
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
