//! Failovers, restarts, nodes that are stopped and nodes that all come back at once, with real
//! redis-servers. The provider's own log judges.

use std::net::TcpListener;
use std::path::Path;
use std::time::Duration;

use smallvec::smallvec;
use tollgate_ledger::Ledger;
use tollgate_sim::test_servers::RedisServer;

use crate::backend::{Backend, Owner, arrived, secs, sliding, term};
use crate::child::Worker;
use crate::load::{LIMIT, use_up_quota};
use crate::processes::limited_by_provider;
use crate::redis_faults::{load, send, wait_until_lost, with_replica};
use crate::redis_server::Redis;

/// What survives a power cut.
const DURABLE: [&str; 4] = ["--appendonly", "yes", "--appendfsync", "always"];

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
    let mut redis = Redis::start();
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
    let used = use_up_quota(&ledgers, 300, async || {
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

/// A node is stopped with granted permits for longer than its registration lasts. The others go on, and what it does when it
/// resumes stays within the limit.
#[test]
fn a_node_that_is_stopped_for_longer_than_its_lease_keeps_the_limit() {
    const LIMIT: u64 = 40;
    /// The lease of these nodes is half a second.
    const STOPPED: Duration = Duration::from_millis(1_500);
    let redis = RedisServer::start(&[]);
    let url = redis.url();
    let start = |place: &str| {
        let words = format!("{LIMIT} 60000 {place}");
        Worker::start("hammer", Path::new(&url), &words)
    };
    let mut steady = start("nowhere 1");
    let mut arrivals = vec![steady.wait_for("sent")];
    let mut stopped = start("stop:sending 2");
    let at = stopped.wait_for("at");
    stopped.stop();
    let resumed = stopped.resume_after(STOPPED);
    let until = at + u64::try_from(STOPPED.as_micros()).unwrap();
    let mut meanwhile = 0;
    while *arrivals.last().unwrap() < until {
        arrivals.push(steady.wait_for("sent"));
        meanwhile += 1;
    }
    assert!(meanwhile > 1, "the other node did not go on");
    resumed.join().unwrap();
    for _ in 0..LIMIT / 2 {
        arrivals.push(stopped.wait_for("sent"));
    }
    for worker in [stopped, steady] {
        let reported = worker.kill().into_iter();
        arrivals.extend(
            reported
                .filter(|(word, _)| word == "sent")
                .map(|(_, at)| at),
        );
    }
    assert_eq!(limited_by_provider(LIMIT, arrivals), 0);
}

/// A server that comes back is not run over: clients that cannot connect try again less and less often, at random, and all
/// of them return.
#[tokio::test]
async fn two_hundred_clients_come_back_without_a_rush() {
    const CLIENTS: usize = 200;
    let mut redis = Redis::start();
    let mut owners: Vec<Owner> = (0..CLIENTS).map(|_| Owner::of(&redis.ledger())).collect();
    let rule = sliding(5, secs(10));
    for (number, owner) in owners.iter_mut().enumerate() {
        let cell = format!("cell {number}");
        owner.take(smallvec![term(&cell, &rule)]).await.unwrap();
    }
    let address = redis.server.address();
    redis.server.kill();
    // In its place: whoever connects is counted and sent away.
    let listener = TcpListener::bind(address).unwrap();
    listener.set_nonblocking(true).unwrap();
    let count_for = async |time: Duration| {
        let listener = tokio::net::TcpListener::from_std(listener.try_clone().unwrap()).unwrap();
        let mut connected = 0;
        let accept = async {
            loop {
                drop(listener.accept().await.unwrap());
                connected += 1;
            }
        };
        let over: Result<(), _> = tokio::time::timeout(time, accept).await;
        assert!(over.is_err());
        connected
    };
    let at_first = count_for(Duration::from_secs(2)).await;
    let later = count_for(Duration::from_secs(2)).await;
    // 25 ms at least, and each pause is twice as long: seven in two seconds. Then half a second at least.
    assert!(at_first <= 8 * CLIENTS, "{at_first} connections");
    assert!(
        (CLIENTS..=4 * CLIENTS).contains(&later),
        "{later} connections"
    );
    drop(listener);
    redis.server.restart();
    let back = owners.iter_mut().enumerate().map(async |(number, owner)| {
        let mut events = owner.ledger.events();
        loop {
            let ask = owner.ask(smallvec![term(&format!("new cell {number}"), &rule)]);
            if owner.ledger.offer(vec![ask]).await.is_ok() {
                return;
            }
            drop(tokio::time::timeout(Duration::from_millis(100), events.next()).await);
        }
    });
    let mut all = Vec::new();
    for one in back {
        all.push(Box::pin(one));
    }
    let all = async {
        for one in all {
            one.await;
        }
    };
    let all = tokio::time::timeout(Duration::from_secs(20), all).await;
    assert!(all.is_ok(), "not all of them are back");
}
