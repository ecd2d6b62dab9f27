//! When a token is used, renewed, waited for, or not asked for at all.
//!
//! Promises: one renewal at a time, whoever asks. A token that is still good serves while its
//! successor is fetched. After a failure nobody asks again before a rest that grows. A provider that
//! answers 401 to everything costs a bounded number of renewals, not one for each call.
//!
//! Never: holds a token. It knows ages and numbers only.

#[cfg(test)]
mod tests;

use crate::backoff::{Backoff, Dice, Jitter};
use crate::ratio::Ppm;
use crate::time::{Micros, Span};

/// The shortest life that is believed. Below it every call would fetch a token of its own; one that
/// really dies earlier is found out by its first 401.
pub const LIFE_MIN: Span = Span::from_secs(10);

/// The longest life that is believed; the longest ones seen are a year.
pub const LIFE_MAX: Span = Span::from_secs(366 * 86_400);

/// Rests after failures that pass: the network, a 5xx, an answer without a token. Additive jitter,
/// because a rest must never be nothing.
const TRANSIENT_BACKOFF: Backoff = backoff(1, 60);

/// Rests after refused credentials: they do not mend by themselves, and accounts are locked after a
/// handful of wrong passwords. Five minutes at most, so that a repaired account is noticed.
const PERMANENT_BACKOFF: Backoff = backoff(10, 300);

/// Rests between renewals that a 401 asked for and that changed nothing.
const USELESS_BACKOFF: Backoff = backoff(1, 60);

const fn backoff(base_secs: u64, max_secs: u64) -> Backoff {
    Backoff {
        base: Span::from_secs(base_secs),
        factor: Ppm(2_000_000),
        max: Span::from_secs(max_secs),
        jitter: Jitter::Additive(Ppm(300_000)),
    }
}

/// What a call that needs a token does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenAction {
    /// Use the one there is.
    Use,
    /// Use the one there is, and fetch its successor meanwhile: nobody is at it.
    UseAndRenew,
    /// Fetch one and wait for it: nobody is at it.
    Renew,
    /// Wait for the one that is being fetched.
    Wait,
    /// The last try failed; nobody asks for this long.
    BackOff {
        /// How long still.
        remaining: Span,
        /// Waiting does not mend it: the credentials were refused.
        permanent: bool,
    },
}

/// Why there is no new token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenewalError {
    /// It may go better next time, at the earliest after this long.
    Transient {
        /// What the provider asked for.
        retry_after: Option<Span>,
    },
    /// The credentials were refused.
    Permanent,
}

/// The life of the tokens of one credential.
#[derive(Clone, Debug, Default)]
pub struct Renewal {
    life: Option<TokenLife>,
    /// Tokens fetched so far.
    generation: u64,
    is_renewing: bool,
    pause: Option<RenewalPause>,
    failures: u32,
    /// Renewals in a row that a 401 asked for and that changed nothing.
    useless_renewals: u32,
    /// The last token of which that is known.
    judged_generation: u64,
    /// No 401 asks for a renewal before this.
    next_401_renewal: Micros,
}

#[derive(Clone, Copy, Debug)]
struct TokenLife {
    renew_at: Micros,
    expires_at: Micros,
    is_rejected: bool,
    is_used: bool,
}

#[derive(Clone, Copy, Debug)]
struct RenewalPause {
    until: Micros,
    permanent: bool,
}

impl Renewal {
    /// What does a call do? Whoever is told to renew must report what came of it.
    pub fn next_action(&mut self, now: Micros) -> TokenAction {
        let rest = self.pause.filter(|rest| now < rest.until);
        if let Some(life) = self.life.as_mut().filter(|life| life.is_valid(now)) {
            life.is_used = true;
            if now < life.renew_at || self.is_renewing || rest.is_some() {
                return TokenAction::Use;
            }
            self.is_renewing = true;
            return TokenAction::UseAndRenew;
        }
        if self.is_renewing {
            return TokenAction::Wait;
        }
        if let Some(RenewalPause {
            until,
            permanent: lasting,
        }) = rest
        {
            let left = until.since(now);
            return TokenAction::BackOff {
                remaining: left,
                permanent: lasting,
            };
        }
        self.is_renewing = true;
        TokenAction::Renew
    }

    /// Is it time to renew although nobody calls right now? Only a token that was used is worth it.
    pub fn is_due(&mut self, now: Micros) -> bool {
        let is_resting = self.pause.is_some_and(|rest| now < rest.until);
        let is_old = |life: TokenLife| life.is_used && !life.is_rejected && now >= life.renew_at;
        if self.is_renewing || is_resting || !self.life.is_some_and(is_old) {
            return false;
        }
        self.is_renewing = true;
        true
    }

    /// There is a new token that lives this long and is renewed so long before its end. Returns its
    /// number.
    pub fn on_token(&mut self, now: Micros, life: Span, renew_before: Span) -> u64 {
        let life = Span(life.0.clamp(LIFE_MIN.0, LIFE_MAX.0));
        // One that lives shorter than it is renewed early would be renewed at once, for ever.
        let before = renew_before.min(Span(life.0 / 2));
        self.generation += 1;
        self.life = Some(TokenLife {
            renew_at: now + Span(life.0 - before.0),
            expires_at: now + life,
            is_rejected: false,
            is_used: false,
        });
        self.is_renewing = false;
        self.pause = None;
        self.failures = 0;
        self.generation
    }

    /// There is none.
    pub fn on_failure(&mut self, now: Micros, trouble: RenewalError, dice: Dice) {
        let (backoff, floor, lasting) = match trouble {
            RenewalError::Transient { retry_after } => {
                (TRANSIENT_BACKOFF, retry_after.unwrap_or_default(), false)
            }
            RenewalError::Permanent => (PERMANENT_BACKOFF, Span::ZERO, true),
        };
        let pause = backoff.wait(self.failures, dice).max(floor);
        self.failures = self.failures.saturating_add(1);
        self.is_renewing = false;
        let until = now + pause;
        self.pause = Some(RenewalPause {
            until,
            permanent: lasting,
        });
    }

    /// The provider answered 401 to this token. `true`: a new one is there or worth fetching, so the
    /// call is made again.
    pub fn on_unauthorized(&mut self, generation: u64, now: Micros) -> bool {
        if generation != self.generation {
            return true;
        }
        let Some(life) = self.life.as_mut() else {
            return true;
        };
        if life.is_rejected {
            return true;
        }
        if now < self.next_401_renewal {
            return false;
        }
        life.is_rejected = true;
        true
    }

    /// A call that was made again with this token has its answer: was it 401 once more?
    pub fn on_retry_result(&mut self, generation: u64, is_refused: bool, now: Micros, dice: Dice) {
        if generation <= self.judged_generation {
            return;
        }
        self.judged_generation = generation;
        if is_refused {
            self.next_401_renewal = now + USELESS_BACKOFF.wait(self.useless_renewals, dice);
            self.useless_renewals = self.useless_renewals.saturating_add(1);
        } else {
            self.next_401_renewal = Micros::default();
            self.useless_renewals = 0;
        }
    }

    /// When the token should be renewed, if there is one.
    #[must_use]
    pub fn renew_at(&self) -> Option<Micros> {
        self.life.map(|life| life.renew_at)
    }

    /// How many tokens were fetched.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation
    }
}

impl TokenLife {
    fn is_valid(&self, now: Micros) -> bool {
        now < self.expires_at && !self.is_rejected
    }
}
