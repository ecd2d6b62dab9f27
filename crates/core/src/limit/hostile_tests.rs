//! Values that no honest caller, provider or file has: nothing panics, and nothing frees early.

use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed};
use smallvec::smallvec;

use jiff::tz::TimeZone;

use crate::ask::{
    CostUnit, Evidence, LimitReading, Mark, Outcome, OwnerId, Priority, Settle, Term, Verdict,
    WakeOn,
};
use crate::limit::{
    AMOUNT_MAX, Calendar, CalendarPeriod, Cell, Damaged, HoldUntil, PERIOD_MAX, Rule, SettleAt,
};
use crate::test_ledger::{Permit, TestLedger, s};
use crate::time::{Micros, Span, Wall};

fn config(cases: u32) -> Config {
    Config {
        cases,
        rng_seed: RngSeed::Fixed(20_261_115),
        failure_persistence: None,
        ..Config::default()
    }
}

/// Numbers where arithmetic goes wrong, and ordinary ones.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![
        4 => 0_u64..12,
        1 => Just(AMOUNT_MAX),
        1 => Just(u64::MAX),
        1 => Just(u64::MAX - 1),
        1 => any::<u64>(),
    ]
}

fn span() -> impl Strategy<Value = Span> {
    prop_oneof![6 => 0_u64..30_000_000, 1 => number()].prop_map(Span)
}

fn rule() -> impl Strategy<Value = Rule> {
    let limit = prop_oneof![8 => 1_u64..20, 1 => Just(AMOUNT_MAX), 1 => Just(5_000_u64)];
    let period = prop_oneof![
        6 => 1_u64..20_000_000,
        1 => Just(1_u64),
        1 => Just(PERIOD_MAX.0)
    ];
    let options = (
        prop_oneof![4 => Just(Span::ZERO), 1 => span()],
        any::<[bool; 4]>(),
        prop_oneof![Just(1_000_u64), Just(0), Just(500_000)],
    );
    (0_u8..6, limit, period, options).prop_map(|(kind, limit, period, (lag, flags, drift))| {
        let period = Span(period);
        let rule = match kind {
            0 => Rule::sliding(limit, period),
            1 => Rule::bucket(limit, period, limit),
            2 => Rule::fixed(limit, period),
            3 => Rule::paced(limit, period),
            4 => Rule::in_flight(limit),
            _ => Rule::calendar(limit, Calendar::new(CalendarPeriod::Minute, TimeZone::UTC)),
        };
        let [send, end, shadow, tokens] = flags;
        let mut rule = rule.unwrap().counter_lag(lag).drift_ppm(drift);
        if send && shadow {
            rule = rule.hold_until(HoldUntil::Send);
        }
        if !send && shadow {
            rule = rule.hold_until(HoldUntil::Arrived);
        }
        if tokens {
            rule = rule.unit(CostUnit::Tokens);
        }
        if end {
            rule = rule.settle_at(SettleAt::End);
        }
        rule.shadow(shadow && !send && end)
    })
}

/// One thing that happens. Instants and numbers are as hostile as they come.
#[derive(Clone, Debug)]
enum Step {
    Pass(Span),
    WallTo(u64),
    Ask(Priority, u64, u64, Evidence, u32),
    Settle(usize, u64, Outcome),
    Sweep,
}

fn reading() -> impl Strategy<Value = LimitReading> {
    let maybe = || prop::option::of(number());
    let mark = (number(), number(), number());
    let mark = prop::option::of(mark.prop_map(|(granted, settled, used)| Mark {
        granted,
        settled,
        used,
        remaining: 0,
    }));
    (0_usize..3, mark, maybe(), maybe(), maybe(), maybe()).prop_map(
        |(term, mark, remaining, limit, reset, date)| LimitReading {
            term,
            mark: mark.unwrap_or_default(),
            remaining,
            limit,
            reset_after: reset.map(Span),
            date: date.map(Wall),
        },
    )
}

