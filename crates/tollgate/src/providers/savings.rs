//! Counts of calls that cost no permit, since the start.
//!
//! Promises: counts every call by the source of its response; counting costs one instruction.
//!
//! Never: decides anything, or decreases.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::reply::Source;

/// Counters of calls, since the process started.
#[derive(Debug, Default)]
pub(crate) struct SavingsCounters {
    hits: AtomicU64,
    stale: AtomicU64,
    revalidated: AtomicU64,
    misses: AtomicU64,
    not_stored: AtomicU64,
    joined: AtomicU64,
    shared: AtomicU64,
    joined_merge: AtomicU64,
    merged: AtomicU64,
}

/// The number of calls that cost no permit, by reason, since the process started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Savings {
    /// Served from the cache while fresh.
    pub hits: u64,
    /// Served from the cache when stale.
    pub stale: u64,
    /// Served from the cache after the provider confirmed that nothing changed.
    pub revalidated: u64,
    /// Not in the cache; served by the provider.
    pub misses: u64,
    /// Responses that were not stored.
    pub not_stored: u64,
    /// Waited for a response that another call had requested.
    pub joined: u64,
    /// Received a response that another call had requested at the same time.
    pub shared: u64,
    /// Waited for a part of another call's larger response.
    pub joined_merge: u64,
    /// Received a part of another call's larger response.
    pub merged: u64,
}

impl SavingsCounters {
    /// The cache served a call.
    pub(crate) fn on_cached(&self, source: Source, is_renewed: bool) {
        let count = match source {
            _ if is_renewed => &self.revalidated,
            Source::Stale => &self.stale,
            Source::Cache | Source::Upstream | Source::Shared | Source::Merged => &self.hits,
        };
        add(count, true);
    }

    /// The provider served a call that was not in the cache.
    pub(crate) fn on_miss(&self) {
        add(&self.misses, true);
    }

    /// A response was not stored.
    pub(crate) fn on_not_stored(&self) {
        add(&self.not_stored, true);
    }

    /// A call joined another call's flight.
    pub(crate) fn on_joined(&self) {
        add(&self.joined, true);
    }

    /// A call received a shared response, if so.
    pub(crate) fn on_shared(&self, is_so: bool) {
        add(&self.shared, is_so);
    }

    /// A call joined another call's merge.
    pub(crate) fn on_joined_merge(&self) {
        add(&self.joined_merge, true);
    }

    /// A call received a part of a larger response, if so.
    pub(crate) fn on_merged(&self, is_so: bool) {
        add(&self.merged, is_so);
    }

    pub(crate) fn snapshot(&self) -> Savings {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Savings {
            hits: read(&self.hits),
            stale: read(&self.stale),
            revalidated: read(&self.revalidated),
            misses: read(&self.misses),
            not_stored: read(&self.not_stored),
            joined: read(&self.joined),
            shared: read(&self.shared),
            joined_merge: read(&self.joined_merge),
            merged: read(&self.merged),
        }
    }
}

fn add(count: &AtomicU64, is_so: bool) {
    count.fetch_add(u64::from(is_so), Ordering::Relaxed);
}
