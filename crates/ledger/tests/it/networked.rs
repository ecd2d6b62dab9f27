//! The networked ledger on the simulator's awkward store. `networked_suites.rs` runs the suites on it; here are
//! the store itself and the behaviours that only such a ledger has.
//!
//! Time is tokio's, paused: requests and deadlines take their time, and no test waits for it.

use std::collections::BTreeMap;
use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::task::{Context, Waker};
use std::time::Duration;

use parking_lot::Mutex;
use smallvec::smallvec;
use tokio::sync::{Notify, oneshot};
use tollgate_core::ask::{Evidence, Outcome, OwnerId, Verdict};
use tollgate_core::replica::{PastUse, ReplicaSettings, Reply, Request, RowKey, Rules};
use tollgate_core::time::{Micros, Span, Wall};
use tollgate_ledger::{
    Clock, Event, Ledger, Liveness, NetworkedSettings, RowEvents, RowStore, StoreError,
};
use tollgate_sim::row_store::{Delivery, Promotion, SimulatedStore, StorePlan};
use tollgate_sim::world::NodeId;

use crate::backend::{Backend, Owner, TAG, arrived, secs, sliding, term};

/// The store, its network, and how its owners are set up.
pub(crate) struct Networked {
    world: Arc<World>,
    owners: AtomicU32,
    pub(crate) slack: Span,
    pub(crate) deadline: Span,
    /// Time that passes additionally, each time.
    pub(crate) delay: Span,
}

struct World {
    clock: Clock,
    plan: StorePlan,
    /// One per provider.
    stores: Mutex<BTreeMap<String, SimulatedStore>>,
    owners: Mutex<BTreeMap<OwnerId, RowEvents>>,
    /// Who waits for the reply to a call, by the node and the number of the call.
    calls: Mutex<BTreeMap<(OwnerId, u64), WaitingCall>>,
    last_call: AtomicU64,
    sent: Notify,
    /// Another host takes over every few requests. It has every row, and its clock is ahead or behind
    /// by this much, in turns.
    promotes_by: Option<i64>,
    /// Providers that its hosts have used before: the store was wiped.
    used_before: &'static [&'static str],
    /// Nothing arrives.
    is_down: AtomicBool,
}

/// The number of a request in its replica, and who waits for the reply.
type WaitingCall = (u64, oneshot::Sender<Reply>);

/// Requests to a store before its next promotion.
const PROMOTED_EVERY: u64 = 3;

/// When the store counts as lost.
const LOST_AFTER: Span = Span::from_millis(1_000);

/// A provider whose rows are on a store that is far away, whatever the plan says.
const SLOW_TAG: &str = "slow";

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("World").finish_non_exhaustive()
    }
}

/// One owner's connection.
#[derive(Debug)]
struct Connection {
    world: Arc<World>,
    owner: OwnerId,
}

impl World {
    /// Delivers what has arrived by now. Returns when the next message does.
    fn deliver(&self) -> Option<Micros> {
        let now = self.clock.at();
        let owners = self.owners.lock().clone();
        let mut delivered = Vec::new();
        let mut next = None;
        for (tag, store) in &mut *self.stores.lock() {
            store.advance(now);
            for owner in owners.keys() {
                let received = store.receive(node(*owner), now).into_iter();
                delivered.extend(received.map(|one| (tag.clone(), *owner, one)));
            }
            next = next.into_iter().chain(store.next_message()).min();
        }
        for (tag, owner, delivery) in delivered {
            match delivery {
                Delivery::Reply(mut reply) => {
                    let call = self.calls.lock().remove(&(owner, reply.batch));
                    if let Some((batch, waiting)) = call {
                        reply.batch = batch;
                        drop(waiting.send(reply));
                    }
                }
                Delivery::Pushed(rows, waiting) => owners[&owner].pushed(&tag, rows, waiting),
            }
        }
        next
    }

