//! Operators, policy and CacheOnly (A5, A7).

use super::bench::{Bench, base, profile_a};
use super::{Class, Command, Door, HealthSettings, State, WhenBlocked, Why};
use crate::time::Span;

const MINUTE: u64 = 60;

fn cache_only(auto_recover: Option<u64>) -> Bench {
    let settings = HealthSettings {
        auto_recover: auto_recover.map(Span::from_secs),
        ..HealthSettings::default()
    };
    let mut bench = Bench::new(settings);
    bench.order(Command::CacheOnly { lasts: None });
    let rest = auto_recover.map(Span::from_secs);
    assert_eq!(bench.rest(), Some(rest), "the ledger knows the end, if any");
    bench
}

/// A5: offline is Sleep without expiry: ETA 0, no probe, only `resume` ends it.
#[test]
fn offline_is_ended_by_resume_only() {
    let mut bench = Bench::new(profile_a());
    bench.order(Command::Offline).secs(365 * 24 * 3_600);
    bench.answers(Class::Success, 20).order(Command::Reset);
    let status = bench.health.status(bench.now);
    assert_eq!((status.state, status.reset_in), (State::Sleep, Span::ZERO));
    assert_eq!(status.sleep_left, None);
    let door = Door::Closed {
        why: Why::Sleep,
        left: None,
        blocked: WhenBlocked::Reject,
    };
    assert_eq!(bench.health.door(bench.now), door);
    bench.order(Command::Resume);
    assert!(bench.opens());
    assert_eq!(
        bench.log,
        ["Normal -> Sleep (operator)", "Sleep -> Normal (operator)"]
    );
}

