//! Bounds of the table: keys, plans, asks, the sweep, and rejections when it is full.

use std::time::Duration;

use tollgate_guard::{
    ASKS_MAX, Ask, GuardPlan, GuardTable, LIMITS_MAX, Outcome, PlanError, Seed, Tick, TickClock,
    TooManyAsks,
};

use crate::behaviour::{DAY, IP, MINUTE, SECOND, limit};

fn table(keys_max: usize) -> GuardTable {
    GuardTable::new(keys_max, Seed([1, 2]))
}

fn plan(table: &GuardTable) -> GuardPlan {
    table.plan(&IP).expect("C3's class")
}

fn at(after: Duration) -> Tick {
    Tick::default().after(after)
}

#[test]
fn a_full_table_makes_new_keys_share_one_bucket() {
    let table = table(100);
    let (plan, keys, now) = (plan(&table), table.keys("ip"), at(SECOND));
    for who in 0..100 {
        assert!(table.take(keys.number(who), &plan, now).is_granted());
    }
    let strangers =
        (100..1_100).filter(|&who| table.take(keys.number(who), &plan, now).is_granted());
    assert_eq!(
        strangers.count(),
        5,
        "a thousand strangers have one burst of 5 together"
    );
    assert_eq!(table.len(), 101, "100 keys and the shared bucket");
    assert_eq!(table.overflowed(), 1_000);
}

#[test]
fn a_full_table_evicts_no_key_in_debt() {
    let table = table(100);
    let (plan, keys, now) = (plan(&table), table.keys("ip"), at(SECOND));
    let spend = |who| {
        table.take_cost(
            Ask {
                key: keys.number(who),
                plan: &plan,
                cost: 5,
            },
            now,
        )
    };
    assert!((0..100).all(|who| spend(who).is_granted()));
    for who in 100..5_000 {
        table.take(keys.number(who), &plan, now);
        table.sweep(now, 100);
    }
    assert!((0..100).all(|who| !spend(who).is_granted()));
}

#[test]
fn a_full_table_makes_room_where_a_key_is_idle() {
    let table = table(100);
    let (plan, keys) = (plan(&table), table.keys("ip"));
    for who in 0..100 {
        table.take(keys.number(who), &plan, at(SECOND));
    }
    // A minute later all of them are full again. Room is found shard by shard, so some new keys
    // still share; the table never holds more than its bound, and shares less and less.
    let later = at(10 * MINUTE);
    for who in 100..2_000 {
        table.take(keys.number(who), &plan, later);
        assert!(table.len() <= 101);
    }
    assert!(table.overflowed() < 1_900, "{} shared", table.overflowed());
}

#[test]
fn a_rejected_new_key_takes_no_slot() {
    let table = table(100);
    let (plan, keys, now) = (plan(&table), table.keys("ip"), at(SECOND));
    let all = Ask {
        key: table.keys("api").number(0),
        plan: &plan,
        cost: 5,
    };
    assert!(table.take_cost(all, now).is_granted());
    for who in 0..1_000 {
        let asks = [
            Ask {
                key: keys.number(who),
                plan: &plan,
                cost: 1,
            },
            Ask { cost: 1, ..all },
        ];
        assert!(!table.take_all(&asks, now).expect("two asks").is_granted());
    }
    assert_eq!(table.len(), 1);
}

#[test]
fn two_new_keys_of_one_decision_share_one_bucket_in_a_full_table() {
    let table = table(1);
    let (plan, keys, now) = (plan(&table), table.keys("ip"), at(SECOND));
    table.take(keys.number(0), &plan, now);
    let asks = [
        Ask {
            key: keys.number(1),
            plan: &plan,
            cost: 2,
        },
        Ask {
            key: keys.number(2),
            plan: &plan,
            cost: 3,
        },
    ];
    assert_eq!(
        table.take_all(&asks, now),
        Ok(Outcome::Granted { remaining: 0 })
    );
    assert!(!table.take(keys.number(3), &plan, now).is_granted());
}

#[test]
fn a_sweep_forgets_only_what_is_full_again() {
    let table = table(10_000);
    let (plan, keys) = (plan(&table), table.keys("ip"));
    for who in 0..5_000 {
        let cost = i64::try_from(who % 5).expect("small") + 1;
        table.take_cost(
            Ask {
                key: keys.number(who),
                plan: &plan,
                cost,
            },
            at(SECOND),
        );
    }
    // Costs 1 and 2 are back after 12 s; 3, 4 and 5 are not.
    let swept = table.sweep(at(Duration::from_secs(14)), usize::MAX);
    assert_eq!((swept.removed, table.len()), (2_000, 3_000));
    assert_eq!(swept.shards, table.shards());
    let swept = table.sweep(at(MINUTE), usize::MAX);
    assert_eq!((swept.removed, table.len()), (3_000, 0));
}

