//! A cell that is moved to another clock, or whose bytes were lost.
//!
//! Promises: nothing becomes free that was not. A cell that cannot be decoded counts as used up for
//! one period. A cell of another boot keeps its facts at their distance in calendar time.
//!
//! Never: guesses. A lost cell is closed, not estimated.

use crate::ask::WakeOn;
use crate::limit::bucket::Bucket;
use crate::limit::cell::{Cell, CellState, PendingWake};
use crate::limit::inherit::CarriedUsage;
use crate::limit::reported::OutsideUse;
use crate::limit::{Algorithm, Rule};
use crate::time::{Micros, Span, TimeBounds};

/// How long a concurrency limit stays closed at least when its cell is lost. It has no period; most
/// responses end within this, and where nobody says how long calls take, nothing better is known.
const IN_FLIGHT_LOST: Span = Span::from_secs(60);

impl Cell {
    /// A cell that was lost at `at`: used up for one period from then. A bucket is empty and fills
    /// at its rate: after one period it may be far from full. A limit on one process starts empty:
    /// losing its count breaks no provider's limit.
    #[must_use]
    pub fn used_up(rule: &Rule, at: Micros) -> Cell {
        Cell::used_up_by_calls(rule, at, Span::ZERO)
    }

    /// The same where it is known how long a call may take: calls that nobody counts any more may run
    /// for so long from `at`, and a concurrency limit is closed until they have ended.
    #[must_use]
    pub fn used_up_by_calls(rule: &Rule, at: Micros, call_timeout: Span) -> Cell {
        let mut cell = Cell::default();
        // Where the limit is learned, the next call goes alone, and its response says what remains.
        if rule.is_of_one_process() || rule.is_learned() {
            return cell;
        }
        let closed = match rule.algorithm() {
            Algorithm::Bucket { .. } => {
                cell.state = CellState::Bucket(Bucket::drained(rule, at));
                cell.idle_from = at + rule.longest_hold();
                return cell;
            }
            Algorithm::InFlight => rule.stretched(call_timeout).max(IN_FLIGHT_LOST),
            Algorithm::Sliding { .. }
            | Algorithm::Fixed { .. }
            | Algorithm::Calendar(_)
            | Algorithm::Paced { .. } => rule.stretched(rule.period()),
        };
        let outside = OutsideUse {
            cost: rule.max_cost(),
            until: at + closed,
        };
        cell.reported.close(outside);
        cell
    }

    /// The same facts on another clock: `then` on the old clock is `now` on the new one.
    ///
    /// A pair of readings of both clocks is meaningless on the new one, so calendar limits take a
    /// new pair; their edges stay.
    #[must_use]
    pub fn rebased(&self, then: Micros, now: Micros) -> Cell {
        let mut cell = self.clone();
        match &mut cell.state {
            CellState::Bucket(bucket) => bucket.advance(then),
            CellState::Calendar(count) => count.clock = None,
            CellState::Empty | CellState::Log(_) | CellState::Fixed(_) | CellState::InFlight(_) => {
            }
        }
        Cell::from_bytes(&cell.to_bytes(then), now).expect("a cell that was just encoded decodes")
    }

    /// The same facts on a clock that has stepped: it showed at least `then` before the step when
    /// it shows `now` after it. Nothing ends earlier than it would have. Calendar time goes on as
    /// before: a step neither opens nor reopens a window.
    #[must_use]
    pub fn moved(&self, then: Micros, now: TimeBounds) -> Cell {
        let mut cell = self.clone();
        if let CellState::Bucket(bucket) = &mut cell.state {
            bucket.advance(then);
        }
        let bytes = cell.to_bytes(then);
        let mut cell =
            Cell::from_bytes(&bytes, now.hi).expect("a cell that was just encoded decodes");
        cell.drop_lower_bounds(now.lo);
        cell
    }

    /// Where the ledger's clock may have stepped unseen, calendar time is read anew: from the pair of
    /// readings that it was compared with, no time can be counted.
    pub(crate) fn drop_calendar_clock(&mut self) {
        if let CellState::Calendar(count) = &mut self.state {
            count.clock = None;
        }
    }

    /// No instant in it is a lower bound any more of anything that ends after `now`.
    pub(crate) fn drop_lower_bounds(&mut self, now: Micros) {
        if let CellState::Fixed(fixed) = &mut self.state {
            // The only one there is.
            fixed.earliest_end = fixed.earliest_end.min(now);
        }
    }

