//! A4, A6: failures of one path close that path; failures of several close the provider.

use super::harness::Harness;
use super::{
    Action, Admission, AttemptResult, Class, HealthCount, HealthEvent, HealthSettings, HealthState,
    PATHS_MAX, RampAfter,
};
use crate::ask::{PathTag, ScopeId, Settle};
use crate::scope::ScopeView;
use crate::time::Span;

pub(super) fn path(name: &str) -> Option<PathTag> {
    Some(PathTag::of(name))
}

impl Harness {
    /// First attempts to this path, granted just now; 10 ms pass with each.
    pub(super) fn sends(&mut self, to: &str, class: Class, times: u32) -> &mut Harness {
        for _ in 0..times {
            let granted = self.now;
            self.now += Span::from_millis(10);
            self.on(HealthEvent::Completed(AttemptResult {
                path: path(to),
                ..AttemptResult::new(class, granted)
            }));
        }
        self
    }

    pub(super) fn admits(&self, to: &str) -> bool {
        self.health.admission_on(path(to), self.now) == Admission::Open
    }

    pub(super) fn closed_path_for(&self, to: &str) -> Option<Span> {
        self.last.iter().rev().find_map(|action| {
            let Action::ClosePath { path, closed_for } = *action else {
                return None;
            };
            (Some(path) == self::path(to)).then_some(closed_for)
        })
    }
}

pub(super) fn called() -> Harness {
    let mut harness = Harness::new(HealthSettings::default());
    harness.sends("/ok", Class::Success, 1);
    harness
}

/// A4: calls to other paths go on, and the closed one is probed on its own.
#[test]
fn a4_five_failures_on_one_path_close_that_path_only() {
    let mut harness = called();
    harness.sends("/broken/1", Class::ServerError, 4);
    assert!(harness.admits("/broken/2"));
    harness.sends("/broken/2", Class::ServerError, 1);
    assert_eq!(
        harness.closed_path_for("/broken/1"),
        Some(Span::from_secs(2))
    );
    assert!(!harness.admits("/broken/1") && harness.admits("/ok"));
    assert_eq!(
        (harness.state(), harness.log.len()),
        (HealthState::Normal, 0)
    );
    harness.sends("/ok", Class::Success, 100);
    harness.advance_secs(2);
    assert!(harness.health.is_probe(path("/broken/1")) && !harness.health.is_probe(path("/ok")));
    harness.sends("/broken/1", Class::Network, 1);
    let longer = Span::from_millis(2_400);
    assert_eq!(harness.closed_path_for("/broken/1"), Some(longer));
    assert_eq!(harness.health.failing_paths(harness.now).len(), 1);
    harness
        .advance_secs(3)
        .sends("/broken/1", Class::Success, 1);
    assert!(harness.admits("/broken/1") && !harness.health.has_failing_paths());
    assert_eq!(
        (harness.state(), harness.log.len()),
        (HealthState::Normal, 0)
    );
}

/// A4: several paths, one more path while one is closed, and failures to connect.
#[test]
fn a4_failures_on_several_paths_put_the_provider_to_sleep() {
    let asleep = ["Normal -> Sleep (failures)"];
    let mut harness = called();
    harness.sends("/a", Class::ServerError, 4);
    harness.sends("/b", Class::ServerError, 1);
    assert_eq!(harness.log, asleep);
    let mut harness = called();
    harness.sends("/a", Class::ServerError, 7);
    harness.sends("/b", Class::ServerError, 1);
    assert_eq!(harness.log, asleep);
    let mut harness = called();
    harness.results(Class::Network, 5);
    assert_eq!(harness.log, asleep);
    let mut harness = called();
    harness.sends("/a", Class::ServerError, 5);
    harness.sends("/ok", Class::Success, 1);
    harness.sends("/b", Class::ServerError, 4);
    assert_eq!(harness.log.len(), 0, "a success ends the row");
}

/// A4: the retries of one call are one failure. Before, two calls were enough to sleep.
#[test]
fn a4_the_attempts_of_one_call_count_once() {
    for (count, state) in [
        (HealthCount::Call, HealthState::Normal),
        (HealthCount::Attempt, HealthState::Sleep),
    ] {
        let mut harness = Harness::new(HealthSettings {
            count,
            ..HealthSettings::default()
        });
        for _ in 0..2 {
            for attempt in 0..4 {
                let now = harness.now;
                harness.on(HealthEvent::Completed(AttemptResult {
                    repeated: attempt > 0,
                    ..AttemptResult::new(Class::ServerError, now)
                }));
            }
        }
        assert_eq!(harness.state(), state, "{count:?}");
    }
}

