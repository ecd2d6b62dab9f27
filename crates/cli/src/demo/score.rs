//! The score of one side, read from its provider's log.
//!
//! Promises: quota use is counted outside the outages and their aftermath, the same for both sides.
//!
//! Never: rounds a violation away.

use tollgate_core::time::Span;
use tollgate_sim::checker::{ArrivalFilter, Checker, Priority};
use tollgate_sim::http::SimProvider;
use tollgate_sim::rule::Unit;

use super::clients::ClientGroup;
use super::outages::Outages;

/// The score of one side.
#[derive(Clone, Debug, Default)]
pub(super) struct Side {
    /// 429s from the provider.
    pub(super) violations: usize,
    /// Most arrivals in any second.
    pub(super) most: u64,
    /// The used part of the quota, in thousandths; `None` while no whole second counts.
    pub(super) used: Option<u64>,
    pub(super) click_p99: Option<Span>,
    pub(super) into_outage: usize,
    pub(super) answered: usize,
    pub(super) lost: usize,
}

pub(super) fn score(provider: &SimProvider, clients: &ClientGroup, outages: &Outages) -> Side {
    let checker = provider
        .judges()
        .into_iter()
        .next()
        .map(|(_, checker)| checker);
    let checker = checker.unwrap_or_default();
    let into_outage = checker
        .arrivals()
        .iter()
        .filter(|arrival| outages.contains(arrival.at))
        .count();
    Side {
        violations: provider.report().violations,
        most: checker.max_in_any_window(Span::from_secs(1), Unit::Calls, ArrivalFilter::Arrived),
        used: used(&checker, outages),
        click_p99: checker.waits(Priority::High).map(|waits| waits.p99),
        into_outage,
        answered: clients.done(),
        lost: clients.lost(),
    }
}

/// Accepted calls as a part of the quota, in thousandths: whole seconds up to the last arrival,
/// without those of outages and without the first one, which starts idle.
fn used(checker: &Checker, outages: &Outages) -> Option<u64> {
    let accepted = checker.arrivals().iter().filter(|arrival| arrival.accepted);
    let seconds: Vec<u64> = accepted.map(|arrival| outages.second(arrival.at)).collect();
    let last = seconds.iter().copied().max().unwrap_or(0);
    let counts = |second: &u64| (1..last).contains(second) && !outages.is_near(*second);
    let allowed: u64 = (0..last)
        .filter(counts)
        .map(|second| outages.limit(second))
        .sum();
    let used = seconds.iter().filter(|second| counts(second)).count() as u64;
    (used * 1_000).checked_div(allowed)
}
