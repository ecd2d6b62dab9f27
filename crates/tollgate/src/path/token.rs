//! The tokens of a provider: fetched by a login, shared by all its calls, renewed in time.
//!
//! `Renewal` in `core` decides; this module drives it.
//!
//! Promises: one login at a time per credential, however many calls wait for it; it continues if
//! the call that started it is gone. A token serves while its successor is fetched. After a failed
//! login, calls wait for the next one as long as their time allows, and are rejected at once where
//! waiting does not help. A reload that changes the credential starts anew; any other keeps the
//! token.
//!
//! Never: writes a token anywhere. Tokens live in memory and are wiped when dropped.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::watch;
use tollgate_config::Secret;
use tollgate_core::backoff::Dice;
use tollgate_core::health::Fault;
use tollgate_core::renewal::{Renewal, RenewalError, TokenAction};
use tollgate_core::time::{Micros, Span};

use super::account::Account;
use super::login::{self, LoginError, LoginMemory, NewToken};
use super::route::Route;
use crate::Error;
use crate::error::{NoToken, Stage};
use crate::event::LogEvent;
use crate::providers::{ActiveProvider, CompiledPolicy, secret_found_in};
use crate::timer::{self, within};

/// The tokens of one provider, by credential.
#[derive(Debug, Default)]
pub(crate) struct Tokens {
    slots: Mutex<HashMap<String, Arc<TokenSlot>>>,
}

/// A token in use.
#[derive(Clone, Debug)]
pub(crate) struct HeldToken {
    pub(crate) token: Arc<Secret>,
    generation: u64,
    slot: Arc<TokenSlot>,
}

/// The token of one credential.
pub(crate) struct TokenSlot {
    account: Arc<Account>,
    state: Mutex<TokenState>,
    /// Counts the logins that have ended.
    logins_ended: watch::Sender<u64>,
}

#[derive(Default)]
struct TokenState {
    renewal: Renewal,
    token: Option<Arc<Secret>>,
    memory: LoginMemory,
    failure: Option<Error>,
}

/// What a call may do with the token.
enum TokenStatus {
    Use(Arc<Secret>, u64),
    UseAndFetch(Arc<Secret>, u64),
    Fetch,
    Wait,
    BackOff(Span, Error),
}

