//! Fixed and calendar windows: edges, clock steps, daylight saving, month ends.

use jiff::tz::TimeZone;
use jiff::{Timestamp, civil};
use smallvec::smallvec;

use crate::ask::{LimitReading, Outcome, Priority, Verdict, WakeOn};
use crate::limit::{Calendar, CalendarPeriod, HoldUntil, Rule};
use crate::test_ledger::{START, TestLedger, ms, s};
use crate::time::{Span, Wall};

fn fixed(limit: u64, period: Span) -> Rule {
    Rule::fixed(limit, period).unwrap().drift_ppm(0)
}

fn daily(limit: u64) -> Rule {
    Rule::calendar(limit, Calendar::new(CalendarPeriod::Day, TimeZone::UTC)).unwrap()
}

fn wall(text: &str) -> Wall {
    let micros = text.parse::<Timestamp>().unwrap().as_microsecond();
    Wall(u64::try_from(micros).unwrap())
}

/// H7: a new window when `now − start ≥ period`, with the count and the start to be seen.
/// H10: a call at 11:00:05 starts a new window at 11:00:05.
#[test]
fn h7_a_window_opens_with_its_first_call_and_ends_one_period_later() {
    let mut ledger = TestLedger::new();
    let rule = fixed(2, s(3_600)).hold_until(HoldUntil::Send);
    ledger.try_one(&rule).unwrap();
    ledger.advance(s(1_800));
    ledger.try_one(&rule).unwrap();
    let view = ledger.peek(&rule);
    assert_eq!((view.used, view.window_age), (2, Some(s(1_800))));
    assert_eq!(ledger.wait(&rule), (s(1_800), WakeOn::Time));
    ledger.advance(s(1_805));
    ledger.try_one(&rule).unwrap();
    let view = ledger.peek(&rule);
    assert_eq!(
        view.window_age,
        Some(Span::ZERO),
        "the window starts with this call"
    );
}

/// H7: the state of a window has one size, however many calls it has counted.
#[test]
fn h7_the_state_of_a_window_does_not_grow_with_its_calls() {
    let mut ledger = TestLedger::new();
    let rule = fixed(10_000, s(3_600));
    let mut sizes = Vec::new();
    for calls in [10, 9_000] {
        for _ in 0..calls {
            let permit = ledger.try_one(&rule).unwrap();
            ledger.arrive(&permit);
        }
        sizes.push(ledger.size_of_state());
    }
    assert_eq!(ledger.peek(&rule).used, 9_010);
    // Numbers have more digits; nothing else is added.
    assert!(sizes[1] < sizes[0] + 50, "{sizes:?}");
}

#[test]
fn a_window_ends_one_period_after_its_first_response() {
    let mut ledger = TestLedger::new();
    let rule = fixed(2, s(10));
    let permits = ledger.take_all(&rule);
    assert_eq!(
        ledger.wait(&rule).1,
        WakeOn::Event,
        "not even the first has a response"
    );
    ledger.advance(s(1));
    ledger.arrive(&permits[1]);
    assert_eq!(
        ledger.wait(&rule),
        (s(10), WakeOn::Time),
        "the second proves that the window is open"
    );
    ledger.advance(s(1));
    ledger.arrive(&permits[0]);
    assert_eq!(ledger.wait(&rule), (s(9), WakeOn::Time));
    ledger.advance(s(9));
    assert_eq!(ledger.take_all(&rule).len(), 2);
}

#[test]
fn a_response_after_the_earliest_edge_counts_in_both_windows() {
    let mut ledger = TestLedger::new();
    let rule = fixed(3, s(10));
    let first = ledger.try_one(&rule).unwrap();
    ledger.advance(s(1));
    ledger.arrive(&first);
    ledger.advance(ms(8_900));
    let straggler = ledger.try_one(&rule).unwrap();
    ledger.advance(ms(200));
    ledger.arrive(&straggler);
    ledger.advance(ms(900));
    assert_eq!(
        ledger.take_all(&rule).len(),
        2,
        "the late call may have opened the next window"
    );
}

#[test]
fn a_window_whose_only_call_was_unsent_never_opened() {
    let mut ledger = TestLedger::new();
    let rule = fixed(1, s(10));
    let permit = ledger.try_one(&rule).unwrap();
    ledger.settle(&permit, Outcome::Unsent);
    assert_eq!(ledger.peek(&rule).window_age, None);
    assert_eq!(ledger.peek(&rule).used, 0);
}

