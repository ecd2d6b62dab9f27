//! What a cell answers when it is asked: room, or how long until there is.
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

/// When nothing of ours is in the way and only the provider's word can help (it told a limit below
/// this very cost), ask again after this: often enough to notice, seldom enough not to spin.
pub(crate) const RETRY_INTERVAL: Span = Span::from_secs(1);

/// One question to one cell.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CellRequest {
    pub(crate) cost: u64,
    pub(crate) priority: Priority,
    /// N for this ask: the effective limit less what it must leave and what strangers took.
    pub(crate) room: u64,
    /// The effective limit itself, which sets the pace.
    pub(crate) limit: u64,
}

/// One grant in one cell.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grant {
    pub(crate) id: PermitId,
    pub(crate) cost: u64,
    pub(crate) limit: u64,
    pub(crate) at: Micros,
    /// The last instant at which the call may still reach the provider.
    pub(crate) arrives_by: Micros,
}

/// What became known about one granted call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settled {
    pub(crate) id: PermitId,
    /// Its true cost.
    pub(crate) cost: u64,
    /// When the provider had counted it, if it has at all.
    pub(crate) at: Micros,
    /// Whether that is proved: a refusal or a failure may not have been counted.
    pub(crate) proven: bool,
}
