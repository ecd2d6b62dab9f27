//! Why the permit stage grants no permit.
//!
//! Promises: each reason tells whether time, other limits or nothing at all would help.
//!
//! Never: has texts for callers; `Error` has them.

use tollgate_core::ask::NeverReason;
use tollgate_core::gate::Blocker;
use tollgate_core::time::Span;

/// Why there is no permit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    /// The wait is known to exceed the deadline.
    #[error("no permit in time; the next one is free in {}", .retry_in.in_words())]
    Rejected {
        /// The limit or scope that blocks.
        blocker: Blocker,
        /// How long until it no longer does.
        retry_in: Span,
    },
    /// The time ran out while waiting.
    #[error("no permit came free in time")]
    TimedOut {
        /// The limit or scope that blocked.
        blocker: Option<Blocker>,
    },
    /// The queue is full.
    #[error("too many calls wait; raise queue.max or send fewer low-priority calls")]
    Full,
    /// No permit of this size can ever be granted.
    #[error("the call costs more than its limit can ever grant")]
    Never(NeverReason),
    /// The store was lost or recovered while the call waited: the call must ask again.
    #[error("the ledger's store cannot be reached")]
    Lost,
    /// The limits have changed since the request: ask again, under the current limits and with the
    /// same seniority.
    #[error("the limits have changed; ask again")]
    Recalled,
    /// The task that hands out permits has ended with its runtime.
    #[error("the runtime that hands out permits has been shut down")]
    Closed,
}

impl Denied {
    /// More time would have helped, or might have.
    pub(crate) fn is_timeout(&self) -> bool {
        match self {
            Denied::Rejected { .. } | Denied::TimedOut { .. } => true,
            Denied::Full | Denied::Never(_) | Denied::Lost | Denied::Recalled | Denied::Closed => {
                false
            }
        }
    }
}