    /// Delivers messages at their times.
    async fn run(self: Arc<World>) {
        loop {
            let next = self.deliver();
            let sent = self.sent.notified();
            match next {
                Some(at) => {
                    let wait = Duration::from_micros(at.since(self.clock.at()).0);
                    drop(tokio::time::timeout(wait, sent).await);
                }
                None => sent.await,
            }
        }
    }
}

impl RowStore for Connection {
    async fn exchange(&self, tag: &str, mut request: Request) -> Result<Reply, StoreError> {
        if self.world.is_down.load(Ordering::Relaxed) {
            return std::future::pending().await;
        }
        let call = self.world.last_call.fetch_add(1, Ordering::Relaxed);
        let (reply, receiver) = oneshot::channel();
        let batch = std::mem::replace(&mut request.batch, call);
        self.world
            .calls
            .lock()
            .insert((self.owner, call), (batch, reply));
        {
            let mut stores = self.world.stores.lock();
            let new = || {
                let mut plan = self.world.plan.clone();
                if tag == SLOW_TAG {
                    plan.one_way = (Span::from_millis(40), Span::from_millis(40));
                }
                SimulatedStore::new(plan)
            };
            let store = stores.entry(tag.to_owned()).or_insert_with(new);
            if let Some(ahead_us) = self.world.promotes_by
                && call.is_multiple_of(PROMOTED_EVERY)
            {
                let is_back = call.is_multiple_of(2 * PROMOTED_EVERY);
                store.promote(Promotion {
                    at: self.world.clock.at(),
                    behind: Span::ZERO,
                    ahead_us: if is_back { -ahead_us } else { ahead_us },
                    is_wiped: false,
                });
            }
            store.send(node(self.owner), &request, self.world.clock.at());
        }
        self.world.deliver();
        self.world.sent.notify_one();
        // A lost reply never comes: the deadline is the ledger's.
        Ok(receiver.await.expect("the world does not end"))
    }

    fn liveness(&self, owner: OwnerId) -> Liveness {
        match self.world.owners.lock().contains_key(&owner) {
            true => Liveness::Alive,
            false => Liveness::Dead,
        }
    }

    fn past_use(&self, tag: &str) -> PastUse {
        match self.world.used_before.contains(&tag) {
            true => PastUse::Unnamed,
            false => PastUse::Never,
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.world.owners.lock().remove(&self.owner);
    }
}

fn node(owner: OwnerId) -> NodeId {
    NodeId(owner.0 as usize)
}

impl Networked {
    pub(crate) fn new(awkward: impl FnOnce(&mut StorePlan)) -> Networked {
        Networked::after_use(&[], awkward)
    }

    /// On hosts that have used these providers before.
    fn after_use(
        used_before: &'static [&'static str],
        awkward: impl FnOnce(&mut StorePlan),
    ) -> Networked {
        Networked::with(used_before, None, awkward)
    }

    pub(crate) fn with(
        used_before: &'static [&'static str],
        promotes_by: Option<i64>,
        awkward: impl FnOnce(&mut StorePlan),
    ) -> Networked {
        let mut plan = StorePlan::new(7, Span::ZERO);
        awkward(&mut plan);
        let world = Arc::new(World {
            clock: Clock::tokio(Wall(1_772_323_200_000_000)),
            plan,
            stores: Mutex::default(),
            owners: Mutex::default(),
            calls: Mutex::default(),
            last_call: AtomicU64::new(1),
            sent: Notify::new(),
            promotes_by,
            used_before,
            is_down: AtomicBool::new(false),
        });
        tokio::spawn(world.clone().run());
        Networked {
            world,
            owners: AtomicU32::new(1),
            slack: Span::ZERO,
            delay: Span::ZERO,
            deadline: Span::from_millis(100),
        }
    }

    /// How many requests were sent so far.
    pub(crate) fn requests(&self) -> u64 {
        self.world.last_call.load(Ordering::Relaxed) - 1
    }

    fn settings(&self, owner: OwnerId) -> NetworkedSettings {
        let replica = ReplicaSettings {
            owner,
            process: u64::from(owner.0) + 77,
            deadline: self.deadline,
            durable: self.world.promotes_by.is_some(),
            rules: Rules::default(),
        };
        NetworkedSettings {
            replica,
            lost_after: LOST_AFTER,
        }
    }
}

