//! The score of one side, read from its provider's log.
//!
//! Promises: quota use is counted outside the outage and its aftermath, the same for both sides.
//!
//! Never: rounds a violation away.

use tollgate_core::time::{Micros, Span};
use tollgate_sim::http::SimProvider;
use tollgate_sim::judge::{Judge, Priority, Which};
use tollgate_sim::rule::Unit;

use super::LIMIT;
use super::crowd::Crowd;

/// Seconds after the outage that are left out of the quota's use: health tests first.
const AFTERMATH: u64 = 4;

/// When the providers are down, in seconds from their start.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outage {
    pub(super) from: u64,
    pub(super) to: u64,
    /// When the providers started, on the clock of their logs.
    pub(super) start: Micros,
}

impl Outage {
    /// In the middle, for a seventh of the time.
    pub(super) fn within(seconds: u64, start: Micros) -> Outage {
        let from = seconds * 2 / 5;
        Outage {
            from,
            to: from + (seconds / 7).max(1),
            start,
        }
    }
}

impl Outage {
    /// Shortly before it, in it, or in its aftermath?
    pub(super) fn is_near(&self, second: u64) -> bool {
        (self.from.saturating_sub(1)..self.to + AFTERMATH).contains(&second)
    }
}

/// What one side came to.
#[derive(Debug)]
pub(super) struct Score {
    pub(super) violations: usize,
    most: u64,
    used_percent: u64,
    click_p99: Option<Span>,
    into_outage: usize,
    answered: usize,
    lost: usize,
}

pub(super) fn score(provider: &SimProvider, crowd: &Crowd, outage: Outage) -> Score {
    let judge = provider.judges().into_iter().next().map(|(_, judge)| judge);
    let judge = judge.unwrap_or_default();
    let at = |secs: u64| outage.start + Span::from_secs(secs);
    let struck = |arrival: &&tollgate_sim::judge::Arrival| {
        at(outage.from) <= arrival.at && arrival.at < at(outage.to)
    };
    Score {
        violations: provider.report().violations,
        most: judge.most_in_any(Span::from_secs(1), Unit::Calls, Which::Arrived),
        used_percent: used(&judge, outage),
        click_p99: judge.waits(Priority::High).map(|waits| waits.p99),
        into_outage: judge.arrivals().iter().filter(struck).count(),
        answered: crowd.done(),
        lost: crowd.lost(),
    }
}

/// Accepted calls of what was allowed, in percent: whole seconds before the outage, and after its
/// aftermath, up to the last arrival.
fn used(judge: &Judge, outage: Outage) -> u64 {
    let accepted = judge.arrivals().iter().filter(|arrival| arrival.accepted);
    let seconds: Vec<u64> = accepted
        .map(|arrival| arrival.at.since(outage.start).0 / 1_000_000)
        .collect();
    let last = seconds.iter().copied().max().unwrap_or(0);
    let counts = |second: &u64| {
        (1..outage.from).contains(second) || (outage.to + AFTERMATH..last).contains(second)
    };
    let allowed = (0..last).filter(counts).count() as u64 * LIMIT;
    let used = seconds.iter().filter(|second| counts(second)).count() as u64;
    (used * 100).checked_div(allowed).unwrap_or(0)
}

/// Both sides beside each other, and what follows.
pub(super) fn table(sides: &[Score; 2], limit: u64) -> String {
    let mark = |fine: bool| if fine { "✓" } else { "✗" };
    let mut text =
        String::from("\n                        DIRECT, retries       THROUGH TOLLGATE\n");
    let mut row = |name: &str, cell: &dyn Fn(&Score) -> String| {
        let [direct, ours] = sides.each_ref().map(cell);
        text.push_str(&format!(" {name:<22} {direct:<21} {ours}\n"));
    };
    row("most in any 1 s", &|side| {
        format!("{} / {limit} {}", side.most, mark(side.most <= limit))
    });
    row("refused by provider", &|side| side.violations.to_string());
    row("quota used", &|side| format!("{} %", side.used_percent));
    row("user click, p99", &|side| {
        side.click_p99
            .map_or("none".to_owned(), |p99| format!("{} ms", p99.0 / 1_000))
    });
    row("sent into the outage", &|side| side.into_outage.to_string());
    row("calls answered, lost", &|side| {
        format!("{}, {}", side.answered, side.lost)
    });
    let ours = &sides[1];
    let verdict = format!(
        "{} {} refusals   {} {} % of quota   {} {} calls lost",
        mark(ours.violations == 0),
        ours.violations,
        mark(ours.used_percent >= 95),
        ours.used_percent,
        mark(ours.lost == 0),
        ours.lost,
    );
    text + &verdict
}
