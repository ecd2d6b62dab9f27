//! Degrade mode: when little quota remains, a scope is served from the cache only (S6).
//!
//! Promises: it begins below `below` and ends at `recover` or more. The smaller of our count and
//! the provider's decides, as long as the provider's reset lies ahead. It cannot get stuck: the
//! scope in the ledger is closed for a known time only, the provider's count expires with its reset
//! (or after one period if it states none), our own count refills, and an operator can end it.
//!
//! Never: reads a count itself. The remaining counts are arguments; the time of the next evaluation
//! is returned.

#[cfg(test)]
mod tests;

use crate::ask::{Reopen, ScopeId, Settle};
use crate::backoff::RETRY_AFTER_MAX;
use crate::problem::{Problem, Problems};
use crate::scope::ScopeView;
use crate::time::{Micros, Span};

/// The shortest time between two evaluations of a count that refills by itself: shorter steps would
/// be polling, and a second is short compared with the hour of such quotas.
const RECHECK_MIN: Span = Span::from_secs(1);

/// A scope is closed for so much longer, so that the next evaluation comes first and nothing passes in between. Two
/// round trips to a store take less.
const LOOK_FIRST: Span = Span::from_millis(100);

/// When degrade mode begins and ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DegradeSettings {
    /// It begins below this many: 200.
    pub below: u64,
    /// It ends at this many or more: 400, twice as many, so that it does not flap.
    pub recover: u64,
}

/// The quota as we count it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalQuota {
    /// What remains of the scope's tightest limit.
    pub remaining: u64,
    /// The limit.
    pub limit: u64,
    /// How long until it is full again, if known.
    pub full_after: Option<Span>,
    /// The limit's period: a refill takes no longer.
    pub period: Span,
}

/// The quota as the provider reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProviderQuota {
    /// The remaining count.
    pub remaining: u64,
    /// How long until it resets.
    pub reset_after: Option<Span>,
}

/// The degrade mode of one scope.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Degrade {
    /// The provider's last count, and when it expires.
    provider: Option<(u64, Micros)>,
    /// Degraded until then, if nothing ends it earlier.
    until: Option<Micros>,
    /// The provider's reset has passed since degrade began: then `below` is enough to end it.
    reset_passed: bool,
}

/// The result of an evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DegradeChange {
    /// Nothing.
    None,
    /// Cache only for this long; then evaluate again.
    Degraded {
        /// At most.
        closed_for: Span,
    },
    /// Back to normal.
    Recovered,
}

impl Default for DegradeSettings {
    fn default() -> DegradeSettings {
        DegradeSettings {
            below: 200,
            recover: 400,
        }
    }
}

impl DegradeSettings {
    /// Every problem of the `degrade` block; `smallest` is the smallest limit it applies to.
    #[must_use]
    pub fn check(&self, smallest: u64) -> Vec<Problem> {
        let mut problems = Problems::default();
        problems.unless(
            self.below < smallest,
            "degrade.below",
            "must be below the smallest limit it applies to, or nothing is ever called",
        );
        problems.unless(
            self.below <= self.recover,
            "degrade.recover",
            "must not be below `below`; write twice as much",
        );
        problems.unless(
            self.recover <= smallest,
            "degrade.recover",
            "must not be above the smallest limit, or only a reset ends it",
        );
        problems.found()
    }
}

impl Degrade {
    /// The provider reported its remaining count.
    pub fn on_provider_quota(&mut self, provider: ProviderQuota, period: Span, now: Micros) {
        // A reset later than any quota is a mistake: then, as without one, one period applies.
        let holds = provider
            .reset_after
            .filter(|reset| *reset <= RETRY_AFTER_MAX)
            .unwrap_or(period);
        self.provider = Some((provider.remaining, now + holds));
    }

