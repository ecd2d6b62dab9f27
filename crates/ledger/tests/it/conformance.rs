//! The behaviour of every ledger towards one owner.

use std::sync::Arc;

use smallvec::smallvec;
use tollgate_core::ask::{BlockedBy, LimitReading, NeverReason, Outcome, Verdict, WakeOn};
use tollgate_core::limit::Rule;
use tollgate_core::time::Span;

use crate::backend::{Backend, Owner, arrived, assert_waits, secs, sliding, term};

/// Defines one test per behaviour for a backend; `each named`: the backend is a function of the
/// name; `each paused`: in tokio's paused time; `each paused_except`: the same for a list of exceptions
/// with their reasons, and a backend; `each names`: the names
/// of all, as `BEHAVIOURS`.
macro_rules! conformance {
    ($backend:expr) => {
        crate::conformance::conformance!(each tests, $backend);
    };
    (each $what:ident, $with:expr) => {
        crate::conformance::conformance!($what $with;
            conformance::grants_up_to_the_limit_and_says_when_to_ask_again,
            conformance::charges_all_terms_or_none,
            conformance::distinguishes_never_from_not_yet,
            conformance::an_unsent_permit_is_not_counted,
            conformance::settling_twice_changes_nothing,
            conformance::an_unsettled_permit_expires_by_itself,
            conformance::a_dropped_offer_returns_its_permits,
            conformance::a_large_cost_is_not_starved_and_blocks_only_its_own_cell,
            conformance::peeking_takes_nothing,
            conformance::a_provider_may_lower_remaining_and_never_raise_it,
            conformance::a_learned_limit_is_known_to_all_owners,
            conformance::a_changed_limit_keeps_its_count,
            conformance::every_algorithm_keeps_its_limit,
            conformance::a_long_limit_grants_one_percent_per_transaction,
            changes::a_limit_that_changes_its_algorithm_is_kept,
            changes::owners_may_change_a_limit_one_after_another,
            sharing::owners_share_one_count,
            sharing::a_waiting_owner_is_notified_of_another_owners_settle,
            sharing::no_event_is_sent_when_nobody_waits,
            sharing::a_scope_closes_for_all_owners_and_opens_by_itself,
            sharing::owners_probe_once,
            sharing::failures_of_several_owners_are_one_streak,
            sharing::an_unreported_probe_frees_its_slot,
            sharing::a_scope_without_end_opens_only_on_request,
            sharing::a_reserve_holds_across_owners,
            sharing::what_a_provider_reports_reaches_other_owners,
            sharing::a_sleep_and_a_degrade_reach_other_owners,
        );
    };
    (tests $backend:expr; $($suite:ident::$behaviour:ident),+ $(,)?) => {
        $(
            #[tokio::test]
            async fn $behaviour() {
                crate::$suite::$behaviour(&$backend).await;
            }
        )+
    };
    (paused $backend:expr; $($suite:ident::$behaviour:ident),+ $(,)?) => {
        $(
            #[tokio::test(start_paused = true)]
            async fn $behaviour() {
                crate::$suite::$behaviour(&$backend).await;
            }
        )+
    };
    (paused_except $with:expr; $($suite:ident::$behaviour:ident),+ $(,)?) => {
        $(
            #[tokio::test(start_paused = true)]
            async fn $behaviour() {
                let (exceptions, backend) = $with;
                if exceptions.iter().all(|(name, _)| *name != stringify!($behaviour)) {
                    crate::$suite::$behaviour(&backend).await;
                }
            }
        )+
    };
    (names $none:expr; $($suite:ident::$behaviour:ident),+ $(,)?) => {
        const BEHAVIOURS: &[&str] = &[$(stringify!($behaviour)),+];
    };
    (named $backend:expr; $($suite:ident::$behaviour:ident),+ $(,)?) => {
        $(
            #[tokio::test]
            async fn $behaviour() {
                let open = $backend;
                crate::$suite::$behaviour(&open(stringify!($behaviour))).await;
            }
        )+
    };
    (run $with:expr; $($suite:ident::$behaviour:ident),+ $(,)?) => {
        match $with {
            $((stringify!($behaviour), backend) => crate::$suite::$behaviour(backend).await,)+
            (other, _) => panic!("no such behaviour: {other}"),
        }
    };
}
pub(crate) use conformance;

/// Runs the behaviour with this name.
#[cfg(feature = "sqlite")]
pub(crate) async fn run_named(name: &str, backend: &impl Backend) {
    conformance!(each run, (name, backend));
}

