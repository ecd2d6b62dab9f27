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

use super::landing::{Landed, Landing};
use super::merge;
use super::route::Route;
use super::share::{self, Asked, Key};
use super::table::{Mark, Slot, Table};
use super::urgency::{Urgency, Wish, as_if_alone, failures_borne};
use super::{Outcome, Reply};
use crate::error::Stage;
use crate::shop::{Live, Plan};
use crate::{Error, timer};

/// Everything that is on its way. Its entries are bounded by the callers that are connected.
#[derive(Clone, Debug, Default)]
pub(crate) struct Flights {
    table: Arc<Table>,
}

/// One upstream call and everyone who waits for it.
#[derive(Debug)]
pub(super) struct Flight {
    pub(super) key: Key,
    pub(super) asked: Asked,
    pub(super) mode: Dedup,
    pub(super) idle: Span,
    /// When the call came that asks for everybody.
    since: Micros,
    urgency: Arc<Urgency>,
    pub(super) state: Mutex<State>,
    pub(super) changed: Notify,
}

#[derive(Debug)]
pub(super) struct State {
    /// Who waits for the answer, besides the one who asks.
    pub(super) followers: usize,
    pub(super) landed: Option<Landed>,
    /// The one who asked has left; the call goes on without it.
    pub(super) is_left: bool,
    /// In this task.
    pub(super) detached: Option<AbortHandle>,
}

/// A call's place in a flight.
#[derive(Debug)]
pub(crate) enum Place {
    /// It goes alone.
    Alone,
    /// It goes alone because answers to its question could not be shared.
    Apart(Mark),
    /// It asks for everybody.
    First(Lead),
    /// Somebody has asked already.
    Behind(Follow),
}

/// The right to ask for everybody.
#[derive(Debug)]
pub(crate) struct Lead {
    flight: Arc<Flight>,
    table: Arc<Table>,
    /// What is left of this caller's own time.
    left: Option<Span>,
    /// When that is over.
    due: Option<Micros>,
    live: Arc<Live>,
}

/// A flight to wait for. Dropped, it is not waited for any more.
#[derive(Debug)]
pub(crate) struct Follow {
    flight: Arc<Flight>,
    is_over: bool,
}

