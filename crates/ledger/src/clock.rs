//! The clocks of ledgers and of everything on the path of a call. Guards have one of their own.
//!
//! Promises: the ledger clock counts through suspend and never steps (`CLOCK_BOOTTIME`), and it is
//! shared by all processes of one boot. The wall clock is read through std, so that tools which
//! fake it reach it.
//!
//! Never: sleeps or waits.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};
use tollgate_core::time::{Micros, Now, Span, Wall};

/// Where time comes from.
#[derive(Clone, Debug)]
pub enum Clock {
    /// The machine's clocks.
    System,
    /// tokio's clock, which tests can pause and move. The wall clock goes along with it.
    Tokio(TokioClock),
    /// A clock that moves only when a test advances it.
    Manual(Arc<ManualClock>),
    /// The machine's clocks, slowed down, and ahead by what a test has advanced: for tests with a
    /// server, whose clock does not stand still.
    Slow(Arc<SlowClock>),
}

/// tokio's clock since it was made.
#[derive(Clone, Copy, Debug)]
pub struct TokioClock {
    origin: tokio::time::Instant,
    wall: Wall,
}

/// A clock that moves only when a test advances it.
#[derive(Debug, Default)]
pub struct ManualClock {
    at: AtomicU64,
    wall: AtomicU64,
}

/// The machine's clocks, which pass more slowly since it was made.
#[derive(Debug)]
pub struct SlowClock {
    /// What they showed then.
    pub origin: Now,
    /// One of its seconds takes so many.
    pub slowness: u32,
    ahead: AtomicU64,
}

impl Clock {
    /// tokio's clock, starting now, with the wall clock at `wall`.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "this is the clock module")]
    pub fn tokio(wall: Wall) -> Clock {
        Clock::Tokio(TokioClock {
            origin: tokio::time::Instant::now(),
            wall,
        })
    }

    /// Both clocks, read together.
    #[must_use]
    pub fn now(&self) -> Now {
        match self {
            Clock::System => Now {
                at: boot_time(),
                wall: wall_time(),
            },
            Clock::Tokio(clock) => clock.now(),
            Clock::Manual(clock) => clock.now(),
            Clock::Slow(clock) => clock.now(),
        }
    }

    /// The ledger clock alone, for those who do not need the wall clock.
    #[must_use]
    pub fn at(&self) -> Micros {
        match self {
            Clock::System => boot_time(),
            Clock::Tokio(clock) => clock.now().at,
            Clock::Manual(clock) => clock.now().at,
            Clock::Slow(clock) => clock.now().at,
        }
    }

    /// The wall clock alone.
    #[must_use]
    pub fn wall(&self) -> Wall {
        match self {
            Clock::System => wall_time(),
            Clock::Tokio(clock) => clock.now().wall,
            Clock::Manual(clock) => clock.now().wall,
            Clock::Slow(clock) => clock.now().wall,
        }
    }
}

impl TokioClock {
    #[expect(clippy::disallowed_methods, reason = "this is the clock module")]
    fn now(self) -> Now {
        let passed = Span::from(tokio::time::Instant::now().duration_since(self.origin));
        Now {
            at: Micros(0) + passed,
            wall: self.wall + passed,
        }
    }
}

impl SlowClock {
    /// From now on.
    #[must_use]
    pub fn new(slowness: u32) -> Arc<SlowClock> {
        Arc::new(SlowClock {
            origin: Clock::System.now(),
            slowness: slowness.max(1),
            ahead: AtomicU64::new(0),
        })
    }

    /// Lets time pass at once.
    pub fn pass(&self, span: Span) {
        self.ahead.fetch_add(span.0, Ordering::SeqCst);
    }

    /// How much a test has let pass.
    #[must_use]
    pub fn ahead(&self) -> Span {
        Span(self.ahead.load(Ordering::SeqCst))
    }

    fn now(&self) -> Now {
        let passed = boot_time().since(self.origin.at).0 / u64::from(self.slowness);
        let passed = Span(passed) + self.ahead();
        Now {
            at: self.origin.at + passed,
            wall: self.origin.wall + passed,
        }
    }
}

impl ManualClock {
    /// Both clocks at these readings.
    #[must_use]
    pub fn new(now: Now) -> Arc<ManualClock> {
        Arc::new(ManualClock {
            at: AtomicU64::new(now.at.0),
            wall: AtomicU64::new(now.wall.0),
        })
    }

    /// Lets time pass on both clocks.
    pub fn pass(&self, span: Span) {
        self.at.fetch_add(span.0, Ordering::SeqCst);
        self.wall.fetch_add(span.0, Ordering::SeqCst);
    }

    /// Sets the wall clock, either way.
    pub fn set_wall(&self, wall: Wall) {
        self.wall.store(wall.0, Ordering::SeqCst);
    }

    fn now(&self) -> Now {
        Now {
            at: Micros(self.at.load(Ordering::SeqCst)),
            wall: Wall(self.wall.load(Ordering::SeqCst)),
        }
    }
}

fn boot_time() -> Micros {
    let time = clock_gettime(ClockId::Boottime);
    let secs = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(time.tv_nsec).unwrap_or(0);
    Micros(secs * 1_000_000 + nanos / 1_000)
}

/// Before 1970 there is nothing to say; such a clock reads 0.
#[expect(clippy::disallowed_methods, reason = "this is the clock module")]
fn wall_time() -> Wall {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    Wall(Span::from(since).0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boot_time_does_not_go_back_and_wall_time_is_this_century() {
        let (first, second) = (Clock::System.now(), Clock::System.now());
        assert!(first.at <= second.at);
        assert!(first.wall > Wall(1_700_000_000_000_000));
    }

    #[tokio::test(start_paused = true)]
    async fn tokios_clock_moves_when_tokios_time_does() {
        let clock = Clock::tokio(Wall(5));
        tokio::time::advance(std::time::Duration::from_secs(3)).await;
        assert_eq!(
            clock.now(),
            Now {
                at: Micros(3_000_000),
                wall: Wall(3_000_005)
            }
        );
    }
}