pub(crate) async fn grants_up_to_the_limit_and_says_when_to_ask_again(backend: &impl Backend) {
    let mut owner = Owner::new(backend, 1);
    let rule = sliding(3, secs(10));
    let permits = owner.take_all("x", &rule).await;
    assert_eq!(permits.len(), 3);
    owner.settle(&permits[0], arrived());
    let verdict = owner.take(smallvec![term("x", &rule)]).await.unwrap_err();
    let expected = Verdict::Wait {
        after: secs(10),
        on: WakeOn::Time,
        by: BlockedBy::Term(0),
    };
    assert_waits(backend, &verdict, &expected);
    backend.pass(secs(10));
    assert!(owner.take(smallvec![term("x", &rule)]).await.is_ok());
    assert!(owner.take(smallvec![term("x", &rule)]).await.is_err());
}

/// C11: all terms of an ask, or none.
pub(crate) async fn charges_all_terms_or_none(backend: &impl Backend) {
    let mut owner = Owner::new(backend, 1);
    let (wide, narrow) = (sliding(10, secs(10)), sliding(1, secs(10)));
    owner
        .take(smallvec![term("wide", &wide), term("narrow", &narrow)])
        .await
        .unwrap();
    for _ in 0..3 {
        let rejected = owner
            .take(smallvec![term("wide", &wide), term("narrow", &narrow)])
            .await;
        assert!(matches!(
            rejected,
            Err(Verdict::Wait {
                by: BlockedBy::Term(1),
                ..
            })
        ));
    }
    assert_eq!(owner.peek("wide", &wide).await.used, 1);
}

pub(crate) async fn distinguishes_never_from_not_yet(backend: &impl Backend) {
    let mut owner = Owner::new(backend, 1);
    let rule = sliding(5, secs(10));
    let mut large = term("x", &rule);
    large.cost = 6;
    let verdict = owner.take(smallvec![large]).await.unwrap_err();
    assert_eq!(
        verdict,
        Verdict::Never(NeverReason::TooCostly {
            term: 0,
            max_cost: 5
        })
    );
}

pub(crate) async fn an_unsent_permit_is_not_counted(backend: &impl Backend) {
    let mut owner = Owner::new(backend, 1);
    let rule = sliding(1, secs(10));
    let permit = owner.take(smallvec![term("x", &rule)]).await.unwrap();
    owner.settle(&permit, Outcome::Unsent);
    assert!(owner.take(smallvec![term("x", &rule)]).await.is_ok());
}

pub(crate) async fn settling_twice_changes_nothing(backend: &impl Backend) {
    let mut owner = Owner::new(backend, 1);
    let rule = sliding(2, secs(10));
    let permits = owner.take_all("x", &rule).await;
    for _ in 0..3 {
        owner.settle(&permits[0], arrived());
        owner.settle(&permits[0], Outcome::Unsent);
    }
    assert_eq!(owner.peek("x", &rule).await.used, 2);
}

pub(crate) async fn an_unsettled_permit_expires_by_itself(backend: &impl Backend) {
    let mut owner = Owner::new(backend, 1);
    let rule = sliding(1, secs(10));
    owner.take(smallvec![term("x", &rule)]).await.unwrap();
    let last = Span(1) + backend.slack();
    backend.pass(secs(30 + 5 + 10) - last);
    assert!(owner.take(smallvec![term("x", &rule)]).await.is_err());
    backend.pass(last);
    assert!(owner.take(smallvec![term("x", &rule)]).await.is_ok());
}

pub(crate) async fn a_dropped_offer_returns_its_permits(backend: &impl Backend) {
    let mut owner = Owner::new(backend, 1);
    let rule = sliding(2, secs(10));
    let asks = vec![
        owner.ask(smallvec![term("x", &rule)]),
        owner.ask(smallvec![term("x", &rule)]),
    ];
    owner.offer_and_drop(asks);
    assert_eq!(owner.take_all("x", &rule).await.len(), 2);
}

pub(crate) async fn a_large_cost_is_not_starved_and_blocks_only_its_own_cell(
    backend: &impl Backend,
) {
    let mut owner = Owner::new(backend, 1);
    let rule = sliding(10, secs(10));
    let first = owner.take(smallvec![term("x", &rule)]).await.unwrap();
    owner.settle(&first, arrived());
    let mut large = term("x", &rule);
    large.cost = 10;
    let asks = vec![
        owner.ask(smallvec![large]),
        owner.ask(smallvec![term("x", &rule)]),
        owner.ask(smallvec![term("y", &rule)]),
    ];
    let verdicts = owner.offer(asks).await;
    assert!(matches!(verdicts[0], Verdict::Wait { .. }));
    assert!(
        matches!(verdicts[1], Verdict::Wait { .. }),
        "a small ask must not overtake"
    );
    assert!(matches!(verdicts[2], Verdict::Go { .. }));
}

