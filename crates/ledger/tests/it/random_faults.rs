//! Random sequences of faults on real servers, while owners use a limit as fast as they get permits. The
//! provider's own log judges each round.
//!
//! `ROUNDS=100 cargo test -p tollgate-ledger --test it random_faults -- --nocapture` is a campaign; it prints
//! what was done. `SEED=7` repeats a round that failed.

#![expect(clippy::print_stdout, reason = "a campaign says what it did")]

use std::collections::BTreeMap;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tollgate_core::replica::Rules;
use tollgate_core::time::Span;
use tollgate_ledger::Ledger;
use tollgate_sim::fault_proxy::{FaultProxy, Flow};
use tollgate_sim::test_servers::{PostgresServer, RedisServer};

use crate::load::{LIMIT, Load, UsedLimit, use_before};
use crate::redis_faults::send;
use crate::redis_server::Redis;
use crate::rules_on_servers::{open_at, pause};

/// Longer than a kill and a restart take, so that what is forgotten can be granted twice.
const USED: UsedLimit = UsedLimit {
    limit: LIMIT,
    window: Span::from_secs(2),
};

/// Faults of one round.
const FAULTS: u64 = 5;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fault {
    /// The server is killed and started again.
    Kill,
    /// It is stopped for a while.
    Pause,
    /// The connections of one node are reset.
    Cut,
    /// Replies to one node are lost, what it sends arrives.
    LoseReplies,
    /// What one node sends is lost.
    LoseRequests,
    /// Another server takes over, which lacks what was written last.
    Promotion,
    /// All rows are deleted.
    Wipe,
}

const ON_BOTH: [Fault; 5] = [
    Fault::Kill,
    Fault::Pause,
    Fault::Cut,
    Fault::LoseReplies,
    Fault::LoseRequests,
];

/// How often each fault was injected.
type Counts = BTreeMap<Fault, u64>;

/// Rounds with different seeds, and what was done in them.
async fn rounds(name: &str, round: impl AsyncFn(fastrand::Rng, &mut Counts) -> u64) {
    let number = |name: &str| -> Option<u64> { std::env::var(name).ok()?.parse().ok() };
    let first = number("SEED").unwrap_or(1);
    let mut counts = Counts::new();
    let mut calls = 0;
    let rounds = number("ROUNDS").unwrap_or(1);
    for seed in first..first + rounds {
        println!("{name}: seed {seed}");
        calls += round(fastrand::Rng::with_seed(seed), &mut counts).await;
    }
    println!("{name}: {rounds} rounds, {calls} calls, 0 above the limit, {counts:?}");
}

fn signal(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    kill_process(pid, signal).unwrap();
}

/// The faults of the network between one node and the server.
async fn disturb(proxy: &FaultProxy, fault: Fault, dice: &mut fastrand::Rng) {
    match fault {
        Fault::LoseReplies => proxy.update(|faults| faults.down.flow = Flow::Drop),
        Fault::LoseRequests => proxy.update(|faults| faults.up.flow = Flow::Drop),
        _ => return proxy.cut(),
    }
    pause(Duration::from_millis(dice.u64(1..1_200))).await;
    proxy.cut();
    proxy.clear();
}

async fn calls_before_the_fault(load: &Load, dice: &mut fastrand::Rng) {
    // The whole limit at once, so that what follows is decided on full rows, or any part of it.
    load.more(dice.u64(1..=LIMIT)).await;
    pause(Duration::from_millis(dice.u64(0..500))).await;
}

