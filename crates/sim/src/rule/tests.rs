//! Each rule at its edges: zero, one, the limit, one more, and exactly at the end of a window.

use super::*;

const MS: u64 = 1_000;

fn provider(text: &str) -> Provider {
    Provider::new(RuleSpec::parse_all(text).unwrap())
}

/// Sends `count` requests at one instant; returns how many were accepted.
fn burst(provider: &mut Provider, count: u64, at_ms: u64) -> u64 {
    (0..count)
        .map(|id| u64::from(one(provider, id, at_ms) == RuleDecision::Accepted))
        .sum()
}

fn one(provider: &mut Provider, id: u64, at_ms: u64) -> RuleDecision {
    provider.arrive(CallId(id), Micros(at_ms * MS), Cost::CALL)
}

fn retry_after(decision: RuleDecision) -> Option<Span> {
    match decision {
        RuleDecision::Accepted => panic!("it was accepted"),
        RuleDecision::Limited { retry_after, .. } => retry_after,
    }
}

#[test]
fn every_rule_accepts_its_limit_and_no_more() {
    for kind in [
        "sliding",
        "two-counter",
        "binned",
        "fixed",
        "first-use",
        "bucket",
    ] {
        for limit in [1, 50] {
            let mut provider = provider(&format!("{kind} {limit}/1s"));
            assert_eq!(
                burst(&mut provider, limit + 1, 100),
                limit,
                "{kind} {limit}"
            );
        }
    }
    assert_eq!(burst(&mut provider("in-flight 4"), 5, 0), 4);
}

#[test]
fn a_limit_of_zero_accepts_nothing_and_gives_no_retry_time() {
    for kind in [
        "sliding",
        "two-counter",
        "binned",
        "fixed",
        "first-use",
        "bucket",
    ] {
        let mut provider = provider(&format!("{kind} 0/1s"));
        assert_eq!(retry_after(one(&mut provider, 0, 0)), None, "{kind}");
    }
}

#[test]
fn a_cost_above_the_limit_is_never_accepted() {
    for kind in [
        "sliding",
        "two-counter",
        "binned",
        "fixed",
        "first-use",
        "bucket",
    ] {
        let mut provider = provider(&format!("{kind} 10/1s unit tokens"));
        let cost = Cost::CALL.with(Unit::Tokens, 11);
        let decision = provider.arrive(CallId(0), Micros(0), cost);
        assert_eq!(retry_after(decision), None, "{kind}");
    }
}

#[test]
fn a_request_without_cost_in_the_unit_of_a_rule_passes_it() {
    let mut provider = provider("sliding 0/1s unit tokens");
    assert_eq!(burst(&mut provider, 3, 0), 3);
}

#[test]
fn a_sliding_slot_is_free_exactly_one_window_later() {
    let mut provider = provider("sliding 2/1s");
    assert_eq!(one(&mut provider, 0, 0), RuleDecision::Accepted);
    assert_eq!(one(&mut provider, 1, 400), RuleDecision::Accepted);
    let limited = provider.arrive(CallId(2), Micros(999_999), Cost::CALL);
    assert_eq!(retry_after(limited), Some(Span(1)));
    assert_eq!(one(&mut provider, 2, 1_000), RuleDecision::Accepted);
    assert_eq!(
        retry_after(one(&mut provider, 3, 1_000)),
        Some(Span::from_millis(400))
    );
}

#[test]
fn a_fixed_window_restarts_at_its_edge_of_any_phase() {
    let mut provider = provider("fixed 2/1s phase 300ms");
    assert_eq!(burst(&mut provider, 3, 299), 2);
    assert_eq!(burst(&mut provider, 3, 300), 2);
    assert_eq!(
        retry_after(one(&mut provider, 9, 1_299)),
        Some(Span::from_millis(1))
    );
    assert_eq!(burst(&mut provider, 3, 1_300), 2);
}

#[test]
fn a_window_from_first_use_opens_with_the_first_accepted_request() {
    let mut provider = provider("first-use 2/1s");
    assert_eq!(burst(&mut provider, 1, 700), 1);
    assert_eq!(burst(&mut provider, 2, 1_600), 1);
    assert_eq!(
        retry_after(one(&mut provider, 9, 1_699)),
        Some(Span::from_millis(1))
    );
    assert_eq!(burst(&mut provider, 3, 1_700), 2);
}