    /// Evaluates the remaining counts: after every response, and at [`Degrade::next_tick`].
    pub fn evaluate(
        &mut self,
        settings: &DegradeSettings,
        local: LocalQuota,
        now: Micros,
    ) -> DegradeChange {
        if self.provider.is_some_and(|(_, until)| now >= until) {
            self.provider = None;
            self.reset_passed = self.until.is_some();
        }
        let remaining = self.remaining(local, now);
        match self.until {
            None if remaining < settings.below => self.close(settings, local, now),
            None => DegradeChange::None,
            Some(_) if remaining >= self.ends_at(settings) => self.end(),
            Some(until) if now < until => DegradeChange::None,
            Some(_) => self.close(settings, local, now),
        }
    }

    /// An operator ends it. The provider's last count is cleared too, or degrade would begin again.
    pub fn reset(&mut self) -> DegradeChange {
        self.provider = None;
        if self.until.is_some() {
            self.end()
        } else {
            DegradeChange::None
        }
    }

    /// Applies the view of the scope in the ledger: at the start, and when another process has
    /// changed it.
    pub fn on_scope_view(&mut self, view: ScopeView, now: Micros) {
        match view {
            ScopeView::Open | ScopeView::Paced { .. } | ScopeView::Probing => {
                self.until = None;
                self.reset_passed = false;
            }
            ScopeView::Closed {
                remaining: Some(remaining),
            } => self.until = Some(now + remaining),
            ScopeView::Closed { remaining: None }
            | ScopeView::CacheOnly { .. }
            | ScopeView::Paused { .. } => {}
        }
    }

    /// The smaller of our count and the provider's, while its reset lies ahead.
    #[must_use]
    pub fn remaining(&self, local: LocalQuota, now: Micros) -> u64 {
        match self.provider {
            Some((provider, until)) if now < until => local.remaining.min(provider),
            Some(_) | None => local.remaining,
        }
    }

    /// Is the scope served from the cache only?
    #[must_use]
    pub fn is_on(&self, now: Micros) -> bool {
        self.until.is_some_and(|until| now < until)
    }

    /// It has begun, and no response has ended it.
    #[must_use]
    pub fn is_active(&self) -> bool {
        self.until.is_some()
    }

    /// When to evaluate again; `None` = not before the next response.
    #[must_use]
    pub fn next_tick(&self) -> Option<Micros> {
        self.until
    }

    fn ends_at(&self, settings: &DegradeSettings) -> u64 {
        if self.reset_passed {
            settings.below
        } else {
            settings.recover
        }
    }

    /// Closes until the later of: the provider's count expires, our own count may have recovered. Whoever sees it
    /// then evaluates again; if nobody does, because this process has ended, it is open.
    fn close(
        &mut self,
        settings: &DegradeSettings,
        local: LocalQuota,
        now: Micros,
    ) -> DegradeChange {
        let provider = self
            .provider
            .filter(|(remaining, _)| *remaining < self.ends_at(settings))
            .map_or(Span::ZERO, |(_, until)| until.since(now));
        let local = if local.remaining < self.ends_at(settings) {
            refill_time(local, self.ends_at(settings))
        } else {
            Span::ZERO
        };
        let closed_for = provider.max(local).max(RECHECK_MIN);
        self.until = Some(now + closed_for);
        DegradeChange::Degraded { closed_for }
    }

    fn end(&mut self) -> DegradeChange {
        self.until = None;
        self.reset_passed = false;
        DegradeChange::Recovered
    }
}

/// When our own count may reach `wanted`, if it refills evenly. A window that frees several slots
/// at once is evaluated again at that time, each time closer to the exact one.
fn refill_time(local: LocalQuota, wanted: u64) -> Span {
    let full = local.full_after.unwrap_or(local.period).min(local.period);
    let missing = wanted.saturating_sub(local.remaining);
    let used = local.limit.saturating_sub(local.remaining);
    if missing >= used {
        return full;
    }
    full.scale_up(missing, used)
}

impl DegradeChange {
    /// The settle for the ledger.
    #[must_use]
    pub fn settle(self, scope: ScopeId) -> Option<Settle> {
        match self {
            DegradeChange::None => None,
            DegradeChange::Degraded { closed_for } => Some(Settle::Close {
                scope,
                age: Span::ZERO,
                closed_for: Some(closed_for + LOOK_FIRST),
                reopen: Reopen::All,
            }),
            DegradeChange::Recovered => Some(Settle::Open { scope }),
        }
    }
}