pub(crate) async fn peeking_takes_nothing(backend: &impl Backend) {
    let mut owner = Owner::new(backend, 1);
    let rule = sliding(2, secs(10));
    owner.take(smallvec![term("x", &rule)]).await.unwrap();
    for _ in 0..5 {
        let view = owner.peek("x", &rule).await;
        assert_eq!((view.limit, view.used, view.remaining), (2, 1, 1));
    }
    assert_eq!(owner.peek("never used", &rule).await.remaining, 2);
    assert!(owner.take(smallvec![term("x", &rule)]).await.is_ok());
}

pub(crate) async fn a_provider_may_lower_remaining_and_never_raise_it(backend: &impl Backend) {
    let mut owner = Owner::new(backend, 1);
    let rule = sliding(10, secs(10));
    for (reported, remaining) in [(4, 4), (1_000, 8)] {
        let permit = owner.take(smallvec![term("x", &rule)]).await.unwrap();
        let reading = LimitReading {
            mark: permit.marks[0],
            remaining: Some(reported),
            reset_after: Some(secs(10)),
            ..LimitReading::default()
        };
        let outcome = Outcome::Arrived {
            age: Span::ZERO,
            limited: false,
            readings: vec![reading],
        };
        owner.settle(&permit, outcome);
        assert_eq!(owner.peek("x", &rule).await.remaining, remaining);
    }
}

/// The number is in the cell: whoever comes later decides with it. The call whose response stated it counts, however
/// late that is told.
pub(crate) async fn a_learned_limit_is_known_to_all_owners(backend: &impl Backend) {
    let (mut first, mut second) = (Owner::new(backend, 1), Owner::new(backend, 2));
    let mut later = Owner::new(backend, 3);
    // Nothing refills while messages travel.
    let rule = Arc::new(Rule::learned(secs(86_400)).unwrap());
    for (cell, age) in [("at once", Span::ZERO), ("late", Span::from_millis(200))] {
        let permit = first.take(smallvec![term(cell, &rule)]).await.unwrap();
        let mut events = second.events();
        assert!(
            second.take(smallvec![term(cell, &rule)]).await.is_err(),
            "one at a time before the first response"
        );
        // The response is younger than the grant; whoever waits is still noted.
        backend.pass(Span::from_millis(500));
        let reading = LimitReading {
            mark: permit.marks[0],
            limit: Some(5),
            remaining: Some(4),
            ..LimitReading::default()
        };
        let outcome = Outcome::Arrived {
            age,
            limited: false,
            readings: vec![reading],
        };
        first.settle(&permit, outcome);
        first.wait_settled().await;
        assert!(events.next().await.is_some(), "those who wait are told");
        // A lost wake-up is made up for when the note has lapsed, and by then what was stamped with the
        // upper bound of time is there by the lower one.
        backend.pass(secs(2));
        assert_eq!(second.take_all(cell, &rule).await.len(), 4, "{cell}");
        assert_eq!(later.peek(cell, &rule).await.limit, 5, "{cell}");
        let denied = later.take(smallvec![term(cell, &rule)]).await;
        assert!(denied.is_err(), "{cell}");
    }
}

pub(crate) async fn a_changed_limit_keeps_its_count(backend: &impl Backend) {
    let mut owner = Owner::new(backend, 1);
    let permits = owner.take_all("x", &sliding(35, secs(10))).await;
    assert_eq!(permits.len(), 35);
    assert_eq!(owner.take_all("x", &sliding(40, secs(10))).await.len(), 5);
    assert_eq!(owner.peek("x", &sliding(20, secs(10))).await.remaining, 0);
}

pub(crate) async fn every_algorithm_keeps_its_limit(backend: &impl Backend) {
    let mut owner = Owner::new(backend, 1);
    let rules = [
        Rule::sliding(4, secs(10)),
        Rule::bucket(4, secs(10), 4),
        Rule::fixed(4, secs(10)),
        Rule::in_flight(4),
    ];
    for (index, rule) in rules.into_iter().enumerate() {
        let rule = Arc::new(rule.unwrap());
        assert_eq!(
            owner.take_all(&format!("cell {index}"), &rule).await.len(),
            4,
            "{rule}"
        );
    }
    let paced = Arc::new(Rule::paced(4, secs(10)).unwrap());
    assert_eq!(owner.take_all("paced", &paced).await.len(), 1);
}

pub(crate) async fn a_long_limit_grants_one_percent_per_transaction(backend: &impl Backend) {
    let mut owner = Owner::new(backend, 1);
    let rule = sliding(300, secs(3_600));
    let asks = (0..10)
        .map(|_| owner.ask(smallvec![term("x", &rule)]))
        .collect();
    let verdicts = owner.offer(asks).await;
    let granted = verdicts
        .iter()
        .filter(|verdict| matches!(verdict, Verdict::Go { .. }))
        .count();
    assert_eq!(granted, 3);
    assert_eq!(
        verdicts[3],
        Verdict::Wait {
            after: Span::ZERO,
            on: WakeOn::Time,
            by: BlockedBy::Term(0)
        }
    );
}
