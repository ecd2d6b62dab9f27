//! Guards in a real Redis: the suite of all backends, and random runs against the guard table.

#[path = "../../../guard/tests/it/behaviour.rs"]
mod behaviour;

use std::time::Duration;

use tokio::runtime::Runtime;
use tollgate_guard::{GuardTable, Limit, Outcome, Seed, Tick};
use tollgate_ledger::{Clock, Ledger};
use tollgate_sim::test_servers::RedisServer;

use self::behaviour::{Ask, Decision, Guards as Backend, guard_behaviours};
use super::shared::{SharedAsk, SharedGuards, SharedReply, TAKE};
use super::shared_bucket::SharedPace;
use super::shared_deciding::denied_ask;
use super::*;

/// The time of the server at the start of a test, in microseconds: 2026.
const START: Span = Span(1_772_323_200_000_000);

/// A Redis, with a time that the test chooses.
struct Shared {
    guards: SharedGuards,
    runtime: Runtime,
    server: RedisServer,
}

fn shared() -> Shared {
    let server = RedisServer::start(&[]);
    let text = format!("guard_store: {}\nnodes: 2\n", server.url());
    let config = super::tests::config(&text);
    let ledger = Ledger::memory(Clock::System);
    let guards = SharedGuards::of(&config, &ledger, &Events::default()).expect("a store");
    let now = "{table.remove(ARGV, #ARGV - 1), table.remove(ARGV)}";
    let script = TAKE.replace("redis.call('TIME')", now);
    assert_ne!(script, TAKE, "the script reads the clock once");
    Shared {
        guards: guards.with_script(&script),
        runtime: tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime"),
        server,
    }
}

impl Shared {
    fn decide(&self, asks: &[SharedAsk], at: Duration) -> SharedReply {
        let at = START + Span::from(at);
        let taken = self.guards.take_at(asks, Some(at));
        self.runtime.block_on(taken).expect("the server runs")
    }
}

fn ask(who: &str, number: usize, limit: &Limit, cost: i64) -> SharedAsk {
    let period = Span::from(limit.period);
    SharedAsk {
        key: format!("ratelimit:{who}:{number}").into_bytes().into(),
        pace: SharedPace::new(limit.limit.get(), period, limit.burst.get()).expect("a pace"),
        cost,
        is_enforced: true,
    }
}

impl Backend for Shared {
    const GRAIN: Duration = Duration::from_micros(1);

