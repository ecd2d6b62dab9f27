//! Follows what other processes have done, as the ledger shows it.
//!
//! Promises: processes that share a ledger sleep, probe and recover together, and a restarted
//! process resumes its sleep. Our own actions come back as views too; they change nothing.
//!
//! Never: writes to the ledger because of what it read there; otherwise two processes would react
//! to each other without end.

use super::phase::{HealthPhase, PauseState, ProbeSlot};
use super::settings::HealthMode;
use super::transitions::midpoint;
use super::{Actions, Health, Reason};
use crate::scope::ScopeView;
use crate::time::{Micros, Span};

/// What a view of a closed scope means to this process.
enum ViewMeaning {
    /// It is older than our current hold.
    Outdated,
    /// Another process sleeps or probes.
    Closed,
    /// Our hold is over: only an opening ends a hold, so there was one.
    HoldEnded,
}

impl Health {
    /// With `mode: off` only operators' commands are followed.
    pub(super) fn on_scope_view(&mut self, view: ScopeView, now: Micros, actions: &mut Actions) {
        let follows = match self.settings.mode {
            HealthMode::Adaptive | HealthMode::Breaker => true,
            HealthMode::Off => false,
        };
        match view {
            ScopeView::Open | ScopeView::Paced { .. } => self.on_open(now, actions),
            ScopeView::Closed { remaining: None } => self.on_offline(now, actions),
            ScopeView::CacheOnly { remaining } => self.on_cache_only(remaining, now, actions),
            ScopeView::Paused { remaining } => self.on_paused(remaining, now, actions),
            ScopeView::Closed {
                remaining: Some(remaining),
            } if self.is_our_hold(remaining, now) => {
                self.seen_closed = true;
            }
            ScopeView::Closed {
                remaining: Some(remaining),
            } if follows => {
                self.on_closed(remaining, now, actions);
            }
            ScopeView::Probing if follows => self.on_probing(now, actions),
            ScopeView::Closed { remaining: Some(_) } | ScopeView::Probing => {}
        }
    }

    /// Until we have seen our own closing, a view of an open scope is older than it.
    fn on_open(&mut self, now: Micros, actions: &mut Actions) {
        if !self.seen_closed {
            return;
        }
        self.seen_closed = false;
        match &self.phase {
            HealthPhase::Normal { .. } | HealthPhase::Throttle(_) => {}
            HealthPhase::HalfOpen(probing) => {
                if probing.slot == ProbeSlot::Shared {
                    self.follow_to_normal(Reason::ProbeOk, now, actions);
                }
            }
            HealthPhase::Sleep { .. } => self.follow_to_normal(Reason::ProbeOk, now, actions),
            HealthPhase::Offline { .. } | HealthPhase::CacheOnly { .. } => {
                self.follow_to_normal(Reason::Operator, now, actions);
            }
        }
    }

    fn on_probing(&mut self, now: Micros, actions: &mut Actions) {
        let reason = match self.interpret() {
            ViewMeaning::Outdated => return,
            ViewMeaning::Closed => Reason::SleepOver,
            ViewMeaning::HoldEnded => Reason::Operator,
        };
        self.valid_from = match &self.phase {
            HealthPhase::HalfOpen(_) => return,
            HealthPhase::Sleep { began, .. } => midpoint(*began, now),
            HealthPhase::Normal { .. }
            | HealthPhase::Throttle(_)
            | HealthPhase::Offline { .. }
            | HealthPhase::CacheOnly { .. } => now,
        };
        self.enter_half_open(ProbeSlot::Shared, reason, now, actions);
    }

    fn on_closed(&mut self, remaining: Span, now: Micros, actions: &mut Actions) {
        // The gap between two probes also closes the scope, but it is no sleep. For a slow provider
        // the gap is longer than a short Sleep: a process that was not probing takes it for a
        // Sleep.
        let is_gap = remaining <= self.probe_gap();
        let is_brief = is_gap && remaining <= self.settings.sleep_min;
        let reason = match self.interpret() {
            ViewMeaning::Outdated => return,
            ViewMeaning::Closed if self.has_failed_lately() => Reason::Failures,
            ViewMeaning::Closed => Reason::Policy,
            ViewMeaning::HoldEnded => Reason::Operator,
        };
        match &mut self.phase {
            HealthPhase::Sleep { until, .. } => *until = (*until).max(now + remaining),
            HealthPhase::HalfOpen(_) if is_gap => {}
            HealthPhase::HalfOpen(probing) => match probing.slot {
                // Another process's probe failed: that counts for all processes.
                ProbeSlot::Shared => {
                    self.failed_probes = self.failed_probes.saturating_add(1);
                    self.follow_to_sleep(remaining, Reason::ProbeFailed, now, actions);
                }
                ProbeSlot::Local => self.follow_to_sleep(remaining, reason, now, actions),
            },
            HealthPhase::Normal { .. }
            | HealthPhase::Throttle(_)
            | HealthPhase::Offline { .. }
            | HealthPhase::CacheOnly { .. } => {
                if is_brief {
                    self.on_probing(now, actions);
                } else {
                    self.follow_to_sleep(remaining, reason, now, actions);
                }
            }
        }
    }

