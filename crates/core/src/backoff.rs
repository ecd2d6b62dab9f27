//! How long to wait before the next try, and what a `Retry-After` is worth.
//!
//! Promises: one formula, `base × factorⁿ ≤ max` with n = 0 first, and three ways to spread it. The
//! dice are an argument, so a seed repeats a run. A hostile `Retry-After` (0, the past, a century)
//! is floored or counts as absent.
//!
//! Never: decides whether to try again. `retry` does for one call, `cooldown` for a whole scope.

#[cfg(test)]
mod tests;

use crate::problem::Problems;
use crate::ratio::Ppm;
use crate::time::Span;

/// The longest `Retry-After` that is honoured (A9). Quotas are monthly at most, so anything longer
/// is a mistake or an attack, and counts as absent.
pub const RETRY_AFTER_MAX: Span = Span::from_secs(31 * 86_400);

/// What a `Retry-After` of 0, or one that has passed by our clock, is taken for (A9): both come
/// from clock skew, and trying at once would only be refused again.
pub const RETRY_AFTER_FLOOR: Span = Span::from_secs(1);

/// The largest exponent that is computed. 2⁶⁴ µs are half a million years: every useful backoff
/// has met its maximum long before, so the loop is short whatever a counter says.
const EXPONENT_MAX: u32 = 64;

/// One throw: uniform over all of `u64`. The edge throws it, the rules only read it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dice(pub u64);

/// How a computed wait is spread, so that callers refused together do not return together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Jitter {
    /// Exactly as computed.
    None,
    /// As computed, and up to this share of it on top.
    Additive(Ppm),
    /// Anything between nothing and what was computed.
    #[default]
    Full,
}

/// `base × factorⁿ`, at most `max`, spread by `jitter`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// The first wait.
    pub base: Span,
    /// By how much each further one is longer.
    pub factor: Ppm,
    /// The longest one, before additive jitter.
    pub max: Span,
    /// How it is spread.
    pub jitter: Jitter,
}

impl Dice {
    /// A length between nothing and `most`, both included, uniform.
    #[must_use]
    pub fn within(self, most: Span) -> Span {
        let scaled = (u128::from(self.0) * (u128::from(most.0) + 1)) >> 64;
        Span(u64::try_from(scaled).unwrap_or(u64::MAX))
    }
}

impl Jitter {
    /// Spreads a wait.
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
    /// The wait before it is spread; `n` = 0 first.
    #[must_use]
    pub fn ceiling(&self, n: u32) -> Span {
        exponential(self.base, self.factor, n, self.max)
    }

    /// The wait, spread.
    #[must_use]
    pub fn wait(&self, n: u32, dice: Dice) -> Span {
        self.jitter.spread(self.ceiling(n), dice)
    }

    /// Every problem of a `retry` or `cooldown` block, named as the user wrote it.
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

/// The largest factor that makes sense: a second step of a hundred first ones.
pub(crate) const FACTOR_MAX: Ppm = Ppm(100_000_000);

/// What the parts of a backoff are called in the block they stand in.
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

/// What a `Retry-After` is worth (A9): at least `floor`, absent if above 31 days.
#[must_use]
pub fn effective_retry_after(retry_after: Option<Span>, floor: Span) -> Option<Span> {
    retry_after
        .filter(|&told| told <= RETRY_AFTER_MAX)
        .map(|told| told.max(floor))
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