/// An API with one path sleeps, is probed and recovers as a whole; a call to another path is not
/// held.
#[test]
fn a4_the_only_path_is_the_provider() {
    let mut harness = Harness::new(HealthSettings::default());
    harness.sends("/chat", Class::ServerError, 5);
    let status = harness.health.status(harness.now);
    assert_eq!(
        (status.state, status.failure_count),
        (HealthState::Sleep, 5)
    );
    assert_eq!(status.reset_in, Span::from_secs(2));
    assert!(harness.admits("/models"));
    harness
        .advance_secs(2)
        .sends("/chat", Class::ServerError, 1);
    harness.advance_secs(3).sends("/chat", Class::Success, 4);
    assert_eq!(harness.state(), HealthState::HalfOpen);
    assert_eq!(harness.closed_path_for("/chat"), Some(Span(333_334)));
    harness.sends("/chat", Class::Success, 1);
    let transitions = [
        "Normal -> Sleep (failures)",
        "Sleep -> HalfOpen (sleep_over)",
        "HalfOpen -> Sleep (probe_failed)",
        "Sleep -> HalfOpen (sleep_over)",
        "HalfOpen -> Normal (probe_ok)",
    ];
    assert_eq!(harness.log, transitions);
    let mut harness = Harness::new(HealthSettings::default());
    harness.sends("/chat", Class::ServerError, 5);
    harness.sends("/models", Class::Success, 1);
    assert_eq!(harness.state(), HealthState::Normal);
}

/// A3: one broken path does not slow down the others; two do, and so does the only one.
#[test]
fn a3_one_path_alone_does_not_move_the_ratio() {
    let run = |paths: &[(&str, Class)], rounds: u32| {
        let mut harness = Harness::new(HealthSettings::default());
        for _ in 0..rounds {
            for (to, class) in paths {
                harness.sends(to, *class, 1);
            }
        }
        harness.state()
    };
    let (ok, bad) = (Class::Success, Class::ServerError);
    assert_eq!(run(&[("/ok", ok), ("/a", bad)], 20), HealthState::Normal);
    let two = [("/ok", ok), ("/a", bad), ("/ok", ok), ("/b", bad)];
    assert_eq!(run(&two, 4), HealthState::Throttle);
    let only = [("/a", ok), ("/a", bad), ("/a", ok)];
    assert_eq!(run(&only, 20), HealthState::Throttle);
}

/// A6: a path that fails while another one has just answered a probe is closed on its own.
#[test]
fn a6_a_failed_probe_of_one_path_does_not_undo_the_success_of_another() {
    let half_open = || {
        let mut harness = called();
        harness.sends("/a", Class::ServerError, 4);
        harness.sends("/b", Class::ServerError, 1);
        harness.advance_secs(2);
        assert_eq!(harness.state(), HealthState::HalfOpen);
        harness
    };
    let mut harness = half_open();
    harness.sends("/ok", Class::Success, 1);
    harness.sends("/a", Class::ServerError, 1);
    assert_eq!(harness.state(), HealthState::HalfOpen);
    assert!(harness.closed_for().is_some(), "the next probe may follow");
    harness.sends("/ok", Class::Success, 5);
    assert_eq!(harness.state(), HealthState::Normal);
    let mut harness = half_open();
    harness.sends("/a", Class::ServerError, 1);
    assert_eq!(harness.state(), HealthState::Sleep);
}

/// A6: the path that failed last is closed for longer than the provider, so that a call to another
/// path is the first probe.
#[test]
fn a6_other_paths_probe_first() {
    let mut harness = called();
    harness.sends("/a", Class::ServerError, 4);
    harness.sends("/b", Class::ServerError, 1);
    assert_eq!(harness.closed_for(), Some(Some(Span::from_secs(2))));
    let later = Span::from_secs(2) + Span(333_334) + Span(333_334);
    assert_eq!(harness.closed_path_for("/b"), Some(later));
}