#[tokio::test]
async fn a_redis_under_random_faults_keeps_the_limit() {
    rounds("Redis", async |mut dice, counts| {
        let mut redis = Redis::on(RedisServer::start(&[]), Rules::default());
        let address = redis.server.address();
        let mut replica = follow(&redis.server);
        let proxy = FaultProxy::start(address, 1).await.unwrap();
        let far = format!("redis://{}", proxy.address());
        let ledgers = [redis.server.url(), redis.server.url(), far].map(|url| redis.open_at(&url));
        use_before(&ledgers).await;
        let load = Load::of(USED, &ledgers);
        for _ in 0..FAULTS {
            calls_before_the_fault(&load, &mut dice).await;
            let only_here = [Fault::Promotion, Fault::Wipe];
            let all: Vec<Fault> = ON_BOTH.into_iter().chain(only_here).collect();
            let fault = all[dice.usize(..all.len())];
            *counts.entry(fault).or_default() += 1;
            println!("  {fault:?}");
            match fault {
                Fault::Kill => {
                    redis.server.kill();
                    redis.server.restart();
                }
                Fault::Pause => {
                    signal(redis.server.pid(), Signal::STOP);
                    pause(Duration::from_millis(dice.u64(1..2_500))).await;
                    signal(redis.server.pid(), Signal::CONT);
                }
                Fault::Promotion => {
                    // It hears of nothing any more, for a while.
                    send(&replica, "REPLICAOF 127.0.0.1 1");
                    pause(Duration::from_millis(dice.u64(0..1_000))).await;
                    redis.server.kill();
                    send(&replica, "REPLICAOF NO ONE");
                    replica.move_to(address);
                    redis.server = replica;
                    replica = follow(&redis.server);
                }
                Fault::Wipe => send(&redis.server, "FLUSHALL"),
                Fault::Cut | Fault::LoseReplies | Fault::LoseRequests => {
                    disturb(&proxy, fault, &mut dice).await;
                }
            }
        }
        judge(load).await
    })
    .await;
}

/// A replica that follows this server.
fn follow(server: &RedisServer) -> RedisServer {
    let replica = RedisServer::start(&[]);
    let port = server.address().port();
    send(&replica, &format!("REPLICAOF 127.0.0.1 {port}"));
    replica
}

async fn judge(load: Load) -> u64 {
    load.more(2 * LIMIT).await;
    let calls = load.arrived();
    load.judge();
    calls
}

#[tokio::test]
async fn a_postgres_under_random_faults_keeps_the_limit() {
    rounds("Postgres", async |mut dice, counts| {
        let mut server = PostgresServer::start(&[]);
        let mut standby = Some(server.standby());
        let proxy = FaultProxy::start(server.address(), 1).await.unwrap();
        let second = standby.as_ref().map(PostgresServer::address).unwrap();
        let url = |first: std::net::SocketAddr| {
            format!("postgres://postgres@{first},{second}/postgres?target_session_attrs=read-write")
        };
        let near = url(server.address());
        let ledgers: [Ledger; 3] =
            [&near, &near, &url(proxy.address())].map(|url| open_at(url, Rules::default()));
        use_before(&ledgers).await;
        let load = Load::of(USED, &ledgers);
        for _ in 0..FAULTS {
            calls_before_the_fault(&load, &mut dice).await;
            let mut all = ON_BOTH.to_vec();
            if standby.is_some() {
                all.push(Fault::Promotion);
            }
            let fault = all[dice.usize(..all.len())];
            *counts.entry(fault).or_default() += 1;
            println!("  {fault:?}");
            match fault {
                Fault::Kill => {
                    server.kill();
                    server.restart();
                }
                Fault::Pause => {
                    let processes = server.processes();
                    assert!(processes.len() > 1, "{processes:?}");
                    processes.iter().for_each(|&pid| signal(pid, Signal::STOP));
                    pause(Duration::from_millis(dice.u64(1..2_500))).await;
                    processes.iter().for_each(|&pid| signal(pid, Signal::CONT));
                }
                Fault::Promotion => {
                    let next = standby.take().unwrap();
                    // It hears of nothing any more, for a while.
                    let cut = next.sql("postgres", "ALTER SYSTEM SET primary_conninfo = ''");
                    assert_eq!(cut, "ALTER SYSTEM");
                    let _reloaded = next.sql("postgres", "SELECT pg_reload_conf()");
                    pause(Duration::from_millis(dice.u64(0..1_000))).await;
                    server.kill();
                    next.promote();
                    server = next;
                }
                Fault::Cut | Fault::LoseReplies | Fault::LoseRequests | Fault::Wipe => {
                    disturb(&proxy, fault, &mut dice).await;
                }
            }
        }
        judge(load).await
    })
    .await;
}
