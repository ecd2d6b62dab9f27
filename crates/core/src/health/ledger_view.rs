//! What the machines of other processes have done, as the ledger shows it.
//!
//! Promises: processes that share a ledger sleep, probe and wake together, and a process that
//! starts finds the sleep it left. Our own actions come back as views too; they change nothing.
//!
//! Never: writes to the ledger because of what it read there, or two processes would answer each
//! other for ever.

use super::phase::{HealthPhase, ProbeSlot};
use super::settings::HealthMode;
use super::transitions::midpoint;
use super::{Actions, Health, Reason};
use crate::scope::ScopeView;
use crate::time::{Micros, Span};

/// What a view is worth.
enum ViewMeaning {
    /// It is from before the hold that we are in.
    Outdated,
    /// Somebody rests.
    Closed,
    /// Our hold is over: a hold gives way to nothing but an opening, so there was one.
    HoldEnded,
}

impl Health {
    /// With `mode: off` only what operators do is followed.
    pub(super) fn on_scope_view(&mut self, view: ScopeView, now: Micros, actions: &mut Actions) {
        let follows = match self.settings.mode {
            HealthMode::Adaptive | HealthMode::Breaker => true,
            HealthMode::Off => false,
        };
        match view {
            ScopeView::Open => self.on_open(now, actions),
            ScopeView::Closed { remaining: None } => self.on_offline(now, actions),
            ScopeView::CacheOnly { remaining: left } => self.on_cache_only(left, now, actions),
            ScopeView::Closed {
                remaining: Some(left),
            } if self.is_our_hold(left, now) => {
                self.seen_closed = true;
            }
            ScopeView::Closed {
                remaining: Some(left),
            } if follows => {
                self.on_closed(left, now, actions);
            }
            ScopeView::Probing if follows => self.on_probing(now, actions),
            ScopeView::Closed { remaining: Some(_) } | ScopeView::Probing => {}
        }
    }

    /// Before we have seen our own closing, "open" is a picture from before it.
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

    fn on_closed(&mut self, left: Span, now: Micros, actions: &mut Actions) {
        // The space between two probes is a rest too, but no sleep. Probes of a slow provider are
        // further apart than a short Sleep lasts: whoever was not probing takes it for one.
        let is_gap = left <= self.probe_gap();
        let is_brief = is_gap && left <= self.settings.sleep_min;
        let reason = match self.interpret() {
            ViewMeaning::Outdated => return,
            ViewMeaning::Closed if self.has_failed_lately() => Reason::Failures,
            ViewMeaning::Closed => Reason::Policy,
            ViewMeaning::HoldEnded => Reason::Operator,
        };
        match &mut self.phase {
            HealthPhase::Sleep { until, .. } => *until = (*until).max(now + left),
            HealthPhase::HalfOpen(_) if is_gap => {}
            HealthPhase::HalfOpen(probing) => match probing.slot {
                // Another process's probe failed: that counts for all of us.
                ProbeSlot::Shared => {
                    self.failed_probes = self.failed_probes.saturating_add(1);
                    self.follow_to_sleep(left, Reason::ProbeFailed, now, actions);
                }
                ProbeSlot::Local => self.follow_to_sleep(left, reason, now, actions),
            },
            HealthPhase::Normal { .. }
            | HealthPhase::Throttle(_)
            | HealthPhase::Offline { .. }
            | HealthPhase::CacheOnly { .. } => {
                if is_brief {
                    self.on_probing(now, actions);
                } else {
                    self.follow_to_sleep(left, reason, now, actions);
                }
            }
        }
    }

    /// Was one of the failures ours that close the scope, counted by all?
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

    /// A CacheOnly that has an end shows as a rest. Whoever ends it early opens the scope, and what
    /// rests then follow are far shorter.
    fn is_our_hold(&self, left: Span, now: Micros) -> bool {
        match &self.phase {
            HealthPhase::CacheOnly {
                closed_until: Some(until),
                ..
            } => left.0 >= until.since(now).0 / 2,
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

    /// Somebody has taken it offline. That replaces a hold of ours that would end by itself, or our
    /// timer would end what only `resume` may end; and one from the cache only, unless the view may be
    /// from before it.
    fn on_offline(&mut self, now: Micros, actions: &mut Actions) {
        let is_old = !std::mem::replace(&mut self.seen_closed, true);
        match &self.phase {
            HealthPhase::Offline { .. } => {}
            HealthPhase::CacheOnly {
                closed_until: None, ..
            } if is_old => self.seen_closed = false,
            HealthPhase::Normal { .. }
            | HealthPhase::Throttle(_)
            | HealthPhase::Sleep { .. }
            | HealthPhase::HalfOpen(_)
            | HealthPhase::CacheOnly { .. } => self.follow_offline(now, actions),
        }
    }

    /// Somebody holds it so that only the cache answers, until somebody ends that or the end that was
    /// named. Ours may have an end that another order has moved.
    fn on_cache_only(&mut self, left: Option<Span>, now: Micros, actions: &mut Actions) {
        let is_old = !std::mem::replace(&mut self.seen_closed, true);
        let end = left.map(|left| now + left);
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

    /// What a rest that ends by itself means to us.
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
