//! Operators, policy and CacheOnly (A5, A7).

use super::harness::{Harness, base, profile_a};
use super::{
    Admission, BlockReason, Class, Command, HealthSettings, HealthState, OperatorHold, WhenBlocked,
};
use crate::time::Span;

const MINUTE: u64 = 60;

fn cache_only(auto_recover: Option<u64>) -> Harness {
    let settings = HealthSettings {
        auto_recover: auto_recover.map(Span::from_secs),
        ..HealthSettings::default()
    };
    let mut harness = Harness::new(settings);
    harness.command(Command::CacheOnly { lasts: None });
    let closed_for = auto_recover.map(Span::from_secs);
    assert_eq!(
        harness.closed_for(),
        Some(closed_for),
        "the ledger knows the end, if any"
    );
    harness
}

/// A5: offline is Sleep without expiry: ETA 0, no probe, only `resume` ends it.
#[test]
fn only_resume_ends_offline() {
    let mut harness = Harness::new(profile_a());
    harness
        .command(Command::Offline)
        .advance_secs(365 * 24 * 3_600);
    harness.results(Class::Success, 20).command(Command::Reset);
    let status = harness.health.status(harness.now);
    assert_eq!(
        (status.state, status.reset_in),
        (HealthState::Sleep, Span::ZERO)
    );
    assert_eq!(status.sleep_remaining, None);
    let closed = Admission::Closed {
        why: BlockReason::Sleep,
        remaining: None,
        blocked: WhenBlocked::Reject,
    };
    assert_eq!(harness.health.admission(harness.now), closed);
    harness.command(Command::Resume);
    assert!(harness.opens());
    assert_eq!(
        harness.log,
        ["Normal -> Sleep (operator)", "Sleep -> Normal (operator)"]
    );
}

/// A5: a pause lets calls wait; it ends by `resume`, or by itself, without a probe.
#[test]
fn a5_a_pause_lets_calls_wait_and_ends_by_itself() {
    let mut harness = Harness::new(profile_a());
    let minute = Span::from_secs(60);
    harness.command(Command::Pause {
        lasts: Some(minute),
    });
    let closed = |remaining| Admission::Closed {
        why: BlockReason::Sleep,
        remaining,
        blocked: WhenBlocked::Wait,
    };
    let status = harness.health.status(harness.now);
    assert_eq!(status.hold, Some(OperatorHold::Paused));
    assert_eq!(status.reset_in, minute);
    assert_eq!(harness.health.admission(harness.now), closed(Some(minute)));
    harness.advance_secs(60);
    assert!(harness.opens());
    assert_eq!(
        harness.log,
        ["Normal -> Sleep (operator)", "Sleep -> Normal (operator)"]
    );
    harness.command(Command::Pause { lasts: None });
    assert_eq!(harness.health.admission(harness.now), closed(None));
    harness.command(Command::Offline);
    let status = harness.health.status(harness.now);
    assert_eq!(status.hold, Some(OperatorHold::Offline));
    harness.advance_secs(3_600).command(Command::Resume);
    assert_eq!(harness.state(), HealthState::Normal);
}

/// A5: calls wait during a Sleep by default; profile A rejects them.
#[test]
fn calls_wait_during_sleep_unless_configured_to_reject() {
    let blocked = |settings| {
        let harness = Harness::asleep(settings);
        match harness.health.admission(harness.now) {
            Admission::Closed { blocked, .. } => blocked,
            Admission::Open | Admission::Probing => panic!("asleep"),
        }
    };
    assert_eq!(blocked(HealthSettings::default()), WhenBlocked::Wait);
    let rejecting = HealthSettings {
        when_blocked: WhenBlocked::Reject,
        ..HealthSettings::default()
    };
    assert_eq!(blocked(rejecting), WhenBlocked::Reject);
}

/// A7: `resume` probes a failing provider first; `reset` does not.
#[test]
fn resume_probes_a_failing_provider() {
    let mut harness = Harness::asleep(HealthSettings::default());
    harness.command(Command::Resume);
    assert!(harness.opens(), "or the longer sleep would stay");
    assert_eq!(harness.closed_for(), Some(Some(Span::ZERO)));
    assert_eq!(harness.log[1..], ["Sleep -> HalfOpen (operator)"]);
    harness.command(Command::Offline).command(Command::Resume);
    assert_eq!(
        harness.state(),
        HealthState::HalfOpen,
        "it was failing before the hold"
    );
    harness.command(Command::Reset);
    assert_eq!(harness.state(), HealthState::Normal);
    assert!(harness.opens());
}

/// A7: CacheOnly by an operator stays until an operator ends it.
#[test]
fn cache_only_stays_without_auto_recover() {
    let mut harness = cache_only(None);
    harness.advance_secs(30 * 24 * 3_600);
    assert_eq!(harness.state(), HealthState::CacheOnly);
    assert_eq!(harness.health.status(harness.now).breaker.as_str(), "open");
    harness.command(Command::Resume);
    assert_eq!(
        harness.log,
        [
            "Normal -> CacheOnly (operator)",
            "CacheOnly -> Normal (operator)"
        ]
    );
}

/// A7: `--for 30m` ends by itself.
#[test]
fn cache_only_for_a_while_ends_by_itself() {
    let mut harness = Harness::new(HealthSettings::default());
    let lasts = Some(Span::from_secs(30 * MINUTE));
    harness.command(Command::CacheOnly { lasts });
    harness.advance_secs(30 * MINUTE - 1);
    assert_eq!(harness.state(), HealthState::CacheOnly);
    harness.advance_secs(1);
    assert_eq!(harness.state(), HealthState::Normal);
}

