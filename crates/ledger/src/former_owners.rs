//! The numbers that this process had in databases that were replaced.
//!
//! A permit is known by the number of its owner. In the new database that number may be another
//! process, with permits of the same running numbers.
//!
//! Other processes that were found dead are `dead_owners.rs`, which says why that is another list.
//!
//! Promises: nothing that was asked under a former number reaches the new database: its settles are
//! dropped, because what they settle is not there, and its asks fail as lost, so that they are made
//! again under the new number.
//!
//! Never: drops settles of scopes, which have no owner.

use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use tollgate_core::ask::{Ask, OwnerId, Settle};

/// Former numbers that are remembered. Whether a folder was replaced is looked at once a second, so
/// the oldest of these is 17 minutes old: longer than calls are on their way.
const FORMER_MAX: usize = 1_024;

/// Which number this process has, and which it had.
#[derive(Debug, Default)]
pub(crate) struct FormerOwners {
    /// Read by every batch.
    is_any: AtomicBool,
    state: Mutex<FormerState>,
}

#[derive(Debug, Default)]
struct FormerState {
    current: Option<OwnerId>,
    former: Vec<OwnerId>,
}

impl FormerOwners {
    /// This process has this number now.
    pub(crate) fn set_current(&self, owner: OwnerId) {
        let mut state = self.state.lock();
        let before = state.current.replace(owner);
        if before == Some(owner) {
            return;
        }
        if state.former.len() >= FORMER_MAX {
            state.former.remove(0);
        }
        state.former.extend(before);
        // Its running numbers go on, so what it asked under this number elsewhere matches nothing.
        state.former.retain(|former| *former != owner);
        self.is_any
            .store(!state.former.is_empty(), Ordering::Release);
    }

    /// Was there never another number?
    pub(crate) fn is_empty(&self) -> bool {
        !self.is_any.load(Ordering::Acquire)
    }

    /// Was this asked in a database that was replaced?
    pub(crate) fn has_asked(&self, ask: &Ask) -> bool {
        self.is_former(ask.id.owner)
    }

    /// Is this settle about a permit of a database that was replaced?
    pub(crate) fn has_settled(&self, settle: &Settle) -> bool {
        match settle {
            Settle::Permit { id, .. } => self.is_former(id.owner),
            Settle::Close { .. }
            | Settle::Limited { .. }
            | Settle::Open { .. }
            | Settle::Failed { .. }
            | Settle::Succeeded { .. }
            | Settle::Inherit { .. } => false,
        }
    }

    fn is_former(&self, owner: OwnerId) -> bool {
        !self.is_empty() && self.state.lock().former.contains(&owner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_former_until_it_is_given_again() {
        let owners = FormerOwners::default();
        owners.set_current(OwnerId(0));
        owners.set_current(OwnerId(0));
        assert!(owners.is_empty());
        owners.set_current(OwnerId(4));
        owners.set_current(OwnerId(1));
        assert_eq!(owners.state.lock().former, [OwnerId(0), OwnerId(4)]);
        owners.set_current(OwnerId(4));
        assert_eq!(owners.state.lock().former, [OwnerId(0), OwnerId(1)]);
        (5..5_000).for_each(|number| owners.set_current(OwnerId(number)));
        assert!(owners.state.lock().former.len() <= FORMER_MAX);
    }
}
