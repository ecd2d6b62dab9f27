//! Each rule of the protocol for networked stores, turned off: limits are exceeded, quota is lost
//! or owners starve. With all rules on the same worlds are clean.

use tollgate_core::limit::Rule;
use tollgate_core::replica::Rules;
use tollgate_core::time::{Micros, Span};
use tollgate_sim::checker::Priority;
use tollgate_sim::governed::{Governed, GovernedPlan};
use tollgate_sim::latency::Latency;
use tollgate_sim::row_store::{Promotion, StorePlan};
use tollgate_sim::rule::{CallId, Cost};
use tollgate_sim::store_table::jain;
use tollgate_sim::world::{Call, NodeId, Setup, World};

use crate::networked::saturated;

const SECOND: Span = Span::from_secs(1);
const SPEC: &str = "sliding 20/1s";
const LENGTH: Span = Span::from_secs(8);
const NODES: usize = 4;
/// Longer than any of these worlds.
const LONG: Span = Span::from_secs(600);

fn rule() -> Rule {
    Rule::sliding(20, SECOND).expect("sane")
}

/// Violations of several worlds with endless demand.
fn violations(rules: Rules, awkward: impl Fn(&mut StorePlan)) -> u64 {
    violations_of(NODES, rules, awkward)
}

fn violations_of(nodes: usize, rules: Rules, awkward: impl Fn(&mut StorePlan)) -> u64 {
    let one = |seed: u64| {
        let mut store = StorePlan::new(seed, Span::from_millis(2));
        store.rules = rules;
        awkward(&mut store);
        let world = saturated(&rule(), SPEC, store, nodes, LENGTH);
        assert!(world.checker().accepted() > 20, "the world stands still");
        world.checker().violations() as u64
    };
    (0..8).map(one).sum()
}

#[track_caller]
fn is_needed(off: Rules, awkward: impl Fn(&mut StorePlan)) {
    assert_eq!(violations(Rules::default(), &awkward), 0, "with the rule");
    assert!(violations(off, &awkward) > 0, "without the rule");
}

fn promotion(behind: Span, ahead_us: i64) -> impl Fn(&mut StorePlan) {
    move |store: &mut StorePlan| {
        let at = |secs| Promotion {
            at: Micros(0) + Span::from_millis(secs),
            behind,
            ahead_us,
            is_wiped: false,
        };
        store.promotions = vec![at(1_090), at(5_200)];
    }
}

fn step(by_us: i64) -> impl Fn(&mut StorePlan) {
    move |store: &mut StorePlan| {
        let steps = [1_500, 3_100, 5_300].map(|at| (Micros(at * 1_000), by_us));
        store.clock.wall_steps = steps.to_vec();
    }
}

#[test]
fn one_bound_of_time_for_both_exceeds_the_limit() {
    let off = Rules {
        two_bounds: false,
        ..Rules::default()
    };
    // The lower bound is as far off as the fastest reply so far, and that differs between nodes.
    let total = |rules: Rules| -> usize {
        let one = |seed| {
            let mut store = StorePlan::new(seed, Span::from_millis(2));
            store.rules = rules;
            (store.late_ppm, store.late) = (700_000, Span::from_millis(400));
            let calls = [(100, 1, 1), (1_000, 0, 20), (1_900, 1, 20)];
            bursts(store, 2, (LONG, LONG), &calls)
                .checker()
                .violations()
        };
        (0..60).map(one).sum()
    };
    assert_eq!(total(Rules::default()), 0);
    assert!(total(off) > 0);
}

#[test]
fn trusting_steps_of_the_clock_exceeds_the_limit() {
    let off = Rules {
        notice_steps: false,
        compare_time: false,
        ..Rules::default()
    };
    is_needed(off, step(700_000));
    is_needed(off, step(60_000_000));
}

/// The store alone: its comparison rejects who has not noticed a step, but rows that were written before are taken as they
/// are.
#[test]
fn trusting_stamps_exceeds_the_limit_although_the_store_compares_its_time() {
    let off = Rules {
        notice_steps: false,
        ..Rules::default()
    };
    is_needed(off, step(700_000));
}

/// The nodes alone: between a step and the reply that tells of it, a node writes by bounds that no longer hold.
#[test]
fn a_store_that_does_not_compare_its_time_exceeds_the_limit() {
    let off = Rules {
        compare_time: false,
        ..Rules::default()
    };
    is_needed(off, step(60_000_000));
    is_needed(off, step(-700_000));
}

