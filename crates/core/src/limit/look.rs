//! What a cell looks like from outside.
//!
//! Promises: looking changes nothing, and shows what an ask would find now.
//!
//! Never: decides.

use crate::limit::cell::{Cell, State};
use crate::limit::{Algorithm, Rule, Rung};
use crate::time::{Micros, Now, Span};

/// What a cell looks like from outside, without changing it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct View {
    /// N as it is in force: configured, or lower if the provider said so.
    pub limit: u64,
    /// What is in use, calls on their way included.
    pub used: u64,
    /// What a high-priority call may still take; the smaller of ours and the provider's.
    pub remaining: u64,
    /// How long ago the window opened, for limits that have windows.
    pub window_age: Option<Span>,
    /// When everything that is used now will have come back, if that is known.
    pub reset_after: Option<Span>,
    /// How strict the provider has shown itself.
    pub rung: Rung,
}

impl Cell {
    /// What the cell looks like, without changing it.
    #[must_use]
    pub fn look(&self, rule: &Rule, now: Now) -> View {
        let mut cell = self.clone();
        cell.refresh(rule, now);
        let (window_age, reset_after, rung) = cell.window(rule, now.at);
        let remaining = cell
            .left(rule, now.at)
            .saturating_sub(cell.told.taken(now.at));
        let limit = cell.limit(rule, now.at);
        View {
            limit,
            used: cell.used(rule, now.at),
            remaining,
            window_age,
            reset_after,
            rung,
        }
    }

    fn window(&self, rule: &Rule, now: Micros) -> (Option<Span>, Option<Span>, Rung) {
        match (&self.state, rule.algorithm()) {
            (State::Log(log), _) => {
                let last = log.holds.done.back().map(|slot| slot.free_at.since(now));
                (None, last.filter(|_| log.holds.open.is_empty()), log.rung)
            }
            (State::Bucket(bucket), _) => (None, Some(bucket.full_after(now)), Rung::Window),
            (State::Fixed(fixed), _) => {
                let age = fixed.opened.map(|opened| now.since(opened));
                (age, fixed.end().map(|end| end.since(now)), Rung::Window)
            }
            (State::Calendar(count), Algorithm::Calendar(calendar)) => (
                count.window_age(calendar, now),
                Some(count.reset_after(calendar, now)),
                Rung::Window,
            ),
            (State::Empty | State::InFlight(_) | State::Calendar(_), _) => {
                (None, None, Rung::Window)
            }
        }
    }
}
