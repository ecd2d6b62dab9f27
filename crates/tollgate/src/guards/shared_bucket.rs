//! Token buckets that are stored in Redis, as numbers.
//!
//! Promises: exact, as the guard table is: what the script returns is a whole number of parts of a token, and
//! waits are rounded up to the next microsecond. A bucket expires only after it is full.
//!
//! Never: reads a clock, or a store.

use std::num::NonZeroU64;

use tollgate_core::time::Span;

/// The script's numbers are exact up to here.
const PERIOD_MAX: u64 = 1 << 52;

/// A bucket is stored for so much longer than it takes to fill: its expiry is rounded, and the clock of
/// the server may be set back a little.
const EXPIRY_MARGIN_MS: u128 = 1_000;

/// The longest expiry that Redis can add to its clock: 285 years.
const EXPIRY_MAX_MS: u128 = 1 << 43;

/// Gains `limit` tokens in `period` microseconds, and holds `burst`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SharedPace {
    limit: NonZeroU64,
    period: u64,
    burst: u32,
}

/// The tokens of a bucket: whole ones, and parts of one, each 1/`period`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SharedLevel {
    pub(super) tokens: u64,
    pub(super) parts: u64,
}

impl SharedPace {
    /// `None` if the limit cannot be counted: a zero, or a period of more than 142 years after `limit` and
    /// `period` were divided by what both have in common.
    pub(super) fn new(limit: u32, period: Span, burst: u32) -> Option<SharedPace> {
        let divisor = common_divisor(period.0, u64::from(limit));
        let limit = NonZeroU64::new(u64::from(limit).checked_div(divisor)?)?;
        let period = period.0.checked_div(divisor)?;
        let fits = (1..=PERIOD_MAX).contains(&period) && burst > 0;
        fits.then_some(SharedPace {
            limit,
            period,
            burst,
        })
    }

    /// What the script takes of it: limit, period, burst, and the expiry in milliseconds.
    pub(super) fn arguments(&self) -> [u64; 4] {
        let fill = u128::from(self.period) * u128::from(self.burst) / u128::from(self.limit.get());
        let expiry = (fill / 1_000 + 1 + EXPIRY_MARGIN_MS).min(EXPIRY_MAX_MS);
        let expiry = u64::try_from(expiry).unwrap_or(u64::MAX);
        [self.limit.get(), self.period, self.burst.into(), expiry]
    }

    pub(super) fn burst(&self) -> u32 {
        self.burst
    }

    /// How long until the bucket has so many tokens; zero if it has.
    pub(super) fn wait(&self, level: SharedLevel, tokens: u64) -> Span {
        let needed = u128::from(tokens) * u128::from(self.period);
        let held = u128::from(level.tokens) * u128::from(self.period) + u128::from(level.parts);
        let wait = needed
            .saturating_sub(held)
            .div_ceil(self.limit.get().into());
        Span(u64::try_from(wait).unwrap_or(u64::MAX))
    }

    /// How long until the bucket is full.
    pub(super) fn full_in(&self, level: SharedLevel) -> Span {
        self.wait(level, self.burst.into())
    }

    /// Millionths of a token, rounded down.
    pub(super) fn micro_tokens(&self, level: SharedLevel) -> u64 {
        let parts = u128::from(level.parts) * 1_000_000 / u128::from(self.period.max(1));
        let whole = level.tokens.saturating_mul(1_000_000);
        whole.saturating_add(u64::try_from(parts).unwrap_or(0))
    }
}

fn common_divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { common_divisor(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Span = Span::from_secs(60);

    #[test]
    fn waits_are_exact_and_rounded_up() {
        // Seven a minute: a token takes 8,571,428.57 µs.
        let pace = SharedPace::new(7, MINUTE, 5).unwrap();
        let empty = SharedLevel::default();
        assert_eq!(pace.wait(empty, 1), Span(8_571_429));
        assert_eq!(pace.wait(empty, 5), Span(42_857_143));
        let part = SharedLevel {
            tokens: 0,
            parts: 59_999_999,
        };
        assert_eq!(
            (pace.wait(part, 1), pace.micro_tokens(part)),
            (Span(1), 999_999)
        );
        let full = SharedLevel {
            tokens: 5,
            parts: 0,
        };
        assert_eq!(pace.full_in(full), Span::ZERO);
    }

    /// C1: the expiry is never shorter than the refill.
    #[test]
    fn c1_a_bucket_expires_after_it_is_full() {
        for (limit, period, burst) in [
            (10, MINUTE, 5),
            (1, Span::from_secs(86_400), 365),
            (u32::MAX, Span(1), 1),
            (1, Span::from_secs(86_400), u32::MAX),
        ] {
            let pace = SharedPace::new(limit, period, burst).unwrap();
            let [.., expiry] = pace.arguments();
            let fill = pace.full_in(SharedLevel::default());
            let is_bounded = u128::from(expiry) == EXPIRY_MAX_MS;
            assert!(expiry * 1_000 > fill.0 || is_bounded, "{pace:?}");
        }
    }

    #[test]
    fn a_limit_that_cannot_be_counted_is_none() {
        assert_eq!(SharedPace::new(0, MINUTE, 5), None);
        assert_eq!(SharedPace::new(5, MINUTE, 0), None);
        assert_eq!(SharedPace::new(5, Span::ZERO, 5), None);
        assert_eq!(SharedPace::new(1, Span(u64::MAX), 5), None);
        assert!(SharedPace::new(u32::MAX, Span::from_secs(86_400), u32::MAX).is_some());
    }
}
