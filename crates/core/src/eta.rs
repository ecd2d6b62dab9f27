//! When will it be done: how long the last of so many waiting calls waits, from the real limits.
//!
//! Assumption: calls take their permits as soon as there are any, and nobody else takes them. Then n calls need as
//! long as the slowest of the limits needs to grant n permits: a limit that refills gradually (bucket, paced)
//! at its rate, one that refills at once (fixed and calendar windows) from one end of a window to the next. A sliding
//! window gives its slots back as they were taken, together or one by one: the estimate is the middle of both. Steady demand at three times a limit is estimated within 5 % (`crates/tollgate/tests/it/eta.rs`).
//!
//! Promises: pure; saturates, never panics.
//!
//! Never: decides about a permit.

use crate::rate::Rate;
use crate::time::Span;

/// How a limit gives permits back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refill {
    /// One after the other.
    Gradual,
    /// All of them at the end of a window.
    AtOnce,
    /// Each one period after it was taken.
    Sliding,
    /// When a call ends, which takes so long on average.
    CallEnds(Span),
}

/// One limit of the waiting calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EtaLimit {
    /// What the calls may use of it in a period.
    pub limit: u64,
    /// What they may take now.
    pub remaining: u64,
    /// Its period.
    pub period: Span,
    /// When its window ends, if it has one.
    pub reset_after: Option<Span>,
    /// How it gives permits back.
    pub refill: Refill,
}

/// How many calls go before and with the last one of a caller: callers take turns within a priority, and all calls
/// of a higher priority go first. `waiting` has the number of calls of each caller and priority, most urgent first.
pub fn calls_until_last<C: PartialEq, P: Ord + Copy>(waiting: &[(C, P, u64)], caller: &C) -> u64 {
    let own = waiting.iter().filter(|(of, ..)| of == caller);
    let Some((_, priority, own)) = own.min_by_key(|(_, priority, _)| *priority) else {
        return 0;
    };
    let each = waiting.iter().map(|(_, of, count)| match of.cmp(priority) {
        std::cmp::Ordering::Greater => *count,
        std::cmp::Ordering::Equal => (*count).min(*own),
        std::cmp::Ordering::Less => 0,
    });
    each.fold(0, u64::saturating_add)
}

/// How long the last of `calls` waits: first until the provider is open again, then for the slowest of its limits,
/// and never faster than `rate`.
#[must_use]
pub fn eta(calls: u64, limits: &[EtaLimit], closed_for: Span, rate: Option<Rate>) -> Span {
    if calls == 0 {
        return Span::ZERO;
    }
    let slowest = limits
        .iter()
        .map(|limit| limit.after(closed_for).time_for(calls));
    let slowest = slowest.max().unwrap_or(Span::ZERO);
    let paced = rate.map_or(Span::ZERO, |rate| {
        share(
            calls.saturating_sub(1),
            1_000_000_000_000,
            rate.millionths(),
        )
    });
    closed_for + slowest.max(paced)
}

impl EtaLimit {
    /// The limit after a pause in which nobody used it.
    fn after(self, pause: Span) -> EtaLimit {
        match self.refill {
            Refill::Gradual => {
                let refilled =
                    u128::from(pause.0) * u128::from(self.limit) / u128::from(self.period.0.max(1));
                let refilled = u64::try_from(refilled).unwrap_or(u64::MAX);
                let remaining = self
                    .remaining
                    .saturating_add(refilled)
                    .min(self.limit.max(self.remaining));
                EtaLimit { remaining, ..self }
            }
            Refill::AtOnce => match self.reset_after {
                Some(reset) if pause >= reset => EtaLimit {
                    remaining: self.limit,
                    reset_after: Some(self.period),
                    ..self
                },
                Some(reset) => EtaLimit {
                    reset_after: Some(reset - pause),
                    ..self
                },
                None => self,
            },
            Refill::Sliding => {
                let reset = self.reset_after.unwrap_or(self.period);
                EtaLimit {
                    remaining: if pause >= reset {
                        self.limit
                    } else {
                        self.remaining
                    },
                    reset_after: Some(if pause >= reset {
                        self.period
                    } else {
                        reset - pause
                    }),
                    ..self
                }
            }
            Refill::CallEnds(_) if pause > Span::ZERO => EtaLimit {
                remaining: self.limit,
                ..self
            },
            Refill::CallEnds(_) => self,
        }
    }

