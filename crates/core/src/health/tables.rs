//! The whole state machine as tables: every state, every event, the actions. A change of behaviour
//! shows as a changed line.

use std::fmt::Write as _;

use super::harness::{Harness, breaker, profile_a};
use super::{Action, Class, Command, HealthEvent, HealthMode, HealthSettings, HealthState};
use crate::scope::ScopeView;
use crate::time::Span;

/// How each state is reached, by the name of its row.
fn states(settings: HealthSettings) -> Vec<(&'static str, Harness)> {
    let mut offline = Harness::new(settings);
    offline.command(Command::Offline);
    let mut cache_only = Harness::new(settings);
    cache_only.command(Command::CacheOnly { lasts: None });
    let mut rows = vec![
        ("Normal", Harness::new(settings)),
        ("Offline", offline),
        ("CacheOnly", cache_only),
    ];
    if settings.mode == HealthMode::Adaptive {
        rows.push(("Throttle", Harness::throttled(settings)));
        let mut local = Harness::throttled(settings);
        local.advance_secs(30).results(Class::Success, 10);
        assert_eq!(local.state(), HealthState::HalfOpen);
        rows.push(("HalfOpen*", local));
    }
    if settings.mode != HealthMode::Off {
        let mut asleep = Harness::new(settings);
        asleep.results(Class::Limited, 5);
        assert_eq!(asleep.state(), HealthState::Sleep);
        rows.push(("Sleep", asleep));
        let mut half_open = Harness::new(settings);
        half_open.results(Class::Limited, 5);
        half_open.advance(half_open.health.status(half_open.now).reset_in);
        assert_eq!(half_open.state(), HealthState::HalfOpen);
        rows.push(("HalfOpen", half_open));
    }
    rows
}

/// A named event, and the function that applies it.
type NamedEvent = (&'static str, fn(&mut Harness) -> &mut Harness);

const EVENTS: &[NamedEvent] = &[
    ("success", |b| b.results(Class::Success, 1)),
    ("5 successes", |b| b.results(Class::Success, 5)),
    ("30 s, 15 successes", |b| {
        b.advance_secs(30).results(Class::Success, 15)
    }),
    ("429", |b| b.results(Class::Limited, 1)),
    ("429, Retry-After 900", |b| b.limited_for(900)),
    ("3 x 429", |b| b.results(Class::Limited, 3)),
    ("5 x 429", |b| b.results(Class::Limited, 5)),
    ("5xx", |b| b.results(Class::ServerError, 1)),
    ("5 x 5xx", |b| b.results(Class::ServerError, 5)),
    ("12 x network", |b| b.results(Class::Network, 12)),
    ("12 x 404", |b| b.results(Class::Other, 12)),
    ("late 503", |b| {
        let granted = b.now - Span::from_secs(1_000);
        b.result(Class::ServerError, granted, None)
    }),
    ("30 s pass", |b| b.advance_secs(30)),
    ("1 h passes", |b| b.advance_secs(3_600)),
    ("offline", |b| b.command(Command::Offline)),
    ("cache-only", |b| {
        b.command(Command::CacheOnly { lasts: None })
    }),
    ("resume", |b| b.command(Command::Resume)),
    ("reset", |b| b.command(Command::Reset)),
    ("seen open", |b| b.view(ScopeView::Open)),
    ("seen probing", |b| b.view(ScopeView::Probing)),
    ("seen closed 60 s", |b| {
        let remaining = Some(Span::from_secs(60));
        b.view(ScopeView::Closed { remaining })
    }),
    ("seen held", |b| {
        b.view(ScopeView::Closed { remaining: None })
    }),
    ("dropped", |b| {
        let granted = b.now;
        b.on(HealthEvent::Dropped {
            granted,
            path: None,
        })
    }),
];

fn describe(actions: &[Action]) -> String {
    let words: Vec<String> = actions
        .iter()
        .filter_map(|action| match action {
            Action::Close {
                closed_for: None, ..
            } => Some("close".to_owned()),
            Action::Close {
                closed_for: Some(closed_for),
                ..
            } => Some(format!("close {closed_for}")),
            Action::Open => Some("open".to_owned()),
            Action::Pace(pace) => {
                let rate = pace.rate.map_or("-".to_owned(), |rate| rate.to_string());
                let most = pace.concurrency.map_or("-".to_owned(), |n| n.to_string());
                Some(format!("pace {rate}/s x{most}"))
            }
            // Sent with every failure, and with the first success after one.
            Action::Failed { .. } | Action::Succeeded | Action::Transition { .. } => None,
            // No result of these tables has a path.
            Action::PathFailed { .. } | Action::ClosePath { .. } | Action::OpenPath { .. } => None,
        })
        .collect();
    words.join(", ")
}

fn table(settings: HealthSettings) -> String {
    let mut text = String::new();
    for (state, _) in states(settings) {
        for (event, happen) in EVENTS {
            let mut rows = states(settings).into_iter();
            let (_, mut harness) = rows.find(|(name, _)| *name == state).unwrap();
            harness.log.clear();
            harness.all.clear();
            happen(&mut harness);
            let path = if harness.log.is_empty() {
                "stays".to_owned()
            } else {
                harness.log.join(", ")
            };
            let actions = describe(&harness.all);
            let line = format!("{state:10}| {event:21}| {path} | {actions}");
            writeln!(text, "{}", line.trim_end()).unwrap();
        }
        text.push('\n');
    }
    text
}

fn assert_table(name: &str, settings: HealthSettings) {
    insta::with_settings!({ snapshot_path => "../snapshots", omit_expression => true }, {
        insta::assert_snapshot!(name, table(settings));
    });
}

/// A1: the defaults. `HalfOpen*` is the one that follows Throttle, without the ledger's probe slot.
#[test]
fn transitions_of_the_adaptive_machine() {
    assert_table("adaptive", HealthSettings::default());
}

/// A1: the document's own settings.
#[test]
fn transitions_of_profile_a() {
    assert_table("profile_a", profile_a());
}

/// M9: the breaker is the same machine without Throttle.
#[test]
fn transitions_of_the_breaker() {
    assert_table("breaker", breaker());
}

/// A1: off.
#[test]
fn transitions_when_off() {
    let settings = HealthSettings {
        mode: HealthMode::Off,
        ..HealthSettings::default()
    };
    assert_table("off", settings);
}
