//! What the front promises above any store, one that fails and panics too.

#[path = "front_inline.rs"]
mod inline;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use smallvec::smallvec;
use tollgate_core::ask::{Ask, CellId, Outcome, OwnerId, Settle, Verdict};
use tollgate_core::batch::{Batch, Rows as _, decide};
use tollgate_core::limit::Rule;
use tollgate_core::table::Table;
use tollgate_ledger::{Clock, Event, PeekQuery, ProviderLedger};

use crate::backend::{Owner, secs, sliding, term};
use crate::scripted_store::{DEAD, Scripted, Step, UNKNOWN, soon};

fn in_flight(limit: u64) -> Arc<Rule> {
    Arc::new(Rule::in_flight(limit).unwrap())
}

fn settle(ask: &Ask, outcome: Outcome) -> Settle {
    Settle::Permit {
        id: ask.id,
        terms: ask.terms.clone(),
        scopes: ask.scopes.clone(),
        outcome,
    }
}

fn unsent(ask: &Ask) -> Settle {
    settle(ask, Outcome::Unsent)
}

fn is_granted(verdict: &Verdict) -> bool {
    matches!(verdict, Verdict::Go { .. })
}

async fn used(provider: &ProviderLedger, cell: &str, rule: &Arc<Rule>) -> u64 {
    let cells = vec![(CellId::named(&[cell]), rule.clone())];
    soon(provider.peek(cells)).await[0].used
}

/// More settles than one transaction takes were queued before the request, which overtook the rest.
#[tokio::test]
async fn a_peek_sees_everything_that_was_settled_before_it() {
    let scripted = Scripted::new();
    let ledger = scripted.blocking();
    let (rule, count) = (in_flight(5_000), 1_030);
    let mut owner = Owner::numbered(&ledger, 1);
    let provider = owner.ledger.clone();
    let asks: Vec<Ask> = (0..count)
        .map(|_| owner.ask(smallvec![term("x", &rule)]))
        .collect();
    let granted = soon(provider.offer(asks.clone())).await.unwrap();
    assert!(
        granted
            .verdicts
            .iter()
            .all(|(_, verdict)| is_granted(verdict))
    );
    let held = scripted.hold(&provider).await;
    asks.iter().for_each(|ask| provider.settle(unsent(ask)));
    let seen = provider.peek(vec![(CellId::named(&["x"]), rule)]);
    scripted.go_on.send(()).unwrap();
    held.await;
    assert_eq!(soon(seen).await[0].used, 0);
}

/// An owner that was found dead stayed on the list for ever, and a process that was given its
/// number later was left nothing.
#[tokio::test]
async fn a_dead_owner_is_named_once_and_then_dropped() {
    let scripted = Scripted::new();
    scripted.store.table.lock().share();
    let ledger = scripted.blocking();
    let rule = in_flight(1);
    let mut owner = Owner::numbered(&ledger, 1);
    let first = owner.take(smallvec![term("x", &rule)]).await.unwrap();
    scripted.let_wait(&ledger, DEAD, &rule);
    let provider = owner.ledger.clone();
    provider.settle(unsent(&first.ask));
    soon(provider.offer(Vec::new())).await.unwrap();
    scripted.store.dead.lock().clear();
    let second = owner.take(smallvec![term("x", &rule)]).await.unwrap();
    provider.settle(unsent(&second.ask));
    soon(provider.offer(Vec::new())).await.unwrap();
    let named = scripted.store.dead.lock();
    assert_eq!(named[0], [DEAD]);
    assert!(named[1..].iter().all(Vec::is_empty), "{named:?}");
}

/// "Cannot be reached" was "dead": whoever was on the other side lost its place.
#[tokio::test]
async fn an_owner_that_cannot_be_reached_keeps_its_place_and_another_is_woken_too() {
    let scripted = Scripted::new();
    scripted.store.table.lock().share();
    let ledger = scripted.blocking();
    let rule = in_flight(1);
    let mut owner = Owner::numbered(&ledger, 1);
    let taken = owner.take(smallvec![term("x", &rule)]).await.unwrap();
    scripted.let_wait(&ledger, UNKNOWN, &rule);
    scripted.let_wait(&ledger, OwnerId(10), &rule);
    let provider = owner.ledger.clone();
    provider.settle(unsent(&taken.ask));
    // Others are woken after the reply: the second one comes when they are.
    for _ in 0..2 {
        soon(provider.offer(Vec::new())).await.unwrap();
    }
    assert_eq!(*scripted.store.woken.lock(), [UNKNOWN, OwnerId(10)]);
    let next = owner.ask(smallvec![term("x", &rule)]);
    soon(provider.offer(vec![next])).await.unwrap();
    let waiting = scripted.store.table.lock();
    let waiting = waiting.waiters(CellId::named(&["x"])).iter();
    let waiting: Vec<OwnerId> = waiting.map(|waiter| waiter.owner).collect();
    assert!(waiting.contains(&UNKNOWN), "{waiting:?}");
}

