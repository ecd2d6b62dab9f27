//! Failovers and restarts of real redis-servers. The provider's own log judges.

use std::time::Duration;

use smallvec::smallvec;
use tollgate_ledger::Ledger;
use tollgate_sim::test_servers::RedisServer;

use crate::backend::{Backend, Owner, arrived, secs, sliding, term};
use crate::load::{LIMIT, use_up_quota};
use crate::redis_faults::{load, send, wait_until_lost, with_replica};
use crate::redis_server::Redis;

/// What survives a kill: the kernel has it before anybody hears of it. A power cut asks for `always`, with which
/// each permit waits for the disk of the machine.
const DURABLE: [&str; 4] = ["--appendonly", "yes", "--appendfsync", "no"];

fn has_role(server: &RedisServer, role: &str) -> bool {
    let info = server.command(&["INFO", "replication"]).unwrap();
    info.contains(&format!("role:{role}"))
}

/// An administrator moves the master to the replica and back: the server at the address has been a replica in between.
#[tokio::test]
async fn a_failover_there_and_back_keeps_the_limit() {
    let (redis, replica) = with_replica();
    let (_ledgers, load) = load(&redis);
    load.more(2 * LIMIT).await;
    for (from, to) in [(&redis.server, &replica), (&replica, &redis.server)] {
        // The replica must be known and have everything.
        while !from.command(&["FAILOVER"]).unwrap().starts_with('+') {
            tokio::task::yield_now().await;
        }
        while !has_role(to, "master") || !has_role(from, "slave") {
            tokio::task::yield_now().await;
        }
    }
    load.more(2 * LIMIT).await;
    load.judge();
}

/// The server's memory is full, and it may not delete anything.
#[tokio::test]
async fn a_server_without_memory_keeps_the_limit() {
    let redis = Redis::start();
    let (ledgers, load) = load(&redis);
    load.more(2 * LIMIT).await;
    send(&redis.server, "CONFIG SET maxmemory-policy noeviction");
    send(&redis.server, "CONFIG SET maxmemory 1");
    wait_until_lost(&ledgers[0]).await;
    let why = ledgers[0].loss_reason().unwrap();
    assert!(why.contains("give the server more memory"), "{why}");
    send(&redis.server, "CONFIG SET maxmemory 0");
    load.more(2 * LIMIT).await;
    load.judge();
}

/// Another epoch, and rows that were on the disk: a long quota goes on counting, and is neither full nor empty.
#[tokio::test]
async fn a_long_quota_goes_on_counting_across_a_restart_with_a_disk() {
    let mut redis = Redis::start().patient();
    redis.server = RedisServer::start(&DURABLE);
    let mut owner = Owner::new(&redis, 1);
    let rule = sliding(5, secs(86_400));
    for _ in 0..3 {
        let permit = owner.take(smallvec![term("day", &rule)]).await.unwrap();
        owner.settle(&permit, arrived());
    }
    owner.wait_settled().await;
    redis.server.restart();
    let mut other = Owner::new(&redis, 2);
    for taker in [&mut owner, &mut other] {
        let taken = taker.take(smallvec![term("day", &rule)]).await;
        assert!(taken.is_ok(), "it has lost nothing");
    }
    for taker in [&mut owner, &mut other] {
        let taken = taker.take(smallvec![term("day", &rule)]).await;
        assert!(taken.is_err(), "five are used");
    }
}

/// Three owners use an hour's quota while the server is killed and restarted twice.
#[tokio::test]
async fn a_quota_of_an_hour_is_used_up_and_not_exceeded_across_kills() {
    let mut redis = Redis::start();
    redis.server = RedisServer::start(&DURABLE);
    let ledgers: Vec<Ledger> = (0..3).map(|_| redis.ledger()).collect();
    let server = &mut redis.server;
    let used = use_up_quota(&ledgers, 300, async |_| {
        for _ in 0..2 {
            server.kill();
            server.restart();
            drop(
                tokio::time::timeout(Duration::from_millis(300), std::future::pending::<()>())
                    .await,
            );
        }
    })
    .await;
    // What was granted when the server was killed and nobody heard of is not used: one per owner and kill.
    assert!((294..=300).contains(&used), "{used} of 300");
}
