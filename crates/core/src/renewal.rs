//! When a call uses a token, renews it, waits for it, or backs off.
//!
//! Promises: one renewal at a time, whichever call starts it. A valid token stays in use while its
//! successor is fetched. After a failure renewals back off, longer each time. A provider that
//! responds 401 to everything costs a bounded number of renewals, not one for each call.
//!
//! Never: holds a token. It stores times and counts only.

#[cfg(test)]
mod tests;

use crate::backoff::{Backoff, Dice, Jitter};
use crate::ratio::Ppm;
use crate::time::{Micros, Span};

/// The shortest lifetime accepted. With a shorter one every call would fetch its own token; the
/// first 401 shows that a token has really expired earlier.
pub const LIFE_MIN: Span = Span::from_secs(10);

/// The longest lifetime accepted; the longest ones known are a year.
pub const LIFE_MAX: Span = Span::from_secs(366 * 86_400);

/// Back-off after transient failures: the network, a 5xx, a response without a token. Additive
/// jitter, because a back-off must never be zero.
const TRANSIENT_BACKOFF: Backoff = backoff(1, 60);

/// Back-off after rejected credentials: they do not fix themselves, and providers lock accounts
/// after a few wrong passwords. Five minutes at most, so that a fixed account is noticed.
const PERMANENT_BACKOFF: Backoff = backoff(10, 300);

/// Back-off between renewals after a 401 that did not help.
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
    /// Use the current token.
    Use,
    /// Use the current token, and fetch its successor meanwhile: no renewal is running.
    UseAndRenew,
    /// Fetch a token and wait for it: no renewal is running.
    Renew,
    /// Wait for the token that is being fetched.
    Wait,
    /// The last renewal failed; no call starts one for this long.
    BackOff {
        /// The remaining back-off.
        remaining: Span,
        /// Waiting does not help: the provider rejected the credentials.
        permanent: bool,
    },
}

/// Why there is no new token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenewalError {
    /// The next renewal may succeed, at the earliest after `retry_after`.
    Transient {
        /// The provider's `Retry-After`.
        retry_after: Option<Span>,
    },
    /// The provider rejected the credentials.
    Permanent,
}

/// The renewal state of one credential's tokens.
#[derive(Clone, Debug, Default)]
pub struct Renewal {
    life: Option<TokenLife>,
    /// The number of tokens fetched.
    generation: u64,
    is_renewing: bool,
    pause: Option<RenewalPause>,
    failures: u32,
    /// Renewals in a row after a 401 that did not help.
    useless_renewals: u32,
    /// The last token whose retry result is known.
    judged_generation: u64,
    /// No 401 starts a renewal before this.
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
    /// What a call does now. A caller that gets a renewal must report its result.
    pub fn next_action(&mut self, now: Micros) -> TokenAction {
        let pause = self.pause.filter(|pause| now < pause.until);
        if let Some(life) = self.life.as_mut().filter(|life| life.is_valid(now)) {
            life.is_used = true;
            if now < life.renew_at || self.is_renewing || pause.is_some() {
                return TokenAction::Use;
            }
            self.is_renewing = true;
            return TokenAction::UseAndRenew;
        }
        if self.is_renewing {
            return TokenAction::Wait;
        }
        if let Some(RenewalPause { until, permanent }) = pause {
            let remaining = until.since(now);
            return TokenAction::BackOff {
                remaining,
                permanent,
            };
        }
        self.is_renewing = true;
        TokenAction::Renew
    }

    /// Is a renewal due although no call needs it now? Only a token that was used is renewed.
    pub fn is_due(&mut self, now: Micros) -> bool {
        let is_paused = self.pause.is_some_and(|pause| now < pause.until);
        let is_old = |life: TokenLife| life.is_used && !life.is_rejected && now >= life.renew_at;
        if self.is_renewing || is_paused || !self.life.is_some_and(is_old) {
            return false;
        }
        self.is_renewing = true;
        true
    }

    /// A new token was fetched. It is valid for `life` and renewed `renew_before` its end. Returns
    /// its generation.
    pub fn on_token(&mut self, now: Micros, life: Span, renew_before: Span) -> u64 {
        let life = Span(life.0.clamp(LIFE_MIN.0, LIFE_MAX.0));
        // A token with a lifetime below `renew_before` would be renewed at once, without end.
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

    /// The renewal failed.
    pub fn on_failure(&mut self, now: Micros, error: RenewalError, dice: Dice) {
        let (backoff, floor, permanent) = match error {
            RenewalError::Transient { retry_after } => {
                (TRANSIENT_BACKOFF, retry_after.unwrap_or_default(), false)
            }
            RenewalError::Permanent => (PERMANENT_BACKOFF, Span::ZERO, true),
        };
        let pause = backoff.wait(self.failures, dice).max(floor);
        self.failures = self.failures.saturating_add(1);
        self.is_renewing = false;
        let until = now + pause;
        self.pause = Some(RenewalPause { until, permanent });
    }

    /// The provider responded 401 to this token. `true`: a new token exists or may be fetched, so
    /// the call is retried.
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

    /// A call that was retried with this token got its response: was it 401 again?
    pub fn on_retry_result(&mut self, generation: u64, is_rejected: bool, now: Micros, dice: Dice) {
        if generation <= self.judged_generation {
            return;
        }
        self.judged_generation = generation;
        if is_rejected {
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

    /// The number of tokens fetched.
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
