//! A scope: the part of a provider that a cool-down, a sleep or a degrade closes for every call.
//!
//! Promises: a scope that is closed for a known time opens by itself. If a probe must follow,
//! exactly one call at a time goes, however many processes wait; a probe without an outcome returns
//! its place. Failures reported by all owners form one run, and the failure that completes the run
//! closes the scope before any other call goes.
//!
//! Never: decides when to close. Health does, and reports it with a settle: at once, or after a
//! number of failures in a row.

mod codec;

use crate::ask::{PathTag, PermitId, Reopen, WakeOn};
use crate::time::{Micros, Span};

/// The state of one scope. A new one is open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scope {
    state: ScopeState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ScopeState {
    /// Every call may go. This many attempts have failed in a row, in any process.
    Open { failures: u32, run: FailureRun },
    /// No call goes until then; `None` = until it is opened.
    Closed {
        until: Option<Micros>,
        reopen: Reopen,
    },
    /// One call probes. If no outcome is reported until then, another call may probe.
    Probe { permit: PermitId, until: Micros },
}

/// The paths of the failures in a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum FailureRun {
    /// No failure.
    #[default]
    Empty,
    /// All on this path.
    OnePath(PathTag),
    /// On several paths, or not about a path.
    Several,
}

impl FailureRun {
    /// One more failure, after `before` others.
    pub(crate) fn add(self, path: Option<PathTag>, before: u32) -> FailureRun {
        match (self, path) {
            (FailureRun::Empty, Some(path)) if before == 0 => FailureRun::OnePath(path),
            (FailureRun::OnePath(old), Some(path)) if old == path => self,
            (FailureRun::Empty | FailureRun::OnePath(_) | FailureRun::Several, _) => {
                FailureRun::Several
            }
        }
    }

    /// The number of failures in a row that counts: a single path stays one below the threshold.
    pub(crate) fn capped(self, failures: u32, in_a_row: u32) -> u32 {
        match self {
            FailureRun::OnePath(_) => failures.min(in_a_row.saturating_sub(1)),
            FailureRun::Empty | FailureRun::Several => failures,
        }
    }
}

impl ScopeState {
    /// Open, without failures.
    const HEALTHY: ScopeState = ScopeState::Open {
        failures: 0,
        run: FailureRun::Empty,
    };
}

impl Default for ScopeState {
    fn default() -> ScopeState {
        ScopeState::HEALTHY
    }
}

/// The visible state of a scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScopeView {
    /// Every call may go.
    Open,
    /// No call goes for this long; `None` = until an operator opens it.
    Closed {
        /// The remaining time.
        remaining: Option<Span>,
    },
    /// No call goes; responses come from the cache only.
    CacheOnly {
        /// The remaining time; `None` = until an operator opens it.
        remaining: Option<Span>,
    },
    /// One call at a time probes.
    Probing,
}

impl Scope {
    /// May this ask go? `Err` says how long to wait.
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
            ScopeState::Probe { permit, until } if permit == id || now >= until => Ok(()),
            ScopeState::Probe { until, .. } => Err((until.since(now), WakeOn::Event)),
        }
    }

    /// The ask goes. If a probe must follow the closed time, this ask is the probe.
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

    /// Closes the scope. An earlier end never shortens a longer closed time; a failed probe starts
    /// a new one. A required probe stays required: a cool-down during a sleep must not let every
    /// call through at its end.
    pub(crate) fn close(&mut self, until: Option<Micros>, reopen: Reopen) {
        let reopen = match (self.state, reopen) {
            (_, Reopen::ByOperator) => Reopen::ByOperator,
            // A cool-down does not change a close by an operator; another operator command does.
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
        self.state = ScopeState::Closed { until, reopen };
    }

    /// Opens the scope for every call.
    pub(crate) fn open(&mut self) {
        self.state = ScopeState::HEALTHY;
    }

    /// An attempt failed, on this path. Returns `true` if that closed the scope: it completed
    /// `in_a_row` failures without a success between them, not all on one path. Failures of attempts
    /// made while the scope was closed do not count.
    pub(crate) fn record_failure(
        &mut self,
        (in_a_row, path): (u32, Option<PathTag>),
        until: Micros,
        now: Micros,
    ) -> bool {
        let (before, run) = match self.state {
            ScopeState::Open { failures, run } => (failures, run),
            ScopeState::Closed {
                until: Some(until),
                reopen: Reopen::All,
            } if now >= until => (0, FailureRun::Empty),
            ScopeState::Closed { .. } | ScopeState::Probe { .. } => return false,
        };
        let run = run.add(path, before);
        let failures = run.capped(before.saturating_add(1), in_a_row);
        self.state = ScopeState::Open { failures, run };
        let is_enough = failures >= in_a_row;
        if is_enough {
            self.close(Some(until), Reopen::Probe);
        }
        is_enough
    }

    /// An attempt succeeded: the run of failures ends.
    pub(crate) fn record_success(&mut self) {
        if let ScopeState::Open { .. } = self.state {
            self.state = ScopeState::HEALTHY;
        }
    }

    /// It can be removed without loss: a missing scope is open.
    pub(crate) fn is_idle(&self, now: Micros) -> bool {
        match self.state {
            ScopeState::Open { failures, .. } => failures == 0,
            ScopeState::Closed { .. } | ScopeState::Probe { .. } => {
                self.peek(now) == ScopeView::Open
            }
        }
    }

    /// The same state on a clock that has stepped: `then` before the step is `now` after it.
    pub(crate) fn moved(&self, then: Micros, now: Micros) -> Scope {
        let moved = |until: Micros| now + until.since(then);
        let state = match self.state {
            ScopeState::Open { .. } => self.state,
            ScopeState::Closed { until, reopen } => ScopeState::Closed {
                until: until.map(moved),
                reopen,
            },
            ScopeState::Probe { permit, until } => ScopeState::Probe {
                permit,
                until: moved(until),
            },
        };
        Scope { state }
    }

    /// When a closed scope opens or a probe's place is returned; `now` if nothing of it is dated.
    pub(crate) fn matters_until(&self, now: Micros) -> Micros {
        match self.state {
            ScopeState::Open { .. } | ScopeState::Closed { until: None, .. } => now,
            ScopeState::Closed {
                until: Some(until), ..
            }
            | ScopeState::Probe { until, .. } => until,
        }
    }

    /// The probe was not sent: the next call may probe. `true` if this permit was the probe.
    pub(crate) fn return_probe(&mut self, id: PermitId, now: Micros) -> bool {
        match self.state {
            ScopeState::Probe { permit, .. } if permit == id => {
                self.state = ScopeState::Closed {
                    until: Some(now),
                    reopen: Reopen::Probe,
                };
                true
            }
            ScopeState::Open { .. } | ScopeState::Closed { .. } | ScopeState::Probe { .. } => false,
        }
    }

    /// The visible state at `now`.
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
