//! Planned faults of the provider: a plan, and which faults affect a request now.
//!
//! Promises: pure. Time is an argument (microseconds since the provider started), the same plan and
//! the same requests give the same faults, and a plan never holds more than [`FAULTS_MAX`] entries.
//! The text form (`outage 8s..11s 503`) is in [`text`].
//!
//! Never: sleeps, responds, counts a permit. The HTTP provider applies the decisions made here.

use tollgate_core::time::{Micros, Span};

pub mod text;
mod words;

pub use words::{FaultParseError, parse_span};

/// Faults in one plan. A scenario with more than 64 is a program, not a scenario; and every request
/// scans the list, so it stays short.
pub const FAULTS_MAX: usize = 64;

/// One fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The request is counted, then gets this status and nothing useful.
    Outage {
        /// The status of the response.
        status: u16,
    },
    /// The connection is reset while the request is unread: it is never counted.
    ResetBefore,
    /// The request is read and counted, then the connection is reset without a response.
    ResetAfter,
    /// The request is read and counted, then never gets a response.
    Hang,
    /// The body arrives one byte at a time.
    Drip {
        /// Time between two bytes.
        gap: Span,
    },
    /// The body never ends.
    Endless,
    /// The response has 64 KiB of headers.
    HugeHeaders,
    /// The body ends in the middle of its announced length.
    Truncate,
    /// The `Date` header, and every absolute time in the response, is wrong by this much.
    Skew {
        /// Seconds ahead of true time; negative means behind.
        secs: i64,
    },
    /// The provider enforces a different number than before.
    Limit {
        /// Which rule, counted from 0 in the order of the settings.
        rule: usize,
        /// The number it enforces.
        to: Amount,
    },
    /// The headers advertise a different number than the enforced one.
    ReportLimit {
        /// Which rule, counted from 0 in the order of the settings.
        rule: usize,
        /// The advertised number.
        to: Amount,
    },
}

/// A number of permits, absolute or relative to the settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    /// This many.
    Exactly(u64),
    /// Half of the number in the settings, rounded down.
    Half,
}

/// When a fault is active. Times are measured from the start of the provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// From the moment it is planned until it is cleared.
    Now,
    /// Between two times; without an end, forever.
    Between {
        /// The first instant at which it is active.
        from: Span,
        /// The first instant at which it is no longer active.
        to: Option<Span>,
    },
    /// The next `requests` requests, whenever they arrive. Tests use this form: they need not wait
    /// for time. For `Limit` and `ReportLimit`, which no request uses up, the same as forever.
    Next {
        /// Requests still to be struck.
        requests: u32,
    },
}

/// A fault with its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlannedFault {
    /// The fault.
    pub fault: Fault,
    /// When it is active.
    pub when: When,
}

/// The plan is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the plan already holds {FAULTS_MAX} faults that are not over; clear it first (`clear`)")]
pub struct PlanFull;

/// The faults of one provider; past ones are dropped.
#[derive(Clone, Debug, Default)]
pub struct FaultPlan {
    entries: Vec<Entry>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    fault: Fault,
    from: Micros,
    /// Exclusive; `None` is forever.
    until: Option<Micros>,
    /// Requests still to be struck; `None` is all.
    remaining: Option<u32>,
}

/// All faults that affect one request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AppliedFaults {
    /// What becomes of the request after it was counted.
    pub response_fault: ResponseFault,
    /// The fault of the response body.
    pub body: BodyFault,
    /// Whether the head of the response is huge.
    pub huge_headers: bool,
    /// Seconds by which times in the response are wrong.
    pub skew_secs: i64,
}

/// What becomes of a request after it was counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ResponseFault {
    /// It gets its response.
    #[default]
    Unaffected,
    /// It gets this status instead.
    Outage(u16),
    /// Its connection is reset.
    Reset,
    /// It never gets a response.
    Hang,
}

/// The fault of a response body.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BodyFault {
    /// It arrives.
    #[default]
    Whole,
    /// It arrives byte by byte.
    Drip(Span),
    /// It never ends.
    Endless,
    /// It ends in the middle.
    Truncated,
}

impl FaultPlan {
    /// Adds a fault; `now` is what [`When::Now`] starts from.
    ///
    /// # Errors
    /// [`PlanFull`] if [`FAULTS_MAX`] faults are still to come or under way.
    pub fn add(&mut self, planned: PlannedFault, now: Micros) -> Result<(), PlanFull> {
        self.entries.retain(|entry| !entry.is_over(now));
        if self.entries.len() >= FAULTS_MAX {
            return Err(PlanFull);
        }
        let start = Micros(0);
        let (from, until, remaining) = match planned.when {
            When::Now => (now, None, None),
            When::Between { from, to } => (start + from, to.map(|to| start + to), None),
            When::Next { requests } => (start, None, Some(requests)),
        };
        self.entries.push(Entry {
            fault: planned.fault,
            from,
            until,
            remaining,
        });
        Ok(())
    }

