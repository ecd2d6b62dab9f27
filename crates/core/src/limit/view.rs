//! The visible state of a cell.
//!
//! Promises: peeking changes nothing, and shows what an ask would find now.
//!
//! Never: decides.

use crate::learned::LearnedView;
use crate::limit::cell::{Cell, CellState};
use crate::limit::holds::PendingCalls;
use crate::limit::{Algorithm, Rule, Strictness};
use crate::time::{Micros, Span, TimeBounds};

/// The visible state of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CellView {
    /// The current N: configured, or lower if the provider reported so.
    pub limit: u64,
    /// What is in use, pending calls included.
    pub used: u64,
    /// The part of it that calls under way use.
    pub in_flight: u64,
    /// What a high-priority call may still take; the smaller of our count and the provider's.
    pub remaining: u64,
    /// The same by our count alone: without what the provider says is used elsewhere.
    pub own_remaining: u64,
    /// How long ago the window opened, for limits that have windows.
    pub window_age: Option<Span>,
    /// How long until everything used now is free, if that is known.
    pub reset_after: Option<Span>,
    /// How strict the provider's window is, as learned from its 429s.
    pub strictness: Strictness,
    /// Urgent calls were seen within a window: low priority goes at an even pace, also while there is room.
    pub spreads_low: bool,
    /// How long until low priority may go at that pace; zero: now.
    pub low_in: Span,
    /// What responses have stated, where the limit is learned from them.
    pub learned: Option<LearnedView>,
}

impl Cell {
    /// The visible state of the cell; does not change it.
    #[must_use]
    pub fn peek(&self, rule: &Rule, now: impl Into<TimeBounds>) -> CellView {
        let now = now.into();
        let mut cell = self.clone();
        cell.refresh(rule, now);
        let rule = &*cell.effective(rule);
        let (window_age, reset_after, strictness) = cell.window(rule, now.lo);
        let own_remaining = cell.remaining(rule, now.lo);
        let remaining = own_remaining.saturating_sub(cell.reported.outside_use(now.lo));
        let limit = cell.limit(rule, now.lo);
        CellView {
            limit,
            used: cell.used(rule, now.lo),
            in_flight: cell.pending_calls().map_or(0, PendingCalls::cost),
            remaining,
            own_remaining,
            window_age,
            reset_after,
            strictness,
            spreads_low: matches!(&cell.state, CellState::Log(log) if log.spreads_low(rule, now.lo)),
            low_in: match &cell.state {
                CellState::Log(log) => log.low_in(rule, remaining, now.lo),
                CellState::Empty
                | CellState::Bucket(_)
                | CellState::Fixed(_)
                | CellState::Calendar(_)
                | CellState::InFlight(_) => Span::ZERO,
            },
            learned: cell.learned.map(|known| known.view(now.lo)),
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
                let age = fixed.began(rule).map(|began| now.since(began));
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
