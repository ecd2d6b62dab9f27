//! The networked ledger on the simulator's awkward store: the conformance suite, with conflicts
//! without a reason.
//!
//! Messages take no time here, so that the suite can name exact times; what latency does is shown
//! by the simulator's worlds.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::Mutex;
use tollgate_core::ask::{CellId, OwnerId, ScopeId};
use tollgate_core::replica::{ReplicaSettings, Request, RowKey, Rules};
use tollgate_core::time::{Micros, Now, Span, Wall};
use tollgate_ledger::{
    Clock, EventSink, Ledger, ManualClock, NetworkedStore, Received, RowStore, StoreError,
};
use tollgate_sim::row_store::{Delivery, RowStore as AwkwardStore, StorePlan};
use tollgate_sim::world::NodeId;

use crate::backend::Backend;
use crate::conformance::conformance;

struct Networked {
    store: Arc<SharedStore>,
    owners: AtomicU32,
}

struct SharedStore {
    clock: Arc<ManualClock>,
    store: Mutex<AwkwardStore>,
    sinks: Mutex<Vec<EventSink>>,
}

impl fmt::Debug for SharedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedStore").finish_non_exhaustive()
    }
}

/// One owner's connection.
#[derive(Debug)]
struct Connection {
    store: Arc<SharedStore>,
    owner: OwnerId,
}

impl Networked {
    fn new(awkward: impl FnOnce(&mut StorePlan)) -> Networked {
        let clock = ManualClock::new(Now {
            at: Micros(1_000_000_000),
            wall: Wall(1_772_323_200_000_000),
        });
        let mut plan = StorePlan::new(7, Span::ZERO);
        awkward(&mut plan);
        Networked {
            store: Arc::new(SharedStore {
                clock,
                store: Mutex::new(AwkwardStore::new(plan)),
                sinks: Mutex::default(),
            }),
            owners: AtomicU32::new(0),
        }
    }
}

impl Backend for Networked {
    fn ledger(&self) -> Ledger {
        let owner = OwnerId(self.owners.fetch_add(1, Ordering::Relaxed));
        let store = self.store.clone();
        let clock = Clock::Manual(store.clock.clone());
        Ledger::inline(clock.clone(), |sink| {
            store.sinks.lock().push(sink);
            let settings = ReplicaSettings {
                owner,
                process: u64::from(owner.0) + 77,
                deadline: Span::from_secs(1),
                durable: false,
                knew_provider: false,
                late_arrival: Span::from_secs(5),
                hold_settles: false,
                // The suite's owners have been there for long, and this clock never steps.
                rules: Rules {
                    distrust_on_join: false,
                    ..Rules::default()
                },
            };
            NetworkedStore::new(Connection { store, owner }, clock, settings)
        })
    }

    fn pass(&self, span: Span) {
        self.store.clock.pass(span);
    }
}

impl RowStore for Connection {
    fn exchange(&self, request: &Request) -> Result<Vec<Received>, StoreError> {
        let truth = Clock::Manual(self.store.clock.clone()).at();
        let node = NodeId(self.owner.0 as usize);
        let (received, woken) = {
            let mut store = self.store.store.lock();
            store.send(node, request, truth);
            let woken = store.advance(truth);
            (store.receive(node, truth).into_iter(), woken)
        };
        // A subscription brings rows to those who wait for them; here they fetch them.
        let cells = request.replace.iter().filter_map(|(id, _)| match id {
            RowKey::Cell(cell) => Some(*cell),
            RowKey::Provider | RowKey::Scope(_) => None,
        });
        let cells: Vec<CellId> = cells.collect();
        let sinks = self.store.sinks.lock().clone();
        for (other, _) in woken.iter().filter(|(other, _)| *other != node) {
            sinks[other.0].freed(cells.clone());
        }
        Ok(received.map(into_received).collect())
    }

    fn received(&self) -> Vec<Received> {
        let truth = Clock::Manual(self.store.clock.clone()).at();
        let node = NodeId(self.owner.0 as usize);
        let received = self.store.store.lock().receive(node, truth).into_iter();
        received.map(into_received).collect()
    }

    fn wait_until(&self, at: Micros) {
        let now = Clock::Manual(self.store.clock.clone()).at();
        self.store.clock.pass(at.since(now));
    }

    fn wake(&self, owner: OwnerId, cell: CellId) -> bool {
        let sinks = self.store.sinks.lock().clone();
        if let Some(sink) = sinks.get(owner.0 as usize) {
            sink.freed(vec![cell]);
        }
        true
    }

    fn is_alive(&self, _owner: OwnerId) -> bool {
        true
    }

    fn notify_scopes(&self, scopes: &[ScopeId]) {
        let sinks = self.store.sinks.lock().clone();
        for (number, sink) in sinks.iter().enumerate() {
            if number != self.owner.0 as usize {
                sink.scopes_changed(scopes.to_vec());
            }
        }
    }
}

fn into_received(delivery: Delivery) -> Received {
    match delivery {
        Delivery::Reply(reply) => Received::Reply(reply),
        Delivery::Pushed(rows, waiting) => Received::Pushed(rows, waiting),
    }
}

mod on_a_store_that_behaves {
    use super::*;
    conformance!(Networked::new(|_| {}));
}

mod on_a_store_with_conflicts {
    use super::*;
    conformance!(Networked::new(|plan| plan.conflict_ppm = 300_000));
}
