//! The clocks of a node, as inaccurate as real ones: drift, steps, suspend.
//!
//! Promises: a node's ledger clock never goes back, whatever its drift; the wall clock steps only
//! at the configured times and by the configured amounts; readings are functions of true time.
//!
//! Never: reads a real clock.

use tollgate_core::time::{Micros, Now, Span, Wall};

/// One node's clocks. True time starts at zero.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeClock {
    /// What the ledger clock shows at true time zero.
    pub at_start: Micros,
    /// What the wall clock shows at true time zero.
    pub wall_start: Wall,
    /// Parts per million by which both clocks run fast (or slow, below zero); at least −999 999.
    pub drift_ppm: i32,
    /// Steps of the wall clock: true time and signed microseconds, in order of time.
    pub wall_steps: Vec<(Micros, i64)>,
    /// True times `[from, to)` in which the node is suspended, in order, not overlapping.
    pub suspends: Vec<(Micros, Micros)>,
    /// Whether the ledger clock also stops while the node is suspended (CLOCK_MONOTONIC does,
    /// CLOCK_BOOTTIME does not). The wall clock never stops.
    pub stops_in_suspend: bool,
}

impl NodeClock {
    /// Both clocks at true time `truth`.
    #[must_use]
    pub fn read(&self, truth: Micros) -> Now {
        let lost = if self.stops_in_suspend {
            self.suspended_time(truth)
        } else {
            Span::ZERO
        };
        let at = self.at_start + self.drifted(truth - lost);
        let wall = self.wall_start + self.drifted(truth);
        let stepped = self.wall_steps.iter().filter(|(when, _)| *when <= truth);
        let wall = stepped.fold(wall.0, |wall, (_, by)| wall.saturating_add_signed(*by));
        Now {
            at,
            wall: Wall(wall),
        }
    }

    /// The first true time from `truth` on at which the ledger clock shows `at` or more.
    #[must_use]
    pub fn true_time_of(&self, at: Micros, truth: Micros) -> Micros {
        // The reading never goes back, so bisection finds the first instant; 64 halvings.
        let (mut low, mut high) = (truth.0, u64::MAX);
        while low < high {
            let middle = low + (high - low) / 2;
            if self.read(Micros(middle)).at >= at {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        Micros(low)
    }

    /// When the node resumes, if it is suspended at `truth`.
    #[must_use]
    pub fn resumes_at(&self, truth: Micros) -> Option<Micros> {
        let asleep = self
            .suspends
            .iter()
            .find(|(from, to)| (*from..*to).contains(&truth));
        asleep.map(|(_, to)| *to)
    }

    fn suspended_time(&self, truth: Micros) -> Span {
        let lengths = self
            .suspends
            .iter()
            .map(|(from, to)| truth.min(*to).since(*from));
        lengths.fold(Span::ZERO, |sum, length| sum + length)
    }

    fn drifted(&self, truth: Micros) -> Span {
        let rate = u64::try_from(1_000_000 + i64::from(self.drift_ppm).max(-999_999)).unwrap_or(1);
        let passed = u128::from(truth.0) * u128::from(rate) / 1_000_000;
        Span(u64::try_from(passed).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000;

    #[test]
    fn a_plain_clock_shows_true_time() {
        let now = NodeClock::default().read(Micros(42));
        assert_eq!(
            now,
            Now {
                at: Micros(42),
                wall: Wall(42)
            }
        );
    }

    #[test]
    fn drift_adds_up_either_way() {
        let fast = NodeClock {
            drift_ppm: 500,
            ..NodeClock::default()
        };
        let slow = NodeClock {
            drift_ppm: -500,
            ..NodeClock::default()
        };
        assert_eq!(fast.read(Micros(1_000 * SECOND)).at, Micros(1_000_500_000));
        assert_eq!(slow.read(Micros(1_000 * SECOND)).at, Micros(999_500_000));
    }

    #[test]
    fn a_step_moves_the_wall_clock_only() {
        let clock = NodeClock {
            wall_start: Wall(100 * SECOND),
            wall_steps: vec![(Micros(10), -50_000_000), (Micros(20), 7)],
            ..NodeClock::default()
        };
        assert_eq!(clock.read(Micros(9)).wall, Wall(100 * SECOND + 9));
        assert_eq!(
            clock.read(Micros(10)),
            Now {
                at: Micros(10),
                wall: Wall(50 * SECOND + 10)
            }
        );
        assert_eq!(clock.read(Micros(20)).wall, Wall(50 * SECOND + 27));
    }

    #[test]
    fn a_clock_that_stops_in_suspend_does_not_advance_during_it() {
        let counts = NodeClock {
            suspends: vec![(Micros(10), Micros(30))],
            ..NodeClock::default()
        };
        let loses = NodeClock {
            stops_in_suspend: true,
            ..counts.clone()
        };
        assert_eq!(counts.read(Micros(40)).at, Micros(40));
        assert_eq!(loses.read(Micros(20)).at, Micros(10));
        assert_eq!(
            loses.read(Micros(40)),
            Now {
                at: Micros(20),
                wall: Wall(40)
            }
        );
        assert_eq!(loses.resumes_at(Micros(10)), Some(Micros(30)));
        assert_eq!(loses.resumes_at(Micros(30)), None);
    }

    #[test]
    fn true_time_of_is_the_first_instant_that_shows_a_time() {
        let clock = NodeClock {
            at_start: Micros(1_000),
            drift_ppm: -300,
            suspends: vec![(Micros(5_000), Micros(9_000))],
            stops_in_suspend: true,
            ..NodeClock::default()
        };
        for at in [1_000, 1_001, 5_997, 5_998, 5_999, 6_100, 20_000] {
            let first = clock.true_time_of(Micros(at), Micros(0));
            assert!(clock.read(first).at >= Micros(at), "{at}");
            assert!(
                first.0 == 0 || clock.read(Micros(first.0 - 1)).at < Micros(at),
                "{at}"
            );
        }
        assert_eq!(clock.true_time_of(Micros(1), Micros(77)), Micros(77));
    }
}
