//! Settles that wait for their batch.
//!
//! Promises: their ages grow by the time that they wait.
//!
//! Never: drops one.

use crate::ask::{Outcome, Settle};
use crate::time::Micros;

/// One settle and when it was told, on the local clock.
#[derive(Clone, Debug)]
pub(super) struct QueuedSettle {
    pub(super) settle: Settle,
    pub(super) at: Micros,
}

impl QueuedSettle {
    /// The settle as it is to be told at this time.
    pub(super) fn aged(&self, now: Micros) -> Settle {
        let waited = now.since(self.at);
        let mut settle = self.settle.clone();
        match &mut settle {
            Settle::Permit { outcome, .. } => match outcome {
                Outcome::Arrived { age, .. }
                | Outcome::Failed { age, .. }
                | Outcome::Finished { age }
                | Outcome::Complete { age }
                | Outcome::Unknown { age, .. } => *age = *age + waited,
                Outcome::Alive { extend_by } => *extend_by = *extend_by - waited,
                Outcome::Unsent => {}
            },
            Settle::Close { age, .. } | Settle::Failed { age, .. } => *age = *age + waited,
            Settle::Open { .. } | Settle::Succeeded { .. } | Settle::Inherit { .. } => {}
        }
        settle
    }
}