    /// Was one of the failures that closed the scope ours?
    fn has_failed_lately(&self) -> bool {
        let counts = self.settings.failure_threshold.is_some() && self.consecutive.failed > 0;
        match &self.phase {
            HealthPhase::Normal { .. } => counts,
            HealthPhase::Throttle(_)
            | HealthPhase::Sleep { .. }
            | HealthPhase::HalfOpen(_)
            | HealthPhase::Offline { .. }
            | HealthPhase::CacheOnly { .. } => false,
        }
    }

    /// A CacheOnly with an end looks like a sleep in the ledger. A process that ends it early opens
    /// the scope, and the sleeps that may follow are far shorter.
    fn is_our_hold(&self, remaining: Span, now: Micros) -> bool {
        match &self.phase {
            HealthPhase::CacheOnly {
                closed_until: Some(until),
                ..
            } => remaining.0 >= until.since(now).0 / 2,
            HealthPhase::CacheOnly {
                closed_until: None, ..
            }
            | HealthPhase::Offline { .. }
            | HealthPhase::Normal { .. }
            | HealthPhase::Throttle(_)
            | HealthPhase::Sleep { .. }
            | HealthPhase::HalfOpen(_) => false,
        }
    }

    /// An operator has set the provider offline. That replaces a hold of ours that would end by
    /// itself: otherwise our timer would end a state that only `resume` may end. It also replaces
    /// CacheOnly, unless the view may be older than that.
    fn on_offline(&mut self, now: Micros, actions: &mut Actions) {
        let is_old = !std::mem::replace(&mut self.seen_closed, true);
        match &self.phase {
            HealthPhase::Offline { pause: None, .. } => {}
            HealthPhase::Offline { pause: Some(_), .. }
            | HealthPhase::CacheOnly {
                closed_until: None, ..
            } if is_old => self.seen_closed = false,
            HealthPhase::Offline { pause: Some(_), .. }
            | HealthPhase::Normal { .. }
            | HealthPhase::Throttle(_)
            | HealthPhase::Sleep { .. }
            | HealthPhase::HalfOpen(_)
            | HealthPhase::CacheOnly { .. } => self.follow_offline(now, actions),
        }
    }

    /// An operator has paused the provider. Another command may have moved the end of our pause.
    fn on_paused(&mut self, remaining: Option<Span>, now: Micros, actions: &mut Actions) {
        let is_old = !std::mem::replace(&mut self.seen_closed, true);
        let ends = remaining.map(|remaining| now + remaining);
        match &mut self.phase {
            HealthPhase::Offline {
                pause: Some(pause), ..
            } => pause.ends = ends,
            HealthPhase::Offline { pause: None, .. } | HealthPhase::CacheOnly { .. } if is_old => {
                self.seen_closed = false;
            }
            HealthPhase::Normal { .. }
            | HealthPhase::Throttle(_)
            | HealthPhase::Sleep { .. }
            | HealthPhase::HalfOpen(_)
            | HealthPhase::Offline { pause: None, .. }
            | HealthPhase::CacheOnly { .. } => {
                self.begin_offline(Some(PauseState { ends }), now, actions);
            }
        }
    }

    /// An operator has set CacheOnly, until another command or the end time. Another command may
    /// have moved the end of ours.
    fn on_cache_only(&mut self, remaining: Option<Span>, now: Micros, actions: &mut Actions) {
        let is_old = !std::mem::replace(&mut self.seen_closed, true);
        let end = remaining.map(|remaining| now + remaining);
        match &mut self.phase {
            HealthPhase::CacheOnly {
                closed_until: None, ..
            } if end.is_none() => {}
            HealthPhase::CacheOnly {
                ends, closed_until, ..
            } if ends.is_some() && end.is_some() => (*ends, *closed_until) = (end, end),
            HealthPhase::Offline { .. } if is_old => self.seen_closed = false,
            HealthPhase::CacheOnly { .. } if is_old => self.seen_closed = false,
            HealthPhase::Normal { .. }
            | HealthPhase::Throttle(_)
            | HealthPhase::Sleep { .. }
            | HealthPhase::HalfOpen(_)
            | HealthPhase::Offline { .. }
            | HealthPhase::CacheOnly { .. } => self.follow_cache_only(end, now, actions),
        }
    }

    /// What a scope that reopens by itself means to this process.
    fn interpret(&mut self) -> ViewMeaning {
        match &self.phase {
            HealthPhase::Offline { .. } | HealthPhase::CacheOnly { .. } if self.seen_closed => {
                ViewMeaning::HoldEnded
            }
            HealthPhase::Offline { .. } | HealthPhase::CacheOnly { .. } => ViewMeaning::Outdated,
            HealthPhase::Normal { .. }
            | HealthPhase::Throttle(_)
            | HealthPhase::Sleep { .. }
            | HealthPhase::HalfOpen(_) => {
                self.seen_closed = true;
                ViewMeaning::Closed
            }
        }
    }
}
