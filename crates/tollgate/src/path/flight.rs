//! The flight stage: is the same question already on its way?
//!
//! The call that comes first asks for everybody who comes while it is on its way. It runs in its
//! own caller's task: only if that caller leaves while others wait does it go on in a task of its
//! own, so a call that nobody joins costs a table entry and no more.
//!
//! Promises: one upstream call for all identical ones of this process. A caller that leaves takes
//! nobody with it; a flight that everybody has left ends. If it fails, one of those who wait goes
//! next, as often as its retries allow. An answer that may not be shared releases them at its head,
//! and questions like it are not held together again for a while, or until an answer may be shared.
//!
//! Never: two locks at a time, or a lock across an await.

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

/// Everything that is on its way. Its entries are bounded by the callers that are connected.
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
    /// When the call came that asks for everybody.
    started: Micros,
    demand: Arc<SharedDemand>,
    pub(super) state: Mutex<FlightState>,
    pub(super) changed: Notify,
}

#[derive(Debug)]
pub(super) struct FlightState {
    /// Who waits for the answer, besides the one who asks.
    pub(super) followers: usize,
    pub(super) result: Option<FlightResult>,
    /// The one who asked has left; the call goes on without it.
    pub(super) leader_left: bool,
    /// In this task.
    pub(super) detached: Option<AbortHandle>,
}

/// A call's place in a flight.
#[derive(Debug)]
pub(crate) enum FlightRole {
    /// It goes alone.
    Alone,
    /// It goes alone because answers to its question could not be shared.
    Unshared(PassEntry),
    /// It asks for everybody.
    Leader(LeaderRole),
    /// Somebody has asked already.
    Follower(Follower),
}

/// The right to ask for everybody.
#[derive(Debug)]
pub(crate) struct LeaderRole {
    flight: Arc<Flight>,
    table: Arc<FlightTable>,
    /// What is left of this caller's own time.
    remaining: Option<Span>,
    /// When that is over.
    deadline: Option<Micros>,
    provider: Arc<ActiveProvider>,
}

/// A flight to wait for. Dropped, it is not waited for any more.
#[derive(Debug)]
pub(crate) struct Follower {
    flight: Arc<Flight>,
    is_over: bool,
}

