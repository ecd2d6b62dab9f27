//! What the handles of a ledger, its drivers and the threads of its store share.
//!
//! Promises: while the store is lost, everybody who asks finds the reason; when it is back, scopes
//! that were to be closed are closed before anything is granted.
//!
//! Never: asks the store.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use tollgate_core::ask::{OwnerId, Reopen, ScopeId, Settle};
use tollgate_core::batch::QueuedSettle;
use tollgate_core::time::{Micros, Span};

use crate::cell_forwarding::CellForwarding;
use crate::hub::{Hub, TagId};
use crate::inbox::Inbox;
use crate::last_seen::LastSeenScopes;
use crate::lock_order::{RankedMutex, rank};
use crate::store::StoreError;
use crate::{Clock, Event, StoreLoss};

/// Scopes that are closed when the store comes back: one per provider, as many as offers wait.
const CLOSES_MAX: usize = 1_024;

/// Dead owners that are remembered until what they waited for is met again: as many as processes may
/// have been killed on a host since. One that is forgotten is found dead again.
const DEAD_MAX: usize = 1_024;

const NOT_LOST: u64 = u64::MAX;

/// What handles, drivers and the threads of a store share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) clock: Clock,
    pub(crate) inbox: Inbox,
    pub(crate) hub: Arc<Hub>,
    pub(crate) forwarding: CellForwarding,
    pub(crate) last_seen: LastSeenScopes,
    /// Questions put to the store so far.
    pub(crate) questions: AtomicU64,
    loss_reason: Mutex<Option<String>>,
    /// When the store was lost, on the ledger's clock; [`NOT_LOST`] while it is there.
    lost_at: AtomicU64,
    /// It does not come back by itself.
    is_final: AtomicBool,
    closes_on_recovery: RankedMutex<{ rank::RECOVERY }, BTreeMap<ScopeId, (TagId, Span)>>,
    pub(crate) is_closing: AtomicBool,
    pub(crate) dead: DeadOwners,
}

/// Owners that were found dead: nobody leaves them anything.
#[derive(Debug, Default)]
pub(crate) struct DeadOwners {
    is_any: AtomicBool,
    owners: Mutex<Vec<OwnerId>>,
}

impl DeadOwners {
    pub(crate) fn get(&self) -> Option<Vec<OwnerId>> {
        let is_any = self.is_any.load(Ordering::Acquire);
        is_any.then(|| self.owners.lock().clone())
    }

    pub(crate) fn add(&self, found: Vec<OwnerId>) {
        for owner in found {
            let mut owners = self.owners.lock();
            if owners.len() < DEAD_MAX && !owners.contains(&owner) {
                owners.push(owner);
                self.is_any.store(true, Ordering::Release);
            }
        }
    }
}

impl Shared {
    pub(crate) fn new(clock: Clock) -> Arc<Shared> {
        Arc::new(Shared {
            clock,
            inbox: Inbox::default(),
            hub: Arc::new(Hub::new()),
            forwarding: CellForwarding::default(),
            last_seen: LastSeenScopes::default(),
            questions: AtomicU64::new(0),
            loss_reason: Mutex::default(),
            lost_at: AtomicU64::new(NOT_LOST),
            is_final: AtomicBool::new(false),
            closes_on_recovery: RankedMutex::default(),
            is_closing: AtomicBool::new(false),
            dead: DeadOwners::default(),
        })
    }

    /// Since when the store cannot be reached, while it cannot.
    pub(crate) fn loss(&self) -> Option<StoreLoss> {
        let since = self.lost_at.load(Ordering::Acquire);
        (since != NOT_LOST).then(|| StoreLoss {
            since: Micros(since),
            is_final: self.is_final.load(Ordering::Acquire),
        })
    }

    pub(crate) fn loss_reason(&self) -> Option<String> {
        self.loss_reason.lock().clone()
    }

    /// Said before anybody is answered, so that whoever hears of it finds it said. While it is lost,
    /// the last reason counts.
    pub(crate) fn mark_lost(&self, error: &StoreError) {
        *self.loss_reason.lock() = Some(error.to_string());
        if error.is_final {
            self.is_final.store(true, Ordering::Release);
        }
        if self.loss().is_none() {
            self.lost_at.store(self.clock.at().0, Ordering::Release);
            self.hub.broadcast(&Event::Lost);
        }
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.is_final.load(Ordering::Acquire)
    }

    pub(crate) fn mark_recovered(&self) {
        self.closes_on_recovery.lock().clear();
        self.lost_at.store(NOT_LOST, Ordering::Release);
        *self.loss_reason.lock() = None;
        self.hub.broadcast(&Event::Recovered);
    }

    /// Closes a scope for so long from the moment at which the store is back.
    pub(crate) fn close_on_recovery(&self, tag: TagId, scope: ScopeId, rest: Span) {
        let mut closes = self.closes_on_recovery.lock();
        if closes.len() < CLOSES_MAX || closes.contains_key(&scope) {
            closes.insert(scope, (tag, rest));
        }
    }

    /// What is to be settled first when the store is back.
    pub(crate) fn recovery_settles(&self) -> Vec<(TagId, QueuedSettle)> {
        let at = self.clock.at();
        let closes = self.closes_on_recovery.lock();
        let close = |(&scope, &(tag, rest)): (&ScopeId, &(TagId, Span))| {
            let settle = Settle::Close {
                scope,
                age: Span::ZERO,
                closed_for: Some(rest),
                reopen: Reopen::All,
            };
            (tag, QueuedSettle { settle, at })
        };
        closes.iter().map(close).collect()
    }
}
