//! The rules of A2–A4, A8 and A11: the counts, and the transitions they cause.

use super::harness::{Harness, profile_a};
use super::{
    Action, AttemptResult, BasePace, Class, Counts, Fault, HealthEvent, HealthMode, HealthSettings,
    HealthState, Pace, Rate,
};
use crate::limit::Rule;
use crate::ratio::Ppm;
use crate::time::Span;

const SEC: Span = Span::from_secs(1);

/// A11: every status and error has its class; the dialect wins over the status.
#[test]
fn results_are_classified_by_dialect_status_and_fault() {
    let by_status = |status| Class::of_status(status, None);
    for status in [200, 204, 206, 301, 304] {
        assert_eq!(by_status(status), Class::Success, "{status}");
    }
    for status in [400, 401, 403, 404, 410, 418, 422, 451, 600] {
        assert_eq!(by_status(status), Class::Other, "{status}");
    }
    for status in [500, 502, 503, 504, 529, 599] {
        assert_eq!(by_status(status), Class::ServerError, "{status}");
    }
    assert_eq!(by_status(429), Class::Limited);
    assert_eq!(by_status(408), Class::Network);
    assert_eq!(Class::of_status(401, Some(true)), Class::Limited);
    assert_eq!(Class::of_status(403, Some(true)), Class::Limited);
    assert_eq!(Class::of_status(200, Some(true)), Class::Limited);
    assert_eq!(Class::of_status(503, Some(true)), Class::Limited);
    assert_eq!(Class::of_status(429, Some(false)), Class::Other);
    assert_eq!(Class::of_status(503, Some(false)), Class::ServerError);
    for fault in [Fault::Timeout, Fault::Dns, Fault::Connect, Fault::Reset] {
        assert_eq!(Class::of_fault(fault), Class::Network, "{}", fault.as_str());
    }
}

/// A11: other 4xx are counted separately, are no success and change no state.
#[test]
fn other_4xx_do_not_change_the_state() {
    let mut harness = Harness::new(HealthSettings::default());
    harness
        .results(Class::Limited, 2)
        .results(Class::Other, 400);
    let status = harness.health.status(harness.now);
    assert_eq!(status.state, HealthState::Normal);
    assert_eq!(status.consec429, 2, "a 404 is no success");
    assert_eq!(status.counts.count_other, 300, "bounded");
    assert_eq!(status.counts.total, 2, "outside the ratio");
    harness.results(Class::Limited, 1);
    assert_eq!(harness.log, ["Normal -> Throttle (consec_429)"]);
}

/// A2: the last 30 s or the last 300 results, whichever is fewer.
#[test]
fn the_window_evicts_by_age_and_by_count() {
    let mut harness = Harness::new(HealthSettings {
        mode: HealthMode::Off,
        ..HealthSettings::default()
    });
    harness.results(Class::ServerError, 20);
    harness.results(Class::Success, 290);
    let counts = harness.health.status(harness.now).counts;
    let by_number = Counts {
        count_2xx: 290,
        count_5xx: 10,
        total: 300,
        ..Counts::default()
    };
    assert_eq!(counts, by_number);
    harness.advance_secs(30);
    let status = harness.health.status(harness.now);
    assert_eq!(
        (status.counts, status.err_rate),
        (Counts::default(), Ppm::ZERO)
    );
}

/// A2: `count_2xx`, `count_429`, `count_5xx`, `count_other`, `net_errors`, `total`, and the ratio.
#[test]
fn the_status_shows_every_count() {
    let mut harness = Harness::new(profile_a());
    harness
        .results(Class::Success, 40)
        .results(Class::Limited, 2)
        .results(Class::ServerError, 3)
        .results(Class::Network, 5)
        .results(Class::Other, 7);
    let status = harness.health.status(harness.now);
    let expected = Counts {
        count_2xx: 40,
        count_429: 2,
        count_5xx: 3,
        count_other: 7,
        net_errors: 5,
        total: 50,
    };
    assert_eq!(status.counts, expected);
    assert_eq!(status.err_rate, Ppm::percent(20));
}

/// A2: fewer than ten results are a ratio of 0.
#[test]
fn too_few_results_give_no_ratio() {
    let mut harness = Harness::new(profile_a());
    harness.results(Class::ServerError, 9);
    let status = harness.health.status(harness.now);
    assert_eq!(
        (status.state, status.err_rate),
        (HealthState::Normal, Ppm::ZERO)
    );
    harness.results(Class::ServerError, 1);
    assert_eq!(
        harness.state(),
        HealthState::Normal,
        "once is not confirmed"
    );
    harness.results(Class::ServerError, 1);
    assert_eq!(harness.log, ["Normal -> Throttle (err_ratio)"]);
}

