//! The result of an offer.
//!
//! Promises: plain data. Never: a permit that is granted without its ask, by which it is given back.

use tollgate_core::ask::{Ask, PermitId, Settle, Verdict};
use tollgate_core::time::Micros;

/// The store cannot be reached; nothing is known of the offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the ledger's store cannot be reached; `on_store_loss` says what happens to calls meanwhile"
)]
pub struct StoreLost;

/// The store cannot be reached, and has not been for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreLoss {
    /// Since when, on the ledger's clock.
    pub since: Micros,
    /// It does not come back by itself: only a restart helps.
    pub is_final: bool,
}

/// What was decided of an offer.
#[derive(Clone, Debug, PartialEq)]
pub struct OfferVerdicts {
    /// When, on the ledger's clock: a permit is as old as this, however late it is handed out.
    pub at: Micros,
    /// The verdict of each ask, in their order.
    pub verdicts: Vec<(PermitId, Verdict)>,
}

/// What a store says to an offer, and when it decided: the asks as they were given, each with its
/// verdict.
pub(crate) type OfferResult = Result<(Micros, Vec<(Ask, Verdict)>), StoreLost>;

/// The permits of a result that nobody takes, as settles.
pub(crate) fn unsent_settles(decided: Vec<(Ask, Verdict)>) -> impl Iterator<Item = Settle> {
    let granted = |(ask, verdict): (Ask, Verdict)| match verdict {
        Verdict::Go { .. } => Some(ask.into_unsent()),
        Verdict::Wait { .. } | Verdict::Never(_) => None,
    };
    decided.into_iter().filter_map(granted)
}
