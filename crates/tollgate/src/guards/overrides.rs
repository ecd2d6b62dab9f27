//! Limits that descriptors bring along.
//!
//! Promises: they have a table of their own, so that however many different limits clients send, those of
//! configured guards stay countable. Their denials are counted together: one event a second.
//!
//! Never: holds a descriptor's text, only its fingerprint.

use std::sync::{Arc, OnceLock};

use tollgate_guard::{GuardTable, PlanError, Tick};

use super::class::GuardClass;
use super::descriptor::LimitOverride;
use super::tally::GuardTally;
use super::{SWEEP_SLOTS, new_table};

/// Buckets of limits that descriptors bring along.
#[derive(Debug, Default)]
pub(super) struct Overrides {
    /// Made for the first one.
    table: OnceLock<GuardTable>,
    tally: Arc<GuardTally>,
}

impl Overrides {
    /// The limit of one descriptor.
    pub(super) fn class(
        &self,
        name: &str,
        limit: LimitOverride,
        nodes: Option<u32>,
    ) -> Result<GuardClass, PlanError> {
        GuardClass::of_override(name, limit, self.table(), nodes, self.tally.clone())
    }

    pub(super) fn table(&self) -> &GuardTable {
        self.table.get_or_init(new_table)
    }

    /// Keys held now.
    pub(super) fn keys(&self) -> usize {
        self.table.get().map_or(0, GuardTable::len)
    }

    /// Evicts keys whose buckets are full again.
    pub(super) fn sweep(&self, now: Tick) {
        if let Some(table) = self.table.get() {
            table.sweep(now, SWEEP_SLOTS);
        }
    }
}
