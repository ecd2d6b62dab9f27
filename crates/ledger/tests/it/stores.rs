//! A store of one file, made here: what the front promises above a store that is slow.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use parking_lot::Mutex;
use smallvec::smallvec;
use tollgate_core::ask::{CellId, OwnerId, ScopeId};
use tollgate_core::batch::{Batch, BatchResult, decide};
use tollgate_core::table::Table;
use tollgate_core::time::{Micros, Now, Span, Wall};
use tollgate_ledger::{
    Clock, Ledger, Liveness, ManualClock, PeekQuery, PeekReply, ProviderLedger, Store, StoreError,
};

use crate::backend::{Owner, secs, sliding, term};

/// A table whose disk syncs when the test says so.
#[derive(Debug)]
struct SlowDisk {
    clock: Clock,
    table: Mutex<Table>,
    syncing: SyncSender<()>,
    synced: Mutex<Receiver<Result<(), ()>>>,
}

impl Store for SlowDisk {
    fn commit(&self, batch: &Batch<'_>) -> Result<BatchResult, StoreError> {
        let mut table = self.table.lock();
        Ok(decide(&mut *table, self.clock.now(), batch))
    }

    fn sync(&self) -> Result<(), StoreError> {
        self.syncing.send(()).unwrap_or(());
        let result = self.synced.lock().recv();
        result.unwrap_or(Err(())).map_err(|()| StoreError {
            message: "the disk has failed".into(),
            is_final: true,
        })
    }

    fn peek(&self, query: &PeekQuery) -> Result<PeekReply, StoreError> {
        let (table, now) = (self.table.lock(), self.clock.now());
        let cells = query.cells.iter();
        let scopes = query.scopes.iter();
        Ok(PeekReply {
            cells: cells.map(|(id, rule)| table.peek(*id, rule, now)).collect(),
            scopes: scopes.map(|id| table.peek_scope(*id, now.at)).collect(),
        })
    }

    fn owner(&self) -> OwnerId {
        OwnerId(1)
    }

    fn wake(&self, _: OwnerId, _: CellId) -> Liveness {
        Liveness::Alive
    }

    fn liveness(&self, _: OwnerId) -> Liveness {
        Liveness::Alive
    }

    fn notify_scopes(&self, _: &[ScopeId]) {}
}

/// A ledger on such a store, and how its disk is driven.
struct SlowLedger {
    ledger: Ledger,
    clock: Arc<ManualClock>,
    /// Says that a sync has begun.
    syncing: Receiver<()>,
    /// Ends a sync.
    synced: SyncSender<Result<(), ()>>,
}

fn slow_ledger() -> SlowLedger {
    let clock = ManualClock::new(Now {
        at: Micros(1_000_000_000),
        wall: Wall(1_772_323_200_000_000),
    });
    let (begin, syncing) = sync_channel(16);
    let (synced, end) = sync_channel(16);
    let on = Clock::Manual(clock.clone());
    let open = |_| {
        Ok::<_, std::io::Error>(SlowDisk {
            clock: on.clone(),
            table: Mutex::default(),
            syncing: begin,
            synced: Mutex::new(end),
        })
    };
    let ledger = Ledger::blocking(on.clone(), open, |error| error).unwrap();
    SlowLedger {
        ledger,
        clock,
        syncing,
        synced,
    }
}

fn owner(ledger: &Ledger, tag: &str) -> (Owner, ProviderLedger) {
    let owner = Owner::numbered(ledger, 1);
    let provider = ledger.provider(tag);
    (owner, provider)
}

/// One provider's sync must not hold up another's permits, nor the same provider's that need
/// none.
#[tokio::test]
async fn a_slow_sync_of_one_provider_does_not_hold_up_another() {
    let slow = slow_ledger();
    let (day, second) = (sliding(1_000, secs(86_400)), sliding(1_000, secs(1)));
    let (mut asker, one) = owner(&slow.ledger, "one");
    let two = slow.ledger.provider("two");
    let long = asker.ask(smallvec![term("day", &day)]);
    let mut synced = std::pin::pin!(one.offer(vec![long]));
    assert!(futures_pending(synced.as_mut()).await);
    slow.syncing.recv().unwrap();
    for provider in [&two, &one] {
        for _ in 0..3 {
            let short = asker.ask(smallvec![term("second", &second)]);
            let decided = provider.offer(vec![short]).await.unwrap();
            assert!(is_granted(&decided.verdicts[0].1));
        }
    }
    assert!(futures_pending(synced.as_mut()).await, "not durable yet");
    slow.synced.send(Ok(())).unwrap();
    let decided = synced.await.unwrap();
    assert!(is_granted(&decided.verdicts[0].1));
}

