//! Guards without a socket, at a time that the test moves.

use std::sync::Arc;

use http::{HeaderMap, HeaderValue};
use tollgate_config::{Config, Environment, FileContent, PathKind, Sources};
use tollgate_core::time::Now;
use tollgate_ledger::{Clock, ManualClock};

use super::*;

/// In memory nothing waits.
impl Guards {
    pub(super) fn decide_now(&self, asks: &[GuardAsk]) -> Result<GuardVerdict, GuardError> {
        self.decide_in_memory(asks).expect("a memory of their own")
    }

    pub(super) fn decide_any_now(&self, asks: &[GuardAsk]) -> GuardVerdict {
        let verdict = self.try_locally(asks);
        self.count_denials(asks, &verdict);
        verdict
    }

    fn status_now(&self, name: &str, identifier: Option<&str>) -> Result<GuardStatus, GuardError> {
        Ok(self.local_status(&self.ask(name, identifier, 0)?))
    }
}

/// The classes of the document (C3).
pub(super) const CLASSES: &str = "guards:
  ip:   { limit: 10,  period: 1m, burst: 5,  by: ip }
  user: { limit: 20,  period: 1m, burst: 10, by: 'header:x-user-id' }
  api:  { limit: 100, period: 1m, burst: 20, by: global }
  task: { limit: 50,  period: 1m, burst: 15, by: name }
";

pub(super) fn config(text: &str) -> Config {
    let text = text.to_owned();
    let read = move |_: &str| {
        Ok(FileContent {
            text: text.clone(),
            readable_by_others: false,
        })
    };
    let world = Environment {
        env: &|_| None,
        env_names: &Vec::new,
        read_file: &read,
        path_kind: &|_| Ok(PathKind::File),
        missing_key: None,
    };
    let sources = Sources {
        only_named: true,
        config: Some("tollgate.yaml".to_owned()),
        ..Sources::default()
    };
    Config::load(&sources, &world).expect("a valid file").config
}

fn clock() -> Arc<ManualClock> {
    ManualClock::new(Now {
        at: Micros(1_000_000_000),
        wall: Wall(1_772_323_200_000_000),
    })
}

pub(super) fn guards(text: &str) -> (Guards, Arc<ManualClock>) {
    let clock = clock();
    let ledger = Ledger::memory(Clock::Manual(clock.clone()));
    (Guards::new(ledger, Events::default(), &config(text)), clock)
}

pub(super) fn guards_with(events: Events, text: &str) -> Guards {
    let ledger = Ledger::memory(Clock::Manual(clock()));
    Guards::new(ledger, events, &config(text))
}

fn asks(guards: &Guards, of: &[(&str, &str)]) -> Vec<GuardAsk> {
    let ask = |(guard, identifier): &(&str, &str)| guards.ask(guard, Some(identifier), 1).unwrap();
    of.iter().map(ask).collect()
}

fn tokens(guards: &Guards, name: &str, identifier: &str) -> u64 {
    guards
        .status_now(name, Some(identifier))
        .unwrap()
        .micro_tokens
}

/// C2: the status consumes nothing, and fractions of tokens are not lost.
#[test]
fn c2_the_status_of_a_guard_has_fractions_and_consumes_nothing() {
    let (guards, clock) = guards(CLASSES);
    for _ in 0..5 {
        let verdict = guards
            .decide_now(&asks(&guards, &[("ip", "203.0.113.7")]))
            .unwrap();
        assert!(verdict.denied.is_none());
    }
    clock.pass(Span::from_millis(1_200));
    for _ in 0..3 {
        let status = guards.status_now("ip", Some("203.0.113.7")).unwrap();
        assert_eq!(
            (status.micro_tokens, status.tokens_per_minute, status.burst),
            (200_000, 10, 5)
        );
        assert_eq!(status.last_refill, Wall(1_772_323_201_200_000));
    }
    assert_eq!(
        tokens(&guards, "ip", "203.0.113.8"),
        5_000_000,
        "another key is full"
    );
    assert_eq!(
        tokens(&guards, "ip", "::ffff:203.0.113.7"),
        200_000,
        "the same address"
    );
}

