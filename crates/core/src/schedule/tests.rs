//! Schedules and plans in virtual time.

use super::*;
use crate::ask::Priority;

const MINUTE: Span = Span::from_secs(60);

/// 2026-03-01 00:00:00 UTC, a Sunday.
const START: Wall = Wall(1_772_323_200_000_000);

fn at(hours: u64, minutes: u64, seconds: u64) -> Wall {
    START + Span::from_secs(hours * 3_600 + minutes * 60 + seconds)
}

fn cron(text: &str) -> Schedule {
    Schedule::Cron(Cron::parse(text).unwrap_or_else(|| panic!("{text}")))
}

const RULES: PlanRules = PlanRules {
    retries: 2,
    base: Span::from_secs(5),
    max: Span::from_secs(300),
};

fn plan(schedule: &Schedule, names: &[&str]) -> RunPlan {
    let mut plan = RunPlan::new(RULES);
    for name in names {
        let state = RunState {
            next: schedule.first(START),
            ..RunState::default()
        };
        plan.add(name, schedule.clone(), Priority::Normal, state, START);
    }
    plan
}

#[test]
fn h5_times_are_read_as_cron_reads_them() {
    for text in [
        "0 6 * * *",
        "*/5 6-18 * * mon,FRI",
        "0,30 0-12/2 1 jan-mar 0-7",
        "59 23 31 12 7",
        "0 0 29 2 *",
    ] {
        assert!(Cron::parse(text).is_some(), "{text}");
    }
    for text in [
        "",
        "a b c d e",
        "0 6 * *",
        "0 6 * * * *",
        "60 * * * *",
        "* 24 * * *",
        "* * 0 * *",
        "* * * 13 *",
        "* * * * 8",
        "5-1 * * * *",
        "*/0 * * * *",
        "1, * * * *",
        "+1 * * * *",
        "-1 * * * *",
        "1/ * * * *",
        "5/10 * * * *",
        "mon * * * *",
        "99999999999 * * * *",
        "0 0 31 2 *",
    ] {
        assert!(Cron::parse(text).is_none(), "{text}");
    }
}

#[test]
fn h5_the_next_time_of_cron_is_in_utc() {
    let day = 24;
    for (text, now, next) in [
        ("0 6 * * *", at(0, 0, 0), at(6, 0, 0)),
        ("0 6 * * *", at(6, 0, 0), at(day + 6, 0, 0)),
        ("*/15 * * * *", at(1, 15, 1), at(1, 30, 0)),
        ("30 23 * * *", at(23, 30, 59), at(day + 23, 30, 0)),
        // The first Monday, and the first of the next month: either day is enough.
        ("0 0 1 * mon", at(0, 0, 0), at(day, 0, 0)),
        ("0 0 1 * *", at(0, 0, 0), at(31 * day, 0, 0)),
        ("0 0 * * 7", at(0, 0, 0), at(7 * day, 0, 0)),
        // 29 February 2028.
        ("0 12 29 feb *", at(0, 0, 0), at(730 * day + 12, 0, 0)),
    ] {
        let cron = Cron::parse(text).expect(text);
        assert_eq!(cron.after(now), Some(next), "{text}");
    }
    assert_eq!(
        Cron::parse("* * * * *").and_then(|cron| cron.after(Wall(u64::MAX))),
        None
    );
}

/// H5: a source without times is fetched once; times of `every` keep their grid however late they run.
#[test]
fn h5_every_keeps_its_grid_and_makes_up_for_missed_times_once() {
    assert_eq!(Schedule::Once.first(START), Some(START));
    assert_eq!(Schedule::Once.after(START, START), None);
    let every = Schedule::Every(Span(5 * MINUTE.0));
    assert_eq!(every.first(START), Some(START));
    for (now, next) in [
        (at(0, 0, 0), at(0, 5, 0)),
        (at(0, 4, 59), at(0, 5, 0)),
        (at(0, 5, 0), at(0, 10, 0)),
        (at(3, 1, 0), at(3, 5, 0)),
    ] {
        assert_eq!(every.after(START, now), Some(next));
    }
    let daily = cron("0 6 * * *");
    let three_days = at(80, 0, 0);
    assert_eq!(daily.after(at(6, 0, 0), three_days), Some(at(96 + 6, 0, 0)));
}

/// H5: a clock that is set back holds nothing for longer than its own distance, and one that is adjusted repeats nothing.
#[test]
fn h5_a_clock_that_steps_neither_holds_nor_repeats_a_source() {
    let every = Schedule::Every(MINUTE);
    let year_ahead = START + Span::from_secs(365 * 86_400);
    assert_eq!(
        every.corrected(Some(year_ahead), None, START),
        Some(START + MINUTE)
    );
    assert_eq!(every.after(year_ahead, START), Some(START + MINUTE));
    let daily = cron("0 6 * * *");
    let ran = at(6, 0, 0);
    let next = daily.after(ran, ran);
    let adjusted = at(5, 59, 59);
    assert_eq!(daily.corrected(next, Some(ran), adjusted), next);
    assert_eq!(
        daily.corrected(next, Some(ran), at(2, 0, 0)),
        Some(ran),
        "a corrected date"
    );
}

