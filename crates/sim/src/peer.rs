//! Client rules of other libraries, by algorithm and not by library, under saturating demand; and
//! minimal versions of our own rules A and B to compare the real ones with.
//!
//! Promises: each rule is written from its description, shares nothing with `tollgate-core`, and
//! never learns from a 429: the table shows what the rule itself sends.
//!
//! Never: an example to follow. Only [`ReferenceA`] and [`ReferenceB`] stay within their limits.

use std::collections::{BTreeMap, VecDeque};

use tollgate_core::time::{Micros, Now, Span};

use crate::checker::Priority;
use crate::rule::{CallId, Cost};
use crate::world::{Call, Client, Effects, NodeId, Outcome};

mod reference;
#[cfg(test)]
mod tests;

pub use reference::{ReferenceA, ReferenceB};

/// Calls a node sends in one callback; the rest follow in another at the same instant. So the world
/// stops a rule that never stops sending before it fills the memory.
const SENDS_PER_WAKE_MAX: usize = 1_000;

/// When a rule allows the next call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Now.
    Go,
    /// Not before this.
    At(Micros),
    /// Not before some call gets its response.
    OnResponse,
}

/// A rule that paces one node. It decides about each send and learns of each send and each
/// response. Time is the node's own ledger clock.
pub trait Pace {
    /// Whether a call may be sent.
    fn next(&mut self, now: Micros) -> Next;
    /// A call was sent.
    fn on_sent(&mut self, id: CallId, now: Micros);
    /// Its response has arrived.
    fn on_response(&mut self, _id: CallId, _now: Micros) {}
}

/// Nodes that always have one more call to make, of cost 1, and send whenever their rule allows.
/// All nodes share the rule as one ledger, which runs on the clock of node 0.
#[derive(Debug)]
pub struct Saturating<P> {
    pace: P,
    last: u64,
}

/// A counter with a window of its own, which opens with the first call after the last window
/// (tower, reservoirs, p-queue).
#[derive(Debug)]
pub struct OwnWindow {
    limit: u64,
    window: Span,
    ends: Micros,
    remaining: u64,
}

/// A log of sends: a slot is free again W (and a guard) after it was taken (p-throttle and p-queue
/// strict with no guard; pyrate's `buffer_ms` with one).
#[derive(Debug)]
pub struct SendLog {
    limit: usize,
    hold: Span,
    sent: VecDeque<Micros>,
}

/// A bucket as deep as the limit (governor, aiolimiter), or of depth one: even pacing at W/N
/// (nginx, `minTime`).
#[derive(Debug)]
pub struct SendBucket {
    /// Time in which one unit comes back.
    step: Span,
    depth: u64,
    /// When the bucket would be full (a bucket seen from its debt).
    full_at: Micros,
}

/// A log of sends with a guard, or of responses if they arrive earlier: a slot is free at
/// min(s + G, r) + W.
#[derive(Debug)]
pub struct GuardedLog {
    limit: usize,
    window: Span,
    guard: Span,
    in_flight: BTreeMap<CallId, Micros>,
    free_at: Vec<Micros>,
}

/// A log of responses that subtracts 0.9 of the shortest round trip seen. The shortest seen is no
/// bound on the next, so this rule proves nothing.
#[derive(Debug)]
pub struct RttAdjustedLog {
    limit: usize,
    window: Span,
    shortest: Span,
    in_flight: BTreeMap<CallId, Micros>,
    answered: VecDeque<Micros>,
}

impl<P: Pace> Saturating<P> {
    /// Any number of nodes under this rule.
    pub fn new(pace: P) -> Saturating<P> {
        Saturating { pace, last: 0 }
    }

    fn send_allowed(&mut self, now: Micros, effects: &mut Effects<'_>) {
        let ledger = ledger_time(now, effects);
        for _ in 0..SENDS_PER_WAKE_MAX {
            match self.pace.next(ledger) {
                Next::Go => {
                    self.last += 1;
                    let id = CallId(self.last);
                    self.pace.on_sent(id, ledger);
                    effects.send(Call {
                        id,
                        cost: Cost::CALL,
                        priority: Priority::Normal,
                    });
                }
                // Clocks differ between nodes, so nodes exchange delays, never instants.
                Next::At(at) => return effects.wake_at(now + at.since(ledger)),
                Next::OnResponse => return effects.clear_timer(),
            }
        }
        effects.wake_at(now);
    }
}

impl<P: Pace> Client for Saturating<P> {
    fn on_wake(&mut self, _node: NodeId, now: Now, effects: &mut Effects<'_>) {
        self.send_allowed(now.at, effects);
    }

    fn on_response(
        &mut self,
        _node: NodeId,
        call: Call,
        _outcome: &Outcome,
        now: Now,
        effects: &mut Effects<'_>,
    ) {
        self.pace.on_response(call.id, ledger_time(now.at, effects));
        self.send_allowed(now.at, effects);
    }
}

impl OwnWindow {
    /// At most `limit` per window.
    #[must_use]
    pub fn new(limit: u64, window: Span) -> OwnWindow {
        OwnWindow {
            limit,
            window,
            ends: Micros(0),
            remaining: 0,
        }
    }
}