/// C11: if the global guard rejects, the token of the address is not spent.
#[test]
fn c11_a_rejected_request_costs_no_guard_anything() {
    let (guards, _) = guards(CLASSES);
    let both = |ip: &str| asks(&guards, &[("ip", ip), ("api", "global")]);
    for number in 0..20 {
        let ip = format!("198.51.100.{number}");
        assert!(guards.decide_now(&both(&ip)).unwrap().denied.is_none());
    }
    let verdict = guards.decide_now(&both("203.0.113.7")).unwrap();
    let denied = verdict.denied.expect("the global guard is empty");
    assert_eq!(
        (denied.class.name(), denied.retry_in),
        ("api", Some(Span::from_millis(600)))
    );
    assert_eq!(
        denied.message(),
        "API rate limit exceeded. Please try again later."
    );
    assert_eq!(tokens(&guards, "ip", "203.0.113.7"), 5_000_000);
}

/// A guard in shadow said nothing to anybody, so nobody could judge whether to enforce it.
#[tokio::test(start_paused = true)]
async fn denials_are_counted_and_reported_in_shadow_too() {
    let text = "guards: { a: { limit: 1, period: 1m, by: name, shadow: true }, b: { limit: 1, period: 1m, by: name } }";
    let events = Events::default();
    let mut heard = events.subscribe();
    let guards = guards_with(events, text);
    let all = asks(&guards, &[("a", "k"), ("b", "k")]);
    for _ in 0..3 {
        guards.decide_now(&all).unwrap();
    }
    // What waits is not denied yet, and what gives up is.
    guards.acquire(&all[1..], Span::ZERO).await.unwrap();
    guards.decide_now(&all[..1]).unwrap();
    guards.replace(&config(text)).unwrap();
    let counts: Vec<(u64, u64)> = guards
        .all()
        .iter()
        .map(|class| (class.counts().denied, class.counts().shadow_denied))
        .collect();
    assert_eq!(counts, [(0, 1), (3, 0)], "a reload resets no count");
    let mut told = Vec::new();
    while let Some(crate::event::Notification::Event(event)) = heard.try_next() {
        if let crate::event::Event::GuardDenied { guard, shadow, .. } = &*event {
            told.push((guard.to_string(), *shadow));
        }
    }
    assert_eq!(told, [("b".to_owned(), false), ("a".to_owned(), true)]);
}

/// One guard asked for two keys: the denial showed what the first key had.
#[test]
fn a_denial_shows_the_key_that_was_denied() {
    let (guards, _) = guards(CLASSES);
    for _ in 0..5 {
        guards.decide_now(&asks(&guards, &[("ip", "b")])).unwrap();
    }
    let verdict = guards.decide_now(&asks(&guards, &[("ip", "a"), ("ip", "b")]));
    let verdict = verdict.unwrap();
    let denied = verdict.denied.expect("b has none");
    assert_eq!(verdict.views[denied.at].remaining, 0);
}

/// C5: a task waits up to 300 s for its token, a request 60 s (C1).
#[test]
fn c5_tasks_wait_longer_than_requests() {
    let (guards, _) = guards(CLASSES);
    let wait = |guard| guards.ask(guard, Some("k"), 1).unwrap().wait();
    assert_eq!(wait("task"), Span::from_secs(300));
    assert_eq!(wait("ip"), Span::from_secs(60));
}

/// A guard in shadow counts and never rejects; `limiting` does the same for all, or checks none.
#[test]
fn shadow_counts_and_off_checks_nothing() {
    let text = "guards: { a: { limit: 1, period: 1m, by: name, shadow: true }, b: { limit: 1, period: 1m, by: name } }";
    let (guards, _) = guards(text);
    let one = |guard: &str| guards.decide_now(&asks(&guards, &[(guard, "k")])).unwrap();
    assert!(!one("a").views[0].would_deny);
    let second = one("a");
    assert!(second.denied.is_none() && second.views[0].would_deny);
    assert!(one("b").denied.is_none());
    assert!(one("b").denied.is_some());
    guards.set_limiting(Some(Limiting::Shadow));
    let shadowed = one("b");
    assert!(shadowed.denied.is_none() && shadowed.views[0].would_deny);
    guards.set_limiting(Some(Limiting::Off));
    assert!(one("b").views.is_empty());
    guards.set_limiting(None);
    assert!(one("b").denied.is_some());
    // What the enforced guard rejects costs the one in shadow nothing.
    let mixed = asks(&guards, &[("a", "new"), ("b", "k")]);
    assert!(guards.decide_now(&mixed).unwrap().denied.is_some());
    assert_eq!(tokens(&guards, "a", "new"), 1_000_000);
}