    /// Removes every fault.
    pub fn clear(&mut self) {
        self.entries.clear();
    }

    /// Whether bytes that arrive now could cause a reset; uses nothing up.
    #[must_use]
    pub fn may_reset_unread(&self, now: Micros) -> bool {
        self.entries
            .iter()
            .any(|entry| entry.fault == Fault::ResetBefore && entry.is_on(now))
    }

    /// Whether bytes that arrive now cause a reset instead of being read.
    pub fn resets_unread(&mut self, now: Micros) -> bool {
        let unread = |entry: &&mut Entry| entry.fault == Fault::ResetBefore && entry.is_on(now);
        match self.entries.iter_mut().find(unread) {
            Some(entry) => {
                entry.use_one();
                true
            }
            None => false,
        }
    }

    /// The faults of a request that is counted now. Each fault planned for the next n requests is
    /// used up by one. Where two faults concern the same thing, the one planned first wins.
    pub fn apply_to_request(&mut self, now: Micros) -> AppliedFaults {
        let mut faults = AppliedFaults::default();
        for entry in self.entries.iter_mut().filter(|entry| entry.is_on(now)) {
            if faults.apply(entry.fault) {
                entry.use_one();
            }
        }
        faults
    }

    /// The number that `rule` enforces now; `base` is the number in the settings. The change
    /// planned last wins.
    #[must_use]
    pub fn limit(&self, rule: usize, base: u64, now: Micros) -> u64 {
        self.amount(base, now, |fault| match fault {
            Fault::Limit { rule: which, to } if which == rule => Some(to),
            _ => None,
        })
        .unwrap_or(base)
    }

    /// The instants in `(after, until]` at which some limit may change, in order.
    #[must_use]
    pub fn limit_edges(&self, after: Micros, until: Micros) -> Vec<Micros> {
        let limits = self
            .entries
            .iter()
            .filter(|entry| matches!(entry.fault, Fault::Limit { .. }));
        let edges = limits
            .flat_map(|entry| [Some(entry.from), entry.until])
            .flatten();
        let mut edges: Vec<Micros> = edges.filter(|at| after < *at && *at <= until).collect();
        edges.sort_unstable();
        edges
    }

    /// The number that the headers advertise for `rule` now, if it is not the enforced one.
    #[must_use]
    pub fn advertised(&self, rule: usize, base: u64, now: Micros) -> Option<u64> {
        self.amount(base, now, |fault| match fault {
            Fault::ReportLimit { rule: which, to } if which == rule => Some(to),
            _ => None,
        })
    }

    fn amount(&self, base: u64, now: Micros, of: impl Fn(Fault) -> Option<Amount>) -> Option<u64> {
        let on = self.entries.iter().rev().filter(|entry| entry.is_on(now));
        on.filter_map(|entry| of(entry.fault))
            .next()
            .map(|amount| amount.of(base))
    }
}

impl Amount {
    /// The number itself; `base` is the number in the settings.
    #[must_use]
    pub fn of(self, base: u64) -> u64 {
        match self {
            Amount::Exactly(n) => n,
            Amount::Half => base / 2,
        }
    }
}

impl Entry {
    fn is_on(&self, now: Micros) -> bool {
        self.from <= now && !self.is_over(now)
    }

    fn is_over(&self, now: Micros) -> bool {
        self.remaining == Some(0) || self.until.is_some_and(|until| until <= now)
    }

    fn use_one(&mut self) {
        self.remaining = self.remaining.map(|remaining| remaining.saturating_sub(1));
    }
}

impl AppliedFaults {
    /// Adds a fault; returns whether it affects this request.
    fn apply(&mut self, fault: Fault) -> bool {
        match fault {
            Fault::Outage { status } => self.set_response_fault(ResponseFault::Outage(status)),
            Fault::ResetAfter => self.set_response_fault(ResponseFault::Reset),
            Fault::Hang => self.set_response_fault(ResponseFault::Hang),
            Fault::Drip { gap } => self.set_body_fault(BodyFault::Drip(gap)),
            Fault::Endless => self.set_body_fault(BodyFault::Endless),
            Fault::Truncate => self.set_body_fault(BodyFault::Truncated),
            Fault::HugeHeaders => {
                self.huge_headers = true;
                true
            }
            Fault::Skew { secs } => {
                self.skew_secs = secs;
                true
            }
            // `ResetBefore` affects bytes, before there is a request; numbers change by time, not
            // by request.
            Fault::ResetBefore | Fault::Limit { .. } | Fault::ReportLimit { .. } => false,
        }
    }

    fn set_response_fault(&mut self, fault: ResponseFault) -> bool {
        let open = self.response_fault == ResponseFault::Unaffected;
        if open {
            self.response_fault = fault;
        }
        open
    }

    fn set_body_fault(&mut self, body: BodyFault) -> bool {
        let whole = self.body == BodyFault::Whole;
        if whole {
            self.body = body;
        }
        whole
    }
}

#[cfg(test)]
mod tests;
