//! The ledger in memory: `turn` under a lock.
//!
//! Promises: exact within one process, and the measure for every other backend. Idle cells are
//! forgotten a few at a time.
//!
//! Never: survives its process. Limits that must are SQLite's.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::broadcast;
use tollgate_core::ask::{Ask, CellId, ScopeId, Settle, Verdict};
use tollgate_core::limit::{CellView, Rule};
use tollgate_core::scope::ScopeView;
use tollgate_core::table::Table;
use tollgate_core::time::{Micros, Now};
use tollgate_core::turn::{Turn, turn};

use crate::cell_forwarding::CellForwarding;
use crate::{Clock, EVENTS_MAX, Event, Events, Ledger, PendingOffer};

/// Cells looked at per transaction with asks. Each of those makes at most a handful, so looking at
/// this many keeps up with any number of keys; a settle alone makes none that was not there.
const SWEEP_CELLS: usize = 8;

/// A ledger in this process; clones share it.
#[derive(Clone, Debug)]
pub struct MemoryLedger {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    clock: Clock,
    table: Mutex<Table>,
    events: broadcast::Sender<Event>,
    forwarding: CellForwarding,
}

impl MemoryLedger {
    pub(crate) fn new(clock: Clock) -> MemoryLedger {
        let (events, _) = broadcast::channel(EVENTS_MAX);
        MemoryLedger {
            shared: Arc::new(Shared {
                clock,
                table: Mutex::default(),
                events,
                forwarding: CellForwarding::default(),
            }),
        }
    }

    pub(crate) fn forwarding(&self) -> &CellForwarding {
        &self.shared.forwarding
    }

    /// How many cells are kept.
    #[must_use]
    pub fn cell_count(&self) -> usize {
        self.shared.table.lock().len()
    }

    pub(crate) fn clock(&self) -> Clock {
        self.shared.clock.clone()
    }

    pub(crate) fn offer(&self, ledger: &Ledger, asks: Vec<Ask>) -> PendingOffer {
        let (turn, _) = self.turn(&[], &asks);
        let answer = asks.into_iter().zip(turn.verdicts).collect();
        PendingOffer::ready(ledger.clone(), Ok((self.at(), answer)))
    }

    pub(crate) fn try_offer(&self, ask: &Ask) -> Option<(Verdict, Micros)> {
        let (mut turn, at) = self.turn(&[], std::slice::from_ref(ask));
        turn.verdicts.pop().map(|verdict| (verdict, at))
    }

    pub(crate) fn settle(&self, settle: &Settle) {
        self.turn(std::slice::from_ref(settle), &[]);
    }

    pub(crate) fn events(&self) -> Events {
        Events::new(self.shared.events.subscribe())
    }

    pub(crate) fn peek(&self, cells: &[(CellId, Arc<Rule>)]) -> Vec<CellView> {
        let table = self.shared.table.lock();
        let now = self.shared.clock.now();
        let look = |(id, rule): &(CellId, Arc<Rule>)| table.peek(*id, rule, now);
        cells.iter().map(look).collect()
    }

    pub(crate) fn peek_scope(&self, scope: ScopeId) -> ScopeView {
        self.shared.table.lock().peek_scope(scope, self.at())
    }

    pub(crate) fn at(&self) -> Micros {
        self.shared.clock.at()
    }

    pub(crate) fn now(&self) -> Now {
        self.shared.clock.now()
    }

    /// One transaction, and when it was. The clock is read under the lock, so that time never goes
    /// back between two of them.
    fn turn(&self, settles: &[Settle], asks: &[Ask]) -> (Turn, Micros) {
        let mut table = self.shared.table.lock();
        let now = self.shared.clock.now();
        let turn = turn(&mut *table, now, settles, asks);
        if !asks.is_empty() {
            table.sweep(now.at, SWEEP_CELLS);
        }
        drop(table);
        if !turn.freed.is_empty() {
            self.send_event(Event::Freed(turn.freed.as_slice().into()));
        }
        if !turn.changed_scopes.is_empty() {
            self.send_event(Event::Scopes(turn.changed_scopes.as_slice().into()));
        }
        (turn, now.at)
    }

    /// Nobody listening is no error: then nobody waits.
    fn send_event(&self, event: Event) {
        drop(self.shared.events.send(event));
    }
}
