//! The result of an offer, as a future.
//!
//! Promises: a permit that was granted but not taken, because whoever asked has gone, comes back
//! unsent, whenever it is that they go.
//!
//! Never: blocks.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::sync::oneshot;

use super::ProviderLedger;
use crate::offer::{OfferResult, OfferVerdicts, StoreLost, unsent_settles};

/// The verdicts of one offer, once they are there.
#[derive(Debug)]
#[must_use = "a dropped offer returns its permits"]
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
    /// A result that is already known.
    pub(crate) fn ready(ledger: ProviderLedger, result: OfferResult) -> PendingOffer {
        PendingOffer {
            ledger,
            state: State::Ready(result),
        }
    }

    /// A result that the store will send.
    pub(crate) fn waiting(
        ledger: ProviderLedger,
        result: oneshot::Receiver<OfferResult>,
    ) -> PendingOffer {
        PendingOffer {
            ledger,
            state: State::Waiting(result),
        }
    }
}

impl Future for PendingOffer {
    type Output = Result<OfferVerdicts, StoreLost>;

    /// Once: like every future, it is not to be polled after it was ready.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let result = match &mut self.state {
            State::Waiting(waiting) => match Pin::new(waiting).poll(context) {
                // The ledger thread or task has ended.
                Poll::Ready(result) => result.unwrap_or(Err(StoreLost)),
                Poll::Pending => return Poll::Pending,
            },
            State::Ready(result) => std::mem::replace(result, Err(StoreLost)),
            State::Taken => Err(StoreLost),
        };
        self.state = State::Taken;
        Poll::Ready(result.map(|(at, result)| {
            let by_id = result.into_iter().map(|(ask, verdict)| (ask.id, verdict));
            let verdicts = by_id.collect();
            OfferVerdicts { at, verdicts }
        }))
    }
}

impl Drop for PendingOffer {
    fn drop(&mut self) {
        let result = match std::mem::replace(&mut self.state, State::Taken) {
            State::Ready(result) => result,
            State::Waiting(mut waiting) => {
                // After this either the answer is here, or the store sees that nobody takes it.
                waiting.close();
                waiting.try_recv().unwrap_or(Err(StoreLost))
            }
            State::Taken => return,
        };
        for settle in result
            .into_iter()
            .flat_map(|(_, asks)| unsent_settles(asks))
        {
            self.ledger.settle(settle);
        }
    }
}
