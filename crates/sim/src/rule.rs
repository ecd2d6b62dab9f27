//! The provider's own ways of counting and enforcing limits.
//!
//! Promises: whole microseconds and whole units only, no rounding for or against the caller; a
//! request is charged to every rule or to none; the same arrivals give the same decisions. A window
//! of length W is half-open: a request counted at `a` no longer counts at `a + W`.
//!
//! Never: shares counting code with `tollgate-core`, reads a clock, goes back in time (an instant
//! earlier than the last one counts as the last one).

use std::fmt;

use tollgate_core::time::{Micros, Span};

mod bucket;
mod in_flight;
mod provider;
mod sliding;
mod spec;
mod windows;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod recount;

pub use provider::Provider;
pub use spec::SpecError;
pub(crate) use spec::{Length, parse_length};

/// One request as the caller names it. A retry keeps its id, so that the judge can detect what was
/// sent twice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallId(pub u64);

/// The unit that a rule counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Unit {
    /// Requests; the unit of a rule that names none.
    #[default]
    Calls,
    /// Tokens of a language model.
    Tokens,
    /// Points of a query cost.
    Points,
    /// Bytes.
    Bytes,
}

/// The cost of one request, in every unit at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cost {
    calls: u64,
    tokens: u64,
    points: u64,
    bytes: u64,
}

/// How a provider counts one limit. Plain data; [`RuleSpec`] adds the common part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counting {
    /// At most `limit` in any window: every request is logged until `window` has passed.
    Sliding {
        /// Units per window.
        limit: u64,
        /// Length of the window.
        window: Span,
    },
    /// The count of this aligned window plus the fraction of the previous one that still overlaps
    /// (the Cloudflare type).
    TwoCounter {
        /// Units per window.
        limit: u64,
        /// Length of the window.
        window: Span,
        /// Where the edges lie on the provider's clock.
        phase: Span,
    },
    /// A sliding window that logs only the bin of a request: all of a bin counts until all of it
    /// has left the window.
    Binned {
        /// Units per window.
        limit: u64,
        /// Length of the window.
        window: Span,
        /// Bins per window.
        bins: u64,
    },
    /// A counter that restarts at every edge. With a wall clock and no phase, the edges are those
    /// of UTC.
    Fixed {
        /// Units per window.
        limit: u64,
        /// Length of the window.
        window: Span,
        /// Where the edges lie on the provider's clock.
        phase: Span,
    },
    /// A counter whose window starts with the first request after the previous window.
    FirstUse {
        /// Units per window.
        limit: u64,
        /// Length of the window.
        window: Span,
    },
    /// A bucket of `burst` units, full at the start, refilled with `limit` units per `window`.
    Bucket {
        /// Units refilled per window.
        limit: u64,
        /// Time in which `limit` units come back.
        window: Span,
        /// Depth.
        burst: u64,
        /// Refilled only at multiples of this; `None` refills continuously.
        tick: Option<Span>,
    },
    /// At most `limit` at a time; freed `lag` after the response was sent.
    InFlight {
        /// Units at a time.
        limit: u64,
        /// How long after the response the slot stays taken.
        lag: Span,
    },
}

/// One limit of a provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuleSpec {
    /// How it counts.
    pub counting: Counting,
    /// What it counts.
    pub unit: Unit,
    /// Whether a limited request is charged too (it may empty a bucket, never overdraw it; it never
    /// takes an in-flight slot).
    pub counts_refused: bool,
}

/// The provider's decision about a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum RuleDecision {
    /// Every rule allows it; it is counted. [`Provider::status`] has the content of the headers.
    Accepted,
    /// A rule does not allow it.
    Limited {
        /// The rule with the longest wait (an unknown wait counts as longest).
        rule: usize,
        /// When that rule would accept the same request if no other arrived; `None` if it is
        /// unknown: the cost is above the limit, or an in-flight slot has no known end.
        retry_after: Option<Span>,
        /// The status of that rule.
        status: LimitStatus,
    },
}

/// The status of one rule: the content of rate-limit headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitStatus {
    /// Units the rule allows.
    pub limit: u64,
    /// Whole units it would accept now.
    pub remaining: u64,
    /// Time until its status is that of an unused rule; for a fixed window, until the next edge.
    pub reset_after: Span,
}

/// When a rule would accept a cost if no other request arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Availability {
    Now,
    After(Span),
    Unknown,
}

