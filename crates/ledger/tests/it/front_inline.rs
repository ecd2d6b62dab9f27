//! What the front promises above a store that whoever asks runs.

use super::*;

/// A store that never blocks and failed told only the one who asked; what was settled meanwhile was
/// lost.
#[tokio::test]
async fn an_inline_store_that_fails_is_lost_and_recovers_with_what_was_settled() {
    let scripted = Scripted::new();
    let ledger = scripted.inline();
    let mut events = ledger.events();
    let rule = in_flight(2);
    let mut owner = Owner::numbered(&ledger, 1);
    let provider = owner.ledger.clone();
    let taken = owner.take(smallvec![term("x", &rule)]).await.unwrap();
    scripted.then(&[Step::Fail; 3]);
    provider.settle(unsent(&taken.ask));
    assert!(ledger.loss().is_some_and(|loss| !loss.is_final));
    assert_eq!(ledger.loss_reason().unwrap(), "the store has failed");
    assert_eq!(events.try_next(), Some(Event::Lost));
    assert_eq!(
        used(&provider, "x", &rule).await,
        2,
        "unknown looks used up"
    );
    let ask = owner.ask(smallvec![term("x", &rule)]);
    assert!(soon(provider.offer(vec![ask.clone()])).await.is_err());
    assert_eq!(provider.offer_at_once(&ask), None);
    scripted.clock.pass(secs(1));
    assert!(ledger.loss().is_some(), "it has failed again");
    scripted.clock.pass(secs(1));
    assert_eq!(ledger.loss(), None);
    assert_eq!(events.try_next(), Some(Event::Recovered));
    assert_eq!(used(&provider, "x", &rule).await, 0);
    assert!(soon(provider.offer(vec![ask])).await.is_ok());
}

/// The first provider's settles failed again while the store came back, and the others' were dropped.
#[tokio::test]
async fn a_recovery_that_fails_halfway_keeps_the_settles_of_all_providers() {
    let scripted = Scripted::new();
    let ledger = scripted.inline();
    let rule = in_flight(2);
    let mut owner = Owner::numbered(&ledger, 1);
    let providers = [
        owner.ledger.clone(),
        ledger.provider("b"),
        ledger.provider("c"),
    ];
    let mut asks = Vec::new();
    for (provider, cell) in providers.iter().zip(["a", "b", "c"]) {
        let ask = owner.ask(smallvec![term(cell, &rule)]);
        let decided = soon(provider.offer(vec![ask.clone()])).await.unwrap();
        assert!(is_granted(&decided.verdicts[0].1));
        asks.push(ask);
    }
    scripted.then(&[Step::Fail, Step::Fail]);
    for (provider, ask) in providers.iter().zip(&asks) {
        provider.settle(unsent(ask));
    }
    // The store can be written, and then not: the settles of the first provider fail.
    scripted.then(&[Step::Hold, Step::Fail]);
    scripted.go_on.send(()).unwrap();
    scripted.clock.pass(secs(1));
    assert!(ledger.loss().is_some());
    scripted.clock.pass(secs(1));
    assert_eq!(ledger.loss(), None);
    for (provider, cell) in providers.iter().zip(["a", "b", "c"]) {
        assert_eq!(used(provider, cell, &rule).await, 0, "{cell}");
    }
}

/// The panic went to the caller, with its lock held, and the next one asked the store again.
#[tokio::test]
async fn an_inline_store_that_panics_is_lost_for_good() {
    let scripted = Scripted::new();
    let ledger = scripted.inline();
    let rule = in_flight(2);
    let mut owner = Owner::numbered(&ledger, 1);
    let provider = owner.ledger.clone();
    scripted.then(&[Step::Panic]);
    let ask = owner.ask(smallvec![term("x", &rule)]);
    assert!(soon(provider.offer(vec![ask.clone()])).await.is_err());
    assert!(ledger.loss().is_some_and(|loss| loss.is_final));
    let reason = ledger.loss_reason().unwrap();
    assert!(reason.contains("panicked"), "{reason}");
    scripted.clock.pass(secs(60));
    assert!(soon(provider.offer(vec![ask])).await.is_err());
}

/// As above a store with a thread of its own: the number may be a stranger's in the new store.
#[tokio::test]
async fn settles_of_a_former_number_do_not_reach_a_new_inline_store() {
    let scripted = Scripted::new();
    let ledger = scripted.inline();
    let rule = in_flight(9);
    let mut former = Owner::numbered(&ledger, 1);
    let provider = former.ledger.clone();
    let taken = former.take(smallvec![term("x", &rule)]).await.unwrap();
    let queued = former.take(smallvec![term("x", &rule)]).await.unwrap();
    *scripted.store.table.lock() = Table::default();
    let now = Clock::Manual(scripted.clock.clone()).now();
    let strangers = [taken.ask.clone(), queued.ask.clone()];
    let batch = Batch::now(OwnerId(1), &[], &strangers);
    decide(&mut *scripted.store.table.lock(), now, &batch);
    scripted.store.next_owner.store(2, Ordering::Release);
    scripted.then(&[Step::Fail, Step::Fail]);
    provider.settle(unsent(&queued.ask));
    assert!(ledger.loss().is_some());
    scripted.clock.pass(secs(1));
    assert_eq!(ledger.loss(), None);
    provider.settle(unsent(&taken.ask));
    assert_eq!(used(&provider, "x", &rule).await, 2, "the stranger's");
    let late = former.ask(smallvec![term("x", &rule)]);
    assert!(soon(provider.offer(vec![late])).await.is_err(), "former");
    assert_eq!(ledger.loss(), None);
    let mut owner = Owner::numbered(&ledger, 2);
    owner.take(smallvec![term("x", &rule)]).await.unwrap();
    assert_eq!(used(&provider, "x", &rule).await, 3);
}
