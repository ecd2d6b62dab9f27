//! What ends a wait: times, events, hours of the day, and changed settings.

use jiff::tz::TimeZone;

use crate::ask::{Outcome, Priority, Reopen, ScopeId, Settle};
use crate::gate::test_gate::{TestCall, TestGate, cell};
use crate::gate::{Blocker, GateSettings, OffPeak, OffPeakError, Order, Resolution};
use crate::limit::Rule;
use crate::test_ledger::{ms, s};
use crate::time::{Span, Wall};

fn close(scope: &str, rest: Option<Span>, then: Reopen) -> Settle {
    Settle::Close {
        scope: ScopeId::named(&[scope]),
        age: Span::ZERO,
        closed_for: rest,
        reopen: then,
    }
}

fn free() -> Rule {
    Rule::sliding(1_000, s(1)).unwrap()
}

#[test]
fn a_slot_in_flight_wakes_the_next_without_a_timer() {
    let mut test = TestGate::new();
    let one = Rule::in_flight(1).unwrap();
    let first = test.call(TestCall::new(&one));
    let second = test.call(TestCall::new(&one));
    test.advance(s(1));
    test.finish(first);
    test.advance(ms(2));
    assert_eq!(test.granted_after(second), Some(ms(1_002)));
}

/// R-C3: the ledger rejected, then freed; the event overtook the verdict.
#[test]
fn an_event_that_overtakes_its_verdict_is_not_lost() {
    let mut test = TestGate::new();
    let rule = Rule::in_flight(1).unwrap();
    let first = test.call(TestCall::new(&rule));
    let second = test.push(TestCall::new(&rule));
    let offer = test.tick();
    let verdicts = test.decide(&offer);
    test.settle(first, Outcome::Unsent);
    test.gate.verdicts(verdicts, test.now);
    test.run();
    assert!(test.was_granted(second));
}

#[test]
fn a_scope_event_that_overtakes_its_verdict_is_not_lost() {
    let mut test = TestGate::new();
    test.turn(&[close("p", None, Reopen::All)], &[]);
    let call = test.push(TestCall::new(&free()).scope("p"));
    let offer = test.tick();
    let verdicts = test.decide(&offer);
    let open = Settle::Open {
        scope: ScopeId::named(&["p"]),
    };
    test.turn(&[open], &[]);
    test.gate.verdicts(verdicts, test.now);
    test.run();
    assert!(test.was_granted(call));
}

/// Symptom: a call without time was rejected although its limit had a slot again. Cause: the limit
/// counted as closed until the timer fired, which may be a moment late.
#[test]
fn a_call_without_time_goes_when_its_blocker_has_opened_and_the_timer_is_late() {
    let mut test = TestGate::new();
    let rule = Rule::sliding(1, s(10)).unwrap();
    let unreported = test.call(TestCall::new(&rule));
    assert!(test.was_granted(unreported));
    let early = test.call(TestCall::new(&rule).no_wait());
    assert!(!test.was_granted(early));
    test.now.at = test.wake_at.expect("the slot comes free at a known time");
    let next = test.call(TestCall::new(&rule).no_wait());
    assert!(test.was_granted(next), "{:?}", test.resolution(next));
}

#[test]
fn a_scope_that_cools_down_opens_by_itself() {
    let mut test = TestGate::new();
    test.turn(&[close("p", Some(s(30)), Reopen::All)], &[]);
    let calls = test.calls(5, &TestCall::new(&free()).scope("p"));
    let other = test.call(TestCall::new(&free()).scope("q"));
    assert!(test.was_granted(other));
    let hasty = test.call(TestCall::new(&free()).scope("p").max_wait(s(29)));
    assert!(matches!(
        test.resolution(hasty),
        Some(Resolution::Rejected { blocker: Blocker::Scope(_), retry_in }) if *retry_in == s(30)
    ));
    test.advance(s(30));
    for call in calls {
        assert_eq!(test.granted_after(call), Some(s(30)));
    }
}

