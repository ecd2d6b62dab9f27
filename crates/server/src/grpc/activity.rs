//! The calls of one connection of the gRPC address.
//!
//! Promises: a connection that asks nothing makes way for a new one: first those whose client never proved
//! who it is, then any. A health watch is no call that is being served.
//!
//! Never: counts a call twice.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::connection_table::Replaceable;

/// The calls of a connection.
#[derive(Debug, Default)]
pub(super) struct Activity {
    begun: AtomicUsize,
    running: AtomicUsize,
    /// A call was allowed to ask for a decision.
    is_known: AtomicBool,
}

/// A call that is being served.
#[derive(Debug)]
pub(super) struct RunningCall(Arc<Activity>);

impl Replaceable for Activity {
    fn makes_way(&self) -> Option<u8> {
        let is_known = self.is_known.load(Ordering::Relaxed);
        self.is_idle().then_some(u8::from(is_known))
    }
}

impl Activity {
    /// A call begins; it ends with the returned value.
    pub(super) fn begin(self: &Arc<Activity>) -> RunningCall {
        self.begun.fetch_add(1, Ordering::Relaxed);
        self.running.fetch_add(1, Ordering::Relaxed);
        RunningCall(self.clone())
    }

    /// Its client has proved who it is.
    pub(super) fn on_known(&self) {
        self.is_known.store(true, Ordering::Relaxed);
    }

    /// Calls so far.
    pub(super) fn begun(&self) -> usize {
        self.begun.load(Ordering::Relaxed)
    }

    /// No call is being served.
    pub(super) fn is_idle(&self) -> bool {
        self.running.load(Ordering::Relaxed) == 0
    }
}

impl RunningCall {
    /// The calls that it is one of.
    pub(super) fn activity(&self) -> &Activity {
        &self.0
    }
}

impl Drop for RunningCall {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strangers_make_way_first_and_a_running_call_never() {
        let activity = Arc::new(Activity::default());
        assert_eq!(activity.makes_way(), Some(0));
        activity.on_known();
        assert_eq!(activity.makes_way(), Some(1));
        let running = activity.begin();
        assert_eq!(activity.makes_way(), None);
        drop(running);
        assert_eq!((activity.makes_way(), activity.begun()), (Some(1), 1));
    }
}
