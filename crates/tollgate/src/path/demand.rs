//! How urgent a flight is: as urgent as the most urgent of those who wait for it, and as patient as
//! the most patient.
//!
//! Promises: an urgent call that joins a background one does not wait as a background call. Time
//! that a joiner brings along is there as soon as it has joined. Nobody stands in line for longer
//! than alone: whoever's own time is up leaves, and the others go on.
//!
//! Never: becomes less urgent. Who leaves has been in a hurry all the same.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use tokio::sync::Notify;
use tollgate_core::ask::Priority;
use tollgate_core::gate::CallerId;
use tollgate_core::time::{Micros, Span};

use super::route::Route;
use crate::Error;
use crate::error::Stage;
use crate::timer::{self, Elapsed};

/// How often a call stays with a question whose flights fail, whatever its retries are: each of
/// them makes several attempts of its own.
const FAILED_FLIGHTS_MAX: u32 = 3;

/// What one call wants, or several together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CallDemand {
    /// How urgent it is.
    pub(crate) priority: Priority,
    /// Who is so urgent: the line is stood in by that name.
    pub(crate) caller: CallerId,
    /// The latest time that a caller has set.
    pub(crate) deadline: Option<Micros>,
    /// When the last one came that has set no time, and so may stand in line for the queue's.
    pub(crate) untimed_since: Option<Micros>,
}

impl CallDemand {
    /// When all of it must be over; `None` = somebody has set no time.
    pub(crate) fn overall_deadline(&self) -> Option<Micros> {
        match self.untimed_since {
            Some(_) => None,
            None => self.deadline,
        }
    }

    /// Until when a permit may be waited for, where a line may be stood in for so long.
    pub(crate) fn queue_deadline(&self, queue: Span) -> Micros {
        let untimed = self.untimed_since.map(|started| started + queue);
        self.deadline.max(untimed).unwrap_or_default()
    }
}

/// What all calls of a flight want together.
#[derive(Debug)]
pub(crate) struct SharedDemand {
    demand: Mutex<CallDemand>,
    raised: Notify,
    /// A permit is waited for just now.
    is_queued: AtomicBool,
    queued: Notify,
    /// The call can go on without the one who asks.
    can_outlive_caller: bool,
    /// The time of the one who asks is up while the others go on: what it is told.
    leader_error: OnceLock<Error>,
}

/// A place in line; gone when it is dropped.
struct QueuedFlag<'a>(&'a SharedDemand);

impl Drop for QueuedFlag<'_> {
    fn drop(&mut self) {
        self.0.is_queued.store(false, Ordering::Release);
    }
}

impl SharedDemand {
    /// As urgent as this call, which ends with its caller.
    pub(crate) fn of_call(wish: CallDemand) -> SharedDemand {
        SharedDemand {
            demand: Mutex::new(wish),
            raised: Notify::new(),
            is_queued: AtomicBool::new(false),
            queued: Notify::new(),
            can_outlive_caller: false,
            leader_error: OnceLock::new(),
        }
    }

    /// As urgent as this call, which goes on for others if its caller leaves.
    pub(crate) fn of_flight(wish: CallDemand) -> SharedDemand {
        SharedDemand {
            can_outlive_caller: true,
            ..SharedDemand::of_call(wish)
        }
    }

    /// One more joins.
    pub(crate) fn join(&self, joiner: CallDemand) {
        let mut wish = self.demand.lock();
        wish.deadline = wish.deadline.max(joiner.deadline);
        wish.untimed_since = wish.untimed_since.max(joiner.untimed_since);
        if joiner.priority > wish.priority {
            (wish.priority, wish.caller) = (joiner.priority, joiner.caller);
            drop(wish);
            // Other limits may apply to another priority, so whoever stands in line asks anew.
            self.raised.notify_one();
        }
    }

    /// What is wanted now.
    pub(crate) fn demand(&self) -> CallDemand {
        *self.demand.lock()
    }

    /// Stands in line until it has become more urgent. Whoever gets a permit at once never does.
    pub(crate) async fn queue_until_raised(&self) {
        self.is_queued.store(true, Ordering::Release);
        let _place = QueuedFlag(self);
        self.queued.notify_waiters();
        self.raised.notified().await;
    }

    /// Waits until it has become more urgent, without a place in line.
    pub(crate) async fn until_raised(&self) {
        self.raised.notified().await;
    }

    /// Waits until a permit is waited for.
    async fn until_queued(&self) {
        loop {
            let mut queued = std::pin::pin!(self.queued.notified());
            queued.as_mut().enable();
            if self.is_queued.load(Ordering::Acquire) {
                return;
            }
            queued.await;
        }
    }

