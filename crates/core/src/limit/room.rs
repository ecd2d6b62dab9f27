//! What a cell is asked and what it returns: room, or how long until there is.
//!
//! Promises: plain data shared by all algorithms.
//!
//! Never: decides.

use crate::ask::{PermitId, Priority, WakeOn};
use crate::time::{Micros, Span};

/// No room now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CellWait {
    pub(crate) after: Span,
    pub(crate) on: WakeOn,
}

/// When no call of ours blocks and only the provider can help (it reported a limit below this very
/// cost), ask again after this: often enough to notice, rarely enough not to spin.
pub(crate) const RETRY_INTERVAL: Span = Span::from_secs(1);

/// One request to one cell.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CellRequest {
    pub(crate) cost: u64,
    pub(crate) priority: Priority,
    /// N for this ask: the current limit less the reserve and the outside use.
    pub(crate) room: u64,
    /// The current limit, which sets the pace.
    pub(crate) limit: u64,
}

/// One grant in one cell.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grant {
    pub(crate) id: PermitId,
    pub(crate) cost: u64,
    pub(crate) limit: u64,
    /// It was granted not before this. What happens at the provider happens later.
    pub(crate) at: Micros,
    /// It was granted not after this.
    pub(crate) latest: Micros,
    /// The last instant at which the call may still reach the provider.
    pub(crate) arrives_by: Micros,
}

/// The outcome of one granted call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settled {
    pub(crate) id: PermitId,
    /// Its actual cost.
    pub(crate) cost: u64,
    /// When the provider had counted it, if at all.
    pub(crate) at: Micros,
    /// Whether that is proven: a limited or failed call may not have been counted.
    pub(crate) proven: bool,
}
