//! How much of its quota a run has used.
//!
//! Promises: the denominator is defined per way of counting, ramp at both ends included, so that
//! 100 % is the result of a client that knew every arrival time, on an unused rule.
//!
//! Never: counts limited requests as use.

use tollgate_core::time::{Micros, Span};

use crate::rule::{Counting, RuleSpec};

use super::{ArrivalFilter, Checker};

/// Units accepted, and the units the rule would have allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuotaUse {
    /// Units of accepted arrivals in the span.
    pub accepted: u64,
    /// Units the rule would have allowed in it.
    pub allowed: u64,
}

impl QuotaUse {
    /// The used part in percent; 0 where nothing was allowed.
    #[must_use]
    #[expect(
        clippy::cast_precision_loss,
        reason = "a figure for people; logs are far below 2^52"
    )]
    pub fn percent(self) -> f64 {
        if self.allowed == 0 {
            0.0
        } else {
            100.0 * self.accepted as f64 / self.allowed as f64
        }
    }
}

impl Checker {
    /// The use of a rule's quota by requests accepted in `[from, to)`, against [`allowance`].
    /// `None` for in-flight limits, which have no quota over time. A rule whose limit changed is
    /// judged span by span.
    #[must_use]
    pub fn quota_used(&self, rule: &RuleSpec, from: Micros, to: Micros) -> Option<QuotaUse> {
        let allowed = allowance(&rule.counting, from, to)?;
        let accepted = self
            .filtered(ArrivalFilter::Accepted)
            .filter(|arrival| from <= arrival.at && arrival.at < to)
            .fold(0, |sum: u64, arrival| {
                sum.saturating_add(arrival.cost.of(rule.unit))
            });
        Some(QuotaUse { accepted, allowed })
    }
}

/// The most units a rule unused at `from` can accept in `[from, to)`:
///
/// - sliding and first-use windows: N at `from` and again every W, so a begun window counts whole;
/// - fixed windows: N per window the span touches;
/// - binned and two-counter windows: as sliding and fixed, an upper bound that no client reaches
///   from the second window on;
/// - buckets: the burst, and what flows in during the span (ticks inside it, if it ticks);
/// - in flight: no quota over time, `None`.
#[must_use]
pub fn allowance(counting: &Counting, from: Micros, to: Micros) -> Option<u64> {
    let span = to.since(from);
    if span == Span::ZERO {
        return counting.window().map(|_| 0);
    }
    match *counting {
        Counting::Sliding { limit, window }
        | Counting::FirstUse { limit, window }
        | Counting::Binned { limit, window, .. } => {
            Some(limit.saturating_mul(span.0.div_ceil(window.0.max(1))))
        }
        Counting::Fixed {
            limit,
            window,
            phase,
        }
        | Counting::TwoCounter {
            limit,
            window,
            phase,
        } => {
            let touched = edges_until(to - Span(1), window, phase)
                .saturating_sub(edges_until(from, window, phase))
                .saturating_add(1);
            Some(limit.saturating_mul(touched))
        }
        Counting::Bucket {
            limit,
            window,
            burst,
            tick,
        } => {
            let tick = tick.map_or(1, |tick| tick.0.max(1));
            let ticks = (to.0 - 1) / tick - from.0 / tick;
            let inflow = u128::from(ticks) * u128::from(tick) * u128::from(limit)
                / u128::from(window.0.max(1));
            Some(burst.saturating_add(u64::try_from(inflow).unwrap_or(u64::MAX)))
        }
        Counting::InFlight { .. } => None,
    }
}

/// How many edges lie at or before `at`, up to a constant.
fn edges_until(at: Micros, window: Span, phase: Span) -> u64 {
    let window = window.0.max(1);
    let phase = phase.0 % window;
    // Edges at phase + k·W with k ≥ 0; before the first of them there is none.
    if at.0 < phase {
        0
    } else {
        (at.0 - phase) / window + 1
    }
}
