//! The breaker (M9, M10), `mode: off`, settings and their change while running (A1, A14).

use super::harness::{Harness, base, breaker, profile_a};
use super::{
    Action, Admission, BlockReason, Breaker, Class, Command, Health, HealthCount, HealthMode,
    HealthScope, HealthSettings, HealthState, Pace, RampAfter, RampSettings, Rate, Reason,
    WhenBlocked,
};
use crate::ratio::Ppm;
use crate::time::{Micros, Span};

/// M9: the breaker's cycle, step by step.
#[test]
fn a_breaker_opens_tests_and_closes() {
    let mut harness = Harness::new(breaker());
    let word = |harness: &Harness| harness.health.status(harness.now).breaker.as_str();
    harness
        .results(Class::Limited, 2)
        .results(Class::ServerError, 1);
    harness
        .results(Class::Success, 1)
        .results(Class::Network, 4);
    assert_eq!(word(&harness), "closed", "four in a row");
    harness.results(Class::Limited, 1);
    assert_eq!(
        (word(&harness), harness.state()),
        ("open", HealthState::Sleep)
    );
    assert_eq!(harness.closed_for(), Some(Some(Span::from_secs(300))));
    harness.advance(Span::from_millis(299_999));
    assert_eq!(word(&harness), "open");
    harness.advance(Span::from_millis(1));
    assert_eq!(word(&harness), "half_open");
    harness.results(Class::Success, 1);
    assert_eq!(word(&harness), "half_open", "one is not enough");
    assert_eq!(
        harness.closed_for(),
        Some(Some(Span::ZERO)),
        "the next may go at once"
    );
    harness.results(Class::Success, 1);
    assert_eq!(word(&harness), "closed");
    assert!(harness.opens());
    assert_eq!(harness.pace(), Pace::default());
}

/// M9: one failure in half-open opens it again, for the same time.
#[test]
fn a_failed_test_call_opens_the_breaker_again() {
    let mut harness = Harness::half_open(breaker());
    harness
        .results(Class::Success, 1)
        .results(Class::Limited, 1);
    assert_eq!(harness.state(), HealthState::Sleep);
    assert_eq!(harness.closed_for(), Some(Some(Span::from_secs(300))));
    harness.advance_secs(300).results(Class::Success, 2);
    assert_eq!(harness.state(), HealthState::Normal);
}

/// M10: the message and numbers of the rejection.
#[test]
fn the_rejection_of_an_open_breaker_has_its_numbers() {
    let mut harness = Harness::new(breaker());
    harness.results(Class::ServerError, 5).advance_secs(60);
    let status = harness.health.status(harness.now);
    assert_eq!(status.failure_count, 5);
    assert_eq!(status.reset_in, Span::from_secs(240));
    assert_eq!(status.state.as_str(), "sleep");
    assert_eq!(
        Breaker::Open.message("tmdb"),
        "Circuit breaker is open for tmdb"
    );
    let closed = Admission::Closed {
        why: BlockReason::Sleep,
        remaining: Some(Span::from_secs(240)),
        blocked: WhenBlocked::Reject,
    };
    assert_eq!(harness.health.admission(harness.now), closed);
}

/// A14: settings change while running; no count is lost, and a state that a mode lacks ends.
#[test]
fn settings_change_while_running() {
    let mut harness = Harness::throttled(HealthSettings::default());
    let mut settings = HealthSettings {
        throttle_factor: Ppm::percent(20),
        ..HealthSettings::default()
    };
    let actions = harness
        .health
        .configure(settings, base(), harness.now)
        .unwrap();
    assert!(matches!(
        actions[..],
        [Action::Pace(Pace {
            concurrency: Some(1),
            ..
        })]
    ));
    assert_eq!(harness.health.status(harness.now).consec429, 3);
    settings.mode = HealthMode::Breaker;
    let actions = harness
        .health
        .configure(settings, base(), harness.now)
        .unwrap();
    harness.record(actions);
    assert_eq!(harness.log[1..], ["Throttle -> Normal (policy)"]);
    settings.confirm = 0;
    assert!(
        harness
            .health
            .configure(settings, base(), harness.now)
            .is_err()
    );
}

/// A1: with `mode: off` results change nothing; operators' commands do.
#[test]
fn with_mode_off_only_operators_change_the_state() {
    let settings = HealthSettings {
        mode: HealthMode::Off,
        ..HealthSettings::default()
    };
    let mut harness = Harness::new(settings);
    harness
        .results(Class::Limited, 50)
        .results(Class::Network, 50);
    assert_eq!(harness.log, [""; 0]);
    harness.command(Command::Offline).command(Command::Resume);
    assert_eq!(
        harness.log,
        ["Normal -> Sleep (operator)", "Sleep -> Normal (operator)"]
    );
}

