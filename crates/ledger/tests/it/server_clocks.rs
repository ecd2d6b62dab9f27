//! Servers whose host has another clock: it steps while owners use a limit, or the next master's is
//! wrong. The provider's own log judges.

use tollgate_core::replica::Rules;
use tollgate_ledger::Ledger;
use tollgate_sim::test_servers::{PostgresServer, RedisServer};

use crate::load::{LIMIT, Load, OUTLASTS_FAULTS, use_before};
use crate::redis_faults::send;
use crate::redis_server::Redis;
use crate::rules_on_servers::{open_at, some_window_is_exceeded};

/// Forth and back, by more than a window and by less.
const STEPS: [&str; 5] = ["+4s", "+0s", "+100s", "+98s", "-60s"];

/// The clock steps whenever the limit is used up.
async fn use_while_it_steps(ledgers: &[Ledger], step: impl Fn(&str)) -> u64 {
    let load = Load::of(OUTLASTS_FAULTS, ledgers);
    load.more(LIMIT).await;
    for offset in STEPS {
        step(offset);
        load.more(LIMIT).await;
    }
    load.most_in_a_window()
}

async fn most_while_redis_steps(rules: Rules) -> u64 {
    let redis = Redis::on(RedisServer::start_on_clock("+0s", &[]), rules);
    let ledgers: Vec<Ledger> = (0..3).map(|_| redis.open_at(&redis.server.url())).collect();
    use_while_it_steps(&ledgers, |offset| redis.server.step_clock(offset)).await
}

async fn most_while_postgres_steps(rules: Rules) -> u64 {
    let server = PostgresServer::start_on_clock("+0s");
    let ledgers = [0; 3].map(|_| open_at(&server.url("postgres"), rules));
    use_while_it_steps(&ledgers, |offset| server.step_clock(offset)).await
}

fn steps_are_believed() -> Rules {
    Rules {
        notice_steps: false,
        compare_time: false,
        ..Rules::default()
    }
}

#[tokio::test]
async fn a_redis_whose_clock_steps_forth_and_back_keeps_the_limit() {
    let most = most_while_redis_steps(Rules::default()).await;
    assert!(most <= LIMIT, "{most} of {LIMIT}");
}

#[tokio::test]
async fn a_redis_whose_steps_are_believed_exceeds_the_limit() {
    some_window_is_exceeded(async |_| most_while_redis_steps(steps_are_believed()).await).await;
}

#[tokio::test]
async fn a_postgres_whose_clock_steps_forth_and_back_keeps_the_limit() {
    let most = most_while_postgres_steps(Rules::default()).await;
    assert!(most <= LIMIT, "{most} of {LIMIT}");
}

#[tokio::test]
async fn a_postgres_whose_steps_are_believed_exceeds_the_limit() {
    some_window_is_exceeded(async |_| most_while_postgres_steps(steps_are_believed()).await).await;
}

/// The replica's host has another clock.
async fn a_replica_on_another_clock_takes_over(clock: &str) {
    let mut redis = Redis::start();
    let mut replica = RedisServer::start_on_clock(clock, &[]);
    let seconds = |server: &RedisServer| -> i64 {
        let reply = server.command(&["TIME"]).unwrap();
        reply.lines().nth(2).unwrap().parse().unwrap()
    };
    let differs = seconds(&replica) - seconds(&redis.server);
    assert!(differs.abs() >= 25, "{differs} s");
    let port = redis.server.address().port();
    send(&replica, &format!("REPLICAOF 127.0.0.1 {port}"));
    while redis.server.command(&["WAIT", "1", "1000"]).unwrap() != ":1\r\n" {}
    let ledgers: Vec<Ledger> = (0..3).map(|_| redis.open_at(&redis.server.url())).collect();
    use_before(&ledgers).await;
    let load = Load::of(OUTLASTS_FAULTS, &ledgers);
    load.more(LIMIT).await;
    redis.server.kill();
    send(&replica, "REPLICAOF NO ONE");
    replica.move_to(redis.server.address());
    load.more(2 * LIMIT).await;
    load.judge();
}

#[tokio::test]
async fn a_redis_replica_that_is_30_s_ahead_and_takes_over_keeps_the_limit() {
    a_replica_on_another_clock_takes_over("+30s").await;
}

#[tokio::test]
async fn a_redis_replica_that_is_30_s_behind_and_takes_over_keeps_the_limit() {
    a_replica_on_another_clock_takes_over("-30s").await;
}
