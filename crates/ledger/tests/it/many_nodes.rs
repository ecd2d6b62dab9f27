//! Nodes that are stopped, and nodes that all come back at once, on real Redis and Postgres servers.
//!
//! `STOP_SECONDS=30 cargo test -p tollgate-ledger --test it a_node_that_is_stopped` is the long version.

use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use smallvec::smallvec;
use tollgate_core::limit::Rule;
use tollgate_ledger::{Clock, Ledger};
use tollgate_sim::test_servers::{PostgresServer, RedisServer};

use crate::backend::{Owner, secs, sliding, term};
use crate::child::Worker;
use crate::postgres_faults::open;
use crate::processes::limited_by_provider;
use crate::redis_server::Redis;

/// How long the node is stopped. The lease of these nodes is half a second.
fn stopped() -> Duration {
    let seconds = std::env::var("STOP_SECONDS").ok();
    let seconds = seconds.map(|seconds| Duration::from_secs(seconds.parse().unwrap()));
    seconds.unwrap_or(Duration::from_millis(1_500))
}

/// A node is stopped with granted permits for longer than its registration lasts. The others go on, and what it does when it
/// resumes stays within the limit.
fn stops_for_longer_than_its_lease(url: &str) {
    const LIMIT: u64 = 40;
    let stopped_for = stopped();
    let start = |place: &str| {
        let words = format!("{LIMIT} 120000 {place}");
        Worker::start("hammer", Path::new(url), &words)
    };
    let mut steady = start("nowhere 1");
    let mut arrivals = vec![steady.wait_for("sent")];
    let mut stopped = start("stop:sending 2");
    let at = stopped.wait_for("at");
    stopped.stop();
    let resumed = stopped.resume_after(stopped_for);
    let until = at + u64::try_from(stopped_for.as_micros()).unwrap();
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

#[test]
fn a_node_that_is_stopped_for_longer_than_its_lease_keeps_the_limit_on_redis() {
    stops_for_longer_than_its_lease(&RedisServer::start(&[]).url());
}

#[test]
fn a_node_that_is_stopped_for_longer_than_its_lease_keeps_the_limit_on_postgres() {
    stops_for_longer_than_its_lease(&PostgresServer::start(&[]).url("postgres"));
}

const CLIENTS: usize = 200;

/// Two hundred clients of one server, each in use.
async fn use_all(ledgers: &[Ledger]) -> Vec<Owner> {
    let mut owners: Vec<Owner> = ledgers.iter().map(Owner::of).collect();
    let rule = sliding(5, secs(10));
    for (number, owner) in owners.iter_mut().enumerate() {
        let cell = format!("cell {number}");
        // All of them connect at the same time: the first may find the store lost.
        take_when_it_is_there(owner, &cell, &rule).await;
    }
    owners
}

async fn take_when_it_is_there(owner: &mut Owner, cell: &str, rule: &Arc<Rule>) {
    let mut events = owner.ledger.events();
    loop {
        let ask = owner.ask(smallvec![term(cell, rule)]);
        if owner.ledger.offer(vec![ask]).await.is_ok() {
            return;
        }
        drop(tokio::time::timeout(Duration::from_millis(100), events.next()).await);
    }
}

/// In the place of a server that is gone: whoever connects is counted and sent away. Each client makes
/// so many connections.
async fn count_those_who_try(address: SocketAddr, each: usize) {
    let listener = TcpListener::bind(address).unwrap();
    listener.set_nonblocking(true).unwrap();
    let count_for = async |time: Duration| -> (usize, f64) {
        let began = Clock::System.at();
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
        // On a busy machine it is over later than it should be.
        let took = Clock::System.at().since(began);
        (connected, Duration::from(took).as_secs_f64())
    };
    let (at_first, took) = count_for(Duration::from_secs(2)).await;
    let all = (each * CLIENTS) as f64;
    // 25 ms at least, and each pause is twice as long: seven in two seconds. Then half a second at least.
    let most = all * (8.0 + 2.0 * (took - 2.0).max(0.0));
    assert!(at_first as f64 <= most, "{at_first} in {took} s");
    let (later, took) = count_for(Duration::from_secs(2)).await;
    let most = all * 2.0 * took.max(2.0);
    assert!(
        (all..=most).contains(&(later as f64)),
        "{later} in {took} s"
    );
}

/// All of them get permits again.
async fn all_return(mut owners: Vec<Owner>) {
    let rule = sliding(5, secs(10));
    let back = owners.iter_mut().enumerate().map(async |(number, owner)| {
        take_when_it_is_there(owner, &format!("new cell {number}"), &rule).await;
    });
    let back: Vec<_> = back.map(Box::pin).collect();
    let all = async {
        for one in back {
            one.await;
        }
    };
    let all = tokio::time::timeout(Duration::from_secs(180), all).await;
    assert!(all.is_ok(), "not all of them are back");
}

/// A server that comes back is not run over: clients that cannot connect try again less and less often, at random, and all
/// of them return.
#[tokio::test]
async fn two_hundred_clients_come_back_without_a_rush() {
    let mut redis = Redis::start();
    let url = redis.server.url();
    let ledgers: Vec<Ledger> = (0..CLIENTS).map(|_| redis.open_at(&url)).collect();
    let owners = use_all(&ledgers).await;
    redis.server.kill();
    count_those_who_try(redis.server.address(), 1).await;
    redis.server.restart();
    all_return(owners).await;
}

/// The same, and each client has three connections: one that listens, and two for requests.
#[tokio::test]
async fn two_hundred_clients_of_postgres_come_back_without_a_rush() {
    const EACH: usize = 3;
    let mut server = PostgresServer::start(&[]);
    let ledgers: Vec<Ledger> = (0..CLIENTS)
        .map(|_| open(&server.url("postgres")))
        .collect();
    let owners = use_all(&ledgers).await;
    server.kill();
    count_those_who_try(server.address(), EACH).await;
    server.restart();
    all_return(owners).await;
}
