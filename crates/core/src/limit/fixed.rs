//! A window that opens with the first call and ends one period later.
//!
//! Promises: exact against a provider that counts the same way. The provider's window opens when
//! its first call arrives: after that call's grant and before any of its responses. So it ends not
//! before the first grant + W and not after the first response + W. Calls with a response after the
//! former count in the next window as well (`window_counter`). Such calls may have opened the next
//! window, so it ends not before the earliest end of the previous one + W.
//!
//! Only the response to a counted call proves that the window is open. A call without a response
//! may be lost, and a limited or failed call may not have been counted; those end a window only
//! when nothing else can end it, and then as late as they can have opened it.
//!
//! Never: a new window because a clock went back; never more than O(1) state per key beside the
//! pending calls.

use crate::ask::{PermitId, WakeOn};
use crate::limit::holds::{PendingCall, sum_of};
use crate::limit::inherit::CarriedUsage;
use crate::limit::room::{CellRequest, CellWait, Grant, Settled};
use crate::limit::rule::Rule;
use crate::limit::window_counter::WindowCounter;
use crate::time::{Micros, Span, TimeBounds};

/// One window at a time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fixed {
    pub(crate) counter: WindowCounter,
    /// When the first call of this window was granted; `None` between two windows.
    pub(crate) opened: Option<Micros>,
    /// The earliest instant at which the provider's window may end; between two windows, at which
    /// it may have opened. The start of the clock if that lies before it.
    pub(crate) earliest_end: Micros,
    /// The latest instant at which it ends; known with the first response that proves it.
    pub(crate) latest_end: Option<Micros>,
    /// The latest instant at which it ends if it was opened by a call that proves nothing.
    pub(crate) unproven_end: Option<Micros>,
}

impl Fixed {
    pub(crate) fn refresh(&mut self, rule: &Rule, now: Micros) -> u64 {
        let lapsed = self.counter.pending.drain_lapsed(now);
        for call in &lapsed {
            // The provider can have counted it until its last instant, if at all.
            let end = call.free_at + window(rule);
            let late = self.is_late(call.free_at);
            self.counter.note_late(call.cost, late, end);
            self.note_end(call, end, false);
        }
        if self.end().is_some_and(|end| now >= end) {
            self.counter.roll(now);
            self.close();
        }
        if self.opened.is_none()
            && self.counter.pending.is_empty()
            && now >= self.counter.late_until
        {
            self.counter.used = 0;
            self.counter.late = 0;
        }
        sum_of(&lapsed)
    }

    pub(crate) fn room(&self, rule: &Rule, want: CellRequest, now: Micros) -> Result<(), CellWait> {
        if self.counter.used.saturating_add(want.cost) <= want.room {
            return Ok(());
        }
        if self.counter.used == 0 {
            // The provider reported a limit below this cost: wait one window.
            return Err(CellWait {
                after: window(rule),
                on: WakeOn::Event,
            });
        }
        let end = match self.opened {
            Some(_) => self.end(),
            None if self.counter.pending.is_empty() => Some(self.counter.late_until),
            None => None,
        };
        let end = end.or_else(|| self.end_without_responses(rule));
        Err(match end {
            Some(end) => CellWait {
                after: end.since(now),
                on: WakeOn::Time,
            },
            None => {
                let lapse = self.counter.pending.first_lapse();
                CellWait {
                    after: lapse.map_or(window(rule), |at| at.since(now)),
                    on: WakeOn::Event,
                }
            }
        })
    }

    pub(crate) fn take(&mut self, rule: &Rule, grant: Grant) {
        if self.opened.is_none() {
            let length = rule.shrunk(rule.period());
            if self.counter.used == 0 && self.counter.pending.is_empty() {
                self.earliest_end = grant.at + length;
            } else if self.earliest_end > Micros(0) {
                // A late call may have opened it. An instant before the start of this clock, as
                // after a boot, cannot be counted from: then every response is late.
                self.earliest_end += length;
            }
            self.opened = Some(grant.at);
        }
        let call = PendingCall::new(&grant, grant.arrives_by + rule.lag());
        if rule.holds_until_send() {
            let end = grant.latest + window(rule);
            let late = self.is_late(grant.latest);
            self.counter.take_settled(grant.cost, late, end);
            self.note_end(&call, end, true);
            self.close_if_never_opened(rule);
        } else {
            self.counter.take(grant.id, call);
        }
    }

    /// The provider had counted the call by then, if at all.
    pub(crate) fn settle(&mut self, rule: &Rule, settled: Settled) -> bool {
        let at = settled.at + rule.lag();
        let end = at + window(rule);
        let late = self.is_late(at);
        let Some(call) = self.counter.settle(settled.id, settled.cost, late, end) else {
            return false;
        };
        let counted = PendingCall {
            cost: settled.cost,
            ..call
        };
        self.note_end(&counted, end, settled.proven);
        self.close_if_never_opened(rule);
        true
    }

