//! The entities that calls have named, for status views.
//!
//! Promises: bounded; the first so many are remembered, and a call for a known entity takes no
//! lock.
//!
//! Never: decides. The ledger holds an entity's counts, whether or not it is listed here.

use std::collections::BTreeSet;

use arc_swap::ArcSwap;

use super::CompiledPolicy;

/// The number of listed entities. They come from paths, so their number is unbounded; nobody reads
/// a longer list, and each entry costs a read of the ledger.
const ENTITIES_MAX: usize = 256;

/// Entities that calls have named.
#[derive(Debug, Default)]
pub(crate) struct SeenEntities(ArcSwap<BTreeSet<String>>);

impl SeenEntities {
    /// Records the entity of a call.
    pub(crate) fn record(&self, policy: &CompiledPolicy, entity: Option<&str>) {
        let Some(entity) = entity.filter(|_| policy.counts_by_entity()) else {
            return;
        };
        let known = self.0.load();
        if known.contains(entity) || known.len() >= ENTITIES_MAX {
            return;
        }
        self.0.rcu(|known| {
            let mut more = BTreeSet::clone(known);
            if more.len() < ENTITIES_MAX {
                more.insert(entity.to_owned());
            }
            more
        });
    }

    /// All entities, by name.
    pub(crate) fn names(&self) -> Vec<String> {
        self.0.load().iter().cloned().collect()
    }
}
