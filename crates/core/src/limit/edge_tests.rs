//! Bugs that once let a window reset early or never: each test states symptom and cause.

use jiff::tz::TimeZone;
use smallvec::smallvec;

use crate::ask::{LimitReading, Outcome, Priority, WakeOn};
use crate::limit::{Calendar, CalendarPeriod, HoldUntil, Rule};
use crate::test_ledger::{Permit, TestLedger, ms, s};
use crate::time::{Micros, Now, Span, Wall};

fn fixed(limit: u64, period: Span) -> Rule {
    Rule::fixed(limit, period).unwrap().drift_ppm(0)
}

fn per(per: CalendarPeriod, limit: u64) -> Rule {
    Rule::calendar(limit, Calendar::new(per, TimeZone::UTC)).unwrap()
}

fn costing(ledger: &mut TestLedger, rule: &Rule, cost: u64) -> Option<Permit> {
    let mut term = TestLedger::term("x", rule);
    term.cost = cost;
    ledger.try_terms(smallvec![term], Priority::Normal).ok()
}

/// Symptom: N calls in the first half of the provider's window and N more in the second. Cause: a
/// lost call was taken as proof that the provider's window had opened by its last instant.
#[test]
fn a_call_without_a_response_proves_no_window() {
    let mut ledger = TestLedger::new();
    let rule = fixed(3, s(60));
    let start = ledger.now.at;
    let lost = ledger.try_one(&rule).unwrap();
    ledger.settle(
        &lost,
        Outcome::Unknown {
            age: Span::ZERO,
            late: s(5),
        },
    );
    ledger.advance(s(10));
    let opens = ledger.take_all(&rule);
    assert_eq!(opens.len(), 2);
    ledger.advance(ms(100));
    ledger.arrive_all(&opens);
    assert_eq!(
        ledger.wait(&rule),
        (s(60), WakeOn::Time),
        "the provider's window is as old as the first response"
    );
    ledger.advance(s(55));
    assert!(ledger.now.at.since(start) > s(5 + 60));
    assert!(
        ledger.try_one(&rule).is_err(),
        "not by the lost call's time"
    );
}

/// The same with nothing but lost calls: the window ends, as late as they can have opened it.
#[test]
fn a_window_of_calls_without_response_ends_one_period_after_the_last() {
    let mut ledger = TestLedger::new();
    let rule = fixed(2, s(10));
    for permit in ledger.take_all(&rule) {
        let late = s(permit.id.seq);
        ledger.settle(
            &permit,
            Outcome::Unknown {
                age: Span::ZERO,
                late,
            },
        );
    }
    ledger.advance(s(1));
    assert_eq!(
        ledger.wait(&rule),
        (s(1 + 10), WakeOn::Time),
        "one may still arrive, and no response tells when"
    );
    ledger.advance(s(1));
    assert_eq!(ledger.wait(&rule), (s(10), WakeOn::Time));
    ledger.advance(s(10));
    assert_eq!(ledger.take_all(&rule).len(), 2);
}

/// Symptom: as above, after a 503 or a 429 for another limit. Cause: every response was proof.
#[test]
fn a_response_that_was_not_counted_proves_no_window() {
    let refused = Outcome::Arrived {
        age: Span::ZERO,
        limited: true,
        readings: vec![],
    };
    let failed = Outcome::Failed { age: Span::ZERO };
    for outcome in [refused, failed] {
        let mut ledger = TestLedger::new();
        let rule = fixed(3, s(60));
        let first = ledger.try_one(&rule).unwrap();
        ledger.settle(&first, outcome);
        ledger.advance(s(30));
        let second = ledger.try_one(&rule).unwrap();
        ledger.arrive(&second);
        ledger.advance(s(30));
        assert_eq!(ledger.peek(&rule).used, 2, "opened by the second at 30 s");
        ledger.advance(s(30));
        assert_eq!(ledger.peek(&rule).used, 0);
    }
}

/// Symptom: as above, after a call of cost 0. Cause: it opened a window that the provider does not
/// have.
#[test]
fn a_call_that_costs_nothing_opens_no_window() {
    for hold in [HoldUntil::Response, HoldUntil::Send] {
        let mut ledger = TestLedger::new();
        let rule = fixed(3, s(60)).hold_until(hold);
        let free = costing(&mut ledger, &rule, 0).unwrap();
        ledger.arrive(&free);
        assert_eq!(ledger.peek(&rule).window_age, None);
        ledger.advance(s(30));
        let opens = ledger.take_all(&rule);
        assert_eq!(opens.len(), 3);
        ledger.arrive_all(&opens);
        assert_eq!(ledger.wait(&rule), (s(60), WakeOn::Time));
    }
}

