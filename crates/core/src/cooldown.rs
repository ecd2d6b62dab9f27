//! A cool-down: after a 429 the scope it is about rests for everybody (S5).
//!
//! Promises: as long as the provider said (`Retry-After`, else its reset), otherwise 1 s × 2ⁿ up to
//! 300 s with 0–30 % on top. Refusals that were on their way together are one refusal: they do
//! not make the next rest longer. Other scopes go on.
//!
//! Never: touches the scope of the health machine; a cool-down ends with everybody going, not
//! with a probe.

#[cfg(test)]
mod tests;

use crate::ask::{Reopen, ScopeId, Settle};
use crate::backoff::{
    Backoff, BackoffNames, Dice, Jitter, RETRY_AFTER_FLOOR, RETRY_AFTER_MAX, effective_retry_after,
};
use crate::problem::{Problem, Problems};
use crate::ratio::Ppm;
use crate::scope::ScopeView;
use crate::time::{Micros, Span};

/// Which rests are spread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum JitterOn {
    /// Only those we compute: what the provider says is taken at its word.
    #[default]
    Backoff,
    /// All of them, `Retry-After` and reset included.
    All,
}

/// How long a scope rests after a 429.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CooldownSettings {
    /// The rest when the provider names none.
    pub backoff: Backoff,
    /// Which rests are spread.
    pub on: JitterOn,
    /// What a `Retry-After` of 0 or of the past is taken for.
    pub retry_after_floor: Span,
}

/// What the provider said about when to return.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProviderWait {
    /// `Retry-After`, in any of its forms.
    pub retry_after: Option<Span>,
    /// How long until its count starts anew.
    pub reset_after: Option<Span>,
}

/// The cool-downs of one scope.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cooldown {
    /// Refusals in a row, as far as they count.
    limited_count: u32,
    /// When the last rest began: calls granted before are old news.
    began: Micros,
    /// When it ends.
    until: Option<Micros>,
}

impl Default for CooldownSettings {
    fn default() -> CooldownSettings {
        CooldownSettings {
            backoff: Backoff {
                base: Span::from_secs(1),
                factor: Ppm(2_000_000),
                max: Span::from_secs(300),
                jitter: Jitter::Additive(Ppm::percent(30)),
            },
            on: JitterOn::Backoff,
            retry_after_floor: RETRY_AFTER_FLOOR,
        }
    }
}

impl CooldownSettings {
    /// The rest that the provider named, if it named one.
    #[must_use]
    pub fn provider_wait(&self, told: ProviderWait, dice: Dice) -> Option<Span> {
        // A reset that has passed, and still a refusal: the provider's clock is no help.
        let reset = told
            .reset_after
            .filter(|reset| (Span(1)..=RETRY_AFTER_MAX).contains(reset));
        let rest = effective_retry_after(told.retry_after, self.retry_after_floor).or(reset)?;
        Some(match self.on {
            JitterOn::Backoff => rest,
            // Full jitter may shorten what we compute, never what the provider asked for.
            JitterOn::All => rest.max(self.backoff.jitter.spread(rest, dice)),
        })
    }

    /// Every problem of the `cooldown` block.
    #[must_use]
    pub fn check(&self) -> Vec<Problem> {
        let mut problems = Problems::default();
        self.backoff.check(&BackoffNames::COOLDOWN, &mut problems);
        problems.found()
    }
}

impl Cooldown {
    /// A call of this scope, granted at `granted`, was refused. Returns the rest that begins now,
    /// or `None` if the scope rests longer already.
    pub fn on_limited(
        &mut self,
        settings: &CooldownSettings,
        granted: Micros,
        told: ProviderWait,
        dice: Dice,
        now: Micros,
    ) -> Option<Span> {
        let named = settings.provider_wait(told, dice);
        let rest = if granted >= self.began {
            let n = self.limited_count;
            self.limited_count = n.saturating_add(1);
            self.began = now;
            named.unwrap_or_else(|| settings.backoff.wait(n, dice))
        } else {
            named?
        };
        let until = Some(now + rest);
        if until <= self.until {
            return None;
        }
        self.until = until;
        Some(rest)
    }

    /// Was a call granted at `granted` on its way when the scope closed? Asked before
    /// [`Cooldown::refused`] hears of it: what such a call finds says nothing new (A4).
    #[must_use]
    pub fn is_outdated(&self, granted: Micros) -> bool {
        granted < self.began
    }

    /// A call of this scope, granted at `granted`, went well: the next rest is a first one again.
    pub fn on_success(&mut self, granted: Micros) {
        if granted >= self.began {
            self.limited_count = 0;
        }
    }

    /// What the scope looks like in the ledger: at the start, and when another process has
    /// changed it.
    pub fn on_scope_view(&mut self, view: ScopeView, now: Micros) {
        match view {
            ScopeView::Open | ScopeView::Probing => self.until = None,
            ScopeView::Closed {
                remaining: Some(left),
            } => self.until = Some(now + left),
            ScopeView::Closed { remaining: None } | ScopeView::CacheOnly { .. } => {}
        }
    }

    /// An operator ends it: the next refusal is a first one again. What the ledger is told; `None` =
    /// the scope does not rest.
    pub fn reset(&mut self, scope: ScopeId, now: Micros) -> Option<Settle> {
        let is_resting = self.remaining(now).is_some();
        *self = Cooldown {
            began: self.began,
            ..Cooldown::default()
        };
        is_resting.then_some(Settle::Open { scope })
    }

    /// How long the scope still rests.
    #[must_use]
    pub fn remaining(&self, now: Micros) -> Option<Span> {
        let left = self.until?.since(now);
        (left > Span::ZERO).then_some(left)
    }
}

/// What the ledger is told: everybody waits, then everybody goes.
#[must_use]
pub fn settle(scope: ScopeId, rest: Span) -> Settle {
    Settle::Close {
        scope,
        age: Span::ZERO,
        closed_for: Some(rest),
        reopen: Reopen::All,
    }
}
