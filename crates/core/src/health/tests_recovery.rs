//! The rules of A5, A6 and A15: the length of a sleep, the probes, the ramp.

use super::harness::{Harness, long_sleeps};
use super::{
    Action, BasePace, Class, Counts, HealthEvent, HealthSettings, HealthState, Pace, RampAfter,
    Rate,
};
use crate::ask::{Reopen, ScopeId, Settle};
use crate::ratio::Ppm;
use crate::time::Span;

const SEC: Span = Span::from_secs(1);

/// A5: max(Retry-After, ceiling); the ceiling does not cap the Retry-After.
#[test]
fn sleep_lasts_at_least_as_long_as_retry_after() {
    let sleep_after = |secs| {
        let mut harness = Harness::new(long_sleeps());
        harness.results(Class::Limited, 4).limited_for(secs);
        assert_eq!(harness.state(), HealthState::Sleep);
        harness.closed_for().flatten().unwrap()
    };
    assert_eq!(sleep_after(0), Span::from_secs(30));
    assert_eq!(sleep_after(2), Span::from_secs(30));
    assert_eq!(sleep_after(3_600), Span::from_secs(3_600));
    assert_eq!(sleep_after(32 * 86_400), Span::from_secs(30), "absent (A9)");
}

/// A5: an earlier, longer Retry-After of the same outage stays; a late one extends the sleep.
#[test]
fn the_longest_retry_after_wins() {
    let mut harness = Harness::new(HealthSettings::default());
    harness.limited_for(120).advance_secs(20);
    harness.results(Class::ServerError, 4);
    let remaining = harness.health.status(harness.now).reset_in;
    assert_eq!(remaining, Span::from_millis(99_960));
    let granted = harness.now - SEC;
    harness.result(Class::Limited, granted, Some(Span::from_secs(600)));
    assert_eq!(harness.closed_for(), Some(Some(Span::from_secs(600))));
    harness.advance_secs(599);
    assert_eq!(harness.state(), HealthState::Sleep);
    harness.advance_secs(1);
    assert_eq!(harness.log[1..], ["Sleep -> HalfOpen (sleep_over)"]);
}

/// A5: the cool-down doubles with each failed HalfOpen, up to `sleep_max`, and is reset on Normal.
#[test]
fn each_failed_probe_doubles_the_sleep() {
    let mut harness = Harness::half_open(long_sleeps());
    for sleep in [60, 120, 240, 300, 300] {
        harness.results(Class::Network, 1);
        assert_eq!(harness.closed_for(), Some(Some(Span::from_secs(sleep))));
        harness.advance_secs(sleep);
        assert_eq!(harness.state(), HealthState::HalfOpen);
    }
    harness
        .results(Class::Success, 5)
        .results(Class::ServerError, 5);
    assert_eq!(
        harness.closed_for(),
        Some(Some(Span::from_secs(30))),
        "as at first"
    );
}

/// A5: a success in between cancels the Retry-After of an earlier 429.
#[test]
fn a_success_clears_an_old_retry_after() {
    let mut harness = Harness::new(long_sleeps());
    harness.limited_for(3_600).results(Class::Success, 1);
    harness.results(Class::ServerError, 5);
    assert_eq!(harness.closed_for(), Some(Some(Span::from_secs(30))));
}

/// A2: the window is cleared on entering HalfOpen, from Sleep and from Throttle.
#[test]
fn half_open_starts_with_an_empty_window() {
    let harness = Harness::half_open(HealthSettings {
        sleep_first: Span::from_secs(2),
        ..HealthSettings::default()
    });
    assert_eq!(harness.health.status(harness.now).counts, Counts::default());
    let mut harness = Harness::throttled(HealthSettings::default());
    harness.advance_secs(30).results(Class::Success, 10);
    assert_eq!(harness.state(), HealthState::HalfOpen);
    assert_eq!(harness.health.status(harness.now).counts, Counts::default());
}

/// A4: a call granted just after the decision to sleep, before the ledger knew, is no probe when it
/// times out in HalfOpen; a call granted at the end of the sleep by a clock slightly ahead is one.
#[test]
fn a_call_granted_early_in_the_sleep_is_not_a_probe() {
    let mut harness = Harness::asleep(HealthSettings::default());
    let slipped = harness.now + Span::from_millis(5);
    let early = harness.now + Span::from_millis(29_990);
    harness.advance_secs(31);
    harness.result(Class::Network, slipped, None);
    assert_eq!(harness.state(), HealthState::HalfOpen);
    harness.result(Class::Network, early, None);
    assert_eq!(harness.state(), HealthState::Sleep);
}

/// A6: one call at a time at min(3/s, rate): the next probe goes 1/3 s after the last one went.
#[test]
fn probes_go_one_at_a_time_three_per_second() {
    let mut harness = Harness::half_open(HealthSettings::default());
    let probing = Pace {
        rate: Some(Rate::per_second(3)),
        concurrency: Some(1),
    };
    assert_eq!(harness.pace(), probing);
    harness.results(Class::Success, 1);
    let next = Action::Close {
        age: Span::from_millis(10),
        closed_for: Some(Span(333_334)),
        reopen: Reopen::Probe,
    };
    assert_eq!(harness.last.as_slice(), [next]);
    let scope = ScopeId(7);
    assert!(matches!(
        next.settle(scope),
        Some(Settle::Close {
            scope: ScopeId(7),
            ..
        })
    ));
    harness.results(Class::Other, 1);
    assert_eq!(harness.last.as_slice(), [next], "a 404 frees the slot");
    harness.on(HealthEvent::Dropped {
        granted: harness.now,
        path: None,
    });
    assert!(
        harness.closed_for().is_some(),
        "so does a caller that disconnected"
    );
}

