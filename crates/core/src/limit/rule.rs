//! One limit as it is applied: at most N per period, by one algorithm.
//!
//! Promises: every `Rule` is valid (N ≥ 1, a period, a depth); every derived length is rounded to
//! the safe side. Numbers stay below 2⁵³, so stores whose numbers are doubles count the same.
//!
//! Never: holds state. The cell does.

use std::fmt;

use crate::ask::CostUnit;
use crate::limit::algorithm::{Algorithm, HoldUntil, RuleError, SettleAt};
use crate::limit::calendar::Calendar;
use crate::time::Span;

/// The largest number a limit or a cost may have: what a double holds exactly.
pub const AMOUNT_MAX: u64 = 1 << 53;

/// The longest period: 400 days covers a yearly quota with its edge.
pub const PERIOD_MAX: Span = Span::from_secs(400 * 86_400);

/// How much faster or slower than ours the provider's clock may run. NTP slews up to 500 ppm and
/// chrony more, so twice that.
pub const DRIFT_PPM: u64 = 1_000;

/// Above this many slots a log stores sub-windows instead of single slots.
pub const SLOTS_EXACT: u64 = 2_048;

/// The number of sub-windows. They waste at most 1/512 of the quota, on average as much as drift
/// does; a store writes all of them with every transaction, at up to 8 bytes each.
pub const SUB_WINDOWS: u64 = 512;

/// How long a finished call still counts as running: real servers free the slot slightly after
/// the last byte has left.
pub const IN_FLIGHT_TAIL: Span = Span::from_millis(2);

/// One limit as it is applied.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    algorithm: Algorithm,
    limit: u64,
    unit: CostUnit,
    settle_at: SettleAt,
    hold_until: HoldUntil,
    counter_lag: Span,
    drift_ppm: u64,
    headroom: u64,
    shadow: bool,
    of_one_process: bool,
    learned: bool,
}

impl Rule {
    /// At most `limit` in any `period`.
    pub fn sliding(limit: u64, period: Span) -> Result<Rule, RuleError> {
        Rule::new(
            Algorithm::Sliding {
                period: checked(period)?,
            },
            limit,
        )
    }

    /// `limit` per `period` on average, at most `burst` at once.
    pub fn bucket(limit: u64, period: Span, burst: u64) -> Result<Rule, RuleError> {
        if burst == 0 || burst > AMOUNT_MAX {
            return Err(RuleError::Burst);
        }
        Rule::new(
            Algorithm::Bucket {
                period: checked(period)?,
                burst,
            },
            limit,
        )
    }

    /// `limit` per window of `period` that opens with the first call.
    pub fn fixed(limit: u64, period: Span) -> Result<Rule, RuleError> {
        Rule::new(
            Algorithm::Fixed {
                period: checked(period)?,
            },
            limit,
        )
    }

    /// `limit` per window of the calendar.
    pub fn calendar(limit: u64, calendar: Calendar) -> Result<Rule, RuleError> {
        Rule::new(Algorithm::Calendar(calendar), limit)
    }

    /// At most `limit` in any `period`, evenly spaced.
    pub fn paced(limit: u64, period: Span) -> Result<Rule, RuleError> {
        Rule::new(
            Algorithm::Paced {
                period: checked(period)?,
            },
            limit,
        )
    }

    /// At most `limit` at a time.
    pub fn in_flight(limit: u64) -> Result<Rule, RuleError> {
        Ok(Rule::new(Algorithm::InFlight, limit)?.settle_at(SettleAt::End))
    }

    /// A bucket whose number and window only the provider's responses state. Until then nothing is
    /// known but the window that it documents.
    pub fn learned(period: Span) -> Result<Rule, RuleError> {
        let mut rule = Rule::bucket(AMOUNT_MAX, period, AMOUNT_MAX)?;
        rule.learned = true;
        Ok(rule)
    }

    fn new(algorithm: Algorithm, limit: u64) -> Result<Rule, RuleError> {
        if limit == 0 || limit > AMOUNT_MAX {
            return Err(RuleError::Limit);
        }
        Ok(Rule {
            algorithm,
            limit,
            unit: CostUnit::Calls,
            settle_at: SettleAt::Head,
            hold_until: HoldUntil::Response,
            counter_lag: Span::ZERO,
            drift_ppm: DRIFT_PPM,
            headroom: 0,
            shadow: false,
            of_one_process: false,
            learned: false,
        })
    }

