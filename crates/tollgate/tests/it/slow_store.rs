//! The permit stage above a store that does not answer: calls keep their deadlines, and leave when
//! they want to.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use parking_lot::Mutex;
use smallvec::smallvec;
use tokio::task::JoinHandle;
use tollgate::path::CallOptions;
use tollgate::permit_table::{PermitTable, USE_WITHIN};
use tollgate::permits::{Denied, PermitRequest, Permits};
use tollgate::{Options, Permit, ProviderRegistry};
use tollgate_config::{Environment, ProviderFile};
use tollgate_core::ask::{CellId, Evidence, OwnerId, Priority, ScopeId, Scopes, Term};
use tollgate_core::batch::{Batch, BatchResult, Settles, decide};
use tollgate_core::gate::{CallerId, GateSettings};
use tollgate_core::limit::Rule;
use tollgate_core::table::Table;
use tollgate_core::time::{Micros, Now, Span, Wall};
use tollgate_ledger::{
    Clock, Ledger, Liveness, ManualClock, PeekQuery, PeekReply, Store, StoreError,
};

/// A store that decides asks when the test says so, and tells when it has applied settles.
#[derive(Debug)]
struct StuckStore {
    clock: Arc<ManualClock>,
    /// How long the next commit and the next sync take.
    delays: Arc<Mutex<Delays>>,
    table: Arc<Mutex<Table>>,
    go: Mutex<Receiver<()>>,
    settled: SyncSender<()>,
    answered: SyncSender<()>,
}

impl Store for StuckStore {
    fn commit(&self, batch: &Batch<'_>) -> Result<BatchResult, StoreError> {
        if !batch.asks.is_empty() {
            self.go.lock().recv().unwrap_or(());
        }
        let now = Clock::Manual(self.clock.clone()).now();
        let decision = decide(&mut *self.table.lock(), now, batch);
        if !batch.asks.is_empty() {
            self.clock
                .pass(std::mem::take(&mut self.delays.lock().commit));
        }
        if matches!(batch.settles, Settles::Queued([_, ..])) {
            self.settled.send(()).unwrap_or(());
        }
        Ok(decision)
    }

    fn sync(&self) -> Result<(), StoreError> {
        self.clock
            .pass(std::mem::take(&mut self.delays.lock().sync));
        Ok(())
    }

    fn peek(&self, query: &PeekQuery) -> Result<PeekReply, StoreError> {
        let now = Clock::Manual(self.clock.clone()).now();
        let table = self.table.lock();
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

    fn maintain(&self) {
        self.answered.try_send(()).unwrap_or(());
    }
}

/// How long things take after the decision, once.
#[derive(Debug, Default)]
struct Delays {
    commit: Span,
    sync: Span,
}

/// A ledger on such a store, and how the store is driven.
struct StuckLedger {
    ledger: Ledger,
    clock: Arc<ManualClock>,
    delays: Arc<Mutex<Delays>>,
    table: Arc<Mutex<Table>>,
    go: SyncSender<()>,
    settled: Receiver<()>,
    answered: Receiver<()>,
}

fn stuck_ledger() -> StuckLedger {
    let clock = ManualClock::new(Now {
        at: Micros(1_000_000_000),
        wall: Wall(1_772_323_200_000_000),
    });
    let (go, asked) = sync_channel(16);
    let (told, settled) = sync_channel(16);
    let (over, answered) = sync_channel(16);
    let (on, table) = (Clock::Manual(clock.clone()), Arc::default());
    let delays = Arc::<Mutex<Delays>>::default();
    let store = StuckStore {
        clock: clock.clone(),
        delays: delays.clone(),
        table: Arc::clone(&table),
        go: Mutex::new(asked),
        settled: told,
        answered: over,
    };
    let ledger =
        Ledger::blocking(on, |_| Ok(store), |error: std::io::Error| error).expect("a thread");
    StuckLedger {
        ledger,
        clock,
        delays,
        table,
        go,
        settled,
        answered,
    }
}

struct Stage {
    permits: Permits,
    clock: Arc<ManualClock>,
    delays: Arc<Mutex<Delays>>,
    table: Arc<Mutex<Table>>,
    rule: Arc<Rule>,
    go: SyncSender<()>,
    settled: Receiver<()>,
    /// Says that a transaction is over and everybody in it was answered.
    answered: Receiver<()>,
}

impl Stage {
    fn new() -> Stage {
        Stage::with(Span::from_secs(10))
    }

