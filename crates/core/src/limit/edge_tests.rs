//! Holes that once let a window reset early or never: each test tells symptom and cause.

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

fn costing(drive: &mut TestLedger, rule: &Rule, cost: u64) -> Option<Permit> {
    let mut term = TestLedger::term("x", rule);
    term.cost = cost;
    drive.try_terms(smallvec![term], Priority::Normal).ok()
}

/// Symptom: N calls in the first half of the provider's window and N more in the second. Cause: a
/// call that was lost was taken as proof that the provider's window had opened by its last instant.
#[test]
fn a_call_without_a_response_proves_no_window() {
    let mut drive = TestLedger::new();
    let rule = fixed(3, s(60));
    let start = drive.now.at;
    let lost = drive.try_one(&rule).unwrap();
    drive.settle(
        &lost,
        Outcome::Unknown {
            age: Span::ZERO,
            late: s(5),
        },
    );
    drive.advance(s(10));
    let opens = drive.take_all(&rule);
    assert_eq!(opens.len(), 2);
    drive.advance(ms(100));
    drive.arrive_all(&opens);
    assert_eq!(
        drive.wait(&rule),
        (s(60), WakeOn::Time),
        "the provider's window is as old as the first answer"
    );
    drive.advance(s(55));
    assert!(drive.now.at.since(start) > s(5 + 60));
    assert!(drive.try_one(&rule).is_err(), "not by the lost call's time");
}

/// The same with nothing but lost calls: the window ends, as late as they can have opened it.
#[test]
fn a_window_of_calls_without_response_ends_one_period_after_the_last() {
    let mut drive = TestLedger::new();
    let rule = fixed(2, s(10));
    for permit in drive.take_all(&rule) {
        let late = s(permit.id.seq);
        drive.settle(
            &permit,
            Outcome::Unknown {
                age: Span::ZERO,
                late,
            },
        );
    }
    drive.advance(s(1));
    assert_eq!(
        drive.wait(&rule),
        (s(1), WakeOn::Event),
        "one may still arrive"
    );
    drive.advance(s(1));
    assert_eq!(drive.wait(&rule), (s(10), WakeOn::Time));
    drive.advance(s(10));
    assert_eq!(drive.take_all(&rule).len(), 2);
}

/// Symptom: as above, after a 503 or a 429 for another limit. Cause: every answer was proof.
#[test]
fn a_response_that_was_not_counted_proves_no_window() {
    let refused = Outcome::Arrived {
        age: Span::ZERO,
        limited: true,
        readings: vec![],
    };
    let failed = Outcome::Failed { age: Span::ZERO };
    for outcome in [refused, failed] {
        let mut drive = TestLedger::new();
        let rule = fixed(3, s(60));
        let first = drive.try_one(&rule).unwrap();
        drive.settle(&first, outcome);
        drive.advance(s(30));
        let second = drive.try_one(&rule).unwrap();
        drive.arrive(&second);
        drive.advance(s(30));
        assert_eq!(drive.peek(&rule).used, 2, "opened by the second at 30 s");
        drive.advance(s(30));
        assert_eq!(drive.peek(&rule).used, 0);
    }
}

/// Symptom: as above, after a call that costs nothing. Cause: it opened a window that the provider
/// does not have.
#[test]
fn a_call_that_costs_nothing_opens_no_window() {
    for hold in [HoldUntil::Response, HoldUntil::Send] {
        let mut drive = TestLedger::new();
        let rule = fixed(3, s(60)).hold_until(hold);
        let free = costing(&mut drive, &rule, 0).unwrap();
        drive.arrive(&free);
        assert_eq!(drive.peek(&rule).window_age, None);
        drive.advance(s(30));
        let opens = drive.take_all(&rule);
        assert_eq!(opens.len(), 3);
        drive.arrive_all(&opens);
        assert_eq!(drive.wait(&rule), (s(60), WakeOn::Time));
    }
}

