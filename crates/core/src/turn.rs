//! The one decision: first apply settles of earlier permits, then decide the asks.
//!
//! This is all the semantics of a ledger. Every store decides with it, through `batch::decide`:
//! memory and SQLite inside their lock or transaction, networked stores on rows that the store
//! compares before it replaces them.
//!
//! Promises: an ask gets all of its terms and scopes, or none: nothing is counted until every one
//! of them agrees. When a cell rejects an ask, it also rejects later asks of the batch that are not
//! more urgent. So order holds, and small costs do not starve a large one; other cells are not
//! affected. `Never` only where waiting cannot help.
//!
//! Time comes as two bounds: what frees uses the lower one, what stamps the upper one
//! ([`TimeBounds`]). A ledger that reads its clock under its lock passes that one reading.
//!
//! Never: reads a clock. The caller reads `now` after it holds the lock.

use smallvec::SmallVec;

use crate::ask::{
    Ask, BlockedBy, CellId, Marks, NeverReason, Outcome, PermitId, Priority, ScopeId, Scopes,
    Settle, Term, Terms, Verdict, WakeOn,
};
use crate::limit::{AMOUNT_MAX, Cell, Rule, SettleAt, Settled};
use crate::scope::Scope;
use crate::time::{Span, TimeBounds};

/// Stores cells and scopes. Both start empty.
pub trait CellStore {
    /// The state of one limit for one key.
    fn cell(&mut self, id: CellId) -> &mut Cell;
    /// The state of one scope.
    fn scope(&mut self, id: ScopeId) -> &mut Scope;
}

/// What one turn decided.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Turn {
    /// One per ask, in the same order.
    pub verdicts: Vec<Verdict>,
    /// Cells in which an ask that was rejected earlier may now succeed.
    pub freed: Vec<CellId>,
    /// Scopes that have changed.
    pub changed_scopes: Vec<ScopeId>,
}

/// Applies `settles`, then decides `asks` in the order given.
pub fn turn(
    cells: &mut impl CellStore,
    now: impl Into<TimeBounds>,
    settles: &[Settle],
    asks: &[Ask],
) -> Turn {
    let now = now.into();
    debug_assert!(now.lo <= now.hi, "the bounds of the time are in order");
    let mut turn = Turn {
        verdicts: Vec::with_capacity(asks.len()),
        ..Turn::default()
    };
    for settle in settles {
        apply(cells, now, settle, &mut turn);
    }
    let mut batch = TurnState::default();
    for ask in asks {
        let verdict = decide(cells, now, ask, &mut batch);
        turn.verdicts.push(verdict);
    }
    debug_assert_eq!(turn.verdicts.len(), asks.len(), "one verdict per ask");
    turn
}

/// How earlier asks of this turn affect later ones.
#[derive(Debug, Default)]
struct TurnState {
    rejected: SmallVec<[Rejection; 4]>,
    granted: SmallVec<[(CellId, u64); 4]>,
}

