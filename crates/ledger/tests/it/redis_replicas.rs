//! Replicas of a redis-server that come and go: which permits wait for them.

use std::sync::Arc;
use std::time::Duration;

use rustix::process::Signal;
use smallvec::smallvec;
use tollgate_core::limit::Rule;
use tollgate_ledger::NetworkedOptions;
use tollgate_sim::test_servers::RedisServer;

use crate::backend::{Owner, secs, sliding, term};
use crate::redis_faults::{is_granted, pin_offer, send, signal};
use crate::redis_server::Redis;

/// Tries until a copy is seen while it is under way.
const COPIES: usize = 8;

/// How the master sees its replicas.
fn states(master: &RedisServer) -> Vec<String> {
    let info = master.command(&["INFO", "replication"]).unwrap();
    let states = info.lines().filter(|line| line.starts_with("slave"));
    let states = states.map(|line| line.split_once("state=").unwrap().1);
    let word = |text: &str| text.split(',').next().unwrap().to_owned();
    states.map(word).collect()
}

/// Waits until the master sees its replicas like that.
async fn wait_for_states(master: &RedisServer, expected: &[&str]) {
    let mut tries = 0..600;
    while states(master) != expected {
        assert!(tries.next().is_some(), "{:?}", states(master));
        let pause = std::future::pending::<()>();
        drop(tokio::time::timeout(Duration::from_millis(100), pause).await);
    }
}

/// Until a replica confirms, each try takes as long as replicas are waited for.
async fn wait_until_granted(owner: &mut Owner, rule: &Arc<Rule>) {
    let mut tries = 0..600;
    while !is_granted(pin_offer(owner, rule).await) {
        assert!(tries.next().is_some(), "nothing is granted");
        let pause = std::future::pending::<()>();
        drop(tokio::time::timeout(Duration::from_millis(50), pause).await);
    }
}

/// Waits until a second replica gets its copy; `false`: it had it before anybody looked.
async fn sees_second_copy(master: &RedisServer) -> bool {
    let copies = "rdb_bgsave_in_progress:1";
    let mut tries = 0..12_000;
    while !master
        .command(&["INFO", "persistence"])
        .unwrap()
        .contains(copies)
    {
        if states(master) == ["online", "online"] {
            return false;
        }
        assert!(tries.next().is_some(), "{:?}", states(master));
        drop(tokio::time::timeout(Duration::from_millis(5), std::future::pending::<()>()).await);
    }
    true
}

/// A second replica whose copy is under way. The copy takes half a second, in which a busy machine may not look:
/// then the next empty server follows.
async fn copying_replica(master: &RedisServer) -> RedisServer {
    for _ in 0..COPIES {
        let replica = RedisServer::start(&[]);
        follow(master, &replica);
        if sees_second_copy(master).await {
            return replica;
        }
        drop(replica);
        wait_for_states(master, &["online"]).await;
    }
    panic!("no copy was seen");
}

/// A master that lets replicas wait for their copy until it is told not to. By default they wait for 5 s.
fn slow_to_copy() -> Redis {
    let mut redis = Redis::start().patient();
    redis.server = RedisServer::start(&["--repl-diskless-sync-delay", "600"]);
    redis
}

fn follow(master: &RedisServer, replica: &RedisServer) {
    let port = master.address().port();
    send(replica, &format!("REPLICAOF 127.0.0.1 {port}"));
}

/// A replica that waits for its copy is connected and confirms nothing: every permit of a long limit failed ("0 of 1
/// replicas confirmed"), and the store counted as lost until the copy was there.
#[tokio::test]
async fn a_replica_that_synchronises_stops_no_long_limit() {
    let redis = slow_to_copy();
    let mut owner = Owner::new(&redis, 1);
    let long = sliding(500, secs(86_400));
    owner.take(smallvec![term("x", &long)]).await.unwrap();
    let replica = RedisServer::start(&[]);
    follow(&redis.server, &replica);
    wait_for_states(&redis.server, &["wait_bgsave"]).await;
    for _ in 0..3 {
        owner.take(smallvec![term("x", &long)]).await.unwrap();
    }
    assert_eq!(states(&redis.server), ["wait_bgsave"], "it follows already");
    // Once it follows, its copy has all of that, and the next permit waits for it.
    send(&redis.server, "CONFIG SET repl-diskless-sync-delay 0");
    wait_for_states(&redis.server, &["online"]).await;
    wait_until_granted(&mut owner, &long).await;
    signal(&replica, Signal::STOP);
    let offered = pin_offer(&mut owner, &long);
    // Not decided is not granted either.
    if let Ok(offered) = tokio::time::timeout(Duration::from_secs(2), offered).await {
        assert!(!is_granted(offered), "granted without the replica");
    }
    signal(&replica, Signal::CONT);
}

/// A replica that hangs has not confirmed, and one that finishes its copy while it is waited for does: the one was
/// counted for the other.
#[tokio::test]
async fn a_replica_that_finishes_its_copy_confirms_in_place_of_no_other() {
    let redis = slow_to_copy();
    let hung = RedisServer::start(&[]);
    send(&redis.server, "CONFIG SET repl-diskless-sync-delay 0");
    follow(&redis.server, &hung);
    wait_for_states(&redis.server, &["online"]).await;
    // Neither the store is lost before the copy is there, nor a grant too late.
    let options = NetworkedOptions {
        deadline: secs(5),
        lost_after: secs(3_600),
        ..redis.options()
    };
    let ledger = redis.open_with(&redis.server.url(), &options);
    let mut owner = Owner::of(&ledger);
    let long = sliding(3_000, secs(3_600));
    wait_until_granted(&mut owner, &long).await;
    signal(&hung, Signal::STOP);
    // The copy takes about as long as half of the time that a permit waits for replicas.
    send(&redis.server, "CONFIG SET rdb-key-save-delay 30000");
    let _next = copying_replica(&redis.server).await;
    let ask = owner.ask(smallvec![term("x", &long)]);
    let offered = owner.ledger.offer(vec![ask]);
    // Not decided is not granted either.
    if let Ok(offered) = tokio::time::timeout(Duration::from_secs(2), offered).await {
        assert!(!is_granted(offered), "granted without the one that hangs");
    }
    signal(&hung, Signal::CONT);
    wait_until_granted(&mut owner, &long).await;
}