/// Symptom: the limit refused for ever. Cause: a window that only stragglers of the last one were
/// in stayed open, without an end, when the call that opened it came back unsent.
#[test]
fn a_window_whose_opening_call_is_undone_ends_with_its_late_calls() {
    let mut drive = TestLedger::new();
    let rule = fixed(4, s(10));
    let first = drive.try_one(&rule).unwrap();
    drive.advance(s(1));
    drive.arrive(&first);
    drive.advance(ms(8_500));
    let stragglers = [costing(&mut drive, &rule, 2).unwrap()];
    drive.advance(ms(1_000));
    drive.arrive_all(&stragglers);
    drive.advance(ms(500));
    let undone = drive.try_one(&rule).unwrap();
    drive.settle(&undone, Outcome::Unsent);
    let (after, on) = {
        let mut term = TestLedger::term("x", &rule);
        term.cost = 3;
        let verdict = drive.try_terms(smallvec![term], Priority::Normal);
        let Err(crate::ask::Verdict::Wait { after, on, .. }) = verdict else {
            panic!("{verdict:?}")
        };
        (after, on)
    };
    assert_eq!(
        (after, on),
        (ms(9_500), WakeOn::Time),
        "one window after their answer"
    );
    drive.advance(after);
    assert!(costing(&mut drive, &rule, 4).is_some());
}

/// A window that was opened and undone must not move the earliest edge of the one that is opened
/// in its place: answers near that edge count twice.
#[test]
fn undoing_a_window_keeps_the_earliest_edge() {
    let mut drive = TestLedger::new();
    let rule = fixed(3, s(10));
    let first = drive.try_one(&rule).unwrap();
    drive.advance(s(1));
    drive.arrive(&first);
    drive.advance(ms(9_000));
    let straggler = drive.try_one(&rule).unwrap();
    drive.arrive(&straggler);
    drive.advance(s(1));
    // The provider's second window may have opened at 10 s, so it may end at 20 s.
    for _ in 0..3 {
        let undone = drive.try_one(&rule).unwrap();
        drive.settle(&undone, Outcome::Unsent);
    }
    let second = drive.try_one(&rule).unwrap();
    drive.arrive(&second);
    drive.advance(ms(9_000));
    let late = drive.try_one(&rule).unwrap();
    drive.arrive(&late);
    drive.advance(ms(1_000));
    assert_eq!(
        drive.take_all(&rule).len(),
        2,
        "the one at 20 s counts in the third window too"
    );
}

/// Symptom: one call too many in a calendar minute. Cause: a call that lapsed while nobody looked
/// for a whole window was forgotten with what was late two windows back.
#[test]
fn a_call_that_lapsed_in_this_window_counts_however_late_the_refresh_is() {
    let mut drive = TestLedger::new();
    let rule = per(CalendarPeriod::Minute, 1);
    drive.advance(s(58));
    let mut ask = drive.ask(smallvec![TestLedger::term("x", &rule)], Priority::Normal);
    ask.evidence = crate::ask::Evidence::Report {
        timeout: s(110),
        late: s(7),
    };
    drive.turn(&[], &[ask]);
    drive.advance(s(118));
    assert!(
        drive.try_one(&rule).is_err(),
        "it may have arrived a second ago"
    );
}

/// And one that lapsed before this window began does not.
#[test]
fn a_call_that_lapsed_in_an_earlier_window_is_not_counted() {
    let mut drive = TestLedger::new();
    let rule = per(CalendarPeriod::Minute, 1);
    drive.try_one(&rule).unwrap();
    drive.advance(s(130));
    assert!(drive.try_one(&rule).is_ok());
}

