//! How far the requests of one connection of the admin address have come.
//!
//! Promises: a connection is being served from the head of a request until the last byte of its response is
//! written.
//!
//! Never: counts a request twice.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::connection_table::Replaceable;

/// How far the requests of a connection have come.
#[derive(Debug, Default)]
pub(super) struct AdminProgress {
    begun: AtomicUsize,
    /// Those whose response was handed over to be written.
    ended: AtomicUsize,
    /// Those whose response is written.
    written: AtomicUsize,
}

/// A request that is being served, until its response is handed over to be written.
#[derive(Debug)]
pub(super) struct RunningRequest(Arc<AdminProgress>);

impl Replaceable for AdminProgress {
    fn makes_way(&self) -> Option<u8> {
        let is_idle = self.begun.load(Ordering::Acquire) == self.written.load(Ordering::Acquire);
        is_idle.then_some(0)
    }
}

impl AdminProgress {
    /// A request begins; it ends with the returned value.
    pub(super) fn begin(self: &Arc<AdminProgress>) -> RunningRequest {
        self.begun.fetch_add(1, Ordering::AcqRel);
        RunningRequest(self.clone())
    }

    /// The responses that have been handed over to be written.
    pub(super) fn ended(&self) -> usize {
        self.ended.load(Ordering::Acquire)
    }

    /// So many responses are written.
    pub(super) fn on_written(&self, responses: usize) {
        self.written.store(responses, Ordering::Release);
    }
}

impl Drop for RunningRequest {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_is_served_until_its_response_is_written() {
        let progress = Arc::new(AdminProgress::default());
        assert_eq!(progress.makes_way(), Some(0));
        let running = progress.begin();
        assert_eq!(progress.makes_way(), None);
        drop(running);
        assert_eq!(progress.makes_way(), None, "its response is being written");
        progress.on_written(progress.ended());
        assert_eq!(progress.makes_way(), Some(0));
    }
}
