//! Rules A and B in their smallest form: the references for the real ones.
//!
//! Promises: rule A never lets more than N arrive in any window, rule B never more than a bucket
//! holds, for any latency, jitter and reordering, while clocks agree within the drift allowed for.
//!
//! Never: handles a call without a response; its slot stays held. That is safe, and enough here.

use std::collections::VecDeque;

use tollgate_core::time::{Micros, Span};

use crate::rule::CallId;

use super::{Next, Pace, slots};

/// Parts per million allowed for drift between our clock and the provider's: 10⁻³.
const DRIFT_PPM: u64 = 1_000;
const MILLION: u64 = 1_000_000;

/// Rule A, the response-clocked log: a slot is taken at the send and free again W after the
/// response.
#[derive(Debug)]
pub struct ReferenceA {
    limit: usize,
    hold: Span,
    in_flight: usize,
    free_at: VecDeque<Micros>,
}

/// Rule B, the response-clocked bucket: debited at the response, reserved while in flight.
#[derive(Debug)]
pub struct ReferenceB {
    /// Time in which one unit comes back.
    step: Span,
    /// When the bucket would be full (a bucket seen from its debt).
    full_at: Micros,
    depth: u64,
    in_flight: u64,
}

impl ReferenceA {
    /// At most `limit` per window.
    #[must_use]
    pub fn new(limit: u64, window: Span) -> ReferenceA {
        let hold = window.scale_up(MILLION + DRIFT_PPM, MILLION);
        ReferenceA {
            limit: slots(limit),
            hold,
            in_flight: 0,
            free_at: VecDeque::new(),
        }
    }
}

impl Pace for ReferenceA {
    fn next(&mut self, now: Micros) -> Next {
        while self.free_at.front().is_some_and(|at| *at <= now) {
            self.free_at.pop_front();
        }
        if self.in_flight + self.free_at.len() < self.limit {
            return Next::Go;
        }
        self.free_at
            .front()
            .map_or(Next::OnResponse, |at| Next::At(*at))
    }

    fn on_sent(&mut self, _id: CallId, _now: Micros) {
        self.in_flight += 1;
    }

    fn on_response(&mut self, _id: CallId, now: Micros) {
        self.in_flight -= 1;
        // Responses arrive in order of time, so the log stays sorted.
        self.free_at.push_back(now + self.hold);
    }
}

impl ReferenceB {
    /// `limit` per window, `depth` at once.
    #[must_use]
    pub fn new(limit: u64, window: Span, depth: u64) -> ReferenceB {
        // ρ(1 − ε) is a step longer by 1 / (1 − ε), rounded up.
        let slow = window.scale_up(MILLION, MILLION - DRIFT_PPM);
        let step = slow.scale_up(1, limit);
        ReferenceB {
            step,
            full_at: Micros(0),
            depth,
            in_flight: 0,
        }
    }
}

impl Pace for ReferenceB {
    fn next(&mut self, now: Micros) -> Next {
        let Some(spare) = self.depth.checked_sub(self.in_flight + 1) else {
            return Next::OnResponse;
        };
        // Level ≥ in flight + 1 once the debt is at most depth − in flight − 1.
        let due = self.full_at - Span(self.step.0.saturating_mul(spare));
        if due <= now { Next::Go } else { Next::At(due) }
    }

    fn on_sent(&mut self, _id: CallId, _now: Micros) {
        self.in_flight += 1;
    }

    fn on_response(&mut self, _id: CallId, now: Micros) {
        self.in_flight -= 1;
        self.full_at = self.full_at.max(now) + self.step;
    }
}
