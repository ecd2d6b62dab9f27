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
use crate::timer::{self, Late};

/// How often a call stays with a question whose flights fail, whatever its retries are: each of
/// them makes several attempts of its own.
const FAILED_MAX: u32 = 3;

/// What one call wants, or several together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wish {
    /// How urgent it is.
    pub(crate) priority: Priority,
    /// Who is so urgent: the line is stood in by that name.
    pub(crate) caller: CallerId,
    /// The latest time that a caller has set.
    pub(crate) deadline: Option<Micros>,
    /// When the last one came that has set no time, and so may stand in line for the queue's.
    pub(crate) untimed: Option<Micros>,
}

impl Wish {
    /// When all of it must be over; `None` = somebody has set no time.
    pub(crate) fn over_by(&self) -> Option<Micros> {
        match self.untimed {
            Some(_) => None,
            None => self.deadline,
        }
    }

    /// Until when a permit may be waited for, where a line may be stood in for so long.
    pub(crate) fn patient_until(&self, queue: Span) -> Micros {
        let untimed = self.untimed.map(|started| started + queue);
        self.deadline.max(untimed).unwrap_or_default()
    }
}

/// What all calls of a flight want together.
#[derive(Debug)]
pub(crate) struct Urgency {
    wish: Mutex<Wish>,
    raised: Notify,
    /// A permit is waited for just now.
    is_in_line: AtomicBool,
    queued: Notify,
    /// The call can go on without the one who asks.
    outlives: bool,
    /// The time of the one who asks is up while the others go on: what it is told.
    overdue: OnceLock<Error>,
}

/// A place in line; gone when it is dropped.
struct InLine<'a>(&'a Urgency);

impl Drop for InLine<'_> {
    fn drop(&mut self) {
        self.0.is_in_line.store(false, Ordering::Release);
    }
}

impl Urgency {
    /// As urgent as this call, which ends with its caller.
    pub(crate) fn of_call(wish: Wish) -> Urgency {
        Urgency {
            wish: Mutex::new(wish),
            raised: Notify::new(),
            is_in_line: AtomicBool::new(false),
            queued: Notify::new(),
            outlives: false,
            overdue: OnceLock::new(),
        }
    }

    /// As urgent as this call, which goes on for others if its caller leaves.
    pub(crate) fn of_flight(wish: Wish) -> Urgency {
        Urgency {
            outlives: true,
            ..Urgency::of_call(wish)
        }
    }

    /// One more joins.
    pub(crate) fn join(&self, joiner: Wish) {
        let mut wish = self.wish.lock();
        wish.deadline = wish.deadline.max(joiner.deadline);
        wish.untimed = wish.untimed.max(joiner.untimed);
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

    /// Stands in line until it has become more urgent. Whoever gets a permit at once never does.
    pub(crate) async fn raised(&self) {
        self.is_in_line.store(true, Ordering::Release);
        let _place = InLine(self);
        self.queued.notify_waiters();
        self.raised.notified().await;
    }

    /// Waits until it has become more urgent, without a place in line.
    pub(crate) async fn grows(&self) {
        self.raised.notified().await;
    }

    /// Waits until a permit is waited for.
    async fn stands_in_line(&self) {
        loop {
            let mut queued = std::pin::pin!(self.queued.notified());
            queued.as_mut().enable();
            if self.is_in_line.load(Ordering::Acquire) {
                return;
            }
            queued.await;
        }
    }

    /// The one who asks stood in line until then, and its time is up. Does the call go on for
    /// others who have more? Then this is what the one is told.
    pub(crate) fn goes_on_after(
        &self,
        until: Micros,
        queue: Span,
        told: impl FnOnce() -> Error,
    ) -> bool {
        let goes_on = self.outlives && self.wish().patient_until(queue) > until;
        if goes_on {
            self.overdue.get_or_init(told);
        }
        goes_on
    }

    /// What the one who asks is told because its own time is up.
    pub(crate) fn overdue(&self) -> Option<&Error> {
        self.overdue.get()
    }
}

impl Route {
    /// How much longer what comes before a permit may be waited for. What there is to fall back to
    /// is better now than what comes later.
    pub(crate) fn patience(&self, queue: Span) -> Span {
        self.unless_fallback(self.wish().patient_until(queue))
    }