#[test]
fn after_a_sleep_one_call_probes_and_its_success_opens_the_scope() {
    let mut test = TestGate::new();
    test.turn(&[close("p", Some(s(30)), Reopen::Probe)], &[]);
    let calls = test.calls(5, &TestCall::new(&free()).scope("p"));
    test.advance(s(31));
    assert_eq!(test.granted, [calls[0]], "one at a time");
    let open = Settle::Open {
        scope: ScopeId::named(&["p"]),
    };
    test.turn(&[open], &[]);
    test.run();
    assert_eq!(test.granted, calls);
}

#[test]
fn a_cancelled_probe_gives_its_place_to_the_next_call() {
    let mut test = TestGate::new();
    test.turn(&[close("p", Some(s(30)), Reopen::Probe)], &[]);
    let calls = test.calls(3, &TestCall::new(&free()).scope("p"));
    test.advance(s(30));
    test.settle(calls[0], Outcome::Unsent);
    test.run();
    assert_eq!(test.granted, calls[..2]);
}

#[test]
fn after_a_ledger_outage_every_waiter_is_offered_again() {
    let mut test = TestGate::new();
    let one = Rule::in_flight(1).unwrap();
    test.call(TestCall::new(&one));
    let waits = test.call(TestCall::new(&one));
    // The slot became free and no event reported it.
    test.table = crate::table::Table::default();
    test.run();
    assert_eq!(test.resolution(waits), None);
    test.gate.anything_changed();
    test.run();
    assert!(test.was_granted(waits));
}

#[test]
fn a_ledger_outage_between_offer_and_verdict_is_not_lost() {
    let mut test = TestGate::new();
    let one = Rule::in_flight(1).unwrap();
    test.call(TestCall::new(&one));
    let waits = test.push(TestCall::new(&one));
    let offer = test.tick();
    let verdicts = test.decide(&offer);
    test.table = crate::table::Table::default();
    test.gate.anything_changed();
    test.gate.verdicts(verdicts, test.now);
    test.run();
    assert!(test.was_granted(waits));
}

/// A limit of a minute or longer grants 1 % per transaction; the rest follows at once, in order.
#[test]
fn the_next_batch_of_a_long_limit_follows_at_once_and_in_order() {
    let mut test = TestGate::new();
    let rule = Rule::sliding(300, s(60)).unwrap();
    let calls = test.calls(400, &TestCall::new(&rule));
    assert_eq!(test.granted, calls[..300]);
    assert!(test.offers <= 300, "{} offers", test.offers);
}

#[test]
fn a_gate_is_empty_when_all_waiters_are_gone() {
    let mut test = TestGate::new();
    let rule = Rule::sliding(5, s(1)).unwrap();
    let calls = test.calls(20, &TestCall::new(&rule));
    test.gate.cancel(TestGate::id(calls[10]));
    test.respond_all(s(10));
    assert_eq!(test.granted.len(), 19);
    test.gate.anything_changed();
    assert!(test.gate.is_idle(), "{:?}", test.gate);
    assert_eq!(test.wake_at, None);
}

/// Off-peak hours from 2026-03-01T00:00:00Z, where a test starts.
fn off_peak_gate(from: u16, to: u16) -> TestGate {
    TestGate::with(GateSettings {
        off_peak: Some(OffPeak::new(from, to, TimeZone::UTC).unwrap()),
        ..GateSettings::default()
    })
}

/// M12: low priority waits for off-peak hours, and only low priority does.
#[test]
fn m12_background_calls_wait_for_off_peak_hours() {
    let mut test = off_peak_gate(60, 120);
    let low = test.call(TestCall::new(&free()).low().max_wait(s(7_200)));
    let normal = test.call(TestCall::new(&free()));
    assert!(test.was_granted(normal));
    assert_eq!(test.wake_at, Some(test.now.at + s(3_600)));
    test.advance(s(3_600));
    assert_eq!(test.granted_after(low), Some(s(3_600)));
    test.advance(s(3_599));
    let last = test.call(TestCall::new(&free()).low());
    assert!(test.was_granted(last));
    test.advance(s(1));
    let late = test.call(TestCall::new(&free()).low().max_wait(s(86_400)));
    assert_eq!(test.resolution(late), None);
}

