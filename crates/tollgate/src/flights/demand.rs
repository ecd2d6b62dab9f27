//! The demand of a flight: the priority of its most urgent caller, and the deadline of its most
//! patient one.
//!
//! Promises: an urgent call that joins a background call does not wait at low priority. The time of
//! a follower counts as soon as it joins. No caller waits in the queue longer than it would alone:
//! when its own time is up it leaves, and the others continue.
//!
//! Never: lowers the priority, even if the most urgent caller leaves.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use tokio::sync::Notify;
use tollgate_core::ask::Priority;
use tollgate_core::gate::CallerId;
use tollgate_core::time::{Micros, Span};
use tollgate_ledger::lock_order::{RankedMutex, rank};

use crate::Error;

/// What one call demands, or several together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CallDemand {
    /// The priority.
    pub(crate) priority: Priority,
    /// The caller with that priority: the flight is queued under its name.
    pub(crate) caller: CallerId,
    /// The latest deadline that a caller has set.
    pub(crate) deadline: Option<Micros>,
    /// When the last caller without a deadline came; it may wait for the queue timeout.
    pub(crate) untimed_since: Option<Micros>,
}

impl CallDemand {
    /// When everything must be over; `None` = some caller has no deadline.
    pub(crate) fn overall_deadline(&self) -> Option<Micros> {
        match self.untimed_since {
            Some(_) => None,
            None => self.deadline,
        }
    }

    /// Until when to wait for a permit, given the queue timeout.
    pub(crate) fn queue_deadline(&self, queue: Span) -> Micros {
        let untimed = self.untimed_since.map(|started| started + queue);
        self.deadline.max(untimed).unwrap_or_default()
    }
}

/// The common demand of all calls of a flight.
#[derive(Debug)]
pub(crate) struct SharedDemand {
    demand: RankedMutex<{ rank::DEMAND }, CallDemand>,
    raised: Notify,
    /// The call waits for a permit now.
    is_queued: AtomicBool,
    queued: Notify,
    /// The call can continue without its leader.
    can_outlive_caller: bool,
    /// The error for the leader whose time is up while the followers continue.
    leader_error: OnceLock<Error>,
    /// Attempts whose bytes may have left.
    attempts: AtomicU32,
}

/// Marks the call as queued until dropped.
struct QueuedFlag<'a>(&'a SharedDemand);

impl Drop for QueuedFlag<'_> {
    fn drop(&mut self) {
        self.0.is_queued.store(false, Ordering::Release);
    }
}

impl SharedDemand {
    /// The demand of a call that ends with its caller.
    pub(crate) fn of_call(demand: CallDemand) -> SharedDemand {
        SharedDemand {
            demand: RankedMutex::new(demand),
            raised: Notify::new(),
            is_queued: AtomicBool::new(false),
            queued: Notify::new(),
            can_outlive_caller: false,
            leader_error: OnceLock::new(),
            attempts: AtomicU32::new(0),
        }
    }

    /// The demand of a call that continues for others if its caller leaves.
    pub(crate) fn of_flight(demand: CallDemand) -> SharedDemand {
        SharedDemand {
            can_outlive_caller: true,
            ..SharedDemand::of_call(demand)
        }
    }

    /// Adds a follower's demand.
    pub(crate) fn join(&self, joiner: CallDemand) {
        let mut demand = self.demand.lock();
        demand.deadline = demand.deadline.max(joiner.deadline);
        demand.untimed_since = demand.untimed_since.max(joiner.untimed_since);
        if joiner.priority > demand.priority {
            (demand.priority, demand.caller) = (joiner.priority, joiner.caller);
            drop(demand);
            // Other limits may apply to another priority, so a queued call asks again.
            self.raised.notify_one();
        }
    }

    /// So many attempts were made: a leader that leaves is told.
    pub(crate) fn set_attempts(&self, made: u32) {
        self.attempts.store(made, Ordering::Relaxed);
    }

    /// How many attempts were made.
    pub(crate) fn attempts(&self) -> u32 {
        self.attempts.load(Ordering::Relaxed)
    }

    /// The current demand.
    pub(crate) fn demand(&self) -> CallDemand {
        *self.demand.lock()
    }

    /// Waits in the queue until the priority is raised. A call that gets a permit at once never
    /// does.
    pub(crate) async fn queue_until_raised(&self) {
        self.is_queued.store(true, Ordering::Release);
        let _place = QueuedFlag(self);
        self.queued.notify_waiters();
        self.raised.notified().await;
    }

    /// Waits until the priority is raised, without being queued.
    pub(crate) async fn until_raised(&self) {
        self.raised.notified().await;
    }

    /// Waits until the call is queued for a permit.
    pub(crate) async fn until_queued(&self) {
        loop {
            let mut queued = std::pin::pin!(self.queued.notified());
            queued.as_mut().enable();
            if self.is_queued.load(Ordering::Acquire) {
                return;
            }
            queued.await;
        }
    }

    /// The leader waited in the queue until then, and its time is up. Does the call continue for
    /// followers with more time? Then this is the leader's error.
    pub(crate) fn continues_after(
        &self,
        until: Micros,
        queue: Span,
        error: impl FnOnce() -> Error,
    ) -> bool {
        let goes_on = self.can_outlive_caller && self.demand().queue_deadline(queue) > until;
        if goes_on {
            self.leader_error.get_or_init(error);
        }
        goes_on
    }

    /// The error for the leader whose own time is up.
    pub(crate) fn leader_error(&self) -> Option<&Error> {
        self.leader_error.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUEUE: Span = Span(4);

    fn demand(priority: Priority, deadline: Option<u64>) -> CallDemand {
        CallDemand {
            priority,
            caller: CallerId(match priority {
                Priority::Low => 1,
                Priority::Normal => 2,
                Priority::High => 3,
            }),
            deadline: deadline.map(Micros),
            untimed_since: None,
        }
    }

    fn untimed(started: u64) -> CallDemand {
        CallDemand {
            untimed_since: Some(Micros(started)),
            ..demand(Priority::Low, None)
        }
    }

    #[test]
    fn s7_a_flight_is_as_urgent_and_as_patient_as_any_of_its_calls() {
        let shared = SharedDemand::of_flight(demand(Priority::Low, Some(5)));
        shared.join(demand(Priority::High, Some(3)));
        shared.join(demand(Priority::Normal, Some(9)));
        let wanted = shared.demand();
        assert_eq!(
            (wanted.priority, wanted.caller, wanted.overall_deadline()),
            (Priority::High, CallerId(3), Some(Micros(9)))
        );
        assert_eq!(wanted.queue_deadline(QUEUE), Micros(9));
    }

    #[test]
    fn s7_a_call_without_deadline_waits_for_the_queue_timeout() {
        let shared = SharedDemand::of_flight(untimed(2));
        assert_eq!(shared.demand().queue_deadline(QUEUE), Micros(6));
        shared.join(demand(Priority::Low, Some(9)));
        let wanted = shared.demand();
        assert_eq!(wanted.overall_deadline(), None);
        assert_eq!(wanted.queue_deadline(QUEUE), Micros(9), "the longer counts");
        shared.join(untimed(7));
        assert_eq!(shared.demand().queue_deadline(QUEUE), Micros(11));
    }
}
