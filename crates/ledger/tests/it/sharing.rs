//! The behaviour of every ledger towards several owners.

use smallvec::smallvec;
use tollgate_core::ask::{
    BlockedBy, LimitReading, Outcome, Reopen, ScopeId, Settle, Term, Verdict, WakeOn,
};
use tollgate_core::scope::ScopeView;
use tollgate_core::time::Span;
use tollgate_ledger::Event;

use crate::backend::{Backend, Owner, arrived, assert_waits, secs, sliding, term};
use crate::fairness::owners;

pub(crate) async fn owners_share_one_count(backend: &impl Backend) {
    let (mut one, mut two) = (Owner::new(backend, 1), Owner::new(backend, 2));
    let rule = sliding(10, secs(10));
    for _ in 0..4 {
        one.take(smallvec![term("x", &rule)]).await.unwrap();
    }
    assert_eq!(two.take_all("x", &rule).await.len(), 6);
    assert!(one.take(smallvec![term("x", &rule)]).await.is_err());
}

pub(crate) async fn a_waiting_owner_is_notified_of_another_owners_settle(backend: &impl Backend) {
    let (mut one, mut two) = (Owner::new(backend, 1), Owner::new(backend, 2));
    let rule = sliding(1, secs(10));
    let mut events = two.events();
    let permit = one.take(smallvec![term("x", &rule)]).await.unwrap();
    let rejected = two.take(smallvec![term("x", &rule)]).await.unwrap_err();
    assert!(
        matches!(
            rejected,
            Verdict::Wait {
                on: WakeOn::Event,
                ..
            }
        ),
        "{rejected:?}"
    );
    one.settle(&permit, arrived());
    let Some(Event::Freed(cells)) = events.next().await else {
        panic!("no event")
    };
    assert_eq!(cells[..], [term("x", &rule).cell]);
}

pub(crate) async fn no_event_is_sent_when_nobody_waits(backend: &impl Backend) {
    let mut one = Owner::new(backend, 1);
    let rule = sliding(5, secs(10));
    let mut events = one.events();
    let permit = one.take(smallvec![term("x", &rule)]).await.unwrap();
    one.settle(&permit, arrived());
    one.take(smallvec![term("x", &rule)]).await.unwrap();
    assert_eq!(events.try_next().await, None);
}

pub(crate) async fn a_scope_closes_for_all_owners_and_opens_by_itself(backend: &impl Backend) {
    let (one, mut two) = (Owner::new(backend, 1), Owner::new(backend, 2));
    let scope = ScopeId::named(&["tmdb"]);
    let closed_for = Some(secs(30));
    one.send_settle(Settle::Close {
        scope,
        age: secs(10),
        closed_for,
        reopen: Reopen::All,
    });
    one.wait_settled().await;
    let mut ask = two.ask(smallvec![term("x", &sliding(5, secs(10)))]);
    ask.scopes.push(scope);
    let verdict = two.take_ask(ask.clone()).await.unwrap_err();
    let expected = Verdict::Wait {
        after: secs(20),
        on: WakeOn::Time,
        by: BlockedBy::Scope(0),
    };
    assert_waits(backend, &verdict, &expected);
    assert_eq!(
        two.peek("x", &sliding(5, secs(10))).await.used,
        0,
        "a closed scope costs nothing"
    );
    backend.pass(secs(20));
    assert!(two.take_ask(ask).await.is_ok());
    assert_eq!(one.peek_scope(scope).await, ScopeView::Open);
}

pub(crate) async fn owners_probe_once(backend: &impl Backend) {
    let (mut one, mut two) = (Owner::new(backend, 1), Owner::new(backend, 2));
    let scope = ScopeId::named(&["tmdb"]);
    let close = Settle::Close {
        scope,
        age: secs(0),
        closed_for: Some(secs(1)),
        reopen: Reopen::Probe,
    };
    one.send_settle(close);
    backend.pass(secs(1));
    let mut asks = [one.ask(smallvec![]), two.ask(smallvec![])];
    for ask in &mut asks {
        ask.scopes.push(scope);
    }
    let [first, second] = asks;
    let probe = one.take_ask(first).await.unwrap();
    assert!(
        two.take_ask(second.clone()).await.is_err(),
        "one probe at a time"
    );
    let mut events = two.events();
    one.settle(&probe, Outcome::Unsent);
    // The unsent probe frees its slot. An earlier event may come first.
    loop {
        assert!(matches!(events.next().await, Some(Event::Scopes(_))));
        if two.take_ask(second.clone()).await.is_ok() {
            break;
        }
    }
    one.send_settle(Settle::Open { scope });
    assert_eq!(one.peek_scope(scope).await, ScopeView::Open);
}

pub(crate) async fn an_unreported_probe_frees_its_slot(backend: &impl Backend) {
    let (mut one, mut two) = owners(backend).await;
    let scope = ScopeId::named(&["tmdb"]);
    let close = Settle::Close {
        scope,
        age: secs(0),
        closed_for: Some(secs(0)),
        reopen: Reopen::Probe,
    };
    one.send_settle(close);
    let mut asks = [one.ask(smallvec![]), two.ask(smallvec![])];
    for ask in &mut asks {
        ask.scopes.push(scope);
    }
    let [first, second] = asks;
    // A store far away knows the time only within a round trip.
    backend.pass(Span::from_millis(10));
    one.take_ask(first).await.unwrap();
    backend.pass(secs(35));
    assert!(two.take_ask(second).await.is_ok());
}

