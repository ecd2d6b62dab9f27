//! Limits that only responses state: first calls, changes, costs, forgetting, and stored bytes.

use crate::ask::{CellId, CostUnit, LimitReading, Outcome, Priority, WakeOn};
use crate::limit::{AMOUNT_MAX, Cell, HoldUntil, Rule};
use crate::test_ledger::{Permit, TestLedger, arrived, ms, s};
use crate::time::{Micros, Span};
use smallvec::smallvec;

fn requests() -> Rule {
    Rule::learned(s(60)).unwrap().drift_ppm(0)
}

fn tokens() -> Rule {
    requests().unit(CostUnit::Tokens)
}

fn states(limit: u64, remaining: u64) -> LimitReading {
    LimitReading {
        limit: Some(limit),
        remaining: Some(remaining),
        ..LimitReading::default()
    }
}

fn take(ledger: &mut TestLedger, rule: &Rule, cost: u64) -> Option<Permit> {
    let mut term = TestLedger::term("x", rule);
    term.cost = cost;
    ledger.try_terms(smallvec![term], Priority::Normal).ok()
}

#[test]
fn before_the_first_response_one_call_goes_at_a_time() {
    let mut ledger = TestLedger::new();
    let first = ledger.try_one(&requests()).unwrap();
    assert_eq!(ledger.wait(&requests()).1, WakeOn::Event);
    let turn = ledger.arrive_with_reading(&first, false, states(30, 29));
    assert_eq!(
        turn.freed,
        [CellId::named(&["x"])],
        "those who wait are told"
    );
    assert_eq!(ledger.take_all(&requests()).len(), 29);
}

/// The first call was refilled at the rate of a limit that nobody had stated, and the provider saw one call too many.
#[test]
fn the_call_whose_response_states_the_limit_counts_however_late_that_is_told() {
    for age in [0, 1, 1_000, 400_000].map(Span) {
        let mut ledger = TestLedger::new();
        let first = ledger.try_one(&requests()).unwrap();
        ledger.advance(s(1));
        let reading = LimitReading {
            mark: first.marks[0],
            ..states(30, 29)
        };
        let outcome = Outcome::Arrived {
            age,
            limited: false,
            readings: vec![reading],
        };
        ledger.settle(&first, outcome);
        assert_eq!(ledger.take_all(&requests()).len(), 29, "{age:?}");
    }
}

#[test]
fn a_first_call_that_was_presumed_to_have_arrived_counts() {
    let rule = requests().hold_until(HoldUntil::Arrived);
    let mut ledger = TestLedger::new();
    let first = ledger.try_one(&rule).unwrap();
    ledger.settle(&first, Outcome::Presumed { age: Span::ZERO });
    ledger.advance(ms(400));
    ledger.arrive_with_reading(&first, false, states(30, 29));
    assert_eq!(ledger.take_all(&rule).len(), 29);
}

#[test]
fn a_first_call_without_an_outcome_lets_the_next_go_when_it_can_no_longer_arrive() {
    let mut ledger = TestLedger::new();
    assert!(ledger.try_one(&requests()).is_ok());
    ledger.advance(s(36));
    assert!(ledger.try_one(&requests()).is_ok());
}

#[test]
fn a_failed_or_limited_first_call_teaches_nothing() {
    for outcome in [
        Outcome::Failed { age: Span::ZERO },
        Outcome::Arrived {
            age: Span::ZERO,
            limited: true,
            readings: vec![],
        },
        Outcome::Unsent,
    ] {
        let mut ledger = TestLedger::new();
        let first = ledger.try_one(&requests()).unwrap();
        ledger.settle(&first, outcome.clone());
        assert_eq!(ledger.take_all(&requests()).len(), 1, "{outcome:?}");
    }
}

#[test]
fn a_provider_that_states_nothing_is_not_limited() {
    for outcome in [arrived(), Outcome::Complete { age: Span::ZERO }] {
        let mut ledger = TestLedger::new();
        let first = ledger.try_one(&requests()).unwrap();
        ledger.settle(&first, outcome);
        for _ in 0..1_000 {
            assert!(ledger.try_one(&requests()).is_ok());
        }
    }
}

/// What was used of the bucket before its limit was known counts.
#[test]
fn the_stated_bucket_is_never_overdrawn() {
    let mut ledger = TestLedger::new();
    // In twentieths of a call: one is refilled in 100 ms.
    let (mut level, mut granted) = (600_u64, 0);
    let serve = |ledger: &mut TestLedger, permit: &Permit, level: &mut u64| {
        *level = level.checked_sub(20).expect("the provider would reject it");
        ledger.arrive_with_reading(permit, false, states(30, *level / 20));
    };
    let first = ledger.try_one(&requests()).unwrap();
    serve(&mut ledger, &first, &mut level);
    for _ in 0..240 {
        for permit in ledger.take_all(&requests()) {
            serve(&mut ledger, &permit, &mut level);
            granted += 1;
        }
        ledger.advance(ms(100));
        level = (level + 1).min(600);
    }
    assert!(
        (40..=42).contains(&(granted + 1)),
        "30 and one in two seconds: {granted}"
    );
}

#[test]
fn a_lower_limit_applies_to_the_next_call_and_usage_outside_counts() {
    let mut ledger = TestLedger::new();
    let first = ledger.try_one(&requests()).unwrap();
    ledger.arrive_with_reading(&first, false, states(100, 99));
    let second = ledger.try_one(&requests()).unwrap();
    ledger.arrive_with_reading(&second, false, states(10, 3));
    assert_eq!(ledger.take_all(&requests()).len(), 3);
    let view = ledger.peek(&requests());
    assert_eq!(view.limit, 10);
    assert_eq!(view.learned.and_then(|learned| learned.limit), Some(10));
}

