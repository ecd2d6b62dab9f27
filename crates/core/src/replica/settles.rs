//! How long settles may wait for others to go with them.
//!
//! Promises: nobody is held up by it.
//!
//! Never: drops one.

use crate::ask::{Outcome, Settle};
use crate::batch::QueuedSettle;
use crate::limit::Algorithm;
use crate::time::{Micros, Span};

/// How many round trips a settle waits for others to go with it, where that delays nobody. Of 16
/// owners that share 100 permits a second each asks about as often, at 10 ms a round trip.
const ROUND_TRIPS: u64 = 16;

/// By when these settles must be sent, if nothing else is sent before. A settle carries the time of
/// its response, so a window frees at the right time if the settle is there a while before. What
/// frees at once (a concurrent call, a permit that comes back, a scope) does not wait.
pub(super) fn due<'a>(settles: impl Iterator<Item = &'a QueuedSettle>, round_trip: Span) -> Micros {
    let due = settles.map(|queued| {
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
            | Settle::Limited { .. }
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
        Outcome::Complete { .. } | Outcome::Finished { .. } | Outcome::Presumed { .. } => true,
        Outcome::Failed { .. }
        | Outcome::Unsent
        | Outcome::Unknown { .. }
        | Outcome::Alive { .. } => false,
    }
}
