//! The cap on calls in flight: a slot is taken at arrival and freed when the response has been
//! sent.
//!
//! Promises: `finish` frees one attempt of the id it names, `lag` later.
//!
//! Never: frees by itself: an accepted request without a response keeps its slot.

use tollgate_core::time::{Micros, Span};

use super::{Availability, CallId, Counter, LimitStatus};

#[derive(Debug)]
struct Slot {
    id: CallId,
    cost: u64,
    /// When it is freed; `None` until the response has been sent.
    free_at: Option<Micros>,
}

/// At most `limit` at a time. Its list is as short as the limit, so searching it is cheap.
#[derive(Debug)]
pub(super) struct InFlight {
    limit: u64,
    lag: Span,
    slots: Vec<Slot>,
}

impl InFlight {
    pub(super) fn new(limit: u64, lag: Span) -> InFlight {
        InFlight {
            limit,
            lag,
            slots: Vec::new(),
        }
    }

    fn sum(&mut self, now: Micros) -> u64 {
        self.slots
            .retain(|slot| slot.free_at.is_none_or(|at| at > now));
        self.slots
            .iter()
            .fold(0, |sum, slot| sum.saturating_add(slot.cost))
    }
}

impl Counter for InFlight {
    fn availability(&mut self, cost: u64, now: Micros) -> Availability {
        let sum = self.sum(now);
        if cost == 0 || sum.saturating_add(cost) <= self.limit {
            Availability::Now
        } else {
            Availability::Unknown
        }
    }

    fn charge(&mut self, id: CallId, cost: u64, _now: Micros) {
        if cost > 0 {
            self.slots.push(Slot {
                id,
                cost,
                free_at: None,
            });
        }
    }

    /// A limited request gets its response at once and never takes a slot.
    fn charge_limited(&mut self, _id: CallId, _cost: u64, _now: Micros) {}

    fn finish(&mut self, id: CallId, now: Micros) {
        let lag = self.lag;
        let slot = self
            .slots
            .iter_mut()
            .find(|slot| slot.id == id && slot.free_at.is_none());
        if let Some(slot) = slot {
            slot.free_at = Some(now + lag);
        }
    }

    fn status(&mut self, now: Micros) -> LimitStatus {
        let remaining = self.limit.saturating_sub(self.sum(now));
        LimitStatus {
            limit: self.limit,
            remaining,
            reset_after: Span::ZERO,
        }
    }

    fn set_limit(&mut self, limit: u64, _now: Micros) {
        self.limit = limit;
    }
}
