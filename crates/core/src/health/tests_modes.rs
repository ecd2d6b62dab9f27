//! The breaker (M9, M10), `mode: off`, settings and their change while running (A1, A14).

use super::bench::{Bench, base, breaker, profile_a};
use super::{
    Action, Breaker, Class, Command, Door, Health, HealthSettings, Mode, Pace, RampAfter,
    RampSettings, Rate, Reason, State, WhenBlocked, Why,
};
use crate::ratio::Ppm;
use crate::time::{Micros, Span};

/// M9: the breaker's life, step by step.
#[test]
fn a_breaker_opens_tests_and_closes() {
    let mut bench = Bench::new(breaker());
    let word = |bench: &Bench| bench.health.status(bench.now).breaker.word();
    bench
        .answers(Class::Refused, 2)
        .answers(Class::ServerError, 1);
    bench.answers(Class::Success, 1).answers(Class::Network, 4);
    assert_eq!(word(&bench), "closed", "four in a row");
    bench.answers(Class::Refused, 1);
    assert_eq!((word(&bench), bench.state()), ("open", State::Sleep));
    assert_eq!(bench.rest(), Some(Some(Span::from_secs(300))));
    bench.pass(Span::from_millis(299_999));
    assert_eq!(word(&bench), "open");
    bench.pass(Span::from_millis(1));
    assert_eq!(word(&bench), "half_open");
    bench.answers(Class::Success, 1);
    assert_eq!(word(&bench), "half_open", "one is not enough");
    assert_eq!(
        bench.rest(),
        Some(Some(Span::ZERO)),
        "the next may go at once"
    );
    bench.answers(Class::Success, 1);
    assert_eq!(word(&bench), "closed");
    assert!(bench.opens());
    assert_eq!(bench.pace(), Pace::default());
}

/// M9: one failure in half-open opens it again, for the same time.
#[test]
fn a_failed_test_call_opens_the_breaker_again() {
    let mut bench = Bench::half_open(breaker());
    bench.answers(Class::Success, 1).answers(Class::Refused, 1);
    assert_eq!(bench.state(), State::Sleep);
    assert_eq!(bench.rest(), Some(Some(Span::from_secs(300))));
    bench.secs(300).answers(Class::Success, 2);
    assert_eq!(bench.state(), State::Normal);
}

/// M10: the words and numbers of the refusal.
#[test]
fn the_refusal_of_an_open_breaker_has_its_numbers() {
    let mut bench = Bench::new(breaker());
    bench.answers(Class::ServerError, 5).secs(60);
    let status = bench.health.status(bench.now);
    assert_eq!(status.failure_count, 5);
    assert_eq!(status.reset_in, Span::from_secs(240));
    assert_eq!(status.state.word(), "sleep");
    assert_eq!(
        Breaker::Open.message("tmdb"),
        "Circuit breaker is open for tmdb"
    );
    let door = Door::Closed {
        why: Why::Sleep,
        left: Some(Span::from_secs(240)),
        blocked: WhenBlocked::Reject,
    };
    assert_eq!(bench.health.door(bench.now), door);
}

/// A14: settings change while running; no count is lost, and a state that a mode lacks ends.
#[test]
fn settings_change_while_running() {
    let mut bench = Bench::throttled(HealthSettings::default());
    let mut settings = HealthSettings {
        throttle_factor: Ppm::percent(20),
        ..HealthSettings::default()
    };
    let actions = bench.health.configure(settings, base(), bench.now).unwrap();
    assert!(matches!(
        actions[..],
        [Action::Pace(Pace {
            concurrency: Some(1),
            ..
        })]
    ));
    assert_eq!(bench.health.status(bench.now).consec429, 3);
    settings.mode = Mode::Breaker;
    let actions = bench.health.configure(settings, base(), bench.now).unwrap();
    bench.note(actions);
    assert_eq!(bench.log[1..], ["Throttle -> Normal (policy)"]);
    settings.confirm = 0;
    assert!(bench.health.configure(settings, base(), bench.now).is_err());
}

/// A1: with `mode: off` answers move nothing, operators still can.
#[test]
fn off_is_moved_by_operators_only() {
    let settings = HealthSettings {
        mode: Mode::Off,
        ..HealthSettings::default()
    };
    let mut bench = Bench::new(settings);
    bench
        .answers(Class::Refused, 50)
        .answers(Class::Network, 50);
    assert_eq!(bench.log, [""; 0]);
    bench.order(Command::Offline).order(Command::Resume);
    assert_eq!(
        bench.log,
        ["Normal -> Sleep (operator)", "Sleep -> Normal (operator)"]
    );
}

/// A1: every default is sound, and every senseless value is named, all at once.
#[test]
fn senseless_settings_are_all_named() {
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
        mode: Mode::Breaker,
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
        mode: Mode::Adaptive,
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
        cooldown_factor: ppm(200),
        sleep_first: secs(30),
        retry_after_floor: secs(1),
        probe_success: 5,
        probe_rate: Rate::per_second(3),
        probe_concurrency: 1,
        p_probe: ppm(10),
        ramp: RampSettings {
            factor: ppm(110),
            every: secs(5 * 60),
            after: RampAfter::Refusals,
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

/// A1, M9: one machine, two vocabularies.
#[test]
fn both_vocabularies_agree() {
    let words = [
        (State::Normal, "Normal", "normal", "closed"),
        (State::Throttle, "Throttle", "throttle", "closed"),
        (State::Sleep, "Sleep", "sleep", "open"),
        (State::HalfOpen, "HalfOpen", "half_open", "half_open"),
        (State::CacheOnly, "CacheOnly", "cache_only", "open"),
    ];
    for (state, name, word, breaker) in words {
        assert_eq!((state.name(), state.word()), (name, word));
        assert_eq!(state.breaker().word(), breaker);
    }
}

/// A16: the words for why a state changed.
#[test]
fn reasons_have_their_words() {
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
