//! Fairness between processes: who goes first, who takes how much of what is free, and who is woken.
//!
//! Promises: an urgent ask goes before the less urgent ones of every process, and among equals the
//! least served process goes first: what is free is left for those who are expected this very
//! moment and go before. A transaction takes at most ⌈free / waiting owners⌉ of a cell for which
//! others wait that are not less urgent; what it leaves, it may come back for at once. Of those who
//! wait the first in this order are woken, and no more than there is room for.
//!
//! Never: holds anything back when nobody else waits, or for longer than [`LATE`] for one who does
//! not come. Nothing is saved up: an ask that costs more than is free at a time goes before others
//! only when its own time has come.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use tollgate_core::ask::{Ask, By, CellId, On, OwnerId, Priority, Term, Verdict};
use tollgate_core::time::{Micros, Now, Span};

use crate::sqlite::page::{Page, Waiter};

/// When to come back for the rest of what is free: others have had their turn by then.
const COME_BACK: Span = Span::from_millis(1);

/// How long after its time one that goes before is waited for: its timer has a millisecond, its
/// thread and the lock another, and a busy machine some more. One that is dead, or stopped, costs
/// the others this much once.
const LATE: Span = Span::from_millis(6);

/// Timers of two processes for the same instant differ by this much.
const EARLY: Span = Span::from_millis(1);

/// How much longer than it said a waiter is expected. It asks at its time, or each second.
const GRACE: Span = Span::from_millis(1_500);

/// What became of the asks for one cell in this transaction.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tally {
    pub(super) granted: i64,
    /// The most urgent one that was refused.
    pub(super) refused: Option<Refused>,
}

/// For what this owner waits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Refused {
    pub(super) priority: Priority,
    pub(super) cost: u64,
    pub(super) on: On,
    /// When it asks again.
    pub(super) after: Span,
    /// How long this owner counts as waiting.
    pub(super) waits: Span,
}

/// Whom to wake for a cell that has come free: the first `at_most` of these that live.
#[derive(Debug)]
pub(super) struct Wake {
    pub(super) cell: CellId,
    pub(super) owners: Vec<OwnerId>,
    pub(super) at_most: usize,
}

/// A cell that has something free and for which others wait, as one transaction meets it.
struct Contest {
    free: u64,
    /// What this transaction has taken so far.
    taken: u64,
    /// Whoever comes after one that was withheld must not overtake it.
    is_over: bool,
    /// This owner among equals: how much it got, since when it waits.
    mine: (i64, i64, OwnerId),
    others: Vec<Waiter>,
    /// Of the others: is it expected this very moment?
    expected: Vec<bool>,
}

impl Contest {
    /// `None`: nobody else waits, or there is nothing to share.
    fn of(page: &Page, cell: CellId, is_freed: bool, owner: OwnerId, now: Now) -> Option<Contest> {
        let row = page.cells.get(&cell)?;
        let others: Vec<Waiter> = others(&row.waiters, owner).collect();
        let rule = row.rule.as_ref().filter(|_| !others.is_empty())?;
        let free = row.cell.look(rule, now).remaining;
        if free == 0 {
            return None;
        }
        let own = row.waiters.iter().find(|waiter| waiter.owner == owner);
        let expected = |waiter: &Waiter| (is_freed && !waiter.is_woken) || is_due(waiter, now.at);
        Some(Contest {
            free,
            taken: 0,
            is_over: false,
            // Who does not wait yet comes after those who do.
            mine: own.map_or((i64::MAX, i64::MAX, owner), place),
            expected: others.iter().map(expected).collect(),
            others,
        })
    }

    /// Is there so much at all? If not, the cell itself says when there is.
    fn has_room_for(&self, priority: Priority, term: &Term) -> bool {
        term.cost.saturating_add(term.leaves(priority)) <= self.free
    }

    /// Must an ask leave what is free to others?
    fn withholds(&self, priority: Priority, term: &Term) -> bool {
        if self.is_over || !self.has_room_for(priority, term) {
            return self.is_over;
        }
        let cost = term.cost;
        let goes_before = |waiter: &Waiter| {
            waiter.priority > priority || (waiter.priority == priority && place(waiter) < self.mine)
        };
        let both = self.others.iter().zip(&self.expected);
        let before = both.filter(|(waiter, expected)| **expected && goes_before(waiter));
        let owed = before.fold(0_u64, |sum, (waiter, _)| sum.saturating_add(waiter.cost));
        let rivals = self.others.iter().filter(|one| one.priority >= priority);
        let fair = self.free.div_ceil(rivals.count() as u64 + 1);
        let room = fair.min(self.free.saturating_sub(owed));
        let is_first = self.taken == 0 && owed == 0;
        self.taken.saturating_add(cost) > room && !is_first
    }
}

/// The order among equals: the least served, then who waits longest.
fn place(waiter: &Waiter) -> (i64, i64, OwnerId) {
    (waiter.got, waiter.since, waiter.owner)
}