/// A cell or scope that has rejected an ask of this turn.
#[derive(Debug)]
struct Rejection {
    target: CellOrScope,
    priority: Priority,
    after: Span,
    on: WakeOn,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CellOrScope {
    Cell(CellId),
    Scope(ScopeId),
}

fn decide(
    cells: &mut impl CellStore,
    now: TimeBounds,
    ask: &Ask,
    batch: &mut TurnState,
) -> Verdict {
    if let Some(why) = too_costly(&ask.terms, ask.priority) {
        return Verdict::Never(why);
    }
    #[cfg(debug_assertions)]
    let granted_before = total_granted(cells, ask);
    match longest_wait(cells, now, ask, batch) {
        Some((by, after, on)) => {
            #[cfg(debug_assertions)]
            debug_assert_eq!(
                total_granted(cells, ask),
                granted_before,
                "a rejected ask costs nothing"
            );
            let target = match by {
                BlockedBy::Term(index) => CellOrScope::Cell(ask.terms[index].cell),
                BlockedBy::Scope(index) => CellOrScope::Scope(ask.scopes[index]),
            };
            batch.rejected.push(Rejection {
                target,
                priority: ask.priority,
                after,
                on,
            });
            Verdict::Wait { after, on, by }
        }
        None => Verdict::Go {
            marks: grant(cells, now, ask, batch),
        },
    }
}

/// What the cells of an ask have granted so far, for an assertion.
#[cfg(debug_assertions)]
fn total_granted(cells: &mut impl CellStore, ask: &Ask) -> u64 {
    let cells = ask.terms.iter().map(|term| cells.cell(term.cell).granted());
    cells.fold(0, u64::wrapping_add)
}

/// The total cost of an ask in this cell. If two terms name the cell, their sum is checked and
/// charged once. Checking each alone could pass where the sum does not fit.
fn cost_in_cell(terms: &Terms, cell: CellId) -> u64 {
    let same = terms.iter().filter(|term| term.cell == cell);
    same.fold(0, |sum, term| sum.saturating_add(term.cost))
}

/// The index of the first term that names this cell.
fn first_term_of(terms: &Terms, cell: CellId) -> Option<usize> {
    terms.iter().position(|term| term.cell == cell)
}

/// What a cell counts of it: no row has an amount above 2⁵³. An ask of a limit that applies never costs
/// as much; what a call has cost in the end, or in shadow, may be any number.
fn counted_cost(terms: &Terms, cell: CellId) -> u64 {
    cost_in_cell(terms, cell).min(AMOUNT_MAX)
}

/// A cost above the most that the limit ever grants to this ask can never be granted.
#[must_use]
pub fn too_costly(terms: &Terms, priority: Priority) -> Option<NeverReason> {
    terms.iter().enumerate().find_map(|(index, term)| {
        let most = term
            .rule
            .max_cost()
            .saturating_sub(term.reserve_for(priority));
        let too_costly = cost_in_cell(terms, term.cell) > most && !term.rule.is_shadow();
        too_costly.then_some(NeverReason::TooCostly {
            term: index,
            max_cost: most,
        })
    })
}

/// Checks every scope and every cell and returns the longest wait: an ask repeated after a shorter
/// one would be rejected again. A limit of one process blocks only if nothing else does: how long its
/// calls take is not known, and more of it would not help.
fn longest_wait(
    cells: &mut impl CellStore,
    now: TimeBounds,
    ask: &Ask,
    batch: &TurnState,
) -> Option<(BlockedBy, Span, WakeOn)> {
    let mut longest: Option<(bool, BlockedBy, Span, WakeOn)> = None;
    let mut consider = |is_shared: bool, by: BlockedBy, (after, on): (Span, WakeOn)| {
        if longest.is_none_or(|(shared, _, so_far, _)| (is_shared, after) > (shared, so_far)) {
            longest = Some((is_shared, by, after, on));
        }
    };
    for (index, &id) in ask.scopes.iter().enumerate() {
        let scope = cells.scope(id);
        if let Err(wait) = scope.check(ask.id, now.lo) {
            consider(true, BlockedBy::Scope(index), wait);
        } else if let Some(wait) = batch.rejection_for(CellOrScope::Scope(id), ask.priority) {
            consider(true, BlockedBy::Scope(index), wait);
        }
    }
    for (index, term) in ask.terms.iter().enumerate() {
        let cell = cells.cell(term.cell);
        cell.refresh(&term.rule, now);
        cell.set_owner_limit(ask.id.owner, &term.rule, now);
        let cost = cell.capped_cost(&term.rule, cost_in_cell(&ask.terms, term.cell));
        let leave = term.reserve_for(ask.priority);
        let room = cell.room(&term.rule, cost, leave, ask.priority, now);
        if term.rule.is_shadow() || cost == 0 {
            continue;
        }
        let by = BlockedBy::Term(index);
        let is_shared = !term.rule.is_of_one_process();
        if let Err((after, on)) = room {
            let hopes = on == WakeOn::Event
                && ask.max_wait > Span::ZERO
                && cell.soonest(&term.rule, cost, leave, now) > ask.max_wait;
            let on = if hopes { WakeOn::Release } else { on };
            consider(is_shared, by, (after, on));
        } else if let Some(wait) = batch.rejection_for(CellOrScope::Cell(term.cell), ask.priority) {
            consider(is_shared, by, wait);
        } else if batch.is_full(term, cost) {
            consider(false, by, (Span::ZERO, WakeOn::Time));
        }
    }
    longest.map(|(_, by, after, on)| (by, after, on))
}

fn grant(cells: &mut impl CellStore, now: TimeBounds, ask: &Ask, batch: &mut TurnState) -> Marks {
    let arrives_by = now.hi + ask.evidence.latest_arrival();
    for &id in &ask.scopes {
        cells.scope(id).take(ask.id, now.hi, arrives_by);
    }
    let mut marks = Marks::new();
    for (index, term) in ask.terms.iter().enumerate() {
        let first = first_term_of(&ask.terms, term.cell).filter(|&first| first < index);
        let mark = first.and_then(|first| marks.get(first).copied());
        marks.push(mark.unwrap_or_else(|| {
            let cell = cells.cell(term.cell);
            let cost = cell.capped_cost(&term.rule, counted_cost(&ask.terms, term.cell));
            debug_assert!(
                term.rule.is_shadow() || cost == 0 || !batch.is_full(term, cost),
                "one transaction grants few permits of a long limit"
            );
            batch.add(term.cell, cost);
            cell.take(&term.rule, cost, ask.id, ask.evidence, now)
        }));
    }
    debug_assert_eq!(marks.len(), ask.terms.len(), "all terms are charged");
    marks
}

impl TurnState {
    /// Has this cell or scope rejected an ask of this turn that is at least as urgent?
    fn rejection_for(&self, target: CellOrScope, priority: Priority) -> Option<(Span, WakeOn)> {
        let rejection = self
            .rejected
            .iter()
            .find(|rejection| rejection.target == target && priority <= rejection.priority)?;
        Some((rejection.after, rejection.on))
    }

