//! The tokens of a provider: fetched by a login, shared by all its calls, renewed in time.
//!
//! The decisions are the core's (`Renewal`); this is their shell.
//!
//! Promises: one login at a time for one credential, whoever waits for it; it goes on when whoever
//! asked for it is gone. A token serves while its successor is fetched. After a failed login calls
//! wait for the next one as long as their time allows, and are refused at once where waiting does
//! not help. A reload that changes the credential begins anew; any other keeps the token.
//!
//! Never: writes a token anywhere. Tokens live in memory and are wiped when they go.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::watch;
use tollgate_config::Secret;
use tollgate_core::backoff::Dice;
use tollgate_core::health::Fault;
use tollgate_core::renewal::{Need, Renewal, Trouble};
use tollgate_core::time::{Micros, Span};

use super::account::Account;
use super::login::{self, Failed, Fetched, Memory};
use super::route::Route;
use crate::Error;
use crate::error::{NoToken, Stage};
use crate::event::Fact;
use crate::shop::{Live, Plan, is_in};
use crate::timer::{self, within};

/// The tokens of one provider, by credential.
#[derive(Debug, Default)]
pub(crate) struct Tokens {
    slots: Mutex<HashMap<String, Arc<Slot>>>,
}

/// A token in use.
#[derive(Clone, Debug)]
pub(crate) struct Held {
    pub(crate) token: Arc<Secret>,
    generation: u64,
    slot: Arc<Slot>,
}

/// The token of one credential.
pub(crate) struct Slot {
    account: Arc<Account>,
    state: Mutex<State>,
    /// Counts the logins that have ended.
    ended: watch::Sender<u64>,
}

#[derive(Default)]
struct State {
    renewal: Renewal,
    token: Option<Arc<Secret>>,
    memory: Memory,
    failure: Option<Error>,
}

/// What a call finds.
enum Look {
    Use(Arc<Secret>, u64),
    UseAndFetch(Arc<Secret>, u64),
    Fetch,
    Wait,
    Rest(Span, Error),
}

/// A token for this call: the one there is, or the next one.
pub(super) async fn held(
    route: &Route,
    plan: &Plan,
    account: &Arc<Account>,
) -> Result<Held, Error> {
    let live = &route.live;
    let slot = live.tokens.slot(plan, account);
    let mut ended = slot.ended.subscribe();
    let mut failures = 0;
    loop {
        ended.mark_unchanged();
        let pause = match slot.look(live.ledger.at()) {
            Look::Use(token, generation) => return Ok(slot.held(token, generation)),
            Look::UseAndFetch(token, generation) => {
                tokio::spawn(keep_fresh(live.clone(), slot.clone()));
                return Ok(slot.held(token, generation));
            }
            Look::Fetch => {
                // Not part of this call: others wait for it too, and this one may be given up.
                tokio::spawn(keep_fresh(live.clone(), slot.clone()));
                None
            }
            Look::Wait => None,
            Look::Rest(left, error) => {
                failures += 1;
                let is_tired = failures > plan.retry.retries.of(route.said.priority);
                let is_late = left > route.patience(plan.provider.queue.timeout);
                if is_tired || is_late || !may_pass(&error) {
                    return Err(comes_back(error, left));
                }
                Some(left)
            }
        };
        let changed = async {
            tokio::select! {
                _ended = ended.changed() => {}
                () = timer::rest(pause) => {}
            }
        };
        let patience = route.patience(plan.provider.queue.timeout);
        within(Some(patience), changed)
            .await
            .map_err(|_| Error::TooLate {
                provider: live.name.clone(),
                at: Stage::Waiting,
            })?;
    }
}

/// Is it worth waiting for the next login?
fn may_pass(error: &Error) -> bool {
    matches!(error, Error::NoCredential { why, .. } if !why.is_lasting())
}

fn comes_back(error: Error, left: Span) -> Error {
    match error {
        Error::NoCredential { provider, why, .. } => Error::NoCredential {
            provider,
            why,
            retry_in: Some(left),
        },
        other => other,
    }
}

/// Fetches a token, and its successors as long as they are used. Between two logins it holds
/// nothing: a provider that is gone ends it, and so does whoever logs in meanwhile.
async fn keep_fresh(live: Arc<Live>, slot: Arc<Slot>) {
    let (weak_live, weak_slot) = (Arc::downgrade(&live), Arc::downgrade(&slot));
    let mut due = Some((live, slot));
    while let Some((live, slot)) = due.take() {
        let Some(pause) = fetch(&live, &slot).await else {
            return;
        };
        let mut ended = slot.ended.subscribe();
        drop((live, slot));
        tokio::select! {
            () = timer::rest(Some(pause)) => {}
            _other = ended.changed() => return,
        }
        due = weak_live
            .upgrade()
            .zip(weak_slot.upgrade())
            .filter(|(live, slot)| slot.is_due(live.ledger.at()));
    }
}