    /// Calls may be missing from this cell: it keeps what it has and counts as used up for one
    /// period from `at`, a concurrency limit until calls that take so long have ended.
    pub fn close_for_one_period(&mut self, rule: &Rule, at: Micros, call_timeout: Span) {
        if rule.is_learned() {
            return self.unlearn();
        }
        let lost = Cell::used_up_by_calls(rule, at, call_timeout);
        self.idle_from = self.idle_from.max(at + rule.longest_hold());
        match (&mut self.state, lost.state) {
            (CellState::Bucket(bucket), CellState::Bucket(drained)) => {
                // `at` may be long ago: what was used since then counts more than what has been refilled.
                let from = bucket.at.max(at);
                if bucket.debt_at(from) < drained.debt_at(from) {
                    let holds = std::mem::take(&mut bucket.holds);
                    *bucket = Bucket { holds, ..drained };
                }
            }
            (state @ CellState::Empty, drained @ CellState::Bucket(_)) => *state = drained,
            (
                CellState::Empty
                | CellState::Log(_)
                | CellState::Bucket(_)
                | CellState::Fixed(_)
                | CellState::Calendar(_)
                | CellState::InFlight(_),
                _,
            ) => {
                let (cost, until) = (lost.reported.outside_use, lost.reported.outside_until);
                self.reported.close(OutsideUse { cost, until });
            }
        }
    }

    /// Calls of this cost may be missing from this cell, granted before a boot: they count as if they
    /// had arrived `at` that boot, which is when the last of them can have.
    pub(crate) fn count_lost(&mut self, rule: &Rule, cost: u64, at: Micros, now: TimeBounds) {
        self.refresh(rule, now);
        let rule = &*self.effective(rule);
        if at + rule.longest_hold() <= now.lo {
            return;
        }
        self.granted = self.granted.wrapping_add(cost);
        self.settled = self.settled.wrapping_add(cost);
        self.idle_from = self.idle_from.max(at + rule.longest_hold());
        let limit = self.limit(rule, now.lo);
        match (&mut self.state, rule.algorithm()) {
            (CellState::Calendar(count), Algorithm::Calendar(calendar)) => {
                count.count_lost(calendar, cost, at);
            }
            (CellState::Log(log), _) => {
                let usage = CarriedUsage::counted_at(at, cost);
                log.take_over(rule, &usage, limit, now);
            }
            (CellState::Bucket(bucket), _) => bucket.count_lost(rule, cost, at),
            (CellState::Fixed(fixed), _) => fixed.count_lost(rule, cost, at),
            (CellState::Empty | CellState::Calendar(_) | CellState::InFlight(_), _) => {}
        }
    }

    /// How much of it may be granted before it is on disk: 1 % of the limit that applies now.
    #[must_use]
    pub fn reservation(&self, rule: &Rule, now: Micros) -> u64 {
        (self.limit(rule, now) / 100).max(1)
    }

    /// When nothing in it can matter any more.
    pub(crate) fn matters_until(&self) -> Micros {
        let learned = self
            .learned
            .map_or(Micros::default(), |known| known.forgotten_at());
        self.idle_from
            .max(self.reported.outside_until())
            .max(learned)
    }