impl Backend for Networked {
    fn ledger(&self) -> Ledger {
        let owner = OwnerId(self.owners.fetch_add(1, Ordering::Relaxed));
        let world = self.world.clone();
        let runtime = tokio::runtime::Handle::current();
        let settings = self.settings(owner);
        Ledger::networked(world.clock.clone(), &runtime, settings, |events| {
            world.owners.lock().insert(owner, events);
            Connection {
                world: world.clone(),
                owner,
            }
        })
    }

    /// The clock moves at once; timers follow when the test next waits.
    fn pass(&self, span: Span) {
        let by = Duration::from_micros((span + self.delay).0);
        let mut advance = pin!(tokio::time::advance(by));
        let _pending = advance
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()));
    }

    fn slack(&self) -> Span {
        self.slack
    }

    fn now(&self) -> Option<Micros> {
        Some(self.world.clock.at())
    }
}

fn is_granted(verdicts: &[(tollgate_core::ask::PermitId, Verdict)]) -> bool {
    matches!(verdicts, [(_, Verdict::Go { .. })])
}

/// An owner that joins cannot tell whether the store's clock has stepped since a row was written. It
/// counts what is in the row from when it joined, for everybody, and no longer than that.
#[tokio::test(start_paused = true)]
async fn an_owner_that_joins_counts_from_then_on() {
    let backend = Networked::new(|_| {});
    let (mut one, mut joins) = (Owner::new(&backend, 1), Owner::new(&backend, 2));
    let rule = sliding(1, secs(1));
    let permit = one.take(smallvec![term("x", &rule)]).await.unwrap();
    one.settle(&permit, arrived());
    one.wait_settled().await;
    backend.pass(Span::from_millis(900));
    joins.take(smallvec![term("x", &rule)]).await.unwrap_err();
    backend.pass(Span::from_millis(900));
    for owner in [&mut one, &mut joins] {
        owner.take(smallvec![term("x", &rule)]).await.unwrap_err();
    }
    backend.pass(Span::from_millis(110));
    joins.take(smallvec![term("x", &rule)]).await.unwrap();
}

/// The store was wiped. Calls of before may arrive until `late_arrival` later, which is the
/// provider's own: each is closed for that and one window, and one that is new is open.
#[tokio::test(start_paused = true)]
async fn what_a_wiped_store_means_differs_between_providers() {
    let backend = Networked::after_use(&["prompt", "sluggish"], |_| {});
    let ledger = backend.ledger();
    let rule = sliding(5, secs(10));
    let mut asker = Owner::numbered(&ledger, 1);
    let mut closed_for = async |tag: &str, late: Span| {
        let provider = ledger.provider(tag);
        for seconds in 0..60 {
            let mut ask = asker.ask(smallvec![term("x", &rule)]);
            let timeout = secs(30);
            ask.evidence = Evidence::Report { timeout, late };
            if is_granted(&provider.offer(vec![ask]).await.unwrap().verdicts) {
                return seconds;
            }
            backend.pass(secs(1));
        }
        panic!("{tag} stays closed");
    };
    assert_eq!(closed_for("new", secs(5)).await, 0);
    assert_eq!(closed_for("prompt", secs(1)).await, 11);
    assert_eq!(closed_for("sluggish", secs(7)).await, 17);
}

/// One provider's request is under way for 80 ms; another provider's call is not held up.
#[tokio::test(start_paused = true)]
async fn providers_do_not_wait_for_each_other() {
    let backend = Networked::new(|_| {});
    let ledger = backend.ledger();
    let rule = sliding(5, secs(10));
    let mut asker = Owner::numbered(&ledger, 1);
    let (slow, quick) = (ledger.provider(SLOW_TAG), ledger.provider(TAG));
    let start = ledger.at();
    let slow = slow.offer(vec![asker.ask(smallvec![term("x", &rule)])]);
    let slow = tokio::spawn(slow);
    for _ in 0..3 {
        let ask = asker.ask(smallvec![term("x", &rule)]);
        let decided = quick.offer(vec![ask]).await.unwrap();
        assert!(is_granted(&decided.verdicts));
    }
    assert_eq!(ledger.at().since(start), Span::ZERO);
    assert!(is_granted(&slow.await.unwrap().unwrap().verdicts));
    assert!(
        ledger.at().since(start) >= Span::from_millis(160),
        "two round trips"
    );
}