/// One login. Returns how long its token serves before the next is due, if there is one.
async fn fetch(live: &Arc<Live>, slot: &Slot) -> Option<Span> {
    let mut busy = Busy {
        live,
        slot,
        is_over: false,
    };
    let memory = slot.state.lock().memory.clone();
    let fetched = login::login(live, &slot.account, memory).await;
    busy.is_over = true;
    slot.settle(live, fetched)
}

/// A login under way. Dropped before its end, it has failed: nobody waits for ever.
struct Busy<'a> {
    live: &'a Live,
    slot: &'a Slot,
    is_over: bool,
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            let failed = Failed::new(self.live, NoToken::Unanswered(Fault::Reset), None);
            self.slot.settle(self.live, Err(failed));
        }
    }
}

impl Tokens {
    /// Stands a token in this text?
    pub(super) fn are_in(&self, text: &[u8]) -> bool {
        let slots: Vec<Arc<Slot>> = self.slots.lock().values().cloned().collect();
        let token = |slot: Arc<Slot>| slot.state.lock().token.clone();
        let mut tokens = slots.into_iter().filter_map(token);
        tokens.any(|token| is_in(token.expose().as_bytes(), text))
    }

    /// The place of this credential's token. Those of credentials that no file names any more go.
    fn slot(&self, plan: &Plan, account: &Arc<Account>) -> Arc<Slot> {
        let mut slots = self.slots.lock();
        if let Some(slot) = slots.get(account.name()) {
            return slot.clone();
        }
        slots.retain(|name, _| plan.accounts.iter().any(|account| account.name() == name));
        let slot = Arc::new(Slot {
            account: account.clone(),
            state: Mutex::default(),
            ended: watch::Sender::new(0),
        });
        slots.insert(account.name().to_owned(), slot.clone());
        slot
    }
}

impl Held {
    /// The provider answered 401 to it. `true`: another is there or worth fetching.
    pub(super) fn refused(&self, now: Micros) -> bool {
        let mut state = self.slot.state.lock();
        state.renewal.refused(self.generation, now)
    }

    /// A call that was made again with this token has its answer: was it 401 once more?
    pub(super) fn judged(&self, is_refused: bool, now: Micros, dice: Dice) {
        let mut state = self.slot.state.lock();
        state.renewal.judged(self.generation, is_refused, now, dice);
    }
}

impl Slot {
    fn held(self: &Arc<Slot>, token: Arc<Secret>, generation: u64) -> Held {
        Held {
            token,
            generation,
            slot: self.clone(),
        }
    }

    fn look(&self, now: Micros) -> Look {
        let mut state = self.state.lock();
        let need = state.renewal.need(now);
        let generation = state.renewal.generation();
        match (need, &state.token) {
            (Need::Use, Some(token)) => Look::Use(token.clone(), generation),
            (Need::UseAndRenew, Some(token)) => Look::UseAndFetch(token.clone(), generation),
            (Need::Rest { left, .. }, _) => match &state.failure {
                Some(error) => Look::Rest(left, error.clone()),
                None => Look::Wait,
            },
            (Need::Renew | Need::UseAndRenew, _) => Look::Fetch,
            (Need::Wait | Need::Use, _) => Look::Wait,
        }
    }

    fn is_due(&self, now: Micros) -> bool {
        self.state.lock().renewal.is_due(now)
    }

    /// What came of a login. Everybody who waits looks again.
    fn settle(&self, live: &Live, fetched: Result<Fetched, Failed>) -> Option<Span> {
        let provider = &live.name;
        let (now, dice) = (live.ledger.at(), live.machine.throw());
        let mut state = self.state.lock();
        let pause = match fetched {
            Ok(fetched) => {
                let Fetched {
                    token,
                    life,
                    renew_before,
                    memory,
                } = fetched;
                state.renewal.got(now, life, renew_before);
                state.token = Some(Arc::new(token));
                state.memory = memory;
                state.failure = None;
                Fact::Renewed {
                    provider,
                    lives: life,
                }
                .tell();
                state.renewal.renew_at().map(|at| at.since(now))
            }
            Err(Failed { error, trouble }) => {
                if trouble == Trouble::Lasting {
                    // A refresh token that came later may be the reason: the file's own comes next.
                    state.memory = Memory::default();
                }
                state.renewal.failed(now, trouble, dice);
                Fact::NotRenewed {
                    provider,
                    error: &error,
                }
                .tell();
                state.failure = Some(error);
                None
            }
        };
        drop(state);
        self.ended.send_modify(|count| *count += 1);
        pause
    }
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state.lock();
        f.debug_struct("Slot")
            .field("renewal", &state.renewal)
            .finish_non_exhaustive()
    }
}
