//! One upstream call and everyone who waits for it.
//!
//! Promises: a caller that leaves does not affect the others; a flight that nobody waits for any
//! more ends.
//!
//! Never: holds a lock across an await, or takes locks against their order.

use std::sync::Arc;

use tokio::task::AbortHandle;
use tollgate_config::settings::Dedup;
use tollgate_core::time::{Micros, Span};

use super::demand::{CallDemand, SharedDemand};
use super::end::FlightResult;
use super::sharing::{FlightKey, RequestIdentity};
use super::table::FlightTable;
use crate::single_flight::Round;

/// All flights. The number of connected callers bounds its entries.
#[derive(Clone, Debug, Default)]
pub(crate) struct Flights {
    pub(crate) table: Arc<FlightTable>,
}

/// One upstream call and everyone who waits for it.
#[derive(Debug)]
pub(crate) struct Flight {
    pub(crate) key: FlightKey,
    pub(crate) identity: RequestIdentity,
    pub(crate) mode: Dedup,
    pub(crate) idle: Span,
    /// When the leader's call started.
    pub(crate) started: Micros,
    pub(crate) demand: Arc<SharedDemand>,
    pub(crate) round: Round<FlightState, FlightResult>,
}

#[derive(Debug, Default)]
pub(crate) struct FlightState {
    /// The callers that wait for the response, without the leader.
    pub(crate) followers: usize,
    /// The leader's caller has left; the call continues without it.
    pub(crate) leader_left: bool,
    /// The task in which it continues.
    pub(crate) detached: Option<AbortHandle>,
}

/// A caller that waits for a flight. Dropped, it no longer waits.
#[derive(Debug)]
pub(crate) struct Follower {
    pub(crate) flight: Arc<Flight>,
    pub(crate) is_over: bool,
}

impl Flight {
    pub(crate) fn of(
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
            round: Round::default(),
        }
    }

    /// Another caller waits for a larger response that includes this flight's: the flight continues
    /// for that caller too. `None` = too late.
    pub(crate) fn join_for_part(self: &Arc<Flight>) -> Option<Follower> {
        self.add_follower().then(|| Follower {
            flight: self.clone(),
            is_over: false,
        })
    }

    /// Adds a follower; `false` = too late.
    pub(crate) fn add_follower(&self) -> bool {
        let mut state = self.round.lock();
        match &state.end {
            None => {
                state.open.followers += 1;
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
    pub(crate) fn end_unless_wanted(&self) -> bool {
        let mut state = self.round.lock();
        if state.open.followers > 0 {
            state.open.leader_left = true;
            return false;
        }
        state.end.get_or_insert(FlightResult::Lost);
        true
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let mut state = self.flight.round.lock();
        let (mut body, mut task) = (None, None);
        match &state.end {
            None => {
                state.open.followers -= 1;
                if state.open.followers == 0 {
                    task = state.open.detached.take();
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
            state.end = Some(FlightResult::Lost);
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
