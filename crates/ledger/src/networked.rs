//! A ledger over a store that compares and replaces rows: Postgres, Redis, or any other with a
//! compare-and-set.
//!
//! A new store is a [`RowStore`]: it carries one request there and one reply back. The protocol is
//! `tollgate_core::replica`; nothing of it is written again for a store.
//!
//! Promises: what was asked is answered by a request that the store has taken, however often it
//! conflicts and whatever is lost on the way.
//!
//! Never: decides, or understands a row.

use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use tollgate_core::ask::{CellId, OwnerId, PermitId, ScopeId, Verdict};
use tollgate_core::batch::{Batch, Decision, Settles};
use tollgate_core::fairness::Wake;
use tollgate_core::limit::Cell;
use tollgate_core::replica::{
    Replica, ReplicaActions, ReplicaSettings, Reply, ReplyOutcome, Request, Row, RowBody, RowKey,
    Waiting,
};
use tollgate_core::scope::Scope;
use tollgate_core::time::{Micros, TimeBounds, Wall};

use crate::Clock;
use crate::store::{Liveness, PeekQuery, PeekReply, Store, StoreError};

/// Requests for one batch: far more than conflicts among 64 owners cost. Then the store counts as
/// lost, and settles are told again.
const REQUESTS_MAX: usize = 1_000;

/// What came back from the store.
#[derive(Debug)]
pub enum Received {
    /// The reply to a request.
    Reply(Reply),
    /// Rows that another owner has replaced.
    Pushed(Vec<(RowKey, Row)>, Waiting),
}

/// A store that compares and replaces rows, and the connection to it.
pub trait RowStore: Send + Sync + fmt::Debug {
    /// Sends a request and waits for its reply, at most until the store's own deadline. Wake-ups
    /// that came meanwhile are returned as well. Without a reply the request may have been
    /// handled, or may still be.
    fn exchange(&self, request: &Request) -> Result<Vec<Received>, StoreError>;

    /// Wake-ups that have come since the last exchange.
    fn received(&self) -> Vec<Received>;

    /// Lets time pass until this instant of the ledger's clock: it is another owner's turn.
    fn wait_until(&self, at: Micros);

    /// Tells another owner that this cell has come free; `false`: that owner is dead.
    fn wake(&self, owner: OwnerId, cell: CellId) -> bool;

    /// Is this owner alive? Says nothing to it.
    fn is_alive(&self, owner: OwnerId) -> bool;

    /// Tells every other owner that these scopes have changed.
    fn notify_scopes(&self, scopes: &[ScopeId]);
}

/// The rows of a networked store as one process uses them.
#[derive(Debug)]
pub struct NetworkedStore<R> {
    rows: R,
    clock: Clock,
    owner: OwnerId,
    replica: Mutex<Replica>,
}

impl<R: RowStore> NetworkedStore<R> {
    /// This process's part in the store.
    pub fn new(rows: R, clock: Clock, settings: ReplicaSettings) -> NetworkedStore<R> {
        NetworkedStore {
            rows,
            clock,
            owner: settings.owner,
            replica: Mutex::new(Replica::new(settings)),
        }
    }

    /// Polls, sends and receives until every ask has its verdict and every settle is stored.
    fn run(&self, replica: &mut Replica, asks: usize) -> Result<Answers, StoreError> {
        let mut answers = Answers::default();
        for _ in 0..REQUESTS_MAX {
            let actions = replica.poll(self.clock.at());
            let (send, wake_at) = answers.add(actions);
            match (send, wake_at) {
                (Some(request), _) => self.exchange(replica, &request)?,
                (None, _) if answers.verdicts.len() >= asks && replica.is_idle() => {
                    return Ok(answers);
                }
                (None, Some(at)) => self.rows.wait_until(at),
                (None, None) => {}
            }
        }
        Err(too_many_conflicts())
    }

    fn exchange(&self, replica: &mut Replica, request: &Request) -> Result<(), StoreError> {
        let mut has_reply = false;
        for received in self.rows.exchange(request)? {
            match received {
                Received::Reply(reply) => {
                    has_reply |= reply.batch == request.batch;
                    replica.reply(reply, self.clock.at());
                }
                Received::Pushed(rows, waiting) => replica.pushed(rows, &waiting),
            }
        }
        if !has_reply {
            replica.give_up(self.clock.at());
        }
        Ok(())
    }
}

/// What a batch has brought so far.
#[derive(Debug, Default)]
struct Answers {
    verdicts: Vec<(PermitId, Verdict)>,
    granted_at: Option<Micros>,
    freed: Vec<CellId>,
    changed_scopes: Vec<ScopeId>,
    wakes: Vec<Wake>,
}

