//! Rules of the protocol, turned off one by one, on real servers: what they keep out then happens. It
//! shows that the fault tests of this folder can fail.
//!
//! The window outlasts each fault, so that what was forgotten can be granted a second time.

use std::sync::Arc;
use std::time::Duration;

use smallvec::smallvec;
use tollgate_core::ask::Verdict;
use tollgate_core::limit::Rule;
use tollgate_core::replica::Rules;
use tollgate_core::time::Span;
use tollgate_ledger::postgres::PostgresAddress;
use tollgate_ledger::{Clock, Ledger, NetworkedOptions};
use tollgate_sim::fault_proxy::{FaultProxy, Flow};
use tollgate_sim::test_servers::{PostgresServer, RedisServer};

use crate::backend::{Owner, Permit, arrived, sliding, term};
use crate::load::{LIMIT, Load, OUTLASTS_FAULTS, UsedLimit, use_before};
use crate::redis_faults::send;
use crate::redis_server::Redis;

/// Tries until a window is exceeded: on a busy machine a fault may take longer than a window, and then nothing
/// that was forgotten can be granted again. A disk that is slow is so in each try: the window grows with them, to
/// 40 s.
const TRIES: u64 = 8;

/// With all rules no window has more calls than allowed, and without this one some window has.
async fn is_needed(off: Rules, most: impl AsyncFn(Rules, UsedLimit) -> u64) {
    let with = most(Rules::default(), OUTLASTS_FAULTS).await;
    assert!(with <= LIMIT, "with the rule: {with} of {LIMIT}");
    some_window_is_exceeded(async |limit| most(off, limit).await).await;
}

/// Without a rule, some window has more calls than allowed.
pub(crate) async fn some_window_is_exceeded(most: impl AsyncFn(UsedLimit) -> u64) {
    let mut without = 0;
    for tried in 0..TRIES {
        without = most(UsedLimit {
            window: Span(OUTLASTS_FAULTS.window.0 * (1 + tried)),
            ..OUTLASTS_FAULTS
        })
        .await;
        if without > LIMIT {
            return;
        }
    }
    panic!("without the rule: {without} of {LIMIT}");
}

fn nothing_closes_after_a_promotion() -> Rules {
    Rules {
        close_after_promotion: false,
        ..Rules::default()
    }
}

/// Uses the limit up, lets this happen, and goes on until as much was used again.
async fn most_around(limit: UsedLimit, ledgers: &[Ledger], fault: impl AsyncFnOnce(&Load)) -> u64 {
    let load = Load::of(limit, ledgers);
    load.more(1).await;
    fault(&load).await;
    load.more(LIMIT).await;
    load.most_in_a_window()
}

#[tokio::test]
async fn without_closing_a_killed_redis_grants_a_window_twice() {
    is_needed(nothing_closes_after_a_promotion(), async |rules, limit| {
        let mut redis = Redis::on(RedisServer::start(&[]), rules);
        let ledgers: Vec<Ledger> = (0..3).map(|_| redis.open_at(&redis.server.url())).collect();
        use_before(&ledgers).await;
        most_around(limit, &ledgers, async |load| {
            load.more(LIMIT - 1).await;
            redis.server.kill();
            redis.server.restart();
        })
        .await
    })
    .await;
}

/// A master whose replica follows it through a proxy.
pub(crate) async fn with_lagging_replica(rules: Rules) -> (Redis, RedisServer, FaultProxy) {
    let redis = Redis::on(RedisServer::start(&[]), rules);
    let replica = RedisServer::start(&[]);
    let proxy = FaultProxy::start(redis.server.address(), 1).await.unwrap();
    let port = proxy.address().port();
    send(&replica, &format!("REPLICAOF 127.0.0.1 {port}"));
    let up = "master_link_status:up";
    let state = || replica.command(&["INFO", "replication"]).unwrap();
    while !state().contains(up) {
        pause(Duration::from_millis(20)).await;
    }
    (redis, replica, proxy)
}

/// How much of what was written it has. The proxy between them runs on this thread, so a command that waits
/// for replicas would wait for ever.
pub(crate) fn offset(server: &RedisServer) -> u64 {
    let info = server.command(&["INFO", "replication"]).unwrap();
    let offset = info
        .lines()
        .find_map(|line| line.strip_prefix("master_repl_offset:"));
    offset.unwrap().trim().parse().unwrap()
}

/// The replica takes over the master's address.
pub(crate) fn promote(redis: &mut Redis, replica: &mut RedisServer) {
    let address = redis.server.address();
    redis.server.kill();
    send(replica, "REPLICAOF NO ONE");
    replica.move_to(address);
}

