//! What goes into a gate and what comes out of it.
//!
//! Promises: plain data.
//!
//! Never: decides.

use crate::ask::{Ask, CellId, Marks, NeverReason, ScopeId, Settle};
use crate::gate::{CallerId, OffPeak};
use crate::time::{Micros, Span};

/// 1 000 calls at 2 KiB of head each are 2 MiB per provider; at 1 call/s they are a wait of 17
/// minutes, longer than any deadline that people accept.
pub const WAITING_MAX: usize = 1_000;

/// How a gate works.
#[derive(Clone, Debug)]
pub struct GateSettings {
    /// How many may wait; one more is refused.
    pub waiting_max: usize,
    /// Who goes first.
    pub order: Order,
    /// When calls that can wait may go at all.
    pub off_peak: Option<OffPeak>,
}

impl Default for GateSettings {
    fn default() -> GateSettings {
        GateSettings {
            waiting_max: WAITING_MAX,
            order: Order::Priority,
            off_peak: None,
        }
    }
}

/// Who goes first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// Priority, then fair between callers, then arrival.
    #[default]
    Priority,
    /// Arrival only, for strict providers: nobody overtakes, whatever is asked.
    Fifo,
}

/// One call that wants a permit.
#[derive(Clone, Debug)]
pub struct Waiter {
    /// What it asks. Its id names the waiter.
    pub ask: Ask,
    /// For whom.
    pub caller: CallerId,
    /// The latest instant at which a permit is of use. `now` = go at once or be refused.
    pub deadline: Micros,
    /// Its place in the order of arrival if it stood here before; retries keep theirs.
    pub seniority: Option<u64>,
}

/// What is to be done.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Effects {
    /// Ask the ledger, all in one go and in this order. The answer comes to
    /// [`Gate::verdicts`](crate::gate::Gate::verdicts);
    /// until then nothing else is offered.
    pub offer: Vec<Ask>,
    /// Tell these waiters.
    pub resolve: Vec<Resolved>,
    /// Tell the ledger.
    pub settle: Vec<Settle>,
    /// Tell the ledger that nobody waits for these any more.
    pub abandoned: Vec<CellId>,
    /// Call [`Gate::tick`](crate::gate::Gate::tick) again at this instant.
    pub wake_at: Option<Micros>,
}

/// What became of a waiter.
#[derive(Clone, Debug, PartialEq)]
pub struct Resolved {
    /// What it had asked, at the priority it had in the end.
    pub ask: Ask,
    /// Its place in the order of arrival, for a retry.
    pub seniority: u64,
    /// What it gets.
    pub resolution: Resolution,
}

/// What a waiter gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resolution {
    /// A permit.
    Go {
        /// Counts at the grant, per term.
        marks: Marks,
    },
    /// The wait is known to pass its deadline.
    Rejected {
        /// Who would have to free.
        blocker: Blocker,
        /// How long until then.
        retry_in: Span,
    },
    /// Its time ran out while it waited.
    TimedOut {
        /// Who had not freed.
        blocker: Option<Blocker>,
    },
    /// No place to wait.
    Full,
    /// No permit of this size can ever be had.
    Never(NeverReason),
    /// What it asked for holds no more: ask again, with the seniority it had.
    Recalled,
}

/// What a waiter waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Blocker {
    /// A limit.
    Cell(CellId),
    /// A cool-down, a sleep, a probe.
    Scope(ScopeId),
    /// The off-peak hours.
    OffPeak,
    /// Whoever is first, in [`Order::Fifo`].
    Front,
}
