//! One batch of one owner, decided as a whole: who has stopped waiting, settles, then asks, with
//! fairness between owners.
//!
//! A store reads the rows that a batch needs ([`Batch::for_each_row`]), calls [`decide`] with a
//! `now` that it read after it held its lock or inside its transaction, writes the rows that have
//! changed, and commits. A store that commits by compare-and-set may call it again with newer rows.
//!
//! Promises: the same for every store. Nothing but the rows and the returned [`BatchResult`] changes.
//! With one owner it costs what `turn` costs.
//!
//! Never: reads a clock, or wakes anybody itself.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::ask::{Ask, CellId, Outcome, OwnerId, ScopeId, Settle, Verdict};
pub use crate::fairness::Rows;
use crate::fairness::{self, Wake, Withheld};
use crate::limit::Rule;
use crate::time::{Micros, Span, TimeBounds};
use crate::turn::{Turn, turn};

/// Limits shorter than this need not survive a power cut: what they counted is over before a host
/// is up again, and after a boot they start used up. Longer ones are on disk before they are used, or
/// covered by a reservation that is ([`crate::reservation`]).
pub const LONG_PERIOD: Span = Span::from_secs(60);

/// One settle and when it was queued, on the clock of its owner.
#[derive(Clone, Debug)]
pub struct QueuedSettle {
    /// What happened.
    pub settle: Settle,
    /// When it was queued.
    pub at: Micros,
}

/// The settles of a batch.
#[derive(Clone, Copy, Debug)]
pub enum Settles<'a> {
    /// Reported now: their ages are exact.
    Now(&'a [Settle]),
    /// They have waited, on the clock of the store: their ages grow by that. A store with a clock of
    /// its own gives them aged by the clock of this process ([`QueuedSettle::aged`]).
    Queued(&'a [QueuedSettle]),
}

/// One batch.
#[derive(Clone, Copy, Debug)]
pub struct Batch<'a> {
    /// Whose it is.
    pub owner: OwnerId,
    /// The cells that this owner waits for no longer.
    pub stopped_waiting: &'a [CellId],
    /// What happened to earlier permits, and to scopes.
    pub settles: Settles<'a>,
    /// Decided after the settles, in this order.
    pub asks: &'a [Ask],
    /// Owners that are known to be dead: no capacity is left or saved for them.
    pub dead: &'a [OwnerId],
}

/// A row that a batch needs.
#[derive(Clone, Copy, Debug)]
pub enum TouchedRow<'a> {
    /// A cell and its rule, by which a row that is lost or damaged counts as used up. `None`: only
    /// those who wait for it matter.
    Cell(CellId, Option<&'a Arc<Rule>>),
    /// A scope.
    Scope(ScopeId),
}

/// What was decided.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BatchResult {
    /// One per ask, in their order.
    pub verdicts: Vec<Verdict>,
    /// Cells in which an ask that was rejected earlier may now succeed.
    pub freed: Vec<CellId>,
    /// Scopes that have changed: every owner is notified.
    pub changed_scopes: Vec<ScopeId>,
    /// Other owners that are to be woken.
    pub wakes: Vec<Wake>,
    /// Other owners for whom something is saved up. If one is dead, say so in the next batch.
    pub saved_for: Vec<OwnerId>,
    /// Which permits may be used before the next sync. `None`: none of a long limit.
    pub sync_ahead: Option<SyncAhead>,
    /// When it was decided.
    pub at: Micros,
}

/// A store that syncs ahead has covered permits of long limits by durable reservations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SyncAhead {
    /// The asks that are not covered, by their number in the batch: their permits wait for a sync
    /// that begins after the commit.
    pub waiting: Vec<usize>,
    /// A sync should begin now. If not, some time later is as good.
    pub is_due: bool,
}

