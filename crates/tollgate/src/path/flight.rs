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
//! Never: holds two locks at a time, or a lock across an await.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tollgate_config::settings::{Dedup, Merge};
use tollgate_core::time::{Micros, Span};

use super::demand::{CallDemand, SharedDemand, failed_flights_max, wait_as_if_alone};
use super::flight_end::{FlightEnd, FlightResult};
use super::flight_table::{FlightSlot, FlightTable, PassEntry};
use super::merge;
use super::route::Route;
use super::sharing::{self, FlightKey, RequestIdentity};
use super::{CallOutcome, Reply};
use crate::error::Stage;
use crate::providers::{ActiveProvider, CompiledPolicy};
use crate::{Error, timer};

/// All flights. The number of connected callers bounds its entries.
#[derive(Clone, Debug, Default)]
pub(crate) struct Flights {
    table: Arc<FlightTable>,
}

/// One upstream call and everyone who waits for it.
#[derive(Debug)]
pub(super) struct Flight {
    pub(super) key: FlightKey,
    pub(super) identity: RequestIdentity,
    pub(super) mode: Dedup,
    pub(super) idle: Span,
    /// When the leader's call started.
    started: Micros,
    demand: Arc<SharedDemand>,
    pub(super) state: Mutex<FlightState>,
    pub(super) changed: Notify,
}

#[derive(Debug)]
pub(super) struct FlightState {
    /// The callers that wait for the response, without the leader.
    pub(super) followers: usize,
    pub(super) result: Option<FlightResult>,
    /// The leader's caller has left; the call continues without it.
    pub(super) leader_left: bool,
    /// The task in which it continues.
    pub(super) detached: Option<AbortHandle>,
}

/// The role of a call in a flight.
#[derive(Debug)]
pub(crate) enum FlightRole {
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
pub(crate) struct LeaderRole {
    flight: Arc<Flight>,
    table: Arc<FlightTable>,
    /// The remaining time of this caller.
    remaining: Option<Span>,
    /// When that time ends.
    deadline: Option<Micros>,
    provider: Arc<ActiveProvider>,
}

/// A caller that waits for a flight. Dropped, it no longer waits.
#[derive(Debug)]
pub(crate) struct Follower {
    flight: Arc<Flight>,
    is_over: bool,
}

/// Finds the role of a call.
pub(crate) fn join(flights: &Flights, route: &mut Route) -> FlightRole {
    let policy = route.provider.policy();
    let mode = sharing::mode(route, &policy);
    route.shared_demand = None;
    if !sharing::can_share(route, mode) {
        if mode != Dedup::Off || !merge::may_lead(route) {
            return FlightRole::Alone;
        }
        // A flight that is not in the table: its response is for one caller, but others may wait
        // for parts of it.
        let flight = Arc::new(Flight::new(sharing::key(route), mode, route, &policy));
        return flight.into_leader(flights, route);
    }
    let key = sharing::key(route);
    let mut new = None;
    loop {
        let found = {
            let mut shard = flights.table.shard(key).lock();
            match shard.get(&key) {
                // A flight from before a write does not serve calls after it.
                Some(FlightSlot::InFlight(flight)) if !is_outdated(route, flight) => flight.clone(),
                Some(FlightSlot::Pass(until)) if *until > route.provider.ledger.at() => {
                    drop(shard);
                    return FlightRole::Unshared(PassEntry {
                        key,
                        identity: RequestIdentity::new(route, &policy),
                        mode,
                        table: flights.table.clone(),
                    });
                }
                Some(FlightSlot::InFlight(_) | FlightSlot::Pass(_)) | None => {
                    let flight = new
                        .take()
                        .unwrap_or_else(|| Arc::new(Flight::new(key, mode, route, &policy)));
                    shard.insert(key, FlightSlot::InFlight(flight.clone()));
                    drop(shard);
                    return flight.into_leader(flights, route);
                }
            }
        };
        if found.add_follower() {
            found.demand.join(route.own_demand());
            route.provider.savings.on_joined();
            return FlightRole::Follower(Follower {
                flight: found,
                is_over: false,
            });
        }
        // It has just ended: the next flight replaces it.
        flights.table.remove(&found);
        new.get_or_insert_with(|| Arc::new(Flight::new(key, mode, route, &policy)));
    }
}

fn is_outdated(route: &Route, flight: &Flight) -> bool {
    route
        .provider
        .writes
        .changed_since(&route.path, flight.started)
}

impl Flight {
    fn new(key: FlightKey, mode: Dedup, route: &Route, policy: &CompiledPolicy) -> Flight {
        let identity = RequestIdentity::new(route, policy);
        let idle = policy.provider.timeouts.idle;
        Flight {
            // Its bytes leave after this, whenever its call arrived.
            started: route.provider.ledger.at(),
            ..Flight::of(key, mode, identity, idle, route.own_demand())
        }
    }

