//! The extra local limit on rate and concurrency, in addition to the provider's limits.
//!
//! Promises: a pace only ever slows down. A rate never exceeds the base, concurrency never falls
//! below one, and nothing here is a float.
//!
//! Never: enforces itself. The permit stage adds the pace as one more local limit.

use super::settings::HealthSettings;
use crate::ask::CostUnit;
use crate::limit::{Algorithm, Rule};
use crate::rate::Rate;
use crate::time::{Micros, Span};

/// Limits with a longer period are quotas, not rates: with 1 000 a day beside 35 a second, half the
/// rate must not become one call in three minutes.
const SPEED_PERIOD_MAX: Span = Span::from_secs(60);

/// The full pace that the provider's limits allow. `None` = no such limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BasePace {
    /// Limit over period of the tightest limit.
    pub rate: Option<Rate>,
    /// Calls at a time.
    pub concurrency: Option<u32>,
}

/// An extra local limit. `None` = nothing beside the provider's own limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pace {
    /// At most this many calls per second, evenly.
    pub rate: Option<Rate>,
    /// At most this many at a time.
    pub concurrency: Option<u32>,
}

/// The ramp back to the base pace after a recovery (A15).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ramp {
    pub(super) rate: Rate,
    pub(super) next: Micros,
}

impl BasePace {
    /// The base pace of a provider with these limits: the lowest rate among its limits on calls of
    /// a minute or shorter (among all, if none is that short), and the lowest concurrency.
    #[must_use]
    pub fn of<'a>(rules: impl IntoIterator<Item = &'a Rule>) -> BasePace {
        let mut base = BasePace::default();
        let mut tightest: Option<(bool, Rate)> = None;
        let counted = rules
            .into_iter()
            .filter(|rule| rule.cost_unit() == CostUnit::Calls && !rule.is_shadow());
        for rule in counted {
            match rule.algorithm() {
                Algorithm::InFlight => {
                    let most = u32::try_from(rule.limit()).unwrap_or(u32::MAX);
                    base.concurrency = Some(base.concurrency.map_or(most, |old| old.min(most)));
                }
                Algorithm::Sliding { .. }
                | Algorithm::Bucket { .. }
                | Algorithm::Fixed { .. }
                | Algorithm::Calendar(_)
                | Algorithm::Paced { .. } => {
                    let is_budget = rule.period() > SPEED_PERIOD_MAX;
                    let found = (is_budget, Rate::of(rule.limit(), rule.period()));
                    tightest = Some(tightest.map_or(found, |old| old.min(found)));
                }
            }
        }
        base.rate = tightest.map(|(_, rate)| rate);
        base
    }

    /// A3: `min(base, max(5, ⌊base/2⌋))`, and half the concurrency, at least one. If the rate
    /// equals the base rate, there is no extra rate limit.
    pub(super) fn throttled(self, settings: &HealthSettings) -> Pace {
        Pace {
            rate: self.throttle_rate(settings),
            concurrency: self.concurrency.map(|most| {
                let part = settings.throttle_factor.times(u64::from(most));
                let part = u32::try_from(part).unwrap_or(most);
                most.min(part.max(settings.throttle_min_concurrency))
            }),
        }
    }

    /// A15: the first rate after a recovery.
    pub(super) fn throttle_rate(self, settings: &HealthSettings) -> Option<Rate> {
        let base = self.rate?;
        let part = base.times(settings.throttle_factor).whole();
        let rate = part.max(settings.throttle_min_rate);
        (rate < base).then_some(rate)
    }

    /// A6: `min(3/s, rate)`.
    pub(super) fn probe_rate(self, settings: &HealthSettings) -> Rate {
        let rate = self.throttle_rate(settings).or(self.rate);
        rate.map_or(settings.probe_rate, |rate| rate.min(settings.probe_rate))
    }
}

impl Ramp {
    /// One step up; `None` when the base rate is reached.
    pub(super) fn next_step(self, base: BasePace, settings: &HealthSettings) -> Option<Ramp> {
        let rate = self.rate.times(settings.ramp.factor);
        base.rate.filter(|&most| rate < most).map(|_| Ramp {
            rate,
            next: self.next + settings.ramp.every,
        })
    }
}