/// Finds a call's place.
pub(crate) fn join(flights: &Flights, route: &mut Route) -> FlightRole {
    let plan = route.provider.policy();
    let mode = sharing::mode(route, &plan);
    route.shared_demand = None;
    if !sharing::can_share(route, mode) {
        if mode != Dedup::Off || !merge::may_lead(route) {
            return FlightRole::Alone;
        }
        // A flight that nobody finds: its answer is for one caller, but others may wait for parts of it.
        let flight = Arc::new(Flight::new(sharing::key(route), mode, route, &plan));
        return flight.into_leader(flights, route);
    }
    let key = sharing::key(route);
    let mut new = None;
    loop {
        let found = {
            let mut shard = flights.table.shard(key).lock();
            match shard.get(&key) {
                // What was changed since is not what those who come now ask for.
                Some(FlightSlot::InFlight(flight)) if !is_outdated(route, flight) => flight.clone(),
                Some(FlightSlot::Pass(until)) if *until > route.provider.ledger.at() => {
                    drop(shard);
                    return FlightRole::Unshared(PassEntry {
                        key,
                        identity: RequestIdentity::new(route, &plan),
                        mode,
                        table: flights.table.clone(),
                    });
                }
                Some(FlightSlot::InFlight(_) | FlightSlot::Pass(_)) | None => {
                    let flight = new
                        .take()
                        .unwrap_or_else(|| Arc::new(Flight::new(key, mode, route, &plan)));
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
        // It has just ended: the next one takes its place.
        flights.table.remove(&found);
        new.get_or_insert_with(|| Arc::new(Flight::new(key, mode, route, &plan)));
    }
}

fn is_outdated(route: &Route, flight: &Flight) -> bool {
    route
        .provider
        .writes
        .changed_since(&route.path, flight.started)
}

impl Flight {
    fn new(key: FlightKey, mode: Dedup, route: &Route, plan: &CompiledPolicy) -> Flight {
        let asked = RequestIdentity::new(route, plan);
        let idle = plan.provider.timeouts.idle;
        Flight {
            // Its bytes leave after this, whenever its call arrived.
            started: route.provider.ledger.at(),
            ..Flight::of(key, mode, asked, idle, route.own_demand())
        }
    }

    fn of(
        key: FlightKey,
        mode: Dedup,
        asked: RequestIdentity,
        idle: Span,
        wish: CallDemand,
    ) -> Flight {
        Flight {
            started: Micros::default(),
            key,
            identity: asked,
            mode,
            idle,
            demand: Arc::new(SharedDemand::of_flight(wish)),
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

    /// Somebody waits for a larger answer of which this flight's is a part: it goes on for that one
    /// too. `None` = too late.
    pub(super) fn join_for_part(self: &Arc<Flight>) -> Option<Follower> {
        self.add_follower().then(|| Follower {
            flight: self.clone(),
            is_over: false,
        })
    }

    /// One more waits; `false` = too late.
    fn add_follower(&self) -> bool {
        let mut state = self.state.lock();
        match &state.result {
            None => {
                state.followers += 1;
                true
            }
            Some(FlightResult::Shared(shown)) => {
                let body = shown.body.clone();
                drop(state);
                body.reserve()
            }
            Some(FlightResult::Failed(_) | FlightResult::Alone(_) | FlightResult::Lost) => false,
        }
    }

    /// Its first caller leaves. If nobody else waits for it, it may end, and nobody can board it
    /// afterwards; otherwise its answer is for those who do, however soon it comes.
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

/// A call that asks for everybody, in its caller's task until that caller leaves.
struct Leader {
    /// The call, and how it lands; nothing once it has.
    call: Option<(BoxedCall, FlightEnd)>,
    flight: Arc<Flight>,
}

/// A call on the heap: every future above it would have its size, and would be copied with it.
type BoxedCall = Pin<Box<dyn Future<Output = CallOutcome> + Send>>;

impl LeaderRole {
    /// Makes the call for everybody.
    pub(crate) async fn lead(self, call: BoxedCall) -> CallOutcome {
        let LeaderRole {
            flight,
            table,
            remaining: left,
            deadline: due,
            provider: live,
        } = self;
        let landing = FlightEnd::new(flight.clone(), table, live.ledger.clone());
        let mut pilot = Leader {
            call: Some((call, landing)),
            flight: flight.clone(),
        };
        let Some(left) = left else {
            return pilot.await;
        };
        tokio::select! {
            biased;
            outcome = &mut pilot => outcome,
            () = until_outlived(&flight, left, due) => CallOutcome::from_error(Error::TooLate {
                provider: live.name.clone(),
                at: Stage::Upstream,
            }),
        }
    }

    /// The answer is here already: everybody gets that.
    pub(crate) fn finish_with(self, reply: Reply) -> CallOutcome {
        let ledger = self.provider.ledger.clone();
        FlightEnd::new(self.flight, self.table, ledger).finish(CallOutcome::from_reply(reply))
    }
}

/// Waits for the end of the first caller's time, if the flight goes on after it: for others, or in
/// the time of others who have left. If it does not, it ends by itself and says why.
async fn until_outlived(flight: &Flight, left: Span, own: Option<Micros>) {
    timer::sleep(Some(left)).await;
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
            // Its caller's time in line may be up although others still wait.
            let told = self.flight.demand.leader_error().cloned();
            return told.map_or(Poll::Pending, |told| {
                Poll::Ready(CallOutcome::from_error(told))
            });
        };
        let landing = self.call.take().map(|(_, landing)| landing);
        Poll::Ready(match landing {
            Some(landing) => landing.finish(outcome),
            None => outcome,
        })
    }
}

impl Drop for Leader {
    fn drop(&mut self) {
        let Some((call, landing)) = self.call.take() else {
            return;
        };
        // What panicked must not be asked again: dropping it tells those who wait.
        if std::thread::panicking() || self.flight.end_unless_wanted() {
            return;
        }
        // Without a runtime nobody waits any more either.
        let Ok(runtime) = Handle::try_current() else {
            return;
        };
        let task = runtime.spawn(async move {
            drop(landing.finish(call.await));
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
    /// The answer; `None` = the call must find another place.
    pub(crate) async fn follow(mut self, route: &mut Route) -> Option<CallOutcome> {
        let flight = self.flight.clone();
        let landed =
            match wait_as_if_alone(route, route.own_demand(), &flight.demand, flight.finished())
                .await
            {
                Ok(landed) => landed,
                Err(late) => return Some(CallOutcome::from_error(late)),
            };
        let agent = sharing::user_agent(&route.headers);
        match landed {
            FlightResult::Shared(shown) => {
                let fits = !flight.identity.varies_for(&shown.head, &agent);
                self.is_over = fits;
                let reply = if fits { shown.to_reply() } else { None };
                route.sharing.is_alone = reply.is_none();
                route.provider.savings.on_shared(reply.is_some());
                reply.map(CallOutcome::from_reply)
            }
            FlightResult::Failed(failed) => {
                route.sharing.failed_flights += 1;
                if route.sharing.failed_flights <= failed_flights_max(route) {
                    return None; // one of those who wait goes next
                }
                match &*failed {
                    Ok(shown) => {
                        self.is_over = true;
                        shown.to_reply().map(CallOutcome::from_reply)
                    }
                    Err(error) => Some(CallOutcome::from_error(error.clone())),
                }
            }
            FlightResult::Alone(left) => {
                // The one who asked has left: its answer belongs to the first who comes for it.
                let mut left = left.lock();
                let reply = left.take_if(|reply| !flight.identity.varies_for(&reply.head, &agent));
                route.sharing.is_alone = true;
                reply.map(CallOutcome::from_reply)
            }
            FlightResult::Lost => None,
        }
    }
}

impl Flight {
    /// Waits until there is an answer.
    async fn finished(&self) -> FlightResult {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            if let Some(landed) = &self.state.lock().result {
                return landed.clone();
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
            Some(FlightResult::Shared(shown)) => body = Some(shown.body.clone()),
            Some(FlightResult::Failed(failed)) => {
                body = failed
                    .as_ref()
                    .as_ref()
                    .ok()
                    .map(|shown| shown.body.clone());
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
