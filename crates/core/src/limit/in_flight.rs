//! Rule F, concurrency: a slot is released at the end of the response.
//!
//! Promises: the time a call spends at the provider is within the time it is held here, plus a tail
//! of 2 ms because real servers free the slot slightly after the last byte.
//!
//! Never: N − 1. The tail costs less.

use crate::ask::{PermitId, WakeOn};
use crate::limit::holds::{Holds, PendingCall};
use crate::limit::inherit::CarriedUsage;
use crate::limit::room::{CellRequest, CellWait, Grant, RETRY_INTERVAL};
use crate::limit::rule::IN_FLIGHT_TAIL;
use crate::time::{Micros, Span};

/// The running calls.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct InFlight {
    pub(crate) holds: Holds,
}

impl InFlight {
    pub(crate) fn refresh(&mut self, now: Micros) -> u64 {
        self.holds.refresh(now)
    }

    pub(crate) fn room(&self, want: CellRequest, now: Micros) -> Result<(), CellWait> {
        let held = self.holds.held();
        let wanted = held.saturating_add(want.cost);
        if wanted <= want.room {
            return Ok(());
        }
        if held == 0 {
            return Err(CellWait {
                after: RETRY_INTERVAL,
                on: WakeOn::Event,
            });
        }
        Err(self.holds.wait_for((wanted - want.room).min(held), now))
    }

    pub(crate) fn take(&mut self, grant: Grant) {
        let free_at = grant.arrives_by + IN_FLIGHT_TAIL;
        debug_assert!(
            free_at >= grant.latest,
            "an unsettled call is held until it can no longer arrive"
        );
        let call = PendingCall::new(&grant, free_at);
        self.holds.pending.add(grant.id, call);
    }

    /// Adds calls that are already running.
    pub(super) fn take_over(&mut self, usage: &CarriedUsage) {
        for &(id, call) in &usage.pending {
            let free_at = call.free_at + IN_FLIGHT_TAIL;
            self.holds.pending.add(id, PendingCall { free_at, ..call });
        }
    }

    /// The call ended at `at`.
    pub(crate) fn settle(&mut self, id: PermitId, at: Micros) -> bool {
        let Some(call) = self.holds.pending.remove(id) else {
            return false;
        };
        self.holds
            .push_done(call.cost, at + IN_FLIGHT_TAIL, Span(1));
        true
    }
}
