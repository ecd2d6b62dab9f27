//! The entities that calls were about, for those who look.
//!
//! Promises: bounded; the first so many are remembered, and a call of a known one takes no lock.
//!
//! Never: decides. What is counted of an entity is in the ledger, whether or not it is listed here.

use std::collections::BTreeSet;

use arc_swap::ArcSwap;

use super::CompiledPolicy;

/// Entities that are listed. They come from paths, so there may be any number; a list of more than
/// this is read by nobody, and each costs a look into the ledger.
const ENTITIES_MAX: usize = 256;

/// Entities that calls were about.
#[derive(Debug, Default)]
pub(crate) struct SeenEntities(ArcSwap<BTreeSet<String>>);

impl SeenEntities {
    /// A call is about this entity.
    pub(crate) fn record(&self, plan: &CompiledPolicy, entity: Option<&str>) {
        let Some(entity) = entity.filter(|_| plan.counts_by_entity()) else {
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

    /// All of them, by name.
    pub(crate) fn names(&self) -> Vec<String> {
        self.0.load().iter().cloned().collect()
    }
}