impl<'a> Batch<'a> {
    /// Settles that are reported now, and asks; nothing else.
    #[must_use]
    pub fn now(owner: OwnerId, settles: &'a [Settle], asks: &'a [Ask]) -> Batch<'a> {
        Batch {
            owner,
            stopped_waiting: &[],
            settles: Settles::Now(settles),
            asks,
            dead: &[],
        }
    }

    /// Has it neither asks nor settles nor stopped waits?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let is_settled = match self.settles {
            Settles::Now(settles) => settles.is_empty(),
            Settles::Queued(settles) => settles.is_empty(),
        };
        is_settled && self.asks.is_empty() && self.stopped_waiting.is_empty()
    }

    /// Names every row that the batch needs, some more than once: the rows of settles first.
    pub fn for_each_row<E>(
        &self,
        mut row: impl FnMut(TouchedRow<'a>) -> Result<(), E>,
    ) -> Result<(), E> {
        match self.settles {
            Settles::Now(settles) => {
                settles
                    .iter()
                    .try_for_each(|settle| rows_of(settle, &mut row))?;
            }
            Settles::Queued(settles) => {
                let mut settles = settles.iter().map(|queued| &queued.settle);
                settles.try_for_each(|settle| rows_of(settle, &mut row))?;
            }
        }
        for ask in self.asks {
            for term in &ask.terms {
                row(TouchedRow::Cell(term.cell, Some(&term.rule)))?;
            }
            for &scope in &ask.scopes {
                row(TouchedRow::Scope(scope))?;
            }
        }
        for &cell in self.stopped_waiting {
            row(TouchedRow::Cell(cell, None))?;
        }
        Ok(())
    }

    /// Must what was decided survive a power cut? A permit of a long limit must, before it is used or
    /// by its reservation; and so must usage that a long limit has taken over, which is as good as granted by it.
    #[must_use]
    pub fn must_be_durable(&self, verdicts: &[Verdict]) -> bool {
        let inherits = |settle: &Settle| matches!(settle, Settle::Inherit { rule, .. } if rule.period() >= LONG_PERIOD);
        let has_inherited = match self.settles {
            Settles::Now(settles) => settles.iter().any(inherits),
            Settles::Queued(settles) => settles.iter().any(|queued| inherits(&queued.settle)),
        };
        has_inherited || self.asks.iter().zip(verdicts).any(grants_long_limit)
    }
}

/// Was a limit granted that must survive a power cut?
#[must_use]
pub fn grants_long_limit((ask, verdict): (&Ask, &Verdict)) -> bool {
    let mut terms = ask.terms.iter();
    matches!(verdict, Verdict::Go { .. }) && terms.any(|term| is_long(&term.rule))
}

/// Does a term of this limit survive a power cut?
#[must_use]
pub fn is_long(rule: &Rule) -> bool {
    rule.period() >= LONG_PERIOD && !rule.is_learned()
}

fn rows_of<'a, E>(
    settle: &'a Settle,
    row: &mut impl FnMut(TouchedRow<'a>) -> Result<(), E>,
) -> Result<(), E> {
    match settle {
        Settle::Permit { terms, scopes, .. } => {
            for term in terms {
                row(TouchedRow::Cell(term.cell, Some(&term.rule)))?;
            }
            scopes
                .iter()
                .try_for_each(|&scope| row(TouchedRow::Scope(scope)))
        }
        Settle::Close { scope, .. }
        | Settle::Limited { scope, .. }
        | Settle::Open { scope }
        | Settle::Failed { scope, .. }
        | Settle::Succeeded { scope } => row(TouchedRow::Scope(*scope)),
        Settle::Inherit {
            from,
            old_rule,
            to,
            rule,
        } => {
            row(TouchedRow::Cell(*from, Some(old_rule)))?;
            row(TouchedRow::Cell(*to, Some(rule)))
        }
    }
}

/// Decides a batch.
pub fn decide(rows: &mut impl Rows, now: impl Into<TimeBounds>, batch: &Batch<'_>) -> BatchResult {
    let now = now.into();
    if rows.is_shared() {
        return decide_shared(rows, now, batch);
    }
    let turn = match batch.settles {
        Settles::Now(settles) => turn(rows, now, settles, batch.asks),
        Settles::Queued(settles) => turn(rows, now, &aged(settles, now.lo), batch.asks),
    };
    BatchResult {
        verdicts: turn.verdicts,
        freed: turn.freed,
        changed_scopes: turn.changed_scopes,
        wakes: Vec::new(),
        saved_for: Vec::new(),
        sync_ahead: None,
        at: now.lo,
    }
}

fn decide_shared(rows: &mut impl Rows, now: TimeBounds, batch: &Batch<'_>) -> BatchResult {
    let owner = batch.owner;
    meet_waiters(rows, now, batch);
    let mut wakes: Vec<Wake> = Vec::new();
    for &cell in batch.stopped_waiting {
        let waiters = rows.waiters_mut(cell);
        wakes.extend(fairness::leave(cell, waiters, owner, now.lo));
    }
    let Turn {
        freed,
        changed_scopes,
        ..
    } = match batch.settles {
        Settles::Now(settles) => turn(rows, now, settles, &[]),
        Settles::Queued(settles) => turn(rows, now, &aged(settles, now.lo), &[]),
    };
    let (verdicts, saved_for) = serve(rows, now, batch, &freed);
    for (cell, tally) in fairness::tally(batch.asks, &verdicts) {
        fairness::record(rows.waiters_mut(cell), owner, tally, now.lo);
    }
    wake_waiters(rows, now, batch, &freed, &mut wakes);
    BatchResult {
        verdicts,
        freed,
        changed_scopes,
        wakes,
        saved_for,
        sync_ahead: None,
        at: now.lo,
    }
}

