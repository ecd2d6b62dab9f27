//! Operators, policy and CacheOnly (A5, A7).

use super::harness::{Harness, base, profile_a};
use super::{Admission, BlockReason, Class, Command, HealthSettings, HealthState, WhenBlocked};
use crate::time::Span;

const MINUTE: u64 = 60;

fn cache_only(auto_recover: Option<u64>) -> Harness {
    let settings = HealthSettings {
        auto_recover: auto_recover.map(Span::from_secs),
        ..HealthSettings::default()
    };
    let mut bench = Harness::new(settings);
    bench.command(Command::CacheOnly { lasts: None });
    let rest = auto_recover.map(Span::from_secs);
    assert_eq!(
        bench.closed_for(),
        Some(rest),
        "the ledger knows the end, if any"
    );
    bench
}

/// A5: offline is Sleep without expiry: ETA 0, no probe, only `resume` ends it.
#[test]
fn only_resume_ends_offline() {
    let mut bench = Harness::new(profile_a());
    bench
        .command(Command::Offline)
        .advance_secs(365 * 24 * 3_600);
    bench.results(Class::Success, 20).command(Command::Reset);
    let status = bench.health.status(bench.now);
    assert_eq!(
        (status.state, status.reset_in),
        (HealthState::Sleep, Span::ZERO)
    );
    assert_eq!(status.sleep_remaining, None);
    let door = Admission::Closed {
        why: BlockReason::Sleep,
        remaining: None,
        blocked: WhenBlocked::Reject,
    };
    assert_eq!(bench.health.admission(bench.now), door);
    bench.command(Command::Resume);
    assert!(bench.opens());
    assert_eq!(
        bench.log,
        ["Normal -> Sleep (operator)", "Sleep -> Normal (operator)"]
    );
}

