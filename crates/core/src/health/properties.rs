//! Properties of every sequence of events: no flapping, no stuck state, bounds, and a window that
//! counts like a naive one.

use proptest::prelude::*;
use proptest::test_runner::RngSeed;

use super::harness::{Harness, breaker, profile_a};
use super::{
    Action, AttemptResult, Class, Command, HealthEvent, HealthMode, HealthScope, HealthSettings,
    HealthState, Reason,
};
use crate::ask::PathTag;
use crate::ratio::Ppm;
use crate::scope::ScopeView;
use crate::time::{Micros, Span};

/// The paths that calls go to.
const PATHS: [&str; 3] = ["/a", "/b", "/c"];

/// One event of a random sequence.
#[derive(Clone, Copy, Debug)]
enum TestEvent {
    Result {
        class: Class,
        age_ms: u64,
        wait: u64,
        path: Option<&'static str>,
    },
    Command(Command),
    Shared(ScopeView),
    Nothing,
}

fn class() -> impl Strategy<Value = Class> {
    prop_oneof![
        4 => Just(Class::Success),
        2 => Just(Class::Limited),
        2 => Just(Class::ServerError),
        1 => Just(Class::Network),
        1 => Just(Class::Other),
    ]
}

fn results() -> impl Strategy<Value = TestEvent> {
    let path = prop::option::of(prop::sample::select(&PATHS[..]));
    (class(), 0..5_000_u64, 0..200_u64, path).prop_map(|(class, age_ms, wait, path)| {
        TestEvent::Result {
            class,
            age_ms,
            wait,
            path,
        }
    })
}

fn any_event() -> impl Strategy<Value = TestEvent> {
    let seconds = |remaining: u64| ScopeView::Closed {
        remaining: Some(Span::from_secs(remaining)),
    };
    prop_oneof![
        20 => results(),
        1 => Just(TestEvent::Command(Command::Offline)),
        1 => Just(TestEvent::Command(Command::Resume)),
        1 => Just(TestEvent::Command(Command::Reset)),
        1 => (1..4_000_u64).prop_map(|s| TestEvent::Command(Command::CacheOnly {
            lasts: (s < 2_000).then(|| Span::from_secs(s)),
        })),
        1 => (0..400_u64).prop_map(move |s| TestEvent::Shared(seconds(s))),
        1 => Just(TestEvent::Shared(ScopeView::Open)),
        1 => Just(TestEvent::Shared(ScopeView::Probing)),
        1 => Just(TestEvent::Shared(ScopeView::Closed { remaining: None })),
        1 => Just(TestEvent::Shared(ScopeView::CacheOnly { remaining: None })),
        1 => Just(TestEvent::Nothing),
    ]
}

fn event_sequence(
    happens: impl Strategy<Value = TestEvent>,
) -> impl Strategy<Value = Vec<(u64, TestEvent)>> {
    let gap = prop_oneof![8 => 0..300_u64, 1 => 0..400_000_u64];
    prop::collection::vec((gap, happens), 0..250)
}

fn settings() -> impl Strategy<Value = HealthSettings> {
    let minutes = prop::option::of(1..40_u64);
    (0..3_usize, minutes.clone(), minutes, 1..4_u32).prop_map(|(which, auto, after, confirm)| {
        HealthSettings {
            auto_recover: auto.map(|minutes| Span::from_secs(minutes * 60)),
            cache_only_after: after.map(|minutes| Span::from_secs(minutes * 60)),
            confirm,
            ..[HealthSettings::default(), profile_a(), breaker()][which]
        }
    })
}