impl Answers {
    fn add(&mut self, actions: ReplicaActions) -> (Option<Request>, Option<Micros>) {
        self.verdicts.extend(actions.verdicts);
        self.granted_at = actions.granted_at.or(self.granted_at);
        self.freed.extend(actions.freed);
        self.changed_scopes.extend(actions.changed_scopes);
        let wake = |(cell, owners): (CellId, Vec<OwnerId>)| Wake {
            cell,
            at_most: owners.len(),
            owners,
        };
        self.wakes.extend(actions.wakes.into_iter().map(wake));
        (actions.send, actions.wake_at)
    }

    fn verdict(&mut self, id: PermitId) -> Option<Verdict> {
        let found = self.verdicts.iter().position(|(of, _)| *of == id)?;
        Some(self.verdicts.swap_remove(found).1)
    }
}

impl<R: RowStore> Store for NetworkedStore<R> {
    fn commit(&self, batch: &Batch<'_>) -> Result<Decision, StoreError> {
        let mut replica = self.replica.lock();
        let now = self.clock.at();
        for received in self.rows.received() {
            if let Received::Pushed(rows, waiting) = received {
                replica.pushed(rows, &waiting);
            }
        }
        match batch.settles {
            Settles::Now(settles) => {
                for settle in settles {
                    replica.settle(settle.clone(), now);
                }
            }
            Settles::Queued(settles) => {
                for queued in settles {
                    replica.settle(queued.settle.clone(), queued.at);
                }
            }
        }
        replica.offer(batch.asks.to_vec());
        let mut answers = self.run(&mut replica, batch.asks.len())?;
        let verdicts = batch.asks.iter().filter_map(|ask| answers.verdict(ask.id));
        Ok(Decision {
            verdicts: verdicts.collect(),
            freed: answers.freed,
            changed_scopes: answers.changed_scopes,
            wakes: answers.wakes,
            saved_for: Vec::new(),
            at: answers.granted_at.unwrap_or(now),
        })
    }

    fn peek(&self, query: &PeekQuery) -> Result<PeekReply, StoreError> {
        let cells = query.cells.iter().map(|(cell, _)| RowKey::Cell(*cell));
        let scopes = query.scopes.iter().map(|scope| RowKey::Scope(*scope));
        let request = Request {
            read: cells.chain(scopes).collect(),
            ..Request::default()
        };
        let mut reply = None;
        for received in self.rows.exchange(&request)? {
            match received {
                Received::Reply(one) => reply = Some(one),
                Received::Pushed(rows, waiting) => self.replica.lock().pushed(rows, &waiting),
            }
        }
        let Some(Reply {
            stored_at,
            outcome: ReplyOutcome::Current(rows),
            ..
        }) = reply
        else {
            return Err(no_reply());
        };
        let now = TimeBounds::exact(stored_at, Wall(stored_at.0));
        let body = |id: RowKey| {
            let found = rows.iter().find(|(of, _)| *of == id);
            found.and_then(|(_, row)| row.as_ref()).map(|row| &row.body)
        };
        let cell = |id: CellId| match body(RowKey::Cell(id)) {
            Some(RowBody::Cell(cell)) => cell.clone(),
            Some(RowBody::Provider(_) | RowBody::Scope(_)) | None => Cell::default(),
        };
        let scope = |id: ScopeId| match body(RowKey::Scope(id)) {
            Some(RowBody::Scope(scope)) => *scope,
            Some(RowBody::Provider(_) | RowBody::Cell(_)) | None => Scope::default(),
        };
        let cells = query.cells.iter();
        let scopes = query.scopes.iter();
        Ok(PeekReply {
            cells: cells.map(|(id, rule)| cell(*id).peek(rule, now)).collect(),
            scopes: scopes.map(|id| scope(*id).peek(now.lo)).collect(),
        })
    }

    fn owner(&self) -> OwnerId {
        self.owner
    }

    fn wake(&self, owner: OwnerId, cell: CellId) -> Liveness {
        match self.rows.wake(owner, cell) {
            true => Liveness::Alive,
            false => Liveness::Dead,
        }
    }

    fn liveness(&self, owner: OwnerId) -> Liveness {
        match self.rows.is_alive(owner) {
            true => Liveness::Alive,
            false => Liveness::Dead,
        }
    }

    fn notify_scopes(&self, scopes: &[ScopeId]) {
        self.rows.notify_scopes(scopes);
    }
}

fn too_many_conflicts() -> StoreError {
    let message = format!(
        "the store answered {REQUESTS_MAX} requests of one batch with a conflict; do other programs write to its rows?"
    );
    StoreError {
        message: Arc::from(message),
        is_final: false,
    }
}

fn no_reply() -> StoreError {
    StoreError {
        message: Arc::from("the store did not answer in time; is it reachable?"),
        is_final: false,
    }
}
