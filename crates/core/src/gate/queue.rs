//! A queue of waiters: by priority, fair between callers, in order of arrival.
//!
//! Promises: finding the next waiter takes time in the number of waiting callers, not waiters.
//! Joining and leaving are logarithmic, so many calls that give up together do not stall the
//! others.
//!
//! Never: knows why its members wait.

use std::collections::BTreeMap;

use crate::ask::{Ask, PermitId, Priority};
use crate::gate::Order;
use crate::gate::callers::{CallerAccounts, CallerId};

/// The sort attributes of a waiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rank {
    priority: Priority,
    caller: CallerId,
    arrival: u64,
    pub(super) id: PermitId,
}

impl Rank {
    pub(super) fn of(ask: &Ask, caller: CallerId, arrival: u64, order: Order) -> Rank {
        match order {
            Order::Priority => Rank {
                priority: ask.priority,
                caller,
                arrival,
                id: ask.id,
            },
            // All equal: only the arrival decides.
            Order::Fifo => Rank {
                priority: Priority::Normal,
                caller: CallerId(0),
                arrival,
                id: ask.id,
            },
        }
    }
}

impl Rank {
    pub(super) fn key(&self, callers: &CallerAccounts) -> QueueKey {
        QueueKey {
            not_owed: !callers.is_owed(self.caller),
            not_urgent: std::cmp::Reverse(self.priority),
            served: callers.served_so_far(self.caller),
            arrival: self.arrival,
            id: self.id,
        }
    }
}

/// The sort key: smaller goes sooner. It also compares waiters of different queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct QueueKey {
    /// A caller below its guaranteed share goes before any priority.
    not_owed: bool,
    not_urgent: std::cmp::Reverse<Priority>,
    served: u64,
    arrival: u64,
    id: PermitId,
}

type CallerQueue = BTreeMap<(u64, PermitId), ()>;

/// One queue.
#[derive(Debug, Default)]
pub(super) struct WaitQueue {
    queues: BTreeMap<(std::cmp::Reverse<Priority>, CallerId), CallerQueue>,
}

impl WaitQueue {
    pub(super) fn add(&mut self, rank: Rank) {
        let queue = self
            .queues
            .entry((std::cmp::Reverse(rank.priority), rank.caller))
            .or_default();
        let twice = queue.insert((rank.arrival, rank.id), ());
        debug_assert!(twice.is_none(), "a waiter is in a queue once");
    }

    pub(super) fn remove(&mut self, rank: Rank) {
        let key = (std::cmp::Reverse(rank.priority), rank.caller);
        if let Some(queue) = self.queues.get_mut(&key) {
            let found = queue.remove(&(rank.arrival, rank.id));
            debug_assert!(found.is_some(), "a waiter is where its position says");
            if queue.is_empty() {
                self.queues.remove(&key);
            }
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }

    pub(super) fn most_urgent(&self) -> Option<Priority> {
        self.queues.keys().next().map(|(priority, _)| priority.0)
    }

    /// The waiter that goes first, among those more urgent than `above`.
    pub(super) fn best(
        &self,
        callers: &CallerAccounts,
        above: Option<Priority>,
    ) -> Option<(QueueKey, Rank)> {
        let heads = self
            .queues
            .iter()
            .filter(|((priority, _), _)| above.is_none_or(|above| priority.0 > above))
            .filter_map(|(&(priority, caller), queue)| {
                let (&(arrival, id), ()) = queue.first_key_value()?;
                let rank = Rank {
                    priority: priority.0,
                    caller,
                    arrival,
                    id,
                };
                Some((rank.key(callers), rank))
            });
        heads.min_by_key(|(key, _)| *key)
    }
}