/// Symptom: a daily quota opened ten minutes early, once the process had run for days. Cause: the
/// tolerance for drift grew with the uptime and so excused a jump.
#[test]
fn a_clock_jump_is_detected_after_days_of_agreement() {
    let mut drive = TestLedger::new();
    let rule = per(CalendarPeriod::Month, 1);
    for _ in 0..30 * 24 {
        drive.peek(&rule);
        drive.try_one(&rule).ok();
        drive.advance(s(3_600));
    }
    drive.advance(s(86_400 - 3_600 + 3_500));
    assert!(drive.try_one(&rule).is_err());
    drive.now.wall = drive.now.wall + s(600);
    for _ in 0..95 {
        drive.advance(s(1));
        assert!(
            drive.try_one(&rule).is_err(),
            "the true month has not ended"
        );
    }
    drive.advance(s(10));
    assert!(drive.try_one(&rule).is_ok());
}

/// Symptom: a jump that was not believed was believed a week later. Cause: the tolerance grew with
/// the time since the clocks last agreed.
#[test]
fn a_clock_jump_is_not_believed_after_a_wait() {
    let mut drive = TestLedger::new();
    let rule = per(CalendarPeriod::Day, 1);
    drive.advance(s(43_200));
    drive.try_one(&rule).unwrap();
    drive.now.wall = drive.now.wall + s(600);
    for _ in 0..40 * 24 {
        drive.advance(s(3_600));
        drive.try_one(&rule).ok();
    }
    let into_day = s(43_200);
    assert_eq!(drive.peek(&rule).window_age, Some(into_day));
}

/// Symptom: a limit closed until 2099. Cause: the first reading of a clock that was wrong set the
/// edge, and edges only move ahead.
#[test]
fn a_clock_that_was_far_ahead_blocks_at_most_one_window() {
    let mut drive = TestLedger::new();
    let rule = per(CalendarPeriod::Day, 2);
    let right = drive.now.wall;
    drive.now.wall = Wall(4_102_444_800_000_000);
    let permit = drive.try_one(&rule).unwrap();
    drive.now.wall = right;
    drive.arrive_with_reading(
        &permit,
        false,
        LimitReading {
            date: Some(right),
            ..LimitReading::default()
        },
    );
    drive.take_all(&rule);
    assert_eq!(drive.peek(&rule).used, 2, "what was counted stays counted");
    drive.advance(s(86_402));
    assert_eq!(drive.peek(&rule).used, 1, "the straggler of the second");
    drive.advance(s(86_400));
    assert_eq!(drive.take_all(&rule).len(), 2);
}

/// Symptom: after a reboot the day began at another hour. Cause: the pair of clock readings lies
/// before the start of the new clock, and only one of the two was clipped.
#[test]
fn a_calendar_keeps_its_edges_on_the_clock_of_a_later_boot() {
    let mut drive = TestLedger::new();
    let rule = per(CalendarPeriod::Day, 1);
    drive.advance(s(20 * 3_600));
    drive.try_one(&rule).unwrap();
    let snapshot = drive.table.snapshot(drive.now.at);
    let mut rebooted = TestLedger::new();
    rebooted.now = Now {
        at: Micros(30_000_000),
        wall: drive.now.wall + s(60),
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
fn a_reset_beyond_our_window_is_not_believed() {
    let rules = [
        per(CalendarPeriod::Day, 10),
        fixed(10, s(3_600)),
        Rule::sliding(10, s(3_600)).unwrap(),
        Rule::bucket(10, s(3_600), 10).unwrap(),
    ];
    for rule in rules {
        let mut drive = TestLedger::new();
        let permit = drive.try_one(&rule).unwrap();
        let reading = LimitReading {
            remaining: Some(0),
            reset_after: Some(Span(u64::MAX)),
            ..LimitReading::default()
        };
        drive.arrive_with_reading(&permit, false, reading);
        assert_eq!(drive.peek(&rule).remaining, 0);
        drive.advance(s(2 * 86_400));
        assert_eq!(drive.peek(&rule).remaining, 10, "{rule}");
    }
}

/// Symptom: the gate spun at one instant. Cause: a limit that the provider told is below this
/// call's cost, nothing of ours is held, and the wait was nothing at all.
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
        let mut drive = TestLedger::new();
        let permit = drive.try_one(&rule).unwrap();
        let reading = LimitReading {
            limit: Some(2),
            ..LimitReading::default()
        };
        drive.arrive_with_reading(&permit, false, reading);
        drive.settle(&permit, Outcome::Finished { age: Span::ZERO });
        drive.advance(s(61));
        let mut term = TestLedger::term("x", &rule);
        term.cost = 4;
        let verdict = drive.try_terms(smallvec![term], Priority::Normal);
        let Err(crate::ask::Verdict::Wait { after, .. }) = verdict else {
            panic!("{rule}: {verdict:?}")
        };
        assert!(after >= ms(100), "{rule}: {after}");
    }
}

