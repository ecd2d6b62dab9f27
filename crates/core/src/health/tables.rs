//! The whole machine as tables: every state, every event, what follows. A change of behaviour shows
//! as a changed line.

use std::fmt::Write as _;

use super::bench::{Bench, breaker, profile_a};
use super::{Action, Class, Command, Event, HealthSettings, Mode, State};
use crate::scope::ScopeView;
use crate::time::Span;

/// How each state is reached, by the name of its row.
fn states(settings: HealthSettings) -> Vec<(&'static str, Bench)> {
    let mut offline = Bench::new(settings);
    offline.order(Command::Offline);
    let mut cache_only = Bench::new(settings);
    cache_only.order(Command::CacheOnly { lasts: None });
    let mut rows = vec![
        ("Normal", Bench::new(settings)),
        ("Offline", offline),
        ("CacheOnly", cache_only),
    ];
    if settings.mode == Mode::Adaptive {
        rows.push(("Throttle", Bench::throttled(settings)));
        let mut local = Bench::throttled(settings);
        local.secs(30).answers(Class::Success, 10);
        assert_eq!(local.state(), State::HalfOpen);
        rows.push(("HalfOpen*", local));
    }
    if settings.mode != Mode::Off {
        let mut asleep = Bench::new(settings);
        asleep.answers(Class::Refused, 5);
        assert_eq!(asleep.state(), State::Sleep);
        rows.push(("Sleep", asleep));
        let mut half_open = Bench::new(settings);
        half_open.answers(Class::Refused, 5);
        half_open.pass(half_open.health.status(half_open.now).reset_in);
        assert_eq!(half_open.state(), State::HalfOpen);
        rows.push(("HalfOpen", half_open));
    }
    rows
}

/// Something that happens: a name, and how.
type Happening = (&'static str, fn(&mut Bench) -> &mut Bench);

const HAPPENINGS: &[Happening] = &[
    ("success", |b| b.answers(Class::Success, 1)),
    ("5 successes", |b| b.answers(Class::Success, 5)),
    ("30 s, 15 successes", |b| {
        b.secs(30).answers(Class::Success, 15)
    }),
    ("429", |b| b.answers(Class::Refused, 1)),
    ("429, Retry-After 900", |b| b.refused_for(900)),
    ("3 x 429", |b| b.answers(Class::Refused, 3)),
    ("5 x 429", |b| b.answers(Class::Refused, 5)),
    ("5xx", |b| b.answers(Class::ServerError, 1)),
    ("5 x 5xx", |b| b.answers(Class::ServerError, 5)),
    ("12 x network", |b| b.answers(Class::Network, 12)),
    ("12 x 404", |b| b.answers(Class::Other, 12)),
    ("late 503", |b| {
        let granted = b.now - Span::from_secs(1_000);
        b.answer(Class::ServerError, granted, None)
    }),
    ("30 s pass", |b| b.secs(30)),
    ("1 h passes", |b| b.secs(3_600)),
    ("offline", |b| b.order(Command::Offline)),
    ("cache-only", |b| {
        b.order(Command::CacheOnly { lasts: None })
    }),
    ("resume", |b| b.order(Command::Resume)),
    ("reset", |b| b.order(Command::Reset)),
    ("seen open", |b| b.saw(ScopeView::Open)),
    ("seen probing", |b| b.saw(ScopeView::Probing)),
    ("seen closed 60 s", |b| {
        let left = Some(Span::from_secs(60));
        b.saw(ScopeView::Closed { left })
    }),
    ("seen held", |b| b.saw(ScopeView::Closed { left: None })),
    ("dropped", |b| {
        let granted = b.now;
        b.on(Event::Dropped { granted })
    }),
];

fn told(actions: &[Action]) -> String {
    let words: Vec<String> = actions
        .iter()
        .filter_map(|action| match action {
            Action::Close { rest: None, .. } => Some("close".to_owned()),
            Action::Close {
                rest: Some(rest), ..
            } => Some(format!("close {rest}")),
            Action::Open => Some("open".to_owned()),
            Action::Pace(pace) => {
                let rate = pace.rate.map_or("-".to_owned(), |rate| rate.to_string());
                let most = pace.concurrency.map_or("-".to_owned(), |n| n.to_string());
                Some(format!("pace {rate}/s x{most}"))
            }
            // Told with every failure, and with the first success after one.
            Action::Failed { .. } | Action::Well | Action::Transition { .. } => None,
        })
        .collect();
    words.join(", ")
}

fn table(settings: HealthSettings) -> String {
    let mut text = String::new();
    for (state, _) in states(settings) {
        for (event, happen) in HAPPENINGS {
            let mut rows = states(settings).into_iter();
            let (_, mut bench) = rows.find(|(name, _)| *name == state).unwrap();
            bench.log.clear();
            bench.all.clear();
            happen(&mut bench);
            let path = if bench.log.is_empty() {
                "stays".to_owned()
            } else {
                bench.log.join(", ")
            };
            let told = told(&bench.all);
            let line = format!("{state:10}| {event:21}| {path} | {told}");
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
        mode: Mode::Off,
        ..HealthSettings::default()
    };
    assert_table("off", settings);
}
