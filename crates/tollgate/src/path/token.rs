//! A token for a call: the current one, or the next one that a login fetches.
//!
//! Promises: one login at a time per credential; it continues if the call that started it is gone.
//! After a failed login, calls wait for the next one as long as their time allows, and are rejected
//! at once where waiting does not help.
//!
//! Never: decides when a token is renewed; `Renewal` in `core` does.

use std::sync::Arc;

use tollgate_core::health::Fault;
use tollgate_core::time::Span;

use super::login;
use super::subject::Subject;
use crate::Error;
use crate::credentials::{Account, HeldToken, LoginError, NewToken, TokenSlot, TokenStatus};
use crate::error::{NoToken, Stage};
use crate::providers::{ActiveProvider, CompiledPolicy};
use crate::timer::{self, within};

/// A token for this call: the current one, or the next one.
pub(crate) async fn acquire(
    subject: &Subject,
    policy: &CompiledPolicy,
    account: &Arc<Account>,
) -> Result<HeldToken, Error> {
    let live = &subject.provider;
    let slot = live.tokens.slot(&policy.accounts, account);
    let mut failures = 0;
    loop {
        let login = slot.login(); // before the status: an end in between is not missed
        let pause = match slot.status(live.ledger.at()) {
            TokenStatus::Use(token, generation) => return Ok(slot.hold(token, generation)),
            TokenStatus::UseAndFetch(token, generation) => {
                tokio::spawn(renew_in_background(live.clone(), slot.clone()));
                return Ok(slot.hold(token, generation));
            }
            TokenStatus::Fetch => {
                // Not part of this call: others wait for it too, and this call may be given up.
                tokio::spawn(renew_in_background(live.clone(), slot.clone()));
                None
            }
            TokenStatus::Wait => None,
            TokenStatus::BackOff(remaining, error) => {
                failures += 1;
                let is_tired = failures > policy.retry.retries.of(subject.priority);
                let is_late = remaining > subject.patience(policy.provider.queue.timeout);
                if is_tired || is_late || !is_temporary(&error) {
                    return Err(with_retry_in(error, remaining));
                }
                Some(remaining)
            }
        };
        let changed = async {
            tokio::select! {
                () = login.finished() => {}
                () = timer::sleep(pause) => {}
            }
        };
        let patience = subject.patience(policy.provider.queue.timeout);
        within(Some(patience), changed)
            .await
            .map_err(|_| Error::DeadlineExceeded {
                provider: live.name.clone(),
                at: Stage::Waiting(None),
            })?;
    }
}

/// Is it worth waiting for the next login?
fn is_temporary(error: &Error) -> bool {
    matches!(error, Error::NoCredential { why, .. } if !why.is_permanent())
}

fn with_retry_in(error: Error, remaining: Span) -> Error {
    match error {
        Error::NoCredential { provider, why, .. } => Error::NoCredential {
            provider,
            why,
            retry_in: Some(remaining),
        },
        other => other,
    }
}

/// Fetches a token, and its successors as long as it is used. Between two logins it holds no strong
/// reference: it ends when the provider is gone or another task logs in.
async fn renew_in_background(live: Arc<ActiveProvider>, slot: Arc<TokenSlot>) {
    let (weak_live, weak_slot) = (Arc::downgrade(&live), Arc::downgrade(&slot));
    let mut due = Some((live, slot));
    while let Some((live, slot)) = due.take() {
        let Some(pause) = fetch(&live, &slot).await else {
            return;
        };
        let login = slot.login();
        drop((live, slot));
        tokio::select! {
            () = timer::sleep(Some(pause)) => {}
            () = login.finished() => return, // another task has logged in
        }
        due = weak_live
            .upgrade()
            .zip(weak_slot.upgrade())
            .filter(|(live, slot)| slot.is_due(live.ledger.at()));
    }
}

/// One login. Returns how long its token serves before the next login is due, if there is one.
async fn fetch(live: &Arc<ActiveProvider>, slot: &TokenSlot) -> Option<Span> {
    let mut busy = LoginGuard {
        provider: live,
        slot,
        is_over: false,
    };
    let fetched = login::login(live, &slot.account, slot.memory()).await;
    busy.is_over = true;
    settle(live, slot, fetched)
}

/// A login in progress. Dropped before its end, it has failed: nobody waits for ever.
struct LoginGuard<'a> {
    provider: &'a ActiveProvider,
    slot: &'a TokenSlot,
    is_over: bool,
}

impl Drop for LoginGuard<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            let failed =
                LoginError::new(&self.provider.name, NoToken::NoResponse(Fault::Reset), None);
            settle(self.provider, self.slot, Err(failed));
        }
    }
}

fn settle(
    live: &ActiveProvider,
    slot: &TokenSlot,
    fetched: Result<NewToken, LoginError>,
) -> Option<Span> {
    let (now, dice) = (live.ledger.at(), live.health.roll_dice());
    let (pause, fact) = slot.settle(&live.name, fetched, now, dice);
    live.events.emit(fact);
    pause
}
