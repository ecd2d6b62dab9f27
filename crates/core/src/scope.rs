//! A scope: the part of a provider that a cool-down, a sleep or a degrade closes for everybody.
//!
//! Promises: a scope that rests for a known time opens by itself; after a rest that asks for a
//! probe exactly one call goes at a time, however many processes wait, and a probe that is never
//! heard of gives its place back. Failures that owners tell of are counted in one row, and the one
//! that makes it long enough closes the scope before anybody else goes.
//!
//! Never: decides when to close. Health does, and says so by a settle: at once, or by how many
//! failures in a row.

mod codec;

use crate::ask::{PermitId, Reopen, WakeOn};
use crate::time::{Micros, Span};

/// The state of one scope. A new one is open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scope {
    state: ScopeState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ScopeState {
    /// Everybody goes. So many attempts have failed in a row, whoever made them.
    Open { failures: u32 },
    /// Nobody goes until then; `None` = until somebody opens it.
    Closed {
        until: Option<Micros>,
        reopen: Reopen,
    },
    /// One call tries; if nothing is heard of it until then, another one may.
    Probe { permit: PermitId, until: Micros },
}

impl ScopeState {
    /// Open, and nothing is known against it.
    const HEALTHY: ScopeState = ScopeState::Open { failures: 0 };
}

impl Default for ScopeState {
    fn default() -> ScopeState {
        ScopeState::HEALTHY
    }
}

/// What a scope looks like from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScopeView {
    /// Everybody may go.
    Open,
    /// Nobody goes for this long; `None` = until opened by hand.
    Closed {
        /// The rest of the rest.
        remaining: Option<Span>,
    },
    /// Nobody goes; answers come from the cache only.
    CacheOnly {
        /// The rest of it; `None` = until opened by hand.
        remaining: Option<Span>,
    },
    /// One call at a time tries.
    Probing,
}

impl Scope {
    /// May this ask go? `Err` says how long not.
    pub(crate) fn check(&self, id: PermitId, now: Micros) -> Result<(), (Span, WakeOn)> {
        match self.state {
            ScopeState::Open { .. } => Ok(()),
            ScopeState::Closed {
                until: Some(until), ..
            } if now >= until => Ok(()),
            ScopeState::Closed {
                until: Some(until), ..
            } => Err((until.since(now), WakeOn::Time)),
            ScopeState::Closed { until: None, .. } => Err((Span(u64::MAX), WakeOn::Event)),
            ScopeState::Probe {
                permit: holder,
                until,
            } if holder == id || now >= until => Ok(()),
            ScopeState::Probe { until, .. } => Err((until.since(now), WakeOn::Event)),
        }
    }

    /// The ask goes. After a rest that asks for a probe, it is the probe.
    pub(crate) fn take(&mut self, id: PermitId, arrives_by: Micros) {
        self.state = match self.state {
            ScopeState::Open { .. } => self.state,
            ScopeState::Closed {
                reopen: Reopen::All,
                ..
            } => ScopeState::HEALTHY,
            ScopeState::Closed {
                reopen: Reopen::Probe | Reopen::ByOperator,
                ..
            }
            | ScopeState::Probe { .. } => ScopeState::Probe {
                permit: id,
                until: arrives_by,
            },
        };
    }

    /// Closes it. An earlier end never shortens a rest that is already longer, except that a probe
    /// which failed starts a rest of its own. A probe that is owed stays owed: a cool-down in the
    /// middle of a sleep must not let everybody through at its end.
    pub(crate) fn close(&mut self, until: Option<Micros>, then: Reopen) {
        let then = match (self.state, then) {
            (_, Reopen::ByOperator) => Reopen::ByOperator,
            // A rest that ends does not change what a hold is; another hold does.
            (
                ScopeState::Closed {
                    reopen: Reopen::ByOperator,
                    ..
                },
                Reopen::All | Reopen::Probe,
            ) if until.is_some() => Reopen::ByOperator,
            (
                ScopeState::Closed {
                    reopen: Reopen::Probe | Reopen::ByOperator,
                    ..
                }
                | ScopeState::Probe { .. },
                Reopen::All,
            )
            | (_, Reopen::Probe) => Reopen::Probe,
            (
                ScopeState::Open { .. }
                | ScopeState::Closed {
                    reopen: Reopen::All,
                    ..
                },
                Reopen::All,
            ) => Reopen::All,
        };
        let until = match (self.state, until) {
            (ScopeState::Closed { until: None, .. }, _) | (_, None) => None,
            (
                ScopeState::Closed {
                    until: Some(old), ..
                },
                Some(new),
            ) => Some(old.max(new)),
            (ScopeState::Open { .. } | ScopeState::Probe { .. }, Some(new)) => Some(new),
        };
        self.state = ScopeState::Closed {
            until,
            reopen: then,
        };
    }

    /// Opens it for everybody.
    pub(crate) fn open(&mut self) {
        self.state = ScopeState::HEALTHY;
    }

    /// An attempt failed. `true` if that closed it: it was one of `in_a_row` with nothing but
    /// failures between them. What failed while it was closed is old news.
    pub(crate) fn record_failure(&mut self, in_a_row: u32, until: Micros, now: Micros) -> bool {
        let before = match self.state {
            ScopeState::Open { failures: failed } => failed,
            ScopeState::Closed {
                until: Some(until),
                reopen: Reopen::All,
            } if now >= until => 0,
            ScopeState::Closed { .. } | ScopeState::Probe { .. } => return false,
        };
        let failed = before.saturating_add(1);
        self.state = ScopeState::Open { failures: failed };
        let is_enough = failed >= in_a_row;
        if is_enough {
            self.close(Some(until), Reopen::Probe);
        }
        is_enough
    }

    /// An attempt went well: what failed before it is no row any more.
    pub(crate) fn record_success(&mut self) {
        if let ScopeState::Open { failures: failed } = &mut self.state {
            *failed = 0;
        }
    }

    /// Nothing is lost if it is forgotten: a scope that is missing is open.
    pub(crate) fn is_idle(&self, now: Micros) -> bool {
        match self.state {
            ScopeState::Open { failures: failed } => failed == 0,
            ScopeState::Closed { .. } | ScopeState::Probe { .. } => {
                self.peek(now) == ScopeView::Open
            }
        }
    }

    /// The probe never left: the next one may try. `true` if this permit held the place.
    pub(crate) fn return_probe(&mut self, id: PermitId, now: Micros) -> bool {
        match self.state {
            ScopeState::Probe { permit: holder, .. } if holder == id => {
                self.state = ScopeState::Closed {
                    until: Some(now),
                    reopen: Reopen::Probe,
                };
                true
            }
            ScopeState::Open { .. } | ScopeState::Closed { .. } | ScopeState::Probe { .. } => false,
        }
    }

    /// What it looks like at `now`.
    #[must_use]
    pub fn peek(&self, now: Micros) -> ScopeView {
        match self.state {
            ScopeState::Open { .. } => ScopeView::Open,
            ScopeState::Closed {
                until: Some(until),
                reopen: Reopen::All,
            } if now >= until => ScopeView::Open,
            ScopeState::Closed {
                until: Some(until),
                reopen: Reopen::Probe | Reopen::ByOperator,
            } if now >= until => ScopeView::Probing,
            ScopeState::Closed {
                until,
                reopen: Reopen::ByOperator,
            } => ScopeView::CacheOnly {
                remaining: until.map(|until| until.since(now)),
            },
            ScopeState::Closed { until, .. } => ScopeView::Closed {
                remaining: until.map(|until| until.since(now)),
            },
            ScopeState::Probe { .. } => ScopeView::Probing,
        }
    }
}
