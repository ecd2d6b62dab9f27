//! How often (M7) and when (M8, A9) to retry, which retries are safe, and the retry budget.

use super::{
    Budget, BudgetSettings, FailedAttempt, Retries, RetryDecision, RetrySettings, Safety,
    StopReason,
};
use crate::ask::Priority;
use crate::backoff::{Backoff, Dice, Jitter};
use crate::health::Class;
use crate::ratio::Ppm;
use crate::time::{Micros, Span};

const NOW: Micros = Micros(1_000_000_000);

fn failed() -> FailedAttempt {
    FailedAttempt {
        priority: Priority::Normal,
        used: 0,
        class: Class::ServerError,
        timeouts: None,
        retry_after: None,
        safety: Safety::Idempotent,
        probe: false,
        caller_retries: false,
        time_remaining: None,
    }
}

fn settings() -> RetrySettings {
    RetrySettings {
        backoff: Backoff {
            base: Span::from_secs(1),
            jitter: Jitter::None,
            ..Backoff::default()
        },
        ..RetrySettings::default()
    }
}

fn decide(failed: &FailedAttempt) -> RetryDecision {
    let mut budget = Budget::new(&settings().budget, NOW);
    settings().decide(failed, &mut budget, Dice(1), NOW)
}

/// SDKs repeat failed calls: two retries of theirs and three of ours would be twelve calls.
#[test]
fn a_call_of_a_caller_that_retries_itself_is_made_once() {
    for (safety, probe, is_made_again) in [
        (Safety::Idempotent, false, false),
        (Safety::Keyed, false, false),
        (Safety::Idempotent, true, false),
        (Safety::Unsent, false, true),
    ] {
        let decision = decide(&FailedAttempt {
            safety,
            probe,
            caller_retries: true,
            ..failed()
        });
        let is_again = matches!(decision, RetryDecision::Again { .. });
        assert_eq!(is_again, is_made_again, "{safety:?} {decision:?}");
    }
}

/// M7: two retries after the first attempt for user calls, five for background, 1 s × 2ⁿ apart.
#[test]
fn priorities_have_their_own_number_of_retries() {
    for (priority, waits) in [
        (Priority::High, &[1, 2][..]),
        (Priority::Normal, &[1, 2, 4][..]),
        (Priority::Low, &[1, 2, 4, 8, 16][..]),
    ] {
        let mut used = 0;
        for &secs in waits {
            let decision = decide(&FailedAttempt {
                priority,
                used,
                ..failed()
            });
            let again = RetryDecision::Again {
                after: Span::from_secs(secs),
                counts: true,
            };
            assert_eq!(decision, again, "{priority:?} {used}");
            used += 1;
        }
        let decision = decide(&FailedAttempt {
            priority,
            used,
            ..failed()
        });
        assert_eq!(
            decision,
            RetryDecision::Stop(StopReason::Spent),
            "{priority:?}"
        );
    }
}

/// M8: `Retry-After` wins over the computed backoff, shorter or longer.
#[test]
fn retry_after_wins() {
    for secs in [1, 3, 45, 3_600, 31 * 86_400] {
        let after = Span::from_secs(secs);
        let decision = decide(&FailedAttempt {
            used: 2,
            retry_after: Some(after),
            ..failed()
        });
        assert_eq!(
            decision,
            RetryDecision::Again {
                after,
                counts: true
            }
        );
    }
}

/// If the wait would end after the deadline, the call fails now.
#[test]
fn a_retry_past_the_deadline_is_not_made() {
    let remaining = Some(Span::from_secs(10));
    let retry_after = Some(Span::from_secs(10));
    let decision = decide(&FailedAttempt {
        time_remaining: remaining,
        retry_after,
        ..failed()
    });
    let after = Span::from_secs(10);
    assert_eq!(
        decision,
        RetryDecision::Stop(StopReason::Deadline { after })
    );
    let decision = decide(&FailedAttempt {
        time_remaining: remaining,
        ..failed()
    });
    assert!(matches!(decision, RetryDecision::Again { .. }));
}

/// A slow provider gets the same work once more, not as often as there are retries; `timeouts: 0`
/// repeats nothing, and a failed probe is repeated in any case.
#[test]
fn a_response_timeout_is_retried_once() {
    let timed_out = |made, probe| FailedAttempt {
        class: Class::Network,
        timeouts: Some(made),
        used: made - 1,
        priority: Priority::Low,
        probe,
        ..failed()
    };
    assert!(matches!(
        decide(&timed_out(1, false)),
        RetryDecision::Again { .. }
    ));
    let stopped = RetryDecision::Stop(StopReason::Timeouts);
    assert_eq!(decide(&timed_out(2, false)), stopped);
    assert!(matches!(
        decide(&timed_out(2, true)),
        RetryDecision::Again { .. }
    ));
    let never = RetrySettings {
        timeouts: 0,
        ..settings()
    };
    let mut budget = Budget::new(&never.budget, NOW);
    let first = never.decide(&timed_out(1, false), &mut budget, Dice(1), NOW);
    assert_eq!(first, stopped);
}

