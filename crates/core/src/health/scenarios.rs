//! The document's test scenarios (A18), in virtual time.

use super::harness::{Harness, long_sleeps, profile_a};
use super::{Admission, Class, HealthSettings, HealthState};
use crate::ask::Priority;
use crate::backoff::Dice;
use crate::cooldown::{Cooldown, CooldownSettings, ProviderWait};
use crate::retry::{Budget, FailedAttempt, RetryDecision, RetrySettings, Safety};
use crate::time::{Micros, Span};

/// A18, scenario 1: `Retry-After: 2` → the call waits 2 s, then succeeds; 0 and the past are 1 s,
/// a malformed one is absent, and the backoff applies.
#[test]
fn a18_1_retry_after_is_honoured() {
    let now = Micros(1_000_000_000);
    let settings = RetrySettings::default();
    let mut budget = Budget::new(&settings.budget, now);
    let mut again = |retry_after| {
        let failed = FailedAttempt {
            priority: Priority::Normal,
            used: 0,
            class: Class::Limited,
            timeouts: None,
            retry_after,
            safety: Safety::Idempotent,
            probe: false,
            caller_retries: false,
            time_remaining: Some(Span::from_secs(60)),
        };
        match settings.decide(&failed, &mut budget, Dice(u64::MAX), now) {
            RetryDecision::Again { after, .. } => after,
            RetryDecision::Stop(stop) => panic!("{stop:?}"),
        }
    };
    assert_eq!(again(Some(Span::from_secs(2))), Span::from_secs(2));
    assert_eq!(again(Some(Span::ZERO)), Span::from_secs(1));
    assert_eq!(again(None), Span::from_millis(1_500), "backoff");
    let mut cooldown = Cooldown::default();
    let stated = ProviderWait {
        retry_after: Some(Span::from_secs(2)),
        reset_after: None,
    };
    let cooldown_for = cooldown.on_limited(&CooldownSettings::default(), now, stated, Dice(7), now);
    assert_eq!(cooldown_for, Some(Span::from_secs(2)));
    assert!(cooldown.remaining(now + Span::from_millis(1_999)).is_some());
    assert_eq!(cooldown.remaining(now + Span::from_secs(2)), None);
}

/// A18, scenario 3: 11 failures among 50 results (22 %) → Throttle, and not before.
#[test]
fn a18_3_eleven_failures_of_fifty_throttle() {
    let mut harness = Harness::new(profile_a());
    harness.results(Class::Success, 15);
    for _ in 0..8 {
        harness.results(Class::ServerError, 1);
        harness.results(Class::Success, 3);
    }
    harness.results(Class::Network, 2);
    assert_eq!(
        harness.state(),
        HealthState::Normal,
        "10 of 49 once, not confirmed"
    );
    harness.results(Class::Network, 1);
    let status = harness.health.status(harness.now);
    assert_eq!((status.counts.failures(), status.counts.total), (11, 50));
    assert_eq!(status.err_rate.to_string(), "0.22");
    assert_eq!(harness.log, ["Normal -> Throttle (err_ratio)"]);
}

/// A18, scenario 4: five of five probes → Normal; one failure among three → Sleep again.
#[test]
fn a18_4_probes_decide() {
    let mut harness = Harness::half_open(HealthSettings::default());
    harness.results(Class::Success, 5);
    assert_eq!(harness.log.last().unwrap(), "HalfOpen -> Normal (probe_ok)");
    let mut harness = Harness::half_open(HealthSettings::default());
    harness
        .results(Class::Success, 2)
        .results(Class::ServerError, 1);
    assert_eq!(
        harness.log.last().unwrap(),
        "HalfOpen -> Sleep (probe_failed)"
    );
}

/// A18, scenario 5: DNS and connect errors lead to Throttle, 404s do not.
#[test]
fn a18_5_network_errors_throttle_and_404s_do_not() {
    let run = |class| {
        let mut harness = Harness::new(profile_a());
        for _ in 0..20 {
            harness.results(Class::Success, 3).results(class, 1);
        }
        harness.state()
    };
    assert_eq!(run(Class::Network), HealthState::Throttle);
    assert_eq!(run(Class::Other), HealthState::Normal);
}

/// The class of the provider's responses in the long run, by the minute.
fn class_by_minute(minute: u64, dice: u64) -> Class {
    match minute % 60 {
        10..=14 => Class::ServerError,
        20..=24 if dice.is_multiple_of(3) => Class::Network,
        30..=31 => Class::Limited,
        40..=49 if dice.is_multiple_of(8) => Class::ServerError,
        _ if dice.is_multiple_of(20) => Class::Other,
        _ => Class::Success,
    }
}

/// The result of one long run.
struct LongRun {
    harness: Harness,
    sent: u64,
    sent_into_outage: u64,
    stored_max: usize,
}

fn run_for_hours(settings: HealthSettings, hours: u64) -> LongRun {
    let mut harness = Harness::new(settings);
    let (began, mut dice) = (harness.now, 42_u64);
    let (mut sent, mut sent_into_outage, mut stored_max) = (0, 0, 0);
    while harness.now.since(began) < Span::from_secs(hours * 3_600) {
        let rate = harness.health.status(harness.now).rate.unwrap();
        harness.advance(rate.gap());
        match harness.health.admission(harness.now) {
            Admission::Closed { .. } => continue,
            Admission::Open | Admission::Probing => {}
        }
        dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let minute = harness.now.since(began).0 / 60_000_000;
        let class = class_by_minute(minute, dice >> 33);
        harness.result(class, harness.now, None);
        sent += 1;
        sent_into_outage += u64::from((10..=14).contains(&(minute % 60)));
        stored_max = stored_max.max(harness.health.window.stored());
    }
    LongRun {
        harness,
        sent,
        sent_into_outage,
        stored_max,
    }
}

/// A18, scenario 7: three hours of alternating failures and successes. Memory is bounded, the
/// transitions are few and each is in the document's diagram, and the final successes end in
/// Normal.
#[test]
fn a18_7_three_hours() {
    let run = run_for_hours(profile_a(), 3);
    assert!(run.sent > 150_000, "{}", run.sent);
    assert!(run.stored_max <= 600, "{}", run.stored_max);
    let edges = [
        "Normal -> Throttle",
        "Throttle -> Sleep",
        "Throttle -> HalfOpen",
        "Sleep -> HalfOpen",
        "HalfOpen -> Sleep",
        "HalfOpen -> Normal",
    ];
    for line in &run.harness.log {
        assert!(edges.iter().any(|edge| line.starts_with(edge)), "{line}");
    }
    let transitions = run.harness.log.len();
    assert!((18..=150).contains(&transitions), "{transitions}");
    let status = run.harness.health.status(run.harness.now);
    assert_eq!(status.state, HealthState::Normal);
}

/// A18 and W4: with the default threshold an outage of five minutes costs at most 15 calls with the
/// document's sleeps, and ten more with the default ones, which recover within seconds.
#[test]
fn a18_7_few_calls_are_sent_during_an_outage() {
    for (settings, most) in [(long_sleeps(), 15), (HealthSettings::default(), 25)] {
        let run = run_for_hours(settings, 3);
        let per_outage = run.sent_into_outage / 3;
        assert!(per_outage <= most, "{per_outage}");
        assert_eq!(run.harness.state(), HealthState::Normal);
    }
}