/// A3: rate = min(base, max(5, ⌊base/2⌋)), concurrency = max(1, ⌊base/2⌋).
#[test]
fn throttle_halves_rate_and_concurrency_within_bounds() {
    let harness = Harness::throttled(HealthSettings::default());
    let halved = Pace {
        rate: Some(Rate::per_second(17)),
        concurrency: Some(2),
    };
    assert_eq!(harness.pace(), halved);
    assert!(harness.last.contains(&Action::Pace(halved)));
    let throttled = |limit, period, concurrency| {
        let base = BasePace {
            rate: Some(Rate::of(limit, period)),
            concurrency,
        };
        base.throttled(&HealthSettings::default())
    };
    let slow = throttled(40, Span::from_secs(10), Some(1));
    assert_eq!(
        (slow.rate, slow.concurrency),
        (None, Some(1)),
        "4/s is below 5/s"
    );
    let seven = throttled(7, SEC, None);
    assert_eq!(seven.rate, Some(Rate::per_second(5)), "3 is below 5");
    assert_eq!(seven.concurrency, None);
}

/// A3: the base rate is the tightest limit on calls; a daily quota is no rate.
#[test]
fn the_base_rate_is_the_tightest_limit() {
    let second = Rule::bucket(35, SEC, 35).unwrap();
    let ten = Rule::sliding(100, Span::from_secs(10)).unwrap();
    let day = Rule::sliding(1_000, Span::from_secs(86_400)).unwrap();
    let slots = Rule::in_flight(4).unwrap();
    let base = BasePace::of([&second, &day, &slots, &ten]);
    assert_eq!(base.rate, Some(Rate::per_second(10)));
    assert_eq!(base.concurrency, Some(4));
    assert_eq!(BasePace::of([&day]).rate.unwrap().to_string(), "0.011574");
    assert_eq!(BasePace::of([&slots]).rate, None);
}

/// A4: ten successes in total and a ratio below 10 % end Throttle.
#[test]
fn throttle_ends_after_ten_successes_and_a_low_ratio() {
    let mut harness = Harness::throttled(HealthSettings::default());
    harness
        .results(Class::Success, 9)
        .results(Class::Limited, 1);
    assert_eq!(harness.state(), HealthState::Throttle);
    harness.results(Class::Success, 25);
    assert_eq!(harness.state(), HealthState::Throttle, "4 of 38 are 10.5 %");
    harness.results(Class::Success, 3);
    assert_eq!(
        harness.state(),
        HealthState::Throttle,
        "4 of 41 once is not confirmed"
    );
    harness.results(Class::Success, 1);
    assert_eq!(
        harness.log[1..],
        ["Throttle -> HalfOpen (success_window_ok)"]
    );
}

/// A4: five 429s in a row lead from Throttle to Sleep.
#[test]
fn throttle_becomes_sleep_after_five_429s_in_a_row() {
    let mut harness = Harness::throttled(profile_a());
    harness.results(Class::Limited, 2);
    assert_eq!(harness.log[1..], ["Throttle -> Sleep (consec_429)"]);
    assert_eq!(harness.closed_for(), Some(Some(Span::from_secs(30))));
}

/// A4: a ratio of 60 % or more that lasts for five minutes leads from Throttle to Sleep.
#[test]
fn throttle_becomes_sleep_after_five_minutes_of_many_failures() {
    let mut harness = Harness::new(profile_a());
    let mut seconds = 0;
    while harness.state() != HealthState::Sleep && seconds < 1_000 {
        harness
            .results(Class::ServerError, 2)
            .results(Class::Success, 1);
        harness.advance_secs(1);
        seconds += 1;
    }
    assert_eq!(
        harness.log,
        [
            "Normal -> Throttle (err_ratio)",
            "Throttle -> Sleep (err_ratio)"
        ]
    );
    assert!((290..=300).contains(&seconds), "{seconds}");
}

/// A4: five failures of any class in a row lead to Sleep, from Normal and from Throttle.
#[test]
fn five_failures_in_a_row_lead_to_sleep() {
    let mut harness = Harness::new(HealthSettings::default());
    harness
        .results(Class::ServerError, 2)
        .results(Class::Network, 1)
        .results(Class::Limited, 2);
    assert_eq!(harness.log, ["Normal -> Sleep (failures)"]);
    let mut harness = Harness::throttled(HealthSettings::default());
    harness.results(Class::Network, 2);
    assert_eq!(harness.log[1..], ["Throttle -> Sleep (failures)"]);
}

/// A3: consecutive 429s are 429s without anything else between them, but for other 4xx.
#[test]
fn a_server_error_resets_the_count_of_consecutive_429s() {
    let mut harness = Harness::new(HealthSettings::default());
    harness
        .results(Class::Limited, 2)
        .results(Class::ServerError, 1);
    harness.results(Class::Limited, 1);
    let status = harness.health.status(harness.now);
    assert_eq!((status.consec429, status.failure_count), (1, 4));
    assert_eq!(status.state, HealthState::Normal);
}

