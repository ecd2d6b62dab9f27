//! Shares and factors in whole parts per million.
//!
//! Promises: comparisons are exact (cross-multiplied, never divided); arithmetic saturates and
//! never panics. So 10 of 50 results reach `0.20` on every machine.
//!
//! Never: a float. A threshold that decides about calls must not depend on rounding.

use std::fmt;

/// A share (`0.20`) or a factor (`1.1`) in millionths: six decimals are more than anybody writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ppm(pub u32);

impl Ppm {
    /// Nothing.
    pub const ZERO: Ppm = Ppm(0);
    /// The whole, or times one.
    pub const ONE: Ppm = Ppm(1_000_000);

    /// Whole percent: `Ppm::percent(20)` is `0.20`.
    #[must_use]
    pub const fn percent(percent: u32) -> Ppm {
        Ppm(percent.saturating_mul(10_000))
    }

    /// `part / whole`, rounded down, for display. With `whole` = 0 it is 0.
    #[must_use]
    pub fn of(part: u64, whole: u64) -> Ppm {
        let scaled = u128::from(part) * u128::from(Ppm::ONE.0);
        let share = scaled.checked_div(u128::from(whole)).unwrap_or(0);
        Ppm(u32::try_from(share).unwrap_or(u32::MAX))
    }

    /// Is `part / whole` at least this share? Exact; with `whole` = 0 the share is 0.
    #[must_use]
    pub fn is_reached_by(self, part: u64, whole: u64) -> bool {
        let part = if whole == 0 { 0 } else { part };
        u128::from(part) * u128::from(Ppm::ONE.0) >= u128::from(self.0) * u128::from(whole.max(1))
    }

    /// `n` times this, rounded down; saturates.
    #[must_use]
    pub fn times(self, n: u64) -> u64 {
        let product = u128::from(n) * u128::from(self.0) / u128::from(Ppm::ONE.0);
        u64::try_from(product).unwrap_or(u64::MAX)
    }
}

impl fmt::Display for Ppm {
    /// `0.24`, `1.1`, `0.333333`: at least one decimal, no trailing zeros beyond it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = self.0 / Ppm::ONE.0;
        let mut rest = self.0 % Ppm::ONE.0;
        let mut width = 6;
        while width > 1 && rest.is_multiple_of(10) {
            rest /= 10;
            width -= 1;
        }
        write!(f, "{whole}.{rest:0width$}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_threshold_is_reached_exactly_at_its_share() {
        let fifth = Ppm::percent(20);
        assert!(fifth.is_reached_by(10, 50));
        assert!(!fifth.is_reached_by(9, 50));
        assert!(!fifth.is_reached_by(u64::MAX / 6, u64::MAX));
        assert!(!fifth.is_reached_by(3, 0), "a share of zero results is 0");
        assert!(Ppm::ZERO.is_reached_by(0, 0));
    }

    #[test]
    fn products_round_down_and_saturate() {
        assert_eq!(Ppm::percent(50).times(35), 17);
        assert_eq!(Ppm(1_100_000).times(17_000_000), 18_700_000);
        assert_eq!(Ppm(u32::MAX).times(u64::MAX), u64::MAX);
    }

    #[test]
    fn a_share_prints_as_people_write_it() {
        assert_eq!(Ppm::of(12, 50).to_string(), "0.24");
        assert_eq!(Ppm::of(1, 3).to_string(), "0.333333");
        assert_eq!(Ppm::of(0, 0).to_string(), "0.0");
        assert_eq!(Ppm(1_050_000).to_string(), "1.05");
    }
}