/// A step is not waited out: rows that were written before it are moved by it, once. Three of them
/// in eight windows cost next to nothing. Rows that came with a wake-up were moved to the present
/// instead, which cost up to a window each time.
#[test]
fn steps_exceed_nothing_and_cost_next_to_nothing() {
    let used = |awkward: &dyn Fn(&mut StorePlan)| -> usize {
        let mut store = StorePlan::new(5, Span::from_millis(2));
        awkward(&mut store);
        let world = saturated(&rule(), SPEC, store, NODES, LENGTH);
        assert_eq!(world.checker().violations(), 0);
        world.checker().accepted()
    };
    let undisturbed = used(&|_| {});
    for by_us in [-700_000, -60_000_000, 700_000, 60_000_000] {
        let accepted = used(&step(by_us));
        let least = undisturbed * 95 / 100;
        assert!(accepted >= least, "{by_us}: {accepted} of {undisturbed}");
    }
}

/// Eight nodes, a copy that lacks the last 300 ms, and a clock that is 30 s ahead or behind.
#[test]
fn promotion_to_a_host_30_s_ahead_exceeds_nothing() {
    for (nodes, ahead_us) in [(NODES, 30_000_000), (8, 30_000_000), (8, -30_000_000)] {
        let promoted = promotion(Span::from_millis(300), ahead_us);
        assert_eq!(violations_of(nodes, Rules::default(), promoted), 0);
    }
}

/// The copy has every row: nothing is closed, and a step of the clock is moved over. Before, what was
/// known was forgotten, and limits counted anew from the promotion.
#[test]
fn a_promotion_that_loses_nothing_costs_next_to_nothing() {
    let used = |ahead_us: Option<i64>| -> usize {
        let mut store = StorePlan::new(5, Span::from_millis(2));
        store.durable = true;
        let at = |at| Promotion {
            at: Micros(at),
            behind: Span::ZERO,
            ahead_us: ahead_us.unwrap_or(0),
            is_wiped: false,
        };
        if ahead_us.is_some() {
            store.promotions = [1_500_000, 3_100_000, 5_300_000].map(at).to_vec();
        }
        let world = saturated(&rule(), SPEC, store, 8, LENGTH);
        assert_eq!(world.checker().violations(), 0);
        world.checker().accepted()
    };
    let undisturbed = used(None);
    for ahead_us in [0, 30_000_000, -30_000_000] {
        let accepted = used(Some(ahead_us));
        let least = undisturbed * 95 / 100;
        assert!(accepted >= least, "{ahead_us}: {accepted} of {undisturbed}");
    }
}

#[test]
fn trusting_a_copy_that_is_behind_exceeds_the_limit() {
    let off = Rules {
        close_after_promotion: false,
        ..Rules::default()
    };
    is_needed(off, promotion(Span::from_millis(300), 0));
}

/// Calls in bursts: `(millisecond, node, number of calls)`, which are given up after so long and may
/// be on their way for so long.
fn bursts(
    store: StorePlan,
    nodes: usize,
    (give_up, late): (Span, Span),
    bursts: &[(u64, usize, u64)],
) -> World<Governed> {
    let mut plan = GovernedPlan::new(vec![rule()]).on_network(store);
    (plan.give_up, plan.late_arrival) = (give_up, late);
    let millisecond = Span::from_millis(1);
    let latency = Latency::constant(millisecond, millisecond, millisecond);
    let setup = Setup::new(7, vec![SPEC.parse().expect("a rule")], latency).with_nodes(nodes);
    let mut world = World::new(setup, Governed::new(plan));
    let mut number = 0;
    for &(at_ms, node, count) in bursts {
        for _ in 0..count {
            number += 1;
            let call = Call {
                id: CallId(number),
                cost: Cost::CALL,
                priority: Priority::Normal,
            };
            world.submit(Micros(at_ms * 1_000), NodeId(node), call);
        }
    }
    world.run_until(Micros(20_000_000)).expect("time passes");
    world
}

/// Two nodes, and a copy that lacks what node 1 wrote last. Node 0 knows the version that the copy
/// has; it has not heard of the promotion.
fn promoted_between(rules: Rules, behind: Span) -> World<Governed> {
    let mut store = StorePlan::new(1, Span::from_millis(2));
    store.rules = rules;
    store.promotions = vec![Promotion {
        at: Micros(2_140_000),
        behind,
        ahead_us: 0,
        is_wiped: false,
    }];
    let calls = [(100, 1, 1), (200, 0, 5), (2_000, 1, 20), (2_150, 0, 20)];
    bursts(store, 2, (LONG, SECOND), &calls)
}

#[test]
fn a_comparison_without_the_epoch_exceeds_the_limit() {
    let behind = Span::from_millis(200);
    let off = Rules {
        compare_epoch: false,
        ..Rules::default()
    };
    let with = promoted_between(Rules::default(), behind);
    assert_eq!(with.checker().violations(), 0);
    let without = promoted_between(off, behind);
    assert!(without.checker().violations() > 0);
}