/// Calls hear in time that the store is lost; what was settled meanwhile is told when
/// it is back, and whoever waits hears that it is.
#[tokio::test(start_paused = true)]
async fn a_store_that_does_not_respond_is_lost_and_recovers() {
    let backend = Networked::new(|_| {});
    let ledger = backend.ledger();
    let rule = sliding(1, secs(10));
    let mut owner = Owner::numbered(&ledger, 1);
    let permit = owner.take(smallvec![term("x", &rule)]).await.unwrap();
    backend.world.is_down.store(true, Ordering::Relaxed);
    let start = ledger.at();
    owner.settle(&permit, Outcome::Unsent);
    let ask = owner.ask(smallvec![term("x", &rule)]);
    assert!(owner.ledger.offer(vec![ask]).await.is_err());
    assert!(ledger.loss().is_some());
    assert!(ledger.at().since(start) <= LOST_AFTER + Span::from_millis(100));
    let ask = owner.ask(smallvec![term("x", &rule)]);
    assert!(owner.ledger.offer(vec![ask]).await.is_err(), "at once");
    let mut events = owner.ledger.events();
    tokio::time::advance(Duration::from_secs(20)).await;
    backend.world.is_down.store(false, Ordering::Relaxed);
    while events.next().await != Some(Event::Recovered) {}
    assert!(ledger.loss().is_none());
    assert!(ledger.at().since(start) <= Span::from_secs(23));
    owner.take(smallvec![term("x", &rule)]).await.unwrap();
}

/// Every wake-up is lost: whoever waits for one hears of it a second or two later.
#[tokio::test(start_paused = true)]
async fn a_lost_wake_up_costs_seconds_and_is_no_hang() {
    let backend = Networked::new(|plan| plan.lost_pushes_ppm = 1_000_000);
    let (mut one, mut two) = (Owner::new(&backend, 1), Owner::new(&backend, 2));
    let rule = sliding(1, secs(10));
    let permit = one.take(smallvec![term("x", &rule)]).await.unwrap();
    let mut events = two.events();
    two.take(smallvec![term("x", &rule)]).await.unwrap_err();
    one.settle(&permit, Outcome::Unsent);
    one.wait_settled().await;
    let start = backend.world.clock.at();
    while two.take(smallvec![term("x", &rule)]).await.is_err() {
        assert!(matches!(events.next().await, Some(Event::Freed(_))));
    }
    let waited = backend.world.clock.at().since(start);
    assert!(waited <= Span::from_millis(2_100), "{waited}");
}

/// While somebody waits, the store reports changed rows, and others are rejected by the rows that are
/// known. After an interruption anything may have been missed: the rows are read again.
#[tokio::test(start_paused = true)]
async fn rows_are_read_again_after_an_interrupted_subscription() {
    let backend = Networked::new(|_| {});
    let mut owner = Owner::new(&backend, 1);
    let rule = sliding(1, secs(10));
    owner.take(smallvec![term("x", &rule)]).await.unwrap();
    let mut requests_of_a_rejection = async || {
        let before = backend.world.last_call.load(Ordering::Relaxed);
        let rejected = owner.take(smallvec![term("x", &rule)]).await;
        assert!(rejected.is_err());
        backend.world.last_call.load(Ordering::Relaxed) - before
    };
    assert_ne!(requests_of_a_rejection().await, 0, "it begins to wait");
    assert_eq!(requests_of_a_rejection().await, 0, "the row is known");
    let events = backend.world.owners.lock()[&OwnerId(1)].clone();
    events.resync();
    assert_ne!(requests_of_a_rejection().await, 0, "the row may be old");
}

