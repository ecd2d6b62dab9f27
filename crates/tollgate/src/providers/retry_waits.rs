//! Calls between two attempts: they are in no queue, but they wait.
//!
//! Promises: a call counts from the beginning of its wait until the end, or until it is dropped.
//!
//! Never: limits them. The retry budget and the calls' deadlines do.

use std::sync::atomic::{AtomicUsize, Ordering};

use tollgate_core::ask::Priority;

/// The number of calls that wait for their next attempt, by priority.
#[derive(Debug, Default)]
pub(crate) struct RetryWaits {
    counts: [AtomicUsize; 3],
}

/// One waiting call; dropped, it no longer waits.
#[derive(Debug)]
pub(crate) struct RetryWait<'a>(&'a AtomicUsize);

impl RetryWaits {
    /// A call begins to wait.
    pub(crate) fn enter(&self, priority: Priority) -> RetryWait<'_> {
        let count = &self.counts[priority as usize];
        count.fetch_add(1, Ordering::Relaxed);
        RetryWait(count)
    }

    /// The number of waiting calls of this priority.
    pub(crate) fn count(&self, priority: Priority) -> usize {
        self.counts[priority as usize].load(Ordering::Relaxed)
    }
}

impl Drop for RetryWait<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
