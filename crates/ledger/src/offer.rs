//! The answer to an offer, on its way.
//!
//! Promises: a permit that was granted but not taken, because whoever asked has gone, comes back
//! unsent, whenever it is that they go.
//!
//! Never: blocks.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::sync::oneshot;
use tollgate_core::ask::{Ask, Outcome, PermitId, Settle, Verdict};
use tollgate_core::time::Micros;

use crate::ProviderLedger;

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

/// The verdicts of one offer, once they are there.
#[derive(Debug)]
#[must_use = "a dropped answer gives its permits back"]
pub struct PendingOffer {
    ledger: ProviderLedger,
    state: State,
}

#[derive(Debug)]
enum State {
    Ready(OfferResult),
    Waiting(oneshot::Receiver<OfferResult>),
    Taken,
}

impl PendingOffer {
    /// An answer that is there already.
    pub(crate) fn ready(ledger: ProviderLedger, answer: OfferResult) -> PendingOffer {
        PendingOffer {
            ledger,
            state: State::Ready(answer),
        }
    }

    /// An answer that a store will give.
    pub(crate) fn waiting(
        ledger: ProviderLedger,
        answer: oneshot::Receiver<OfferResult>,
    ) -> PendingOffer {
        PendingOffer {
            ledger,
            state: State::Waiting(answer),
        }
    }
}

impl Future for PendingOffer {
    type Output = Result<OfferVerdicts, StoreLost>;

    /// Once: like every future, it is not to be polled after it was ready.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let answer = match &mut self.state {
            State::Waiting(waiting) => match Pin::new(waiting).poll(context) {
                // Whoever would have answered has gone.
                Poll::Ready(answer) => answer.unwrap_or(Err(StoreLost)),
                Poll::Pending => return Poll::Pending,
            },
            State::Ready(answer) => std::mem::replace(answer, Err(StoreLost)),
            State::Taken => Err(StoreLost),
        };
        self.state = State::Taken;
        Poll::Ready(answer.map(|(at, answer)| {
            let by_id = answer.into_iter().map(|(ask, verdict)| (ask.id, verdict));
            let verdicts = by_id.collect();
            OfferVerdicts { at, verdicts }
        }))
    }
}

impl Drop for PendingOffer {
    fn drop(&mut self) {
        let answer = match std::mem::replace(&mut self.state, State::Taken) {
            State::Ready(answer) => answer,
            State::Waiting(mut waiting) => {
                // After this either the answer is here, or the store sees that nobody takes it.
                waiting.close();
                waiting.try_recv().unwrap_or(Err(StoreLost))
            }
            State::Taken => return,
        };
        for settle in answer
            .into_iter()
            .flat_map(|(_, asks)| unsent_settles(asks))
        {
            self.ledger.settle(settle);
        }
    }
}

/// The permits of an answer that nobody takes.
pub(crate) fn unsent_settles(answer: Vec<(Ask, Verdict)>) -> impl Iterator<Item = Settle> {
    let granted = |(ask, verdict)| match verdict {
        Verdict::Go { .. } => Some(ask),
        Verdict::Wait { .. } | Verdict::Never(_) => None,
    };
    answer.into_iter().filter_map(granted).map(|ask: Ask| {
        let Ask {
            id, terms, scopes, ..
        } = ask;
        Settle::Permit {
            id,
            terms,
            scopes,
            outcome: Outcome::Unsent,
        }
    })
}