/// M14, C13: a calendar day ends at midnight of its zone, with a margin for the provider's clock.
#[test]
fn c13_a_day_opens_at_midnight_plus_the_margin() {
    let mut ledger = TestLedger::new();
    let rule = daily(100);
    ledger.advance(s(43_200));
    let mut permits = Vec::new();
    while let Ok(permit) = ledger.try_one(&rule) {
        ledger.arrive(&permit);
        permits.push(permit);
    }
    assert_eq!(permits.len(), 100);
    assert_eq!(ledger.wait(&rule), (s(43_200 + 2), WakeOn::Time));
    ledger.advance(s(43_202) - Span(1));
    assert!(ledger.try_one(&rule).is_err());
    ledger.advance(Span(1));
    assert!(ledger.try_one(&rule).is_ok());
    assert_eq!(ledger.peek(&rule).used, 1);
}

#[test]
fn a_call_pending_over_midnight_counts_on_both_days() {
    let mut ledger = TestLedger::new();
    let rule = daily(10);
    ledger.advance(s(86_390));
    let before = ledger.try_one(&rule).unwrap();
    ledger.advance(s(20));
    assert_eq!(ledger.peek(&rule).used, 1, "it may be counted today");
    ledger.arrive(&before);
    assert_eq!(ledger.peek(&rule).used, 1);
}

#[test]
fn a_wall_clock_that_jumps_opens_no_window() {
    for (jump, back) in [(86_400, false), (86_400, true), (40, false), (3_600, true)] {
        let mut ledger = TestLedger::new();
        let rule = daily(1);
        ledger.advance(s(86_390));
        let permit = ledger.try_one(&rule).unwrap();
        ledger.arrive(&permit);
        let wall = ledger.now.wall;
        ledger.now.wall = if back { wall - s(jump) } else { wall + s(jump) };
        assert!(
            ledger.try_one(&rule).is_err(),
            "a step of {jump} s, back: {back}"
        );
        ledger.advance(s(9));
        assert!(ledger.try_one(&rule).is_err());
        ledger.advance(s(4));
        assert!(
            ledger.try_one(&rule).is_ok(),
            "the true midnight has passed, jump {jump} {back}"
        );
    }
}

#[test]
fn a_fast_wall_clock_cannot_open_a_window_early() {
    let mut ledger = TestLedger::new();
    let rule = daily(1);
    let permit = ledger.try_one(&rule).unwrap();
    ledger.arrive(&permit);
    for second in 0..80_000 {
        ledger.advance(s(1));
        ledger.now.wall = START + Span((second + 1) * 1_100_000);
        if second % 60 == 0 {
            assert!(ledger.try_one(&rule).is_err(), "after {second} s");
        }
    }
}

#[test]
fn the_providers_date_confirms_a_wall_clock_that_was_set_right() {
    let mut ledger = TestLedger::new();
    let rule = daily(2);
    let permit = ledger.try_one(&rule).unwrap();
    ledger.now.wall = ledger.now.wall + s(86_410);
    assert_eq!(ledger.peek(&rule).used, 1, "not trusted yet");
    let date = Some(ledger.now.wall + s(1));
    ledger.arrive_with_reading(
        &permit,
        false,
        LimitReading {
            date,
            ..LimitReading::default()
        },
    );
    assert_eq!(
        ledger.peek(&rule).used,
        0,
        "the provider's day is another one"
    );
}

#[test]
fn days_of_a_zone_have_23_and_25_hours_and_reset_once() {
    let zone = TimeZone::fixed(jiff::tz::offset(0));
    assert_eq!(
        Calendar::new(CalendarPeriod::Day, zone)
            .window(wall("2026-03-29T12:00:00Z"))
            .0
            .0
            % 86_400_000_000,
        0
    );
    let berlin = Calendar::new(CalendarPeriod::Day, berlin());
    let hours = |at: &str| {
        let (start, end) = berlin.window(wall(at));
        end.since(start).0 / 3_600_000_000
    };
    assert_eq!(hours("2026-03-29T12:00:00Z"), 23);
    assert_eq!(hours("2026-10-25T12:00:00Z"), 25);
    assert_eq!(hours("2026-06-01T12:00:00Z"), 24);
}

