//! A store that does what a test says: holds, fails, panics or loses a verdict.
//!
//! Promises: without a step it decides as every store does, on a clock that the test moves.
//!
//! Never: waits without end; a held batch goes on when its test ends.

use std::collections::VecDeque;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use parking_lot::Mutex;
use smallvec::smallvec;
use tollgate_core::ask::{CellId, OwnerId, ScopeId};
use tollgate_core::batch::{Batch, BatchResult, decide};
use tollgate_core::limit::Rule;
use tollgate_core::table::Table;
use tollgate_core::time::{Micros, Now, Wall};
use tollgate_ledger::{
    Clock, Ledger, Liveness, ManualClock, PeekQuery, PeekReply, ProviderLedger, Store, StoreError,
};

use crate::backend::{Owner, term};

/// What becomes of the next batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// It is decided when the test says so.
    Hold,
    Fail,
    Panic,
    /// It is decided, and one verdict is missing.
    LoseVerdict,
}

/// A table that does what the test says.
#[derive(Debug)]
pub(crate) struct ScriptedStore {
    pub(crate) clock: Clock,
    pub(crate) table: Mutex<Table>,
    /// Empty: batches are decided.
    pub(crate) steps: Mutex<VecDeque<Step>>,
    /// Nothing can be read.
    pub(crate) fails_to_peek: AtomicBool,
    /// Batches with an ask for this cell fail.
    pub(crate) bad_cell: CellId,
    pub(crate) owner: AtomicU32,
    /// The number that this process gets when the store is opened again.
    pub(crate) next_owner: AtomicU32,
    /// Whom each batch named as dead.
    pub(crate) dead: Mutex<Vec<Vec<OwnerId>>>,
    /// Who was woken.
    pub(crate) woken: Mutex<Vec<OwnerId>>,
    /// Says that a batch is held, and lets it go on.
    pub(crate) holding: SyncSender<()>,
    pub(crate) go_on: Mutex<Receiver<()>>,
}

/// Nobody is behind this number.
pub(crate) const DEAD: OwnerId = OwnerId(9);

/// Whether anybody is behind this one cannot be known.
pub(crate) const UNKNOWN: OwnerId = OwnerId(8);

impl ScriptedStore {
    fn error() -> StoreError {
        StoreError {
            message: "the store has failed".into(),
            is_final: false,
        }
    }

    fn has_bad_cell(&self, batch: &Batch<'_>) -> bool {
        let mut terms = batch.asks.iter().flat_map(|ask| &ask.terms);
        terms.any(|term| term.cell == self.bad_cell)
    }
}

impl Store for ScriptedStore {
    fn commit(&self, batch: &Batch<'_>) -> Result<BatchResult, StoreError> {
        let step = self.steps.lock().pop_front();
        if step == Some(Step::Hold) {
            self.holding.send(()).unwrap_or(());
            self.go_on.lock().recv().unwrap_or(());
        }
        if step == Some(Step::Fail) || self.has_bad_cell(batch) {
            return Err(ScriptedStore::error());
        }
        assert_ne!(step, Some(Step::Panic), "as the test says");
        self.dead.lock().push(batch.dead.to_vec());
        let mut decision = decide(&mut *self.table.lock(), self.clock.now(), batch);
        if step == Some(Step::LoseVerdict) {
            decision.verdicts.pop();
        }
        Ok(decision)
    }

    fn sync(&self) -> Result<(), StoreError> {
        panic!("as the test says");
    }

    fn peek(&self, query: &PeekQuery) -> Result<PeekReply, StoreError> {
        if self.fails_to_peek.load(Ordering::Acquire) {
            return Err(ScriptedStore::error());
        }
        let (table, now) = (self.table.lock(), self.clock.now());
        let cells = query.cells.iter();
        Ok(PeekReply {
            cells: cells.map(|(id, rule)| table.peek(*id, rule, now)).collect(),
            scopes: Vec::new(),
        })
    }

    fn owner(&self) -> OwnerId {
        OwnerId(self.owner.load(Ordering::Acquire))
    }

    fn reopen(&self) {
        let next = self.next_owner.load(Ordering::Acquire);
        self.owner.store(next, Ordering::Release);
    }

    fn wake(&self, owner: OwnerId, _: CellId) -> Liveness {
        self.woken.lock().push(owner);
        self.liveness(owner)
    }