    /// How long until it has granted so many permits.
    fn time_for(self, calls: u64) -> Span {
        let missing = calls.saturating_sub(self.remaining);
        if missing == 0 {
            return Span::ZERO;
        }
        match self.refill {
            Refill::Gradual => share(missing, self.period.0, self.limit),
            Refill::AtOnce => {
                let first = self.reset_after.unwrap_or(self.period);
                let windows = missing.div_ceil(self.limit.max(1)) - 1;
                Span(
                    first
                        .0
                        .saturating_add(windows.saturating_mul(self.period.0)),
                )
            }
            Refill::Sliding => self.sliding_time_for(missing),
            Refill::CallEnds(latency) => share(missing, latency.0, self.limit),
        }
    }

    /// The last slot of a window is back at its reset. Slots before it are back at the same time if they were taken
    /// together, or earlier by their distance if they were taken evenly: half of that distance is at most half a
    /// window wrong.
    fn sliding_time_for(self, missing: u64) -> Span {
        let limit = self.limit.max(1);
        let (windows, slot) = ((missing - 1) / limit, (missing - 1) % limit);
        let last = self.reset_after.unwrap_or(self.period);
        let earlier = share(limit - 1 - slot, self.period.0 / 2, limit);
        let within = last.0.saturating_sub(earlier.0);
        Span(within.saturating_add(windows.saturating_mul(self.period.0)))
    }
}

/// `count` times `unit` divided by `by`, rounded up.
fn share(count: u64, unit: u64, by: u64) -> Span {
    let whole = u128::from(count) * u128::from(unit);
    Span(u64::try_from(whole.div_ceil(u128::from(by.max(1)))).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Span = Span::from_secs(1);

    /// Ten slots that are all back in 300 ms: the tenth then, the first between now and then.
    #[test]
    fn a_sliding_window_is_estimated_between_together_and_one_by_one() {
        let limit = limit(Refill::Sliding);
        let time = |calls| eta(calls, &[limit], Span::ZERO, None);
        assert_eq!(time(10), Span::from_millis(300));
        assert_eq!(time(20), Span::from_millis(1_300));
        assert_eq!(
            time(5),
            Span::from_millis(50),
            "250 ms earlier than the last"
        );
        assert_eq!(time(1), Span::ZERO, "never before now");
        let paused = eta(10, &[limit], Span::from_millis(200), None);
        assert_eq!(paused, Span::from_millis(300), "the pause ends first");
    }

    fn limit(refill: Refill) -> EtaLimit {
        EtaLimit {
            limit: 10,
            remaining: 0,
            period: SECOND,
            reset_after: Some(Span::from_millis(300)),
            refill,
        }
    }

    #[test]
    fn limits_grant_at_their_own_pace_and_the_slowest_counts() {
        let gradual = limit(Refill::Gradual);
        assert_eq!(eta(0, &[gradual], SECOND, None), Span::ZERO);
        assert_eq!(
            eta(25, &[gradual], Span::ZERO, None),
            Span::from_millis(2_500)
        );
        let some = EtaLimit {
            remaining: 5,
            ..gradual
        };
        assert_eq!(eta(25, &[some], Span::ZERO, None), Span::from_secs(2));
        let at_once = limit(Refill::AtOnce);
        for (calls, millis) in [(1, 300), (10, 300), (11, 1_300), (30, 2_300)] {
            assert_eq!(
                eta(calls, &[at_once], Span::ZERO, None),
                Span::from_millis(millis),
                "{calls}"
            );
        }
        let slow = EtaLimit {
            period: Span::from_secs(60),
            ..gradual
        };
        assert_eq!(
            eta(10, &[gradual, slow], Span::ZERO, None),
            Span::from_secs(60)
        );
        let busy = limit(Refill::CallEnds(Span::from_millis(500)));
        assert_eq!(eta(20, &[busy], Span::ZERO, None), SECOND);
        assert_eq!(eta(u64::MAX, &[slow], Span(u64::MAX), None), Span(u64::MAX));
    }

    #[test]
    fn limits_refill_while_the_provider_is_closed() {
        let pause = Span::from_secs(30);
        assert_eq!(eta(10, &[limit(Refill::Gradual)], pause, None), pause);
        assert_eq!(
            eta(11, &[limit(Refill::AtOnce)], pause, None),
            pause + SECOND
        );
        let rate = Rate::per_second(5);
        assert_eq!(eta(11, &[], Span::ZERO, Some(rate)), Span::from_secs(2));
    }

    #[test]
    fn callers_take_turns_within_a_priority() {
        let waiting = [("web", 2, 3), ("batch", 1, 100), ("report", 1, 4)];
        assert_eq!(calls_until_last(&waiting, &"web"), 3);
        assert_eq!(calls_until_last(&waiting, &"report"), 3 + 4 + 4);
        assert_eq!(calls_until_last(&waiting, &"batch"), 3 + 100 + 4);
        assert_eq!(calls_until_last(&waiting, &"none"), 0);
    }
}
