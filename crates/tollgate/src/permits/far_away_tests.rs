//! Gates above a store that is a round trip away.

use tollgate_core::ask::OwnerId;
use tollgate_core::gate::{BATCH_FAR_AWAY, GateSettings};
use tollgate_core::replica::{PastUse, ReplicaSettings, Reply, Request, Rules};
use tollgate_core::time::{Span, Wall};
use tollgate_ledger::{Clock, Ledger, Liveness, NetworkedSettings, RowStore, StoreError};

use super::for_ledger;

#[derive(Debug)]
struct FarAway;

impl RowStore for FarAway {
    async fn exchange(&self, _: &str, _: Request) -> Result<Reply, StoreError> {
        std::future::pending().await
    }

    fn liveness(&self, _: OwnerId) -> Liveness {
        Liveness::Unknown
    }

    fn past_use(&self, _: &str) -> PastUse {
        PastUse::Never
    }
}

/// Only the simulator's gates began with a larger batch, so its figures were not those of Tollgate.
#[tokio::test(start_paused = true)]
async fn a_gate_above_a_networked_store_begins_with_a_larger_batch() {
    let clock = Clock::tokio(Wall(1_772_323_200_000_000));
    let settings = NetworkedSettings {
        replica: ReplicaSettings {
            owner: OwnerId(1),
            process: 1,
            deadline: Span::from_millis(100),
            durable: false,
            rules: Rules::default(),
        },
        lost_after: Span::from_secs(1),
    };
    let runtime = tokio::runtime::Handle::current();
    let far_away = Ledger::networked(clock.clone(), &runtime, settings, |_| FarAway);
    let here = Ledger::memory(clock);
    let first =
        |ledger: &Ledger| for_ledger(GateSettings::default(), &ledger.provider("p")).batch_first;
    assert_eq!(first(&far_away), BATCH_FAR_AWAY);
    assert_eq!(first(&here), GateSettings::default().batch_first);
}