/// M12: a setting says to which priority the hours apply; more urgent calls go at once.
#[test]
fn m12_off_peak_hours_apply_up_to_the_configured_priority() {
    let mut test = TestGate::with(GateSettings {
        off_peak: Some(
            OffPeak::new(60, 120, TimeZone::UTC)
                .unwrap()
                .applies_up_to(Priority::Normal),
        ),
        ..GateSettings::default()
    });
    assert!(!test.gate.is_clear(Priority::Normal) && test.gate.is_clear(Priority::High));
    let normal = test.call(TestCall::new(&free()).max_wait(s(7_200)));
    let high = test.call(TestCall::new(&free()).priority(Priority::High));
    assert!(test.was_granted(high));
    test.advance(s(3_600));
    assert_eq!(test.granted_after(normal), Some(s(3_600)));
}

/// M12: the deadline is before the hours begin.
#[test]
fn m12_a_background_call_that_cannot_wait_so_long_is_rejected() {
    let mut test = off_peak_gate(60, 120);
    let low = test.call(TestCall::new(&free()).low().max_wait(s(3_599)));
    let refusal = Resolution::Rejected {
        blocker: Blocker::OffPeak,
        retry_in: s(3_600),
    };
    assert_eq!(test.resolution(low), Some(&refusal));
    assert_eq!(test.offers, 0);
}

/// M12: calls still queued when the hours end wait for the next ones.
#[test]
fn m12_the_end_of_the_off_peak_hours_stops_the_queue() {
    let mut test = off_peak_gate(0, 60);
    let rule = Rule::sliding(1, s(3_000)).unwrap().drift_ppm(0);
    let want = TestCall::new(&rule).low().max_wait(s(100_000));
    let calls = test.calls(3, &want);
    test.respond_all(s(90_000));
    let gone: Vec<_> = calls.iter().map(|&seq| test.granted_after(seq)).collect();
    assert_eq!(gone, [Some(s(0)), Some(s(3_000)), Some(s(86_400))]);
}

fn berlin(from: u16, to: u16) -> OffPeak {
    let zone = TimeZone::posix("CET-1CEST,M3.5.0,M10.5.0/3").unwrap();
    OffPeak::new(from, to, zone).unwrap()
}

fn wall(text: &str) -> Wall {
    let at: jiff::Timestamp = text.parse().unwrap();
    Wall(u64::try_from(at.as_microsecond()).unwrap())
}

/// M12: 22:00 to 06:00 is one night.
#[test]
fn m12_off_peak_hours_may_span_midnight() {
    let night = berlin(22 * 60, 6 * 60);
    let opens = |text| night.opens_after(wall(text));
    assert_eq!(opens("2026-01-10T20:59:59Z"), Some(s(1)));
    assert_eq!(opens("2026-01-10T21:00:00Z"), None);
    assert_eq!(opens("2026-01-10T23:30:00Z"), None);
    assert_eq!(opens("2026-01-11T04:59:59Z"), None);
    assert_eq!(opens("2026-01-11T05:00:00Z"), Some(s(16 * 3_600)));
}

/// M12: clocks go ahead from 02:00 to 03:00 on 2026-03-29, at 01:00Z.
#[test]
fn m12_off_peak_hours_that_begin_in_a_skipped_hour_begin_after_it() {
    let hours = berlin(2 * 60 + 30, 5 * 60);
    let opens = |text| hours.opens_after(wall(text));
    assert_eq!(opens("2026-03-29T00:50:00Z"), Some(s(600)));
    assert_eq!(opens("2026-03-29T01:00:00Z"), None);
    assert_eq!(opens("2026-03-29T02:59:59Z"), None);
    assert_eq!(opens("2026-03-29T03:00:00Z"), Some(s(21 * 3_600 + 1_800)));
}

/// M12: clocks go back from 03:00 to 02:00 on 2026-10-25, at 01:00Z: 02:30 comes twice.
#[test]
fn m12_off_peak_hours_in_a_repeated_hour_cause_no_busy_loop() {
    let hours = berlin(2 * 60 + 30, 5 * 60);
    let opens = |text| hours.opens_after(wall(text));
    assert_eq!(opens("2026-10-25T00:20:00Z"), Some(s(600)));
    assert_eq!(opens("2026-10-25T00:30:00Z"), None);
    assert_eq!(opens("2026-10-25T01:10:00Z"), Some(s(1_200)));
    assert_eq!(opens("2026-10-25T01:30:00Z"), None);
}

