//! The numbers that this process had in databases that were replaced.
//!
//! A permit is known by the number of its owner. In the new database that number may be another
//! process, with permits of the same running numbers.
//!
//! Promises: nothing that was asked under a former number reaches the new database: its settles are
//! dropped, because what they settle is not there, and its asks fail as lost, so that they are made
//! again under the new number.
//!
//! Never: drops what is told of scopes, which have no owner.

use tollgate_core::ask::{Ask, OwnerId, Settle};
use tollgate_core::batch::QueuedSettle;

/// Former numbers that are remembered. Whether a folder was replaced is looked at once a second, so
/// the oldest of these is 17 minutes old: longer than calls are on their way.
const FORMER_MAX: usize = 1_024;

/// Which number this process has, and which it had.
#[derive(Debug, Default)]
pub(crate) struct FormerOwners {
    current: Option<OwnerId>,
    former: Vec<OwnerId>,
}

impl FormerOwners {
    /// This process has this number now.
    pub(crate) fn set_current(&mut self, owner: OwnerId) {
        let before = self.current.replace(owner);
        if before == Some(owner) {
            return;
        }
        if self.former.len() >= FORMER_MAX {
            self.former.remove(0);
        }
        self.former.extend(before);
        // Its running numbers go on, so what it asked under this number elsewhere matches nothing.
        self.former.retain(|former| *former != owner);
    }

    /// Was there ever another number?
    pub(crate) fn is_empty(&self) -> bool {
        self.former.is_empty()
    }

    /// Was this asked in a database that was replaced?
    pub(crate) fn has_asked(&self, ask: &Ask) -> bool {
        self.former.contains(&ask.id.owner)
    }

    /// Is this settle about a permit of a database that was replaced?
    pub(crate) fn has_settled(&self, queued: &QueuedSettle) -> bool {
        match &queued.settle {
            Settle::Permit { id, .. } => self.former.contains(&id.owner),
            Settle::Close { .. }
            | Settle::Open { .. }
            | Settle::Failed { .. }
            | Settle::Succeeded { .. }
            | Settle::Inherit { .. } => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_former_until_it_is_given_again() {
        let mut owners = FormerOwners::default();
        owners.set_current(OwnerId(0));
        owners.set_current(OwnerId(0));
        assert!(owners.is_empty());
        owners.set_current(OwnerId(4));
        owners.set_current(OwnerId(1));
        assert_eq!(owners.former, [OwnerId(0), OwnerId(4)]);
        owners.set_current(OwnerId(4));
        assert_eq!(owners.former, [OwnerId(0), OwnerId(1)]);
        (5..5_000).for_each(|number| owners.set_current(OwnerId(number)));
        assert!(owners.former.len() <= FORMER_MAX);
    }
}