    /// Sets the unit. Costs other than calls are known at the end of the body.
    #[must_use]
    pub fn unit(mut self, unit: CostUnit) -> Rule {
        self.unit = unit;
        if unit != CostUnit::Calls {
            self.settle_at = SettleAt::End;
        }
        self
    }

    /// Sets which part of a response proves that the call was counted.
    #[must_use]
    pub fn settle_at(mut self, at: SettleAt) -> Rule {
        self.settle_at = at;
        self
    }

    /// Sets when a slot starts to free.
    #[must_use]
    pub fn hold_until(mut self, hold: HoldUntil) -> Rule {
        self.hold_until = hold;
        self
    }

    /// Sets how long after the response the provider may still count the call.
    #[must_use]
    pub fn counter_lag(mut self, lag: Span) -> Rule {
        self.counter_lag = lag;
        self
    }

    /// Sets the clock error to allow for, in parts per million; 0 only where both sides share a
    /// clock.
    #[must_use]
    pub fn drift_ppm(mut self, ppm: u64) -> Rule {
        self.drift_ppm = ppm.min(500_000);
        self
    }

    /// Counts, but never rejects.
    #[must_use]
    pub fn shadow(mut self, shadow: bool) -> Rule {
        self.shadow = shadow;
        self
    }

    /// Limits one process, not what the provider counts. When its cell is lost, it starts empty: no
    /// other process has used it, and the provider does not count it.
    #[must_use]
    pub fn of_one_process(mut self) -> Rule {
        self.of_one_process = true;
        self
    }

    /// Leaves a part of the limit to users of the key outside Tollgate.
    pub fn headroom(mut self, amount: u64) -> Result<Rule, RuleError> {
        if amount >= self.limit {
            return Err(RuleError::Headroom);
        }
        self.limit -= amount;
        self.headroom += amount;
        if let Algorithm::Bucket { burst, .. } = &mut self.algorithm {
            *burst = burst.saturating_sub(amount).max(1);
        }
        Ok(self)
    }

    /// The provider refills its bucket in ticks: up to one tick of tokens may be missing when a
    /// call arrives, so that much depth is not used.
    pub fn refill_tick(mut self, tick: Span) -> Result<Rule, RuleError> {
        if let Algorithm::Bucket { period, burst } = &mut self.algorithm {
            let per_tick = u128::from(self.limit) * u128::from(tick.0);
            let missing = per_tick.div_ceil(u128::from(period.0));
            let missing = u64::try_from(missing).unwrap_or(u64::MAX);
            *burst = burst
                .checked_sub(missing)
                .filter(|&remaining| remaining > 0)
                .ok_or(RuleError::Tick)?;
        }
        Ok(self)
    }

    /// The same limit for one caller that may use at most this many thousandths of it.
    #[must_use]
    pub fn fraction(&self, permille: u16) -> Rule {
        let part = |whole: u64| {
            let part = u128::from(whole) * u128::from(permille.min(1_000)) / 1_000;
            u64::try_from(part).unwrap_or(whole).max(1)
        };
        let mut rule = self.clone();
        rule.limit = part(rule.limit);
        if let Algorithm::Bucket { burst, .. } = &mut rule.algorithm {
            *burst = part(*burst);
        }
        rule
    }

    /// The same rule with other numbers, which the caller has checked.
    pub(super) fn resized(&self, limit: u64, depth: Option<u64>) -> Rule {
        let mut rule = self.clone();
        rule.limit = limit;
        if let (Algorithm::Bucket { burst, .. }, Some(depth)) = (&mut rule.algorithm, depth) {
            *burst = depth;
        }
        rule
    }

    /// The same rule with the number and the window that a provider has stated.
    pub(super) fn stated(&self, limit: Option<u64>, period: Span) -> Rule {
        let mut rule = self.clone();
        rule.limit = limit.unwrap_or(AMOUNT_MAX);
        rule.algorithm = Algorithm::Bucket {
            period,
            burst: rule.limit,
        };
        rule
    }