/// Removes waiters that are dead or did not come, and tells the cells of the batch about the
/// others. Once per cell, however often the batch names it.
fn meet_waiters(rows: &mut impl Rows, now: TimeBounds, batch: &Batch<'_>) {
    let mut awaited_cells: SmallVec<[CellId; 8]> = SmallVec::new();
    let named = batch.for_each_row(|row| -> Result<(), std::convert::Infallible> {
        if let TouchedRow::Cell(id, _) = row
            && !rows.waiters(id).is_empty()
        {
            awaited_cells.push(id);
        }
        Ok(())
    });
    match named {
        Ok(()) => {}
        Err(never) => match never {},
    }
    awaited_cells.sort_unstable();
    awaited_cells.dedup();
    for id in awaited_cells {
        let waiters = rows.waiters_mut(id);
        waiters.retain(|one| one.until > now.lo && !batch.dead.contains(&one.owner));
        let awaited: SmallVec<[_; 8]> = waiters.iter().map(|waiter| waiter.on).collect();
        let cell = rows.cell(id);
        awaited.into_iter().for_each(|on| cell.note_waiter(on));
    }
}

/// Decides the asks: this owner's share only, where others wait.
fn serve(
    rows: &mut impl Rows,
    now: TimeBounds,
    batch: &Batch<'_>,
    freed: &[CellId],
) -> (Vec<Verdict>, Vec<OwnerId>) {
    let asks = batch.asks;
    let Withheld {
        verdicts: withheld,
        saved_for,
    } = fairness::withheld(rows, asks, freed, batch.owner, now);
    if withheld.iter().all(Option::is_none) {
        return (turn(rows, now, &[], asks).verdicts, saved_for);
    }
    let served: Vec<Ask> = asks
        .iter()
        .zip(&withheld)
        .filter(|(_, withheld)| withheld.is_none())
        .map(|(ask, _)| ask.clone())
        .collect();
    let mut served = turn(rows, now, &[], &served).verdicts.into_iter();
    let verdict = |withheld: Option<Verdict>| withheld.or_else(|| served.next());
    let verdicts = withheld.into_iter().filter_map(verdict).collect();
    (verdicts, saved_for)
}

/// Adds whom to wake for the cells that have come free.
fn wake_waiters(
    rows: &mut impl Rows,
    now: TimeBounds,
    batch: &Batch<'_>,
    freed: &[CellId],
    wakes: &mut Vec<Wake>,
) {
    for (index, &cell) in freed.iter().enumerate() {
        if freed[..index].contains(&cell) || rows.waiters(cell).is_empty() {
            continue;
        }
        let room = rule_of(batch, cell).map_or(1, |rule| rows.peek(cell, rule, now).remaining);
        let waiters = rows.waiters_mut(cell);
        let wake = fairness::wake_for_room(cell, waiters, room, batch.owner, now.lo);
        wakes.extend(wake);
    }
}

/// The rule under which a batch touches a cell.
fn rule_of<'a>(batch: &Batch<'a>, cell: CellId) -> Option<&'a Arc<Rule>> {
    let mut found = None;
    let found_it = batch.for_each_row(|row| match row {
        TouchedRow::Cell(id, Some(rule)) if id == cell => {
            found = Some(rule);
            Err(())
        }
        TouchedRow::Cell(..) | TouchedRow::Scope(_) => Ok(()),
    });
    found_it.err().and(found)
}

/// Settles whose ages have grown by the time that they waited.
fn aged(queued: &[QueuedSettle], now: Micros) -> Vec<Settle> {
    queued.iter().map(|queued| queued.aged(now)).collect()
}

