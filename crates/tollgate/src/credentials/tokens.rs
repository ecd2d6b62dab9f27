//! The tokens of a provider: fetched by a login, shared by all its calls, renewed in time.
//!
//! `Renewal` in `core` decides; `path/token.rs` drives it.
//!
//! Promises: one login at a time per credential, however many calls wait for it. A token serves
//! while its successor is fetched. A reload that changes the credential starts anew; any other keeps
//! the token.
//!
//! Never: writes a token anywhere. Tokens live in memory and are wiped when dropped.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use tollgate_config::Secret;
use tollgate_core::backoff::Dice;
use tollgate_core::renewal::{Renewal, RenewalError, TokenAction};
use tollgate_core::time::{Micros, Span};
use tollgate_ledger::lock_order::{RankedMutex, rank};

use super::account::Account;
use super::secret_scan::SecretScan;
use crate::Error;
use crate::error::NoToken;
use crate::event::Event;
use crate::single_flight::Round;

/// The tokens of one provider, by credential.
#[derive(Debug, Default)]
pub(crate) struct Tokens {
    slots: RankedMutex<{ rank::TOKENS }, HashMap<String, Arc<TokenSlot>>>,
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
    pub(crate) account: Arc<Account>,
    state: RankedMutex<{ rank::TOKEN }, TokenState>,
}

#[derive(Default)]
struct TokenState {
    renewal: Renewal,
    token: Option<Arc<Secret>>,
    memory: LoginMemory,
    failure: Option<Error>,
    /// The login that is going on, or the next one: calls wait for its end.
    login: Arc<Round<(), ()>>,
}

/// What one login passes to the next.
#[derive(Clone, Debug, Default)]
pub(crate) struct LoginMemory {
    /// The refresh token of the last response, in place of the file's.
    pub(crate) refresh: Option<Secret>,
    /// How id and secret were accepted: `true` = in the form.
    pub(crate) in_form: Option<bool>,
}

/// A new token.
#[derive(Debug)]
pub(crate) struct NewToken {
    pub(crate) token: Secret,
    pub(crate) lifetime: Span,
    pub(crate) renew_before: Span,
    pub(crate) memory: LoginMemory,
}

/// No new token.
#[derive(Debug)]
pub(crate) struct LoginError {
    pub(crate) error: Error,
    pub(crate) trouble: RenewalError,
}

/// What a call may do with the token.
pub(crate) enum TokenStatus {
    Use(Arc<Secret>, u64),
    UseAndFetch(Arc<Secret>, u64),
    Fetch,
    Wait,
    BackOff(Span, Error),
}

impl LoginError {
    pub(crate) fn new(provider: &str, why: NoToken, retry_after: Option<Span>) -> LoginError {
        LoginError {
            error: Error::NoCredential {
                provider: provider.to_owned(),
                why,
                retry_in: retry_after,
            },
            trouble: if why.is_permanent() {
                RenewalError::Permanent
            } else {
                RenewalError::Transient { retry_after }
            },
        }
    }
}

impl Tokens {
    /// Does this text contain a token?
    pub(crate) fn occur_in(&self, text: &[u8]) -> bool {
        let slots: Vec<Arc<TokenSlot>> = self.slots.lock().values().cloned().collect();
        let token = |slot: Arc<TokenSlot>| slot.state.lock().token.clone();
        let mut tokens = slots.into_iter().filter_map(token);
        tokens.any(|token| SecretScan::of_token(token.expose()).found_in(text))
    }

    /// The slot of this credential's token. Removes slots of credentials that no file names any
    /// more.
    pub(crate) fn slot(&self, accounts: &[Arc<Account>], account: &Arc<Account>) -> Arc<TokenSlot> {
        let mut slots = self.slots.lock();
        if let Some(slot) = slots.get(account.id()) {
            return slot.clone();
        }
        slots.retain(|name, _| accounts.iter().any(|account| account.id() == name));
        let slot = Arc::new(TokenSlot {
            account: account.clone(),
            state: RankedMutex::default(),
        });
        slots.insert(account.id().to_owned(), slot.clone());
        slot
    }
}

impl HeldToken {
    /// The provider rejected it with 401. `true`: another is there or worth fetching.
    pub(crate) fn rejected(&self, now: Micros) -> bool {
        let mut state = self.slot.state.lock();
        state.renewal.on_unauthorized(self.generation, now)
    }

    /// A call that was repeated with this token has its response: was it 401 again?
    pub(crate) fn on_retry_response(&self, is_rejected: bool, now: Micros, dice: Dice) {
        let mut state = self.slot.state.lock();
        state
            .renewal
            .on_retry_result(self.generation, is_rejected, now, dice);
    }
}

impl TokenSlot {
    pub(crate) fn hold(self: &Arc<TokenSlot>, token: Arc<Secret>, generation: u64) -> HeldToken {
        HeldToken {
            token,
            generation,
            slot: self.clone(),
        }
    }

    pub(crate) fn status(&self, now: Micros) -> TokenStatus {
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

    /// The login that is going on, or the next one.
    pub(crate) fn login(&self) -> Arc<Round<(), ()>> {
        self.state.lock().login.clone()
    }

    /// What the last login remembered.
    pub(crate) fn memory(&self) -> LoginMemory {
        self.state.lock().memory.clone()
    }

    pub(crate) fn is_due(&self, now: Micros) -> bool {
        self.state.lock().renewal.is_due(now)
    }

    /// Records the result of a login. All waiting calls check again. Returns how long the token
    /// serves before the next login is due, and what to tell.
    pub(crate) fn settle(
        &self,
        provider: &str,
        fetched: Result<NewToken, LoginError>,
        now: Micros,
        dice: Dice,
    ) -> (Option<Span>, Event) {
        let provider = provider.into();
        let mut state = self.state.lock();
        let event = match fetched {
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
                let pause = state.renewal.renew_at().map(|at| at.since(now));
                let lives = life;
                (pause, Event::TokenRenewed { provider, lives })
            }
            Err(LoginError { error, trouble }) => {
                if trouble == RenewalError::Permanent {
                    // A later refresh token may be the reason: the file's own is used next.
                    state.memory = LoginMemory::default();
                }
                state.renewal.on_failure(now, trouble, dice);
                state.failure = Some(error.clone());
                let error = Box::new(error);
                (None, Event::TokenNotRenewed { provider, error })
            }
        };
        let ended = std::mem::take(&mut state.login);
        drop(state);
        ended.finish(());
        event
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
