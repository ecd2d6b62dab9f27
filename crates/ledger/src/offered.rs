//! The answer to an offer, on its way.
//!
//! Promises: a permit that was granted but not taken, because whoever asked has gone, comes back
//! unsent.
//!
//! Never: blocks.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use tollgate_core::ask::{Ask, Outcome, PermitId, Settle, Verdict};

use crate::Ledger;

/// The store cannot be reached; nothing is known of the offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the ledger's store cannot be reached; `on_store_loss` says what happens to calls meanwhile"
)]
pub struct Lost;

/// The verdicts of one offer, once they are there.
#[derive(Debug)]
#[must_use = "a dropped answer gives its permits back"]
pub struct Offered {
    ledger: Ledger,
    asks: Vec<Ask>,
    verdicts: Option<Vec<Verdict>>,
}

impl Offered {
    /// An answer that is there already.
    pub(crate) fn ready(ledger: Ledger, asks: Vec<Ask>, verdicts: Vec<Verdict>) -> Offered {
        Offered {
            ledger,
            asks,
            verdicts: Some(verdicts),
        }
    }
}

impl Future for Offered {
    type Output = Result<Vec<(PermitId, Verdict)>, Lost>;

    /// Once: like every future, it is not to be polled after it was ready.
    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
        let verdicts = self.verdicts.take().unwrap_or_default();
        Poll::Ready(Ok(self
            .asks
            .iter()
            .map(|ask| ask.id)
            .zip(verdicts)
            .collect()))
    }
}

impl Drop for Offered {
    fn drop(&mut self) {
        let Some(verdicts) = self.verdicts.take() else {
            return;
        };
        let asks = std::mem::take(&mut self.asks);
        for (ask, verdict) in asks.into_iter().zip(verdicts) {
            if let Verdict::Go { .. } = verdict {
                let Ask {
                    id, terms, scopes, ..
                } = ask;
                self.ledger.settle(Settle::Permit {
                    id,
                    terms,
                    scopes,
                    outcome: Outcome::Unsent,
                });
            }
        }
    }
}
