//! A scope: the part of a provider that a cool-down, a sleep or a degrade closes for every call.
//!
//! Promises: a scope that is closed for a known time opens by itself. If a probe must follow,
//! exactly one call at a time goes, however many processes wait; a probe without an outcome returns
//! its place. Failures reported by all owners form one run, and the failure that completes the run
//! closes the scope before any other call goes. After a 429 the calls follow each other as the provider
//! accepts them ([`estimate`]).
//!
//! Never: decides when to close. Health does, and reports it with a settle: at once, or after a
//! number of failures in a row.

mod codec;
pub(crate) mod estimate;

use crate::ask::{Outcome, PathTag, PermitId, Reopen, WakeOn};
use crate::rate::Rate;
use crate::time::{Micros, Span};
pub use estimate::LIMITED_WITHIN;
use estimate::RateEstimate;

/// Health reports the result of a probe together with its outcome; a store that loses a batch sends
/// it again within this time.
const PROBE_REPORT: Span = Span::from_secs(1);

/// The longest sleep that health sets by itself is 5 min; twice that without a probe means that
/// nobody calls.
pub const IDLE_AFTER: Span = Span::from_secs(600);

/// The state of one scope. A new one is open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scope {
    state: ScopeState,
    /// What its 429s say about the provider's limit.
    estimate: Option<RateEstimate>,
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
    /// Calls follow each other as the provider accepts them, after a 429.
    Paced {
        /// The estimated limit; `None` = not known yet.
        rate: Option<Rate>,
        /// How long until the next call may go.
        remaining: Span,
    },
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
    /// No call goes, by an operator; calls wait.
    Paused {
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
            ScopeState::Open { .. } => self.check_estimate(id, now),
            ScopeState::Closed {
                until: Some(until), ..
            } if now >= until => self.check_estimate(id, now),
            ScopeState::Closed {
                until: Some(until), ..
            } => Err((until.since(now), WakeOn::Time)),
            ScopeState::Closed { until: None, .. } => Err((Span(u64::MAX), WakeOn::Event)),
            ScopeState::Probe { permit, until } if permit == id || now >= until => Ok(()),
            ScopeState::Probe { until, .. } => Err((until.since(now), WakeOn::Event)),
        }
    }

    fn check_estimate(&self, id: PermitId, now: Micros) -> Result<(), (Span, WakeOn)> {
        let known = self.estimate.as_ref();
        known.map_or(Ok(()), |known| known.check(id, now))
    }

    /// The ask goes. If a probe must follow the closed time, this ask is the probe.
    pub(crate) fn take(&mut self, id: PermitId, now: Micros, arrives_by: Micros) {
        match &mut self.estimate {
            Some(known) if known.is_over(now) => self.estimate = None,
            Some(known) => known.take(id, now, arrives_by),
            None => {}
        }
        self.state = match self.state {
            ScopeState::Open { .. } => self.state,
            ScopeState::Closed {
                reopen: Reopen::All | Reopen::Paused,
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
            (_, Reopen::Paused) => Reopen::Paused,
            // A cool-down does not change a close by an operator; another operator command does.
            (
                ScopeState::Closed {
                    reopen: by_operator @ (Reopen::ByOperator | Reopen::Paused),
                    ..
                },
                Reopen::All | Reopen::Probe,
            ) if until.is_some() => by_operator,
            (
                ScopeState::Closed {
                    reopen: Reopen::Probe | Reopen::ByOperator | Reopen::Paused,
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

    /// The provider limited a call that was granted at `granted`: the scope is closed, and then opens
    /// as the provider accepts calls.
    pub(crate) fn record_limited(&mut self, granted: Micros, at: Micros, until: Micros) {
        match &mut self.estimate {
            Some(estimate) if !estimate.is_over(at) => estimate.on_limited(granted, at, until),
            Some(_) | None => self.estimate = Some(RateEstimate::new(at, until)),
        }
        self.close(Some(until), Reopen::All);
    }

    /// Opens the scope for every call.
    pub(crate) fn open(&mut self) {
        *self = Scope::default();
    }

    /// An attempt failed, on this path. Returns `true` if the scope is closed: the failure completed
    /// `in_a_row` failures without a success between them, not all on one path; or the scope was
    /// closed before, and whoever reports the failure does not know it. Failures of attempts made
    /// while the scope was closed do not count.
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
                reopen: Reopen::All | Reopen::Paused,
            } if now >= until => (0, FailureRun::Empty),
            ScopeState::Closed { .. } | ScopeState::Probe { .. } => return true,
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

    /// The outcome of a permit, for what is known of the provider's limit. `true` if another call may go
    /// earlier than before.
    pub(crate) fn record_outcome(&mut self, id: PermitId, outcome: &Outcome, now: Micros) -> bool {
        let Some(estimate) = &mut self.estimate else {
            return false;
        };
        match outcome {
            Outcome::Arrived { limited: false, .. } | Outcome::Complete { .. } => {
                estimate.on_accepted(id, now)
            }
            Outcome::Arrived { limited: true, .. } => {
                estimate.on_rejected(id, now);
                false
            }
            Outcome::Failed { .. } | Outcome::Unknown { .. } => estimate.on_unproved(id),
            Outcome::Unsent => estimate.on_unsent(id),
            Outcome::Finished { .. } | Outcome::Presumed { .. } | Outcome::Alive { .. } => false,
        }
    }

    /// The outcome of a permit is known. If it was the probe, health reports next what follows; if
    /// it does not, because this process does not know of the probe, another call may probe soon.
    /// `true` if another call may probe earlier than before.
    pub(crate) fn probe_arrived(&mut self, id: PermitId, now: Micros) -> bool {
        match &mut self.state {
            ScopeState::Probe { permit, until } if *permit == id && *until > now + PROBE_REPORT => {
                *until = now + PROBE_REPORT;
                true
            }
            ScopeState::Open { .. } | ScopeState::Closed { .. } | ScopeState::Probe { .. } => false,
        }
    }

    /// It can be removed, last changed at `changed`: a missing scope is open. A scope that nobody has
    /// probed for [`IDLE_AFTER`] says nothing about the provider any more, and neither do failures
    /// that no other result has followed for as long.
    #[must_use]
    pub fn is_idle(&self, changed: Micros, now: Micros) -> bool {
        let is_over = |since: Micros| now >= since + IDLE_AFTER;
        if self.estimate.is_some_and(|known| !known.is_over(now)) {
            return false;
        }
        match self.state {
            ScopeState::Open { failures, .. } => failures == 0 || is_over(changed),
            ScopeState::Closed { until: None, .. } => false,
            ScopeState::Closed {
                until: Some(until),
                reopen: Reopen::All | Reopen::Paused,
            } => now >= until,
            ScopeState::Closed {
                until: Some(until),
                reopen: Reopen::Probe | Reopen::ByOperator,
            }
            | ScopeState::Probe { until, .. } => is_over(until),
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
        let estimate = self.estimate.map(|known| known.moved(then, now));
        Scope { state, estimate }
    }

    /// What its 429s say about the provider's limit.
    pub(crate) fn estimate(&self) -> Option<&RateEstimate> {
        self.estimate.as_ref()
    }

    /// The same scope with this estimate.
    pub(crate) fn with_estimate(self, estimate: Option<RateEstimate>) -> Scope {
        Scope { estimate, ..self }
    }

    /// When a closed scope opens, a probe's place is returned or an estimate ends; `now` if nothing of it
    /// is dated.
    pub(crate) fn matters_until(&self, now: Micros) -> Micros {
        let estimated = self.estimate.map_or(now, |known| known.ends_at());
        estimated.max(self.closed_until(now))
    }

    fn closed_until(&self, now: Micros) -> Micros {
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
            ScopeState::Open { .. } => self.peek_open(now),
            ScopeState::Closed {
                until: Some(until),
                reopen: Reopen::All | Reopen::Paused,
            } if now >= until => self.peek_open(now),
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
            ScopeState::Closed {
                until,
                reopen: Reopen::Paused,
            } => ScopeView::Paused {
                remaining: until.map(|until| until.since(now)),
            },
            ScopeState::Closed {
                until,
                reopen: Reopen::All | Reopen::Probe,
            } => ScopeView::Closed {
                remaining: until.map(|until| until.since(now)),
            },
            ScopeState::Probe { .. } => ScopeView::Probing,
        }
    }

    fn peek_open(&self, now: Micros) -> ScopeView {
        let active = self.estimate.filter(|known| !known.is_over(now));
        active.map_or(ScopeView::Open, |known| {
            let wait = known.check(PermitId::default(), now).err();
            ScopeView::Paced {
                rate: known.rate(),
                remaining: wait.map_or(Span::ZERO, |(wait, _)| wait),
            }
        })
    }
}
