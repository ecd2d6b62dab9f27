//! How urgent a flight is: as urgent as the most urgent of those who wait for it, and as patient as
//! the most patient.
//!
//! Promises: an urgent call that joins a background one does not wait as a background call. Time
//! that a joiner brings along is there as soon as it has joined.
//!
//! Never: becomes less urgent. Who leaves has been in a hurry all the same.

use parking_lot::Mutex;
use tokio::sync::Notify;
use tollgate_core::ask::Priority;
use tollgate_core::gate::CallerId;
use tollgate_core::time::Micros;

/// What one call wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wish {
    /// How urgent it is.
    pub(crate) priority: Priority,
    /// Who is so urgent: the line is stood in by that name.
    pub(crate) caller: CallerId,
    /// When it must be over; `None` = its caller has set no time.
    pub(crate) deadline: Option<Micros>,
    /// When it came.
    pub(crate) started: Micros,
}

/// What all calls of a flight want together.
#[derive(Debug)]
pub(crate) struct Urgency {
    wish: Mutex<Wish>,
    raised: Notify,
}

impl Urgency {
    /// As urgent as this one.
    pub(crate) fn new(wish: Wish) -> Urgency {
        Urgency {
            wish: Mutex::new(wish),
            raised: Notify::new(),
        }
    }

    /// One more joins.
    pub(crate) fn join(&self, joiner: Wish) {
        let mut wish = self.wish.lock();
        wish.deadline = match (wish.deadline, joiner.deadline) {
            (Some(ours), Some(theirs)) => Some(ours.max(theirs)),
            (None, _) | (_, None) => None,
        };
        wish.started = wish.started.max(joiner.started);
        if joiner.priority > wish.priority {
            (wish.priority, wish.caller) = (joiner.priority, joiner.caller);
            drop(wish);
            // Other limits may apply to another priority, so whoever stands in line asks anew.
            self.raised.notify_one();
        }
    }

    /// What is wanted now.
    pub(crate) fn wish(&self) -> Wish {
        *self.wish.lock()
    }

    /// Waits until it has become more urgent.
    pub(crate) async fn raised(&self) {
        self.raised.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wish(priority: Priority, deadline: Option<u64>) -> Wish {
        Wish {
            priority,
            caller: CallerId(match priority {
                Priority::Low => 1,
                Priority::Normal => 2,
                Priority::High => 3,
            }),
            deadline: deadline.map(Micros),
            started: Micros(0),
        }
    }

    #[test]
    fn s7_a_flight_is_as_urgent_and_as_patient_as_any_of_its_calls() {
        let urgency = Urgency::new(wish(Priority::Low, Some(5)));
        urgency.join(wish(Priority::High, Some(3)));
        urgency.join(wish(Priority::Normal, Some(9)));
        let wanted = urgency.wish();
        assert_eq!(
            (wanted.priority, wanted.caller, wanted.deadline),
            (Priority::High, CallerId(3), Some(Micros(9)))
        );
        urgency.join(wish(Priority::Low, None));
        assert_eq!(urgency.wish().deadline, None);
    }
}
