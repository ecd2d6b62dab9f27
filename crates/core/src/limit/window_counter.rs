//! The counter of a fixed window, with what a call near an edge costs on both sides of it.
//!
//! A fixed or calendar window of the provider ends at an instant that we know only within bounds:
//! not before `touches`, not after `ends`. A call that is answered after `touches` may fall into
//! the window that follows, so it counts in both. A call granted after `ends` is surely in the
//! next one.
//!
//! Promises: no window of the provider holds more than N, in O(1) state beside the calls on their
//! way.
//!
//! Never: knows where edges come from. `fixed` and `calendar` say.

use crate::ask::PermitId;
use crate::limit::holds::{PendingCall, PendingCalls};
use crate::time::Micros;

/// One counter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct WindowCounter {
    /// Everything counted in this window, calls on their way included.
    pub(crate) used: u64,
    /// The part of `used` that was answered after `touches`: it counts in the next window too.
    pub(crate) late: u64,
    /// When the last of `late` can matter no more.
    pub(crate) late_until: Micros,
    /// Calls on their way.
    pub(crate) pending: PendingCalls,
}

impl WindowCounter {
    pub(crate) fn take(&mut self, id: PermitId, open: PendingCall) {
        self.used = self.used.saturating_add(open.cost);
        self.pending.add(id, open);
    }

    /// Counts without holding: the call is taken as answered now.
    pub(crate) fn take_settled(&mut self, cost: u64, is_late: bool, until: Micros) {
        self.used = self.used.saturating_add(cost);
        self.note_late(cost, is_late, until);
    }

    /// The true cost of a call on its way is known; `is_late` if it was answered after `touches`.
    pub(crate) fn settle(
        &mut self,
        id: PermitId,
        cost: u64,
        is_late: bool,
        until: Micros,
    ) -> Option<PendingCall> {
        let open = self.pending.remove(id)?;
        self.used = self.used.saturating_sub(open.cost).saturating_add(cost);
        self.note_late(cost, is_late, until);
        Some(open)
    }

    /// As if it had never been granted.
    pub(crate) fn undo(&mut self, id: PermitId) -> Option<PendingCall> {
        let open = self.pending.remove(id)?;
        self.used = self.used.saturating_sub(open.cost);
        Some(open)
    }

    /// The next window begins: late answers and calls on their way count in it already.
    pub(crate) fn roll(&mut self, now: Micros) {
        let late = if now < self.late_until { self.late } else { 0 };
        self.used = late.saturating_add(self.pending.cost());
        self.late = 0;
    }

    /// A call that `used` has counted already was answered.
    pub(crate) fn note_late(&mut self, cost: u64, is_late: bool, until: Micros) {
        if is_late {
            self.late = self.late.saturating_add(cost);
            self.late_until = self.late_until.max(until);
        }
    }
}