impl QueuedSettle {
    /// The settle with its age at this time.
    #[must_use]
    pub fn aged(&self, now: Micros) -> Settle {
        let waited = now.since(self.at);
        let mut settle = self.settle.clone();
        match &mut settle {
            Settle::Permit { outcome, .. } => match outcome {
                Outcome::Arrived { age, .. }
                | Outcome::Failed { age, .. }
                | Outcome::Finished { age }
                | Outcome::Complete { age }
                | Outcome::Presumed { age }
                | Outcome::Unknown { age, .. } => *age = *age + waited,
                Outcome::Alive { extend_by } => *extend_by = *extend_by - waited,
                Outcome::Unsent => {}
            },
            Settle::Close { age, .. } | Settle::Failed { age, .. } => *age = *age + waited,
            Settle::Limited { age, granted, .. } => {
                *age = *age + waited;
                *granted = *granted + waited;
            }
            Settle::Open { .. } | Settle::Succeeded { .. } | Settle::Inherit { .. } => {}
        }
        settle
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ask::{Evidence, PermitId, Priority, Scopes, Term};
    use crate::fairness::Waiter;
    use crate::limit::{Cell, CellView};
    use crate::scope::Scope;
    use crate::table::Table;
    use crate::time::{Now, Wall};
    use crate::turn::CellStore;

    /// Rows that count how often somebody changes who waits.
    #[derive(Default)]
    struct CountingRows {
        table: Table,
        waiters_changed: usize,
    }

    impl CellStore for CountingRows {
        fn cell(&mut self, id: CellId) -> &mut Cell {
            self.table.cell(id)
        }

        fn scope(&mut self, id: ScopeId) -> &mut Scope {
            self.table.scope(id)
        }
    }

    impl Rows for CountingRows {
        fn is_shared(&self) -> bool {
            true
        }

        fn waiters(&self, cell: CellId) -> &[Waiter] {
            self.table.waiters(cell)
        }

        fn waiters_mut(&mut self, cell: CellId) -> &mut Vec<Waiter> {
            self.waiters_changed += 1;
            self.table.waiters_mut(cell)
        }

        fn peek(&self, cell: CellId, rule: &Rule, now: TimeBounds) -> CellView {
            Rows::peek(&self.table, cell, rule, now)
        }
    }

    fn ask(owner: u32, seq: u64, rule: &Arc<Rule>) -> Ask {
        let term = Term {
            cell: CellId(1),
            rule: rule.clone(),
            cost: 1,
            reserve: 0,
        };
        Ask {
            id: PermitId {
                owner: OwnerId(owner),
                seq,
            },
            terms: [term].into_iter().collect(),
            scopes: Scopes::new(),
            priority: Priority::Normal,
            max_wait: Span::from_secs(60),
            evidence: Evidence::None {
                use_within: Span::from_secs(1),
            },
        }
    }

    /// 1,024 settles of one limit walked its list of waiters 1,024 times, under the store's lock.
    #[test]
    fn the_waiters_of_a_cell_are_visited_once_per_batch() {
        let rule = Arc::new(Rule::in_flight(3).unwrap());
        let now = Now {
            at: Micros(1_000_000),
            wall: Wall(0),
        };
        let mut rows = CountingRows::default();
        let granted: Vec<Ask> = (1..=3).map(|seq| ask(1, seq, &rule)).collect();
        decide(&mut rows, now, &Batch::now(OwnerId(1), &[], &granted));
        let waits = [ask(2, 1, &rule)];
        decide(&mut rows, now, &Batch::now(OwnerId(2), &[], &waits));
        assert_eq!(rows.waiters(CellId(1)).len(), 1);
        rows.waiters_changed = 0;
        let alive = |ask: Ask| Settle::Permit {
            id: ask.id,
            terms: ask.terms,
            scopes: ask.scopes,
            outcome: Outcome::Alive {
                extend_by: Span::from_secs(1),
            },
        };
        let settles: Vec<Settle> = granted.into_iter().map(alive).collect();
        decide(&mut rows, now, &Batch::now(OwnerId(1), &settles, &[]));
        assert_eq!(rows.waiters_changed, 1);
    }

    /// Usage that a limit of a minute or longer takes over is as good as granted by it, also if the
    /// change has waited in a queue.
    #[test]
    fn usage_that_a_long_limit_takes_over_must_be_durable() {
        let rule = |secs| Arc::new(Rule::sliding(5, Span::from_secs(secs)).unwrap());
        for (secs, is_durable) in [(59, false), (60, true)] {
            let inherit = Settle::Inherit {
                from: CellId(1),
                old_rule: rule(10),
                to: CellId(2),
                rule: rule(secs),
            };
            let queued = [QueuedSettle {
                settle: inherit.clone(),
                at: Micros(1),
            }];
            let later = Batch {
                settles: Settles::Queued(&queued),
                ..Batch::now(OwnerId(1), &[], &[])
            };
            assert_eq!(later.must_be_durable(&[]), is_durable, "{secs} s, queued");
            let now = [inherit];
            let now = Batch::now(OwnerId(1), &now, &[]);
            assert_eq!(now.must_be_durable(&[]), is_durable, "{secs} s");
        }
    }
}
