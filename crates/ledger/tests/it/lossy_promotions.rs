//! What one promotion can cost a long quota whose store had not passed on everything: no more than
//! was written while the link was cut. The owners count what they use.

use std::time::Duration;

use tokio::sync::watch;
use tollgate_ledger::Ledger;
use tollgate_sim::fault_proxy::FaultProxy;
use tollgate_sim::test_servers::PostgresServer;

use crate::load::use_up_quota;
use crate::rules_on_servers::{
    offset, open_either, pause, promote, wait_until_followed, wait_until_used, with_lagging_replica,
};

/// So much that the owners do not use it up before the promotion: then nobody would ask for what was forgotten.
const QUOTA: u64 = 1_500;
const OWNERS: usize = 3;

/// So many are used while the link is cut, and are forgotten.
const FORGOTTEN: u64 = 30;

/// The link is cut, then so many more permits are used.
async fn use_without_link(link: &FaultProxy, used: &mut watch::Receiver<u64>) {
    let before = *used.borrow();
    // As if the cable were out, and the server noticed: it waits for nobody.
    link.update(|faults| faults.refuse = true);
    link.cut();
    wait_until_used(used, before + FORGOTTEN).await;
}

/// Waits until the replica has what is written by now; so many permits were used then. What it lacks later was
/// written later: a replica is behind at any time, the more the faster permits are used.
async fn used_and_copied(used: &watch::Receiver<u64>, is_copied: impl Fn() -> bool) -> u64 {
    let before = *used.borrow();
    let mut tries = 0..3_000;
    while !is_copied() {
        assert!(tries.next().is_some(), "the replica does not follow");
        pause(Duration::from_millis(10)).await;
    }
    before
}

/// Each owner may have one more permit under way whenever somebody counts.
fn assert_bound(total: u64, written_without_link: u64) {
    let most = QUOTA + written_without_link;
    assert!((QUOTA..=most).contains(&total), "{total}, at most {most}");
    assert!(total > QUOTA, "nothing was forgotten: this shows nothing");
}

#[tokio::test]
async fn a_quota_of_an_hour_is_exceeded_by_no_more_than_a_redis_replica_lacks() {
    let (mut redis, mut replica, proxy) = with_lagging_replica(Default::default()).await;
    let url = redis.server.url();
    let ledgers: Vec<Ledger> = (0..OWNERS).map(|_| redis.open_at(&url)).collect();
    let mut written = 0;
    let total = use_up_quota(&ledgers, QUOTA, async |mut used| {
        let written_by_now = offset(&redis.server);
        let before = used_and_copied(&used, || offset(&replica) >= written_by_now).await;
        use_without_link(&proxy, &mut used).await;
        promote(&mut redis, &mut replica);
        written = *used.borrow() - before + OWNERS as u64;
    })
    .await;
    assert_bound(total, written);
}

#[tokio::test]
async fn a_quota_of_an_hour_is_exceeded_by_no_more_than_a_postgres_standby_lacks() {
    let mut server = PostgresServer::start(&[]);
    let proxy = FaultProxy::start(server.address(), 1).await.unwrap();
    let standby = server.standby_through(proxy.address());
    wait_until_followed(&server).await;
    let ledgers = [0; OWNERS].map(|_| open_either(&server, &standby, Default::default()));
    let mut written = 0;
    let total = use_up_quota(&ledgers, QUOTA, async |mut used| {
        let lsn = server.sql("postgres", "SELECT pg_current_wal_lsn()");
        let copied =
            format!("SELECT count(*) FROM pg_stat_replication WHERE replay_lsn >= '{lsn}'");
        let is_copied = || server.sql("postgres", &copied) == "1";
        let before = used_and_copied(&used, is_copied).await;
        use_without_link(&proxy, &mut used).await;
        server.kill();
        written = *used.borrow() - before + OWNERS as u64;
        standby.promote();
    })
    .await;
    assert_bound(total, written);
}