fn config() -> ProptestConfig {
    ProptestConfig {
        cases: 128,
        rng_seed: RngSeed::Fixed(0x6865_616c),
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

impl Harness {
    fn apply(&mut self, gap_ms: u64, what: TestEvent) {
        self.advance(Span::from_millis(gap_ms));
        match what {
            TestEvent::Result {
                class,
                age_ms,
                wait,
                path,
            } => {
                let granted = self.now - Span::from_millis(age_ms);
                self.on(HealthEvent::Completed(AttemptResult {
                    retry_after: (wait < 100).then(|| Span::from_secs(wait)),
                    path: path.map(PathTag::of),
                    ..AttemptResult::new(class, granted)
                }))
            }
            TestEvent::Command(command) => self.command(command),
            TestEvent::Shared(view) => self.view(view),
            TestEvent::Nothing => self.on(HealthEvent::Tick),
        };
    }
}

/// Why the last actions moved the state, if they did.
fn reasons(harness: &Harness) -> Vec<Reason> {
    let reason = |action: &Action| match action {
        Action::Transition { reason, .. } => Some(*reason),
        Action::Close { .. }
        | Action::Open
        | Action::Failed { .. }
        | Action::PathFailed { .. }
        | Action::ClosePath { .. }
        | Action::OpenPath { .. }
        | Action::Succeeded
        | Action::Pace(_) => None,
    };
    harness.last.iter().filter_map(reason).collect()
}

proptest! {
    #![proptest_config(config())]

    /// A8: no flapping. Whatever the results, a transition by ratio needs `confirm` counted results
    /// in its state, a recovery needs its successes.
    #[test]
    fn a_state_is_never_left_early(settings in settings(), events in event_sequence(results())) {
        let mut harness = Harness::new(settings);
        let probes = match settings.mode {
            HealthMode::Adaptive | HealthMode::Off => settings.probe_success,
            HealthMode::Breaker => settings.success_threshold,
        };
        let (mut results, mut successes) = (0_u32, 0_u32);
        for (gap, what) in events {
            let before = (harness.state(), harness.log.len());
            harness.advance(Span::from_millis(gap));
            if harness.log.len() != before.1 {
                (results, successes) = (0, 0);
            }
            let moved = harness.log.len();
            harness.apply(0, what);
            let (mut result, mut success) = (0, 0);
            if let TestEvent::Result { class, .. } = what {
                result = u32::from(class != Class::Other);
                success = u32::from(class == Class::Success);
            }
            (results, successes) = (results + result, successes + success);
            // The only path that is called counts for itself: it may open or close the provider.
            let by_path = settings.scope == HealthScope::Path;
            for reason in reasons(&harness) {
                match reason {
                    Reason::ProbeOk | Reason::Failures if by_path => {}
                    Reason::ErrRatio => prop_assert!(results >= settings.confirm.max(1)),
                    Reason::SuccessWindowOk => prop_assert!(successes >= settings.s_recover),
                    Reason::ProbeOk => prop_assert!(successes >= probes),
                    Reason::Consec429 => prop_assert!(harness.health.consecutive.limited >= 3),
                    Reason::Failures => prop_assert!(harness.health.consecutive.failed >= 5),
                    Reason::ProbeFailed | Reason::SleepOver | Reason::Policy => {}
                    Reason::Operator | Reason::AutoRecover => prop_assert!(false, "{reason}"),
                }
            }
            if harness.log.len() != moved {
                // The result that ends a sleep is the first probe.
                let is_first = reasons(&harness) == [Reason::SleepOver];
                (results, successes) = if is_first { (result, success) } else { (0, 0) };
            }
        }
    }

    /// A1, A5, A7: no stuck state. After any sequence of events, time and successes lead to Normal,
    /// unless an operator holds it.
    #[test]
    fn successes_and_time_lead_to_normal(settings in settings(), events in event_sequence(any_event())) {
        let mut harness = Harness::new(settings);
        for (gap, what) in events {
            harness.apply(gap, what);
        }
        let is_held = |harness: &Harness| {
            harness.health.status(harness.now).breaker.as_str() == "open"
                && harness.health.next_tick().is_none()
        };
        for _ in 0..400 {
            if harness.state() == HealthState::Normal || is_held(&harness) {
                break;
            }
            let tick = harness.health.next_tick().unwrap_or(harness.now);
            let wait = tick.since(harness.now).max(Span::from_secs(1));
            harness.advance(wait).results(Class::Success, 1);
            for path in PATHS {
                harness.sends(path, Class::Success, 1);
            }
        }
        prop_assert!(harness.state() == HealthState::Normal || is_held(&harness), "{:?}", harness.health);
    }

    /// A5: a Sleep is never shorter than `sleep_min` nor, without a Retry-After, longer than
    /// `sleep_max`; the next tick never lies in the past.
    #[test]
    fn sleeps_stay_within_their_bounds(events in event_sequence(results())) {
        let settings = HealthSettings::default();
        let mut harness = Harness::new(settings);
        for (gap, what) in events {
            let what = match what {
                TestEvent::Result { class, age_ms, path, .. } => {
                    TestEvent::Result { class, age_ms, wait: 200, path }
                }
                TestEvent::Command(_) | TestEvent::Shared(_) | TestEvent::Nothing => what,
            };
            harness.apply(gap, what);
            if let Some(remaining) = harness.health.status(harness.now).sleep_remaining {
                prop_assert!(remaining <= settings.sleep_max);
            }
            prop_assert!(harness.health.next_tick().is_none_or(|tick| tick > harness.now));
        }
    }

    /// A2: the window counts what a naive one counts.
    #[test]
    fn the_window_counts_like_a_naive_one(results in prop::collection::vec((class(), 0..900_u64), 1..900)) {
        let bounds = HealthSettings::default().window_bounds();
        let mut window = super::window::ResultWindow::default();
        let mut now = Micros(0);
        let mut all = Vec::new();
        for (class, gap_ms) in results {
            now += Span::from_millis(gap_ms);
            window.add(class, None, bounds, now);
            if class != Class::Other {
                all.push((now, class));
            }
        }
        let last = &all[all.len().saturating_sub(300)..];
        let recent = last.iter().filter(|(at, _)| now.since(*at) < Span::from_secs(30));
        let (total, failed) = recent.fold((0, 0), |(total, failed), (_, class)| {
            (total + 1, failed + u64::from(class.is_failure()))
        });
        let counts = window.counts(bounds, now);
        prop_assert_eq!((counts.total, counts.failures()), (total, failed));
        let expected = if total < 10 { Ppm::ZERO } else { Ppm::of(failed, total) };
        prop_assert_eq!(window.ratio(bounds, now), expected);
    }
}
