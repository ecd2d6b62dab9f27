//! What is on its way, and which questions are not worth waiting for.
//!
//! Promises: a question whose answer could not be shared is remembered for a while, so that its callers
//! do not wait for each other; the first answer that could be shared ends that. Bounded: flights by the
//! callers that are connected, memories by [`PASSES_MAX`].
//!
//! Never: two locks at a time.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::sync::Arc;

use parking_lot::Mutex;
use tollgate_config::settings::Dedup;
use tollgate_core::time::{Micros, Span};

use super::Outcome;
use super::flight::Flight;
use super::share::{self, Asked, Hashed, Key};
use crate::body::Held;

/// Parts of the table, so that workers rarely meet at one lock.
const SHARDS: usize = 32;

/// How long a question whose answer could not be shared is asked by each caller alone. Otherwise
/// every wave of callers would wait for the first one's answer only to learn that again.
pub(super) const PASS: Span = Span::from_secs(120);

/// Such questions per part of the table: 32 x 512 of 48 bytes are below 1 MiB. Past it the next ones
/// are forgotten, which costs one wave a wait.
const PASSES_MAX: usize = 512;

/// Everything that is on its way, by its question.
#[derive(Debug, Default)]
pub(super) struct Table {
    pub(super) shards: [Mutex<Shard>; SHARDS],
    /// How much all shared answers hold.
    pub(super) held: Held,
}

pub(super) type Shard = HashMap<Key, Slot, BuildHasherDefault<Hashed>>;

/// What is known of a question.
#[derive(Debug)]
pub(super) enum Slot {
    /// It is being asked.
    Flying(Arc<Flight>),
    /// Not worth waiting for, until then.
    Pass(Micros),
}

/// The memory that answers to a question could not be shared.
#[derive(Debug)]
pub(crate) struct Mark {
    pub(super) key: Key,
    pub(super) asked: Asked,
    pub(super) mode: Dedup,
    pub(super) table: Arc<Table>,
}

impl Mark {
    /// What came of a call that went alone: if that could have been shared, the next ones are.
    pub(crate) fn heed(&self, outcome: &Outcome) {
        if let Ok(reply) = &outcome.answer
            && !outcome.is_failure
            && share::shares(&self.asked, self.mode, reply)
        {
            self.table.forget_pass(self.key);
        }
    }
}

impl Table {
    pub(super) fn shard(&self, key: Key) -> &Mutex<Shard> {
        &self.shards[key.part(SHARDS)]
    }

    /// Takes a flight out, unless another has its place.
    pub(super) fn remove(&self, flight: &Arc<Flight>) {
        let mut shard = self.shard(flight.key).lock();
        if matches!(shard.get(&flight.key), Some(Slot::Flying(found)) if Arc::ptr_eq(found, flight))
        {
            shard.remove(&flight.key);
        }
    }

    /// Answers to a question can be shared after all.
    fn forget_pass(&self, key: Key) {
        let mut shard = self.shard(key).lock();
        if matches!(shard.get(&key), Some(Slot::Pass(_))) {
            shard.remove(&key);
        }
    }

    /// Remembers that a flight's answer could not be shared.
    pub(super) fn pass(&self, flight: &Arc<Flight>, now: Micros) {
        let mut shard = self.shard(flight.key).lock();
        if shard.len() >= PASSES_MAX {
            shard.retain(|_, slot| match slot {
                Slot::Flying(_) => true,
                Slot::Pass(until) => *until > now,
            });
        }
        let has_room = shard.len() < PASSES_MAX;
        match shard.get_mut(&flight.key) {
            Some(Slot::Flying(found)) if !Arc::ptr_eq(found, flight) => {}
            Some(slot) if has_room => *slot = Slot::Pass(now + PASS),
            Some(_) => {
                shard.remove(&flight.key);
            }
            None if has_room => {
                shard.insert(flight.key, Slot::Pass(now + PASS));
            }
            None => {}
        }
    }
}
