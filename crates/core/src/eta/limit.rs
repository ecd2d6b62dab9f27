//! How long one limit needs to grant so many permits.
//!
//! A limit that refills gradually (bucket, paced) grants at its rate, one that refills at once (fixed and calendar
//! windows) from one end of a window to the next. A sliding window gives its slots back as they were taken, together
//! or one by one: the estimate is the middle of both.
//!
//! Promises: pure; saturates, never panics.
//!
//! Never: decides about a permit.

use crate::ask::Priority;
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
    /// The part of it that only high priority may use.
    pub reserve: u64,
    /// Low priority goes at an even pace, because urgent calls were seen.
    pub spreads_low: bool,
    /// The entity whose calls it counts, by number; `None` = those of all.
    pub part: Option<usize>,
}

impl EtaLimit {
    /// An estimated limit: so many calls per second, none of them at once.
    #[must_use]
    pub fn at_rate(rate: Rate) -> EtaLimit {
        EtaLimit {
            limit: rate.millionths(),
            remaining: 0,
            period: Span::from_secs(1_000_000),
            reset_after: None,
            refill: Refill::Gradual,
            reserve: 0,
            spreads_low: false,
            part: None,
        }
    }

    /// As calls of this priority may use it. A limit that refills gradually keeps its rate whatever is reserved in
    /// it; of a window the reserved part is gone.
    pub(super) fn for_priority(self, priority: Priority) -> EtaLimit {
        if priority == Priority::High {
            return self;
        }
        let limit = match self.refill {
            Refill::Gradual => self.limit,
            Refill::AtOnce | Refill::Sliding | Refill::CallEnds(_) => {
                self.limit.saturating_sub(self.reserve)
            }
        };
        let own = EtaLimit {
            limit,
            remaining: self.remaining.saturating_sub(self.reserve),
            ..self
        };
        // Whatever is free now is spread over the window, so that an urgent call finds some.
        match own.spreads_low && priority == Priority::Low {
            true => EtaLimit {
                remaining: 0,
                refill: Refill::Gradual,
                ..own
            },
            false => own,
        }
    }

    /// What it grants in the long run.
    pub(super) fn rate(self) -> Rate {
        match self.refill {
            Refill::CallEnds(latency) => Rate::of(self.limit, latency.max(Span(1))),
            Refill::Gradual | Refill::AtOnce | Refill::Sliding => Rate::of(self.limit, self.period),
        }
    }

    /// How many of the urgent calls that come at this rate take permits from others. The waiting calls take a window
    /// that starts anew before any of them, and what is reserved serves them afterwards.
    pub(super) fn taken_by_urgent(self, rate: Rate) -> Rate {
        match self.refill {
            Refill::AtOnce if self.reserve > 0 => {
                let reserved = Rate::of(self.reserve, self.period).millionths();
                Rate::from_millionths(rate.millionths().saturating_sub(reserved))
            }
            Refill::Gradual | Refill::AtOnce | Refill::Sliding | Refill::CallEnds(_) => rate,
        }
    }

    /// The limit after a pause in which nobody used it.
    pub(super) fn after(self, pause: Span) -> EtaLimit {
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
    pub(super) fn time_for(self, calls: u64) -> Span {
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
pub(super) fn share(count: u64, unit: u64, by: u64) -> Span {
    let whole = u128::from(count) * u128::from(unit);
    Span(u64::try_from(whole.div_ceil(u128::from(by.max(1)))).unwrap_or(u64::MAX))
}