/// The table is bounded: 64 paths, and all others are one.
#[test]
fn a_provider_has_at_most_64_failing_paths_and_the_rest() {
    let mut harness = called();
    let name = |number: u32| format!("/{}", "x".repeat(number as usize));
    for number in 0..200 {
        harness.sends(&name(number), Class::ServerError, 1);
        harness.sends("/ok", Class::Success, 1);
    }
    assert_eq!(harness.health.failing_paths(harness.now).len(), PATHS_MAX);
    harness.sends(&name(300), Class::ServerError, 5);
    assert_ne!(harness.state(), HealthState::Sleep);
    assert_eq!(
        harness.health.failing_paths(harness.now).len(),
        PATHS_MAX + 1
    );
    assert!(!harness.admits(&name(301)), "the rest are one path");
    assert!(harness.admits(&name(3)));
    harness.advance_secs(700);
    harness.sends("/late", Class::ServerError, 1);
    let opened = |action: &Action| matches!(action, Action::OpenPath { .. });
    assert!(harness.last.iter().any(opened), "an idle one makes room");
    harness.command(super::Command::Reset);
    assert!(!harness.health.has_failing_paths());
}

/// Another process has closed the path: this one knows it for a probe, and closes it again.
#[test]
fn a4_a_path_closed_by_another_process_is_probed_here() {
    let mut harness = called();
    harness.sends("/a", Class::ServerError, 1);
    let tag = PathTag::of("/a");
    let remaining = Some(Span::from_secs(2));
    let view = ScopeView::Closed { remaining };
    harness.on(HealthEvent::PathScopeChanged(tag, view));
    assert!(!harness.admits("/a") && harness.admits("/b"));
    harness.advance_secs(2).sends("/a", Class::ServerError, 1);
    let closed = harness.last.iter().filter_map(|one| one.settle(ScopeId(9)));
    let closed: Vec<ScopeId> = closed
        .filter_map(|settle| {
            let Settle::Close { scope, .. } = settle else {
                return None;
            };
            Some(scope)
        })
        .collect();
    assert_eq!(closed, [tag.scope(ScopeId(9))]);
}

/// A 404 or a caller that leaves frees the place of a probe of a path, as it does for a provider.
#[test]
fn a11_a_404_is_no_verdict_on_a_closed_path() {
    let mut harness = called();
    harness.sends("/a", Class::ServerError, 5).advance_secs(2);
    harness.sends("/a", Class::Other, 1);
    assert_eq!(harness.closed_path_for("/a"), Some(Span(333_334)));
    assert!(harness.health.is_probe(path("/a")));
    let granted = harness.now;
    harness.on(HealthEvent::Dropped {
        granted,
        path: path("/a"),
    });
    assert_eq!(harness.closed_path_for("/a"), Some(Span(333_334)));
}

/// 429s are about limits: they count for the whole provider.
#[test]
fn a4_429s_belong_to_no_path() {
    let mut harness = called();
    harness.sends("/a", Class::Limited, 5);
    assert_eq!(harness.state(), HealthState::Sleep);
    assert!(!harness.health.has_failing_paths());
    let mut settings = HealthSettings::default();
    settings.ramp.after = RampAfter::Any;
    let actions = harness
        .health
        .configure(settings, super::harness::base(), harness.now);
    assert!(actions.is_ok());
}

/// A7: a long outage of the only path leads to CacheOnly, as an outage of the provider does.
#[test]
fn a7_a_long_outage_of_the_only_path_leads_to_cache_only() {
    let mut harness = Harness::new(HealthSettings {
        cache_only_after: Some(Span::from_secs(10)),
        ..HealthSettings::default()
    });
    harness.sends("/chat", Class::ServerError, 5);
    for _ in 0..4 {
        harness.advance_secs(3);
        harness.sends("/chat", Class::ServerError, 1);
    }
    assert_eq!(harness.state(), HealthState::CacheOnly, "{:?}", harness.log);
}

/// A success of a call from before its path was closed is outdated.
#[test]
fn a_success_from_before_a_path_was_closed_does_not_open_it() {
    let mut harness = called();
    let early = harness.now;
    harness.sends("/broken/1", Class::ServerError, 5);
    assert!(!harness.admits("/broken/1"));
    harness.on(HealthEvent::Completed(AttemptResult {
        path: path("/broken/1"),
        ..AttemptResult::new(Class::Success, early)
    }));
    assert!(!harness.admits("/broken/1"));
}
