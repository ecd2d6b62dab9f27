//! How a flight ends: with a response for all callers, with one for the leader only, with a
//! failure, or lost.
//!
//! Promises: a flight ends exactly once, whatever happens to the leader's call: if it is dropped or
//! panics, the followers are informed.
//!
//! Never: waits.

use std::sync::{Arc, Weak};

use http::response::Parts;
use parking_lot::Mutex;
use tollgate_config::settings::Dedup;
use tollgate_ledger::ProviderLedger;

use super::flight::{Flight, FlightState};
use super::sharing;
use super::table::FlightTable;
use crate::Error;
use crate::body::{ReplyBody, SharedBody};
use crate::body_memory::BodyMemory;
use crate::reply::{Reply, Source};
use crate::single_flight::RoundState;

/// How a flight has ended.
#[derive(Clone, Debug)]
pub(crate) enum FlightResult {
    /// With a response for all callers.
    Shared(Arc<SharedResponse>),
    /// With a failure. Followers that may retry do so.
    Failed(Arc<Result<SharedResponse, Error>>),
    /// With a response for one: the leader or, if its caller has left, the first follower.
    Alone(Arc<Mutex<Option<Reply>>>),
    /// Without a response.
    Lost,
}

/// A response for all callers.
#[derive(Debug)]
pub(crate) struct SharedResponse {
    pub(crate) head: Parts,
    pub(crate) body: SharedBody,
    source: Source,
    degraded: bool,
}

/// A flight that has not ended yet.
#[derive(Debug)]
pub(crate) struct FlightInProgress {
    flight: Arc<Flight>,
    table: Arc<FlightTable>,
    ledger: ProviderLedger,
}

/// The table entry of a flight; removed when nobody can join any more.
#[derive(Debug)]
struct Entry {
    flight: Weak<Flight>,
    table: Weak<FlightTable>,
}

impl SharedResponse {
    /// The response for a follower that reserved it; `None` = its beginning is gone.
    pub(crate) fn to_reply(&self) -> Option<Reply> {
        let reader = self.body.open_reader()?;
        Some(Reply {
            head: self.head.clone(),
            body: ReplyBody::shared(reader),
            source: match self.source {
                Source::Upstream | Source::Shared | Source::Merged => Source::Shared,
                source @ (Source::Cache | Source::Stale) => source,
            },
            degraded: self.degraded,
        })
    }
}

impl FlightInProgress {
    pub(crate) fn new(
        flight: Arc<Flight>,
        table: Arc<FlightTable>,
        ledger: ProviderLedger,
    ) -> FlightInProgress {
        FlightInProgress {
            flight,
            table,
            ledger,
        }
    }

    /// Ends the flight. Returns what the leader gets.
    pub(crate) fn finish(
        self,
        result: Result<Reply, Error>,
        is_failure: bool,
    ) -> Result<Reply, Error> {
        self.publish(result, is_failure)
    }

    fn publish(&self, result: Result<Reply, Error>, is_failure: bool) -> Result<Reply, Error> {
        let flight = &self.flight;
        let mut state = flight.round.lock();
        if state.end.is_some() {
            return result; // everybody has left
        }
        let reply = match result {
            Ok(reply) => reply,
            Err(error) => {
                state.end = Some(FlightResult::Failed(Arc::new(Err(error.clone()))));
                return Err(error);
            }
        };
        if state.open.followers == 0 && (is_failure || reply.body.is_whole()) {
            state.end = Some(FlightResult::Lost);
            return Ok(reply);
        }
        if !is_failure && !sharing::may_share_reply(&flight.identity, flight.mode, &reply) {
            // With dedup off nothing is shared, so there is nothing to remember.
            let lasts =
                flight.mode != Dedup::Off && sharing::is_never_shareable(&flight.identity, &reply);
            let (unshared, reply) = if state.open.leader_left {
                (Some(reply), None)
            } else {
                (None, Some(reply))
            };
            state.end = Some(FlightResult::Alone(Arc::new(Mutex::new(unshared))));
            drop(state);
            if lasts {
                self.table.pass(flight, self.ledger.at());
            } else {
                self.table.remove(flight);
            }
            return reply.ok_or_else(caller_left);
        }
        Ok(self.share(&mut state, reply, is_failure))
    }

    /// Shares a response with all callers.
    fn share(
        &self,
        state: &mut RoundState<FlightState, FlightResult>,
        reply: Reply,
        is_failure: bool,
    ) -> Reply {
        let Reply {
            head,
            body,
            source,
            degraded,
        } = reply;
        let join_guard: crate::body::JoinGuard = if is_failure {
            Box::new(())
        } else {
            Box::new(Entry {
                flight: Arc::downgrade(&self.flight),
                table: Arc::downgrade(&self.table),
            })
        };
        let (body, reader) = SharedBody::new(
            body,
            state.open.followers,
            self.flight.idle,
            BodyMemory::of_process(),
            join_guard,
        );
        let shared = SharedResponse {
            head: head.clone(),
            body,
            source,
            degraded,
        };
        state.end = Some(if is_failure {
            FlightResult::Failed(Arc::new(Ok(shared)))
        } else {
            FlightResult::Shared(Arc::new(shared))
        });
        Reply {
            head,
            body: ReplyBody::shared(reader),
            source,
            degraded,
        }
    }
}

/// The leader's caller has left, and its response belongs to another one.
fn caller_left() -> Error {
    Error::Malformed("the caller has left")
}

impl Drop for FlightInProgress {
    fn drop(&mut self) {
        let mut state = self.flight.round.lock();
        let result = state.end.get_or_insert(FlightResult::Lost);
        let is_joinable = matches!(result, FlightResult::Shared(_));
        let is_passed = matches!(result, FlightResult::Alone(_));
        drop(state);
        if !is_joinable && !is_passed {
            self.table.remove(&self.flight);
        }
        self.flight.round.wake();
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        if let (Some(flight), Some(table)) = (self.flight.upgrade(), self.table.upgrade()) {
            table.remove(&flight);
        }
    }
}