/// A token for this call: the current one, or the next one.
pub(super) async fn acquire(
    route: &Route,
    policy: &CompiledPolicy,
    account: &Arc<Account>,
) -> Result<HeldToken, Error> {
    let live = &route.provider;
    let slot = live.tokens.slot(policy, account);
    let mut ended = slot.logins_ended.subscribe();
    let mut failures = 0;
    loop {
        ended.mark_unchanged();
        let pause = match slot.status(live.ledger.at()) {
            TokenStatus::Use(token, generation) => return Ok(slot.hold(token, generation)),
            TokenStatus::UseAndFetch(token, generation) => {
                tokio::spawn(keep_fresh(live.clone(), slot.clone()));
                return Ok(slot.hold(token, generation));
            }
            TokenStatus::Fetch => {
                // Not part of this call: others wait for it too, and this call may be given up.
                tokio::spawn(keep_fresh(live.clone(), slot.clone()));
                None
            }
            TokenStatus::Wait => None,
            TokenStatus::BackOff(remaining, error) => {
                failures += 1;
                let is_tired = failures > policy.retry.retries.of(route.options.priority);
                let is_late = remaining > route.patience(policy.provider.queue.timeout);
                if is_tired || is_late || !is_temporary(&error) {
                    return Err(with_retry_in(error, remaining));
                }
                Some(remaining)
            }
        };
        let changed = async {
            tokio::select! {
                _ended = ended.changed() => {}
                () = timer::sleep(pause) => {}
            }
        };
        let patience = route.patience(policy.provider.queue.timeout);
        within(Some(patience), changed)
            .await
            .map_err(|_| Error::TooLate {
                provider: live.name.clone(),
                at: Stage::Waiting,
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
async fn keep_fresh(live: Arc<ActiveProvider>, slot: Arc<TokenSlot>) {
    let (weak_live, weak_slot) = (Arc::downgrade(&live), Arc::downgrade(&slot));
    let mut due = Some((live, slot));
    while let Some((live, slot)) = due.take() {
        let Some(pause) = fetch(&live, &slot).await else {
            return;
        };
        let mut ended = slot.logins_ended.subscribe();
        drop((live, slot));
        tokio::select! {
            () = timer::sleep(Some(pause)) => {}
            _other = ended.changed() => return,
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
    let memory = slot.state.lock().memory.clone();
    let fetched = login::login(live, &slot.account, memory).await;
    busy.is_over = true;
    slot.settle(live, fetched)
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
            let failed = LoginError::new(self.provider, NoToken::NoResponse(Fault::Reset), None);
            self.slot.settle(self.provider, Err(failed));
        }
    }
}

impl Tokens {
    /// Does this text contain a token?
    pub(super) fn occur_in(&self, text: &[u8]) -> bool {
        let slots: Vec<Arc<TokenSlot>> = self.slots.lock().values().cloned().collect();
        let token = |slot: Arc<TokenSlot>| slot.state.lock().token.clone();
        let mut tokens = slots.into_iter().filter_map(token);
        tokens.any(|token| secret_found_in(token.expose().as_bytes(), text))
    }

    /// The slot of this credential's token. Removes slots of credentials that no file names any
    /// more.
    fn slot(&self, policy: &CompiledPolicy, account: &Arc<Account>) -> Arc<TokenSlot> {
        let mut slots = self.slots.lock();
        if let Some(slot) = slots.get(account.id()) {
            return slot.clone();
        }
        slots.retain(|name, _| policy.accounts.iter().any(|account| account.id() == name));
        let slot = Arc::new(TokenSlot {
            account: account.clone(),
            state: Mutex::default(),
            logins_ended: watch::Sender::new(0),
        });
        slots.insert(account.id().to_owned(), slot.clone());
        slot
    }
}

impl HeldToken {
    /// The provider rejected it with 401. `true`: another is there or worth fetching.
    pub(super) fn rejected(&self, now: Micros) -> bool {
        let mut state = self.slot.state.lock();
        state.renewal.on_unauthorized(self.generation, now)
    }

    /// A call that was repeated with this token has its response: was it 401 again?
    pub(super) fn on_retry_response(&self, is_refused: bool, now: Micros, dice: Dice) {
        let mut state = self.slot.state.lock();
        state
            .renewal
            .on_retry_result(self.generation, is_refused, now, dice);
    }
}

impl TokenSlot {
    fn hold(self: &Arc<TokenSlot>, token: Arc<Secret>, generation: u64) -> HeldToken {
        HeldToken {
            token,
            generation,
            slot: self.clone(),
        }
    }

    fn status(&self, now: Micros) -> TokenStatus {
        let mut state = self.state.lock();
        let need = state.renewal.next_action(now);
        let generation = state.renewal.generation();
        match (need, &state.token) {
            (TokenAction::Use, Some(token)) => TokenStatus::Use(token.clone(), generation),
            (TokenAction::UseAndRenew, Some(token)) => {
                TokenStatus::UseAndFetch(token.clone(), generation)
            }
            (TokenAction::BackOff { remaining, .. }, _) => match &state.failure {
                Some(error) => TokenStatus::BackOff(remaining, error.clone()),
                None => TokenStatus::Wait,
            },
            (TokenAction::Renew | TokenAction::UseAndRenew, _) => TokenStatus::Fetch,
            (TokenAction::Wait | TokenAction::Use, _) => TokenStatus::Wait,
        }
    }

    fn is_due(&self, now: Micros) -> bool {
        self.state.lock().renewal.is_due(now)
    }

    /// Records the result of a login. All waiting calls check again.
    fn settle(&self, live: &ActiveProvider, fetched: Result<NewToken, LoginError>) -> Option<Span> {
        let provider = &live.name;
        let (now, dice) = (live.ledger.at(), live.health.roll_dice());
        let mut state = self.state.lock();
        let pause = match fetched {
            Ok(fetched) => {
                let NewToken {
                    token,
                    lifetime: life,
                    renew_before,
                    memory,
                } = fetched;
                state.renewal.on_token(now, life, renew_before);
                state.token = Some(Arc::new(token));
                state.memory = memory;
                state.failure = None;
                LogEvent::TokenRenewed {
                    provider,
                    lives: life,
                }
                .emit();
                state.renewal.renew_at().map(|at| at.since(now))
            }
            Err(LoginError { error, trouble }) => {
                if trouble == RenewalError::Permanent {
                    // A later refresh token may be the reason: the file's own is used next.
                    state.memory = LoginMemory::default();
                }
                state.renewal.on_failure(now, trouble, dice);
                LogEvent::TokenNotRenewed {
                    provider,
                    error: &error,
                }
                .emit();
                state.failure = Some(error);
                None
            }
        };
        drop(state);
        self.logins_ended.send_modify(|count| *count += 1);
        pause
    }
}

impl fmt::Debug for TokenSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state.lock();
        f.debug_struct("TokenSlot")
            .field("renewal", &state.renewal)
            .finish_non_exhaustive()
    }
}