#[tokio::test]
async fn without_closing_a_replica_that_is_behind_grants_a_window_twice() {
    is_needed(nothing_closes_after_a_promotion(), async |rules, limit| {
        let (mut redis, mut replica, proxy) = with_lagging_replica(rules).await;
        let ledgers: Vec<Ledger> = (0..3).map(|_| redis.open_at(&redis.server.url())).collect();
        use_before(&ledgers).await;
        while offset(&redis.server) != offset(&replica) {
            pause(Duration::from_millis(20)).await;
        }
        most_around(limit, &ledgers, async |load| {
            proxy.update(|faults| faults.down.flow = Flow::Drop);
            load.more(LIMIT - 1).await;
            promote(&mut redis, &mut replica);
        })
        .await
    })
    .await;
}

#[tokio::test]
async fn without_closing_a_standby_that_is_behind_grants_a_window_twice() {
    is_needed(nothing_closes_after_a_promotion(), async |rules, limit| {
        let mut server = PostgresServer::start(&[]);
        let proxy = FaultProxy::start(server.address(), 1).await.unwrap();
        let standby = server.standby_through(proxy.address());
        wait_until_followed(&server).await;
        let ledgers = [0; 3].map(|_| open_either(&server, &standby, rules));
        use_before(&ledgers).await;
        // What it is behind with is what comes last.
        wait_until_followed(&server).await;
        most_around(limit, &ledgers, async |load| {
            proxy.update(|faults| faults.down.flow = Flow::Drop);
            load.more(LIMIT - 1).await;
            server.kill();
            standby.promote();
        })
        .await
    })
    .await;
}

/// A ledger on whichever of both accepts writes.
pub(crate) fn open_either(
    server: &PostgresServer,
    standby: &PostgresServer,
    rules: Rules,
) -> Ledger {
    let (one, two) = (server.address(), standby.address());
    let url = format!("postgres://postgres@{one},{two}/postgres?target_session_attrs=read-write");
    open_at(&url, rules)
}

/// A ledger on a Postgres server, whose owners keep to these rules.
pub(crate) fn open_at(url: &str, rules: Rules) -> Ledger {
    let options = NetworkedOptions {
        rules,
        ..NetworkedOptions::default()
    };
    let address = PostgresAddress::parse(url).unwrap();
    Ledger::postgres(&address, Clock::System, &options)
}

pub(crate) async fn pause(time: Duration) {
    drop(tokio::time::timeout(time, std::future::pending::<()>()).await);
}

/// The standby has everything that was committed.
pub(crate) async fn wait_until_followed(server: &PostgresServer) {
    let follows =
        "SELECT count(*) FROM pg_stat_replication WHERE replay_lsn >= pg_current_wal_lsn()";
    for _ in 0..600 {
        if server.sql("postgres", follows) == "1" {
            return;
        }
        pause(Duration::from_millis(20)).await;
    }
    panic!("the standby does not follow");
}

/// Waits until so many permits are used.
pub(crate) async fn wait_until_used(used: &mut tokio::sync::watch::Receiver<u64>, permits: u64) {
    let enough = used.wait_for(|used| *used >= permits);
    let enough = tokio::time::timeout(Duration::from_secs(30), enough).await;
    assert!(enough.is_ok(), "not {permits} permits are used");
}

/// A node whose rows are as old as those of the replica writes on the new master before it has heard of the promotion.
#[tokio::test]
async fn without_the_epoch_in_the_comparison_old_rows_are_written_on_a_new_master() {
    let off = Rules {
        compare_epoch: false,
        ..Rules::default()
    };
    is_needed(off, async |rules, limit| {
        let (mut redis, mut replica, proxy) = with_lagging_replica(rules).await;
        let open = |redis: &Redis| Owner::of(&redis.open_at(&redis.server.url()));
        let (mut old, mut new) = (open(&redis), open(&redis));
        // Nobody waits for its end, so it may be long.
        let rule = sliding(LIMIT, Span(6 * limit.window.0));
        let first = take_many(&mut old, &rule, 5).await;
        old.wait_settled().await;
        while offset(&redis.server) != offset(&replica) {
            pause(Duration::from_millis(20)).await;
        }
        proxy.update(|faults| faults.down.flow = Flow::Drop);
        let second = take_many(&mut new, &rule, LIMIT).await;
        new.wait_settled().await;
        assert_eq!(first + second, LIMIT);
        promote(&mut redis, &mut replica);
        first + second + take_many(&mut old, &rule, LIMIT).await
    })
    .await;
}

/// So many permits at once, which are used.
async fn take_many(owner: &mut Owner, rule: &Arc<Rule>, permits: u64) -> u64 {
    let mut events = owner.ledger.events();
    loop {
        let mut asks = Vec::new();
        for _ in 0..permits {
            asks.push(owner.ask(smallvec![term("x", rule)]));
        }
        let Ok(offered) = owner.ledger.offer(asks.clone()).await else {
            drop(tokio::time::timeout(Duration::from_millis(20), events.next()).await);
            continue;
        };
        let mut granted = 0;
        for (ask, (_, verdict)) in asks.into_iter().zip(offered.verdicts) {
            if let Verdict::Go { marks } = verdict {
                granted += 1;
                owner.settle(&Permit { ask, marks }, arrived());
            }
        }
        return granted;
    }
}