/// A5: a Sleep waits by default; profile A refuses.
#[test]
fn a_sleep_lets_calls_wait_unless_told_to_reject() {
    let blocked = |settings| {
        let bench = Bench::asleep(settings);
        match bench.health.door(bench.now) {
            Door::Closed { blocked, .. } => blocked,
            Door::Open | Door::Probing => panic!("asleep"),
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
fn resume_probes_what_was_failing() {
    let mut bench = Bench::asleep(HealthSettings::default());
    bench.order(Command::Resume);
    assert!(bench.opens(), "or the longer rest would stay");
    assert_eq!(bench.rest(), Some(Some(Span::ZERO)));
    assert_eq!(bench.log[1..], ["Sleep -> HalfOpen (operator)"]);
    bench.order(Command::Offline).order(Command::Resume);
    assert_eq!(
        bench.state(),
        State::HalfOpen,
        "it was failing before the hold"
    );
    bench.order(Command::Reset);
    assert_eq!(bench.state(), State::Normal);
    assert!(bench.opens());
}

/// A7: CacheOnly by operator stays until the operator ends it.
#[test]
fn cache_only_stays_without_auto_recover() {
    let mut bench = cache_only(None);
    bench.secs(30 * 24 * 3_600);
    assert_eq!(bench.state(), State::CacheOnly);
    assert_eq!(bench.health.status(bench.now).breaker.word(), "open");
    bench.order(Command::Resume);
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
    let mut bench = Bench::new(HealthSettings::default());
    let lasts = Some(Span::from_secs(30 * MINUTE));
    bench.order(Command::CacheOnly { lasts });
    bench.secs(30 * MINUTE - 1);
    assert_eq!(bench.state(), State::CacheOnly);
    bench.secs(1);
    assert_eq!(bench.state(), State::Normal);
}

/// A7: with `auto_recover` it tries Sleep → HalfOpen, and reaches Normal if the probes go well.
#[test]
fn cache_only_recovers_by_itself() {
    let mut bench = cache_only(Some(15 * MINUTE));
    bench.secs(15 * MINUTE - 1);
    assert_eq!(bench.state(), State::CacheOnly);
    bench.secs(1);
    assert_eq!(bench.rest(), Some(Some(Span::from_secs(2))), "sleep_min");
    bench.secs(2).answers(Class::Success, 5);
    let expected = [
        "CacheOnly -> Sleep (auto_recover)",
        "Sleep -> HalfOpen (sleep_over)",
        "HalfOpen -> Normal (probe_ok)",
    ];
    assert_eq!(bench.log[1..], expected);
}

/// A7: a try that fails returns to CacheOnly, and the next one comes 15 min later.
#[test]
fn a_failed_try_returns_to_cache_only() {
    let mut bench = cache_only(Some(15 * MINUTE));
    for _ in 0..3 {
        bench.log.clear();
        bench.secs(15 * MINUTE + 2).answers(Class::ServerError, 1);
        let expected = [
            "CacheOnly -> Sleep (auto_recover)",
            "Sleep -> HalfOpen (sleep_over)",
            "HalfOpen -> Sleep (probe_failed)",
            "Sleep -> CacheOnly (policy)",
        ];
        assert_eq!(bench.log, expected);
        assert_eq!(bench.rest(), Some(Some(Span::from_secs(15 * MINUTE))));
    }
}

/// A7: the end that an operator names is kept: nothing tries to recover before it.
#[test]
fn an_end_that_an_operator_named_comes_before_auto_recover() {
    let mut bench = cache_only(Some(15 * MINUTE));
    let lasts = Some(Span::from_secs(40 * MINUTE));
    bench.order(Command::CacheOnly { lasts });
    assert!(bench.opens(), "or the other hold would stay in the ledger");
    bench.log.clear();
    bench.secs(40 * MINUTE - 1);
    assert_eq!(bench.log, [""; 0]);
    bench.secs(1);
    assert_eq!(bench.log, ["CacheOnly -> Normal (operator)"]);
}

/// A7, A14: `auto_recover` switched on or shortened during the hold works from then on.
#[test]
fn auto_recover_can_be_changed_during_the_hold() {
    for before in [None, Some(60 * MINUTE)] {
        let mut bench = cache_only(before);
        bench.secs(MINUTE);
        let settings = HealthSettings {
            auto_recover: Some(Span::from_secs(15 * MINUTE)),
            ..HealthSettings::default()
        };
        let actions = bench.health.configure(settings, base(), bench.now);
        bench.note(actions.unwrap());
        bench.secs(14 * MINUTE);
        assert!(
            bench.opens(),
            "the ledger knew of no end, or of a later one"
        );
        assert_eq!(bench.log[1..], ["CacheOnly -> Sleep (auto_recover)"]);
    }
}

/// A5, A7: CacheOnly refuses at once, whatever `when_blocked` says, and says when it ends.
#[test]
fn cache_only_refuses_at_once() {
    let mut bench = cache_only(Some(15 * MINUTE));
    bench.secs(MINUTE);
    let door = Door::Closed {
        why: Why::CacheOnly,
        left: Some(Span::from_secs(14 * MINUTE)),
        blocked: WhenBlocked::Reject,
    };
    assert_eq!(bench.health.door(bench.now), door);
}

/// A7: `cache_only_after` of unbroken Sleep and HalfOpen leads to CacheOnly by policy.
#[test]
fn lasting_errors_lead_to_cache_only_by_policy() {
    let settings = HealthSettings {
        cache_only_after: Some(Span::from_secs(30 * MINUTE)),
        ..HealthSettings::default()
    };
    let mut bench = Bench::asleep(settings);
    let began = bench.now;
    for _ in 0..30 * MINUTE {
        bench.secs(1);
        if bench.state() == State::HalfOpen {
            bench.answers(Class::Network, 1);
        }
    }
    assert_eq!(bench.log.last().unwrap(), "Sleep -> CacheOnly (policy)");
    let entered = bench.now - bench.health.status(bench.now).since;
    assert_eq!(entered.since(began), Span::from_secs(30 * MINUTE));
    bench.order(Command::Resume);
    assert_eq!(bench.state(), State::HalfOpen, "it was failing");
}

/// A7: a HalfOpen that nobody calls shows no errors: it does not lock itself away.
#[test]
fn an_idle_half_open_does_not_become_cache_only() {
    let settings = HealthSettings {
        cache_only_after: Some(Span::from_secs(30 * MINUTE)),
        ..HealthSettings::default()
    };
    let mut bench = Bench::half_open(settings);
    bench.secs(8 * 3_600);
    assert_eq!(bench.state(), State::HalfOpen);
    bench.answers(Class::Success, 5);
    assert_eq!(bench.state(), State::Normal);
}