    /// Are its number and window learned from responses?
    #[must_use]
    pub fn is_learned(&self) -> bool {
        self.learned
    }

    /// How it counts.
    #[must_use]
    pub fn algorithm(&self) -> &Algorithm {
        &self.algorithm
    }

    /// N, less the headroom.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// What it counts.
    #[must_use]
    pub fn cost_unit(&self) -> CostUnit {
        self.unit
    }

    /// Counts, but never rejects.
    #[must_use]
    pub fn is_shadow(&self) -> bool {
        self.shadow
    }

    /// Limits one process, not what the provider counts.
    #[must_use]
    pub fn is_of_one_process(&self) -> bool {
        self.of_one_process
    }

    /// Which part of a response settles it.
    #[must_use]
    pub fn settles_at(&self) -> SettleAt {
        self.settle_at
    }

    /// The highest cost of one ask: the depth of a bucket, N of everything else.
    #[must_use]
    pub fn max_cost(&self) -> u64 {
        match self.algorithm {
            Algorithm::Bucket { burst, .. } => burst,
            Algorithm::Sliding { .. }
            | Algorithm::Fixed { .. }
            | Algorithm::Calendar(_)
            | Algorithm::Paced { .. }
            | Algorithm::InFlight => self.limit,
        }
    }

    /// The nominal period; a calendar's is its longest.
    #[must_use]
    pub fn period(&self) -> Span {
        match &self.algorithm {
            Algorithm::Sliding { period }
            | Algorithm::Bucket { period, .. }
            | Algorithm::Fixed { period }
            | Algorithm::Paced { period } => *period,
            Algorithm::Calendar(calendar) => calendar.max_length(),
            Algorithm::InFlight => Span::ZERO,
        }
    }

    /// The period for display. Nothing is counted by it.
    #[must_use]
    pub fn display_period(&self) -> Span {
        match &self.algorithm {
            Algorithm::Calendar(calendar) => calendar.display_period(),
            Algorithm::Sliding { .. }
            | Algorithm::Bucket { .. }
            | Algorithm::Fixed { .. }
            | Algorithm::Paced { .. }
            | Algorithm::InFlight => self.period(),
        }
    }

    /// How many permits one transaction may grant. A crash between commit and send wastes its
    /// grants, so limits of a minute or longer grant at most 1 % at once.
    #[must_use]
    pub fn batch_max(&self) -> u64 {
        if self.period() >= Span::from_secs(60) {
            (self.limit / 100).max(1)
        } else {
            u64::MAX
        }
    }

    /// The period, longer by the drift: no slot frees too early.
    pub(crate) fn stretched(&self, period: Span) -> Span {
        period.scale_up(1_000_000 + self.drift_ppm, 1_000_000)
    }

    /// The period, shorter by the drift: the earliest end of the provider's period.
    pub(crate) fn shrunk(&self, period: Span) -> Span {
        period - period.scale_up(self.drift_ppm, 1_000_000)
    }

    /// The longest time for which a call that has arrived can matter to this limit.
    #[must_use]
    pub fn longest_hold(&self) -> Span {
        let period = self.stretched(self.period());
        match self.algorithm {
            // Up to 9/8 of a window when tightened, or the rest of this window and all of the next.
            Algorithm::Sliding { .. }
            | Algorithm::Paced { .. }
            | Algorithm::Fixed { .. }
            | Algorithm::Calendar(_) => period.scale_up(2, 1) + self.counter_lag,
            Algorithm::Bucket { burst, .. } => {
                period + period.scale_up(burst, self.limit) + self.counter_lag
            }
            Algorithm::InFlight => IN_FLIGHT_TAIL,
        }
    }

    /// A call that must have arrived counts as arrived before its response. Not where the response
    /// is what counts: concurrency, and costs that are known at its end.
    #[must_use]
    pub fn presumes_arrival(&self) -> bool {
        self.hold_until == HoldUntil::Arrived
            && self.settle_at == SettleAt::Head
            && self.algorithm != Algorithm::InFlight
    }

    /// When a slot starts to free.
    #[must_use]
    pub fn held_until(&self) -> HoldUntil {
        self.hold_until
    }