#[test]
fn m12_impossible_off_peak_hours_are_rejected() {
    let zone = TimeZone::UTC;
    let empty = OffPeak::new(60, 60, zone.clone());
    assert_eq!(empty, Err(OffPeakError::Empty));
    assert_eq!(
        OffPeak::new(0, 1_440, zone),
        Err(OffPeakError::Minute(1_440))
    );
}

#[test]
fn removing_the_off_peak_hours_releases_their_waiters() {
    let mut test = off_peak_gate(60, 120);
    let low = test.call(TestCall::new(&free()).low().max_wait(s(86_400)));
    test.gate.configure(GateSettings::default());
    test.run();
    assert!(test.was_granted(low));
}

#[test]
fn a_change_to_fifo_order_applies_to_waiting_calls() {
    let mut test = TestGate::new();
    let rule = Rule::bucket(50, s(1), 1).unwrap().drift_ppm(0);
    test.call(TestCall::new(&rule));
    let low = test.call(TestCall::new(&rule).low());
    let high = test.call(TestCall::new(&rule).high());
    let settings = |order| GateSettings {
        order,
        ..GateSettings::default()
    };
    test.gate.configure(settings(Order::Fifo));
    let later = test.call(TestCall::new(&rule).high());
    test.respond_all(s(1));
    assert_eq!(test.granted[1..], [low, high, later]);
}

#[test]
fn a_freed_cell_that_nobody_waits_for_costs_nothing() {
    let mut test = TestGate::new();
    test.gate.freed(&[cell("y")]);
    test.run();
    assert_eq!((test.offers, test.gate.is_idle()), (0, true));
}

/// Processes that share a ledger reserve capacity for waiters: the last waiter that leaves reports
/// it.
#[test]
fn the_ledger_learns_when_the_last_waiter_has_left_a_queue() {
    let mut test = TestGate::new();
    let want = TestCall::new(&Rule::in_flight(1).unwrap());
    test.call(want.clone());
    let (first, last) = (test.call(want.clone()), test.call(want));
    test.gate.cancel(TestGate::id(first));
    test.run();
    assert!(test.abandoned.is_empty(), "one still waits");
    test.gate.cancel(TestGate::id(last));
    test.run();
    assert_eq!(test.abandoned.len(), 1);
}

/// The ledger may have just queued it there.
#[test]
fn an_offered_call_is_still_expected_when_its_queue_is_empty() {
    let mut test = TestGate::new();
    let want = TestCall::new(&Rule::in_flight(1).unwrap());
    test.call(want.clone());
    test.call(want.clone());
    test.gate.freed(&[cell("x")]);
    let offer = test.tick();
    assert_eq!(offer.len(), 1, "the queued call");
    let last = test.push(want);
    test.gate.cancel(TestGate::id(last));
    let verdicts = test.decide(&offer);
    test.gate.verdicts(verdicts, test.now);
    test.run();
    assert!(test.abandoned.is_empty(), "one still waits");
}

#[test]
fn a_waiter_that_left_while_offered_is_reported_to_the_ledger() {
    let mut test = TestGate::new();
    let want = TestCall::new(&Rule::in_flight(1).unwrap());
    test.call(want.clone());
    let leaves = test.push(want);
    let offer = test.tick();
    test.gate.cancel(TestGate::id(leaves));
    let verdicts = test.decide(&offer);
    test.gate.verdicts(verdicts, test.now);
    test.run();
    assert_eq!(test.abandoned.len(), 1);
}

#[test]
fn an_ask_says_how_long_it_waits() {
    let mut test = TestGate::new();
    test.push(TestCall::new(&Rule::in_flight(1).unwrap()).max_wait(s(2)));
    test.now.at += ms(500);
    let offer = test.tick();
    assert_eq!(offer[0].max_wait, ms(1_500));
}
