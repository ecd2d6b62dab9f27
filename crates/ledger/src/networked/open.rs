//! What the stores of many hosts need to be opened, whichever they are.
//!
//! Promises: a process has a number and a nonce that no other one has: both are random, and the
//! store rejects a number that another process has registered.
//!
//! Never: opens anything.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::path::PathBuf;

use tollgate_core::ask::OwnerId;
use tollgate_core::replica::{ReplicaSettings, Rules};
use tollgate_core::time::Span;

use super::NetworkedSettings;
use crate::store::StoreError;

/// How a store of many hosts is used.
#[derive(Clone, Debug)]
pub struct NetworkedOptions {
    /// A folder of this host that remembers which providers were used with which store: a store
    /// that knows nothing of such a provider was wiped. `None`: every empty store counts as new.
    pub state_dir: Option<PathBuf>,
    /// After this long a request counts as lost. A grant that is older than half a second is not
    /// used, so more is useless.
    pub deadline: Span,
    /// Without any reply for so long the store counts as lost.
    pub lost_after: Span,
    /// How long this process counts as alive without a heartbeat (`node_lease`).
    pub node_lease: Span,
    /// The rules of the protocol; tests turn one off.
    pub rules: Rules,
    /// In tests the store's clock is as slow, and as far ahead.
    #[cfg(feature = "failpoints")]
    pub test_clock: Option<std::sync::Arc<crate::SlowClock>>,
}

impl Default for NetworkedOptions {
    fn default() -> NetworkedOptions {
        NetworkedOptions {
            state_dir: None,
            deadline: Span::from_millis(500),
            lost_after: Span::from_secs(2),
            node_lease: super::live_owners::NODE_LEASE,
            rules: Rules::default(),
            #[cfg(feature = "failpoints")]
            test_clock: None,
        }
    }
}

impl NetworkedOptions {
    pub(crate) fn settings(&self, process: Process, durable: bool) -> NetworkedSettings {
        NetworkedSettings {
            replica: ReplicaSettings {
                owner: process.owner,
                process: process.nonce,
                deadline: self.deadline,
                durable,
                rules: self.rules,
            },
            lost_after: self.lost_after,
        }
    }
}

/// This process among those that share a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) owner: OwnerId,
    pub(crate) nonce: u64,
}

impl Process {
    /// A process with a number of its own. It is known before the store can be reached, and does
    /// not depend on what a wiped or promoted store remembers of earlier ones.
    pub(crate) fn random() -> Process {
        let random = || RandomState::new().build_hasher().finish();
        let owner = u32::try_from(random() % u64::from(u32::MAX)).unwrap_or(0);
        Process {
            owner: OwnerId(owner + 1),
            nonce: random(),
        }
    }
}

/// By how much tests have advanced the store's clock.
#[cfg(feature = "failpoints")]
pub(crate) fn offset(clock: Option<&std::sync::Arc<crate::SlowClock>>) -> Span {
    clock.map_or(Span::ZERO, |clock| clock.ahead())
}

/// An error that passes.
pub(crate) fn passing(message: impl Into<std::sync::Arc<str>>) -> StoreError {
    StoreError {
        message: message.into(),
        is_final: false,
    }
}

/// Another process has registered the same number, which happens once in 4 billion starts.
pub(crate) fn number_is_taken() -> StoreError {
    StoreError {
        message: "another process has the same owner number in the store; start again".into(),
        is_final: true,
    }
}