#[test]
fn two_counters_let_the_last_window_fade_out() {
    let mut provider = provider("two-counter 50/1s");
    assert_eq!(burst(&mut provider, 51, 500), 50);
    assert_eq!(burst(&mut provider, 50, 1_000), 0);
    assert_eq!(
        retry_after(one(&mut provider, 99, 1_000)),
        Some(Span::from_millis(20))
    );
    assert_eq!(burst(&mut provider, 50, 1_500), 25);
    assert_eq!(burst(&mut provider, 50, 3_000), 50);
}

#[test]
fn a_binned_window_counts_a_bin_until_all_of_it_has_left() {
    let mut provider = provider("binned 2/1s bins 10");
    assert_eq!(burst(&mut provider, 2, 20), 2);
    assert_eq!(
        retry_after(one(&mut provider, 9, 1_020)),
        Some(Span::from_millis(80))
    );
    assert_eq!(burst(&mut provider, 2, 1_100), 2);
}

#[test]
fn a_bucket_refills_without_losing_a_fraction() {
    // One deeper than the burst in use, so that the cap does not cut off fractions.
    let mut provider = provider("bucket 3/1s burst 2");
    assert_eq!(burst(&mut provider, 3, 0), 2);
    let limited = provider.arrive(CallId(1), Micros(333_333), Cost::CALL);
    assert_eq!(retry_after(limited), Some(Span(1)));
    for third in 1_u64..=300 {
        let at = Micros((third * 1_000_000).div_ceil(3));
        assert_eq!(
            provider.arrive(CallId(third), at, Cost::CALL),
            RuleDecision::Accepted,
            "{third}"
        );
    }
}

#[test]
fn a_ticking_bucket_gives_nothing_between_ticks() {
    let mut provider = provider("bucket 50/1s burst 50 tick 100ms");
    assert_eq!(burst(&mut provider, 51, 0), 50);
    assert_eq!(
        retry_after(one(&mut provider, 99, 30)),
        Some(Span::from_millis(70))
    );
    assert_eq!(burst(&mut provider, 9, 99), 0);
    assert_eq!(burst(&mut provider, 9, 100), 5);
    assert_eq!(burst(&mut provider, 99, 9_900), 50);
}

#[test]
fn an_in_flight_slot_is_freed_when_its_response_is_sent() {
    let mut provider = provider("in-flight 1");
    assert_eq!(one(&mut provider, 0, 0), RuleDecision::Accepted);
    assert_eq!(retry_after(one(&mut provider, 1, 5_000)), None);
    provider.finish(CallId(7), Micros(5_000 * MS));
    assert_eq!(burst(&mut provider, 1, 5_000), 0);
    provider.finish(CallId(0), Micros(5_000 * MS));
    assert_eq!(burst(&mut provider, 2, 5_000), 1);
}

#[test]
fn a_server_that_frees_late_keeps_the_slot_for_its_lag() {
    let mut provider = provider("in-flight 1 lag 2ms");
    assert_eq!(one(&mut provider, 0, 0), RuleDecision::Accepted);
    provider.finish(CallId(0), Micros(10 * MS));
    assert_eq!(burst(&mut provider, 1, 11), 0);
    assert_eq!(burst(&mut provider, 1, 12), 1);
}

#[test]
fn one_finish_frees_one_of_two_attempts_of_an_id() {
    let mut provider = provider("in-flight 2");
    assert_eq!(one(&mut provider, 5, 0), RuleDecision::Accepted);
    assert_eq!(one(&mut provider, 5, 0), RuleDecision::Accepted);
    provider.finish(CallId(5), Micros(0));
    assert_eq!(burst(&mut provider, 2, 1), 1);
}

#[test]
fn a_request_is_charged_to_all_rules_or_none() {
    let mut provider = provider("sliding 2/1s, sliding 3/10s, sliding 100/1s unit tokens");
    assert_eq!(burst(&mut provider, 3, 0), 2);
    assert_eq!(burst(&mut provider, 3, 1_000), 1);
    let status = provider.status(0, Micros(1_000 * MS)).unwrap();
    assert_eq!(
        status.remaining, 1,
        "a request limited by the second rule is not charged to the first"
    );
}

#[test]
fn the_rule_with_the_longest_wait_is_reported() {
    let refusing = |text: &str| {
        let mut provider = provider(text);
        assert_eq!(one(&mut provider, 0, 0), RuleDecision::Accepted);
        match one(&mut provider, 1, 0) {
            RuleDecision::Accepted => panic!("it was accepted"),
            RuleDecision::Limited {
                rule, retry_after, ..
            } => (rule, retry_after),
        }
    };
    let (second, ten) = (Span::from_secs(1), Span::from_secs(10));
    assert_eq!(refusing("sliding 9/1s, sliding 1/1s"), (1, Some(second)));
    assert_eq!(refusing("sliding 1/1s, sliding 1/10s"), (1, Some(ten)));
    assert_eq!(refusing("sliding 1/10s, sliding 1/1s"), (0, Some(ten)));
    assert_eq!(
        refusing("sliding 1/10s, in-flight 1, sliding 1/1s"),
        (1, None)
    );
}