/// Symptom: the limit rejected forever. Cause: a window that contained only late calls of the
/// previous one stayed open, without an end, when the call that opened it was returned unsent.
#[test]
fn a_window_whose_opening_call_is_undone_ends_with_its_late_calls() {
    let mut ledger = TestLedger::new();
    let rule = fixed(4, s(10));
    let first = ledger.try_one(&rule).unwrap();
    ledger.advance(s(1));
    ledger.arrive(&first);
    ledger.advance(ms(8_500));
    let stragglers = [costing(&mut ledger, &rule, 2).unwrap()];
    ledger.advance(ms(1_000));
    ledger.arrive_all(&stragglers);
    ledger.advance(ms(500));
    let undone = ledger.try_one(&rule).unwrap();
    ledger.settle(&undone, Outcome::Unsent);
    let (after, on) = {
        let mut term = TestLedger::term("x", &rule);
        term.cost = 3;
        let verdict = ledger.try_terms(smallvec![term], Priority::Normal);
        let Err(crate::ask::Verdict::Wait { after, on, .. }) = verdict else {
            panic!("{verdict:?}")
        };
        (after, on)
    };
    assert_eq!(
        (after, on),
        (ms(9_500), WakeOn::Time),
        "one window after their response"
    );
    ledger.advance(after);
    assert!(costing(&mut ledger, &rule, 4).is_some());
}

/// A window that was opened and undone must not move the earliest edge of its successor: responses
/// near that edge count twice.
#[test]
fn undoing_a_window_keeps_the_earliest_edge() {
    let mut ledger = TestLedger::new();
    let rule = fixed(3, s(10));
    let first = ledger.try_one(&rule).unwrap();
    ledger.advance(s(1));
    ledger.arrive(&first);
    ledger.advance(ms(9_000));
    let straggler = ledger.try_one(&rule).unwrap();
    ledger.arrive(&straggler);
    ledger.advance(s(1));
    // The provider's second window may have opened at 10 s, so it may end at 20 s.
    for _ in 0..3 {
        let undone = ledger.try_one(&rule).unwrap();
        ledger.settle(&undone, Outcome::Unsent);
    }
    let second = ledger.try_one(&rule).unwrap();
    ledger.arrive(&second);
    ledger.advance(ms(9_000));
    let late = ledger.try_one(&rule).unwrap();
    ledger.arrive(&late);
    ledger.advance(ms(1_000));
    assert_eq!(
        ledger.take_all(&rule).len(),
        2,
        "the one at 20 s counts in the third window too"
    );
}

/// Symptom: one call too many in a calendar minute. Cause: a call that lapsed while the cell was
/// not refreshed for a whole window was dropped with the late calls of two windows back.
#[test]
fn a_call_that_lapsed_in_this_window_counts_however_late_the_refresh_is() {
    let mut ledger = TestLedger::new();
    let rule = per(CalendarPeriod::Minute, 1);
    ledger.advance(s(58));
    let mut ask = ledger.ask(smallvec![TestLedger::term("x", &rule)], Priority::Normal);
    ask.evidence = crate::ask::Evidence::Report {
        timeout: s(110),
        late: s(7),
    };
    ledger.turn(&[], &[ask]);
    ledger.advance(s(118));
    assert!(
        ledger.try_one(&rule).is_err(),
        "it may have arrived a second ago"
    );
}

/// A call that lapsed before this window began does not count.
#[test]
fn a_call_that_lapsed_in_an_earlier_window_is_not_counted() {
    let mut ledger = TestLedger::new();
    let rule = per(CalendarPeriod::Minute, 1);
    ledger.try_one(&rule).unwrap();
    ledger.advance(s(130));
    assert!(ledger.try_one(&rule).is_ok());
}

/// Symptom: a daily quota opened ten minutes early, once the process had run for days. Cause: the
/// tolerance for drift grew with the uptime and so excused a jump.
#[test]
fn a_clock_jump_is_detected_after_days_of_agreement() {
    let mut ledger = TestLedger::new();
    let rule = per(CalendarPeriod::Month, 1);
    for _ in 0..30 * 24 {
        ledger.peek(&rule);
        ledger.try_one(&rule).ok();
        ledger.advance(s(3_600));
    }
    ledger.advance(s(86_400 - 3_600 + 3_500));
    assert!(ledger.try_one(&rule).is_err());
    ledger.now.wall = ledger.now.wall + s(600);
    for _ in 0..95 {
        ledger.advance(s(1));
        assert!(
            ledger.try_one(&rule).is_err(),
            "the true month has not ended"
        );
    }
    ledger.advance(s(10));
    assert!(ledger.try_one(&rule).is_ok());
}

