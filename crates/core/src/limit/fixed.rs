//! A window that opens with the first call and ends one period later.
//!
//! Promises: exact against a provider that counts the same way. The provider's window opens when
//! its first call arrives, which is after that call's grant and before any of its calls is
//! answered: so it ends not before the first grant + W and not after the first answer + W. Calls
//! that are answered after the former count in the following window as well (`phase`). A window that
//! follows one with such calls may have been opened by them, so it ends not before the earliest end
//! of the one before + W.
//!
//! Only an answer to a call that was counted proves that the window is open. A call of which
//! nothing was heard may be lost, and one that was refused or failed may not have been counted;
//! those end a window only when nothing else is left to wait for, and then as late as they can
//! have opened it.
//!
//! Never: a new window because a clock went back; never more than O(1) state per key beside the
//! calls on their way.

use crate::ask::{PermitId, WakeOn};
use crate::limit::holds::{PendingCall, sum_of};
use crate::limit::inherit::CarriedUsage;
use crate::limit::room::{CellRequest, CellWait, Grant, Settled};
use crate::limit::rule::Rule;
use crate::limit::window_counter::WindowCounter;
use crate::time::{Micros, Span};

/// One window at a time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fixed {
    pub(crate) counter: WindowCounter,
    /// When the first call of this window was granted; `None` between two windows.
    pub(crate) opened: Option<Micros>,
    /// The earliest instant at which the provider's window may end; between two windows, at which
    /// it may have opened. The start of the clock if that lies before it.
    pub(crate) earliest_end: Micros,
    /// The latest instant at which it ends; known with the first answer that proves it.
    pub(crate) latest_end: Option<Micros>,
    /// The latest instant at which it ends if it was opened by a call that proves nothing.
    pub(crate) unproven_end: Option<Micros>,
}

impl Fixed {
    pub(crate) fn refresh(&mut self, rule: &Rule, now: Micros) -> u64 {
        let lapsed = self.counter.pending.drain_lapsed(now);
        for open in &lapsed {
            // It can have been counted until its last instant, if at all.
            let end = open.free_at + window(rule);
            let late = self.is_late(open.free_at);
            self.counter.note_late(open.cost, late, end);
            self.note_end(open, end, false);
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
            // The provider told a limit below this cost: one window decides.
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
                // Opened by what was late, perhaps. Before the start of this clock, as after a
                // boot, is no instant to count from: then every answer is late.
                self.earliest_end += length;
            }
            self.opened = Some(grant.at);
        }
        let open = PendingCall {
            cost: grant.cost,
            granted: grant.at,
            free_at: grant.arrives_by + rule.lag(),
        };
        if rule.holds_until_send() {
            let end = grant.at + window(rule);
            let late = self.is_late(grant.at);
            self.counter.take_settled(grant.cost, late, end);
            self.note_end(&open, end, true);
            self.close_if_never_opened(rule);
        } else {
            self.counter.take(grant.id, open);
        }
    }

    /// The call had been counted by then, if it was counted at all.
    pub(crate) fn settle(&mut self, rule: &Rule, settled: Settled) -> bool {
        let at = settled.at + rule.lag();
        let end = at + window(rule);
        let late = self.is_late(at);
        let Some(open) = self.counter.settle(settled.id, settled.cost, late, end) else {
            return false;
        };
        let counted = PendingCall {
            cost: settled.cost,
            ..open
        };
        self.note_end(&counted, end, settled.proven);
        self.close_if_never_opened(rule);
        true
    }

    /// What another cell has counted is in the provider's window of now, which may end at any time
    /// from now on, and ends one period from now at the latest unless a later call opens it.
    pub(super) fn take_over(&mut self, rule: &Rule, estate: &CarriedUsage, now: Micros) {
        self.earliest_end = match self.opened {
            Some(_) => self.earliest_end.min(now),
            None => now,
        };
        self.opened.get_or_insert(now);
        let counted = estate.counted_up_to(rule.max_cost());
        self.counter.used = self.counter.used.saturating_add(counted);
        self.unproven_end = self.unproven_end.max(Some(now + window(rule)));
        for &(id, open) in &estate.pending {
            let open = PendingCall {
                granted: now,
                free_at: open.free_at + rule.lag(),
                ..open
            };
            self.counter.take(id, open);
        }
    }

    pub(crate) fn undo(&mut self, rule: &Rule, id: PermitId) -> bool {
        let undone = self.counter.undo(id).is_some();
        self.close_if_never_opened(rule);
        undone
    }

    /// The latest instant at which the provider's window ends, as far as that is known.
    pub(crate) fn end(&self) -> Option<Micros> {
        let opened = self.opened?;
        // While a call of this window is on its way, it may still be the one that opens it.
        let unproved = || {
            self.unproven_end
                .filter(|_| !self.counter.pending.any_since(opened))
        };
        self.latest_end.or_else(unproved)
    }

    /// A call that was granted inside this window surely belongs to it, so the provider's window
    /// had begun when it was counted. One that was granted before proves nothing, and neither does
    /// one that cost nothing: it opens no window.
    fn note_end(&mut self, open: &PendingCall, end: Micros, proved: bool) {
        if open.cost == 0 || self.opened.is_none_or(|opened| open.granted < opened) {
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

    /// Nothing that could have opened the provider's window has left this host.
    fn close_if_never_opened(&mut self, rule: &Rule) {
        let Some(opened) = self.opened else { return };
        let quiet = self.latest_end.is_none() && self.unproven_end.is_none();
        if quiet && !self.counter.pending.any_since(opened) {
            self.earliest_end = self.earliest_end - rule.shrunk(rule.period());
            self.close();
        }
    }

    /// Between two windows every answer is late: it may open the next one.
    fn is_late(&self, at: Micros) -> bool {
        self.opened.is_none() || at >= self.earliest_end
    }
}

fn window(rule: &Rule) -> Span {
    rule.stretched(rule.period())
}
