//! The flight stage: is an identical request already in flight?
//!
//! The first call, the leader, sends the request for all callers that join while it is in flight.
//! It runs in its own caller's task. Only if that caller leaves while followers wait does it move
//! to a task of its own, so a call that nobody joins costs one table entry.
//!
//! Promises: one upstream call for all identical ones of this process. A caller that leaves does
//! not affect the others; a flight without callers ends. If the leader fails, a follower leads
//! next, as often as its retries allow. A response that may not be shared releases the followers at
//! its head. Requests like it are then sent separately for a while, or until a response may be
//! shared.
//!
//! Never: holds a lock across an await, or takes locks against their order.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::runtime::Handle;
use tollgate_config::settings::{Dedup, Merge};
use tollgate_core::time::{Micros, Span};

use super::cache_request::PendingStore;
use super::outcome::{BoxedCall, CallOutcome};
use super::progress::CallProgress;
use super::refresh::Go;
use super::route::Route;
use super::subject::{failed_flights_max, wait_as_if_alone};
use super::{cache, identity, merge};
use crate::error::Stage;
use crate::event::StepKind;
use crate::flights::{
    self, Flight, FlightInProgress, FlightKey, FlightResult, FlightSlot, FlightTable, Flights,
    Follower, PassEntry,
};
use crate::headers::is_upgrade;
use crate::providers::{ActiveProvider, CompiledPolicy};
use crate::reply::Reply;
use crate::{Error, timer};

/// The role of a call in a flight.
#[derive(Debug)]
enum FlightRole {
    /// It goes alone.
    Alone,
    /// It goes alone because responses to this request could not be shared.
    Unshared(PassEntry),
    /// It sends the request for all callers.
    Leader(LeaderRole),
    /// It waits for the leader's response.
    Follower(Follower),
}

/// The right to send the request for all callers.
#[derive(Debug)]
struct LeaderRole {
    flight: Arc<Flight>,
    table: Arc<FlightTable>,
    /// The remaining time of this caller.
    remaining: Option<Span>,
    /// When that time ends.
    deadline: Option<Micros>,
    provider: Arc<ActiveProvider>,
    /// How far the call has come, while somebody listens.
    progress: Option<Arc<CallProgress>>,
}

/// Makes a call alone, for everybody who wants the same, or waits for the one that does.
pub(crate) async fn fly(
    flights: &Flights,
    mut route: Route,
    pending: PendingStore,
    go: Go,
) -> CallOutcome {
    loop {
        match join(flights, &mut route) {
            FlightRole::Alone => {
                // A call that could not use the response of a flight checks whether another call
                // has stored one meanwhile.
                let has_waited = route.flight.is_alone;
                return match has_waited
                    .then(|| cache::recheck(&route, &pending))
                    .flatten()
                {
                    Some(reply) => CallOutcome::from_reply(reply),
                    None => go(route, pending).await,
                };
            }
            FlightRole::Unshared(entry) => {
                let outcome = go(route, pending).await;
                if let (Ok(reply), false) = (&outcome.result, outcome.is_failure) {
                    entry.on_reply(reply); // perhaps the next calls can share one response
                }
                return outcome;
            }
            FlightRole::Leader(flight) => {
                return match cache::recheck(&route, &pending) {
                    Some(reply) => flight.finish_with(reply), // another flight has just stored it
                    None => flight.lead(go(route, pending)).await,
                };
            }
            FlightRole::Follower(flight) => {
                if let Some(outcome) = follow(flight, &mut route).await {
                    return outcome;
                }
                // The leader failed or may not share: our turn.
            }
        }
    }
}

