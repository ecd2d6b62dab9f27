//! Waiters that left the queue to ask again at once: the limits or the pace changed, or a more
//! urgent call joined them. They are expected back.
//!
//! Promises: a call that arrives meanwhile does not pass an expected waiter that is at least as
//! urgent, and does not take its place in a full queue. The gate waits for an expected waiter only
//! for a limited time.
//!
//! Never: blocks a call that is more urgent or that arrived earlier.

use std::collections::BTreeMap;

use crate::ask::Priority;
use crate::gate::{Gate, Order, Resolution};
use crate::time::{Micros, Span};

/// How long recalled waiters are waited for. A thousand of them route and ask again in about 20 ms;
/// only a waiter that has left meanwhile delays others this long, once per change.
const RETURN_TIMEOUT: Span = Span::from_millis(50);

/// The expected waiters, by seniority, and whether each had a place in the queue: one that nothing had
/// blocked so far has none.
#[derive(Debug, Default)]
pub(super) struct RecalledWaiters {
    low: BTreeMap<u64, bool>,
    normal: BTreeMap<u64, bool>,
    high: BTreeMap<u64, bool>,
    /// Until when they are waited for; `None` = they have not been notified yet.
    until: Option<Micros>,
}

impl RecalledWaiters {
    fn of(&mut self, priority: Priority) -> &mut BTreeMap<u64, bool> {
        match priority {
            Priority::Low => &mut self.low,
            Priority::Normal => &mut self.normal,
            Priority::High => &mut self.high,
        }
    }

    fn all(&self) -> [(Priority, &BTreeMap<u64, bool>); 3] {
        [
            (Priority::Low, &self.low),
            (Priority::Normal, &self.normal),
            (Priority::High, &self.high),
        ]
    }

    /// How many places in the queue are reserved for them.
    pub(super) fn places(&self) -> usize {
        let reserved =
            |of: &BTreeMap<u64, bool>| of.values().filter(|has_place| **has_place).count();
        self.all().iter().map(|(_, of)| reserved(of)).sum()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.low.is_empty() && self.normal.is_empty() && self.high.is_empty()
    }

    /// A waiter has returned, perhaps at a higher priority: did it have a place? `None`: it was not
    /// expected.
    pub(super) fn returned(&mut self, seniority: u64) -> Option<bool> {
        let mut sets = [&mut self.low, &mut self.normal, &mut self.high].into_iter();
        sets.find_map(|set| set.remove(&seniority))
    }

    /// Until when expected waiters are waited for.
    pub(super) fn until(&self) -> Option<Micros> {
        self.until.filter(|_| !self.is_empty())
    }

    /// Starts the timeout when the waiters are notified, and stops waiting for them when it ends.
    pub(super) fn refresh(&mut self, now: Micros) {
        let until = *self.until.get_or_insert(now + RETURN_TIMEOUT);
        if now >= until || self.is_empty() {
            *self = RecalledWaiters::default();
        }
    }

    /// Is a waiter expected that goes before one of this seniority and priority?
    pub(super) fn is_before(&self, order: Order, seniority: u64, priority: Priority) -> bool {
        let counts = |of: Priority| match order {
            Order::Priority => of >= priority,
            Order::Fifo => true,
        };
        let mut sets = self.all().into_iter().filter(|(of, _)| counts(*of));
        sets.any(|(_, set)| {
            let first = set.first_key_value();
            first.is_some_and(|(first, _)| *first < seniority)
        })
    }
}

impl Gate {
    /// Limits have changed. Every waiter is recalled and asks again under the new limits with its
    /// old seniority. A permit that the ledger still grants to an old ask is returned unsent, so no
    /// call goes under a replaced limit. New arrivals wait for the recalled waiters, but only for a
    /// limited time.
    pub fn recall(&mut self) {
        self.missed.everything = !self.offered.is_empty();
        let waiting: Vec<_> = self.waiting.keys().copied().collect();
        for id in waiting {
            if let Some(entry) = self.resolve(id, Resolution::Recalled) {
                let expected = self.recalled.of(entry.ask.priority);
                expected.insert(entry.arrival, entry.has_place);
                self.recalled.until = None;
            }
        }
        self.blocks.clear();
        self.wakes.clear();
    }

    /// A waiter that has just left the queue asks again at once, with this seniority. Until then
    /// its place is reserved, as after [`Gate::recall`].
    pub fn expect_return(&mut self, seniority: u64, priority: Priority) {
        if self.recalled.is_empty() {
            self.recalled.until = None;
        }
        self.recalled.of(priority).insert(seniority, true);
    }

    /// An expected waiter does not return. `false`: it was not expected.
    pub fn cancel_return(&mut self, seniority: u64) -> bool {
        self.recalled.returned(seniority).is_some()
    }
}