#[test]
fn limited_requests_are_charged_only_by_rules_that_count_them() {
    let mut lenient = provider("sliding 1/1s");
    let mut harsh = provider("sliding 1/1s counts-refused");
    for provider in [&mut lenient, &mut harsh] {
        assert_eq!(burst(provider, 2, 0), 1);
        assert_eq!(burst(provider, 1, 900), 0);
    }
    assert_eq!(burst(&mut lenient, 1, 1_000), 1);
    assert_eq!(burst(&mut harsh, 1, 1_000), 0);
    assert_eq!(burst(&mut harsh, 1, 2_000), 1);
}

#[test]
fn a_halved_limit_keeps_what_was_counted() {
    let mut provider = provider("sliding 4/1s");
    assert_eq!(burst(&mut provider, 3, 0), 3);
    assert_eq!(burst(&mut provider, 1, 500), 1);
    provider.change(0, 2, Micros(600 * MS));
    provider.change(9, 2, Micros(600 * MS));
    assert_eq!(provider.rules().next().unwrap().to_string(), "sliding 2/1s");
    assert_eq!(burst(&mut provider, 1, 999), 0);
    assert_eq!(burst(&mut provider, 3, 1_000), 1);
}

#[test]
fn a_halved_bucket_halves_rate_and_burst() {
    let mut provider = provider("bucket 50/1s burst 10");
    provider.change(0, 25, Micros(0));
    assert_eq!(burst(&mut provider, 99, 0), 5);
    assert_eq!(burst(&mut provider, 99, 40), 1);
    provider.change(0, 0, Micros(40 * MS));
    assert_eq!(burst(&mut provider, 99, 9_000), 0);
    provider.change(0, 8, Micros(9_000 * MS));
    assert_eq!(burst(&mut provider, 99, 19_000), 8);
}

#[test]
fn a_status_has_limit_remaining_and_reset() {
    let stands = |text: &str| {
        let mut provider = provider(text);
        assert_eq!(burst(&mut provider, 2, 100), 2);
        provider.status(0, Micros(350 * MS)).unwrap()
    };
    let expect = |remaining, reset_ms| LimitStatus {
        limit: 4,
        remaining,
        reset_after: Span::from_millis(reset_ms),
    };
    assert_eq!(stands("sliding 4/1s"), expect(2, 750));
    assert_eq!(stands("fixed 4/1s"), expect(2, 650));
    assert_eq!(stands("first-use 4/1s"), expect(2, 750));
    assert_eq!(stands("two-counter 4/1s"), expect(2, 1_650));
    assert_eq!(stands("binned 4/1s bins 10"), expect(2, 850));
    assert_eq!(stands("bucket 4/1s"), expect(3, 250));
    assert_eq!(stands("in-flight 4"), expect(2, 0));
    assert_eq!(provider("sliding 4/1s").status(1, Micros(0)), None);
}

#[test]
fn an_instant_that_goes_back_frees_nothing() {
    let mut provider = provider("fixed 1/1s");
    assert_eq!(burst(&mut provider, 1, 1_500), 1);
    assert_eq!(burst(&mut provider, 1, 500), 0);
}

#[test]
fn peeking_counts_nothing() {
    let mut provider = provider("sliding 1/1s");
    assert_eq!(provider.peek(Micros(0), Cost::CALL), RuleDecision::Accepted);
    assert_eq!(burst(&mut provider, 2, 0), 1);
}

#[test]
fn the_far_ends_of_time_and_cost_do_not_overflow() {
    for kind in [
        "sliding",
        "two-counter",
        "binned",
        "fixed",
        "first-use",
        "bucket",
    ] {
        let mut provider = provider(&format!("{kind} {max}/1s counts-refused", max = u64::MAX));
        let cost = Cost::CALL.with(Unit::Calls, u64::MAX);
        for at in [0, 1, u64::MAX] {
            let decision = provider.arrive(CallId(0), Micros(at), cost);
            assert!(at > 0 || decision == RuleDecision::Accepted, "{kind}");
            assert!(provider.status(0, Micros(at)).is_some());
        }
    }
}
