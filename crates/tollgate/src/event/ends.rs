//! The ends of the last calls, for whoever reads them now and then.
//!
//! They are kept by value, in a ring that everybody shares: the end of a call costs no memory of its own and wakes nobody.
//!
//! Promises: a reader gets every end once, oldest first, and learns how many it was too slow for. Bounded by
//! [`ENDS_BACKLOG_MAX`]; empty while nobody listens.
//!
//! Never: waits, or holds its lock for longer than a copy.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use super::CallEnd;

/// How many ends of calls a subscriber to ends may be behind: what one page shows. Half a kilobyte each and their
/// paths: at most 1 MB.
pub const ENDS_BACKLOG_MAX: usize = 1_024;

/// The ring of a bus.
#[derive(Debug, Default)]
pub(super) struct EndRing {
    /// Read for each call, so that nothing is kept for nobody.
    subscribers: AtomicUsize,
    state: Mutex<RingState>,
}

#[derive(Debug, Default)]
struct RingState {
    /// Oldest first.
    ends: VecDeque<CallEnd>,
    /// How many there were so far.
    count: u64,
}

/// A subscription to the ends of calls. Dropped, it receives nothing more.
#[derive(Debug)]
pub struct EndSubscription {
    ring: Arc<EndRing>,
    /// The count up to which it has read.
    seen: u64,
}

impl EndRing {
    pub(super) fn subscribe(self: &Arc<EndRing>) -> EndSubscription {
        self.subscribers.fetch_add(1, Ordering::Relaxed);
        EndSubscription {
            seen: self.state.lock().count,
            ring: self.clone(),
        }
    }

    #[inline]
    pub(super) fn is_wanted(&self) -> bool {
        self.subscribers.load(Ordering::Relaxed) > 0
    }

    /// A call has ended.
    pub(super) fn push(&self, end: CallEnd) {
        let mut state = self.state.lock();
        let is_full = state.ends.len() >= ENDS_BACKLOG_MAX;
        let oldest = is_full.then(|| state.ends.pop_front());
        state.ends.push_back(end);
        state.count += 1;
        drop(state);
        drop(oldest); // without the lock
    }
}

impl EndSubscription {
    /// The ends since the last time, oldest first, and how many more there were that are lost.
    pub fn read(&mut self) -> (Vec<CallEnd>, u64) {
        let state = self.ring.state.lock();
        let first = state.count - state.ends.len() as u64;
        let lost = first.saturating_sub(self.seen);
        let known = self.seen.saturating_sub(first);
        let known = usize::try_from(known).unwrap_or(usize::MAX);
        self.seen = state.count;
        (state.ends.iter().skip(known).cloned().collect(), lost)
    }
}

impl Drop for EndSubscription {
    fn drop(&mut self) {
        if self.ring.subscribers.fetch_sub(1, Ordering::Relaxed) == 1 {
            // Whoever subscribes next starts with what comes then.
            self.ring.state.lock().ends = VecDeque::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{CallDecision, CallResult, Steps};
    use tollgate_core::time::{Span, Wall};

    fn end(number: u64) -> CallEnd {
        CallEnd {
            id: number.to_string().into(),
            at: Wall(number),
            request: None,
            provider: None,
            entity: None,
            caller: None,
            priority: None,
            decision: CallDecision::Allow,
            source: "upstream",
            result: CallResult::Unused,
            limit: None,
            waited: Span::ZERO,
            attempts: 1,
            steps: Steps::default(),
        }
    }

    fn ids((ends, lost): (Vec<CallEnd>, u64)) -> (Vec<u64>, u64) {
        (ends.iter().map(|end| end.at.0).collect(), lost)
    }

    #[test]
    fn a_reader_gets_each_end_once_and_learns_what_it_lost() {
        let ring = Arc::new(EndRing::default());
        assert!(!ring.is_wanted());
        let mut early = ring.subscribe();
        (0..3).for_each(|number| ring.push(end(number)));
        let mut late = ring.subscribe();
        assert_eq!(ids(early.read()), (vec![0, 1, 2], 0));
        assert_eq!(ids(early.read()), (vec![], 0));
        let backlog = ENDS_BACKLOG_MAX as u64;
        (3..3 + backlog + 5).for_each(|number| ring.push(end(number)));
        for reader in [&mut early, &mut late] {
            let (ends, lost) = ids(reader.read());
            assert_eq!((ends.len(), lost, ends[0]), (ENDS_BACKLOG_MAX, 5, 8));
        }
    }

    #[test]
    fn nothing_is_kept_for_nobody() {
        let ring = Arc::new(EndRing::default());
        let one = ring.subscribe();
        ring.push(end(1));
        drop(one);
        assert!(!ring.is_wanted() && ring.state.lock().ends.is_empty());
        let mut next = ring.subscribe();
        ring.push(end(2));
        assert_eq!(ids(next.read()), (vec![2], 0));
    }
}