/// A1: every default is valid, and every invalid value is reported, all at once.
#[test]
fn every_invalid_setting_is_reported() {
    for settings in [HealthSettings::default(), profile_a(), breaker()] {
        assert_eq!(settings.check(), []);
    }
    let settings = HealthSettings {
        p_recover: Ppm::ZERO,
        p_sleep: Ppm::percent(10),
        confirm: 0,
        window_results: 0,
        sleep_min: Span::from_secs(400),
        probe_concurrency: 65,
        auto_recover: Some(Span::ZERO),
        mode: HealthMode::Breaker,
        failure_threshold: None,
        probe_rate: Rate::per_second(0),
        ..HealthSettings::default()
    };
    let problems = Health::new(settings, base(), Micros(0)).unwrap_err();
    let mut named: Vec<&str> = problems.iter().map(|problem| problem.setting).collect();
    named.sort_unstable();
    let expected = [
        "health.auto_recover",
        "health.confirm",
        "health.failure_threshold",
        "health.min_results",
        "health.p_recover",
        "health.p_sleep",
        "health.probe_concurrency",
        "health.probe_rate",
        "health.sleep_min",
        "health.window_results",
    ];
    assert_eq!(named, expected);
    assert_eq!(
        problems[0].to_string(),
        "health.window_results: must be between 1 and 10000; write `300`"
    );
}

/// A1: every setting of the documentation, with its default.
#[test]
fn the_defaults_are_the_documented_ones() {
    let (secs, ppm) = (Span::from_secs, |percent| Ppm::percent(percent));
    let documented = HealthSettings {
        mode: HealthMode::Adaptive,
        scope: HealthScope::Path,
        count: HealthCount::Call,
        window: secs(30),
        window_results: 300,
        min_results: 10,
        confirm: 2,
        p_throttle: ppm(20),
        n_throttle: 3,
        throttle_factor: ppm(50),
        throttle_min_rate: Rate::per_second(5),
        throttle_min_concurrency: 1,
        p_recover: ppm(10),
        s_recover: 10,
        n_cacheonly: 5,
        p_sleep: ppm(60),
        p_sleep_for: secs(5 * 60),
        sleep_min: secs(2),
        sleep_max: secs(300),
        cooldown_factor: ppm(120),
        sleep_first: secs(2),
        retry_after_floor: secs(1),
        probe_success: 5,
        probe_rate: Rate::per_second(3),
        probe_concurrency: 1,
        p_probe: ppm(10),
        ramp: RampSettings {
            factor: ppm(110),
            every: secs(5 * 60),
            after: RampAfter::Limited,
        },
        auto_recover: None,
        cache_only_after: None,
        when_blocked: WhenBlocked::Wait,
        failure_threshold: Some(5),
        reset_timeout: secs(5 * 60),
        success_threshold: 2,
    };
    assert_eq!(HealthSettings::default(), documented);
}

/// A1, M9: the health states and the breaker states agree.
#[test]
fn breaker_and_health_states_agree() {
    let words = [
        (HealthState::Normal, "Normal", "normal", "closed"),
        (HealthState::Throttle, "Throttle", "throttle", "closed"),
        (HealthState::Sleep, "Sleep", "sleep", "open"),
        (HealthState::HalfOpen, "HalfOpen", "half_open", "half_open"),
        (HealthState::CacheOnly, "CacheOnly", "cache_only", "open"),
    ];
    for (state, name, word, breaker) in words {
        assert_eq!((state.log_name(), state.as_str()), (name, word));
        assert_eq!(state.breaker().as_str(), breaker);
    }
}

/// A16: the names of the reasons for a transition.
#[test]
fn reasons_print_their_documented_names() {
    let reasons = [
        (Reason::ErrRatio, "err_ratio"),
        (Reason::Consec429, "consec_429"),
        (Reason::Failures, "failures"),
        (Reason::SuccessWindowOk, "success_window_ok"),
        (Reason::ProbeOk, "probe_ok"),
        (Reason::ProbeFailed, "probe_failed"),
        (Reason::SleepOver, "sleep_over"),
        (Reason::Operator, "operator"),
        (Reason::AutoRecover, "auto_recover"),
        (Reason::Policy, "policy"),
    ];
    for (reason, word) in reasons {
        assert_eq!(reason.to_string(), word);
    }
}