/// A7: with `auto_recover` it tries Sleep → HalfOpen, and reaches Normal if the probes succeed.
#[test]
fn cache_only_recovers_by_itself() {
    let mut harness = cache_only(Some(15 * MINUTE));
    harness.advance_secs(15 * MINUTE - 1);
    assert_eq!(harness.state(), HealthState::CacheOnly);
    harness.advance_secs(1);
    assert_eq!(
        harness.closed_for(),
        Some(Some(Span::from_secs(2))),
        "sleep_min"
    );
    harness.advance_secs(2).results(Class::Success, 5);
    let expected = [
        "CacheOnly -> Sleep (auto_recover)",
        "Sleep -> HalfOpen (sleep_over)",
        "HalfOpen -> Normal (probe_ok)",
    ];
    assert_eq!(harness.log[1..], expected);
}

/// A7: a failed recovery returns to CacheOnly, and the next one starts 15 min later.
#[test]
fn a_failed_recovery_returns_to_cache_only() {
    let mut harness = cache_only(Some(15 * MINUTE));
    for _ in 0..3 {
        harness.log.clear();
        harness
            .advance_secs(15 * MINUTE + 2)
            .results(Class::ServerError, 1);
        let expected = [
            "CacheOnly -> Sleep (auto_recover)",
            "Sleep -> HalfOpen (sleep_over)",
            "HalfOpen -> Sleep (probe_failed)",
            "Sleep -> CacheOnly (policy)",
        ];
        assert_eq!(harness.log, expected);
        assert_eq!(
            harness.closed_for(),
            Some(Some(Span::from_secs(15 * MINUTE)))
        );
    }
}

/// A7: an operator's end time holds: no automatic recovery starts before it.
#[test]
fn an_operators_end_time_takes_precedence_over_auto_recover() {
    let mut harness = cache_only(Some(15 * MINUTE));
    let lasts = Some(Span::from_secs(40 * MINUTE));
    harness.command(Command::CacheOnly { lasts });
    assert!(
        harness.opens(),
        "or the other hold would stay in the ledger"
    );
    harness.log.clear();
    harness.advance_secs(40 * MINUTE - 1);
    assert_eq!(harness.log, [""; 0]);
    harness.advance_secs(1);
    assert_eq!(harness.log, ["CacheOnly -> Normal (operator)"]);
}

/// A7, A14: `auto_recover` switched on or shortened during the hold works from then on.
#[test]
fn auto_recover_can_be_changed_during_the_hold() {
    for before in [None, Some(60 * MINUTE)] {
        let mut harness = cache_only(before);
        harness.advance_secs(MINUTE);
        let settings = HealthSettings {
            auto_recover: Some(Span::from_secs(15 * MINUTE)),
            ..HealthSettings::default()
        };
        let actions = harness.health.configure(settings, base(), harness.now);
        harness.record(actions.unwrap());
        harness.advance_secs(14 * MINUTE);
        assert!(
            harness.opens(),
            "the ledger knew of no end, or of a later one"
        );
        assert_eq!(harness.log[1..], ["CacheOnly -> Sleep (auto_recover)"]);
    }
}

/// A5, A7: CacheOnly rejects at once, whatever `when_blocked` says, and says when it ends.
#[test]
fn cache_only_rejects_at_once() {
    let mut harness = cache_only(Some(15 * MINUTE));
    harness.advance_secs(MINUTE);
    let closed = Admission::Closed {
        why: BlockReason::CacheOnly,
        remaining: Some(Span::from_secs(14 * MINUTE)),
        blocked: WhenBlocked::Reject,
    };
    assert_eq!(harness.health.admission(harness.now), closed);
}

/// A7: `cache_only_after` of unbroken Sleep and HalfOpen leads to CacheOnly by policy.
#[test]
fn lasting_errors_lead_to_cache_only_by_policy() {
    let settings = HealthSettings {
        cache_only_after: Some(Span::from_secs(30 * MINUTE)),
        ..HealthSettings::default()
    };
    let mut harness = Harness::asleep(settings);
    let began = harness.now;
    for _ in 0..30 * MINUTE {
        harness.advance_secs(1);
        if harness.state() == HealthState::HalfOpen {
            harness.results(Class::Network, 1);
        }
    }
    assert_eq!(harness.log.last().unwrap(), "Sleep -> CacheOnly (policy)");
    let entered = harness.now - harness.health.status(harness.now).since;
    assert_eq!(entered.since(began), Span::from_secs(30 * MINUTE));
    harness.command(Command::Resume);
    assert_eq!(harness.state(), HealthState::HalfOpen, "it was failing");
}

/// A7: a HalfOpen without calls shows no errors: it does not become CacheOnly.
#[test]
fn an_idle_half_open_does_not_become_cache_only() {
    let settings = HealthSettings {
        cache_only_after: Some(Span::from_secs(30 * MINUTE)),
        ..HealthSettings::default()
    };
    let mut harness = Harness::half_open(settings);
    harness.advance_secs(8 * 3_600);
    assert_eq!(harness.state(), HealthState::HalfOpen);
    harness.results(Class::Success, 5);
    assert_eq!(harness.state(), HealthState::Normal);
}
