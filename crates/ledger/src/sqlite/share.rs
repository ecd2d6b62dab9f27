//! Fairness between processes: who takes how much of what is free, and who is woken.
//!
//! Promises: a transaction takes at most ⌈free / waiting owners⌉ of a cell for which others wait,
//! and at least one ask; what it leaves, it may come back for at once. Of those who wait the least
//! served is woken first, and no more than there is room for.
//!
//! Never: holds anything back when nobody else waits.

use std::collections::BTreeMap;

use tollgate_core::ask::{Ask, By, CellId, On, OwnerId, Verdict};
use tollgate_core::time::{Now, Span};

use crate::sqlite::page::{Page, Waiter};

/// When to come back for the rest of what is free: others have had their turn by then.
const COME_BACK: Span = Span::from_millis(1);

/// How much longer than it said a waiter is expected. It asks at its time, or each second.
const GRACE: Span = Span::from_millis(1_500);

/// What became of the asks for one cell in this transaction.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tally {
    pub(super) refused: i64,
    pub(super) granted: i64,
    pub(super) on: On,
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

/// What is left of a cell for this transaction.
struct Share {
    left: u64,
    is_untouched: bool,
    is_over: bool,
}

/// Per ask: the term for which it must wait because others are served first.
pub(super) fn withheld(page: &Page, asks: &[Ask], owner: OwnerId, now: Now) -> Vec<Option<usize>> {
    let mut shares: BTreeMap<CellId, Share> = shares(page, owner, now);
    if shares.is_empty() {
        return vec![None; asks.len()];
    }
    let mut withhold = |ask: &Ask| {
        let over = ask.terms.iter().position(|term| {
            shares.get(&term.cell).is_some_and(|share| {
                share.is_over || (term.cost > share.left && !share.is_untouched)
            })
        });
        for term in &ask.terms {
            if let Some(share) = shares.get_mut(&term.cell) {
                // Whoever comes after one that was withheld must not overtake it.
                share.is_over |= over.is_some();
                share.is_untouched = false;
                share.left = share.left.saturating_sub(term.cost);
            }
        }
        over
    };
    asks.iter().map(&mut withhold).collect()
}

fn shares(page: &Page, owner: OwnerId, now: Now) -> BTreeMap<CellId, Share> {
    let mut shares = BTreeMap::new();
    for (id, row) in &page.cells {
        let others = others(&row.waiters, owner).count() as u64;
        let Some(rule) = row.rule.as_ref().filter(|_| others > 0) else {
            continue;
        };
        let free = row.cell.look(rule, now).remaining;
        if free > 0 {
            let share = Share {
                left: free.div_ceil(others + 1),
                is_untouched: true,
                is_over: false,
            };
            shares.insert(*id, share);
        }
    }
    shares
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
    let mut count = |cell: CellId, granted: u64, wait: Option<(Span, On)>| {
        let tally = tallies.entry(cell).or_insert(Tally {
            refused: 0,
            granted: 0,
            on: On::Time,
            waits: Span::ZERO,
        });
        tally.granted += i64::try_from(granted).unwrap_or(i64::MAX);
        if let Some((after, on)) = wait {
            tally.refused += 1;
            let (on, waits) = match on {
                On::Event => (On::Event, GRACE),
                On::Time => (tally.on, after + GRACE),
            };
            tally.on = on;
            tally.waits = tally.waits.max(waits);
        }
    };
    for (ask, verdict) in asks.iter().zip(verdicts) {
        match verdict {
            Verdict::Go { .. } => {
                let granted = |term: &tollgate_core::ask::Term| (term.cell, term.cost);
                for (cell, cost) in ask.terms.iter().map(granted) {
                    count(cell, cost, None);
                }
            }
            Verdict::Wait {
                after,
                on,
                by: By::Term(index),
            } => {
                if let Some(term) = ask.terms.get(*index) {
                    count(term.cell, 0, Some((*after, *on)));
                }
            }
            Verdict::Wait { .. } | Verdict::Never(_) => {}
        }
    }
    tallies
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
        waiters.sort_by_key(|waiter| (waiter.got, waiter.since, waiter.owner));
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
