//! Which guards descriptors mean, and what they count.

use tollgate_core::time::Span;

use super::*;
use crate::guards::tests::guards;
use crate::guards::{GuardAsk, GuardVerdict, Guards};

const GUARDS: &str = "guards:
  ip:    { limit: 10, period: 1m, burst: 2, by: ip }
  user:  { limit: 10, period: 1m, burst: 2, by: 'header:x-user-id' }
  api:   { limit: 10, period: 1m, burst: 2, by: global }
  login: { limit: 10, period: 1m, burst: 2, by: ip, match: { path: /login } }
  any:   { limit: 10, period: 1m, burst: 2, by: name, match: { descriptor: { tenant: '*', plan: '*' } } }
  free:  { limit: 10, period: 1m, burst: 2, by: name, match: { descriptor: { plan: free, tenant: '*' } } }
  team:  { limit: 10, period: 1m, burst: 2, by: global, match: { descriptor: { tenant: 'team-*', plan: free } } }
  one:   { limit: 10, period: 1m, burst: 2, by: name, match: { descriptor: { tenant: team-1, plan: free } } }
  also:  { limit: 99, period: 1h, by: name, match: { descriptor: { tenant: team-1, plan: free } } }
";

fn decide(guards: &Guards, entries: &[(&str, &str)], cost: i64) -> GuardVerdict {
    let descriptor = Descriptor {
        entries,
        cost,
        limit: None,
    };
    let asks = guards.asks_of_descriptor(&descriptor).unwrap();
    guards.decide_now(&asks).unwrap()
}

fn names(guards: &Guards, entries: &[(&str, &str)]) -> Vec<String> {
    let verdict = decide(guards, entries, 0);
    let names = verdict.views.iter().map(|view| view.class.name());
    names.map(str::to_owned).collect()
}

#[test]
fn guards_are_meant_by_what_they_count_and_by_their_names() {
    let (guards, _) = guards(GUARDS);
    for (entry, expected) in [
        (("remote_address", "203.0.113.7"), &["ip"][..]),
        (("ip", "203.0.113.7"), &["ip"]),
        (("x-user-id", "7"), &["user"]),
        (("user", "7"), &["user"]),
        (("api", "anything"), &["api"]),
        (("login", "203.0.113.7"), &["login"]),
        (("generic_key", "other"), &[]),
        (("tenant", "team-1"), &[]),
    ] {
        assert_eq!(names(&guards, &[entry]), expected, "{entry:?}");
    }
    let two = [("remote_address", "203.0.113.7"), ("plan", "free")];
    assert!(names(&guards, &two).is_empty(), "exactly its keys");
}

/// As the reference service does: a text before a prefix before any value, entry by entry.
#[test]
fn the_most_specific_guards_apply() {
    let (guards, _) = guards(GUARDS);
    for (tenant, plan, expected) in [
        ("acme", "paid", &["any"][..]),
        ("acme", "free", &["free"]),
        ("team-2", "free", &["team"]),
        ("team-1", "free", &["one", "also"]),
        ("team-1", "paid", &["any"]),
    ] {
        let entries = [("tenant", tenant), ("plan", plan)];
        assert_eq!(names(&guards, &entries), expected, "{entries:?}");
    }
    let turned = [("plan", "free"), ("tenant", "team-1")];
    assert_eq!(names(&guards, &turned), ["one", "also"], "in any order");
}

/// Each combination of values counts by itself, a global guard all of them together; an address counts
/// where the gateway counts it.
#[test]
fn values_count_apart_unless_the_guard_is_global() {
    let (guards, _) = guards(GUARDS);
    let is_denied = |entries: &[(&str, &str)]| decide(&guards, entries, 1).denied.is_some();
    let free = |tenant: &'static str| [("tenant", tenant), ("plan", "free")];
    assert!(!is_denied(&free("a")) && !is_denied(&free("a")));
    assert!(is_denied(&free("a")) && !is_denied(&free("b")));
    assert!(!is_denied(&free("team-2")) && !is_denied(&free("team-3")));
    assert!(is_denied(&free("team-4")));
    let split = |tenant, plan| [("tenant", tenant), ("plan", plan)];
    assert!(!is_denied(&split("ab", "c")) && !is_denied(&split("ab", "c")));
    assert!(!is_denied(&split("a", "bc")), "values do not run together");
    assert!(!is_denied(&[("remote_address", "203.0.113.7")]));
    let asked = [guards.ask("ip", Some("::ffff:203.0.113.7"), 1).unwrap()];
    assert!(guards.decide_now(&asked).unwrap().denied.is_none());
    assert!(is_denied(&[("ip", "203.0.113.7")]));
}

/// 0 asks whether a token is left, and if none is, nothing else is charged either. A negative number
/// puts tokens back.
#[test]
fn a_peek_takes_nothing_and_a_refund_gives_back() {
    let (guards, _) = guards(GUARDS);
    let (full, empty) = ([("user", "full")], [("user", "empty")]);
    assert!(decide(&guards, &empty, 2).denied.is_none());
    let denied = decide(&guards, &empty, 0).denied.expect("nothing is left");
    assert_eq!(denied.retry_in, Some(Span::from_secs(6)));
    let asks = |entries: &[(&str, &str)], cost| {
        let limit = None;
        let descriptor = Descriptor {
            entries,
            cost,
            limit,
        };
        guards.asks_of_descriptor(&descriptor).unwrap()
    };
    let both: Vec<_> = asks(&full, 1).into_iter().chain(asks(&empty, 0)).collect();
    let verdict = guards.decide_now(&both).unwrap();
    assert_eq!(verdict.denied.expect("nothing is left").at, 1);
    assert_eq!(verdict.views[0].remaining, 2, "not charged");
    assert!(decide(&guards, &empty, -1).denied.is_none());
    assert_eq!(decide(&guards, &empty, 0).views[0].remaining, 1);
}