/// Finds the role of a call.
fn join(flights: &Flights, route: &mut Route) -> FlightRole {
    if is_upgrade(&route.request.headers) {
        return FlightRole::Alone; // a tunnel cannot be shared
    }
    let policy = route.subject.provider.policy();
    let mode = identity::mode(route, &policy);
    route.subject.shared_demand = None;
    if !identity::can_share(route, mode) {
        if mode != Dedup::Off || !merge::may_lead(route) {
            return FlightRole::Alone;
        }
        // A flight that is not in the table: its response is for one caller, but others may wait
        // for parts of it.
        let flight = Arc::new(new_flight(
            identity::key(route, &policy),
            mode,
            route,
            &policy,
        ));
        return into_leader(flight, flights, route, &policy);
    }
    let key = identity::key(route, &policy);
    let mut new = None;
    loop {
        let found = {
            let mut shard = flights.table.shard(key).lock();
            match shard.get(&key) {
                // A flight from before a write does not serve calls after it.
                Some(FlightSlot::InFlight(flight)) if !is_outdated(route, flight) => flight.clone(),
                Some(FlightSlot::Pass(until)) if *until > route.subject.provider.ledger.at() => {
                    drop(shard);
                    return FlightRole::Unshared(PassEntry {
                        key,
                        identity: identity::identity(route, &policy),
                        mode,
                        table: flights.table.clone(),
                    });
                }
                Some(FlightSlot::InFlight(_) | FlightSlot::Pass(_)) | None => {
                    let flight = new
                        .take()
                        .unwrap_or_else(|| Arc::new(new_flight(key, mode, route, &policy)));
                    shard.insert(key, FlightSlot::InFlight(flight.clone()));
                    drop(shard);
                    return into_leader(flight, flights, route, &policy);
                }
            }
        };
        if found.add_follower() {
            found.demand.join(route.subject.own_demand());
            route.subject.provider.savings.on_joined();
            route.subject.add_step(|| StepKind::Joined);
            return FlightRole::Follower(Follower {
                flight: found,
                is_over: false,
            });
        }
        // It has just ended: the next flight replaces it.
        flights.table.remove(&found);
        new.get_or_insert_with(|| Arc::new(new_flight(key, mode, route, &policy)));
    }
}

fn is_outdated(route: &Route, flight: &Flight) -> bool {
    route
        .subject
        .provider
        .writes
        .changed_since(&route.request.path, flight.started)
}

fn new_flight(key: FlightKey, mode: Dedup, route: &Route, policy: &CompiledPolicy) -> Flight {
    let identity = identity::identity(route, policy);
    let idle = policy.provider.timeouts.idle;
    Flight {
        // Its bytes leave after this, whenever its call arrived.
        started: route.subject.provider.ledger.at(),
        ..Flight::of(key, mode, identity, idle, route.subject.own_demand())
    }
}

fn into_leader(
    flight: Arc<Flight>,
    flights: &Flights,
    route: &mut Route,
    policy: &CompiledPolicy,
) -> FlightRole {
    route.subject.shared_demand = Some(flight.demand.clone());
    if policy.provider.merge != Merge::Off {
        route.flight.merging.flight = Some(flight.clone());
    }
    FlightRole::Leader(LeaderRole {
        flight,
        table: flights.table.clone(),
        remaining: route.subject.own_remaining(),
        deadline: route.subject.own_demand().overall_deadline(),
        provider: route.subject.provider.clone(),
        progress: route.subject.progress.clone(),
    })
}

/// The leader's call, in its caller's task until that caller leaves.
struct Leader {
    /// The call, and its end; `None` once it has ended.
    call: Option<(BoxedCall, FlightInProgress)>,
    flight: Arc<Flight>,
    progress: Option<Arc<CallProgress>>,
}

impl LeaderRole {
    /// Makes the call for all callers.
    async fn lead(self, call: BoxedCall) -> CallOutcome {
        let LeaderRole {
            flight,
            table,
            remaining,
            deadline,
            provider,
            progress,
        } = self;
        let end = FlightInProgress::new(flight.clone(), table, provider.ledger.clone());
        let mut leader = Leader {
            call: Some((call, end)),
            flight: flight.clone(),
            progress: progress.clone(),
        };
        let Some(remaining) = remaining else {
            return leader.await;
        };
        tokio::select! {
            biased;
            outcome = &mut leader => outcome,
            () = until_outlived(&flight, remaining, deadline) => {
                let late = Error::DeadlineExceeded {
                    provider: provider.name.clone(),
                    at: Stage::Upstream,
                };
                CallOutcome::for_departed_caller(late, flight.demand.attempts(), progress.as_ref())
            }
        }
    }

    /// A response is already there: all callers get it.
    fn finish_with(self, reply: Reply) -> CallOutcome {
        let ledger = self.provider.ledger.clone();
        finish(
            FlightInProgress::new(self.flight, self.table, ledger),
            CallOutcome::from_reply(reply),
        )
    }
}