/// A4: profile A has no failure threshold, and a success resets every consecutive count.
#[test]
fn a_success_resets_every_consecutive_count() {
    let mut harness = Harness::new(profile_a());
    harness.results(Class::ServerError, 9);
    assert_eq!(harness.state(), HealthState::Normal);
    let mut harness = Harness::new(HealthSettings::default());
    for _ in 0..30 {
        harness
            .results(Class::Success, 19)
            .results(Class::Limited, 2);
    }
    assert_eq!(harness.log, [""; 0]);
}

/// A4: results of calls granted before the scope closed count in the ratio only.
#[test]
fn late_results_advance_no_consecutive_count() {
    let mut harness = Harness::asleep(HealthSettings::default());
    let granted = harness.now - SEC;
    for _ in 0..4 {
        harness.result(Class::ServerError, granted, None);
    }
    let status = harness.health.status(harness.now);
    assert_eq!((status.failure_count, status.counts.count_5xx), (5, 9));
    harness.advance_secs(30);
    assert_eq!(harness.state(), HealthState::HalfOpen);
    harness.result(Class::ServerError, granted, None);
    assert_eq!(
        harness.state(),
        HealthState::HalfOpen,
        "an old failure is no failed probe"
    );
    for _ in 0..9 {
        harness.result(Class::Success, granted, None);
    }
    assert_eq!(
        harness.state(),
        HealthState::HalfOpen,
        "an old success is no probe"
    );
    assert_eq!(harness.health.status(harness.now).counts.total, 10);
}

/// A8: a ratio condition that holds once, fails once and holds again is not confirmed.
#[test]
fn a_fluctuating_ratio_changes_no_state() {
    let settings = HealthSettings {
        n_throttle: 100,
        ..profile_a()
    };
    let mut harness = Harness::new(settings);
    harness
        .results(Class::Success, 40)
        .results(Class::Network, 9);
    for _ in 0..20 {
        harness
            .results(Class::Network, 1)
            .results(Class::Success, 4);
    }
    assert_eq!(harness.log, [""; 0]);
}

/// A4: the same for calls granted before a cool-down closed their scope: five concurrent 429s
/// count as one.
#[test]
fn results_from_before_a_cooldown_advance_no_consecutive_count() {
    let mut harness = Harness::new(HealthSettings::default());
    let limited = AttemptResult::new(Class::Limited, harness.now);
    harness.on(HealthEvent::Completed(limited));
    for _ in 0..4 {
        harness.on(HealthEvent::CompletedLate(limited));
    }
    let status = harness.health.status(harness.now);
    assert_eq!((status.consec429, status.failure_count), (1, 1));
    assert_eq!(status.counts.count_429, 5, "they count in the ratio");
    assert_eq!(harness.log, [""; 0]);
    for _ in 0..7 {
        harness.on(HealthEvent::CompletedLate(limited));
    }
    assert_eq!(harness.log, ["Normal -> Throttle (err_ratio)"]);
}

/// A8: consecutive counts need no confirmation, nor does a failed probe.
#[test]
fn consecutive_counts_act_at_once() {
    let settings = HealthSettings {
        confirm: 50,
        ..HealthSettings::default()
    };
    let mut harness = Harness::throttled(settings);
    assert_eq!(harness.log, ["Normal -> Throttle (consec_429)"]);
    harness.results(Class::Limited, 2);
    assert_eq!(harness.log[1..], ["Throttle -> Sleep (consec_429)"]);
    let mut harness = Harness::half_open(settings);
    harness.results(Class::ServerError, 1);
    assert_eq!(
        harness.log.last().unwrap(),
        "HalfOpen -> Sleep (probe_failed)"
    );
}

/// A3: the ratio is reached at exactly 20 %, not below.
#[test]
fn twenty_percent_failures_throttle_and_fewer_do_not() {
    let failing = |successes, failures| {
        let settings = HealthSettings {
            confirm: 1,
            ..profile_a()
        };
        let mut harness = Harness::new(settings);
        harness.results(Class::Success, successes);
        harness.results(Class::ServerError, failures);
        harness.state()
    };
    assert_eq!(failing(8, 2), HealthState::Throttle);
    assert_eq!(failing(9, 2), HealthState::Normal, "18 %");
}

/// A4: a ratio of 60 % must last: a lower ratio in between restarts the five minutes.
#[test]
fn a_lower_ratio_restarts_the_five_minutes() {
    let mut harness = Harness::new(profile_a());
    let minutes = |harness: &mut Harness, minutes: u64| {
        for _ in 0..minutes * 60 {
            harness
                .results(Class::ServerError, 2)
                .results(Class::Success, 1);
            harness.advance(Span::from_millis(970));
        }
        harness.state()
    };
    assert_eq!(minutes(&mut harness, 4), HealthState::Throttle);
    harness.results(Class::Success, 30);
    assert_eq!(minutes(&mut harness, 4), HealthState::Throttle);
    assert_eq!(minutes(&mut harness, 2), HealthState::Sleep);
}
