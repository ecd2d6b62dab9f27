//! Cool-down: after a 429 all processes pause the scope that it is about (S5).
//!
//! Promises: it lasts as long as the provider states (`Retry-After`, else its reset), otherwise
//! 1 s × 2ⁿ up to 300 s plus 0–30 %. Concurrent 429s count as one: they do not make the next
//! cool-down longer. Other scopes continue.
//!
//! Never: touches the scope of the health state machine. After a cool-down calls go as the provider
//! accepts them (`scope/estimate.rs`).

#[cfg(test)]
mod tests;

use crate::ask::{ScopeId, Settle};
use crate::backoff::{
    Backoff, BackoffNames, Dice, Jitter, RETRY_AFTER_FLOOR, RETRY_AFTER_MAX, effective_retry_after,
};
use crate::problem::{Problem, Problems};
use crate::ratio::Ppm;
use crate::scope::ScopeView;
use crate::time::{Micros, Span};

/// Which cool-downs get jitter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum JitterOn {
    /// Only the computed ones: the provider's wait is used as stated.
    #[default]
    Backoff,
    /// All of them, `Retry-After` and reset included.
    All,
}

/// How long a scope cools down after a 429.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CooldownSettings {
    /// The cool-down if the provider states none.
    pub backoff: Backoff,
    /// Which cool-downs get jitter.
    pub on: JitterOn,
    /// The wait for a `Retry-After` of 0 or in the past.
    pub retry_after_floor: Span,
}

/// How long the provider asks us to wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProviderWait {
    /// `Retry-After`, in any of its forms.
    pub retry_after: Option<Span>,
    /// How long until its count resets.
    pub reset_after: Option<Span>,
}

/// The cool-downs of one scope.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cooldown {
    /// 429s in a row; concurrent ones count once.
    limited_count: u32,
    /// When the last cool-down began: calls granted before it are outdated.
    began: Micros,
    /// When it ends.
    until: Option<Micros>,
    /// The wait that the provider asked for, if it did.
    stated: Option<Span>,
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
    /// The cool-down that the provider states, if any.
    #[must_use]
    pub fn provider_wait(&self, stated: ProviderWait, dice: Dice) -> Option<Span> {
        // A 429 after the reset has passed: the provider's clock is of no use.
        let reset = stated
            .reset_after
            .filter(|reset| (Span(1)..=RETRY_AFTER_MAX).contains(reset));
        let duration =
            effective_retry_after(stated.retry_after, self.retry_after_floor).or(reset)?;
        Some(match self.on {
            JitterOn::Backoff => duration,
            // Full jitter may shorten a computed wait, never the provider's.
            JitterOn::All => duration.max(self.backoff.jitter.spread(duration, dice)),
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
    /// The provider limited a call of this scope that was granted at `granted`. Returns the
    /// cool-down that begins now, or `None` if the current one lasts longer.
    pub fn on_limited(
        &mut self,
        settings: &CooldownSettings,
        granted: Micros,
        stated: ProviderWait,
        dice: Dice,
        now: Micros,
    ) -> Option<Span> {
        let from_provider = settings.provider_wait(stated, dice);
        let duration = if granted >= self.began {
            let n = self.limited_count;
            self.limited_count = n.saturating_add(1);
            self.began = now;
            from_provider.unwrap_or_else(|| settings.backoff.wait(n, dice))
        } else {
            from_provider?
        };
        let until = Some(now + duration);
        if until <= self.until {
            return None;
        }
        self.until = until;
        self.stated = from_provider;
        Some(duration)
    }

    /// Was a call granted at `granted` in flight when the scope closed? Call this before
    /// [`Cooldown::on_limited`]. The result of such a call says nothing new (A4).
    #[must_use]
    pub fn is_outdated(&self, granted: Micros) -> bool {
        granted < self.began
    }

    /// A call of this scope, granted at `granted`, succeeded: the next cool-down is a first one
    /// again.
    pub fn on_success(&mut self, granted: Micros) {
        if granted >= self.began {
            self.limited_count = 0;
        }
    }

    /// Applies the view of the scope in the ledger: at the start, and when another process has
    /// changed it.
    pub fn on_scope_view(&mut self, view: ScopeView, now: Micros) {
        match view {
            ScopeView::Open | ScopeView::Paced { .. } | ScopeView::Probing => self.until = None,
            ScopeView::Closed {
                remaining: Some(remaining),
            } => self.until = Some(now + remaining),
            ScopeView::Closed { remaining: None }
            | ScopeView::CacheOnly { .. }
            | ScopeView::Paused { .. } => {}
        }
    }

    /// An operator ends it: the next 429 is a first one again. Returns the settle for the ledger;
    /// `None` = the scope is not cooling down.
    pub fn reset(&mut self, scope: ScopeId, now: Micros) -> Option<Settle> {
        let is_active = self.remaining(now).is_some();
        *self = Cooldown {
            began: self.began,
            ..Cooldown::default()
        };
        is_active.then_some(Settle::Open { scope })
    }

    /// The wait that the provider asked for; `None` = it did not, or another process knows.
    #[must_use]
    pub fn stated(&self) -> Option<Span> {
        self.stated
    }

    /// The remaining time of the cool-down.
    #[must_use]
    pub fn remaining(&self, now: Micros) -> Option<Span> {
        let remaining = self.until?.since(now);
        (remaining > Span::ZERO).then_some(remaining)
    }
}

/// The settle for the ledger: all calls wait, then go as the provider accepts them. The call that the
/// provider limited was granted so long ago.
#[must_use]
pub fn settle(scope: ScopeId, duration: Span, granted: Span) -> Settle {
    Settle::Limited {
        scope,
        age: Span::ZERO,
        granted,
        closed_for: duration,
    }
}