/// Waits for the end of the leader's own time, if the flight outlives it: for followers, or within
/// the time of followers who have left. Otherwise the flight ends by itself and reports why.
async fn until_outlived(flight: &Flight, remaining: Span, own: Option<Micros>) {
    timer::sleep(Some(remaining)).await;
    let is_alone = flight.round.lock().open.followers == 0;
    if is_alone && flight.demand.demand().overall_deadline() == own {
        std::future::pending::<()>().await;
    }
}

/// Ends a flight. Returns what the leader gets.
fn finish(end: FlightInProgress, outcome: CallOutcome) -> CallOutcome {
    CallOutcome {
        result: end.finish(outcome.result, outcome.is_failure),
        ..outcome
    }
}

impl Future for Leader {
    type Output = CallOutcome;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<CallOutcome> {
        let Some((call, _)) = &mut self.call else {
            return Poll::Pending;
        };
        let Poll::Ready(outcome) = call.as_mut().poll(cx) else {
            // The leader's time in the queue may be up although followers still wait.
            let error = self.flight.demand.leader_error().cloned();
            return error.map_or(Poll::Pending, |error| {
                let attempts = self.flight.demand.attempts();
                Poll::Ready(CallOutcome::for_departed_caller(
                    error,
                    attempts,
                    self.progress.as_ref(),
                ))
            });
        };
        let end = self.call.take().map(|(_, end)| end);
        Poll::Ready(match end {
            Some(end) => finish(end, outcome),
            None => outcome,
        })
    }
}

impl Drop for Leader {
    fn drop(&mut self) {
        let Some((call, end)) = self.call.take() else {
            return;
        };
        // A call that panicked must not be repeated: dropping it informs the followers.
        if std::thread::panicking() || self.flight.end_unless_wanted() {
            return;
        }
        // Without a runtime nobody waits any more either.
        let Ok(runtime) = Handle::try_current() else {
            return;
        };
        let task = runtime.spawn(async move {
            drop(finish(end, call.await));
        });
        let mut state = self.flight.round.lock();
        state.open.detached = Some(task.abort_handle());
        let is_wanted = state.open.followers > 0 || state.end.is_some();
        state.end = state
            .end
            .take()
            .or((!is_wanted).then_some(FlightResult::Lost));
        drop(state);
        if !is_wanted {
            task.abort();
        }
    }
}

/// Waits for the response of a flight; `None` = the call must find another role.
async fn follow(mut follower: Follower, route: &mut Route) -> Option<CallOutcome> {
    let flight = follower.flight.clone();
    let result = match wait_as_if_alone(
        &route.subject,
        route.subject.own_demand(),
        &flight.demand,
        flight.round.finished(),
    )
    .await
    {
        Ok(result) => result,
        Err(late) => return Some(CallOutcome::from_error(late)),
    };
    let user_agent = flights::user_agent(&route.request.headers);
    match result {
        FlightResult::Shared(shared) => {
            let fits = !flight.identity.varies_for(&shared.head, &user_agent);
            follower.is_over = fits;
            let reply = if fits { shared.to_reply() } else { None };
            route.flight.is_alone = reply.is_none();
            route.subject.provider.savings.on_shared(reply.is_some());
            reply.map(CallOutcome::from_reply)
        }
        FlightResult::Failed(failed) => {
            route.flight.failed_flights += 1;
            if route.flight.failed_flights <= failed_flights_max(&route.subject) {
                return None; // a follower leads next
            }
            match &*failed {
                Ok(shared) => {
                    follower.is_over = true;
                    shared.to_reply().map(CallOutcome::from_reply)
                }
                Err(error) => Some(CallOutcome::from_error(error.clone())),
            }
        }
        FlightResult::Alone(unclaimed) => {
            // The leader's caller has left: its response belongs to the first follower that
            // takes it.
            let mut unclaimed = unclaimed.lock();
            let reply =
                unclaimed.take_if(|reply| !flight.identity.varies_for(&reply.head, &user_agent));
            route.flight.is_alone = true;
            reply.map(CallOutcome::from_reply)
        }
        FlightResult::Lost => None,
    }
}

#[cfg(test)]
#[path = "flight_tests.rs"]
mod tests;