/// A11: other 4xx fail at once.
#[test]
fn failures_that_a_retry_cannot_fix_are_final() {
    for (class, is_retried) in [
        (Class::Success, false),
        (Class::Other, false),
        (Class::Limited, true),
        (Class::ServerError, true),
        (Class::Network, true),
    ] {
        let decision = decide(&FailedAttempt { class, ..failed() });
        assert_eq!(
            decision != RetryDecision::Stop(StopReason::Final),
            is_retried,
            "{class:?}"
        );
    }
}

/// A call that may have acted is retried only with a key, or if no byte of it was sent.
#[test]
fn only_safe_retries_are_made() {
    for method in ["GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"] {
        assert_eq!(Safety::of(method, false, true), Safety::Idempotent);
    }
    for method in ["POST", "PATCH", "CONNECT", "get", "BREW", ""] {
        let safety = Safety::of(method, false, true);
        assert_eq!(
            decide(&FailedAttempt { safety, ..failed() }),
            RetryDecision::Stop(StopReason::Unsafe)
        );
    }
    assert_eq!(Safety::of("POST", true, true), Safety::Keyed);
    assert_eq!(Safety::of("POST", false, false), Safety::Unsent);
    assert!(Safety::Keyed.is_safe() && Safety::Unsent.is_safe());
}

/// A failed probe uses up neither the call's retries nor the budget.
#[test]
fn a_failed_probe_uses_no_retry() {
    let mut budget = Budget::new(&settings().budget, NOW);
    while budget.try_take(&settings().budget, NOW) {}
    let probe = FailedAttempt {
        used: 3,
        probe: true,
        ..failed()
    };
    let decision = settings().decide(&probe, &mut budget, Dice(1), NOW);
    assert!(matches!(
        decision,
        RetryDecision::Again { counts: false, .. }
    ));
}

/// 20 % of the calls and 10 per second: in an outage where every call fails, retries stay that few.
#[test]
fn the_budget_prevents_retry_storms() {
    let settings = RetrySettings::default();
    let mut budget = Budget::new(&settings.budget, NOW);
    let (mut now, mut calls, mut retries) = (NOW, 0_u64, 0_u64);
    for _ in 0..60_000 {
        now += Span::from_millis(1);
        budget.on_call(&settings.budget, now);
        calls += 1;
        let mut used = 0;
        loop {
            let attempt = FailedAttempt { used, ..failed() };
            match settings.decide(&attempt, &mut budget, Dice(3), now) {
                RetryDecision::Again { .. } => used += 1,
                RetryDecision::Stop(_) => break,
            }
        }
        retries += u64::from(used);
    }
    let seconds = now.since(NOW).0 / 1_000_000;
    let most = settings.budget.depth() + 10 * seconds + calls / 5;
    assert!(retries <= most, "{retries} of at most {most}");
    assert!(retries >= most - 2, "and no fewer: {retries} of {most}");
}

/// Calls to a rarely used provider can be retried: tokens refill with time, up to ten seconds'
/// worth.
#[test]
fn the_budget_refills_with_time_and_has_a_depth() {
    let settings = BudgetSettings::default();
    let mut budget = Budget::new(&settings, NOW);
    while budget.try_take(&settings, NOW) {}
    assert_eq!(budget.remaining(&settings, NOW + Span::from_millis(99)), 0);
    assert_eq!(budget.remaining(&settings, NOW + Span::from_millis(100)), 1);
    assert_eq!(
        budget.remaining(&settings, NOW + Span::from_secs(3_600)),
        100
    );
    let alone = BudgetSettings {
        min_per_second: 0,
        ..settings
    };
    let mut budget = Budget::new(&alone, NOW);
    while budget.try_take(&alone, NOW) {}
    (0..5).for_each(|_| budget.on_call(&alone, NOW));
    assert_eq!(budget.remaining(&alone, NOW), 1, "one in five");
}

#[test]
fn every_invalid_retry_setting_is_reported() {
    assert_eq!(RetrySettings::default().check(), []);
    let settings = RetrySettings {
        retries: Retries {
            high: 101,
            ..Retries::default()
        },
        budget: BudgetSettings {
            ratio: Ppm(1_000_001),
            min_per_second: 1_000_000,
        },
        ..RetrySettings::default()
    };
    let problems = settings.check();
    let named: Vec<&str> = problems.iter().map(|problem| problem.setting).collect();
    let expected = [
        "retry.retries.high",
        "retry.budget.ratio",
        "retry.budget.min_per_second",
    ];
    assert_eq!(named, expected);
}

/// A retry that is not made costs nothing.
#[test]
fn a_retry_past_the_deadline_costs_no_budget() {
    let settings = settings();
    let mut budget = Budget::new(&settings.budget, NOW);
    let before = budget.remaining(&settings.budget, NOW);
    let late = FailedAttempt {
        time_remaining: Some(Span(1)),
        ..failed()
    };
    let decision = settings.decide(&late, &mut budget, Dice(1), NOW);
    assert!(matches!(
        decision,
        RetryDecision::Stop(StopReason::Deadline { .. })
    ));
    assert_eq!(budget.remaining(&settings.budget, NOW), before);
}
