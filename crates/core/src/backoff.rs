//! How long to wait before the next try, and how a `Retry-After` is bounded.
//!
//! Promises: one formula, `base × factorⁿ ≤ max` with n = 0 first, and three kinds of jitter. The
//! random number is an argument, so a seed repeats a run. A hostile `Retry-After` (0, the past, a
//! century) is raised to a floor or counts as absent.
//!
//! Never: decides whether to try again. `retry` does for one call, `cooldown` for a whole scope.

#[cfg(test)]
mod tests;

use crate::problem::Problems;
use crate::ratio::Ppm;
use crate::time::Span;

/// The longest `Retry-After` that is honoured (A9). Quotas are monthly at most, so a longer one is
/// a mistake or an attack, and counts as absent.
pub const RETRY_AFTER_MAX: Span = Span::from_secs(31 * 86_400);

/// The wait for a `Retry-After` of 0, or one in the past by our clock (A9): both come from clock
/// skew, and a retry at once would only be limited again.
pub const RETRY_AFTER_FLOOR: Span = Span::from_secs(1);

/// The largest exponent that is computed. 2⁶⁴ µs are half a million years: every useful backoff
/// reaches its maximum long before, so the loop is short whatever the counter.
const EXPONENT_MAX: u32 = 64;

/// One random number, uniform over all of `u64`. The caller draws it; `core` only uses it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dice(pub u64);

/// The jitter of a computed wait, so that callers limited together do not return together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Jitter {
    /// Exactly as computed.
    None,
    /// The computed wait plus up to this fraction of it.
    Additive(Ppm),
    /// Anything between zero and the computed wait.
    #[default]
    Full,
}

/// `base × factorⁿ`, at most `max`, with `jitter`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// The first wait.
    pub base: Span,
    /// The factor from one wait to the next.
    pub factor: Ppm,
    /// The longest wait, before additive jitter.
    pub max: Span,
    /// The jitter.
    pub jitter: Jitter,
}

impl Dice {
    /// A uniform length between zero and `most`, both included.
    #[must_use]
    pub fn within(self, most: Span) -> Span {
        let scaled = (u128::from(self.0) * (u128::from(most.0) + 1)) >> 64;
        Span(u64::try_from(scaled).unwrap_or(u64::MAX))
    }
}

impl Jitter {
    /// Applies the jitter to a wait.
    #[must_use]
    pub fn spread(self, wait: Span, dice: Dice) -> Span {
        match self {
            Jitter::None => wait,
            Jitter::Additive(share) => wait + dice.within(Span(share.times(wait.0))),
            Jitter::Full => dice.within(wait),
        }
    }
}

impl Default for Backoff {
    /// A10: 1.5 s, doubled up to 30 s, full jitter. Full, because many callers fail together.
    fn default() -> Backoff {
        Backoff {
            base: Span::from_millis(1_500),
            factor: Ppm(2_000_000),
            max: Span::from_secs(30),
            jitter: Jitter::Full,
        }
    }
}

impl Backoff {
    /// The wait before jitter; `n` = 0 first.
    #[must_use]
    pub fn ceiling(&self, n: u32) -> Span {
        exponential(self.base, self.factor, n, self.max)
    }

    /// The wait with jitter.
    #[must_use]
    pub fn wait(&self, n: u32, dice: Dice) -> Span {
        self.jitter.spread(self.ceiling(n), dice)
    }

    /// Every problem of a `retry` or `cooldown` block, with the user's setting names.
    pub(crate) fn check(&self, names: &BackoffNames, problems: &mut Problems) {
        problems.unless(
            self.base > Span::ZERO && self.base <= self.max,
            names.base,
            "must be above 0s and not above `max`; write `1s`",
        );
        problems.unless(
            self.factor >= Ppm::ONE && self.factor <= FACTOR_MAX,
            names.factor,
            "must be between 1 and 100; write `2`",
        );
        problems.unless(
            self.max <= RETRY_AFTER_MAX,
            names.max,
            "must not be above 31d; write `30s`",
        );
        let additive_fits = match self.jitter {
            Jitter::Additive(share) => share <= Ppm::ONE,
            Jitter::None | Jitter::Full => true,
        };
        problems.unless(
            additive_fits,
            names.jitter,
            "an additive jitter must be between 0 and 1; write `0.3`",
        );
    }
}

/// The largest useful factor: the second wait is a hundred times the first.
pub(crate) const FACTOR_MAX: Ppm = Ppm(100_000_000);

/// The setting names of a backoff in its block.
#[derive(Debug)]
pub(crate) struct BackoffNames {
    base: &'static str,
    factor: &'static str,
    max: &'static str,
    jitter: &'static str,
}

impl BackoffNames {
    pub(crate) const RETRY: BackoffNames = BackoffNames {
        base: "retry.base",
        factor: "retry.factor",
        max: "retry.max",
        jitter: "retry.jitter",
    };
    pub(crate) const COOLDOWN: BackoffNames = BackoffNames {
        base: "cooldown.base",
        factor: "cooldown.factor",
        max: "cooldown.max",
        jitter: "cooldown.jitter",
    };
}

/// The wait that a `Retry-After` causes (A9): at least `floor`, absent if above 31 days.
#[must_use]
pub fn effective_retry_after(retry_after: Option<Span>, floor: Span) -> Option<Span> {
    retry_after
        .filter(|&wait| wait <= RETRY_AFTER_MAX)
        .map(|wait| wait.max(floor))
}

/// `base × factorⁿ`, at most `max`.
pub(crate) fn exponential(base: Span, factor: Ppm, n: u32, max: Span) -> Span {
    let mut wait = base;
    for _ in 0..n.min(EXPONENT_MAX) {
        if wait >= max {
            break;
        }
        wait = Span(factor.times(wait.0));
    }
    Span(wait.0.min(max.0))
}
