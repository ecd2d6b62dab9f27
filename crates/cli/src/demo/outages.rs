//! When the providers are down: the planned outage, and those that a key started.
//!
//! Promises: both sides have outages at the same moments; only this module decides what counts as
//! "outside the outage".
//!
//! Never: causes an outage. The providers do.

use std::sync::Arc;

use parking_lot::Mutex;
use tollgate_core::time::{Micros, Span};

use super::LIMIT;

/// Seconds after an outage that do not count in quota use: health probes first.
const AFTERMATH: u64 = 4;

/// Seconds after an outage until users click again.
const CLICKS_RESUME: u64 = 3;

/// How long an outage by key lasts, in seconds.
const KEY_OUTAGE: u64 = 3;

/// The outages, in whole seconds from the start of the providers.
#[derive(Clone, Debug)]
pub(super) struct Outages {
    /// When the providers started, on the clock of their logs.
    start: Micros,
    outages: Arc<Mutex<Vec<(u64, u64)>>>,
    /// The second from which on the limit is half of what it was.
    halved: Arc<Mutex<Option<u64>>>,
}

impl Outages {
    /// One outage in the middle, for three twentieths of the time.
    pub(super) fn planned(seconds: u64, start: Micros) -> Outages {
        let from = seconds * 2 / 5;
        let planned = (from, from + (seconds * 3 / 20).max(1));
        Outages {
            start,
            outages: Arc::new(Mutex::new(vec![planned])),
            halved: Arc::default(),
        }
    }

    /// One more, from the next second on.
    pub(super) fn add(&self, now: Micros) -> (u64, u64) {
        let from = self.second(now) + 1;
        let outage = (from, from + KEY_OUTAGE);
        self.outages.lock().push(outage);
        outage
    }

    /// The limit is halved now; a second time changes nothing.
    pub(super) fn halve(&self, now: Micros) {
        let second = self.second(now);
        self.halved.lock().get_or_insert(second);
    }

    /// Was the limit halved?
    pub(super) fn is_halved(&self) -> bool {
        self.halved.lock().is_some()
    }

    /// What the providers allow in this second.
    pub(super) fn limit(&self, second: u64) -> u64 {
        match *self.halved.lock() {
            Some(from) if from <= second => LIMIT / 2,
            _ => LIMIT,
        }
    }

    /// The latest outage that was planned.
    pub(super) fn latest(&self) -> (u64, u64) {
        let outages = self.outages.lock();
        outages.last().copied().unwrap_or_default()
    }

    /// The whole second in which something happened.
    pub(super) fn second(&self, at: Micros) -> u64 {
        at.since(self.start).0 / 1_000_000
    }

    /// Did it fall into an outage?
    pub(super) fn contains(&self, at: Micros) -> bool {
        let after = at.since(self.start);
        let within = |(from, to): &(u64, u64)| {
            Span::from_secs(*from) <= after && after < Span::from_secs(*to)
        };
        at >= self.start && self.outages.lock().iter().any(within)
    }

    /// Shortly before an outage, in it, or in its aftermath?
    pub(super) fn is_near(&self, second: u64) -> bool {
        self.is_within(second, AFTERMATH)
    }

    /// Do users click in this second? They wait until the provider is back; they do not wait until
    /// everything is as before.
    pub(super) fn has_clicks(&self, second: u64) -> bool {
        !self.is_within(second, CLICKS_RESUME)
    }

    fn is_within(&self, second: u64, after: u64) -> bool {
        let near = |(from, to): &(u64, u64)| (from.saturating_sub(1)..to + after).contains(&second);
        self.outages.lock().iter().any(near)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_covers_its_seconds_and_its_aftermath() {
        let start = Micros(7_000_000);
        let outages = Outages::planned(20, start);
        assert_eq!(outages.latest(), (8, 11));
        assert!(!outages.contains(start + Span::from_millis(7_999)));
        assert!(outages.contains(start + Span::from_secs(8)));
        assert!(!outages.contains(start + Span::from_secs(11)));
        let near: Vec<u64> = (0..20).filter(|second| outages.is_near(*second)).collect();
        assert_eq!(near, (7..15).collect::<Vec<_>>());
    }

    #[test]
    fn a_halved_limit_holds_from_its_second_on() {
        let outages = Outages::planned(60, Micros(0));
        outages.halve(Micros(3_200_000));
        outages.halve(Micros(9_000_000));
        assert_eq!([2, 3, 9].map(|second| outages.limit(second)), [20, 10, 10]);
    }

    #[test]
    fn an_outage_by_key_starts_with_the_next_second() {
        let outages = Outages::planned(60, Micros(0));
        assert_eq!(outages.add(Micros(1_500_000)), (2, 5));
        assert!(outages.contains(Micros(2_000_000)));
    }
}