/// Ten million identities: the table stays within its bound, and a known key keeps its debt.
#[test]
fn ten_million_random_identities_stay_within_the_bound() {
    let (guards, clock) = guards("guards: { ip: { limit: 10, period: 1m, burst: 5, by: ip } }");
    let known = asks(&guards, &[("ip", "203.0.113.7")]);
    for _ in 0..5 {
        assert!(guards.decide_now(&known).unwrap().denied.is_none());
    }
    let class = known[0].class.clone();
    let mut denied = 0_u32;
    for number in 0_u64..10_000_000 {
        // 1 µs apart: nothing is refilled meanwhile, so no key may be evicted.
        clock.pass(Span(1));
        let ask = GuardAsk {
            key: BucketKey {
                local: class
                    .keys_for_tests()
                    .number(number.wrapping_mul(0x9E37_79B9_7F4A_7C15)),
                shared: None,
            },
            class: class.clone(),
            identifier: Identifier::default(),
            cost: 1,
        };
        denied += u32::from(guards.decide_now(&[ask]).unwrap().denied.is_some());
        assert!(guards.keys() <= KEYS_MAX + 1, "and the shared bucket");
    }
    assert!(
        denied > 5_000_000,
        "beyond the bound new keys share one bucket: {denied}"
    );
    assert!(
        tokens(&guards, "ip", "203.0.113.7") < 2_000_000,
        "ten seconds of refill"
    );
    // When the flood is over, the keys go.
    clock.pass(Span::from_secs(60));
    let other = asks(&guards, &[("ip", "203.0.113.9")]);
    for _ in 0..SWEEP_EVERY * (KEYS_MAX as u64 * 4 / SWEEP_SLOTS as u64) {
        guards.decide_now(&other).unwrap();
    }
    assert!(guards.keys() < 10_000, "{}", guards.keys());
}

/// Requests are counted by address, by user if the header is there, and together; tasks are not
/// requests, and exempt paths are not counted.
#[test]
fn a_request_is_asked_about_by_what_it_carries() {
    let text = format!("{CLASSES}exempt_paths: [/health]\n");
    let (guards, _) = guards(&text);
    let mut headers = HeaderMap::new();
    let names = |headers: &HeaderMap, path: &str| -> Vec<String> {
        let request = GuardedRequest {
            guards: None,
            path,
            is_exact: true,
            ip: "203.0.113.7".parse().unwrap(),
            headers,
        };
        let asks = guards.asks_of(&request).unwrap();
        asks.iter().map(|ask| ask.class.name().to_owned()).collect()
    };
    assert_eq!(names(&headers, "/upload"), ["ip", "api"]);
    headers.insert("x-user-id", HeaderValue::from_static("u1"));
    assert_eq!(names(&headers, "/upload"), ["ip", "user", "api"]);
    assert!(names(&headers, "/health").is_empty());
    assert!(
        names(&headers, "/healthz/deep").is_empty(),
        "a prefix, as in the document"
    );
    for sly in [
        "/health/../upload",
        "/health/%2e%2e/upload",
        "/health//upload",
        "//health",
    ] {
        assert_eq!(names(&headers, sly), ["ip", "user", "api"], "{sly}");
    }
}

/// A guard of one path is asked about every path that the service may read as that one: `/%6Cogin`
/// reached the service as `/login`, past the guard.
#[test]
fn a_guard_of_a_path_cannot_be_passed_by_another_spelling() {
    let text = "guards: { login: { limit: 1, period: 1m, by: ip, match: { path: /login } } }";
    let (guards, _) = guards(text);
    let headers = HeaderMap::new();
    let applies = |path: &str, is_exact: bool| {
        let request = GuardedRequest {
            guards: None,
            path,
            is_exact,
            ip: "203.0.113.7".parse().unwrap(),
            headers: &headers,
        };
        !guards.asks_of(&request).unwrap().is_empty()
    };
    assert!(applies("/login", true) && !applies("/other", true));
    for sly in [
        "/%6Cogin",
        "/a/../login",
        "//login",
        "/./login",
        "/a\\..\\login",
    ] {
        assert!(applies(sly, true), "{sly}");
    }
    assert!(applies("/base/login", false), "sent as another path");
}