#[test]
fn a_limit_that_grows_is_not_full_at_once() {
    let mut ledger = TestLedger::new();
    let first = ledger.try_one(&requests()).unwrap();
    ledger.arrive_with_reading(&first, false, states(10, 9));
    for _ in 0..7 {
        ledger.advance(s(10));
        let permit = ledger.try_one(&requests()).unwrap();
        ledger.arrive_with_reading(
            &permit,
            false,
            LimitReading {
                limit: Some(40),
                ..LimitReading::default()
            },
        );
    }
    assert_eq!(ledger.peek(&requests()).limit, 40);
    assert!(ledger.take_all(&requests()).len() <= 10, "what ten had");
}

/// Estimates above the limit are capped, never rejected for ever; a usage that is a lie closes the limit for a
/// window at most.
#[test]
fn costs_above_the_limit_are_capped() {
    let mut ledger = TestLedger::new();
    let first = take(&mut ledger, &tokens(), 500_000).unwrap();
    ledger.arrive_with_reading(&first, false, states(30_000, 30_000));
    ledger.settle(&first, Outcome::Finished { age: Span::ZERO });
    ledger.advance(s(60));
    let mut lied = take(&mut ledger, &tokens(), 1_000_000).expect("it is capped");
    assert!(
        take(&mut ledger, &tokens(), 1).is_none(),
        "the whole limit is held"
    );
    lied.terms[0].cost = AMOUNT_MAX;
    ledger.settle(&lied, Outcome::Finished { age: Span::ZERO });
    ledger.advance(s(60));
    assert!(
        take(&mut ledger, &tokens(), 30_000).is_some(),
        "no quota is stuck"
    );
}

#[test]
fn a_limit_is_forgotten_after_a_day_and_its_row_is_kept_until_then() {
    let mut ledger = TestLedger::new();
    let first = ledger.try_one(&requests()).unwrap();
    ledger.arrive_with_reading(&first, false, states(30, 0));
    let id = CellId::named(&["x"]);
    ledger.advance(s(86_399));
    let cell = ledger.table.get(id).unwrap();
    assert!(!cell.is_idle(ledger.now.at));
    assert_eq!(ledger.peek(&requests()).limit, 30);
    ledger.advance(s(1));
    assert!(ledger.table.get(id).unwrap().is_idle(ledger.now.at));
    assert_eq!(ledger.take_all(&requests()).len(), 1, "one at a time again");
}

#[test]
fn a_learned_cell_reads_back_as_it_was_written() {
    let mut ledger = TestLedger::new();
    let first = ledger.try_one(&requests()).unwrap();
    ledger.arrive_with_reading(&first, false, states(30, 20));
    let next = ledger.try_one(&requests()).unwrap();
    ledger.arrive_with_reading(&next, false, states(60, 40));
    let cell = ledger.table.get(CellId::named(&["x"])).unwrap();
    let bytes = cell.to_bytes(Micros(5));
    let read = Cell::from_bytes(&bytes, Micros(5)).unwrap();
    assert_eq!(read.to_bytes(Micros(5)), bytes);
    assert_eq!(read.learned, cell.learned);
    for cut in 0..bytes.len() {
        assert!(Cell::from_bytes(&bytes[..cut], Micros(5)).is_err());
    }
}

/// A window that may get shorter is kept with its evidence, and only then in the newest format.
#[test]
fn a_window_on_its_way_to_a_shorter_one_reads_back_as_it_was_written() {
    let mut ledger = TestLedger::new();
    let with = |reset| LimitReading {
        reset_after: Some(s(reset)),
        ..states(30, 20)
    };
    let first = ledger.try_one(&requests()).unwrap();
    ledger.arrive_with_reading(&first, false, with(3_700));
    let version = |ledger: &TestLedger| {
        let cell = ledger.table.get(CellId::named(&["x"])).unwrap();
        let bytes = cell.to_bytes(Micros(5));
        let read = Cell::from_bytes(&bytes, Micros(5)).unwrap();
        assert_eq!(read.learned, cell.learned);
        for cut in 0..bytes.len() {
            assert!(Cell::from_bytes(&bytes[..cut], Micros(5)).is_err());
        }
        bytes[0]
    };
    assert_eq!(version(&ledger), 4);
    for _ in 0..3 {
        ledger.advance(s(1_900));
        let next = ledger.try_one(&requests()).unwrap();
        ledger.arrive_with_reading(&next, false, with(5));
        let learned = ledger.peek(&requests()).learned.unwrap();
        let is_short = learned.period == s(60);
        assert_eq!(version(&ledger), if is_short { 4 } else { 6 });
    }
    assert_eq!(ledger.peek(&requests()).learned.unwrap().period, s(60));
}

#[test]
fn a_lost_cell_starts_with_one_call() {
    let mut ledger = TestLedger::new();
    let first = ledger.try_one(&requests()).unwrap();
    ledger.arrive_with_reading(&first, false, states(30, 29));
    let mut cell = ledger.table.get(CellId::named(&["x"])).unwrap().clone();
    cell.close_for_one_period(&requests(), ledger.now.at, Span::ZERO);
    assert_eq!(cell.peek(&requests(), ledger.now).learned, None);
    assert_eq!(Cell::used_up(&requests(), ledger.now.at), Cell::default());
}