    fn liveness(&self, owner: OwnerId) -> Liveness {
        match owner {
            DEAD => Liveness::Dead,
            UNKNOWN => Liveness::Unknown,
            _ => Liveness::Alive,
        }
    }

    fn notify_scopes(&self, _: &[ScopeId]) {}
}

/// The store as the ledger has it.
#[derive(Clone, Debug)]
struct SharedStore(Arc<ScriptedStore>);

impl Store for SharedStore {
    fn commit(&self, batch: &Batch<'_>) -> Result<BatchResult, StoreError> {
        self.0.commit(batch)
    }

    fn sync(&self) -> Result<(), StoreError> {
        self.0.sync()
    }

    fn peek(&self, query: &PeekQuery) -> Result<PeekReply, StoreError> {
        self.0.peek(query)
    }

    fn owner(&self) -> OwnerId {
        self.0.owner()
    }

    fn reopen(&self) {
        self.0.reopen();
    }

    fn wake(&self, owner: OwnerId, cell: CellId) -> Liveness {
        self.0.wake(owner, cell)
    }

    fn liveness(&self, owner: OwnerId) -> Liveness {
        self.0.liveness(owner)
    }

    fn notify_scopes(&self, scopes: &[ScopeId]) {
        self.0.notify_scopes(scopes);
    }
}

/// A store, its clock, and how a held batch is let go on.
pub(crate) struct Scripted {
    pub(crate) store: Arc<ScriptedStore>,
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) holding: Receiver<()>,
    pub(crate) go_on: SyncSender<()>,
}

impl Scripted {
    pub(crate) fn new() -> Scripted {
        let clock = ManualClock::new(Now {
            at: Micros(1_000_000_000),
            wall: Wall(1_772_323_200_000_000),
        });
        let (hold, holding) = sync_channel(16);
        let (go_on, released) = sync_channel(16);
        let store = Arc::new(ScriptedStore {
            clock: Clock::Manual(clock.clone()),
            table: Mutex::default(),
            steps: Mutex::default(),
            fails_to_peek: AtomicBool::new(false),
            bad_cell: CellId::named(&["bad"]),
            owner: AtomicU32::new(1),
            next_owner: AtomicU32::new(1),
            dead: Mutex::default(),
            woken: Mutex::default(),
            holding: hold,
            go_on: Mutex::new(released),
        });
        Scripted {
            store,
            clock,
            holding,
            go_on,
        }
    }

    /// A ledger whose own thread runs the store.
    pub(crate) fn blocking(&self) -> Ledger {
        let store = SharedStore(self.store.clone());
        let open = |_| Ok::<_, std::io::Error>(store);
        Ledger::blocking(Clock::Manual(self.clock.clone()), open, |error| error).unwrap()
    }

    /// A ledger whose store is run by whoever asks.
    pub(crate) fn inline(&self) -> Ledger {
        let store = SharedStore(self.store.clone());
        Ledger::inline(Clock::Manual(self.clock.clone()), |_| store)
    }

    /// This owner waits for the cell `x`.
    pub(crate) fn let_wait(&self, ledger: &Ledger, owner: OwnerId, rule: &Arc<Rule>) {
        let waits = [Owner::numbered(ledger, owner.0).ask(smallvec![term("x", rule)])];
        let now = Clock::Manual(self.clock.clone()).now();
        let batch = Batch::now(owner, &[], &waits);
        decide(&mut *self.store.table.lock(), now, &batch);
    }

    pub(crate) fn then(&self, steps: &[Step]) {
        self.store.steps.lock().extend(steps);
    }

    /// Holds the ledger thread in a batch of this provider; what follows waits together.
    pub(crate) async fn hold(&self, provider: &ProviderLedger) -> impl Future<Output = ()> + use<> {
        self.then(&[Step::Hold]);
        let held = tokio::spawn(provider.offer(Vec::new()));
        tokio::task::yield_now().await;
        self.holding.recv().unwrap();
        async move { soon(held).await.unwrap().map(|_| ()).unwrap() }
    }
}

/// What does not come must fail a test, not hang it.
pub(crate) async fn soon<F: Future>(future: F) -> F::Output {
    let waited = tokio::time::timeout(Duration::from_secs(20), future).await;
    waited.expect("an answer")
}