/// Nothing always fits: also where a reserve, a lowered limit or the pace leaves no room.
#[test]
fn a_call_of_cost_zero_never_waits_and_takes_no_slot() {
    let rules = [
        Rule::paced(3, s(10)).unwrap(),
        Rule::sliding(3, s(10)).unwrap(),
        fixed(3, s(10)),
        Rule::bucket(3, s(10), 3).unwrap(),
    ];
    for rule in rules {
        let mut drive = TestLedger::new();
        for _ in 0..3 {
            costing(&mut drive, &rule, 0).unwrap();
        }
        drive.try_one(&rule).unwrap();
        costing(&mut drive, &rule, 0).unwrap();
        assert_eq!(drive.peek(&rule).used, 1, "{rule}");
    }
}

/// A call that costs five of a paced limit takes five gaps.
#[test]
fn a_paced_call_takes_as_many_gaps_as_it_costs() {
    let mut drive = TestLedger::new();
    let rule = Rule::paced(12, s(1)).unwrap().drift_ppm(0);
    let permit = costing(&mut drive, &rule, 5).unwrap();
    drive.arrive(&permit);
    assert_eq!(drive.wait(&rule), (ms(500), WakeOn::Time));
}

/// Symptom: after a boot, answers after the provider's edge counted in one window only. Cause: the
/// instant at which that window may have opened lies before the new clock, and was clipped to it.
#[test]
fn late_calls_of_another_boot_count_in_both_windows() {
    let mut drive = TestLedger::new();
    let rule = fixed(3, s(3_600));
    let first = drive.try_one(&rule).unwrap();
    drive.arrive(&first);
    drive.advance(s(3_600) - ms(1));
    // Answered after the first window may have ended: this one may have opened the second.
    let straggler = drive.try_one(&rule).unwrap();
    drive.advance(ms(1));
    drive.arrive(&straggler);
    drive.advance(s(1_000));
    drive.peek(&rule);
    let mut rebooted = TestLedger::new();
    rebooted.now.at = Micros(20_000_000);
    let snapshot = drive.table.snapshot(drive.now.at);
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

/// Symptom: a limit whose state was lost opened as soon as an old call was answered. Cause: it was
/// closed by what a newer answer replaces.
#[test]
fn a_response_does_not_open_a_limit_whose_state_was_lost() {
    let mut drive = TestLedger::new();
    let rule = Rule::sliding(10, s(60)).unwrap().drift_ppm(0);
    let permit = drive.try_one(&rule).unwrap();
    let lost = crate::limit::Cell::used_up(&rule, drive.now.at).to_bytes(drive.now.at);
    let id = permit.terms[0].cell;
    drive.table.restore(&[(id, lost)], drive.now.at, Span::ZERO);
    for remaining in [9, 0, 9] {
        let reading = LimitReading {
            remaining: Some(remaining),
            ..LimitReading::default()
        };
        drive.arrive_with_reading(&permit, false, reading);
        drive.advance(s(10));
        assert!(
            drive.try_one(&rule).is_err(),
            "nobody knows what is on its way"
        );
    }
    drive.advance(s(30));
    let permit = drive.try_one(&rule).unwrap();
    let reading = LimitReading {
        remaining: Some(4),
        ..LimitReading::default()
    };
    drive.arrive_with_reading(&permit, false, reading);
    assert_eq!(
        drive.peek(&rule).remaining,
        4,
        "and then they are heard again"
    );
}
