//! How a flight ends: with an answer for everybody, with one for its first caller alone, with a
//! failure, or lost on the way.
//!
//! Promises: a flight lands once, whatever happens to the call that flies: if it is dropped, or
//! panics, those who wait are told.
//!
//! Never: waits.

use std::sync::{Arc, Weak};

use http::response::Parts;
use parking_lot::Mutex;
use tollgate_config::settings::Dedup;
use tollgate_ledger::Ledger;

use super::flight::{Flight, State};
use super::table::Table;
use super::{Outcome, Reply, Source, share};
use crate::Error;
use crate::body::{ReplyBody, Shared};

/// How a flight has ended.
#[derive(Clone, Debug)]
pub(super) enum Landed {
    /// With an answer for everybody.
    Shared(Arc<Shown>),
    /// With a failure. Who may try again does.
    Failed(Arc<Result<Shown, Error>>),
    /// With an answer for one: its first caller, or if that one has left, the first who comes.
    Alone(Arc<Mutex<Option<Reply>>>),
    /// Without any.
    Lost,
}

/// An answer for everybody.
#[derive(Debug)]
pub(super) struct Shown {
    pub(super) head: Parts,
    pub(super) body: Shared,
    source: Source,
    degraded: bool,
}

/// A flight that has not landed yet.
#[derive(Debug)]
pub(super) struct Landing {
    flight: Arc<Flight>,
    table: Arc<Table>,
    ledger: Ledger,
}

/// A flight's place in the table; it ends with the last chance to join.
#[derive(Debug)]
struct Entry {
    flight: Weak<Flight>,
    table: Weak<Table>,
}

impl Shown {
    /// The answer, for one of those who were promised it; `None` = its beginning is gone.
    pub(super) fn open(&self) -> Option<Reply> {
        let reader = self.body.sit()?;
        Some(Reply {
            head: self.head.clone(),
            body: ReplyBody::shared(reader),
            source: match self.source {
                Source::Upstream | Source::Shared | Source::Merged => Source::Shared,
                kept @ (Source::Cache | Source::Stale) => kept,
            },
            degraded: self.degraded,
        })
    }
}

impl Landing {
    pub(super) fn new(flight: Arc<Flight>, table: Arc<Table>, ledger: Ledger) -> Landing {
        Landing {
            flight,
            table,
            ledger,
        }
    }

    /// Lands. What comes back is for the first caller.
    pub(super) fn land(self, outcome: Outcome) -> Outcome {
        let Outcome {
            answer,
            is_failure,
            attempts,
            waited,
            rates,
        } = outcome;
        let answer = self.settle(answer, is_failure);
        Outcome {
            answer,
            is_failure,
            attempts,
            waited,
            rates,
        }
    }

    fn settle(&self, answer: Result<Reply, Error>, is_failure: bool) -> Result<Reply, Error> {
        let flight = &self.flight;
        let mut state = flight.state.lock();
        if state.landed.is_some() {
            return answer; // everybody has left
        }
        let reply = match answer {
            Ok(reply) => reply,
            Err(error) => {
                state.landed = Some(Landed::Failed(Arc::new(Err(error.clone()))));
                return Err(error);
            }
        };
        if state.followers == 0 && (is_failure || reply.body.is_whole()) {
            state.landed = Some(Landed::Lost);
            return Ok(reply);
        }
        if !is_failure && !share::shares(&flight.asked, flight.mode, &reply) {
            // What is never shared need not be remembered as such.
            let lasts =
                flight.mode != Dedup::Off && share::is_for_one_by_nature(&flight.asked, &reply);
            let (left, reply) = if state.is_left {
                (Some(reply), None)
            } else {
                (None, Some(reply))
            };
            state.landed = Some(Landed::Alone(Arc::new(Mutex::new(left))));
            drop(state);
            if lasts {
                self.table.pass(flight, self.ledger.at());
            } else {
                self.table.remove(flight);
            }
            return reply.ok_or_else(nobody);
        }
        Ok(self.show(&mut state, reply, is_failure))
    }

    /// An answer that everybody may read.
    fn show(&self, state: &mut State, reply: Reply, is_failure: bool) -> Reply {
        let Reply {
            head,
            body,
            source,
            degraded,
        } = reply;
        let ticket: crate::body::Ticket = if is_failure {
            Box::new(())
        } else {
            Box::new(Entry {
                flight: Arc::downgrade(&self.flight),
                table: Arc::downgrade(&self.table),
            })
        };
        let held = self.table.held.clone();
        let (body, reader) = Shared::new(body, state.followers, self.flight.idle, held, ticket);
        let shown = Shown {
            head: head.clone(),
            body,
            source,
            degraded,
        };
        state.landed = Some(if is_failure {
            Landed::Failed(Arc::new(Ok(shown)))
        } else {
            Landed::Shared(Arc::new(shown))
        });
        Reply {
            head,
            body: ReplyBody::shared(reader),
            source,
            degraded,
        }
    }
}

/// The first caller has left, and its answer belongs to somebody else.
fn nobody() -> Error {
    Error::Malformed("the caller has left")
}

impl Drop for Landing {
    fn drop(&mut self) {
        let mut state = self.flight.state.lock();
        let landed = state.landed.get_or_insert(Landed::Lost);
        let is_joinable = matches!(landed, Landed::Shared(_));
        let is_passed = matches!(landed, Landed::Alone(_));
        drop(state);
        if !is_joinable && !is_passed {
            self.table.remove(&self.flight);
        }
        self.flight.changed.notify_waiters();
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        if let (Some(flight), Some(table)) = (self.flight.upgrade(), self.table.upgrade()) {
            table.remove(&flight);
        }
    }
}