    /// How long after the response the provider may still count the call.
    #[must_use]
    pub fn counts_later_by(&self) -> Span {
        self.counter_lag
    }

    pub(crate) fn holds_until_send(&self) -> bool {
        self.hold_until == HoldUntil::Send
    }

    /// A limit that the provider reported, less the headroom.
    pub(crate) fn less_headroom(&self, reported: u64) -> u64 {
        reported.saturating_sub(self.headroom).max(1)
    }

    pub(crate) fn lag(&self) -> Span {
        self.counter_lag
    }
}

impl fmt::Display for Rule {
    /// `1000/1d`: the limit's name in every message that has no better one.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.algorithm {
            Algorithm::InFlight => write!(f, "{} at a time", self.limit),
            Algorithm::Calendar(calendar) => write!(f, "{}/{}", self.limit, calendar.label()),
            Algorithm::Sliding { period }
            | Algorithm::Bucket { period, .. }
            | Algorithm::Fixed { period }
            | Algorithm::Paced { period } => write!(f, "{}/{}", self.limit, ShortSpan(*period)),
        }
    }
}

/// A period as people write it: `10s`, `5m`, `6h`, `1d`, `1500ms`.
struct ShortSpan(Span);

impl fmt::Display for ShortSpan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(u64, &str); 5] = [
            (86_400_000_000, "d"),
            (3_600_000_000, "h"),
            (60_000_000, "m"),
            (1_000_000, "s"),
            (1_000, "ms"),
        ];
        for (micros, name) in UNITS {
            if self.0.0 >= micros && self.0.0.is_multiple_of(micros) {
                return write!(f, "{}{name}", self.0.0 / micros);
            }
        }
        write!(f, "{}us", self.0.0)
    }
}

fn checked(period: Span) -> Result<Span, RuleError> {
    if period == Span::ZERO || period > PERIOD_MAX {
        Err(RuleError::Period)
    } else {
        Ok(period)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_numbers_are_rejected() {
        assert_eq!(Rule::sliding(0, Span(1)), Err(RuleError::Limit));
        assert_eq!(
            Rule::sliding(AMOUNT_MAX + 1, Span(1)),
            Err(RuleError::Limit)
        );
        assert_eq!(Rule::sliding(1, Span::ZERO), Err(RuleError::Period));
        assert_eq!(Rule::bucket(1, Span(1), 0), Err(RuleError::Burst));
        assert_eq!(
            Rule::sliding(5, Span(1)).unwrap().headroom(5),
            Err(RuleError::Headroom)
        );
    }

    #[test]
    fn a_bucket_refilled_in_ticks_gives_up_one_tick_of_depth() {
        let rule = Rule::bucket(50, Span::from_secs(1), 50).unwrap();
        assert_eq!(
            rule.clone()
                .refill_tick(Span::from_millis(100))
                .unwrap()
                .max_cost(),
            45
        );
        assert_eq!(rule.refill_tick(Span::from_secs(1)), Err(RuleError::Tick));
    }

    #[test]
    fn a_transaction_grants_one_percent_of_a_long_limit_and_all_of_a_short_one() {
        assert_eq!(
            Rule::sliding(1_000, Span::from_secs(60))
                .unwrap()
                .batch_max(),
            10
        );
        assert_eq!(
            Rule::sliding(5, Span::from_secs(3_600))
                .unwrap()
                .batch_max(),
            1
        );
        assert_eq!(
            Rule::sliding(5, Span::from_secs(1)).unwrap().batch_max(),
            u64::MAX
        );
    }

    #[test]
    fn a_rule_prints_as_people_write_it() {
        assert_eq!(
            Rule::sliding(40, Span::from_secs(10)).unwrap().to_string(),
            "40/10s"
        );
        assert_eq!(
            Rule::fixed(250, Span::from_secs(86_400))
                .unwrap()
                .to_string(),
            "250/1d"
        );
        assert_eq!(
            Rule::paced(2, Span::from_millis(1_500))
                .unwrap()
                .to_string(),
            "2/1500ms"
        );
        assert_eq!(Rule::in_flight(4).unwrap().to_string(), "4 at a time");
    }
}