    fn of(
        key: FlightKey,
        mode: Dedup,
        identity: RequestIdentity,
        idle: Span,
        demand: CallDemand,
    ) -> Flight {
        Flight {
            started: Micros::default(),
            key,
            identity,
            mode,
            idle,
            demand: Arc::new(SharedDemand::of_flight(demand)),
            state: Mutex::new(FlightState {
                followers: 0,
                result: None,
                leader_left: false,
                detached: None,
            }),
            changed: Notify::new(),
        }
    }

    fn into_leader(self: Arc<Flight>, flights: &Flights, route: &mut Route) -> FlightRole {
        route.shared_demand = Some(self.demand.clone());
        if route.provider.policy().provider.merge != Merge::Off {
            route.merging.flight = Some(self.clone());
        }
        FlightRole::Leader(LeaderRole {
            flight: self,
            table: flights.table.clone(),
            remaining: route.own_remaining(),
            deadline: route.own_demand().overall_deadline(),
            provider: route.provider.clone(),
        })
    }

    /// Another caller waits for a larger response that includes this flight's: the flight continues
    /// for that caller too. `None` = too late.
    pub(super) fn join_for_part(self: &Arc<Flight>) -> Option<Follower> {
        self.add_follower().then(|| Follower {
            flight: self.clone(),
            is_over: false,
        })
    }

    /// Adds a follower; `false` = too late.
    fn add_follower(&self) -> bool {
        let mut state = self.state.lock();
        match &state.result {
            None => {
                state.followers += 1;
                true
            }
            Some(FlightResult::Shared(shared)) => {
                let body = shared.body.clone();
                drop(state);
                body.reserve()
            }
            Some(FlightResult::Failed(_) | FlightResult::Alone(_) | FlightResult::Lost) => false,
        }
    }

    /// The leader's caller leaves. If nobody else waits, the flight ends, and nobody can join it
    /// any more. Otherwise its response is for the followers, however soon it arrives.
    fn end_unless_wanted(&self) -> bool {
        let mut state = self.state.lock();
        if state.followers > 0 {
            state.leader_left = true;
            return false;
        }
        state.result.get_or_insert(FlightResult::Lost);
        true
    }
}

/// The leader's call, in its caller's task until that caller leaves.
struct Leader {
    /// The call, and its end; `None` once it has ended.
    call: Option<(BoxedCall, FlightEnd)>,
    flight: Arc<Flight>,
}

/// A call on the heap: every future above it would otherwise have its size, and be copied with it.
type BoxedCall = Pin<Box<dyn Future<Output = CallOutcome> + Send>>;

impl LeaderRole {
    /// Makes the call for all callers.
    pub(crate) async fn lead(self, call: BoxedCall) -> CallOutcome {
        let LeaderRole {
            flight,
            table,
            remaining,
            deadline,
            provider,
        } = self;
        let end = FlightEnd::new(flight.clone(), table, provider.ledger.clone());
        let mut leader = Leader {
            call: Some((call, end)),
            flight: flight.clone(),
        };
        let Some(remaining) = remaining else {
            return leader.await;
        };
        tokio::select! {
            biased;
            outcome = &mut leader => outcome,
            () = until_outlived(&flight, remaining, deadline) => {
                CallOutcome::from_error(Error::TooLate {
                    provider: provider.name.clone(),
                    at: Stage::Upstream,
                })
            }
        }
    }

