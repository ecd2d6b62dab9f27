//! A redis-server that is told to evict keys while limits are counted there, and told to stop it again. The
//! provider's own log judges.

use std::time::Duration;

use tollgate_ledger::Ledger;
use tollgate_sim::test_servers::RedisServer;

use crate::backend::Backend;
use crate::load::{LIMIT, Load, OUTLASTS_FAULTS, use_before, use_up_quota};
use crate::redis_faults::send;
use crate::redis_server::Redis;

/// Those that evict rows of limits only, which expire, and those that evict the provider's row too.
const POLICIES: [&str; 2] = ["volatile-random", "allkeys-random"];

fn evicted(server: &RedisServer) -> u64 {
    let info = server.command(&["INFO", "stats"]).unwrap();
    let line = info
        .lines()
        .find_map(|line| line.strip_prefix("evicted_keys:"));
    line.unwrap().parse().unwrap()
}

/// The administrator sets a policy that evicts, no memory is free, and both are taken back as soon as
/// something was evicted: between two heartbeats, as a rule.
async fn evict(server: &RedisServer, policy: &str) {
    let before = evicted(server);
    send(server, &format!("CONFIG SET maxmemory-policy {policy}"));
    send(server, "CONFIG SET maxmemory 1");
    let mut tries = 0..3_000;
    while evicted(server) == before {
        assert!(tries.next().is_some(), "nothing is evicted");
        let pause = std::future::pending::<()>();
        drop(tokio::time::timeout(Duration::from_millis(10), pause).await);
    }
    send(server, "CONFIG SET maxmemory 0");
    send(server, "CONFIG SET maxmemory-policy noeviction");
}

/// A limit whose row was evicted was granted again in the same window.
#[tokio::test]
async fn a_server_that_evicts_for_a_moment_keeps_the_limit() {
    for policy in POLICIES {
        let redis = Redis::start();
        let ledgers: Vec<Ledger> = (0..3).map(|_| redis.ledger()).collect();
        use_before(&ledgers).await;
        let load = Load::of(OUTLASTS_FAULTS, &ledgers);
        load.more(LIMIT).await;
        evict(&redis.server, policy).await;
        load.more(LIMIT).await;
        let most = load.most_in_a_window();
        assert!(
            most <= LIMIT,
            "{policy}: {most} in a window, {LIMIT} allowed"
        );
    }
}

/// An hour's quota whose row was evicted began anew.
#[tokio::test]
async fn a_quota_of_an_hour_is_not_exceeded_when_its_row_is_evicted() {
    const QUOTA: u64 = 300;
    for policy in POLICIES {
        let redis = Redis::start();
        let ledgers: Vec<Ledger> = (0..3).map(|_| redis.ledger()).collect();
        let evicted = async |_| evict(&redis.server, policy).await;
        let used = use_up_quota(&ledgers, QUOTA, evicted).await;
        assert!(used <= QUOTA, "{policy}: {used} of {QUOTA}");
    }
}