    /// A crash between commit and send wastes the grants of one transaction, so long limits grant
    /// few at once; the next transaction grants the rest.
    fn is_full(&self, term: &Term, cost: u64) -> bool {
        let granted = self
            .granted
            .iter()
            .find(|(cell, _)| *cell == term.cell)
            .map_or(0, |(_, sum)| *sum);
        granted > 0 && granted.saturating_add(cost) > term.rule.batch_max()
    }

    fn add(&mut self, cell: CellId, cost: u64) {
        if let Some((_, sum)) = self.granted.iter_mut().find(|(id, _)| *id == cell) {
            *sum = sum.saturating_add(cost);
        } else {
            self.granted.push((cell, cost));
        }
    }
}

fn apply(cells: &mut impl CellStore, now: TimeBounds, settle: &Settle, turn: &mut Turn) {
    match settle {
        Settle::Permit {
            id,
            terms,
            scopes,
            outcome,
        } => {
            settle_scopes(cells, now, *id, scopes, outcome, turn);
            for (index, term) in terms.iter().enumerate() {
                if first_term_of(terms, term.cell) != Some(index) {
                    continue;
                }
                let cell = cells.cell(term.cell);
                cell.refresh(&term.rule, now);
                let cost = counted_cost(terms, term.cell);
                if settle_term(cell, now, *id, index, term, cost, outcome) {
                    turn.freed.push(term.cell);
                }
            }
        }
        Settle::Close {
            scope,
            age,
            closed_for,
            reopen,
        } => {
            let until = closed_for.map(|span| (now.hi - *age) + span);
            cells.scope(*scope).close(until, *reopen);
            turn.changed_scopes.push(*scope);
        }
        Settle::Limited {
            scope,
            age,
            granted,
            closed_for,
        } => {
            let (at, granted) = (now.hi - *age, now.hi - *granted);
            let state = cells.scope(*scope);
            state.record_limited(granted, at, at + *closed_for);
            turn.changed_scopes.push(*scope);
        }
        Settle::Inherit {
            from,
            old_rule,
            to,
            rule,
        } => inherit(cells, now, (*from, old_rule), (*to, rule)),
        Settle::Open { scope } => {
            cells.scope(*scope).open();
            turn.changed_scopes.push(*scope);
        }
        Settle::Failed {
            scope,
            age,
            in_a_row,
            closed_for,
            path,
        } => {
            let until = (now.hi - *age) + *closed_for;
            let failed = (*in_a_row, *path);
            if cells.scope(*scope).record_failure(failed, until, now.lo) {
                turn.changed_scopes.push(*scope);
            }
        }
        Settle::Succeeded { scope } => cells.scope(*scope).record_success(),
    }
}

/// Counts the usage of one cell in another cell too.
fn inherit(
    cells: &mut impl CellStore,
    now: TimeBounds,
    (from, old_rule): (CellId, &Rule),
    (to, rule): (CellId, &Rule),
) {
    let old = cells.cell(from);
    old.refresh(old_rule, now);
    let old = old.clone();
    let new = cells.cell(to);
    new.refresh(rule, now);
    let hand_over = new.inherit((to, rule), &old, (from, old_rule), now);
    cells.cell(from).set_hand_over(hand_over);
}

/// Applies the outcome of a permit to its scopes.
fn settle_scopes(
    cells: &mut impl CellStore,
    now: TimeBounds,
    id: PermitId,
    scopes: &Scopes,
    outcome: &Outcome,
    turn: &mut Turn,
) {
    match outcome {
        Outcome::Arrived { .. }
        | Outcome::Failed { .. }
        | Outcome::Finished { .. }
        | Outcome::Complete { .. }
        | Outcome::Unknown { .. } => {
            let is_success = matches!(
                outcome,
                Outcome::Arrived { limited: false, .. } | Outcome::Complete { .. }
            );
            for &scope in scopes {
                let state = cells.scope(scope);
                if is_success {
                    state.record_success();
                }
                let may_follow = state.record_outcome(id, outcome, now.hi);
                if state.probe_arrived(id, now.hi) || may_follow {
                    turn.changed_scopes.push(scope);
                }
            }
        }
        Outcome::Unsent => {
            let returned = scopes.iter().filter(|scope| {
                let state = cells.scope(**scope);
                let may_follow = state.record_outcome(id, outcome, now.hi);
                state.return_probe(id, now.lo) || may_follow
            });
            turn.changed_scopes.extend(returned);
        }
        Outcome::Presumed { .. } | Outcome::Alive { .. } => {}
    }
}

/// `true` if an ask that was rejected earlier may now succeed.
fn settle_term(
    cell: &mut Cell,
    now: TimeBounds,
    id: PermitId,
    index: usize,
    term: &Term,
    cost: u64,
    outcome: &Outcome,
) -> bool {
    let rule = &*term.rule;
    let settled = |age: Span, proven: bool| Settled {
        id,
        cost,
        at: now.hi - age,
        proven,
    };
    match outcome {
        Outcome::Arrived {
            age,
            limited,
            readings,
        } => {
            let settled = settled(*age, !limited);
            let granted = cell.granted_at(id).unwrap_or(settled.at);
            let mut freed = match rule.settles_at() {
                SettleAt::Head => cell.settle(rule, settled, now.lo).freed,
                SettleAt::End => false,
            };
            cell.end_presumption(rule, settled);
            for reading in readings.iter().filter(|reading| reading.term == index) {
                freed |= cell.apply_reading(rule, reading, cost, granted, *limited, now);
            }
            match (
                limited,
                readings.iter().any(|reading| reading.term == index),
            ) {
                (_, true) => {}
                (true, false) => cell.limited_without_reading(rule, granted, now),
                (false, false) => freed |= cell.learn(rule, None, now),
            }
            freed
        }
        Outcome::Failed { age } => {
            cell.end_presumption(rule, settled(*age, false));
            match rule.settles_at() {
                SettleAt::Head => cell.settle(rule, settled(*age, false), now.lo).freed,
                SettleAt::End => false,
            }
        }
        Outcome::Finished { age } | Outcome::Complete { age } => {
            let learned =
                matches!(outcome, Outcome::Complete { .. }) && cell.learn(rule, None, now);
            cell.end_presumption(rule, settled(*age, true));
            cell.settle(rule, settled(*age, true), now.lo).freed || learned
        }
        Outcome::Presumed { age } => cell.presume(rule, id, now.hi - *age, now).freed,
        Outcome::Unsent => {
            cell.end_presumption(rule, settled(Span::ZERO, false));
            cell.undo(rule, id).freed
        }
        Outcome::Unknown { age, late } => {
            let until = (now.hi - *age) + *late;
            let unproven = Settled {
                at: until,
                ..settled(*age, false)
            };
            cell.end_presumption(rule, unproven);
            cell.give_up(rule, id, until).freed
        }
        Outcome::Alive { extend_by } => {
            cell.extend(rule, id, now.hi + *extend_by);
            false
        }
    }
}

#[cfg(test)]
mod scope_tests;
#[cfg(test)]
mod tests;