pub(crate) async fn a_scope_without_end_opens_only_on_request(backend: &impl Backend) {
    let mut one = Owner::new(backend, 1);
    let scope = ScopeId::named(&["offline"]);
    one.send_settle(Settle::Close {
        scope,
        age: secs(0),
        closed_for: None,
        reopen: Reopen::All,
    });
    let mut ask = one.ask(smallvec![]);
    ask.scopes.push(scope);
    backend.pass(secs(1_000_000));
    let rejected = one.take_ask(ask.clone()).await.unwrap_err();
    assert!(matches!(
        rejected,
        Verdict::Wait {
            on: WakeOn::Event,
            ..
        }
    ));
    one.send_settle(Settle::Open { scope });
    assert!(one.take_ask(ask).await.is_ok());
}

/// W4: the failure that completes the streak closes the scope, whichever owner reports it, before
/// anything else is granted. A counted response ends the streak.
pub(crate) async fn failures_of_several_owners_are_one_streak(backend: &impl Backend) {
    let (mut one, mut two) = (Owner::new(backend, 1), Owner::new(backend, 2));
    let (rule, scope) = (sliding(50, secs(10)), ScopeId::named(&["health"]));
    let failed = Settle::Failed {
        scope,
        age: Span::ZERO,
        in_a_row: 3,
        closed_for: secs(30),
        path: None,
    };
    let scoped = |owner: &mut Owner| {
        let mut ask = owner.ask(smallvec![term("x", &rule)]);
        ask.scopes.push(scope);
        ask
    };
    let ask = scoped(&mut two);
    let well = two.take_ask(ask).await.unwrap();
    for _ in 0..2 {
        one.send_settle(failed.clone());
        one.wait_settled().await;
    }
    two.settle(&well, arrived());
    two.wait_settled().await;
    for owner in [&one, &two] {
        owner.send_settle(failed.clone());
        owner.wait_settled().await;
    }
    let ask = scoped(&mut one);
    assert!(
        one.take_ask(ask).await.is_ok(),
        "two failures since the last response"
    );
    two.send_settle(failed);
    let ask = scoped(&mut two);
    assert!(two.take_ask(ask).await.is_err());
    let ask = scoped(&mut one);
    assert!(one.take_ask(ask).await.is_err());
    backend.pass(secs(30));
    let asks = vec![scoped(&mut one), scoped(&mut one)];
    let verdicts = one.offer(asks).await;
    let went = |verdict: &Verdict| matches!(verdict, Verdict::Go { .. });
    assert!(went(&verdicts[0]) && !went(&verdicts[1]), "only one probe");
}

/// What is kept for urgent calls of one owner is kept from background calls of every other.
pub(crate) async fn a_reserve_holds_across_owners(backend: &impl Backend) {
    let (mut urgent, mut background) = (Owner::new(backend, 1), Owner::new(backend, 2));
    let rule = sliding(10, secs(10));
    let spares = |reserve| Term {
        reserve,
        ..term("x", &rule)
    };
    for _ in 0..5 {
        urgent.take(smallvec![spares(0)]).await.unwrap();
    }
    for _ in 0..2 {
        background.take(smallvec![spares(3)]).await.unwrap();
    }
    assert!(background.take(smallvec![spares(3)]).await.is_err());
    for _ in 0..3 {
        urgent.take(smallvec![spares(0)]).await.unwrap();
    }
    assert!(urgent.take(smallvec![spares(0)]).await.is_err());
}

/// A response to one owner says how little remains, and until when: all owners keep to it.
pub(crate) async fn what_a_provider_reports_reaches_other_owners(backend: &impl Backend) {
    let (mut one, mut two) = (Owner::new(backend, 1), Owner::new(backend, 2));
    let rule = sliding(10, secs(10));
    let permit = one.take(smallvec![term("x", &rule)]).await.unwrap();
    let reading = LimitReading {
        mark: permit.marks[0],
        remaining: Some(2),
        reset_after: Some(secs(20)),
        ..LimitReading::default()
    };
    let outcome = Outcome::Arrived {
        age: Span::ZERO,
        limited: false,
        readings: vec![reading],
    };
    one.settle(&permit, outcome);
    one.wait_settled().await;
    let taken = two.take_all("x", &rule).await;
    assert_eq!(taken.len(), 2);
    for permit in &taken {
        two.settle(permit, arrived());
    }
    two.wait_settled().await;
    assert!(one.take(smallvec![term("x", &rule)]).await.is_err());
    backend.pass(secs(21));
    assert_eq!(one.take_all("x", &rule).await.len(), 10);
}

/// Sleep and degrade mode are scopes of their own: each closes for owners that did not see its reason.
pub(crate) async fn a_sleep_and_a_degrade_reach_other_owners(backend: &impl Backend) {
    let (one, mut two) = (Owner::new(backend, 1), Owner::new(backend, 2));
    let rule = sliding(50, secs(10));
    for (name, reopen) in [("sleep", Reopen::Probe), ("degrade", Reopen::All)] {
        let scope = ScopeId::named(&[name]);
        let mut next = || {
            // A call that counts in no limit goes by what its owner has heard last.
            let mut ask = two.ask(smallvec![term("x", &rule)]);
            ask.scopes.push(scope);
            ask
        };
        let asks = [next(), next(), next()];
        two.take_ask(asks[0].clone()).await.unwrap();
        one.send_settle(Settle::Close {
            scope,
            age: Span::ZERO,
            closed_for: Some(secs(30)),
            reopen,
        });
        one.wait_settled().await;
        assert!(two.take_ask(asks[1].clone()).await.is_err(), "{name}");
        assert_ne!(two.peek_scope(scope).await, ScopeView::Open, "{name}");
        let mut events = two.events();
        one.send_settle(Settle::Open { scope });
        one.wait_settled().await;
        assert_eq!(two.peek_scope(scope).await, ScopeView::Open, "{name}");
        // It may hear of that a little later.
        while two.take_ask(asks[2].clone()).await.is_err() {
            assert!(events.next().await.is_some(), "{name}");
        }
    }
}