impl Pace for OwnWindow {
    fn next(&mut self, now: Micros) -> Next {
        if now >= self.ends {
            self.ends = now + self.window;
            self.remaining = self.limit;
        }
        if self.remaining > 0 {
            Next::Go
        } else {
            Next::At(self.ends)
        }
    }

    fn on_sent(&mut self, _id: CallId, _now: Micros) {
        self.remaining -= 1;
    }
}

impl SendLog {
    /// At most `limit` sends in any window of `window + guard`.
    #[must_use]
    pub fn new(limit: u64, window: Span, guard: Span) -> SendLog {
        SendLog {
            limit: slots(limit),
            hold: window + guard,
            sent: VecDeque::new(),
        }
    }
}

impl Pace for SendLog {
    fn next(&mut self, now: Micros) -> Next {
        while self.sent.front().is_some_and(|at| *at + self.hold <= now) {
            self.sent.pop_front();
        }
        match self.sent.front() {
            Some(oldest) if self.sent.len() >= self.limit => Next::At(*oldest + self.hold),
            _ => Next::Go,
        }
    }

    fn on_sent(&mut self, _id: CallId, now: Micros) {
        self.sent.push_back(now);
    }
}

impl SendBucket {
    /// `limit` per window, and `depth` at once. The step is rounded up to a microsecond.
    #[must_use]
    pub fn new(limit: u64, window: Span, depth: u64) -> SendBucket {
        let step = window.scale_up(1, limit);
        SendBucket {
            step,
            depth: depth.max(1),
            full_at: Micros(0),
        }
    }
}

impl Pace for SendBucket {
    fn next(&mut self, now: Micros) -> Next {
        // A unit is available once the debt is at most depth − 1.
        let due = self.full_at - Span(self.step.0.saturating_mul(self.depth - 1));
        if due <= now { Next::Go } else { Next::At(due) }
    }

    fn on_sent(&mut self, _id: CallId, now: Micros) {
        self.full_at = self.full_at.max(now) + self.step;
    }
}

impl GuardedLog {
    /// At most `limit`, each held W from `guard` after its send or from its response.
    #[must_use]
    pub fn new(limit: u64, window: Span, guard: Span) -> GuardedLog {
        let (in_flight, free_at) = (BTreeMap::new(), Vec::new());
        GuardedLog {
            limit: slots(limit),
            window,
            guard,
            in_flight,
            free_at,
        }
    }
}

impl Pace for GuardedLog {
    fn next(&mut self, now: Micros) -> Next {
        let (window, guard) = (self.window, self.guard);
        self.free_at.retain(|at| *at > now);
        self.in_flight
            .retain(|_, sent| *sent + guard + window > now);
        if self.free_at.len() + self.in_flight.len() < self.limit {
            return Next::Go;
        }
        let unanswered = self.in_flight.values().map(|sent| *sent + guard + window);
        let soonest = self.free_at.iter().copied().chain(unanswered).min();
        soonest.map_or(Next::OnResponse, Next::At)
    }

    fn on_sent(&mut self, id: CallId, now: Micros) {
        self.in_flight.insert(id, now);
    }

    fn on_response(&mut self, id: CallId, now: Micros) {
        if let Some(sent) = self.in_flight.remove(&id) {
            self.free_at.push(now.min(sent + self.guard) + self.window);
        }
    }
}

impl RttAdjustedLog {
    /// At most `limit` per window.
    #[must_use]
    pub fn new(limit: u64, window: Span) -> RttAdjustedLog {
        let (in_flight, answered) = (BTreeMap::new(), VecDeque::new());
        RttAdjustedLog {
            limit: slots(limit),
            window,
            shortest: window,
            in_flight,
            answered,
        }
    }

    /// How long after its response a slot stays taken.
    fn hold(&self) -> Span {
        self.window - Span(self.shortest.0 / 10 * 9)
    }
}

impl Pace for RttAdjustedLog {
    fn next(&mut self, now: Micros) -> Next {
        let hold = self.hold();
        while self.answered.front().is_some_and(|at| *at + hold <= now) {
            self.answered.pop_front();
        }
        if self.in_flight.len() + self.answered.len() < self.limit {
            return Next::Go;
        }
        self.answered
            .front()
            .map_or(Next::OnResponse, |at| Next::At(*at + hold))
    }

    fn on_sent(&mut self, id: CallId, now: Micros) {
        self.in_flight.insert(id, now);
    }

    fn on_response(&mut self, id: CallId, now: Micros) {
        if let Some(sent) = self.in_flight.remove(&id) {
            self.shortest = self.shortest.min(now.since(sent));
            self.answered.push_back(now);
        }
    }
}

/// The clock of node 0; there is one whenever a node is called.
fn ledger_time(own: Micros, effects: &Effects<'_>) -> Micros {
    effects.clock_of(NodeId(0)).map_or(own, |now| now.at)
}

/// A limit as a number of slots.
fn slots(limit: u64) -> usize {
    usize::try_from(limit).unwrap_or(usize::MAX)
}