/// One sync serves all that came while the one before was on its way.
#[tokio::test]
async fn permits_that_wait_for_a_sync_share_the_next_one() {
    let slow = slow_ledger();
    let day = sliding(10_000, secs(86_400));
    let (mut asker, one) = owner(&slow.ledger, "one");
    let mut offer = |cell: &str| {
        let ask = asker.ask(smallvec![term(cell, &day)]);
        tokio::spawn(one.offer(vec![ask]))
    };
    let first = offer("a");
    tokio::task::yield_now().await;
    slow.syncing.recv().unwrap();
    let rest: Vec<_> = ["b", "c", "d"].into_iter().map(&mut offer).collect();
    // An offer without asks is answered when everything before it is decided.
    one.offer(Vec::new()).await.unwrap();
    slow.synced.send(Ok(())).unwrap();
    first.await.unwrap().unwrap();
    slow.syncing.recv().unwrap();
    slow.synced.send(Ok(())).unwrap();
    for offer in rest {
        offer.await.unwrap().unwrap();
    }
    assert!(
        slow.syncing.try_recv().is_err(),
        "two syncs for four permits"
    );
}

/// A permit that became durable too late to be used is given back, not handed out.
#[tokio::test]
async fn a_permit_that_is_durable_too_late_is_given_back() {
    let slow = slow_ledger();
    let day = sliding(1_000, secs(86_400));
    let (mut asker, one) = owner(&slow.ledger, "one");
    let ask = asker.ask(smallvec![term("day", &day)]);
    let cell = ask.terms[0].cell;
    let mut late = std::pin::pin!(one.offer(vec![ask]));
    assert!(futures_pending(late.as_mut()).await);
    slow.syncing.recv().unwrap();
    slow.clock.pass(secs(1));
    slow.synced.send(Ok(())).unwrap();
    let decided = late.await.unwrap();
    assert!(!is_granted(&decided.verdicts[0].1));
    one.offer(Vec::new()).await.unwrap();
    assert_eq!(one.peek(vec![(cell, day)]).await[0].used, 0);
}

/// A disk that fails a sync is not believed again.
#[tokio::test]
async fn a_failed_sync_loses_the_store_for_good() {
    let slow = slow_ledger();
    let (day, second) = (sliding(1_000, secs(86_400)), sliding(1_000, secs(1)));
    let (mut asker, one) = owner(&slow.ledger, "one");
    let ask = asker.ask(smallvec![term("day", &day)]);
    let failed = tokio::spawn(one.offer(vec![ask]));
    tokio::task::yield_now().await;
    slow.syncing.recv().unwrap();
    drop(slow.synced);
    assert!(failed.await.unwrap().is_err());
    assert!(slow.ledger.loss().is_some_and(|loss| loss.is_final));
    let short = asker.ask(smallvec![term("second", &second)]);
    assert!(one.offer(vec![short]).await.is_err());
}

/// Permits that were committed while a sync failed are not handed out by a second one that would
/// succeed: it says nothing of what the first has lost.
#[tokio::test]
async fn a_failed_sync_is_not_tried_again_for_those_behind_it() {
    let slow = slow_ledger();
    let day = sliding(1_000, secs(86_400));
    let (mut asker, one) = owner(&slow.ledger, "one");
    let mut offer = |cell: &str| {
        let ask = asker.ask(smallvec![term(cell, &day)]);
        tokio::spawn(one.offer(vec![ask]))
    };
    let first = offer("a");
    tokio::task::yield_now().await;
    slow.syncing.recv().unwrap();
    let second = offer("b");
    // An offer without asks is answered when everything before it is decided.
    one.offer(Vec::new()).await.unwrap();
    slow.synced.send(Err(())).unwrap();
    slow.synced.send(Ok(())).unwrap();
    assert!(first.await.unwrap().is_err());
    assert!(second.await.unwrap().is_err());
    assert!(slow.syncing.try_recv().is_err(), "one sync");
}

/// On a slow disk a permit waits for the sync under way and for its own.
#[tokio::test]
async fn a_permit_that_waits_for_two_syncs_is_handed_out() {
    let slow = slow_ledger();
    let day = sliding(1_000, secs(86_400));
    let (mut asker, one) = owner(&slow.ledger, "one");
    let mut offer = |cell: &str| {
        let ask = asker.ask(smallvec![term(cell, &day)]);
        tokio::spawn(one.offer(vec![ask]))
    };
    let first = offer("a");
    tokio::task::yield_now().await;
    slow.syncing.recv().unwrap();
    let second = offer("b");
    // An offer without asks is answered when everything before it is decided.
    one.offer(Vec::new()).await.unwrap();
    slow.clock.pass(Span::from_millis(195));
    slow.synced.send(Ok(())).unwrap();
    assert!(is_granted(&first.await.unwrap().unwrap().verdicts[0].1));
    slow.syncing.recv().unwrap();
    slow.clock.pass(Span::from_millis(195));
    slow.synced.send(Ok(())).unwrap();
    assert!(is_granted(&second.await.unwrap().unwrap().verdicts[0].1));
    assert!(slow.syncing.try_recv().is_err(), "two syncs");
}

fn is_granted(verdict: &tollgate_core::ask::Verdict) -> bool {
    matches!(verdict, tollgate_core::ask::Verdict::Go { .. })
}

/// Is it still to come, as far as can be seen without waiting?
async fn futures_pending<F: Future>(mut future: std::pin::Pin<&mut F>) -> bool {
    std::future::poll_fn(|context| {
        std::task::Poll::Ready(future.as_mut().poll(context).is_pending())
    })
    .await
}
