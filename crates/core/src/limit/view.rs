//! What a cell looks like from outside.
//!
//! Promises: looking changes nothing, and shows what an ask would find now.
//!
//! Never: decides.

use crate::limit::cell::{Cell, CellState};
use crate::limit::{Algorithm, Rule, Strictness};
use crate::time::{Micros, Now, Span};

/// What a cell looks like from outside, without changing it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CellView {
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
    pub strictness: Strictness,
}

impl Cell {
    /// What the cell looks like, without changing it.
    #[must_use]
    pub fn peek(&self, rule: &Rule, now: Now) -> CellView {
        let mut cell = self.clone();
        cell.refresh(rule, now);
        let (window_age, reset_after, rung) = cell.window(rule, now.at);
        let remaining = cell
            .remaining(rule, now.at)
            .saturating_sub(cell.reported.outside_use(now.at));
        let limit = cell.limit(rule, now.at);
        CellView {
            limit,
            used: cell.used(rule, now.at),
            remaining,
            window_age,
            reset_after,
            strictness: rung,
        }
    }

    fn window(&self, rule: &Rule, now: Micros) -> (Option<Span>, Option<Span>, Strictness) {
        match (&self.state, rule.algorithm()) {
            (CellState::Log(log), _) => {
                let last = log.holds.done.back().map(|slot| slot.free_at.since(now));
                (
                    None,
                    last.filter(|_| log.holds.pending.is_empty()),
                    log.strictness,
                )
            }
            (CellState::Bucket(bucket), _) => {
                (None, Some(bucket.full_after(now)), Strictness::Window)
            }
            (CellState::Fixed(fixed), _) => {
                let age = fixed.opened.map(|opened| now.since(opened));
                (
                    age,
                    fixed.end().map(|end| end.since(now)),
                    Strictness::Window,
                )
            }
            (CellState::Calendar(count), Algorithm::Calendar(calendar)) => (
                count.window_age(calendar, now),
                Some(count.reset_after(calendar, now)),
                Strictness::Window,
            ),
            (CellState::Empty | CellState::InFlight(_) | CellState::Calendar(_), _) => {
                (None, None, Strictness::Window)
            }
        }
    }
}