/// One way of counting, in one unit. `now` never goes back between calls.
trait Counter: fmt::Debug + Send {
    fn availability(&mut self, cost: u64, now: Micros) -> Availability;
    fn charge(&mut self, id: CallId, cost: u64, now: Micros);
    /// Charges a request that was limited.
    fn charge_limited(&mut self, id: CallId, cost: u64, now: Micros) {
        self.charge(id, cost, now);
    }
    fn finish(&mut self, _id: CallId, _now: Micros) {}
    fn status(&mut self, now: Micros) -> LimitStatus;
    fn set_limit(&mut self, limit: u64, now: Micros);
}

impl Cost {
    /// One call, nothing else.
    pub const CALL: Cost = Cost {
        calls: 1,
        tokens: 0,
        points: 0,
        bytes: 0,
    };

    /// The same with `amount` of `unit`.
    #[must_use]
    pub const fn with(mut self, unit: Unit, amount: u64) -> Cost {
        match unit {
            Unit::Calls => self.calls = amount,
            Unit::Tokens => self.tokens = amount,
            Unit::Points => self.points = amount,
            Unit::Bytes => self.bytes = amount,
        }
        self
    }

    /// How much of `unit` it costs.
    #[must_use]
    pub const fn of(&self, unit: Unit) -> u64 {
        match unit {
            Unit::Calls => self.calls,
            Unit::Tokens => self.tokens,
            Unit::Points => self.points,
            Unit::Bytes => self.bytes,
        }
    }
}

impl From<Counting> for RuleSpec {
    fn from(counting: Counting) -> RuleSpec {
        RuleSpec {
            counting,
            unit: Unit::Calls,
            counts_refused: false,
        }
    }
}

impl Counting {
    /// Units per window, in the refill of a bucket, or at a time.
    #[must_use]
    pub const fn limit(&self) -> u64 {
        match *self {
            Counting::Sliding { limit, .. }
            | Counting::TwoCounter { limit, .. }
            | Counting::Binned { limit, .. }
            | Counting::Fixed { limit, .. }
            | Counting::FirstUse { limit, .. }
            | Counting::Bucket { limit, .. }
            | Counting::InFlight { limit, .. } => limit,
        }
    }

    /// The period of the limit; `None` for in-flight limits.
    #[must_use]
    pub const fn window(&self) -> Option<Span> {
        match *self {
            Counting::Sliding { window, .. }
            | Counting::TwoCounter { window, .. }
            | Counting::Binned { window, .. }
            | Counting::Fixed { window, .. }
            | Counting::FirstUse { window, .. }
            | Counting::Bucket { window, .. } => Some(window),
            Counting::InFlight { .. } => None,
        }
    }

    /// The same way of counting with another limit. A bucket's burst keeps its ratio.
    #[must_use]
    pub fn with_limit(mut self, new: u64) -> Counting {
        if let Counting::Bucket { limit, burst, .. } = &mut self {
            *burst = bucket::scaled_burst(*burst, *limit, new);
        }
        match &mut self {
            Counting::Sliding { limit, .. }
            | Counting::TwoCounter { limit, .. }
            | Counting::Binned { limit, .. }
            | Counting::Fixed { limit, .. }
            | Counting::FirstUse { limit, .. }
            | Counting::Bucket { limit, .. }
            | Counting::InFlight { limit, .. } => *limit = new,
        }
        self
    }

    fn counter(self) -> Box<dyn Counter> {
        match self {
            Counting::Sliding { limit, window } => Box::new(sliding::Log::new(limit, window)),
            Counting::TwoCounter {
                limit,
                window,
                phase,
            } => Box::new(windows::TwoCounter::new(limit, window, phase)),
            Counting::Binned {
                limit,
                window,
                bins,
            } => Box::new(sliding::Binned::new(limit, window, bins)),
            Counting::Fixed {
                limit,
                window,
                phase,
            } => Box::new(windows::WindowCounter::fixed(limit, window, phase)),
            Counting::FirstUse { limit, window } => {
                Box::new(windows::WindowCounter::first_use(limit, window))
            }
            Counting::Bucket {
                limit,
                window,
                burst,
                tick,
            } => Box::new(bucket::Bucket::new(limit, window, burst, tick)),
            Counting::InFlight { limit, lag } => Box::new(in_flight::InFlight::new(limit, lag)),
        }
    }
}