/// Rows of limits that nobody uses any more: the store deletes them, and what is used again counts
/// anew. The row of the provider stays.
#[tokio::test(start_paused = true)]
async fn rows_that_count_nothing_any_more_are_deleted() {
    let backend = Networked::new(|_| {});
    let mut owner = Owner::new(&backend, 1);
    let (rule, day) = (sliding(2, secs(10)), sliding(2, secs(5 * 86_400)));
    for entity in 0..20 {
        let cell = format!("entity {entity}");
        let permit = owner.take(smallvec![term(&cell, &rule)]).await.unwrap();
        owner.settle(&permit, arrived());
    }
    owner.take(smallvec![term("days", &day)]).await.unwrap();
    owner.wait_settled().await;
    let cells = || {
        let now = backend.world.clock.at();
        let mut stores = backend.world.stores.lock();
        let rows = stores.get_mut(TAG).unwrap().rows_mut(now);
        let cells = rows.keys().filter(|id| matches!(id, RowKey::Cell(_)));
        (cells.count(), rows.contains_key(&RowKey::Provider))
    };
    assert_eq!(cells(), (21, true));
    backend.pass(secs(2 * 86_400));
    assert_eq!(cells(), (1, true), "the limit of five days");
    assert_eq!(owner.peek("days", &day).await.remaining, 1);
    assert_eq!(owner.take_all("entity 1", &rule).await.len(), 2);
}

/// Somebody else made the store look used before the owner that had used it came back: it was given
/// again what it had used. Once it has noticed, the limit is closed for everybody, for one window.
#[tokio::test(start_paused = true)]
async fn a_wiped_store_that_somebody_else_uses_is_full() {
    let backend = Networked::new(|_| {});
    let rule = sliding(3, secs(3_600));
    let mut old = Owner::new(&backend, 1);
    for _ in 0..2 {
        let permit = old.take(smallvec![term("x", &rule)]).await.unwrap();
        old.settle(&permit, arrived());
    }
    old.wait_settled().await;
    {
        let now = backend.world.clock.at();
        let mut stores = backend.world.stores.lock();
        stores.get_mut(TAG).unwrap().rows_mut(now).clear();
    }
    let mut new = Owner::new(&backend, 2);
    new.take(smallvec![term("x", &rule)]).await.unwrap();
    for _ in 0..2 {
        assert_eq!(old.take_all("x", &rule).await.len(), 0);
        assert_eq!(new.take_all("x", &rule).await.len(), 0);
        assert_eq!(new.take_all("y", &rule).await.len(), 0, "never written");
        backend.pass(secs(3_000));
    }
    assert_eq!(new.take_all("x", &rule).await.len(), 3);
    assert_eq!(old.take_all("y", &rule).await.len(), 3);
}

/// Nothing told of damaged rows of a store far away.
#[tokio::test(start_paused = true)]
async fn a_damaged_row_is_counted_and_reported() {
    let backend = Networked::new(|_| {});
    let ledger = backend.ledger();
    let mut owner = Owner::numbered(&ledger, 1);
    let rule = sliding(2, secs(10));
    owner.take(smallvec![term("x", &rule)]).await.unwrap();
    let mut events = ledger.events();
    {
        let now = backend.world.clock.at();
        let mut stores = backend.world.stores.lock();
        let rows = stores.get_mut(TAG).unwrap().rows_mut(now);
        for (id, row) in rows {
            if matches!(id, RowKey::Cell(_)) {
                row.bytes = b"nonsense".to_vec();
                row.version.batch += 1_000;
            }
        }
    }
    assert_eq!(ledger.damaged_rows(), 0);
    assert!(owner.take(smallvec![term("x", &rule)]).await.is_err());
    assert_eq!(ledger.damaged_rows(), 1);
    assert_eq!(events.next().await, Some(Event::Damaged { rows: 1 }));
    backend.pass(secs(10));
    assert_eq!(owner.take_all("x", &rule).await.len(), 2);
}