/// After its folder was replaced, a process has another number, and its former one may be a
/// stranger's there, with permits of the same running numbers.
#[tokio::test]
async fn settles_of_a_former_number_do_not_reach_the_new_store() {
    let scripted = Scripted::new();
    let ledger = scripted.blocking();
    let rule = in_flight(9);
    let mut former = Owner::numbered(&ledger, 1);
    let taken = former.take(smallvec![term("x", &rule)]).await.unwrap();
    let provider = former.ledger.clone();
    // The store is replaced by one in which a stranger has this process's number and a permit.
    *scripted.store.table.lock() = Table::default();
    let now = Clock::Manual(scripted.clock.clone()).now();
    let strangers = [taken.ask.clone()];
    let batch = Batch::now(OwnerId(1), &[], &strangers);
    decide(&mut *scripted.store.table.lock(), now, &batch);
    scripted.store.next_owner.store(2, Ordering::Release);
    scripted.then(&[Step::Fail]);
    assert!(soon(provider.offer(Vec::new())).await.is_err());
    provider.settle(unsent(&taken.ask));
    assert!(soon(provider.offer(Vec::new())).await.is_ok());
    assert_eq!(ledger.owner(), OwnerId(2));
    assert_eq!(used(&provider, "x", &rule).await, 1, "the stranger's");
    let late = former.ask(smallvec![term("x", &rule)]);
    assert!(
        soon(provider.offer(vec![late])).await.is_err(),
        "its number is former"
    );
    let mut owner = Owner::numbered(&ledger, 2);
    owner.take(smallvec![term("x", &rule)]).await.unwrap();
    assert_eq!(used(&provider, "x", &rule).await, 2);
}

/// Everybody is answered, and the reason is told: nothing waits for a thread that has gone.
#[tokio::test]
async fn a_store_that_panics_is_lost_for_good_and_every_offer_ends() {
    let scripted = Scripted::new();
    let ledger = scripted.blocking();
    let mut events = ledger.events();
    let rule = sliding(9, secs(1));
    let mut owner = Owner::numbered(&ledger, 1);
    let provider = owner.ledger.clone();
    let held = scripted.hold(&provider).await;
    scripted.then(&[Step::Panic]);
    let mut offer =
        |provider: &ProviderLedger| provider.offer(vec![owner.ask(smallvec![term("x", &rule)])]);
    let pending = [offer(&provider), offer(&ledger.provider("other"))];
    let query = || PeekQuery {
        cells: vec![(CellId::named(&["x"]), rule.clone())],
        scopes: Vec::new(),
    };
    let seen = provider.peek_all(query());
    scripted.go_on.send(()).unwrap();
    held.await;
    for pending in pending {
        assert!(soon(pending).await.is_err());
    }
    assert_eq!(soon(seen).await, None);
    assert!(ledger.loss().is_some_and(|loss| loss.is_final));
    let reason = ledger.loss_reason().unwrap();
    assert!(
        reason.contains("panicked (") && reason.contains("restart"),
        "{reason}"
    );
    assert_eq!(soon(events.next()).await, Some(Event::Lost));
    assert!(soon(offer(&provider)).await.is_err(), "later ones too");
    assert_eq!(soon(provider.peek_all(query())).await, None);
}

#[tokio::test]
async fn a_sync_that_panics_ends_every_offer_that_waits_for_it() {
    let scripted = Scripted::new();
    let ledger = scripted.blocking();
    let day = sliding(9, secs(86_400));
    let mut owner = Owner::numbered(&ledger, 1);
    let provider = owner.ledger.clone();
    for _ in 0..2 {
        let ask = owner.ask(smallvec![term("day", &day)]);
        assert!(soon(provider.offer(vec![ask])).await.is_err());
    }
    assert!(ledger.loss().is_some_and(|loss| loss.is_final));
}

