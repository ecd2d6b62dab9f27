//! The table of flights, and of requests that are not worth waiting for.
//!
//! Promises: a request whose response could not be shared is remembered for a while, so that its
//! callers do not wait for each other; the first shareable response ends that. Bounded: flights by
//! the connected callers, pass entries by [`PASSES_MAX`].
//!
//! Never: takes locks against their order (flights, flight, demand).

use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::sync::Arc;

use tollgate_config::settings::Dedup;
use tollgate_core::time::{Micros, Span};
use tollgate_ledger::lock_order::{RankedMutex, rank};

use super::flight::Flight;
use super::sharing::{self, FlightKey, KeyHasher, RequestIdentity};
use crate::reply::Reply;

/// Shards of the table, so that threads rarely contend for one lock.
const SHARDS: usize = 32;

/// How long calls of an unshareable request go alone. Otherwise every group of callers would wait
/// for the first response only to learn that again.
pub(crate) const PASS_FOR: Span = Span::from_secs(120);

/// Pass entries per shard: 32 x 512 of 48 bytes are below 1 MiB. Beyond that new ones are not
/// recorded, which costs one group of callers a wait.
const PASSES_MAX: usize = 512;

/// All flights, by key.
#[derive(Debug, Default)]
pub(crate) struct FlightTable {
    pub(crate) shards: [RankedMutex<{ rank::FLIGHTS }, FlightShard>; SHARDS],
}

pub(crate) type FlightShard = HashMap<FlightKey, FlightSlot, BuildHasherDefault<KeyHasher>>;

/// What is known about a request.
#[derive(Debug)]
pub(crate) enum FlightSlot {
    /// It is in flight.
    InFlight(Arc<Flight>),
    /// Not worth waiting for, until then.
    Pass(Micros),
}

/// Records that responses to a request could not be shared.
#[derive(Debug)]
pub(crate) struct PassEntry {
    pub(crate) key: FlightKey,
    pub(crate) identity: RequestIdentity,
    pub(crate) mode: Dedup,
    pub(crate) table: Arc<FlightTable>,
}

impl PassEntry {
    /// After a call that went alone: if its response could have been shared, the next calls share.
    pub(crate) fn on_reply(&self, reply: &Reply) {
        if sharing::may_share_reply(&self.identity, self.mode, reply) {
            self.table.remove_pass(self.key);
        }
    }
}

impl FlightTable {
    pub(crate) fn shard(&self, key: FlightKey) -> &RankedMutex<{ rank::FLIGHTS }, FlightShard> {
        &self.shards[key.shard(SHARDS)]
    }

    /// Removes a flight, unless another has replaced it.
    pub(crate) fn remove(&self, flight: &Arc<Flight>) {
        let mut shard = self.shard(flight.key).lock();
        if matches!(shard.get(&flight.key), Some(FlightSlot::InFlight(found)) if Arc::ptr_eq(found, flight))
        {
            shard.remove(&flight.key);
        }
    }

    /// Responses to a request can be shared after all.
    fn remove_pass(&self, key: FlightKey) {
        let mut shard = self.shard(key).lock();
        if matches!(shard.get(&key), Some(FlightSlot::Pass(_))) {
            shard.remove(&key);
        }
    }

    /// Remembers that a flight's response could not be shared.
    pub(crate) fn pass(&self, flight: &Arc<Flight>, now: Micros) {
        let mut shard = self.shard(flight.key).lock();
        if shard.len() >= PASSES_MAX {
            shard.retain(|_, slot| match slot {
                FlightSlot::InFlight(_) => true,
                FlightSlot::Pass(until) => *until > now,
            });
        }
        let has_room = shard.len() < PASSES_MAX;
        match shard.get_mut(&flight.key) {
            Some(FlightSlot::InFlight(found)) if !Arc::ptr_eq(found, flight) => {}
            Some(slot) if has_room => *slot = FlightSlot::Pass(now + PASS_FOR),
            Some(_) => {
                shard.remove(&flight.key);
            }
            None if has_room => {
                shard.insert(flight.key, FlightSlot::Pass(now + PASS_FOR));
            }
            None => {}
        }
    }
}