#[test]
fn months_and_weeks_end_at_their_calendar_edges() {
    let month = Calendar::new(CalendarPeriod::Month, TimeZone::UTC);
    let edges = |at| month.window(wall(at));
    assert_eq!(
        edges("2028-02-10T00:00:00Z").1,
        wall("2028-03-01T00:00:00Z")
    );
    assert_eq!(
        edges("2027-02-28T23:59:59Z").1,
        wall("2027-03-01T00:00:00Z")
    );
    assert_eq!(
        edges("2026-12-31T23:59:59Z"),
        (wall("2026-12-01T00:00:00Z"), wall("2027-01-01T00:00:00Z"))
    );
    let week =
        Calendar::new(CalendarPeriod::Week, TimeZone::UTC).window(wall("2026-11-15T10:00:00Z"));
    assert_eq!(
        week,
        (wall("2026-11-09T00:00:00Z"), wall("2026-11-16T00:00:00Z"))
    );
}

#[test]
fn minutes_and_hours_follow_the_offset_of_the_zone() {
    let india = TimeZone::fixed(jiff::tz::Offset::from_seconds(5 * 3_600 + 1_800).unwrap());
    let hour = Calendar::new(CalendarPeriod::Hour, india).window(wall("2026-11-15T10:10:00Z"));
    assert_eq!(
        hour,
        (wall("2026-11-15T09:30:00Z"), wall("2026-11-15T10:30:00Z"))
    );
    let west = TimeZone::fixed(jiff::tz::Offset::from_seconds(-(3 * 3_600 + 1_800)).unwrap());
    let hour = Calendar::new(CalendarPeriod::Hour, west).window(wall("2026-11-15T10:10:00Z"));
    assert_eq!(
        hour,
        (wall("2026-11-15T09:30:00Z"), wall("2026-11-15T10:30:00Z"))
    );
    let minute =
        Calendar::new(CalendarPeriod::Minute, TimeZone::UTC).window(wall("2026-11-15T10:10:30Z"));
    assert_eq!(
        minute,
        (wall("2026-11-15T10:10:00Z"), wall("2026-11-15T10:11:00Z"))
    );
}

#[test]
fn windows_cover_time_without_gaps_in_every_period_and_zone() {
    let zones = [
        TimeZone::UTC,
        berlin(),
        TimeZone::fixed(jiff::tz::offset(-11)),
    ];
    for zone in zones {
        for per in [
            CalendarPeriod::Minute,
            CalendarPeriod::Hour,
            CalendarPeriod::Day,
            CalendarPeriod::Week,
            CalendarPeriod::Month,
        ] {
            let calendar = Calendar::new(per, zone.clone());
            let mut at = wall("2026-01-01T00:00:00Z");
            for _ in 0..500 {
                let (start, end) = calendar.window(at);
                assert!(start <= at && at < end, "{per:?}");
                assert_eq!(
                    calendar.window(end).0,
                    end,
                    "the next one starts where this one ends"
                );
                assert!(end.since(start) <= calendar.max_length());
                at = end;
            }
        }
    }
}

/// Berlin's rule as a POSIX zone, so that no time zone database is read.
fn berlin() -> TimeZone {
    let zone = TimeZone::posix("CET-1CEST,M3.5.0,M10.5.0/3").unwrap();
    let noon = civil::date(2026, 7, 1)
        .at(12, 0, 0, 0)
        .to_zoned(zone.clone())
        .unwrap();
    assert_eq!(noon.offset(), jiff::tz::offset(2));
    zone
}

/// The previous window left late calls, and the call that opened this one was unsent.
#[test]
fn a_fixed_window_whose_only_call_was_unsent_does_not_count() {
    let mut ledger = TestLedger::new();
    let rule = Rule::fixed(2, s(10)).unwrap().drift_ppm(0);
    let first = ledger.try_one(&rule).unwrap();
    ledger.advance(s(9));
    let second = ledger.try_one(&rule).unwrap();
    ledger.arrive(&first);
    ledger.advance(s(2));
    ledger.arrive(&second);
    ledger.advance(s(8));
    let third = ledger.try_one(&rule).unwrap();
    ledger.settle(&third, Outcome::Unsent);
    let mut term = TestLedger::term("x", &rule);
    term.cost = 2;
    let refused = ledger.try_terms(smallvec![term.clone()], Priority::Normal);
    assert!(
        matches!(refused, Err(Verdict::Wait { after, on: WakeOn::Time, .. }) if after == s(2)),
        "{refused:?}"
    );
    ledger.advance(s(2));
    assert!(ledger.try_terms(smallvec![term], Priority::Normal).is_ok());
}