/// One host has a whole /64.
#[test]
fn addresses_of_one_network_are_one_key() {
    let (guards, _) = guards(CLASSES);
    for last in 0..5 {
        let ip = format!("2001:db8:1:2::{last}");
        assert!(
            guards
                .decide_now(&asks(&guards, &[("ip", &ip)]))
                .unwrap()
                .denied
                .is_none()
        );
    }
    let sixth = guards
        .decide_now(&asks(&guards, &[("ip", "2001:db8:1:2:ffff::9")]))
        .unwrap();
    assert!(sixth.denied.is_some());
    let other = guards
        .decide_now(&asks(&guards, &[("ip", "2001:db8:1:3::1")]))
        .unwrap();
    assert!(other.denied.is_none());
}

/// C1: waiting is exact, and a wait that is too long is not begun.
#[tokio::test(start_paused = true)]
async fn c1_acquire_waits_for_its_token_and_no_longer_than_it_may() {
    let ledger = Ledger::memory(Clock::tokio(Wall(1_772_323_200_000_000)));
    let guards = Guards::new(ledger, Events::default(), &config(CLASSES));
    let ask = asks(&guards, &[("ip", "203.0.113.7")]);
    for _ in 0..5 {
        let verdict = guards.acquire(&ask, Span::ZERO).await.unwrap();
        assert!(verdict.denied.is_none());
    }
    let denied = guards.acquire(&ask, Span::from_secs(5)).await.unwrap();
    assert_eq!(
        denied.waited,
        Span::ZERO,
        "six seconds are known to be too long"
    );
    assert_eq!(denied.denied.unwrap().retry_in, Some(Span::from_secs(6)));
    let waited = guards.acquire(&ask, Span::from_secs(60)).await.unwrap();
    assert!(waited.denied.is_none());
    assert!(waited.waited >= Span::from_secs(6) && waited.waited < Span::from_millis(6_010));
    let costly = [guards.ask("ip", Some("203.0.113.7"), 6).unwrap()];
    let never = guards.acquire(&costly, Span::from_secs(99)).await.unwrap();
    assert_eq!(never.denied.unwrap().retry_in, None);
}

/// On a real clock a decision takes microseconds: that was reported as a wait.
#[tokio::test]
async fn an_immediate_grant_is_not_queued() {
    let guards = Guards::new(
        Ledger::memory(Clock::System),
        Events::default(),
        &config(CLASSES),
    );
    for number in 0..600 {
        let ask = asks(
            &guards,
            &[("ip", &format!("10.0.{}.{}", number / 250, number % 250))],
        );
        let verdict = guards.acquire(&ask, Span::from_secs(60)).await.unwrap();
        assert_eq!((verdict.was_queued, verdict.waited), (false, Span::ZERO));
    }
}

/// A reload resets no bucket.
#[test]
fn a_new_configuration_keeps_the_tokens() {
    let (guards, _) = guards(CLASSES);
    let ask = asks(&guards, &[("ip", "203.0.113.7")]);
    for _ in 0..5 {
        guards.decide_now(&ask).unwrap();
    }
    guards
        .replace(&config(
            "guards: { ip: { limit: 20, period: 1m, burst: 9, by: ip } }",
        ))
        .unwrap();
    assert!(tokens(&guards, "ip", "203.0.113.7") < 1_000_000);
    assert_eq!(
        guards.ask("user", Some("u"), 1).unwrap_err(),
        GuardError::Unknown {
            name: "user".to_owned(),
            nearest: None
        }
    );
}

/// Guards that a full table could not count were dropped in silence, and requests passed without limit.
#[test]
fn a_configuration_that_cannot_be_counted_changes_nothing() {
    let (guards, _) = guards(CLASSES);
    let one = std::num::NonZeroU32::MIN;
    let other = |number: u64| tollgate_guard::Limit {
        limit: one,
        period: std::time::Duration::from_micros(number),
        burst: one,
    };
    let plan = |number| guards.table().plan(&[other(number)]);
    assert!((1..=tollgate_guard::PLANS_MAX as u64).any(|number| plan(number).is_err()));
    let changed = CLASSES.replace("limit: 10, ", "limit: 11, ");
    let error = guards.replace(&config(&changed)).unwrap_err().to_string();
    assert!(error.contains("`ip`"), "{error}");
    let limits: Vec<u32> = guards.all().iter().map(|class| class.limit()).collect();
    assert_eq!(limits, [10, 20, 100, 50], "the former rules stay");
    assert!(guards.replace(&config(CLASSES)).is_ok());
}