#[test]
fn a_sweep_does_no_more_than_it_was_asked_to() {
    let table = table(10_000);
    let (plan, keys) = (plan(&table), table.keys("ip"));
    for who in 0..5_000 {
        table.take(keys.number(who), &plan, at(SECOND));
    }
    let mut calls = 0;
    while !table.is_empty() {
        let swept = table.sweep(at(DAY), 100);
        assert!(swept.visited <= 100);
        calls += 1;
        assert!(calls < 1_000, "a sweep makes progress");
    }
}

#[test]
fn impossible_plans_are_rejected_with_a_hint() {
    let table = table(10);
    let message = |limits: &[_]| table.plan(limits).expect_err("refused").to_string();
    assert!(message(&[]).contains("at least one limit"));
    assert!(message(&[IP[0]; LIMITS_MAX + 1]).contains("split it"));
    assert!(message(&[limit(1, Duration::ZERO, 1)]).contains("longer period"));
    assert!(message(&[limit(1, 400 * DAY, u32::MAX)]).contains("smaller burst"));
    assert_eq!(table.plan(&[]), Err(PlanError::Empty));
}

#[test]
fn the_same_limits_are_the_same_plan() {
    let table = table(10);
    assert_eq!(plan(&table), plan(&table));
    assert_ne!(
        plan(&table),
        table.plan(&[limit(10, MINUTE, 6)]).expect("valid")
    );
}

#[test]
fn too_many_asks_are_an_error_and_charge_nothing() {
    let table = table(10);
    let plan = plan(&table);
    let ask = Ask {
        key: table.keys("ip").number(1),
        plan: &plan,
        cost: 1,
    };
    let result = table.take_all(&[ask; ASKS_MAX + 1], at(SECOND));
    assert_eq!(result, Err(TooManyAsks(ASKS_MAX + 1)));
    assert!(table.is_empty());
    assert!(
        table
            .take_all(&[], at(SECOND))
            .expect("no asks")
            .is_granted()
    );
}

#[test]
fn a_new_limit_in_a_plan_starts_full_and_the_old_ones_go_on() {
    let table = table(10);
    let key = table.keys("ip").number(1);
    let old = plan(&table);
    table.take_cost(
        Ask {
            key,
            plan: &old,
            cost: 5,
        },
        at(SECOND),
    );
    let new = table
        .plan(&[limit(2, SECOND, 2), limit(10, MINUTE, 5)])
        .expect("valid");
    let view = table.peek(key, &new, at(SECOND));
    let tokens: Vec<u64> = view
        .buckets()
        .iter()
        .map(|bucket| bucket.micro_tokens)
        .collect();
    assert_eq!(tokens, [2_000_000, 0]);
}

#[test]
fn a_decision_returns_the_buckets_it_saw() {
    let table = table(10);
    let (plan, key) = (plan(&table), table.keys("ip").number(1));
    let mut views = [Default::default()];
    let ask = [Ask {
        key,
        plan: &plan,
        cost: 2,
    }];
    let now = at(SECOND);
    table.take_and_view(&ask, now, &mut views).expect("one ask");
    let bucket = views[0].buckets()[0];
    assert_eq!(
        (bucket.micro_tokens, bucket.full_in),
        (3_000_000, Duration::from_secs(12))
    );
    assert_eq!((views[0].remaining(), views[0].last_refill), (3, now));
}

#[test]
fn nothing_panics_at_the_ends_of_time_and_cost() {
    let table = table(10);
    let slow = table
        .plan(&[limit(1, 365 * DAY, 70)])
        .expect("70 years to fill");
    let fast = table
        .plan(&[limit(u32::MAX, Duration::from_nanos(1), u32::MAX)])
        .expect("fast");
    let keys = table.keys("ip");
    for nanos in [0, 1, 1 << 61, u64::MAX, 0] {
        for plan in [&slow, &fast] {
            for cost in [i64::MIN, -1, 0, 1, i64::from(u32::MAX), i64::MAX] {
                let ask = Ask {
                    key: keys.number(1),
                    plan,
                    cost,
                };
                table.take_cost(ask, Tick::from_nanos(nanos));
            }
        }
        table.sweep(Tick::from_nanos(nanos), 1_000);
    }
}

#[test]
fn a_real_clock_drives_the_table() {
    let clock = TickClock::new();
    let table = table(10);
    let day = table.plan(&[limit(1, DAY, 2)]).expect("valid");
    let key = table.keys("ip").number(1);
    let granted = (0..5).filter(|_| table.take(key, &day, clock.now()).is_granted());
    assert_eq!(granted.count(), 2);
}

#[test]
fn debug_output_shows_no_key_and_no_seed() {
    let table = GuardTable::new(10, Seed([0xdead_beef, 0xfeed_f00d]));
    let key = table.keys("ip").key(b"203.0.113.7");
    let shown = format!(
        "{table:?} {key:?} {:?} {:?}",
        table.keys("ip"),
        Seed([1, 2])
    );
    assert!(
        !shown.contains("203") && !shown.to_lowercase().contains("beef"),
        "{shown}"
    );
    assert!(!shown.contains(&0xdead_beef_u64.to_string()));
}
