//! How many calls of each caller and priority come, and for which entity, measured from counters.
//!
//! Promises: costs a call nothing where nothing is counted per entity, and a short lock otherwise. It is read when
//! somebody asks, and once a second by the daemon. Bounded: [`SNAPSHOTS`] snapshots of at most [`PAIRS_MAX`] entries of
//! 40 bytes, 0.3 MB; without entities at most 67 callers (`call_counters.rs`), 20 KB.
//!
//! Never: decides anything.

use std::collections::{BTreeMap, HashMap, VecDeque};

use parking_lot::Mutex;
use tollgate_core::ask::Priority;
use tollgate_core::eta::EtaArrivals;
use tollgate_core::gate::CallerId;
use tollgate_core::rate::Rate;
use tollgate_core::time::{Micros, Span};

use super::call_counters::{CallCounts, DEFAULT_CALLER, priority_index};
use super::callers::caller_id;
use crate::metrics::PRIORITIES;

/// The distance between two snapshots.
const EVERY: Span = Span::from_secs(5);

/// How many snapshots are kept: demand of the last half minute.
const SNAPSHOTS: usize = 7;

/// How many pairs of entity and caller are counted: as many entities as are listed, with four callers each.
const PAIRS_MAX: usize = 1_024;

/// A caller, its priority, and the number of an entity.
pub(super) type ArrivalSource = (CallerId, Priority, Option<usize>);

/// Permits that were taken and wanted so far.
pub(super) type Asked = BTreeMap<ArrivalSource, u64>;

/// Permits that calls of each entity and caller got, by priority.
#[derive(Debug, Default)]
pub(crate) struct EntityDemand(Mutex<HashMap<String, HashMap<String, [u64; 3]>>>);

impl EntityDemand {
    /// A call for this entity got a permit.
    pub(crate) fn on_permit(&self, entity: &str, caller: Option<&str>, priority: Priority) {
        let caller = caller.unwrap_or(DEFAULT_CALLER);
        let mut entities = self.0.lock();
        let known = entities
            .get_mut(entity)
            .and_then(|callers| callers.get_mut(caller));
        if let Some(counts) = known {
            counts[priority_index(priority)] += 1;
            return;
        }
        if entities.values().map(HashMap::len).sum::<usize>() < PAIRS_MAX {
            let callers = entities.entry(entity.to_owned()).or_default();
            callers.entry(caller.to_owned()).or_default()[priority_index(priority)] += 1;
        }
    }

    /// What was counted, with the numbers of these entities.
    pub(super) fn asked(&self, entities: &[String]) -> Asked {
        let counted = self.0.lock();
        let mut asked = Asked::new();
        for (part, entity) in entities.iter().enumerate() {
            for (caller, counts) in counted.get(entity).into_iter().flatten() {
                add_counts(&mut asked, caller, Some(part), *counts);
            }
        }
        asked
    }
}

/// What the callers of a provider without entities sent.
pub(super) fn asked_by(counts: &[(String, CallCounts)]) -> Asked {
    let mut asked = Asked::new();
    for (name, counts) in counts {
        add_counts(&mut asked, name, None, counts.sent);
    }
    asked
}

fn add_counts(asked: &mut Asked, caller: &str, part: Option<usize>, counts: [u64; 3]) {
    for (priority, count) in PRIORITIES.into_iter().zip(counts) {
        asked.insert((id_of(caller), priority, part), count);
    }
}

/// The id of a caller in fair sharing, by its name in counters.
pub(super) fn id_of(name: &str) -> CallerId {
    match name {
        DEFAULT_CALLER => CallerId::default(),
        name => caller_id(name),
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct ArrivalWindow {
    /// Oldest first; never empty.
    snapshots: VecDeque<(Micros, Asked)>,
}

impl ArrivalWindow {
    /// Nothing has come before `now`.
    pub(crate) fn new(now: Micros) -> ArrivalWindow {
        ArrivalWindow {
            snapshots: VecDeque::from([(now, Asked::new())]),
        }
    }

    /// How many calls per second came since the oldest snapshot.
    pub(super) fn rates(&mut self, now: Micros, asked: Asked) -> Vec<EtaArrivals> {
        let oldest = self.snapshots.front();
        let rates = oldest.map_or_else(Vec::new, |(at, before)| {
            let rate = |(source, count): (&ArrivalSource, &u64)| {
                let new = count.saturating_sub(before.get(source).copied().unwrap_or(0));
                let (caller, priority, part) = *source;
                (new > 0).then(|| EtaArrivals {
                    caller,
                    priority,
                    part,
                    rate: Rate::of(new, now.since(*at).max(Span::from_secs(1))),
                })
            };
            asked.iter().filter_map(rate).collect()
        });
        let newest = self.snapshots.back();
        if newest.is_none_or(|(at, _)| now.since(*at) >= EVERY) {
            self.snapshots.push_back((now, asked));
        }
        if self.snapshots.len() > SNAPSHOTS {
            self.snapshots.pop_front();
        }
        rates
    }
}