#[test]
fn a_descriptor_brings_its_limit_along() {
    let (guards, clock) = guards(GUARDS);
    let ask = |entries: &[(&str, &str)], limit| {
        let descriptor = Descriptor {
            entries,
            cost: 1,
            limit: Some(LimitOverride {
                limit,
                period: Span::from_secs(60),
            }),
        };
        let asks = guards.asks_of_descriptor(&descriptor).unwrap();
        guards.decide_now(&asks).unwrap()
    };
    let (ip, other) = ([("ip", "203.0.113.7")], [("nobody", "knows")]);
    for _ in 0..3 {
        assert!(ask(&ip, 3).denied.is_none());
        assert!(ask(&other, 3).denied.is_none(), "no guard is needed");
    }
    assert_eq!(ask(&ip, 3).denied.expect("3").class.name(), "ip");
    assert_eq!(ask(&other, 3).denied.expect("3").class.name(), "descriptor");
    assert_eq!(
        decide(&guards, &ip, 0).views[0].remaining,
        2,
        "its own count"
    );
    clock.pass(Span::from_secs(3_600));
    let never = ask(&ip, 0).denied.expect("0 rejects everything");
    assert_eq!(never.retry_in, None);
}

fn limited(guards: &Guards, entries: &[(&str, &str)], limit: u32) -> Vec<GuardAsk> {
    let descriptor = Descriptor {
        entries,
        cost: 1,
        limit: Some(LimitOverride {
            limit,
            period: Span::from_secs(60),
        }),
    };
    guards.asks_of_descriptor(&descriptor).unwrap().into_vec()
}

/// Clients that sent 65,536 different limits left none for the guards of the next configuration.
#[test]
fn limits_of_descriptors_leave_the_guards_table_alone() {
    let (guards, _) = guards(GUARDS);
    let ip = [("ip", "203.0.113.7")];
    for limit in 1..=100 {
        guards
            .decide_now(&limited(&guards, &ip, 1_000 + limit))
            .unwrap();
    }
    let one = std::num::NonZeroU32::MIN;
    let fits = |number: u64| {
        let limit = tollgate_guard::Limit::new(one, std::time::Duration::from_micros(number));
        guards.table().plan(&[limit]).is_ok()
    };
    // The guards of the file have two.
    let free = tollgate_guard::PLANS_MAX as u64 - 2;
    assert!((1..=free).all(fits));
}

/// Guards and limits of descriptors are in two tables, and more than eight are several steps: still
/// all or none.
#[test]
fn a_decision_in_steps_charges_all_or_none() {
    let (guards, _) = guards(GUARDS);
    let names: Vec<String> = (0..20).map(|number| format!("u{number}")).collect();
    let user = |name: &str, cost| {
        let descriptor = Descriptor {
            entries: &[("user", name)],
            cost,
            limit: None,
        };
        guards.asks_of_descriptor(&descriptor).unwrap()
    };
    let others = limited(&guards, &[("k", "v")], 1);
    let mut asks: Vec<GuardAsk> = others;
    asks.extend(names.iter().flat_map(|name| user(name, 1)));
    assert!(guards.decide_any_now(&asks).denied.is_none());
    // The override has no token left: what the users had is put back.
    let denied = guards.decide_any_now(&asks);
    assert_eq!(denied.denied.expect("1 a minute").at, 0);
    assert!(denied.views[1..].iter().all(|view| view.remaining == 1));
    // The last of twenty has none.
    assert!(guards.decide_any_now(&user("u19", 1)).denied.is_none());
    let denied = guards.decide_any_now(&asks[1..]);
    assert_eq!(denied.denied.expect("none is left").at, 19);
    for name in &names[..19] {
        assert_eq!(decide(&guards, &[("user", name)], 0).views[0].remaining, 1);
    }
    // What is put back in a decision pays for nothing in it.
    let both: Vec<GuardAsk> = user("u19", -1).into_iter().chain(user("u19", 1)).collect();
    assert!(guards.decide_any_now(&both).denied.is_some());
}

/// A header that is there and empty was not counted at all.
#[test]
fn an_empty_value_counts_like_any_other() {
    let (guards, _) = guards(GUARDS);
    let is_denied = |entry| decide(&guards, &[entry], 1).denied.is_some();
    assert!(!is_denied(("x-user-id", "")) && !is_denied(("x-user-id", "")));
    assert!(is_denied(("x-user-id", "")));
    assert!(!is_denied(("x-user-id", "7")), "apart from others");
}

/// Each denial by a limit of a descriptor was an event of its own.
#[test]
fn denials_by_limits_of_descriptors_are_one_event_a_second() {
    let events = crate::event::Events::default();
    let mut heard = events.subscribe();
    let guards = crate::guards::tests::guards_with(events, GUARDS);
    for number in 0..50 {
        let asks = limited(&guards, &[("k", "v")], 0);
        let _denied = guards.decide_any_now(&asks);
        let asks = limited(&guards, &[("n", &number.to_string())], 0);
        let _denied = guards.decide_any_now(&asks);
    }
    let mut told = 0;
    while let Some(crate::event::Notification::Event(event)) = heard.try_next() {
        told += usize::from(matches!(&*event, crate::event::Event::GuardDenied { .. }));
    }
    assert_eq!(told, 1);
}
