//! Degrade mode: when little is left, a scope is served from the cache only (S6).
//!
//! Promises: it begins below `below` and ends at `recover` or more, judged by the smaller of our
//! count and the provider's while its reset lies ahead. It cannot stick: the scope in the ledger is
//! closed for a known time only, the provider's word expires with its reset (or after one period
//! if it named none), our own count refills, and an operator can end it.
//!
//! Never: reads a count itself. What is left comes in, when to look again goes out.

#[cfg(test)]
mod tests;

use crate::ask::{Reopen, ScopeId, Settle};
use crate::backoff::RETRY_AFTER_MAX;
use crate::problem::{Problem, Problems};
use crate::scope::ScopeView;
use crate::time::{Micros, Span};

/// The shortest time between two looks at a count that refills by itself: finer steps would be
/// polling, and a second is little beside the hour such quotas have.
const RECHECK_MIN: Span = Span::from_secs(1);

/// When to save what is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DegradeSettings {
    /// It begins below this many: 200.
    pub below: u64,
    /// It ends at this many or more: 400, twice as many, so that it does not flap.
    pub recover: u64,
}

/// What we count ourselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalQuota {
    /// What is left of the scope's tightest limit.
    pub remaining: u64,
    /// All of it.
    pub limit: u64,
    /// When all of it will be back, if that is known.
    pub full_after: Option<Span>,
    /// The limit's period: nothing takes longer.
    pub period: Span,
}

/// What the provider said is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProviderQuota {
    /// How much.
    pub remaining: u64,
    /// Until when that holds.
    pub reset_after: Option<Span>,
}

/// The degrade mode of one scope.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Degrade {
    /// The provider's last word, and when it expires.
    provider: Option<(u64, Micros)>,
    /// Degraded until then, if nothing ends it earlier.
    until: Option<Micros>,
    /// The provider's reset has passed since it began: then `below` is enough to end it.
    reset_passed: bool,
}

/// What follows from a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DegradeChange {
    /// Nothing.
    None,
    /// Cache only for this long; then look again.
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
    /// The provider said something about what is left.
    pub fn on_provider_quota(&mut self, theirs: ProviderQuota, period: Span, now: Micros) {
        // A reset beyond all quotas is a mistake: then, as without one, a period is all we believe.
        let holds = theirs
            .reset_after
            .filter(|reset| *reset <= RETRY_AFTER_MAX)
            .unwrap_or(period);
        self.provider = Some((theirs.remaining, now + holds));
    }

    /// Looks at what is left now: after every answer, and when [`Degrade::next_tick`] says so.
    pub fn evaluate(
        &mut self,
        settings: &DegradeSettings,
        ours: LocalQuota,
        now: Micros,
    ) -> DegradeChange {
        if self.provider.is_some_and(|(_, until)| now >= until) {
            self.provider = None;
            self.reset_passed = self.until.is_some();
        }
        let remaining = self.remaining(ours, now);
        match self.until {
            None if remaining < settings.below => self.close(settings, ours, now),
            None => DegradeChange::None,
            Some(_) if remaining >= self.ends_at(settings) => self.end(),
            Some(until) if now < until => DegradeChange::None,
            Some(_) => self.close(settings, ours, now),
        }
    }

    /// An operator ends it. The provider's last word is forgotten too, or it would begin again.
    pub fn reset(&mut self) -> DegradeChange {
        self.provider = None;
        if self.until.is_some() {
            self.end()
        } else {
            DegradeChange::None
        }
    }

    /// What the scope looks like in the ledger: at the start, and when another process has
    /// changed it.
    pub fn on_scope_view(&mut self, view: ScopeView, now: Micros) {
        match view {
            ScopeView::Open | ScopeView::Probing => {
                self.until = None;
                self.reset_passed = false;
            }
            ScopeView::Closed {
                remaining: Some(left),
            } => self.until = Some(now + left),
            ScopeView::Closed { remaining: None } | ScopeView::CacheOnly { .. } => {}
        }
    }

    /// The smaller of ours and the provider's, while its reset lies ahead.
    #[must_use]
    pub fn remaining(&self, ours: LocalQuota, now: Micros) -> u64 {
        match self.provider {
            Some((theirs, until)) if now < until => ours.remaining.min(theirs),
            Some(_) | None => ours.remaining,
        }
    }

    /// Is the scope served from the cache only?
    #[must_use]
    pub fn is_on(&self, now: Micros) -> bool {
        self.until.is_some_and(|until| now < until)
    }

    /// When to look again; `None` = not before the next answer.
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

    /// Closes until the later of: the provider's word expires, our own count may have recovered.
    fn close(
        &mut self,
        settings: &DegradeSettings,
        ours: LocalQuota,
        now: Micros,
    ) -> DegradeChange {
        let theirs = self
            .provider
            .filter(|(remaining, _)| *remaining < self.ends_at(settings))
            .map_or(Span::ZERO, |(_, until)| until.since(now));
        let ours = if ours.remaining < self.ends_at(settings) {
            refill_time(ours, self.ends_at(settings))
        } else {
            Span::ZERO
        };
        let rest = theirs.max(ours).max(RECHECK_MIN);
        self.until = Some(now + rest);
        DegradeChange::Degraded { closed_for: rest }
    }

    fn end(&mut self) -> DegradeChange {
        self.until = None;
        self.reset_passed = false;
        DegradeChange::Recovered
    }
}

/// When our own count may have reached `wanted`, as if it refilled evenly. A window that frees in
/// lumps is looked at again then, each time nearer to the truth.
fn refill_time(ours: LocalQuota, wanted: u64) -> Span {
    let full = ours.full_after.unwrap_or(ours.period).0.min(ours.period.0);
    let missing = wanted.saturating_sub(ours.remaining);
    let used = ours.limit.saturating_sub(ours.remaining);
    if missing >= used {
        return Span(full);
    }
    Span(full).scale_up(missing, used)
}

impl DegradeChange {
    /// What the ledger is told.
    #[must_use]
    pub fn settle(self, scope: ScopeId) -> Option<Settle> {
        match self {
            DegradeChange::None => None,
            DegradeChange::Degraded { closed_for: rest } => Some(Settle::Close {
                scope,
                age: Span::ZERO,
                closed_for: Some(rest),
                reopen: Reopen::All,
            }),
            DegradeChange::Recovered => Some(Settle::Open { scope }),
        }
    }
}
