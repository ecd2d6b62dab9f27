//! Which owners are alive, as the last heartbeat said.
//!
//! Promises: asks nobody. What is older than a few heartbeats says nothing.
//!
//! Never: takes an owner for dead because this node has lost its store.

use std::collections::BTreeSet;
use std::time::Duration;

use parking_lot::Mutex;
use tollgate_core::ask::OwnerId;
use tollgate_core::time::{Micros, Span};

use crate::store::Liveness;

/// How long a node's registration lasts in the store unless its heartbeat renews it, if the
/// configuration says nothing else.
pub(crate) const NODE_LEASE: Span = Span::from_secs(5);

/// A connection on which a heartbeat has no reply for so long, or for the time between two of them, is given up.
pub(crate) const REPLY_WITHIN: Duration = Duration::from_secs(1);

/// How often a node renews its registration. A few heartbeats may be lost before the lease lapses.
const HEARTBEATS: (Span, Span) = (Span::from_millis(50), Span::from_secs(1));

/// How often a node renews a registration of so long.
pub(crate) fn heartbeat_of(lease: Span) -> Duration {
    let (most_often, usually) = HEARTBEATS;
    Duration::from_micros(Span(lease.0 / 4).clamp(most_often, usually).0)
}

/// What an older heartbeat said is no longer believed: a few of them may be lost.
const BELIEVED_FOR: Span = Span::from_secs(3);

/// The owners that the last heartbeat named.
#[derive(Debug, Default)]
pub(crate) struct LiveOwners {
    last: Mutex<Option<(Micros, BTreeSet<OwnerId>)>>,
}

impl LiveOwners {
    /// A heartbeat's reply: these are registered. The store bounds them by their leases.
    pub(crate) fn set(&self, owners: BTreeSet<OwnerId>, now: Micros) {
        *self.last.lock() = Some((now, owners));
    }

    /// Is this owner alive, as far as is known?
    pub(crate) fn liveness(&self, owner: OwnerId, now: Micros) -> Liveness {
        match &*self.last.lock() {
            Some((at, _)) if now > *at + BELIEVED_FOR => Liveness::Unknown,
            Some((_, owners)) if owners.contains(&owner) => Liveness::Alive,
            Some(_) => Liveness::Dead,
            None => Liveness::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A node that had lost its store took every owner that joined since for dead.
    #[test]
    fn an_old_heartbeat_says_nothing() {
        let owners = LiveOwners::default();
        let at = Micros(10_000_000);
        assert_eq!(owners.liveness(OwnerId(1), at), Liveness::Unknown);
        owners.set(BTreeSet::from([OwnerId(1)]), at);
        assert_eq!(owners.liveness(OwnerId(1), at), Liveness::Alive);
        assert_eq!(owners.liveness(OwnerId(2), at), Liveness::Dead);
        let later = at + BELIEVED_FOR + Span(1);
        assert_eq!(owners.liveness(OwnerId(2), later), Liveness::Unknown);
    }
}
