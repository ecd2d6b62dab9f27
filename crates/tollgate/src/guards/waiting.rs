//! How a request waits for tokens of guards.
//!
//! Promises: a wait is as long as the buckets say. It ends early when the rules or `limiting` change, and
//! the request is decided again under the new ones.
//!
//! Never: reserves tokens for those who wait.

use std::borrow::Cow;

use tollgate_core::time::Span;

use super::deciding::at_most_as_one;
use super::{GuardAsk, GuardError, GuardVerdict, Guards};

impl Guards {
    /// Decides, and waits for tokens as long as `patience` allows. A wait that is known to be longer
    /// is not begun. Who waits is decided under the rules of the moment, as newcomers are.
    #[expect(
        clippy::disallowed_methods,
        reason = "a bucket knows exactly when it has the tokens; only a change of the rules ends the wait"
    )]
    pub async fn acquire(
        &self,
        asks: &[GuardAsk],
        patience: Span,
    ) -> Result<GuardVerdict, GuardError> {
        at_most_as_one(asks)?;
        let began = self.ledger.at();
        let mut was_queued = false;
        let mut waited_for = None;
        let mut asks = Cow::Borrowed(asks);
        // Before the first decision: no change between it and its wait is missed.
        let mut changed = self.changed.subscribe();
        loop {
            let mut verdict = self.try_once(&asks).await;
            // A decision itself takes microseconds, and that is no wait.
            if was_queued {
                (verdict.was_queued, verdict.waited) = (true, self.ledger.at().since(began));
            }
            let wait = verdict.denied.as_ref().and_then(|denied| denied.retry_in);
            match wait {
                Some(wait) if verdict.waited + wait <= patience => {
                    was_queued = true;
                    waited_for = verdict.denied.map(|denied| denied.class);
                    tokio::select! {
                        () = tokio::time::sleep(wait.into()) => {}
                        _ = changed.changed() => {}
                    }
                    asks = Cow::Owned(self.under_current_rules(&asks)?);
                }
                Some(_) | None => {
                    if let Some(class) = waited_for.filter(|_| verdict.denied.is_none()) {
                        class.tally().on_wait(verdict.waited);
                    }
                    self.on_decided(&asks, &mut verdict);
                    return Ok(verdict);
                }
            }
        }
    }

    /// The same asks after a reload. A guard that is gone is unknown to those who wait too; a limit that
    /// came with the request stays.
    fn under_current_rules(&self, asks: &[GuardAsk]) -> Result<Vec<GuardAsk>, GuardError> {
        let renewed = asks.iter().map(|ask| {
            let mut ask = ask.clone();
            if !ask.class.is_override() {
                ask.class = self.class(ask.guard())?;
            }
            Ok(ask)
        });
        renewed.collect()
    }
}
