//! What the machines of other processes have done, as the ledger shows it.
//!
//! Promises: processes that share a ledger sleep, probe and wake together, and a process that
//! starts finds the sleep it left. Our own actions come back as views too; they change nothing.
//!
//! Never: writes to the ledger because of what it read there, or two processes would answer each
//! other for ever.

use super::moves::middle;
use super::phase::{Phase, Slot};
use super::settings::Mode;
use super::{Actions, Health, Reason};
use crate::scope::ScopeView;
use crate::time::{Micros, Span};

/// What a view is worth.
enum News {
    /// It is from before the hold that we are in.
    Old,
    /// Somebody rests.
    Rest,
    /// Our hold is over: a hold gives way to nothing but an opening, so there was one.
    EndOfHold,
}

impl Health {
    /// With `mode: off` only what operators do is followed.
    pub(super) fn saw(&mut self, view: ScopeView, now: Micros, actions: &mut Actions) {
        let follows = match self.settings.mode {
            Mode::Adaptive | Mode::Breaker => true,
            Mode::Off => false,
        };
        match view {
            ScopeView::Open => self.saw_open(now, actions),
            ScopeView::Closed { left: None } => self.saw_offline(now, actions),
            ScopeView::CacheOnly { left } => self.saw_cache_only(left, now, actions),
            ScopeView::Closed { left: Some(left) } if self.is_our_hold(left, now) => {
                self.seen_closed = true;
            }
            ScopeView::Closed { left: Some(left) } if follows => {
                self.saw_closed(left, now, actions);
            }
            ScopeView::Probing if follows => self.saw_probing(now, actions),
            ScopeView::Closed { left: Some(_) } | ScopeView::Probing => {}
        }
    }

    /// Before we have seen our own closing, "open" is a picture from before it.
    fn saw_open(&mut self, now: Micros, actions: &mut Actions) {
        if !self.seen_closed {
            return;
        }
        self.seen_closed = false;
        match &self.phase {
            Phase::Normal { .. } | Phase::Throttle(_) => {}
            Phase::HalfOpen(probing) => {
                if probing.slot == Slot::Shared {
                    self.follow_to_normal(Reason::ProbeOk, now, actions);
                }
            }
            Phase::Sleep { .. } => self.follow_to_normal(Reason::ProbeOk, now, actions),
            Phase::Offline { .. } | Phase::CacheOnly { .. } => {
                self.follow_to_normal(Reason::Operator, now, actions);
            }
        }
    }

    fn saw_probing(&mut self, now: Micros, actions: &mut Actions) {
        let reason = match self.read() {
            News::Old => return,
            News::Rest => Reason::SleepOver,
            News::EndOfHold => Reason::Operator,
        };
        self.fence = match &self.phase {
            Phase::HalfOpen(_) => return,
            Phase::Sleep { began, .. } => middle(*began, now),
            Phase::Normal { .. }
            | Phase::Throttle(_)
            | Phase::Offline { .. }
            | Phase::CacheOnly { .. } => now,
        };
        self.enter_half_open(Slot::Shared, reason, now, actions);
    }

    fn saw_closed(&mut self, left: Span, now: Micros, actions: &mut Actions) {
        // The space between two probes is a rest too, but no sleep. Probes of a slow provider are
        // further apart than a short Sleep lasts: whoever was not probing takes it for one.
        let is_gap = left <= self.probe_gap();
        let is_brief = is_gap && left <= self.settings.sleep_min;
        let reason = match self.read() {
            News::Old => return,
            News::Rest if self.has_failed_lately() => Reason::Failures,
            News::Rest => Reason::Policy,
            News::EndOfHold => Reason::Operator,
        };
        match &mut self.phase {
            Phase::Sleep { until, .. } => *until = (*until).max(now + left),
            Phase::HalfOpen(_) if is_gap => {}
            Phase::HalfOpen(probing) => match probing.slot {
                // Another process's probe failed: that counts for all of us.
                Slot::Shared => {
                    self.failed_probes = self.failed_probes.saturating_add(1);
                    self.follow_to_sleep(left, Reason::ProbeFailed, now, actions);
                }
                Slot::Local => self.follow_to_sleep(left, reason, now, actions),
            },
            Phase::Normal { .. }
            | Phase::Throttle(_)
            | Phase::Offline { .. }
            | Phase::CacheOnly { .. } => {
                if is_brief {
                    self.saw_probing(now, actions);
                } else {
                    self.follow_to_sleep(left, reason, now, actions);
                }
            }
        }
    }