/// After a promotion node 2 writes as often as node 1 did before it, and a counter is at the same
/// number again: node 1 takes its old rows for the current ones.
#[test]
fn versions_that_are_counters_exceed_the_limit() {
    let total = |rules: Rules| -> usize {
        let one = |calls_of_node_2: u64| {
            let mut store = StorePlan::new(1, Span::from_millis(2));
            store.rules = rules;
            store.promotions = vec![Promotion {
                at: Micros(2_100_000),
                behind: Span::from_millis(200),
                ahead_us: 0,
                is_wiped: false,
            }];
            let mut calls = vec![(100, 1, 1), (150, 2, 1), (200, 0, 5), (2_000, 1, 12)];
            calls.extend((0..calls_of_node_2).map(|n| (3_300 + n * 10, 2, 1)));
            calls.push((3_650, 1, 20));
            let world = bursts(store, 3, (LONG, Span::ZERO), &calls);
            world.checker().violations()
        };
        (1..20).map(one).sum()
    };
    // The process's own row would tell it as well.
    let by_name = Rules {
        own_row: false,
        compare_epoch: false,
        close_after_promotion: false,
        ..Rules::default()
    };
    let by_counter = Rules {
        named_versions: false,
        ..by_name
    };
    assert_eq!(total(Rules::default()), 0);
    assert_eq!(total(by_name), 0);
    assert!(total(by_counter) > 0);
}

/// Everybody else is idle when the clock steps, and a node joins right after it.
#[test]
fn trusting_rows_after_joining_behind_a_step_exceeds_the_limit() {
    let world = |distrust_on_join: bool| {
        let mut store = StorePlan::new(1, Span::from_millis(2));
        store.rules.distrust_on_join = distrust_on_join;
        store.clock.wall_steps = vec![(Micros(4_500_000), 900_000)];
        bursts(store, 2, (LONG, LONG), &[(4_300, 0, 20), (4_600, 1, 20)])
    };
    assert_eq!(world(true).checker().violations(), 0);
    assert!(world(false).checker().violations() > 0);
}

/// The reply comes after the ledger counts the call as gone.
#[test]
fn a_grant_whose_age_counts_from_the_reply_exceeds_the_limit() {
    let total = |age_from_sent: bool| -> usize {
        let one = |seed| {
            let mut store = StorePlan::new(seed, Span::from_millis(2));
            (store.late_ppm, store.late) = (300_000, Span::from_secs(6));
            store.deadline = Span::from_secs(20);
            store.rules.age_from_sent = age_from_sent;
            let calls: Vec<_> = (0..40).map(|i| (i * 250, (i % 4) as usize, 10)).collect();
            bursts(store, 4, (SECOND, SECOND), &calls)
                .checker()
                .violations()
        };
        (0..8).map(one).sum()
    };
    assert_eq!(total(true), 0);
    assert!(total(false) > 0);
}

/// Eight nodes that all want more than there is.
fn crowded(rules: Rules) -> World<Governed> {
    let rule = Rule::bucket(100, SECOND, 10).expect("sane");
    let mut store = StorePlan::new(3, Span::from_millis(1));
    store.rules = rules;
    let world = saturated(&rule, "bucket 100/1s burst 10", store, 8, LENGTH);
    assert_eq!(world.checker().violations(), 0);
    world
}

#[test]
fn owners_that_are_not_noted_as_waiting_starve() {
    let fairness = |note_waiting: bool| {
        let world = crowded(Rules {
            note_waiting,
            ..Rules::default()
        });
        jain(&world.client().sent_by_node())
    };
    assert!(fairness(true) >= 990);
    assert!(fairness(false) < 500);
}

#[test]
fn owners_that_do_not_take_turns_get_in_each_others_way() {
    let conflicts = |take_turns: bool| {
        let world = crowded(Rules {
            take_turns,
            ..Rules::default()
        });
        world.client().store_counts().expect("a store").conflicts
    };
    assert!(conflicts(true) * 4 < conflicts(false));
}

/// A reply is lost, and the caller has left meanwhile: without the write that gives the permit
/// back it is held until it could no longer arrive.
#[test]
fn a_lost_reply_without_recovery_costs_quota() {
    let accepted = |recover_by_write: bool| -> usize {
        let one = |seed| {
            let mut store = StorePlan::new(seed, Span::from_millis(2));
            store.lost_replies_ppm = 100_000;
            store.deadline = Span::from_millis(50);
            store.rules.recover_by_write = recover_by_write;
            let plan = GovernedPlan::new(vec![rule()]).on_network(store);
            let mut plan = plan.saturating(30);
            (plan.give_up, plan.late_arrival) = (Span::from_secs(30), Span::from_secs(5));
            plan.cancel_ppm = 800_000;
            let setup = Setup::new(7, vec![SPEC.parse().expect("a rule")], Latency::LAN);
            let mut world = World::new(setup.with_nodes(NODES), Governed::new(plan));
            world.run_until(Micros(0) + LENGTH).expect("time passes");
            assert_eq!(world.checker().violations(), 0);
            world.checker().accepted()
        };
        (0..8).map(one).sum()
    };
    let (with, without) = (accepted(true), accepted(false));
    assert!(with > without, "{with} {without}");
}