    /// Waits until it has become more urgent while another call brings its answer.
    pub(crate) async fn grows(&self) {
        match &self.urgency {
            Some(urgency) => urgency.grows().await,
            None => std::future::pending().await,
        }
    }

    /// The same for the permit itself.
    pub(crate) fn patience_in_line(&self, queue: Span) -> Span {
        self.unless_fallback(self.in_line_until(queue))
    }

    /// Until when it stands in line: this caller's own time first; when that is up and it has been
    /// told so, that of the most patient of those who wait for the same.
    pub(crate) fn in_line_until(&self, queue: Span) -> Micros {
        match &self.urgency {
            Some(urgency) if urgency.overdue().is_some() => urgency.wish().patient_until(queue),
            Some(_) | None => self.own_wish().patient_until(queue),
        }
    }

    fn unless_fallback(&self, until: Micros) -> Span {
        if self.fallback {
            return Span::ZERO;
        }
        until.since(self.live.ledger.at())
    }
}

/// Waits for what another call brings, but no longer than a call with this wish alone would have
/// waited: its own time, or where it has set none, the queue's time in line and then as long as it
/// takes.
pub(crate) async fn as_if_alone<T>(
    route: &Route,
    wish: Wish,
    urgency: &Urgency,
    answer: impl Future<Output = T>,
) -> Result<T, Error> {
    let too_late = |at| Error::TooLate {
        provider: route.live.name.clone(),
        at,
    };
    let now = route.live.ledger.at();
    if let Some(until) = wish.over_by() {
        let answer = timer::within(Some(until.since(now)), answer).await;
        return answer.map_err(|Late| too_late(Stage::Upstream));
    }
    let until = wish.patient_until(route.live.plan().provider.queue.timeout);
    let stood_too_long = async {
        timer::rest(Some(until.since(now))).await;
        urgency.stands_in_line().await;
    };
    tokio::select! {
        biased;
        answer = answer => Ok(answer),
        () = stood_too_long => Err(too_late(Stage::Waiting)),
    }
}

/// How many failed flights a call sits through: as many as it has retries.
pub(super) fn failures_borne(route: &Route) -> u32 {
    let retries = route.live.plan().retry.retries;
    let most = match route.said.priority {
        Priority::High => retries.high,
        Priority::Normal => retries.normal,
        Priority::Low => retries.low,
    };
    most.min(FAILED_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUEUE: Span = Span(4);

    fn wish(priority: Priority, deadline: Option<u64>) -> Wish {
        Wish {
            priority,
            caller: CallerId(match priority {
                Priority::Low => 1,
                Priority::Normal => 2,
                Priority::High => 3,
            }),
            deadline: deadline.map(Micros),
            untimed: None,
        }
    }

    fn untimed(started: u64) -> Wish {
        Wish {
            untimed: Some(Micros(started)),
            ..wish(Priority::Low, None)
        }
    }

    #[test]
    fn s7_a_flight_is_as_urgent_and_as_patient_as_any_of_its_calls() {
        let urgency = Urgency::of_flight(wish(Priority::Low, Some(5)));
        urgency.join(wish(Priority::High, Some(3)));
        urgency.join(wish(Priority::Normal, Some(9)));
        let wanted = urgency.wish();
        assert_eq!(
            (wanted.priority, wanted.caller, wanted.over_by()),
            (Priority::High, CallerId(3), Some(Micros(9)))
        );
        assert_eq!(wanted.patient_until(QUEUE), Micros(9));
    }

    #[test]
    fn s7_one_without_a_time_waits_for_the_queues_time_and_shortens_nobodys() {
        let urgency = Urgency::of_flight(untimed(2));
        assert_eq!(urgency.wish().patient_until(QUEUE), Micros(6));
        urgency.join(wish(Priority::Low, Some(9)));
        let wanted = urgency.wish();
        assert_eq!(wanted.over_by(), None);
        assert_eq!(wanted.patient_until(QUEUE), Micros(9), "the longer counts");
        urgency.join(untimed(7));
        assert_eq!(urgency.wish().patient_until(QUEUE), Micros(11));
    }
}