fn outcome() -> impl Strategy<Value = Outcome> {
    prop_oneof![
        (
            span(),
            any::<bool>(),
            prop::collection::vec(reading(), 0..3)
        )
            .prop_map(|(age, limited, readings)| Outcome::Arrived {
                age,
                limited,
                readings
            }),
        span().prop_map(|age| Outcome::Failed { age }),
        span().prop_map(|age| Outcome::Finished { age }),
        span().prop_map(|age| Outcome::Presumed { age }),
        Just(Outcome::Unsent),
        (span(), span()).prop_map(|(age, late)| Outcome::Unknown { age, late }),
        span().prop_map(|by| Outcome::Alive { extend_by: by }),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let evidence = prop_oneof![
        (span(), span()).prop_map(|(by, late)| Evidence::Report { timeout: by, late }),
        span().prop_map(|use_within| Evidence::None { use_within }),
    ];
    let priority = prop_oneof![
        Just(Priority::Low),
        Just(Priority::Normal),
        Just(Priority::High)
    ];
    prop_oneof![
        3 => span().prop_map(Step::Pass),
        1 => number().prop_map(Step::WallTo),
        6 => (priority, number(), number(), evidence, 0_u32..3)
            .prop_map(|(priority, cost, reserve, evidence, owner)| {
                Step::Ask(priority, cost, reserve, evidence, owner)
            }),
        5 => (any::<usize>(), number(), outcome())
            .prop_map(|(which, cost, outcome)| Step::Settle(which, cost, outcome)),
        1 => Just(Step::Sweep),
    ]
}

/// Runs the steps under one rule named twice and once more in a cell of its own.
fn run(rule: &Rule, steps: &[Step], check: impl Fn(&TestLedger)) {
    let mut ledger = TestLedger::new();
    let mut permits: Vec<Permit> = Vec::new();
    for step in steps {
        match step {
            Step::Pass(span) => ledger.advance(*span),
            Step::WallTo(wall) => ledger.now.wall = Wall(*wall),
            Step::Ask(priority, cost, reserve, evidence, owner) => {
                let term = |cell: &str| Term {
                    cost: *cost,
                    reserve: *reserve,
                    ..TestLedger::term(cell, rule)
                };
                let mut ask = ledger.ask(smallvec![term("x"), term("y"), term("x")], *priority);
                ask.evidence = *evidence;
                ask.id.owner = OwnerId(*owner);
                let turn = ledger.turn(&[], std::slice::from_ref(&ask));
                if let Verdict::Go { marks } = &turn.verdicts[0] {
                    permits.push(Permit {
                        id: ask.id,
                        terms: ask.terms,
                        marks: marks.clone(),
                    });
                }
            }
            Step::Settle(which, cost, outcome) => {
                let Some(permit) = permits.get(which % permits.len().max(1)) else {
                    continue;
                };
                let mut terms = permit.terms.clone();
                terms[0].cost = *cost;
                ledger.turn(
                    &[Settle::Permit {
                        id: permit.id,
                        terms,
                        scopes: smallvec![],
                        outcome: outcome.clone(),
                    }],
                    &[],
                );
            }
            Step::Sweep => ledger.table.sweep(ledger.now.at, 1),
        }
        ledger.peek(rule);
        check(&ledger);
    }
}

proptest! {
    #![proptest_config(config(256))]

    /// R-A14: hostile costs, instants, ages, marks and headers.
    #[test]
    fn no_value_makes_a_cell_panic(
        rule in rule(),
        steps in prop::collection::vec(step(), 1..60),
    ) {
        run(&rule, &steps, |_| {});
    }

    /// A cell reads back as it was written, on the same clock and on any other.
    #[test]
    fn an_encoded_cell_is_the_same_on_any_base(
        rule in rule(),
        steps in prop::collection::vec(step(), 1..40),
        other in 1_000_000_000_000_u64..1 << 52,
    ) {
        run(&rule, &steps, |ledger| {
            for (id, bytes) in ledger.table.snapshot(ledger.now.at) {
                let same = Cell::from_bytes(&bytes, ledger.now.at).unwrap();
                let kept = ledger.table.get(id).unwrap();
                assert_eq!(same.peek(&rule, ledger.now), kept.peek(&rule, ledger.now));
                assert_eq!(same.to_bytes(ledger.now.at), bytes);
                let base = Micros(other);
                let moved = Cell::from_bytes(&bytes, base).unwrap().to_bytes(base);
                let back = Cell::from_bytes(&moved, ledger.now.at).unwrap();
                // Only what lies beyond either end of a clock is clipped.
                if ledger.now.at < Micros(1 << 52) {
                    assert_eq!(back.peek(&rule, ledger.now), kept.peek(&rule, ledger.now));
                }
            }
        });
    }

    /// A file may contain anything with a valid checksum: it is a cell or it is damaged, in time
    /// and memory bounded by its length; and a decoded cell decides without panic.
    #[test]
    fn no_bytes_make_a_reader_panic(
        mut bytes in prop::collection::vec(prop_oneof![0_u8..6, any::<u8>()], 0..200),
        rule in rule(),
    ) {
        if let Some(version) = bytes.first_mut() {
            *version = 1;
        }
        let sum = blake3::hash(&bytes);
        bytes.extend_from_slice(&sum.as_bytes()[..4]);
        let mut ledger = TestLedger::new();
        let cell = TestLedger::term("x", &rule).cell;
        ledger.table.restore(&[(cell, bytes)], ledger.now.at, s(3));
        ledger.peek(&rule);
        if let Ok(permit) = ledger.try_one(&rule) {
            ledger.advance(s(1));
            ledger.arrive(&permit);
            ledger.settle(&permit, Outcome::Finished { age: Span::ZERO });
        }
        ledger.advance(s(100_000));
        ledger.try_one(&rule).ok();
    }
}

/// Bytes with a valid checksum.
fn sealed(body: &[u8]) -> Vec<u8> {
    let mut bytes = body.to_vec();
    bytes.extend_from_slice(&blake3::hash(body).as_bytes()[..4]);
    bytes
}

#[test]
fn a_count_larger_than_the_bytes_is_damage_at_once() {
    let mut body = vec![1, 0, 0, 0, 0];
    body.extend_from_slice(&[0xff; 9]);
    body.push(1);
    assert_eq!(
        Cell::from_bytes(&sealed(&body), Micros(0)),
        Err(Damaged::Bytes)
    );
}

/// Slots must be in the order in which they free, or some would free late.
#[test]
fn slots_out_of_order_are_damage() {
    let mut ledger = TestLedger::new();
    let rule = Rule::sliding(5, s(10)).unwrap();
    for _ in 0..2 {
        let permit = ledger.try_one(&rule).unwrap();
        ledger.arrive(&permit);
        ledger.advance(Span(7));
    }
    let (_, bytes) = ledger.table.snapshot(Micros(0)).remove(0);
    let body = &bytes[..bytes.len() - 4];
    assert!(Cell::from_bytes(&sealed(body), Micros(0)).is_ok());
    // The two instants differ in their lowest byte only.
    let slot = body.windows(6).rposition(|window| window[5] == 1).unwrap();
    let mut swapped = body.to_vec();
    let first = (0..slot)
        .rev()
        .find(|&at| body[at + 1..at + 6] == body[slot + 1..slot + 6])
        .expect("the slot before");
    swapped.swap(first, slot);
    assert_eq!(
        Cell::from_bytes(&sealed(&swapped), Micros(0)),
        Err(Damaged::Bytes)
    );
}

/// Symptom: with a ledger that stores cells as bytes no waiter was ever woken. Cause: the pending
/// wake was not encoded.
#[test]
fn an_encoded_cell_keeps_its_pending_wake() {
    let mut ledger = TestLedger::new();
    let rule = Rule::sliding(1, s(10)).unwrap();
    let permit = ledger.try_one(&rule).unwrap();
    assert_eq!(ledger.wait(&rule).1, WakeOn::Event);
    let snapshot = ledger.table.snapshot(ledger.now.at);
    ledger.table.restore(&snapshot, ledger.now.at, Span::ZERO);
    assert_eq!(ledger.arrive(&permit).freed.len(), 1);
}

/// Costs settled far above the held cost add up without wrapping, and are removed one by one.
#[test]
fn enormous_true_costs_hold_the_limit_until_the_last_has_left() {
    let mut ledger = TestLedger::new();
    let rule = Rule::sliding(10, s(10))
        .unwrap()
        .drift_ppm(0)
        .unit(CostUnit::Tokens);
    let mut permits = ledger.take_all(&rule);
    for permit in &mut permits {
        permit.terms[0].cost = u64::MAX;
        ledger.settle(permit, Outcome::Finished { age: Span::ZERO });
        ledger.advance(s(1));
    }
    assert_eq!(ledger.peek(&rule).used, 9 * AMOUNT_MAX, "2⁵³ each");
    ledger.advance(s(9) - Span(1));
    assert!(ledger.try_one(&rule).is_err(), "the last one is still held");
    ledger.advance(Span(1));
    assert_eq!(ledger.take_all(&rule).len(), 10);
}

/// Symptom: a panic (in release builds, outside use out of nothing) at `Remaining: 2^64 − 1`.
#[test]
fn the_largest_remaining_value_blocks_nothing() {
    let mut ledger = TestLedger::new();
    let rule = Rule::sliding(10, s(10)).unwrap();
    let permit = ledger.try_one(&rule).unwrap();
    let reading = LimitReading {
        remaining: Some(u64::MAX),
        limit: Some(u64::MAX),
        reset_after: Some(Span(u64::MAX)),
        ..LimitReading::default()
    };
    ledger.arrive_with_reading(&permit, false, reading);
    assert_eq!(ledger.peek(&rule).remaining, 9);
}