    /// The one who asks stood in line until then, and its time is up. Does the call go on for
    /// others who have more? Then this is what the one is told.
    pub(crate) fn continues_after(
        &self,
        until: Micros,
        queue: Span,
        told: impl FnOnce() -> Error,
    ) -> bool {
        let goes_on = self.can_outlive_caller && self.demand().queue_deadline(queue) > until;
        if goes_on {
            self.leader_error.get_or_init(told);
        }
        goes_on
    }

    /// What the one who asks is told because its own time is up.
    pub(crate) fn leader_error(&self) -> Option<&Error> {
        self.leader_error.get()
    }
}

impl Route {
    /// How much longer what comes before a permit may be waited for. What there is to fall back to
    /// is better now than what comes later.
    pub(crate) fn patience(&self, queue: Span) -> Span {
        self.patience_until(self.demand().queue_deadline(queue))
    }

    /// Waits until it has become more urgent while another call brings its answer.
    pub(crate) async fn until_raised(&self) {
        match &self.shared_demand {
            Some(urgency) => urgency.until_raised().await,
            None => std::future::pending().await,
        }
    }

    /// The same for the permit itself.
    pub(crate) fn queue_patience(&self, queue: Span) -> Span {
        self.patience_until(self.queue_deadline(queue))
    }

    /// Until when it stands in line: this caller's own time first; when that is up and it has been
    /// told so, that of the most patient of those who wait for the same.
    pub(crate) fn queue_deadline(&self, queue: Span) -> Micros {
        match &self.shared_demand {
            Some(urgency) if urgency.leader_error().is_some() => {
                urgency.demand().queue_deadline(queue)
            }
            Some(_) | None => self.own_demand().queue_deadline(queue),
        }
    }

    fn patience_until(&self, until: Micros) -> Span {
        if self.fallback {
            return Span::ZERO;
        }
        until.since(self.provider.ledger.at())
    }
}

/// Waits for what another call brings, but no longer than a call with this wish alone would have
/// waited: its own time, or where it has set none, the queue's time in line and then as long as it
/// takes.
pub(crate) async fn wait_as_if_alone<T>(
    route: &Route,
    wish: CallDemand,
    urgency: &SharedDemand,
    answer: impl Future<Output = T>,
) -> Result<T, Error> {
    let too_late = |at| Error::TooLate {
        provider: route.provider.name.clone(),
        at,
    };
    let now = route.provider.ledger.at();
    if let Some(until) = wish.overall_deadline() {
        let answer = timer::within(Some(until.since(now)), answer).await;
        return answer.map_err(|Elapsed| too_late(Stage::Upstream));
    }
    let until = wish.queue_deadline(route.provider.policy().provider.queue.timeout);
    let stood_too_long = async {
        timer::sleep(Some(until.since(now))).await;
        urgency.until_queued().await;
    };
    tokio::select! {
        biased;
        answer = answer => Ok(answer),
        () = stood_too_long => Err(too_late(Stage::Waiting)),
    }
}

/// How many failed flights a call sits through: as many as it has retries.
pub(super) fn failed_flights_max(route: &Route) -> u32 {
    let retries = route.provider.policy().retry.retries;
    let most = match route.options.priority {
        Priority::High => retries.high,
        Priority::Normal => retries.normal,
        Priority::Low => retries.low,
    };
    most.min(FAILED_FLIGHTS_MAX)
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
        let urgency = SharedDemand::of_flight(demand(Priority::Low, Some(5)));
        urgency.join(demand(Priority::High, Some(3)));
        urgency.join(demand(Priority::Normal, Some(9)));
        let wanted = urgency.demand();
        assert_eq!(
            (wanted.priority, wanted.caller, wanted.overall_deadline()),
            (Priority::High, CallerId(3), Some(Micros(9)))
        );
        assert_eq!(wanted.queue_deadline(QUEUE), Micros(9));
    }

    #[test]
    fn s7_a_call_without_deadline_waits_for_the_queue_timeout() {
        let urgency = SharedDemand::of_flight(untimed(2));
        assert_eq!(urgency.demand().queue_deadline(QUEUE), Micros(6));
        urgency.join(demand(Priority::Low, Some(9)));
        let wanted = urgency.demand();
        assert_eq!(wanted.overall_deadline(), None);
        assert_eq!(wanted.queue_deadline(QUEUE), Micros(9), "the longer counts");
        urgency.join(untimed(7));
        assert_eq!(urgency.demand().queue_deadline(QUEUE), Micros(11));
    }
}
