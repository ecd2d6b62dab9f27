//! When will it be done: how long waiting calls wait, from the real limits.
//!
//! Calls take their permits as soon as there are any. Before the last call of a group go: all waiting calls of a higher
//! priority and those that arrive meanwhile, the caller's own calls, and of every other caller of the same priority as
//! many as take turns with it. All of them need as long as the slowest of the limits that they share. Steady demand
//! at three times a limit is estimated within 5 % (`crates/tollgate/tests/it/eta.rs`). A caller that has
//! none waiting for a window that is used up calls no more, however much it called before, unless it is urgent and has a reserve.
//!
//! Promises: pure; saturates, never panics.
//!
//! Never: decides about a permit.

mod limit;
pub use limit::{EtaLimit, Refill};

use std::collections::{BTreeMap, BTreeSet};

use crate::ask::Priority;
use crate::gate::CallerId;
use crate::rate::Rate;
use crate::ratio::Ppm;
use crate::time::Span;

/// From which part of a limit on urgent calls count as taking all of it: a measured rate is not exact.
const TAKES_ALL: Ppm = Ppm::percent(98);

/// Windows of such a period and longer outlast what the measured demand can forecast.
const FORECAST_MAX: Span = Span::from_secs(3_600);

/// How often the number of calls that take turns is corrected: it grows with the wait, and the wait with it. Each
/// step halves the error of demand at twice the limit.
const ROUNDS: usize = 24;

/// Waiting calls of one caller and priority with the same limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtaGroup {
    /// Whose.
    pub caller: CallerId,
    /// How urgent they are.
    pub priority: Priority,
    /// How many.
    pub calls: u64,
    /// What its caller gets in any case, in thousandths.
    pub at_least_permille: u16,
    /// Nothing is sent for so long: a cool-down or a sleep.
    pub closed_for: Span,
    /// The limits that each of them needs, by number, and how much of it.
    pub uses: Vec<(usize, u64)>,
}

/// New calls of one caller and priority.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EtaArrivals {
    /// Whose.
    pub caller: CallerId,
    /// How urgent they are.
    pub priority: Priority,
    /// The entity that they are for, by number.
    pub part: Option<usize>,
    /// How many per second.
    pub rate: Rate,
}

/// Everything that waits for one provider.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EtaQueue {
    /// Who waits.
    pub groups: Vec<EtaGroup>,
    /// The limits.
    pub limits: Vec<EtaLimit>,
    /// Who comes.
    pub arrivals: Vec<EtaArrivals>,
    /// Calls go in the order of their arrival, whatever their priority.
    pub is_fifo: bool,
}

impl EtaQueue {
    /// How long the last call of a group waits; `None` = as long as more urgent calls take everything.
    #[must_use]
    pub fn eta(&self, group: &EtaGroup) -> Option<Span> {
        let mut slowest = Span::ZERO;
        for &(limit, cost) in &group.uses {
            let Some(known) = self.limits.get(limit) else {
                continue;
            };
            slowest = slowest.max(self.time_at(group, (limit, *known), cost.max(1))?);
        }
        Some(group.closed_for + slowest)
    }

    /// How long one of its limits needs for the last call of a group and all before it.
    fn time_at(&self, group: &EtaGroup, (at, limit): (usize, EtaLimit), cost: u64) -> Option<Span> {
        let waiting = self.waiting(group, at);
        // A new call would wait for a new window: a caller without one has ended its burst.
        let is_used_up = limit.refill == Refill::AtOnce && limit.remaining == 0;
        let is_over = |one: &EtaArrivals| is_used_up && !waiting.callers.contains(&one.caller);
        let has_reserve = limit.reserve > 0;
        let limit = limit.for_priority(group.priority);
        let rate = limit.rate().millionths();
        let new = |one: &EtaArrivals| match limit.part {
            Some(_) if one.part != limit.part => 0,
            _ => one.rate.millionths().saturating_mul(cost),
        };
        let is_above = |priority: Priority| !self.is_fifo && priority > group.priority;
        // With a reserve urgent ones get their permits without a wait, so they are still expected.
        let is_urgent =
            |one: &EtaArrivals| is_above(one.priority) && (has_reserve || !is_over(one));
        let urgent = self.arrivals.iter().filter(|one| is_urgent(one));
        let urgent = limit.taken_by_urgent(Rate::from_millionths(
            urgent.map(new).fold(0, u64::saturating_add),
        ));
        // The demand of half a minute says nothing about a day: calls that wait for midnight are sent then.
        let is_gradual = matches!(limit.refill, Refill::Gradual | Refill::CallEnds(_));
        let is_forecast = is_gradual || limit.period < FORECAST_MAX;
        let urgent = if is_forecast { urgent.millionths() } else { 0 };
        let guaranteed = rate / 1_000 * u64::from(group.at_least_permille);
        let rest = match TAKES_ALL.is_reached_by(urgent, rate) {
            true if guaranteed == 0 => return None,
            true => guaranteed,
            false => (rate - urgent).max(guaranteed),
        };
        let open = limit.after(group.closed_for);
        let during = |span: Span, rate: u64| scaled(rate, span.0, 1_000_000_000_000);
        let fixed = waiting
            .before
            .saturating_add(waiting.own)
            .saturating_add(during(group.closed_for, urgent));
        let mut time = Span::ZERO;
        for _ in 0..ROUNDS {
            let span = group.closed_for + time;
            let mut calls = fixed;
            let new_ones = self
                .arrivals
                .iter()
                .filter(|one| one.priority == group.priority && !self.is_fifo && !is_over(one));
            let mut others = waiting.others.clone();
            for one in new_ones.filter(|one| one.caller != group.caller) {
                let waiting = others.entry(one.caller).or_default();
                *waiting = waiting.saturating_add(during(span, new(one)));
            }
            for other in others.values() {
                calls = calls.saturating_add((*other).min(waiting.own));
            }
            let next = open.time_for(scaled(calls, rate, rest));
            if next == time {
                break;
            }
            time = next;
        }
        Some(time)
    }

    /// What waits before the last call of a group at one of its limits.
    fn waiting(&self, group: &EtaGroup, limit: usize) -> Before {
        let mut before = Before::default();
        for one in &self.groups {
            let uses = one.uses.iter().find(|(at, _)| *at == limit);
            let Some((_, cost)) = uses else { continue };
            before.callers.insert(one.caller);
            let units = one.calls.saturating_mul((*cost).max(1));
            let is_peer = one.priority == group.priority;
            if is_peer && one.caller == group.caller {
                before.own = before.own.saturating_add(units);
            } else if self.is_fifo || one.priority > group.priority {
                before.before = before.before.saturating_add(units);
            } else if is_peer {
                let known = before.others.entry(one.caller).or_default();
                *known = known.saturating_add(units);
            }
        }
        before
    }
}

#[derive(Clone, Debug, Default)]
struct Before {
    /// Of the same caller and priority.
    own: u64,
    /// They go first.
    before: u64,
    /// Other callers of the same priority, with which it takes turns.
    others: BTreeMap<CallerId, u64>,
    /// Everybody who waits for the limit.
    callers: BTreeSet<CallerId>,
}

/// `count * by / of`, rounded to the nearest.
fn scaled(count: u64, by: u64, of: u64) -> u64 {
    let of = u128::from(of.max(1));
    let whole = (u128::from(count) * u128::from(by) + of / 2) / of;
    u64::try_from(whole).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