/// Symptom: a clock jump that was rejected was trusted a week later. Cause: the tolerance grew with
/// the time since the clocks last agreed.
#[test]
fn a_clock_jump_after_a_wait_opens_no_window() {
    let mut ledger = TestLedger::new();
    let rule = per(CalendarPeriod::Day, 1);
    ledger.advance(s(43_200));
    ledger.try_one(&rule).unwrap();
    ledger.now.wall = ledger.now.wall + s(600);
    for _ in 0..40 * 24 {
        ledger.advance(s(3_600));
        ledger.try_one(&rule).ok();
    }
    let into_day = s(43_200);
    assert_eq!(ledger.peek(&rule).window_age, Some(into_day));
}

/// Symptom: a limit closed until 2099. Cause: the first reading of a clock that was wrong set the
/// edge, and edges only move ahead.
#[test]
fn a_clock_that_was_far_ahead_blocks_at_most_one_window() {
    let mut ledger = TestLedger::new();
    let rule = per(CalendarPeriod::Day, 2);
    let right = ledger.now.wall;
    ledger.now.wall = Wall(4_102_444_800_000_000);
    let permit = ledger.try_one(&rule).unwrap();
    ledger.now.wall = right;
    ledger.arrive_with_reading(
        &permit,
        false,
        LimitReading {
            date: Some(right),
            ..LimitReading::default()
        },
    );
    ledger.take_all(&rule);
    assert_eq!(ledger.peek(&rule).used, 2, "what was counted stays counted");
    ledger.advance(s(86_402));
    assert_eq!(ledger.peek(&rule).used, 1, "the late call of the second");
    ledger.advance(s(86_400));
    assert_eq!(ledger.take_all(&rule).len(), 2);
}

/// Symptom: after a reboot the day began at another hour. Cause: the pair of clock readings lies
/// before the start of the new clock, and only one of the two was clipped.
#[test]
fn a_calendar_keeps_its_edges_on_the_clock_of_a_later_boot() {
    let mut ledger = TestLedger::new();
    let rule = per(CalendarPeriod::Day, 1);
    ledger.advance(s(20 * 3_600));
    ledger.try_one(&rule).unwrap();
    let snapshot = ledger.table.snapshot(ledger.now.at);
    let mut rebooted = TestLedger::new();
    rebooted.now = Now {
        at: Micros(30_000_000),
        wall: ledger.now.wall + s(60),
    };
    rebooted.table.restore(&snapshot, rebooted.now.at, s(60));
    assert_eq!(
        rebooted.wait(&rule),
        (s(4 * 3_600 - 60 + 2), WakeOn::Time),
        "midnight and the margin"
    );
}

/// R-A14. Symptom: a reset in the year 9999 closed a calendar limit for ever.
#[test]
fn a_reset_beyond_our_window_is_ignored() {
    let rules = [
        per(CalendarPeriod::Day, 10),
        fixed(10, s(3_600)),
        Rule::sliding(10, s(3_600)).unwrap(),
        Rule::bucket(10, s(3_600), 10).unwrap(),
    ];
    for rule in rules {
        let mut ledger = TestLedger::new();
        let permit = ledger.try_one(&rule).unwrap();
        let reading = LimitReading {
            remaining: Some(0),
            reset_after: Some(Span(u64::MAX)),
            ..LimitReading::default()
        };
        ledger.arrive_with_reading(&permit, false, reading);
        assert_eq!(ledger.peek(&rule).remaining, 0);
        ledger.advance(s(2 * 86_400));
        assert_eq!(ledger.peek(&rule).remaining, 10, "{rule}");
    }
}

/// Symptom: the gate spun at one instant. Cause: the provider reported a limit below this call's
/// cost, nothing of ours was held, and the wait was zero.
#[test]
fn a_cost_above_a_reported_limit_has_a_finite_wait() {
    let rules = [
        Rule::in_flight(5).unwrap(),
        Rule::bucket(5, s(10), 5).unwrap(),
        Rule::sliding(5, s(10)).unwrap(),
        fixed(5, s(10)),
        per(CalendarPeriod::Minute, 5),
    ];
    for rule in rules {
        let mut ledger = TestLedger::new();
        let permit = ledger.try_one(&rule).unwrap();
        let reading = LimitReading {
            limit: Some(2),
            ..LimitReading::default()
        };
        ledger.arrive_with_reading(&permit, false, reading);
        ledger.settle(&permit, Outcome::Finished { age: Span::ZERO });
        ledger.advance(s(61));
        let mut term = TestLedger::term("x", &rule);
        term.cost = 4;
        let verdict = ledger.try_terms(smallvec![term], Priority::Normal);
        let Err(crate::ask::Verdict::Wait { after, .. }) = verdict else {
            panic!("{rule}: {verdict:?}")
        };
        assert!(after >= ms(100), "{rule}: {after}");
    }
}