/// A5: a Sleep waits by default; profile A refuses.
#[test]
fn calls_wait_during_sleep_unless_configured_to_reject() {
    let blocked = |settings| {
        let bench = Harness::asleep(settings);
        match bench.health.admission(bench.now) {
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

/// A7: resuming a provider that was failing probes it first; a reset does not.
#[test]
fn resume_probes_a_failing_provider() {
    let mut bench = Harness::asleep(HealthSettings::default());
    bench.command(Command::Resume);
    assert!(bench.opens(), "or the longer rest would stay");
    assert_eq!(bench.closed_for(), Some(Some(Span::ZERO)));
    assert_eq!(bench.log[1..], ["Sleep -> HalfOpen (operator)"]);
    bench.command(Command::Offline).command(Command::Resume);
    assert_eq!(
        bench.state(),
        HealthState::HalfOpen,
        "it was failing before the hold"
    );
    bench.command(Command::Reset);
    assert_eq!(bench.state(), HealthState::Normal);
    assert!(bench.opens());
}

/// A7: CacheOnly by operator stays until the operator ends it.
#[test]
fn cache_only_stays_without_auto_recover() {
    let mut bench = cache_only(None);
    bench.advance_secs(30 * 24 * 3_600);
    assert_eq!(bench.state(), HealthState::CacheOnly);
    assert_eq!(bench.health.status(bench.now).breaker.as_str(), "open");
    bench.command(Command::Resume);
    assert_eq!(
        bench.log,
        [
            "Normal -> CacheOnly (operator)",
            "CacheOnly -> Normal (operator)"
        ]
    );
}

/// A7: `--for 30m` ends by itself.
#[test]
fn cache_only_for_a_while_ends_by_itself() {
    let mut bench = Harness::new(HealthSettings::default());
    let lasts = Some(Span::from_secs(30 * MINUTE));
    bench.command(Command::CacheOnly { lasts });
    bench.advance_secs(30 * MINUTE - 1);
    assert_eq!(bench.state(), HealthState::CacheOnly);
    bench.advance_secs(1);
    assert_eq!(bench.state(), HealthState::Normal);
}

/// A7: with `auto_recover` it tries Sleep → HalfOpen, and reaches Normal if the probes go well.
#[test]
fn cache_only_recovers_by_itself() {
    let mut bench = cache_only(Some(15 * MINUTE));
    bench.advance_secs(15 * MINUTE - 1);
    assert_eq!(bench.state(), HealthState::CacheOnly);
    bench.advance_secs(1);
    assert_eq!(
        bench.closed_for(),
        Some(Some(Span::from_secs(2))),
        "sleep_min"
    );
    bench.advance_secs(2).results(Class::Success, 5);
    let expected = [
        "CacheOnly -> Sleep (auto_recover)",
        "Sleep -> HalfOpen (sleep_over)",
        "HalfOpen -> Normal (probe_ok)",
    ];
    assert_eq!(bench.log[1..], expected);
}

/// A7: a try that fails returns to CacheOnly, and the next one comes 15 min later.
#[test]
fn a_failed_recovery_returns_to_cache_only() {
    let mut bench = cache_only(Some(15 * MINUTE));
    for _ in 0..3 {
        bench.log.clear();
        bench
            .advance_secs(15 * MINUTE + 2)
            .results(Class::ServerError, 1);
        let expected = [
            "CacheOnly -> Sleep (auto_recover)",
            "Sleep -> HalfOpen (sleep_over)",
            "HalfOpen -> Sleep (probe_failed)",
            "Sleep -> CacheOnly (policy)",
        ];
        assert_eq!(bench.log, expected);
        assert_eq!(bench.closed_for(), Some(Some(Span::from_secs(15 * MINUTE))));
    }
}

/// A7: the end that an operator names is kept: nothing tries to recover before it.
#[test]
fn an_operators_end_time_takes_precedence_over_auto_recover() {
    let mut bench = cache_only(Some(15 * MINUTE));
    let lasts = Some(Span::from_secs(40 * MINUTE));
    bench.command(Command::CacheOnly { lasts });
    assert!(bench.opens(), "or the other hold would stay in the ledger");
    bench.log.clear();
    bench.advance_secs(40 * MINUTE - 1);
    assert_eq!(bench.log, [""; 0]);
    bench.advance_secs(1);
    assert_eq!(bench.log, ["CacheOnly -> Normal (operator)"]);
}

/// A7, A14: `auto_recover` switched on or shortened during the hold works from then on.
#[test]
fn auto_recover_can_be_changed_during_the_hold() {
    for before in [None, Some(60 * MINUTE)] {
        let mut bench = cache_only(before);
        bench.advance_secs(MINUTE);
        let settings = HealthSettings {
            auto_recover: Some(Span::from_secs(15 * MINUTE)),
            ..HealthSettings::default()
        };
        let actions = bench.health.configure(settings, base(), bench.now);
        bench.record(actions.unwrap());
        bench.advance_secs(14 * MINUTE);
        assert!(
            bench.opens(),
            "the ledger knew of no end, or of a later one"
        );
        assert_eq!(bench.log[1..], ["CacheOnly -> Sleep (auto_recover)"]);
    }
}

/// A5, A7: CacheOnly refuses at once, whatever `when_blocked` says, and says when it ends.
#[test]
fn cache_only_rejects_at_once() {
    let mut bench = cache_only(Some(15 * MINUTE));
    bench.advance_secs(MINUTE);
    let door = Admission::Closed {
        why: BlockReason::CacheOnly,
        remaining: Some(Span::from_secs(14 * MINUTE)),
        blocked: WhenBlocked::Reject,
    };
    assert_eq!(bench.health.admission(bench.now), door);
}

/// A7: `cache_only_after` of unbroken Sleep and HalfOpen leads to CacheOnly by policy.
#[test]
fn lasting_errors_lead_to_cache_only_by_policy() {
    let settings = HealthSettings {
        cache_only_after: Some(Span::from_secs(30 * MINUTE)),
        ..HealthSettings::default()
    };
    let mut bench = Harness::asleep(settings);
    let began = bench.now;
    for _ in 0..30 * MINUTE {
        bench.advance_secs(1);
        if bench.state() == HealthState::HalfOpen {
            bench.results(Class::Network, 1);
        }
    }
    assert_eq!(bench.log.last().unwrap(), "Sleep -> CacheOnly (policy)");
    let entered = bench.now - bench.health.status(bench.now).since;
    assert_eq!(entered.since(began), Span::from_secs(30 * MINUTE));
    bench.command(Command::Resume);
    assert_eq!(bench.state(), HealthState::HalfOpen, "it was failing");
}

/// A7: a HalfOpen that nobody calls shows no errors: it does not lock itself away.
#[test]
fn an_idle_half_open_does_not_become_cache_only() {
    let settings = HealthSettings {
        cache_only_after: Some(Span::from_secs(30 * MINUTE)),
        ..HealthSettings::default()
    };
    let mut bench = Harness::half_open(settings);
    bench.advance_secs(8 * 3_600);
    assert_eq!(bench.state(), HealthState::HalfOpen);
    bench.results(Class::Success, 5);
    assert_eq!(bench.state(), HealthState::Normal);
}
