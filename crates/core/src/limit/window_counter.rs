//! The counter of a fixed window, where a call near an edge counts on both sides of it.
//!
//! The end of the provider's fixed or calendar window is known only within bounds: not before its
//! earliest end, not after its latest end. A call with a response after the earliest end may be in
//! the next window, so it counts in both. A call granted after the latest end is surely in the next
//! one.
//!
//! Promises: no window of the provider holds more than N, in O(1) state beside the pending calls.
//!
//! Never: knows where edges come from. `fixed` and `calendar` do.

use crate::ask::PermitId;
use crate::limit::holds::{PendingCall, PendingCalls};
use crate::time::Micros;

/// One counter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct WindowCounter {
    /// Everything counted in this window, pending calls included.
    pub(crate) used: u64,
    /// The part of `used` with a response after the earliest end: it counts in the next window too.
    pub(crate) late: u64,
    /// When the last late call stops to matter.
    pub(crate) late_until: Micros,
    /// Pending calls.
    pub(crate) pending: PendingCalls,
}

impl WindowCounter {
    pub(crate) fn take(&mut self, id: PermitId, call: PendingCall) {
        self.used = self.used.saturating_add(call.cost);
        self.pending.add(id, call);
    }

    /// Counts a call without holding it: its response counts as received now.
    pub(crate) fn take_settled(&mut self, cost: u64, is_late: bool, until: Micros) {
        self.used = self.used.saturating_add(cost);
        self.note_late(cost, is_late, until);
    }

    /// The actual cost of a pending call is known; `is_late` if its response came after the
    /// earliest end.
    pub(crate) fn settle(
        &mut self,
        id: PermitId,
        cost: u64,
        is_late: bool,
        until: Micros,
    ) -> Option<PendingCall> {
        let call = self.pending.remove(id)?;
        self.used = self.used.saturating_sub(call.cost).saturating_add(cost);
        self.note_late(cost, is_late, until);
        Some(call)
    }

    /// As if it had never been granted.
    pub(crate) fn undo(&mut self, id: PermitId) -> Option<PendingCall> {
        let call = self.pending.remove(id)?;
        self.used = self.used.saturating_sub(call.cost);
        Some(call)
    }

    /// The next window begins: late and pending calls already count in it.
    pub(crate) fn roll(&mut self, now: Micros) {
        let late = if now < self.late_until { self.late } else { 0 };
        self.used = late.saturating_add(self.pending.cost());
        self.late = 0;
    }

    /// A call that is already in `used` got its response.
    pub(crate) fn note_late(&mut self, cost: u64, is_late: bool, until: Micros) {
        if is_late {
            self.late = self.late.saturating_add(cost);
            self.late_until = self.late_until.max(until);
        }
    }
}