    /// A waiter outside this table must learn when this cell becomes free.
    pub fn note_waiter(&mut self, on: WakeOn) {
        self.pending_wake = match (on, self.pending_wake) {
            (WakeOn::Event | WakeOn::Release, _) | (_, PendingWake::Event) => PendingWake::Event,
            (WakeOn::Time, PendingWake::No | PendingWake::Time) => PendingWake::Time,
        };
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use smallvec::smallvec;

    use super::*;
    use crate::ask::{Ask, CellId, Evidence, Outcome, PermitId, Priority, Scopes, Settle, Term};
    use crate::table::Table;
    use crate::time::{Now, Wall};
    use crate::turn::{CellStore, turn};

    const BOOT_TIME: Micros = Micros(900_000_000_000);
    const DAY: Wall = Wall(1_772_323_200_000_000);

    fn at(at: Micros) -> Now {
        Now { at, wall: DAY }
    }

    /// A cell in which `count` calls were granted at `BOOT_TIME` and got their response at once.
    fn used(rule: &Arc<Rule>, count: u64) -> Cell {
        let mut table = Table::default();
        let terms = smallvec![Term {
            cell: CellId(1),
            rule: rule.clone(),
            cost: 1,
            reserve: 0,
        }];
        for seq in 0..count {
            let id = PermitId {
                seq,
                ..PermitId::default()
            };
            let ask = Ask {
                id,
                terms: smallvec::SmallVec::clone(&terms),
                scopes: Scopes::new(),
                priority: Priority::Normal,
                max_wait: Span::ZERO,
                evidence: Evidence::None {
                    use_within: Span::from_secs(1),
                },
            };
            turn(&mut table, at(BOOT_TIME), &[], &[ask]);
            let outcome = Outcome::Arrived {
                age: Span::ZERO,
                limited: false,
                readings: Vec::new(),
            };
            let settle = Settle::Permit {
                id,
                terms: smallvec::SmallVec::clone(&terms),
                scopes: Scopes::new(),
                outcome,
            };
            turn(&mut table, at(BOOT_TIME), &[settle], &[]);
        }
        table.cell(CellId(1)).clone()
    }

    #[test]
    fn a_lost_cell_is_used_up_for_one_period_and_no_longer() {
        for rule in [
            Rule::sliding(5, Span::from_secs(10)).unwrap(),
            Rule::fixed(5, Span::from_secs(10)).unwrap(),
        ] {
            let cell = Cell::used_up(&rule, Micros(7));
            let end = Micros(7) + rule.stretched(rule.period());
            assert_eq!(cell.peek(&rule, at(end - Span(1))).remaining, 0, "{rule}");
            assert_eq!(cell.peek(&rule, at(end)).remaining, 5, "{rule}");
        }
    }

    #[test]
    fn a_lost_per_process_limit_starts_empty() {
        let rule = Rule::in_flight(5).unwrap();
        let remaining = |rule: &Rule| {
            Cell::used_up(rule, Micros(7))
                .peek(rule, at(Micros(8)))
                .remaining
        };
        assert_eq!(remaining(&rule), 0, "others may be calling");
        assert_eq!(remaining(&rule.of_one_process()), 5);
    }

    /// A call of ten minutes was not counted after a minute.
    #[test]
    fn a_lost_concurrency_limit_is_closed_until_its_calls_have_ended() {
        let rule = Rule::in_flight(5).unwrap();
        let timeout = Span::from_secs(600);
        let mut closed = Cell::default();
        closed.close_for_one_period(&rule, Micros(7), timeout);
        for cell in [Cell::used_up_by_calls(&rule, Micros(7), timeout), closed] {
            let end = Micros(7) + rule.stretched(timeout);
            assert_eq!(cell.peek(&rule, at(end - Span(1))).remaining, 0);
            assert_eq!(cell.peek(&rule, at(end)).remaining, 5);
        }
    }

    #[test]
    fn a_lost_bucket_is_empty_and_fills_at_its_rate() {
        let rule = Rule::bucket(5, Span::from_secs(10), 20)
            .unwrap()
            .drift_ppm(0);
        let cell = Cell::used_up(&rule, Micros(7));
        let remaining = |secs| {
            cell.peek(&rule, at(Micros(7) + Span::from_secs(secs)))
                .remaining
        };
        assert_eq!([remaining(0), remaining(10), remaining(40)], [0, 5, 20]);
        assert!(!cell.is_idle(Micros(7) + Span::from_secs(40)));
    }

    #[test]
    fn a_rebased_log_frees_at_the_same_distance() {
        let rule = Arc::new(
            Rule::sliding(5, Span::from_secs(3_600))
                .unwrap()
                .drift_ppm(0),
        );
        let cell = used(&rule, 5);
        // Half an hour later by the calendar; the new boot is 20 s old.
        let now = Micros(20_000_000);
        let cell = cell.rebased(BOOT_TIME + Span::from_secs(1_800), now);
        let end = now + Span::from_secs(1_800);
        assert_eq!(cell.peek(&rule, at(end - Span(1))).remaining, 0);
        assert_eq!(cell.peek(&rule, at(end)).remaining, 5);
    }

    #[test]
    fn a_rebased_bucket_refills_for_the_time_that_passed() {
        let rule = Arc::new(
            Rule::bucket(60, Span::from_secs(3_600), 60)
                .unwrap()
                .drift_ppm(0),
        );
        let cell = used(&rule, 60).rebased(BOOT_TIME + Span::from_secs(1_800), Micros(20_000_000));
        assert_eq!(cell.peek(&rule, at(Micros(20_000_000))).remaining, 30);
    }

    #[test]
    fn a_cell_reports_freed_to_a_waiter_outside_the_table() {
        let rule = Arc::new(Rule::in_flight(5).unwrap());
        let mut cell = used(&rule, 1);
        assert!(!cell.undo(&rule, PermitId::default()).freed);
        cell = used(&rule, 1);
        cell.note_waiter(WakeOn::Time);
        cell.note_waiter(WakeOn::Event);
        cell.note_waiter(WakeOn::Time);
        assert!(cell.undo(&rule, PermitId::default()).freed);
    }
}