    /// Was one of the failures ours that close the scope, counted by all?
    fn has_failed_lately(&self) -> bool {
        let counts = self.settings.failure_threshold.is_some() && self.runs.failed > 0;
        match &self.phase {
            Phase::Normal { .. } => counts,
            Phase::Throttle(_)
            | Phase::Sleep { .. }
            | Phase::HalfOpen(_)
            | Phase::Offline { .. }
            | Phase::CacheOnly { .. } => false,
        }
    }

    /// A CacheOnly that has an end shows as a rest. Whoever ends it early opens the scope, and what
    /// rests then follow are far shorter.
    fn is_our_hold(&self, left: Span, now: Micros) -> bool {
        match &self.phase {
            Phase::CacheOnly {
                closed_until: Some(until),
                ..
            } => left.0 >= until.since(now).0 / 2,
            Phase::CacheOnly {
                closed_until: None, ..
            }
            | Phase::Offline { .. }
            | Phase::Normal { .. }
            | Phase::Throttle(_)
            | Phase::Sleep { .. }
            | Phase::HalfOpen(_) => false,
        }
    }

    /// Somebody has taken it offline. That replaces a hold of ours that would end by itself, or our
    /// timer would end what only `resume` may end; and one from the cache only, unless the view may be
    /// from before it.
    fn saw_offline(&mut self, now: Micros, actions: &mut Actions) {
        let is_old = !std::mem::replace(&mut self.seen_closed, true);
        match &self.phase {
            Phase::Offline { .. } => {}
            Phase::CacheOnly {
                closed_until: None, ..
            } if is_old => self.seen_closed = false,
            Phase::Normal { .. }
            | Phase::Throttle(_)
            | Phase::Sleep { .. }
            | Phase::HalfOpen(_)
            | Phase::CacheOnly { .. } => self.follow_offline(now, actions),
        }
    }

    /// Somebody holds it so that only the cache answers, until somebody ends that or the end that was
    /// named. Ours may have an end that another order has moved.
    fn saw_cache_only(&mut self, left: Option<Span>, now: Micros, actions: &mut Actions) {
        let is_old = !std::mem::replace(&mut self.seen_closed, true);
        let end = left.map(|left| now + left);
        match &mut self.phase {
            Phase::CacheOnly {
                closed_until: None, ..
            } if end.is_none() => {}
            Phase::CacheOnly {
                ends, closed_until, ..
            } if ends.is_some() && end.is_some() => (*ends, *closed_until) = (end, end),
            Phase::Offline { .. } if is_old => self.seen_closed = false,
            Phase::CacheOnly { .. } if is_old => self.seen_closed = false,
            Phase::Normal { .. }
            | Phase::Throttle(_)
            | Phase::Sleep { .. }
            | Phase::HalfOpen(_)
            | Phase::Offline { .. }
            | Phase::CacheOnly { .. } => self.follow_cache_only(end, now, actions),
        }
    }

    /// What a rest that ends by itself means to us.
    fn read(&mut self) -> News {
        match &self.phase {
            Phase::Offline { .. } | Phase::CacheOnly { .. } if self.seen_closed => News::EndOfHold,
            Phase::Offline { .. } | Phase::CacheOnly { .. } => News::Old,
            Phase::Normal { .. }
            | Phase::Throttle(_)
            | Phase::Sleep { .. }
            | Phase::HalfOpen(_) => {
                self.seen_closed = true;
                News::Rest
            }
        }
    }
}
