//! The entities that calls have named, for status views and metrics.
//!
//! Promises: bounded; the first so many are remembered, and a call for a known entity takes no
//! lock.
//!
//! Never: decides. The ledger holds an entity's permits, whether or not it is listed here.

use std::collections::BTreeMap;
use std::sync::Arc;

use arc_swap::ArcSwap;

use super::CompiledPolicy;
use crate::metrics::EntityCounters;

/// The number of listed entities. They come from paths, so their number is unbounded; nobody reads
/// a longer list, and each entry costs a read of the ledger.
const ENTITIES_MAX: usize = 256;

/// Entities that calls have named, and their counters.
#[derive(Debug, Default)]
pub(crate) struct SeenEntities(ArcSwap<BTreeMap<String, Arc<EntityCounters>>>);

impl SeenEntities {
    /// Records the entity of a call. Returns its counters, if it has its own.
    pub(crate) fn record(
        &self,
        policy: &CompiledPolicy,
        entity: Option<&str>,
    ) -> Option<Arc<EntityCounters>> {
        let entity = entity.filter(|_| policy.counts_by_entity())?;
        let known = self.0.load();
        if let Some(part) = known.get(entity) {
            return Some(part.clone());
        }
        if known.len() >= ENTITIES_MAX {
            return None;
        }
        let new = Arc::new(EntityCounters::default());
        self.0.rcu(|known| {
            let mut more = BTreeMap::clone(known);
            if more.len() < ENTITIES_MAX {
                let entry = more.entry(entity.to_owned());
                entry.or_insert_with(|| new.clone());
            }
            more
        });
        self.0.load().get(entity).cloned()
    }

    /// The counters of an entity.
    pub(crate) fn metrics(&self, entity: &str) -> Option<Arc<EntityCounters>> {
        self.0.load().get(entity).cloned()
    }

    /// All entities, by name.
    pub(crate) fn names(&self) -> Vec<String> {
        self.0.load().keys().cloned().collect()
    }
}
