//! Those who have left the line to ask again at once: limits have changed, the pace has, or somebody
//! more urgent waits with them. Until they have.
//!
//! Promises: who arrives meanwhile gets past none of them that is at least as urgent, and takes none
//! of their places where the line is full. One who does not come back is waited for only so long.
//!
//! Never: keeps back who is more urgent, or who was there before.

use std::collections::BTreeSet;

use crate::ask::Priority;
use crate::gate::{Gate, Order, Resolution};
use crate::time::{Micros, Span};

/// How long those who were called back are waited for. A thousand of them plan and ask again in
/// some 20 ms; only one that has left meanwhile makes others wait so long, once per change.
const RETURN_TIMEOUT: Span = Span::from_millis(50);

/// Who is expected, by seniority.
#[derive(Debug, Default)]
pub(super) struct RecalledWaiters {
    low: BTreeSet<u64>,
    normal: BTreeSet<u64>,
    high: BTreeSet<u64>,
    /// Until when they are waited for; `None` = they have not been told yet.
    until: Option<Micros>,
}

impl RecalledWaiters {
    fn of(&mut self, priority: Priority) -> &mut BTreeSet<u64> {
        match priority {
            Priority::Low => &mut self.low,
            Priority::Normal => &mut self.normal,
            Priority::High => &mut self.high,
        }
    }

    fn all(&self) -> [(Priority, &BTreeSet<u64>); 3] {
        [
            (Priority::Low, &self.low),
            (Priority::Normal, &self.normal),
            (Priority::High, &self.high),
        ]
    }

    /// How many are expected.
    pub(super) fn len(&self) -> usize {
        self.all().iter().map(|(_, set)| set.len()).sum()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.low.is_empty() && self.normal.is_empty() && self.high.is_empty()
    }

    /// One has come back, perhaps more urgent than it was. `false`: it was not expected.
    pub(super) fn returned(&mut self, seniority: u64) -> bool {
        let mut sets = [&mut self.low, &mut self.normal, &mut self.high].into_iter();
        sets.any(|set| set.remove(&seniority))
    }

    /// Until when anybody is waited for.
    pub(super) fn until(&self) -> Option<Micros> {
        self.until.filter(|_| !self.is_empty())
    }

    /// They are told now if they have not been before, and have their time from then on; those who
    /// have not come by its end are not waited for.
    pub(super) fn refresh(&mut self, now: Micros) {
        let until = *self.until.get_or_insert(now + RETURN_TIMEOUT);
        if now >= until || self.is_empty() {
            *self = RecalledWaiters::default();
        }
    }

    /// Is somebody expected who goes before one of this seniority and priority?
    pub(super) fn is_before(&self, order: Order, seniority: u64, priority: Priority) -> bool {
        let counts = |of: Priority| match order {
            Order::Priority => of >= priority,
            Order::Fifo => true,
        };
        let mut sets = self.all().into_iter().filter(|(of, _)| counts(*of));
        sets.any(|(_, set)| set.first().is_some_and(|&first| first < seniority))
    }
}

impl Gate {
    /// Limits have changed. Everybody who waits is called back, to ask anew under the new ones with
    /// the seniority it had; what the ledger still grants to an ask of before comes back unsent, so
    /// nobody goes under a limit that does not hold any more. Who arrives meanwhile waits for those
    /// who were called back, though not for one who does not come.
    pub fn recall(&mut self) {
        self.missed.everything = !self.offered.is_empty();
        let waiting: Vec<_> = self.waiting.keys().copied().collect();
        for id in waiting {
            if let Some(entry) = self.resolve(id, Resolution::Recalled) {
                self.recalled.of(entry.ask.priority).insert(entry.arrival);
                self.recalled.until = None;
            }
        }
        self.blocks.clear();
        self.wakes.clear();
    }

    /// One that has just left the line asks again at once, with this seniority. Until it has, its
    /// place is its own, as after [`Gate::recall`].
    pub fn expect_return(&mut self, seniority: u64, priority: Priority) {
        if self.recalled.is_empty() {
            self.recalled.until = None;
        }
        self.recalled.of(priority).insert(seniority);
    }

    /// One that was expected back does not come. `false`: it was not expected.
    pub fn cancel_return(&mut self, seniority: u64) -> bool {
        self.recalled.returned(seniority)
    }
}