/// A cost of 0 always fits, even where a reserve, a lowered limit or the pace has no room.
#[test]
fn a_call_of_cost_zero_never_waits_and_takes_no_slot() {
    let rules = [
        Rule::paced(3, s(10)).unwrap(),
        Rule::sliding(3, s(10)).unwrap(),
        fixed(3, s(10)),
        Rule::bucket(3, s(10), 3).unwrap(),
    ];
    for rule in rules {
        let mut ledger = TestLedger::new();
        for _ in 0..3 {
            costing(&mut ledger, &rule, 0).unwrap();
        }
        ledger.try_one(&rule).unwrap();
        costing(&mut ledger, &rule, 0).unwrap();
        assert_eq!(ledger.peek(&rule).used, 1, "{rule}");
    }
}

/// A call that costs five of a paced limit takes five gaps.
#[test]
fn a_paced_call_takes_as_many_gaps_as_it_costs() {
    let mut ledger = TestLedger::new();
    let rule = Rule::paced(12, s(1)).unwrap().drift_ppm(0);
    let permit = costing(&mut ledger, &rule, 5).unwrap();
    ledger.arrive(&permit);
    assert_eq!(ledger.wait(&rule), (ms(500), WakeOn::Time));
}

/// Symptom: after a boot, responses after the provider's edge counted in one window only. Cause:
/// the instant at which that window may have opened is before the new clock, and was clipped to it.
#[test]
fn late_calls_of_another_boot_count_in_both_windows() {
    let mut ledger = TestLedger::new();
    let rule = fixed(3, s(3_600));
    let first = ledger.try_one(&rule).unwrap();
    ledger.arrive(&first);
    ledger.advance(s(3_600) - ms(1));
    // A response after the first window may have ended: this call may have opened the second.
    let straggler = ledger.try_one(&rule).unwrap();
    ledger.advance(ms(1));
    ledger.arrive(&straggler);
    ledger.advance(s(1_000));
    ledger.peek(&rule);
    let mut rebooted = TestLedger::new();
    rebooted.now.at = Micros(20_000_000);
    let snapshot = ledger.table.snapshot(ledger.now.at);
    rebooted
        .table
        .restore(&snapshot, rebooted.now.at, Span::ZERO);
    let second = rebooted.try_one(&rule).unwrap();
    rebooted.arrive(&second);
    rebooted.advance(s(2_600) + ms(10));
    // The second window may have ended at 2 600 s of this boot, so this may open the third.
    let third = rebooted.try_one(&rule).unwrap();
    rebooted.arrive(&third);
    rebooted.advance(s(1_000));
    assert!(rebooted.take_all(&rule).len() < 3);
}

/// Symptom: a limit whose state was lost opened with the response to an old call. Cause: a newer
/// response replaced the value that closed it.
#[test]
fn a_response_does_not_open_a_limit_whose_state_was_lost() {
    let mut ledger = TestLedger::new();
    let rule = Rule::sliding(10, s(60)).unwrap().drift_ppm(0);
    let permit = ledger.try_one(&rule).unwrap();
    let lost = crate::limit::Cell::used_up(&rule, ledger.now.at).to_bytes(ledger.now.at);
    let id = permit.terms[0].cell;
    ledger
        .table
        .restore(&[(id, lost)], ledger.now.at, Span::ZERO);
    for remaining in [9, 0, 9] {
        let reading = LimitReading {
            remaining: Some(remaining),
            ..LimitReading::default()
        };
        ledger.arrive_with_reading(&permit, false, reading);
        ledger.advance(s(10));
        assert!(
            ledger.try_one(&rule).is_err(),
            "the pending calls are unknown"
        );
    }
    ledger.advance(s(30));
    let permit = ledger.try_one(&rule).unwrap();
    let reading = LimitReading {
        remaining: Some(4),
        ..LimitReading::default()
    };
    ledger.arrive_with_reading(&permit, false, reading);
    assert_eq!(ledger.peek(&rule).remaining, 4, "then readings apply again");
}