    /// Five calls in this time.
    fn with(period: Span) -> Stage {
        let StuckLedger {
            ledger,
            clock,
            delays,
            table,
            go,
            settled,
            answered,
        } = stuck_ledger();
        let rule = Rule::sliding(5, period).expect("a sane rule");
        Stage {
            permits: Permits::new(ledger.provider("p"), GateSettings::default()),
            clock,
            delays,
            table,
            rule: Arc::new(rule),
            go,
            settled,
            answered,
        }
    }

    /// A call that the ledger is deciding.
    async fn call(&self, patience: Span) -> JoinHandle<Result<Permit, Denied>> {
        let request = PermitRequest {
            terms: smallvec![Term {
                cell: CellId::named(&["x"]),
                rule: self.rule.clone(),
                cost: 1,
                reserve: 0,
            }],
            scopes: Scopes::new(),
            priority: Priority::Normal,
            caller: CallerId(0),
            patience,
            evidence: Evidence::Report {
                timeout: Span::from_secs(30),
                late: Span::from_secs(5),
            },
            seniority: None,
            edition: self.permits.edition(),
        };
        let permits = self.permits.clone();
        let call = tokio::spawn(async move { permits.acquire(request).await });
        settle_down().await;
        call
    }

    async fn pass(&self, millis: u64) {
        self.clock.pass(Span::from_millis(millis));
        tokio::time::advance(Duration::from_millis(millis)).await;
        settle_down().await;
    }