    fn take(&mut self, asks: &[Ask<'_>], at: Duration) -> Decision {
        // A key with several limits has several buckets here.
        let of = |(number, one): (usize, &Ask<'_>)| {
            let limits = one.limits.iter().enumerate();
            limits
                .map(|(at, limit)| (number, at, ask(one.who, at, limit, one.cost)))
                .collect::<Vec<_>>()
        };
        let all: Vec<_> = asks.iter().enumerate().flat_map(of).collect();
        let wanted: Vec<SharedAsk> = all
            .iter()
            .map(|(.., ask)| SharedAsk {
                // The suite means by cost 0 a look, which denies nothing.
                is_enforced: ask.cost != 0,
                ..ask.clone()
            })
            .collect();
        let reply = self.decide(&wanted, at);
        match denied_ask(&wanted, &reply) {
            None => {
                assert!(!reply.is_denied, "{reply:?}");
                let least = reply.asks.iter().map(|view| view.after.tokens).min();
                Decision::Granted {
                    remaining: u32::try_from(least.expect("a count")).expect("a small one"),
                }
            }
            Some((place, None)) => Decision::Never { ask: all[place].0 },
            Some((place, Some(wait))) => {
                assert!(reply.is_denied, "{reply:?}");
                Decision::Rejected {
                    retry_in: wait.into(),
                    ask: all[place].0,
                    limit: all[place].1,
                }
            }
        }
    }

    fn peek(&mut self, who: &str, limits: &[Limit], at: Duration) -> Vec<u64> {
        let looks = limits.iter().enumerate().map(|(number, limit)| SharedAsk {
            is_enforced: false,
            ..ask(who, number, limit, 0)
        });
        let looks: Vec<SharedAsk> = looks.collect();
        let reply = self.decide(&looks, at);
        let levels = looks.iter().zip(&reply.asks);
        levels
            .map(|(look, view)| look.pace.micro_tokens(view.before))
            .collect()
    }
}

guard_behaviours!(shared;
    c3_a_class_gives_its_burst_and_then_its_rate,
    c1_polling_often_loses_no_fraction,
    c1_fractions_add_up_exactly,
    c1_a_slow_bucket_is_not_refilled_by_forgetting,
    c2_looking_takes_nothing_and_shows_fractions,
    c11_a_rejection_spends_nothing_anywhere,
    c11_a_grant_spends_everywhere,
    c11_a_key_named_twice_pays_twice,
    limits_of_one_key_are_decided_together,
    the_retry_time_of_a_rejection_is_exact,
    a_cost_above_the_burst_is_never_granted,
    cost_zero_looks_and_a_negative_cost_puts_back,
    a_clock_that_goes_back_frees_nothing,
    a_clock_that_stepped_back_blocks_for_a_bounded_time,
    callers_and_classes_are_apart,
    a_change_of_limits_keeps_the_tokens_at_hand,
    switching_limits_back_and_forth_gives_nothing,
);

/// Limits of every size that a guard may have.
fn any_limit(dice: &mut fastrand::Rng) -> Limit {
    let period = match dice.u8(..5) {
        0 => Duration::from_micros(dice.u64(1..1_000)),
        1 => Duration::from_millis(dice.u64(1..5_000)),
        2 => Duration::from_secs(60),
        3 => Duration::from_secs(dice.u64(1..86_400)),
        _ => Duration::from_secs(86_400),
    };
    let number = |dice: &mut fastrand::Rng| match dice.u8(..4) {
        0 => dice.u32(1..4),
        1 => dice.u32(1..100),
        2 => dice.u32(1..100_000),
        _ => dice.u32(1..u32::MAX),
    };
    behaviour::limit(number(dice), period, number(dice))
}

/// C1: random decisions of several keys are those of the guard table to the last microsecond, for all limits.
#[test]
fn c1_random_decisions_are_those_of_the_guard_table() {
    let redis = shared();
    let mut dice = fastrand::Rng::with_seed(15);
    for world in 0..60 {
        let table = GuardTable::new(1_000, Seed([world, 3]));
        let limits: Vec<Limit> = (0..3).map(|_| any_limit(&mut dice)).collect();
        let plans: Vec<_> = limits.iter().map(|one| table.plan(&[*one]).ok()).collect();
        let mut at = Duration::from_secs(dice.u64(1..1_000));
        for step in 0..40 {
            let numbers = (0..dice.usize(1..4)).map(|_| dice.usize(..3));
            let numbers: Vec<usize> = numbers.collect();
            let costs: Vec<i64> = numbers
                .iter()
                .map(|number| match dice.u8(..8) {
                    0 => i64::from(limits[*number].burst.get()),
                    1 => -i64::from(dice.u32(1..5)),
                    _ => i64::from(dice.u32(1..4)),
                })
                .collect();
            // Tokens that are put back come after all others there, and in their place in the table.
            let costs: Vec<i64> = match costs.iter().any(|cost| *cost < 0) && costs.len() > 1 {
                true => costs.iter().map(|cost| cost.abs()).collect(),
                false => costs,
            };
            let asked = numbers.iter().zip(&costs);
            let local: Option<Vec<tollgate_guard::Ask<'_>>> = asked
                .clone()
                .map(|(number, cost)| {
                    Some(tollgate_guard::Ask {
                        key: table.keys("k").key(&[u8::try_from(*number).unwrap()]),
                        plan: plans[*number].as_ref()?,
                        cost: *cost,
                    })
                })
                .collect();
            // Limits that take more than 73 years to fill are none of the table's.
            let Some(local) = local else { continue };
            let now = Tick::default().after(at);
            let outcome = table.take_all(&local, now).unwrap();
            let wanted: Vec<SharedAsk> = asked
                .map(|(number, cost)| ask(&format!("{world}"), *number, &limits[*number], *cost))
                .collect();
            let reply = redis.decide(&wanted, at);
            let context = format!("world {world}, step {step}: {wanted:?} {reply:?}");
            let decided = match (reply.is_denied, denied_ask(&wanted, &reply)) {
                (false, _) => None,
                (true, Some((place, wait))) => Some((place, wait)),
                (true, None) => panic!("a denial without a reason: {context}"),
            };
            let expected = match outcome {
                Outcome::Granted { .. } => None,
                Outcome::Never { ask, .. } => Some((usize::from(ask), None)),
                Outcome::Rejected {
                    ask, retry_in_ns, ..
                } => {
                    let wait = Span(retry_in_ns.get().div_ceil(1_000));
                    Some((usize::from(ask), Some(wait)))
                }
            };
            assert_eq!(decided, expected, "{context}");
            for (one, (local, view)) in wanted.iter().zip(local.iter().zip(&reply.asks)) {
                let seen = table.peek(local.key, local.plan, now);
                let seen = seen.buckets()[0].micro_tokens;
                assert_eq!(one.pace.micro_tokens(view.after), seen, "{context}");
            }
            let wait = decided.and_then(|(_, wait)| wait).map(Duration::from);
            at += match dice.u8(..4) {
                0 => wait.unwrap_or_default().min(Duration::from_secs(86_400)),
                1 => Duration::from_micros(dice.u64(..50)),
                2 => Duration::from_millis(dice.u64(..2_000)),
                _ => limits[numbers[0]].period / limits[numbers[0]].limit.get().min(7),
            };
            at = Duration::from_micros(u64::try_from(at.as_micros()).unwrap());
        }
    }
}

/// C1: a bucket in Redis expires after it is full, not before, and a bucket that is only looked at is not stored.
#[test]
fn c1_keys_expire_after_they_are_full() {
    let redis = shared();
    let slow = behaviour::limit(1, Duration::from_secs(3_600), 24);
    redis.decide(&[ask("slow", 0, &slow, 24)], Duration::ZERO);
    let expiry = redis.server.command(&["PTTL", "ratelimit:slow:0"]).unwrap();
    let expiry: u64 = expiry.trim().trim_start_matches(':').parse().unwrap();
    assert!(
        (86_400_000 - 5_000..86_402_000).contains(&expiry),
        "{expiry} ms"
    );
    let look = SharedAsk {
        is_enforced: false,
        ..ask("slow", 1, &slow, 0)
    };
    redis.decide(&[look], Duration::ZERO);
    redis.decide(&[ask("slow", 1, &slow, -3)], Duration::ZERO);
    let stored = redis.server.command(&["EXISTS", "ratelimit:slow:1"]);
    assert_eq!(stored.unwrap(), ":0\r\n");
}

/// C3: the document's program reads and writes the same hashes: whole tokens, and seconds with a fraction.
#[test]
fn c3_buckets_are_hashes_that_the_document_reads_and_writes() {
    let redis = shared();
    let ip = behaviour::IP[0];
    let take = |at| redis.decide(&[ask("ip", 0, &ip, 1)], at);
    take(Duration::from_micros(1_500_000));
    let get = |field| redis.server.command(&["HGET", "ratelimit:ip:0", field]);
    assert_eq!(get("tokens").unwrap(), "$1\r\n4\r\n");
    assert_eq!(get("last_refill").unwrap(), "$17\r\n1772323201.500000\r\n");
    // As its script writes them: a float of Python, and no other field.
    let write = ["DEL", "ratelimit:ip:0"];
    redis.server.command(&write).unwrap();
    let write = [
        "HSET",
        "ratelimit:ip:0",
        "tokens",
        "0",
        "last_refill",
        "1772323201.5000002",
    ];
    redis.server.command(&write).unwrap();
    assert!(take(Duration::from_micros(7_499_999)).is_denied);
    assert!(!take(Duration::from_micros(7_500_000)).is_denied);
}

/// A key that somebody else wrote is neither an error nor a full bucket.
#[test]
fn a_key_with_other_content_counts_as_empty() {
    let redis = shared();
    let ip = behaviour::IP[0];
    let mut at = Duration::ZERO;
    for content in [
        &["SET", "ratelimit:ip:0", "x"][..],
        &[
            "HSET",
            "ratelimit:ip:0",
            "tokens",
            "nan",
            "last_refill",
            "1",
        ],
        &[
            "HSET",
            "ratelimit:ip:0",
            "tokens",
            "1e400",
            "last_refill",
            "x",
        ],
        &[
            "HSET",
            "ratelimit:ip:0",
            "tokens",
            "-5",
            "last_refill",
            "1772323201",
        ],
        &["HSET", "ratelimit:ip:0", "last_refill", "1772323201"],
    ] {
        redis.server.command(&["DEL", "ratelimit:ip:0"]).unwrap();
        redis.server.command(content).unwrap();
        let reply = redis.decide(&[ask("ip", 0, &ip, 1)], at);
        assert!(reply.is_denied, "{content:?}: {reply:?}");
        at += Duration::from_secs(60);
    }
}
