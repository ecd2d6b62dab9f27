//! A store that takes over without the provider's rows: which nodes know that something was used before.

use std::sync::Arc;

use super::tests::{TestStore, ask, poll, run, settings};
use super::*;
use crate::ask::Outcome;
use crate::limit::Rule;

const WINDOW: Span = Span::from_secs(10);
const LIMIT: u64 = 3;

fn rule() -> Arc<Rule> {
    Arc::new(Rule::sliding(LIMIT, WINDOW).expect("sane"))
}

/// How many of these permits are granted, and used at once.
fn taken(node: &mut Replica, store: &mut TestStore, now: &mut Micros, permits: u64) -> usize {
    // No permit has the number of another one.
    let asks: Vec<Ask> = (0..permits)
        .map(|seq| ask(now.0 + seq, &[1], &rule()))
        .collect();
    node.offer(asks.clone(), *now);
    let granted = granted(&run(node, store, now));
    for ask in asks.into_iter().take(granted) {
        let settle = Settle::Permit {
            id: ask.id,
            terms: ask.terms,
            scopes: ask.scopes,
            outcome: Outcome::Arrived {
                age: Span::ZERO,
                limited: false,
                readings: Vec::new(),
            },
        };
        node.settle(settle, *now);
    }
    run(node, store, now);
    granted
}

fn granted(verdicts: &[Verdict]) -> usize {
    let is_grant = |verdict: &&Verdict| matches!(verdict, Verdict::Go { .. });
    verdicts.iter().filter(is_grant).count()
}

/// A copy takes over that has received nothing.
fn promote_without_rows(store: &mut TestStore) {
    store.rows.clear();
    store.promotions += 1;
}

/// Permits that are granted in one window: one node uses the limit up between the first reply to another
/// one, which names no rows, and a promotion that loses all of them. The other one asks on.
fn granted_around_a_promotion_that_one_has_seen(rules: Rules) -> usize {
    let (mut user, mut store) = (Replica::new(settings(1)), TestStore::default());
    let mut seer = Replica::new(ReplicaSettings {
        rules,
        ..settings(2)
    });
    let mut now = Micros(1_000_000_000);
    seer.offer(vec![ask(1, &[1], &rule())], now);
    let read = poll(&mut seer, now).send.expect("a request");
    seer.reply(store.handle(&read, now), now);
    poll(&mut seer, now).send.expect("a request, which is lost");
    let before = taken(&mut user, &mut store, &mut now, LIMIT);
    promote_without_rows(&mut store);
    now += Span::from_millis(200);
    let after = granted(&run(&mut seer, &mut store, &mut now));
    before + after + taken(&mut seer, &mut store, &mut now, LIMIT)
}

/// A former bug: a node that had not yet seen any row of the provider took a promoted server without
/// them for a new one, although it saw the promotion: a window was granted twice.
#[test]
fn a_node_that_sees_a_promotion_closes_short_limits_that_have_no_rows() {
    let with = granted_around_a_promotion_that_one_has_seen(Rules::default());
    assert_eq!(with, 3, "nothing is granted again");
    let off = Rules {
        close_after_promotion: false,
        ..Rules::default()
    };
    let without = granted_around_a_promotion_that_one_has_seen(off);
    assert_eq!(without, 6, "without the rule");
}

/// It is closed for one window and as long as calls may be on their way, and no longer. A limit of an
/// hour is open: nothing says that it was used.
#[test]
fn what_a_promotion_without_rows_closes_opens_again() {
    let (mut node, mut store) = (Replica::new(settings(1)), TestStore::default());
    let mut now = Micros(1_000_000_000);
    node.offer(vec![ask(1, &[1], &rule())], now);
    let read = poll(&mut node, now).send.expect("a request");
    node.reply(store.handle(&read, now), now);
    node.drop_asks(now);
    promote_without_rows(&mut store);
    assert_eq!(taken(&mut node, &mut store, &mut now, LIMIT), 0);
    let hour = Arc::new(Rule::sliding(LIMIT, Span::from_secs(3_600)).expect("sane"));
    node.offer(vec![ask(9, &[2], &hour)], now);
    assert_eq!(granted(&run(&mut node, &mut store, &mut now)), 1);
    now += WINDOW + Span::from_secs(6);
    assert_eq!(taken(&mut node, &mut store, &mut now, 2 * LIMIT), 3);
}

/// The documented limit of what a node can know (docs/many-hosts.md): one whose first reply comes after
/// the promotion is new to the provider, also if it was asking for permits before. All such nodes
/// together are granted each limit once more. The first request of a node that had a reply with rows
/// ends that, for all.
#[test]
fn nodes_without_a_reply_from_before_are_granted_a_lost_window_once() {
    let new = |owner| Replica::new(settings(owner));
    let (mut user, mut one, mut two) = (new(1), new(2), new(3));
    let (mut store, mut now) = (TestStore::default(), Micros(1_000_000_000));
    one.offer(vec![ask(7, &[1], &rule())], now);
    poll(&mut one, now).send.expect("a request, which is lost");
    one.drop_asks(now);
    assert_eq!(taken(&mut user, &mut store, &mut now, LIMIT), 3);
    promote_without_rows(&mut store);
    now += Span::from_millis(200);
    assert_eq!(taken(&mut one, &mut store, &mut now, 1), 1);
    assert_eq!(taken(&mut two, &mut store, &mut now, 1), 1);
    // One more would be granted, if the node that knows did not ask.
    assert_eq!(taken(&mut user, &mut store, &mut now, LIMIT), 0);
    for _ in 0..2 {
        for node in [&mut one, &mut two, &mut user] {
            assert_eq!(taken(node, &mut store, &mut now, LIMIT), 0);
        }
        now += Span::from_secs(7);
    }
    now += Span::from_secs(2);
    assert_eq!(taken(&mut two, &mut store, &mut now, 2 * LIMIT), 3);
}

/// A promoted server that has an old copy of the provider's rows: their epoch tells also a new node.
#[test]
fn a_new_node_sees_a_promotion_by_rows_of_before() {
    let (mut user, mut new) = (Replica::new(settings(1)), Replica::new(settings(2)));
    let (mut store, mut now) = (TestStore::default(), Micros(1_000_000_000));
    assert_eq!(taken(&mut user, &mut store, &mut now, 1), 1);
    let copy = store.rows.clone();
    assert_eq!(taken(&mut user, &mut store, &mut now, LIMIT), 2);
    (store.rows, store.promotions) = (copy, 1);
    assert_eq!(taken(&mut new, &mut store, &mut now, LIMIT), 0);
    now += WINDOW + Span::from_secs(6);
    assert_eq!(taken(&mut new, &mut store, &mut now, 2 * LIMIT), 3);
}