/// Whatever panics on the ledger's thread, here what is done with an answer.
#[tokio::test]
async fn a_ledger_thread_that_panics_leaves_nobody_waiting() {
    let scripted = Scripted::new();
    let ledger = scripted.blocking();
    let rule = sliding(9, secs(1));
    let mut owner = Owner::numbered(&ledger, 1);
    let provider = owner.ledger.clone();
    let held = scripted.hold(&provider).await;
    provider.peek_then(vec![(CellId::named(&["x"]), rule.clone())], |_| {
        panic!("as the test says")
    });
    scripted.go_on.send(()).unwrap();
    held.await;
    let ask = owner.ask(smallvec![term("x", &rule)]);
    while soon(provider.offer(vec![ask.clone()])).await.is_ok() {}
    let seen = provider.peek_all(PeekQuery::default());
    assert_eq!(soon(seen).await, None);
    assert!(ledger.loss_reason().unwrap().contains("panicked"));
}

/// One provider's batch fails, those of the others are committed and handed out.
#[tokio::test]
async fn a_batch_that_fails_leaves_the_other_providers_alone() {
    let scripted = Scripted::new();
    let ledger = scripted.blocking();
    let rule = in_flight(2);
    let mut owner = Owner::numbered(&ledger, 1);
    let taken = owner.take(smallvec![term("good", &rule)]).await.unwrap();
    let good = owner.ledger.clone();
    let bad = ledger.provider("bad");
    let held = scripted.hold(&good).await;
    let failing = bad.offer(vec![owner.ask(smallvec![term("bad", &rule)])]);
    good.settle(unsent(&taken.ask));
    let both = (0..2).map(|_| owner.ask(smallvec![term("good", &rule)]));
    let granted = good.offer(both.collect());
    scripted.go_on.send(()).unwrap();
    held.await;
    assert!(soon(failing).await.is_err());
    let granted = soon(granted).await.unwrap();
    assert!(
        granted
            .verdicts
            .iter()
            .all(|(_, verdict)| is_granted(verdict))
    );
    let table = scripted.store.table.lock();
    let now = Clock::Manual(scripted.clock.clone()).now();
    let used = |cell| table.peek(CellId::named(&[cell]), &rule, now).used;
    assert_eq!((used("good"), used("bad")), (2, 0));
}

/// The rest would be dropped without a word, and their permits kept.
#[tokio::test]
async fn a_store_without_a_verdict_for_every_ask_is_lost_for_good() {
    for is_inline in [false, true] {
        let scripted = Scripted::new();
        let ledger = match is_inline {
            true => scripted.inline(),
            false => scripted.blocking(),
        };
        let rule = sliding(9, secs(1));
        let mut owner = Owner::numbered(&ledger, 1);
        scripted.then(&[Step::LoseVerdict]);
        let asks = (0..2).map(|_| owner.ask(smallvec![term("x", &rule)]));
        let asks = asks.collect();
        assert!(soon(owner.ledger.offer(asks)).await.is_err());
        assert!(ledger.loss().is_some_and(|loss| loss.is_final));
        let reason = ledger.loss_reason().unwrap();
        assert!(reason.contains("1 of 2 asks"), "{reason}");
    }
}

/// An error was swallowed: those who asked waited for their timeout, and nobody heard of the loss.
#[tokio::test]
async fn a_store_that_cannot_be_read_is_lost() {
    let scripted = Scripted::new();
    let ledger = scripted.blocking();
    let provider = ledger.provider("x");
    let query = || PeekQuery {
        cells: vec![(CellId::named(&["x"]), in_flight(1))],
        scopes: Vec::new(),
    };
    scripted.store.fails_to_peek.store(true, Ordering::Release);
    assert_eq!(soon(provider.peek_all(query())).await, None);
    assert_eq!(ledger.loss_reason().unwrap(), "the store has failed");
    scripted.store.fails_to_peek.store(false, Ordering::Release);
    soon(provider.offer(Vec::new())).await.unwrap();
    assert_eq!(ledger.loss(), None);
    assert!(soon(provider.peek_all(query())).await.is_some());
}