/// H6: at most `remaining` sources of a provider are queued, those counted that are queued and not acquired yet; another
/// provider's are not held back by them.
#[test]
fn h6_no_more_are_queued_than_a_provider_has_capacity_for() {
    let names = ["a", "b", "c", "d", "e"];
    let mut plan = plan(&Schedule::Once, &names);
    let due = plan.due(START);
    assert_eq!(due, names);
    let queued: Vec<bool> = names
        .iter()
        .map(|name| plan.queue(name, "fmp", Some(3)))
        .collect();
    assert_eq!(queued, [true, true, true, false, false]);
    assert!(!plan.queue("a", "fmp", Some(9)), "it is queued already");
    // The next cycle: nothing was acquired, so capacity is the same.
    assert_eq!(plan.due(START), ["d", "e"]);
    assert!(!plan.queue("d", "fmp", Some(3)));
    assert!(plan.queue("d", "other", Some(1)));
    // One has its permit, and is still running.
    assert_eq!(plan.start_next().as_deref(), Some("a"));
    assert!(!plan.queue("e", "fmp", Some(2)));
    plan.on_end("a", RunEnd::Done, START);
    assert!(!plan.queue("e", "fmp", Some(2)));
    assert!(plan.queue("e", "fmp", Some(3)));
}

/// H6: a denial is no failure: it uses no retry, and the source is due again.
#[test]
fn h6_a_denied_source_is_put_back_and_uses_no_retry() {
    let mut plan = plan(&Schedule::Every(MINUTE), &["a"]);
    for _denial in 0..10 {
        assert!(plan.queue("a", "fmp", Some(1)));
        plan.start_next();
        let state = plan.on_end("a", RunEnd::Denied(Some(Span::from_secs(7))), START);
        let state = state.expect("it is there");
        assert_eq!((state.failures, state.next), (0, Some(START)));
        assert_eq!(plan.due(START), Vec::<String>::new());
        assert_eq!(plan.due(START + Span::from_secs(7)), ["a"]);
    }
    plan.skip("a", Some(Span::from_secs(86_400)), START);
    assert_eq!(plan.due(START + MINUTE), ["a"], "limits may have changed");
}

/// H6: a failure uses a retry, after 5 s, then 10 s; then the source waits for its next time.
#[test]
fn h6_a_failed_source_is_tried_again_and_then_waits_for_its_next_time() {
    let mut plan = plan(&Schedule::Every(MINUTE), &["a"]);
    let mut now = START;
    for wait in [5, 10] {
        assert!(plan.queue("a", "fmp", None));
        plan.start_next();
        plan.on_end("a", RunEnd::Failed, now);
        let wait = Span::from_secs(wait);
        assert_eq!(plan.due(now + wait - Span(1)), Vec::<String>::new());
        now = now + wait;
        assert_eq!(plan.due(now), ["a"]);
    }
    assert!(plan.queue("a", "fmp", None));
    plan.start_next();
    let state = plan.on_end("a", RunEnd::Failed, now).expect("it is there");
    assert_eq!((state.failures, state.next), (0, Some(START + MINUTE)));
}

/// H6: what was queued or running when the process died is due again: its time has not been moved.
#[test]
fn h6_what_was_queued_is_due_after_a_restart_once() {
    let every = Schedule::Every(MINUTE);
    let mut before = plan(&every, &["a"]);
    assert!(before.queue("a", "fmp", None));
    before.start_next();
    let stored = before.state("a").expect("it is there");
    let hours_later = at(5, 0, 30);
    let mut plan = RunPlan::new(RULES);
    plan.add("a", every, Priority::Normal, stored, hours_later);
    assert_eq!(plan.due(hours_later), ["a"]);
    assert!(plan.queue("a", "fmp", None));
    plan.on_end("a", RunEnd::Done, hours_later);
    assert_eq!(plan.due(hours_later), Vec::<String>::new(), "once");
    let next = plan.state("a").and_then(|state| state.next);
    assert_eq!(next, Some(at(5, 1, 0)));
}

#[test]
fn urgent_sources_are_queued_first_then_those_that_wait_longest() {
    let mut plan = RunPlan::new(RULES);
    let state = |at: Wall| RunState {
        next: Some(at),
        ..RunState::default()
    };
    for (name, priority, next) in [
        ("late", Priority::Normal, START + MINUTE),
        ("early", Priority::Normal, START),
        ("low", Priority::Low, START),
        ("high", Priority::High, START + MINUTE),
    ] {
        plan.add(name, Schedule::Once, priority, state(next), START);
    }
    assert_eq!(plan.due(START + MINUTE), ["high", "early", "late", "low"]);
}

#[test]
fn a_removed_source_leaves_nothing_behind() {
    let mut plan = plan(&Schedule::Once, &["a", "b"]);
    assert!(plan.queue("a", "fmp", Some(1)));
    plan.keep_only(|name| name == "b");
    assert_eq!((plan.queued(), plan.outstanding("fmp")), (0, 0));
    assert_eq!(plan.on_end("a", RunEnd::Done, START), None);
    assert!(plan.queue("b", "fmp", Some(1)));
}