/// A6: HalfOpen after Throttle is local: it closes nothing for other processes.
#[test]
fn half_open_after_throttle_closes_no_scope() {
    let mut harness = Harness::throttled(HealthSettings::default());
    harness.advance_secs(30).results(Class::Success, 10);
    assert_eq!(harness.state(), HealthState::HalfOpen);
    assert_eq!(harness.closed_for(), None);
    harness.results(Class::Success, 5);
    assert_eq!(harness.state(), HealthState::Normal);
    assert!(!harness.opens());
}

/// A6: `probe_concurrency` lets further probes follow while the first is in flight.
#[test]
fn several_concurrent_probes_if_configured() {
    let settings = HealthSettings {
        probe_concurrency: 2,
        ..HealthSettings::default()
    };
    let mut harness = Harness::half_open(settings);
    harness.on(HealthEvent::Granted);
    assert_eq!(harness.closed_for(), Some(Some(Span(333_334))));
    harness.on(HealthEvent::Granted);
    assert_eq!(harness.closed_for(), None, "two are in flight");
}

/// A15: the rate starts at Throttle's and rises ×1.1 every 5 min to the base rate.
#[test]
fn the_rate_ramps_up_after_429s() {
    let mut harness = Harness::throttled(HealthSettings::default());
    harness.advance_secs(30).results(Class::Success, 15);
    assert_eq!(harness.state(), HealthState::Normal);
    let mut rates = Vec::new();
    while let Some(rate) = harness.pace().rate {
        rates.push(rate.to_string());
        harness.advance_secs(300);
    }
    let expected = [
        "17",
        "18.7",
        "20.57",
        "22.627",
        "24.8897",
        "27.37867",
        "30.116537",
        "33.12819",
    ];
    assert_eq!(rates, expected);
    assert_eq!(
        harness.health.status(harness.now).rate,
        Some(Rate::per_second(35))
    );
    assert_eq!(harness.health.next_tick(), None);
}

/// A15: after an outage without 429s the full rate returns at once, unless `after: any`.
#[test]
fn an_outage_without_429s_needs_no_ramp_by_default() {
    let after = |settings| {
        let mut harness = Harness::half_open(settings);
        harness.results(Class::Success, 5);
        assert_eq!(harness.state(), HealthState::Normal);
        harness.pace().rate
    };
    let mut settings = HealthSettings::default();
    assert_eq!(after(settings), None);
    settings.ramp.after = RampAfter::Any;
    assert_eq!(after(settings), Some(Rate::per_second(17)));
}

/// A5: the first sleep is `sleep_first` within `sleep_min` and `sleep_max`.
#[test]
fn a_sleep_is_never_shorter_than_sleep_min() {
    let first = |secs, cooldown_factor| {
        let mut harness = Harness::asleep(HealthSettings {
            sleep_first: Span::from_millis(secs),
            cooldown_factor,
            ..HealthSettings::default()
        });
        let first = harness.closed_for().flatten().unwrap();
        harness.advance(first).results(Class::Network, 1);
        (first, harness.closed_for().flatten().unwrap())
    };
    let (twice, once) = (Ppm(2_000_000), Ppm::ONE);
    let secs = Span::from_secs;
    assert_eq!(first(500, twice), (secs(2), secs(4)));
    assert_eq!(first(500, once), (secs(2), secs(2)));
    assert_eq!(first(900_000, twice), (secs(300), secs(300)));
}

/// A6: the rate of a slow provider is the rate of its probes.
#[test]
fn probes_are_no_faster_than_the_provider_s_rate() {
    let probe_rate = |limit, secs| {
        let base = BasePace {
            rate: Some(Rate::of(limit, Span::from_secs(secs))),
            concurrency: None,
        };
        base.probe_rate(&HealthSettings::default()).to_string()
    };
    assert_eq!(probe_rate(35, 1), "3");
    assert_eq!(probe_rate(2, 1), "2");
    assert_eq!(probe_rate(1, 2), "0.5");
}

/// A6: five successes are not enough while late failures keep the ratio at 10 % or more.
#[test]
fn late_failures_do_not_fail_the_probes() {
    let mut harness = Harness::half_open(HealthSettings::default());
    let granted = harness.now - Span::from_secs(60);
    for _ in 0..5 {
        harness.result(Class::Network, granted, None);
    }
    harness.results(Class::Success, 5);
    assert_eq!(harness.state(), HealthState::HalfOpen, "5 of 10 failed");
    harness.advance_secs(30).results(Class::Success, 2);
    assert_eq!(harness.state(), HealthState::Normal, "they are evicted");
}

/// A15: a base rate that is lowered during the ramp ends it.
#[test]
fn a_lower_base_rate_ends_the_ramp() {
    let mut harness = Harness::throttled(HealthSettings::default());
    harness.advance_secs(30).results(Class::Success, 15);
    assert_eq!(harness.pace().rate, Some(Rate::per_second(17)));
    let base = BasePace {
        rate: Some(Rate::per_second(10)),
        concurrency: None,
    };
    let settings = HealthSettings::default();
    let actions = harness
        .health
        .configure(settings, base, harness.now)
        .unwrap();
    assert_eq!(actions.as_slice(), [Action::Pace(Pace::default())]);
    assert_eq!(
        harness.health.status(harness.now).rate,
        Some(Rate::per_second(10))
    );
}
