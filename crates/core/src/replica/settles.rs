//! Settles that wait for their batch.
//!
//! Promises: their ages grow by the time that they wait.
//!
//! Never: drops one.

use crate::ask::{Outcome, Settle};
use crate::limit::Algorithm;
use crate::time::{Micros, Span};

/// How many round trips a settle waits for others to go with it, where that delays nobody.
const ROUND_TRIPS: u64 = 4;

/// One settle and when it was told, on the local clock.
#[derive(Clone, Debug)]
pub(super) struct QueuedSettle {
    pub(super) settle: Settle,
    pub(super) at: Micros,
}

/// By when these settles must be sent, if nothing else is sent before. A settle carries the time of
/// its response, so a window frees at the right time if the settle is there a while before. What
/// frees at once (a concurrent call, a permit that comes back, a scope) does not wait.
pub(super) fn due(settles: &[QueuedSettle], round_trip: Span) -> Micros {
    let due = settles.iter().map(|queued| {
        let wait = match &queued.settle {
            Settle::Permit { terms, outcome, .. } if can_wait(outcome) => {
                let waits = terms.iter().map(|term| match term.rule.algorithm() {
                    Algorithm::InFlight => 0,
                    Algorithm::Sliding { .. }
                    | Algorithm::Bucket { .. }
                    | Algorithm::Fixed { .. }
                    | Algorithm::Calendar(_)
                    | Algorithm::Paced { .. } => term.rule.period().0 / 10,
                });
                let usual = round_trip.scale_up(ROUND_TRIPS, 1).0;
                Span(waits.min().unwrap_or(0).min(usual))
            }
            Settle::Permit { .. }
            | Settle::Close { .. }
            | Settle::Inherit { .. }
            | Settle::Open { .. }
            | Settle::Failed { .. }
            | Settle::Succeeded { .. } => Span::ZERO,
        };
        queued.at + wait
    });
    due.min().unwrap_or(Micros(0))
}

fn can_wait(outcome: &Outcome) -> bool {
    match outcome {
        Outcome::Arrived { limited, .. } => !limited,
        Outcome::Complete { .. } | Outcome::Finished { .. } => true,
        Outcome::Failed { .. }
        | Outcome::Unsent
        | Outcome::Unknown { .. }
        | Outcome::Alive { .. } => false,
    }
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