    /// A response is already there: all callers get it.
    pub(crate) fn finish_with(self, reply: Reply) -> CallOutcome {
        let ledger = self.provider.ledger.clone();
        FlightEnd::new(self.flight, self.table, ledger).finish(CallOutcome::from_reply(reply))
    }
}

/// Waits for the end of the leader's own time, if the flight outlives it: for followers, or within
/// the time of followers who have left. Otherwise the flight ends by itself and reports why.
async fn until_outlived(flight: &Flight, remaining: Span, own: Option<Micros>) {
    timer::sleep(Some(remaining)).await;
    let is_alone = flight.state.lock().followers == 0;
    if is_alone && flight.demand.demand().overall_deadline() == own {
        std::future::pending::<()>().await;
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
                Poll::Ready(CallOutcome::from_error(error))
            });
        };
        let end = self.call.take().map(|(_, end)| end);
        Poll::Ready(match end {
            Some(end) => end.finish(outcome),
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
            drop(end.finish(call.await));
        });
        let mut state = self.flight.state.lock();
        state.detached = Some(task.abort_handle());
        let is_wanted = state.followers > 0 || state.result.is_some();
        state.result = state
            .result
            .take()
            .or((!is_wanted).then_some(FlightResult::Lost));
        drop(state);
        if !is_wanted {
            task.abort();
        }
    }
}

impl Follower {
    /// The response; `None` = the call must find another role.
    pub(crate) async fn follow(mut self, route: &mut Route) -> Option<CallOutcome> {
        let flight = self.flight.clone();
        let result =
            match wait_as_if_alone(route, route.own_demand(), &flight.demand, flight.finished())
                .await
            {
                Ok(result) => result,
                Err(late) => return Some(CallOutcome::from_error(late)),
            };
        let user_agent = sharing::user_agent(&route.headers);
        match result {
            FlightResult::Shared(shared) => {
                let fits = !flight.identity.varies_for(&shared.head, &user_agent);
                self.is_over = fits;
                let reply = if fits { shared.to_reply() } else { None };
                route.sharing.is_alone = reply.is_none();
                route.provider.savings.on_shared(reply.is_some());
                reply.map(CallOutcome::from_reply)
            }
            FlightResult::Failed(failed) => {
                route.sharing.failed_flights += 1;
                if route.sharing.failed_flights <= failed_flights_max(route) {
                    return None; // a follower leads next
                }
                match &*failed {
                    Ok(shared) => {
                        self.is_over = true;
                        shared.to_reply().map(CallOutcome::from_reply)
                    }
                    Err(error) => Some(CallOutcome::from_error(error.clone())),
                }
            }
            FlightResult::Alone(unclaimed) => {
                // The leader's caller has left: its response belongs to the first follower that
                // takes it.
                let mut unclaimed = unclaimed.lock();
                let reply = unclaimed
                    .take_if(|reply| !flight.identity.varies_for(&reply.head, &user_agent));
                route.sharing.is_alone = true;
                reply.map(CallOutcome::from_reply)
            }
            FlightResult::Lost => None,
        }
    }
}

impl Flight {
    /// Waits until the flight has ended.
    async fn finished(&self) -> FlightResult {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            if let Some(result) = &self.state.lock().result {
                return result.clone();
            }
            changed.await;
        }
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let mut state = self.flight.state.lock();
        let (mut body, mut task) = (None, None);
        match &state.result {
            None => {
                state.followers -= 1;
                if state.followers == 0 {
                    task = state.detached.take();
                }
            }
            Some(FlightResult::Shared(shared)) => body = Some(shared.body.clone()),
            Some(FlightResult::Failed(failed)) => {
                body = failed
                    .as_ref()
                    .as_ref()
                    .ok()
                    .map(|shared| shared.body.clone());
            }
            Some(FlightResult::Alone(_) | FlightResult::Lost) => {}
        }
        if task.is_some() {
            state.result = Some(FlightResult::Lost);
        }
        drop(state);
        if let Some(body) = body {
            body.release();
        }
        if let Some(task) = task {
            task.abort();
        }
    }
}

#[cfg(test)]
#[path = "flight_tests.rs"]
mod tests;
