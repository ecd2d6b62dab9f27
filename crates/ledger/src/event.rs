//! What a ledger reports to everybody who waits.
//!
//! Promises: a receiver that falls behind gets `Resync`: anything may have changed; it never misses
//! that something did.
//!
//! Never: carries a permit. Permits are returned only by offers.

use std::sync::Arc;

use tokio::sync::broadcast;
use tollgate_core::ask::{CellId, ScopeId};

/// Events that a receiver may lag behind. Each is a few words, 12 KiB per provider, and a gate drains
/// them at once; past this it re-asks for everything, which costs one offer.
pub const EVENTS_MAX: usize = 256;

/// Something that waiting calls must learn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// These cells have come free earlier than they had said.
    Freed(Arc<[CellId]>),
    /// These scopes have closed, opened, or given their probe back.
    Scopes(Arc<[ScopeId]>),
    /// The store cannot be reached.
    Lost,
    /// The store is there again.
    Recovered,
    /// Stored rows were damaged or missing: their limits count as used up for one period.
    Damaged {
        /// How many.
        rows: u64,
    },
    /// The store's log grows: a reader of another program keeps it from being shortened.
    LogHeld {
        /// How long it is.
        bytes: u64,
    },
    /// This host could not write down that it uses a provider with a store of many hosts: if that
    /// store is wiped while no process of this host runs, nobody notices.
    NotRemembered {
        /// Why, and what to do.
        why: Arc<str>,
    },
    /// Too much happened to follow: ask again for everything.
    Resync,
}

/// The events of one ledger, from the moment this was made.
#[derive(Debug)]
pub struct EventReceiver {
    receiver: broadcast::Receiver<Event>,
}

impl EventReceiver {
    pub(crate) fn new(receiver: broadcast::Receiver<Event>) -> EventReceiver {
        EventReceiver { receiver }
    }

    /// The next event; `None` when the ledger is gone.
    pub async fn next(&mut self) -> Option<Event> {
        match self.receiver.recv().await {
            Ok(event) => Some(event),
            Err(broadcast::error::RecvError::Lagged(_)) => Some(Event::Resync),
            Err(broadcast::error::RecvError::Closed) => None,
        }
    }

    /// The next event if there is one already.
    pub fn try_next(&mut self) -> Option<Event> {
        match self.receiver.try_recv() {
            Ok(event) => Some(event),
            Err(broadcast::error::TryRecvError::Lagged(_)) => Some(Event::Resync),
            Err(broadcast::error::TryRecvError::Empty | broadcast::error::TryRecvError::Closed) => {
                None
            }
        }
    }
}