/// Is it the time at which it wanted to come, and not long past it?
fn is_due(waiter: &Waiter, now: Micros) -> bool {
    waiter.due <= now + EARLY && now <= waiter.due + LATE
}

/// Per ask: the term for which it must wait because others are served first.
pub(super) fn withheld(
    page: &Page,
    asks: &[Ask],
    freed: &[CellId],
    owner: OwnerId,
    now: Now,
) -> Vec<Option<usize>> {
    let mut contests: BTreeMap<CellId, Contest> = page
        .cells
        .keys()
        .filter_map(|&id| Some((id, Contest::of(page, id, freed.contains(&id), owner, now)?)))
        .collect();
    if contests.is_empty() {
        return vec![None; asks.len()];
    }
    let mut withhold = |ask: &Ask| {
        let over = ask.terms.iter().position(|term| {
            let contest = contests.get(&term.cell);
            contest.is_some_and(|contest| contest.withholds(ask.priority, term))
        });
        for term in &ask.terms {
            if let Some(contest) = contests.get_mut(&term.cell) {
                contest.is_over |= over.is_some();
                if contest.has_room_for(ask.priority, term) {
                    contest.taken = contest.taken.saturating_add(term.cost);
                }
            }
        }
        over
    };
    asks.iter().map(&mut withhold).collect()
}

/// The verdict for an ask that waits so that others are served.
pub(super) fn come_back(term: usize) -> Verdict {
    Verdict::Wait {
        after: COME_BACK,
        on: On::Time,
        by: By::Term(term),
    }
}

/// Counts what was granted and refused, cell by cell.
pub(super) fn tally(asks: &[Ask], verdicts: &[Verdict]) -> BTreeMap<CellId, Tally> {
    let mut tallies: BTreeMap<CellId, Tally> = BTreeMap::new();
    for (ask, verdict) in asks.iter().zip(verdicts) {
        match verdict {
            Verdict::Go { .. } => {
                for term in &ask.terms {
                    let tally = tallies.entry(term.cell).or_default();
                    tally.granted += i64::try_from(term.cost).unwrap_or(i64::MAX);
                }
            }
            Verdict::Wait {
                after,
                on,
                by: By::Term(index),
            } => {
                if let Some(term) = ask.terms.get(*index) {
                    let tally = tallies.entry(term.cell).or_default();
                    tally.refuse(ask.priority, term.cost, *after, *on);
                }
            }
            Verdict::Wait { .. } | Verdict::Never(_) => {}
        }
    }
    tallies
}

impl Tally {
    fn refuse(&mut self, priority: Priority, cost: u64, after: Span, on: On) {
        let waits = match on {
            On::Event => GRACE,
            On::Time => after + GRACE,
        };
        let one = Refused {
            priority,
            cost,
            on,
            after,
            waits,
        };
        self.refused = Some(match self.refused {
            Some(before) => before.and(one),
            None => one,
        });
    }
}

impl Refused {
    /// Both of them wait: the more urgent one says when, and a signal is wanted if either wants it.
    fn and(self, other: Refused) -> Refused {
        let first = if other.priority > self.priority {
            other
        } else {
            self
        };
        let on = match (self.on, other.on) {
            (On::Time, On::Time) => On::Time,
            (On::Event, _) | (_, On::Event) => On::Event,
        };
        Refused {
            on,
            waits: self.waits.max(other.waits),
            ..first
        }
    }
}

/// Whom to wake for the cells that have come free.
pub(super) fn wakes(page: &Page, freed: &[CellId], owner: OwnerId, now: Now) -> Vec<Wake> {
    let mut wakes: Vec<Wake> = Vec::new();
    for id in freed {
        let Some(row) = page.cells.get(id) else {
            continue;
        };
        if wakes.iter().any(|wake| wake.cell == *id) {
            continue;
        }
        let room = row
            .rule
            .as_ref()
            .map_or(1, |rule| row.cell.look(rule, now).remaining);
        // Without room, those who wait for a signal learn by asking when there will be: all of
        // them, for each will then have a timer.
        let mut waiters: Vec<Waiter> = others(&row.waiters, owner)
            .filter(|waiter| !waiter.is_woken && (room > 0 || waiter.on == On::Event))
            .collect();
        waiters.sort_by_key(|waiter| (Reverse(waiter.priority), place(waiter)));
        let at_most = match usize::try_from(room) {
            Ok(room @ 1..) => room.min(waiters.len()),
            Ok(0) | Err(_) => waiters.len(),
        };
        if !waiters.is_empty() {
            wakes.push(Wake {
                cell: *id,
                at_most,
                owners: waiters.iter().map(|waiter| waiter.owner).collect(),
            });
        }
    }
    wakes
}

fn others(waiters: &[Waiter], owner: OwnerId) -> impl Iterator<Item = Waiter> {
    let waiters = waiters.iter().copied();
    waiters.filter(move |waiter| waiter.owner != owner)
}
