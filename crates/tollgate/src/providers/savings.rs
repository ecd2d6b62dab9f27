//! What a provider's calls were spared: counts of answers that cost nothing, since the start.
//!
//! Promises: every call is counted by where its answer came from; adding costs one instruction.
//!
//! Never: decides anything, or goes back.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::path::Source;

/// Counts of calls, since the process started.
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

/// How many calls cost nothing, and why, since the process started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Savings {
    /// Answered by what was kept, while it was good.
    pub hits: u64,
    /// Answered by what was kept, past its time.
    pub stale: u64,
    /// Answered by what was kept, after the provider said that it has not changed.
    pub revalidated: u64,
    /// Nothing that was kept would do, and the provider answered.
    pub misses: u64,
    /// Answers that were not kept.
    pub not_stored: u64,
    /// Waited for an answer that another call had asked for.
    pub joined: u64,
    /// Given an answer that another call had asked for at the same time.
    pub shared: u64,
    /// Waited for a part of another call's larger answer.
    pub joined_merge: u64,
    /// Given a part of another call's larger answer.
    pub merged: u64,
}

impl SavingsCounters {
    /// A call was answered by what was kept.
    pub(crate) fn on_cached(&self, source: Source, is_renewed: bool) {
        let count = match source {
            _ if is_renewed => &self.revalidated,
            Source::Stale => &self.stale,
            Source::Cache | Source::Upstream | Source::Shared | Source::Merged => &self.hits,
        };
        add(count, true);
    }

    /// A call that looked was answered by the provider.
    pub(crate) fn on_miss(&self) {
        add(&self.misses, true);
    }

    /// An answer was not kept.
    pub(crate) fn on_not_stored(&self) {
        add(&self.not_stored, true);
    }

    /// A call waits for what another has asked.
    pub(crate) fn on_joined(&self) {
        add(&self.joined, true);
    }

    /// A call was given a shared answer, if so.
    pub(crate) fn on_shared(&self, is_so: bool) {
        add(&self.shared, is_so);
    }

    /// A call rides along with another.
    pub(crate) fn on_joined_merge(&self) {
        add(&self.joined_merge, true);
    }

    /// A call was given a part of a larger answer, if so.
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
