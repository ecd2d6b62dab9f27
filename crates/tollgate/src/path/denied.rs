//! Why the permit stage has no permit.
//!
//! Promises: each reason says whether time, other limits or nothing at all would help.
//!
//! Never: the words for callers; `Error` has them.

use tollgate_core::ask::NeverReason;
use tollgate_core::gate::Blocker;
use tollgate_core::time::Span;

/// Why there is no permit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    /// The wait is known to pass the deadline.
    #[error("no permit in time; the next one is free in {}", .retry_in.in_words())]
    Rejected {
        /// Who would have to free.
        blocker: Blocker,
        /// How long until then.
        retry_in: Span,
    },
    /// The time ran out while waiting.
    #[error("no permit came free in time")]
    TimedOut {
        /// Who had not freed.
        blocker: Option<Blocker>,
    },
    /// Too many wait already.
    #[error("too many calls wait; raise queue.max or send fewer low-priority calls")]
    Full,
    /// No permit of this size can ever be had.
    #[error("the call costs more than its limit ever has")]
    Never(NeverReason),
    /// The store was lost, or is back, while the call waited: what is to be done must be asked anew.
    #[error("the ledger's store cannot be reached")]
    Lost,
    /// The limits have changed since it asked: ask again, under those that hold now and with the same
    /// seniority.
    #[error("the limits have changed; ask again")]
    Recalled,
    /// The task that hands out permits has ended with its runtime.
    #[error("the runtime that hands out permits has been shut down")]
    Closed,
}

impl Denied {
    /// More time would have helped, or may have.
    pub(crate) fn is_timeout(&self) -> bool {
        match self {
            Denied::Rejected { .. } | Denied::TimedOut { .. } => true,
            Denied::Full | Denied::Never(_) | Denied::Lost | Denied::Recalled | Denied::Closed => {
                false
            }
        }
    }
}
