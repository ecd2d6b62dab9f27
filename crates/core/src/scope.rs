//! A scope: the part of a provider that a cool-down, a sleep or a degrade closes for everybody.
//!
//! Promises: a scope that rests for a known time opens by itself; after a rest that asks for a
//! probe exactly one call goes at a time, however many processes wait, and a probe that is never
//! heard of gives its place back. Failures that owners tell of are counted in one row, and the one
//! that makes it long enough closes the scope before anybody else goes.
//!
//! Never: decides when to close. Health does, and says so by a settle: at once, or by how many
//! failures in a row.

mod image;

use crate::ask::{On, PermitId, Reopen};
use crate::time::{Micros, Span};

/// The state of one scope. A new one is open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scope {
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Everybody goes. So many attempts have failed in a row, whoever made them.
    Open { failed: u32 },
    /// Nobody goes until then; `None` = until somebody opens it.
    Closed { until: Option<Micros>, then: Reopen },
    /// One call tries; if nothing is heard of it until then, another one may.
    Probe { holder: PermitId, until: Micros },
}

impl State {
    /// Open, and nothing is known against it.
    const WELL: State = State::Open { failed: 0 };
}

impl Default for State {
    fn default() -> State {
        State::WELL
    }
}

/// What a scope looks like from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScopeView {
    /// Everybody may go.
    Open,
    /// Nobody goes for this long; `None` = until opened by hand.
    Closed {
        /// The rest of the rest.
        left: Option<Span>,
    },
    /// Nobody goes; answers come from the cache only.
    CacheOnly {
        /// The rest of it; `None` = until opened by hand.
        left: Option<Span>,
    },
    /// One call at a time tries.
    Probing,
}

impl Scope {
    /// May this ask go? `Err` says how long not.
    pub(crate) fn room(&self, id: PermitId, now: Micros) -> Result<(), (Span, On)> {
        match self.state {
            State::Open { .. } => Ok(()),
            State::Closed {
                until: Some(until), ..
            } if now >= until => Ok(()),
            State::Closed {
                until: Some(until), ..
            } => Err((until.since(now), On::Time)),
            State::Closed { until: None, .. } => Err((Span(u64::MAX), On::Event)),
            State::Probe { holder, until } if holder == id || now >= until => Ok(()),
            State::Probe { until, .. } => Err((until.since(now), On::Event)),
        }
    }

    /// The ask goes. After a rest that asks for a probe, it is the probe.
    pub(crate) fn take(&mut self, id: PermitId, arrives_by: Micros) {
        self.state = match self.state {
            State::Open { .. } => self.state,
            State::Closed {
                then: Reopen::All, ..
            } => State::WELL,
            State::Closed {
                then: Reopen::Probe | Reopen::ByHand,
                ..
            }
            | State::Probe { .. } => State::Probe {
                holder: id,
                until: arrives_by,
            },
        };
    }

    /// Closes it. An earlier end never shortens a rest that is already longer, except that a probe
    /// which failed starts a rest of its own. A probe that is owed stays owed: a cool-down in the
    /// middle of a sleep must not let everybody through at its end.
    pub(crate) fn close(&mut self, until: Option<Micros>, then: Reopen) {
        let then = match (self.state, then) {
            (_, Reopen::ByHand) => Reopen::ByHand,
            // A rest that ends does not change what a hold is; another hold does.
            (
                State::Closed {
                    then: Reopen::ByHand,
                    ..
                },
                Reopen::All | Reopen::Probe,
            ) if until.is_some() => Reopen::ByHand,
            (
                State::Closed {
                    then: Reopen::Probe | Reopen::ByHand,
                    ..
                }
                | State::Probe { .. },
                Reopen::All,
            )
            | (_, Reopen::Probe) => Reopen::Probe,
            (
                State::Open { .. }
                | State::Closed {
                    then: Reopen::All, ..
                },
                Reopen::All,
            ) => Reopen::All,
        };
        let until = match (self.state, until) {
            (State::Closed { until: None, .. }, _) | (_, None) => None,
            (
                State::Closed {
                    until: Some(old), ..
                },
                Some(new),
            ) => Some(old.max(new)),
            (State::Open { .. } | State::Probe { .. }, Some(new)) => Some(new),
        };
        self.state = State::Closed { until, then };
    }

    /// Opens it for everybody.
    pub(crate) fn open(&mut self) {
        self.state = State::WELL;
    }

    /// An attempt failed. `true` if that closed it: it was one of `in_a_row` with nothing but
    /// failures between them. What failed while it was closed is old news.
    pub(crate) fn failed(&mut self, in_a_row: u32, until: Micros, now: Micros) -> bool {
        let before = match self.state {
            State::Open { failed } => failed,
            State::Closed {
                until: Some(until),
                then: Reopen::All,
            } if now >= until => 0,
            State::Closed { .. } | State::Probe { .. } => return false,
        };
        let failed = before.saturating_add(1);
        self.state = State::Open { failed };
        let is_enough = failed >= in_a_row;
        if is_enough {
            self.close(Some(until), Reopen::Probe);
        }
        is_enough
    }

    /// An attempt went well: what failed before it is no row any more.
    pub(crate) fn went_well(&mut self) {
        if let State::Open { failed } = &mut self.state {
            *failed = 0;
        }
    }

    /// Nothing is lost if it is forgotten: a scope that is missing is open.
    pub(crate) fn is_idle(&self, now: Micros) -> bool {
        match self.state {
            State::Open { failed } => failed == 0,
            State::Closed { .. } | State::Probe { .. } => self.look(now) == ScopeView::Open,
        }
    }

    /// The probe never left: the next one may try. `true` if this permit held the place.
    pub(crate) fn give_back(&mut self, id: PermitId, now: Micros) -> bool {
        match self.state {
            State::Probe { holder, .. } if holder == id => {
                self.state = State::Closed {
                    until: Some(now),
                    then: Reopen::Probe,
                };
                true
            }
            State::Open { .. } | State::Closed { .. } | State::Probe { .. } => false,
        }
    }

    /// What it looks like at `now`.
    #[must_use]
    pub fn look(&self, now: Micros) -> ScopeView {
        match self.state {
            State::Open { .. } => ScopeView::Open,
            State::Closed {
                until: Some(until),
                then: Reopen::All,
            } if now >= until => ScopeView::Open,
            State::Closed {
                until: Some(until),
                then: Reopen::Probe | Reopen::ByHand,
            } if now >= until => ScopeView::Probing,
            State::Closed {
                until,
                then: Reopen::ByHand,
            } => ScopeView::CacheOnly {
                left: until.map(|until| until.since(now)),
            },
            State::Closed { until, .. } => ScopeView::Closed {
                left: until.map(|until| until.since(now)),
            },
            State::Probe { .. } => ScopeView::Probing,
        }
    }
}
