//! Input and output types of a gate.
//!
//! Promises: plain data.
//!
//! Never: decides.

use crate::ask::{Ask, CellId, Marks, NeverReason, Priority, ScopeId, Scopes, Settle, Terms};
use crate::gate::{BATCH_FIRST, CallerId, OffPeak};
use crate::time::{Micros, Span};

/// 1 000 calls at 2 KiB of head each are 2 MiB per provider; at 1 call/s they are a wait of 17
/// minutes, longer than any deadline that people accept.
pub const WAITING_MAX: usize = 1_000;

/// The settings of a gate.
#[derive(Clone, Debug)]
pub struct GateSettings {
    /// How many calls may wait because something blocks them; one more is rejected.
    pub waiting_max: usize,
    /// The order of the queue.
    pub order: Order,
    /// When deferrable calls may go.
    pub off_peak: Option<OffPeak>,
    /// How many asks a queue offers when it opens; the number doubles while all are granted. See
    /// [`BATCH_FAR_AWAY`](super::BATCH_FAR_AWAY).
    pub batch_first: usize,
}

impl Default for GateSettings {
    fn default() -> GateSettings {
        GateSettings {
            waiting_max: WAITING_MAX,
            order: Order::Priority,
            off_peak: None,
            batch_first: BATCH_FIRST,
        }
    }
}

/// The order of the queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// Priority, then fair between callers, then arrival.
    #[default]
    Priority,
    /// Arrival only, for strict providers: no call overtakes another.
    Fifo,
}

/// One call that needs a permit.
#[derive(Clone, Debug)]
pub struct QueuedCall {
    /// Its ask. The id of the ask identifies the waiter.
    pub ask: Ask,
    /// The caller.
    pub caller: CallerId,
    /// The latest instant at which a permit is useful. `now` = go at once or be rejected.
    pub deadline: Micros,
    /// Its place in the order of arrival if it waited here before; retries keep theirs.
    pub seniority: Option<u64>,
}

/// Waiting calls of one caller and priority that need the same.
#[derive(Clone, Debug, PartialEq)]
pub struct WaitingGroup {
    /// The caller.
    pub caller: CallerId,
    /// How urgent they are.
    pub priority: Priority,
    /// What the caller gets in any case, in thousandths.
    pub at_least_permille: u16,
    /// The limits; what each call costs, from the first of them.
    pub terms: Terms,
    /// The scopes.
    pub scopes: Scopes,
    /// How many calls.
    pub calls: u64,
}

/// What to do.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Effects {
    /// Offer these to the ledger, in one batch and in this order. The verdicts go to
    /// [`Gate::verdicts`](crate::gate::Gate::verdicts); until then nothing else is offered.
    pub offer: Vec<Ask>,
    /// Resolve these waiters.
    pub resolve: Vec<Resolved>,
    /// Send these settles to the ledger.
    pub settle: Vec<Settle>,
    /// Report to the ledger that nobody waits for these cells any more.
    pub abandoned: Vec<CellId>,
    /// Call [`Gate::tick`](crate::gate::Gate::tick) again at this instant.
    pub wake_at: Option<Micros>,
}

/// The end of a wait.
#[derive(Clone, Debug, PartialEq)]
pub struct Resolved {
    /// Its ask, at its final priority.
    pub ask: Ask,
    /// Its place in the order of arrival, for a retry.
    pub seniority: u64,
    /// The last cell, scope or time that it waited for; `None`: it has not had to wait.
    pub waited_for: Option<Blocker>,
    /// The result.
    pub resolution: Resolution,
}

/// The result of a wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resolution {
    /// A permit.
    Go {
        /// Counts at the grant, per term.
        marks: Marks,
    },
    /// Rejected: the wait would pass its deadline.
    Rejected {
        /// The cell or scope that blocks it.
        blocker: Blocker,
        /// How long until it opens.
        retry_in: Span,
    },
    /// Its deadline passed while it waited.
    TimedOut {
        /// What blocked it.
        blocker: Option<Blocker>,
    },
    /// The queue is full.
    Full,
    /// No permit of this cost can ever be granted.
    Never(NeverReason),
    /// Its limits were replaced: ask again with the same seniority.
    Recalled,
}

impl Resolution {
    /// As others know it.
    pub(super) fn named(self) -> Resolution {
        match self {
            Resolution::Rejected { blocker, retry_in } => Resolution::Rejected {
                blocker: blocker.named(),
                retry_in,
            },
            Resolution::TimedOut { blocker } => Resolution::TimedOut {
                blocker: blocker.map(Blocker::named),
            },
            Resolution::Go { .. }
            | Resolution::Full
            | Resolution::Never(_)
            | Resolution::Recalled => self,
        }
    }
}

/// What blocks a waiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Blocker {
    /// A limit.
    Cell(CellId),
    /// A cool-down, a sleep, a probe.
    Scope(ScopeId),
    /// The off-peak hours.
    OffPeak,
    /// The first waiter, in [`Order::Fifo`].
    Front,
    /// A limit, for waiters that it has no time for unless a permit is returned. Only inside the
    /// gate: everybody else reads it as [`Blocker::Cell`].
    Release(CellId),
}

impl Blocker {
    /// As others know it.
    pub(super) fn named(self) -> Blocker {
        match self {
            Blocker::Release(cell) => Blocker::Cell(cell),
            Blocker::Cell(_) | Blocker::Scope(_) | Blocker::OffPeak | Blocker::Front => self,
        }
    }
}