/// Finds a call's place.
pub(crate) fn join(flights: &Flights, route: &mut Route) -> Place {
    let plan = route.live.plan();
    let mode = share::mode(route, &plan);
    route.urgency = None;
    if !share::can_share(route, mode) {
        if mode != Dedup::Off || !merge::may_lead(route) {
            return Place::Alone;
        }
        // A flight that nobody finds: its answer is for one caller, but others may wait for parts of it.
        let flight = Arc::new(Flight::new(share::key(route), mode, route, &plan));
        return flight.first(flights, route);
    }
    let key = share::key(route);
    let mut new = None;
    loop {
        let found = {
            let mut shard = flights.table.shard(key).lock();
            match shard.get(&key) {
                // What was changed since is not what those who come now ask for.
                Some(Slot::Flying(flight)) if !is_outdated(route, flight) => flight.clone(),
                Some(Slot::Pass(until)) if *until > route.live.ledger.at() => {
                    drop(shard);
                    return Place::Apart(Mark {
                        key,
                        asked: Asked::new(route, &plan),
                        mode,
                        table: flights.table.clone(),
                    });
                }
                Some(Slot::Flying(_) | Slot::Pass(_)) | None => {
                    let flight = new
                        .take()
                        .unwrap_or_else(|| Arc::new(Flight::new(key, mode, route, &plan)));
                    shard.insert(key, Slot::Flying(flight.clone()));
                    drop(shard);
                    return flight.first(flights, route);
                }
            }
        };
        if found.board() {
            found.urgency.join(route.own_wish());
            route.live.saved.joined();
            return Place::Behind(Follow {
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
    route.live.writes.is_after(&route.path, flight.since)
}

impl Flight {
    fn new(key: Key, mode: Dedup, route: &Route, plan: &Plan) -> Flight {
        let asked = Asked::new(route, plan);
        let idle = plan.provider.timeouts.idle;
        Flight {
            // Its bytes leave after this, whenever its call arrived.
            since: route.live.ledger.at(),
            ..Flight::of(key, mode, asked, idle, route.own_wish())
        }
    }

    fn of(key: Key, mode: Dedup, asked: Asked, idle: Span, wish: Wish) -> Flight {
        Flight {
            since: Micros::default(),
            key,
            asked,
            mode,
            idle,
            urgency: Arc::new(Urgency::of_flight(wish)),
            state: Mutex::new(State {
                followers: 0,
                landed: None,
                is_left: false,
                detached: None,
            }),
            changed: Notify::new(),
        }
    }

    fn first(self: Arc<Flight>, flights: &Flights, route: &mut Route) -> Place {
        route.urgency = Some(self.urgency.clone());
        if route.live.plan().provider.merge != Merge::Off {
            route.merging.flight = Some(self.clone());
        }
        Place::First(Lead {
            flight: self,
            table: flights.table.clone(),
            left: route.own_left(),
            due: route.own_wish().over_by(),
            live: route.live.clone(),
        })
    }

    /// Somebody waits for a larger answer of which this flight's is a part: it goes on for that one
    /// too. `None` = too late.
    pub(super) fn wanted_too(self: &Arc<Flight>) -> Option<Follow> {
        self.board().then(|| Follow {
            flight: self.clone(),
            is_over: false,
        })
    }

    /// One more waits; `false` = too late.
    fn board(&self) -> bool {
        let mut state = self.state.lock();
        match &state.landed {
            None => {
                state.followers += 1;
                true
            }
            Some(Landed::Shared(shown)) => {
                let body = shown.body.clone();
                drop(state);
                body.promise()
            }
            Some(Landed::Failed(_) | Landed::Alone(_) | Landed::Lost) => false,
        }
    }

    /// Its first caller leaves. If nobody else waits for it, it may end, and nobody can board it
    /// afterwards; otherwise its answer is for those who do, however soon it comes.
    fn end_unless_wanted(&self) -> bool {
        let mut state = self.state.lock();
        if state.followers > 0 {
            state.is_left = true;
            return false;
        }
        state.landed.get_or_insert(Landed::Lost);
        true
    }
}

/// A call that asks for everybody, in its caller's task until that caller leaves.
struct Pilot {
    /// The call, and how it lands; nothing once it has.
    call: Option<(Ask, Landing)>,
    flight: Arc<Flight>,
}

/// A call on the heap: every future above it would have its size, and would be copied with it.
type Ask = Pin<Box<dyn Future<Output = Outcome> + Send>>;

impl Lead {
    /// Makes the call for everybody.
    pub(crate) async fn lead(self, call: Ask) -> Outcome {
        let Lead {
            flight,
            table,
            left,
            due,
            live,
        } = self;
        let landing = Landing::new(flight.clone(), table, live.ledger.clone());
        let mut pilot = Pilot {
            call: Some((call, landing)),
            flight: flight.clone(),
        };
        let Some(left) = left else {
            return pilot.await;
        };
        tokio::select! {
            biased;
            outcome = &mut pilot => outcome,
            () = outlived(&flight, left, due) => Outcome::refused(Error::TooLate {
                provider: live.name.clone(),
                at: Stage::Upstream,
            }),
        }
    }

    /// The answer is here already: everybody gets that.
    pub(crate) fn lands_with(self, reply: Reply) -> Outcome {
        let ledger = self.live.ledger.clone();
        Landing::new(self.flight, self.table, ledger).land(Outcome::of(reply))
    }
}

/// Waits for the end of the first caller's time, if the flight goes on after it: for others, or in
/// the time of others who have left. If it does not, it ends by itself and says why.
async fn outlived(flight: &Flight, left: Span, own: Option<Micros>) {
    timer::rest(Some(left)).await;
    let is_alone = flight.state.lock().followers == 0;
    if is_alone && flight.urgency.wish().over_by() == own {
        std::future::pending::<()>().await;
    }
}

impl Future for Pilot {
    type Output = Outcome;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Outcome> {
        let Some((call, _)) = &mut self.call else {
            return Poll::Pending;
        };
        let Poll::Ready(outcome) = call.as_mut().poll(cx) else {
            // Its caller's time in line may be up although others still wait.
            let told = self.flight.urgency.overdue().cloned();
            return told.map_or(Poll::Pending, |told| Poll::Ready(Outcome::refused(told)));
        };
        let landing = self.call.take().map(|(_, landing)| landing);
        Poll::Ready(match landing {
            Some(landing) => landing.land(outcome),
            None => outcome,
        })
    }
}

impl Drop for Pilot {
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
            drop(landing.land(call.await));
        });
        let mut state = self.flight.state.lock();
        state.detached = Some(task.abort_handle());
        let is_wanted = state.followers > 0 || state.landed.is_some();
        state.landed = state.landed.take().or((!is_wanted).then_some(Landed::Lost));
        drop(state);
        if !is_wanted {
            task.abort();
        }
    }
}

impl Follow {
    /// The answer; `None` = the call must find another place.
    pub(crate) async fn follow(mut self, route: &mut Route) -> Option<Outcome> {
        let flight = self.flight.clone();
        let landed =
            match as_if_alone(route, route.own_wish(), &flight.urgency, flight.landed()).await {
                Ok(landed) => landed,
                Err(late) => return Some(Outcome::refused(late)),
            };
        let agent = share::agent(&route.headers);
        match landed {
            Landed::Shared(shown) => {
                let fits = !flight.asked.differs(&shown.head, &agent);
                self.is_over = fits;
                let reply = if fits { shown.open() } else { None };
                route.sharing.is_alone = reply.is_none();
                route.live.saved.shared(reply.is_some());
                reply.map(Outcome::of)
            }
            Landed::Failed(failed) => {
                route.sharing.failed += 1;
                if route.sharing.failed <= failures_borne(route) {
                    return None; // one of those who wait goes next
                }
                match &*failed {
                    Ok(shown) => {
                        self.is_over = true;
                        shown.open().map(Outcome::of)
                    }
                    Err(error) => Some(Outcome::refused(error.clone())),
                }
            }
            Landed::Alone(left) => {
                // The one who asked has left: its answer belongs to the first who comes for it.
                let mut left = left.lock();
                let reply = left.take_if(|reply| !flight.asked.differs(&reply.head, &agent));
                route.sharing.is_alone = true;
                reply.map(Outcome::of)
            }
            Landed::Lost => None,
        }
    }
}

impl Flight {
    /// Waits until there is an answer.
    async fn landed(&self) -> Landed {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            if let Some(landed) = &self.state.lock().landed {
                return landed.clone();
            }
            changed.await;
        }
    }
}

impl Drop for Follow {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let mut state = self.flight.state.lock();
        let (mut body, mut task) = (None, None);
        match &state.landed {
            None => {
                state.followers -= 1;
                if state.followers == 0 {
                    task = state.detached.take();
                }
            }
            Some(Landed::Shared(shown)) => body = Some(shown.body.clone()),
            Some(Landed::Failed(failed)) => {
                body = failed
                    .as_ref()
                    .as_ref()
                    .ok()
                    .map(|shown| shown.body.clone());
            }
            Some(Landed::Alone(_) | Landed::Lost) => {}
        }
        if task.is_some() {
            state.landed = Some(Landed::Lost);
        }
        drop(state);
        if let Some(body) = body {
            body.decline();
        }
        if let Some(task) = task {
            task.abort();
        }
    }
}

#[cfg(test)]
#[path = "flight_tests.rs"]
mod tests;