    /// The ledger decides now, and whatever was granted in vain comes back.
    async fn decide_and_wait_for_the_return(&self) {
        self.go.send(()).expect("the store is there");
        while self.settled.try_recv().is_err() {
            tokio::task::yield_now().await;
        }
        let (cell, now) = (
            CellId::named(&["x"]),
            Clock::Manual(self.clock.clone()).now(),
        );
        assert_eq!(self.table.lock().peek(cell, &self.rule, now).used, 0);
    }
}

/// Lets every task run that can.
async fn settle_down() {
    for _ in 0..16 {
        tokio::task::yield_now().await;
    }
}

/// M4: up to its deadline. Before, a waiting call heard nothing until its batch was decided.
#[tokio::test(start_paused = true)]
async fn a_call_is_rejected_at_its_deadline_while_its_offer_is_pending() {
    let stage = Stage::new();
    let call = stage.call(Span::from_secs(3)).await;
    stage.pass(2_990).await;
    assert!(!call.is_finished());
    stage.pass(12).await;
    assert!(call.is_finished(), "at its deadline");
    let denied = call.await.expect("it ran");
    assert!(matches!(denied, Err(Denied::TimedOut { .. })), "{denied:?}");
    stage.decide_and_wait_for_the_return().await;
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_cancelled_leaves_while_the_ledger_has_its_ask() {
    let stage = Stage::new();
    let call = stage.call(Span::from_secs(3)).await;
    assert_eq!(stage.permits.waiting(Priority::Normal), 1);
    call.abort();
    settle_down().await;
    assert_eq!(stage.permits.waiting(Priority::Normal), 0);
    stage.decide_and_wait_for_the_return().await;
}

/// "Now or never" asks for one verdict and gets it, however long the ledger takes.
#[tokio::test(start_paused = true)]
async fn a_call_without_patience_gets_the_verdict() {
    let stage = Stage::new();
    let call = stage.call(Span::ZERO).await;
    stage.pass(100).await;
    assert!(!call.is_finished());
    stage.go.send(()).expect("the store is there");
    while !call.is_finished() {
        tokio::task::yield_now().await;
    }
    assert!(call.await.expect("it ran").is_ok());
}

/// M4: also a call that comes while the ledger decides others' asks, and was never offered.
#[tokio::test(start_paused = true)]
async fn a_call_behind_a_pending_offer_is_rejected_at_its_deadline() {
    let stage = Stage::new();
    let first = stage.call(Span::from_secs(30)).await;
    let second = stage.call(Span::from_secs(1)).await;
    stage.pass(1_100).await;
    assert!(second.is_finished(), "at its deadline");
    let denied = second.await.expect("it ran");
    assert!(matches!(denied, Err(Denied::TimedOut { .. })), "{denied:?}");
    assert!(!first.is_finished());
    stage.go.send(()).expect("the store is there");
    assert!(first.await.expect("it ran").is_ok());
}

/// The verdict is there when the last handle goes, but nobody has taken it yet.
#[tokio::test(start_paused = true)]
async fn a_permit_that_is_granted_as_the_last_handle_goes_comes_back() {
    let stage = Stage::new();
    let call = stage.call(Span::from_secs(3)).await;
    call.abort();
    let Stage {
        permits,
        clock,
        table,
        rule,
        go,
        answered,
        settled,
        ..
    } = stage;
    drop(permits);
    go.send(()).expect("the store is there");
    // Blocks, so that no task runs: the driver finds the verdict and the end together.
    answered.recv().expect("the store is there");
    settle_down().await;
    while settled.try_recv().is_ok() {}
    let now = Clock::Manual(clock).now();
    let used = table.lock().peek(CellId::named(&["x"]), &rule, now).used;
    assert_eq!(used, 0);
}

/// A permit is a right to send now. A decision that is handed out more than a quarter of a second
/// after it was made, or 400 ms if the disk had to keep it first, is not used: its permit comes back
/// and the call asks again. Before this test, nothing showed if it was used all the same.
#[tokio::test(start_paused = true)]
async fn a_decision_that_is_handed_out_too_late_is_made_again() {
    let short = Span::from_secs(10);
    let long = Span::from_secs(3_600);
    for (period, commit, sync, is_late) in [
        (short, 250, 0, false),
        (short, 251, 0, true),
        (long, 0, 400, false),
        (long, 0, 401, true),
    ] {
        let stage = Stage::with(period);
        let before = Clock::Manual(stage.clock.clone()).now().at;
        *stage.delays.lock() = Delays {
            commit: Span::from_millis(commit),
            sync: Span::from_millis(sync),
        };
        let call = stage.call(Span::from_secs(30)).await;
        stage.go.send(()).expect("the store is there");
        if is_late {
            stage.go.send(()).expect("the store is there");
        }
        while !call.is_finished() {
            tokio::task::yield_now().await;
        }
        let permit = call.await.expect("it ran").expect("a permit");
        let decided = permit.granted().since(before);
        let expected = if is_late { commit + sync } else { 0 };
        let name = format!("{period}: {commit} ms, {sync} ms");
        assert_eq!(decided, Span::from_millis(expected), "{name}");
        let now = Clock::Manual(stage.clock.clone()).now();
        let cell = CellId::named(&["x"]);
        let used = stage.table.lock().peek(cell, &stage.rule, now).used;
        assert_eq!(used, 1, "{name}: the first permit came back");
    }
}

/// A permit for another process may be used for so long from its grant on, not from when it is
/// handed out: limits hold it from the grant on.
#[tokio::test]
async fn the_time_to_use_a_permit_counts_from_its_grant() {
    let stuck = stuck_ledger();
    let file = "name: x\ndomain: api.example.org\nlimits: [5/10s]\n";
    let draft = ProviderFile::read("x.yaml", file).expect("the file can be read");
    let provider = draft.check(&Environment::empty()).provider.expect("valid");
    let options = Options::default();
    let registry = ProviderRegistry::build(vec![provider], stuck.ledger, options).expect("valid");
    let table = PermitTable::new(registry, USE_WITHIN);
    stuck.delays.lock().commit = Span::from_millis(200);
    stuck.go.send(()).expect("the store is there");
    let issued = table.acquire("x", None, CallOptions::default());
    let issued = tokio::time::timeout(Duration::from_secs(10), issued).await;
    let issued = issued
        .expect("the store decides")
        .expect("a permit is free");
    assert_eq!(issued.use_within, USE_WITHIN - Span::from_millis(200));
}