    /// A call that was presumed to have arrived by `at` did: its response has come. So the window
    /// was open then.
    pub(crate) fn prove(&mut self, rule: &Rule, call: &PendingCall, at: Micros) {
        self.note_end(call, at + rule.lag() + window(rule), true);
    }

    /// Usage of another cell is in the provider's current window. That window may end at any time
    /// from now on, and ends one period from now at the latest unless a later call opens it.
    pub(super) fn take_over(&mut self, rule: &Rule, usage: &CarriedUsage, now: TimeBounds) {
        self.earliest_end = match self.opened {
            Some(_) => self.earliest_end.min(now.lo),
            None => now.lo,
        };
        self.opened.get_or_insert(now.lo);
        let counted = usage.counted_up_to(rule.max_cost());
        self.counter.used = self.counter.used.saturating_add(counted);
        self.unproven_end = self.unproven_end.max(Some(now.hi + window(rule)));
        for &(id, call) in &usage.pending {
            let call = PendingCall {
                granted: now.lo,
                free_at: call.free_at + rule.lag(),
                ..call
            };
            self.counter.take(id, call);
        }
    }

    /// Calls that are missing from it had been counted by `at`. If no window was open they may have
    /// opened one, at any time before; if one was, they are in it, or in the next where it may have
    /// ended.
    pub(super) fn count_lost(&mut self, rule: &Rule, cost: u64, at: Micros) {
        let end = at + window(rule);
        if self.opened.is_some() {
            let late = self.is_late(at);
            self.counter.take_settled(cost, late, end);
        } else {
            (self.opened, self.earliest_end) = (Some(at), at);
            self.counter.take_settled(cost, false, end);
        }
        self.unproven_end = self.unproven_end.max(Some(end));
    }

    pub(crate) fn undo(&mut self, rule: &Rule, id: PermitId) -> bool {
        let undone = self.counter.undo(id).is_some();
        self.close_if_never_opened(rule);
        undone
    }

    /// When the window began: with its first call, or before it if its end proves that. A count
    /// that is restored is granted now and belongs to a window that has been open for a while.
    pub(crate) fn began(&self, rule: &Rule) -> Option<Micros> {
        let opened = self.opened?;
        let proved = self.latest_end.map(|end| end - window(rule));
        Some(proved.map_or(opened, |at| at.min(opened)))
    }

    /// The latest instant at which the provider's window ends, as far as that is known.
    pub(crate) fn end(&self) -> Option<Micros> {
        let opened = self.opened?;
        // While a call of this window is pending, it may be the one that opens it.
        let unproved = || {
            self.unproven_end
                .filter(|_| !self.counter.pending.any_since(opened))
        };
        self.latest_end.or_else(unproved)
    }

    /// When the count falls if every pending call was given up: each of them may have opened the
    /// window until its last instant. `None`: the end of a call is to come, and may be sooner.
    fn end_without_responses(&self, rule: &Rule) -> Option<Micros> {
        if self.counter.pending.awaits_end() {
            return None;
        }
        let calls = self.counter.pending.iter().map(|(_, call)| call);
        let of_window = |call: &&PendingCall| {
            call.cost > 0 && self.opened.is_none_or(|opened| call.granted >= opened)
        };
        let last = calls.filter(of_window).map(|call| call.free_at).max()?;
        let noted = match self.opened {
            Some(_) => self.unproven_end,
            None => Some(self.counter.late_until),
        };
        noted.max(Some(last + window(rule)))
    }

    /// A call that was granted inside this window surely belongs to it, so the provider's window
    /// had begun when it was counted. One that was granted before proves nothing, and neither does
    /// one that cost nothing: it opens no window.
    fn note_end(&mut self, call: &PendingCall, end: Micros, proved: bool) {
        if call.cost == 0 || self.opened.is_none_or(|opened| call.granted < opened) {
            return;
        }
        if proved {
            self.latest_end = Some(self.latest_end.map_or(end, |ends| ends.min(end)));
        } else {
            self.unproven_end = self.unproven_end.max(Some(end));
        }
    }

    fn close(&mut self) {
        (self.opened, self.latest_end, self.unproven_end) = (None, None, None);
    }

    /// No call that could have opened the provider's window was sent.
    fn close_if_never_opened(&mut self, rule: &Rule) {
        let Some(opened) = self.opened else { return };
        let quiet = self.latest_end.is_none() && self.unproven_end.is_none();
        if quiet && !self.counter.pending.any_since(opened) {
            self.earliest_end = self.earliest_end - rule.shrunk(rule.period());
            self.close();
        }
    }

    /// Between two windows every response is late: it may open the next one.
    fn is_late(&self, at: Micros) -> bool {
        self.opened.is_none() || at >= self.earliest_end
    }
}

fn window(rule: &Rule) -> Span {
    rule.stretched(rule.period())
}
