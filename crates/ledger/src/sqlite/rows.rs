//! The rows that one transaction reads and writes, in the format of `tollgate_core::row`.
//!
//! Promises: only rows that changed are written. A row that is damaged, or that belongs to a short
//! limit and another boot, counts as used up for one period.
//!
//! Never: outlives its transaction; [`RowCache`] is what is left of it for the next one.

use std::collections::BTreeMap;
use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension, Result, params};
use tollgate_core::ask::{Ask, CellId, OwnerId, ScopeId, Settle};
use tollgate_core::batch::{
    Batch, BatchResult, LONG_PERIOD, Rows, Settles, SyncAhead, TouchedRow, grants_long_limit,
    is_long,
};
use tollgate_core::fairness::Waiter;
use tollgate_core::limit::{Cell, CellView, Rule};
use tollgate_core::reservation::Generations;
use tollgate_core::row::{CellRow, Contents, RowMeta, RowVersion, ScopeRow};
use tollgate_core::scope::Scope;
use tollgate_core::time::{Micros, Now, Span, TimeBounds};
use tollgate_core::turn::CellStore;

/// The number of the boot in which a folder is made.
pub(super) const FIRST_EPOCH: i64 = 1;

/// Which process and which boot a ledger works in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BootContext {
    pub(super) owner: OwnerId,
    /// Counts the boots that this folder has seen.
    pub(super) epoch: i64,
    /// When this boot's first process came.
    pub(super) boot_started: Micros,
    /// Rows from before this epoch, and rows that are missing, say nothing of what was used until
    /// this time: an older database was put in place. Epoch 0: that never happened.
    pub(super) unknown: (i64, Micros),
    /// The processes with a smaller number that lived when this one opened the folder: all others
    /// before it were dead. Numbers are not given twice.
    pub(super) alive_before: Vec<OwnerId>,
    /// The generation of the database when it was opened, which is on disk.
    pub(super) durable_generation: i64,
}

impl BootContext {
    /// Those who were killed wait for nothing any more.
    fn without_dead(&self, mut row: CellRow) -> CellRow {
        row.waiters.retain(|waiter| {
            waiter.owner >= self.owner || self.alive_before.contains(&waiter.owner)
        });
        row
    }

    /// Are its times of this boot? Not if the program that met it at the boot could not decode it.
    /// Programs before the present format wrote none.
    fn is_on_this_clock(&self, meta: &RowMeta) -> bool {
        meta.scale == 0 || meta.scale == self.epoch.cast_unsigned()
    }

    /// Is what was written in this epoch all there was?
    fn trusts_epoch(&self, epoch: i64) -> bool {
        epoch >= self.unknown.0
    }

    /// Shortly after a boot a row that is missing may have been lost with the power: rows of short
    /// limits are not synced. Before the first boot there was nothing to lose.
    fn may_miss_rows(&self, now: Micros) -> bool {
        self.epoch > FIRST_EPOCH && now.since(self.boot_started) < LONG_PERIOD
    }
}

#[derive(Debug, Default)]
pub(super) struct StoredCell {
    pub(super) row: CellRow,
    /// Was it read? If not, there is nothing to write.
    is_read: bool,
    /// What is stored, unless it must be written in any case.
    stored: Option<Contents>,
    /// There is a row for it.
    exists: bool,
}

#[derive(Debug, Default)]
struct StoredScope {
    row: ScopeRow,
    stored: Option<Contents>,
}

/// Which write this is.
#[derive(Clone, Copy, Debug)]
pub(super) struct WriteStamp {
    pub(super) version: RowVersion,
    pub(super) time: Micros,
}

/// Bytes that one write after the other uses, so that none allocates its own.
#[derive(Debug, Default)]
pub(super) struct WriteScratch {
    contents: Contents,
    row: Vec<u8>,
}

impl WriteScratch {
    /// What was written is what is stored now.
    fn store_contents(&mut self, stored: &mut Option<Contents>) {
        std::mem::swap(stored.get_or_insert_default(), &mut self.contents);
    }
}

/// Rows as the last transactions left them, so that a process that is alone with its limits reads
/// none of them again. They are true for as long as nobody else has written, which SQLite tells.
#[derive(Debug, Default)]
pub(super) struct RowCache {
    cells: BTreeMap<CellId, StoredCell>,
    scopes: BTreeMap<ScopeId, StoredScope>,
    /// SQLite's word for what others have written so far.
    version: i64,
}

/// Rows that are kept. A row has 10 KiB at most, so this is 3 MiB; with more limits in use than that
/// the kept ones are forgotten and read again.
const CACHED_ROWS_MAX: usize = 256;

impl RowCache {
    /// Inside a transaction: forgets everything if somebody else has written.
    pub(super) fn check(&mut self, conn: &Connection) -> Result<()> {
        let version = conn
            .prepare_cached("PRAGMA data_version")?
            .query_row([], |row| row.get(0))?;
        if version != self.version {
            self.clear();
            self.version = version;
        }
        Ok(())
    }

    /// The rows of a transaction that was committed.
    pub(super) fn insert(&mut self, committed: TransactionRows) {
        let known = self.cells.len() + self.scopes.len();
        let rows = known + committed.cells.len() + committed.scopes.len();
        if rows > CACHED_ROWS_MAX {
            self.clear();
        }
        let cells = committed.cells.into_iter();
        self.cells.extend(cells.filter(|(_, row)| row.is_read));
        self.scopes.extend(committed.scopes);
    }

    /// Nothing is known any more.
    pub(super) fn clear(&mut self) {
        self.cells.clear();
        self.scopes.clear();
    }
}

/// The rows of one transaction.
#[derive(Debug, Default)]
pub(super) struct TransactionRows {
    pub(super) cells: BTreeMap<CellId, StoredCell>,
    scopes: BTreeMap<ScopeId, StoredScope>,
    /// Rows that could not be believed.
    pub(super) damaged_rows: u64,
}

impl CellStore for TransactionRows {
    fn cell(&mut self, id: CellId) -> &mut Cell {
        &mut self.cells.entry(id).or_default().row.cell
    }

    fn scope(&mut self, id: ScopeId) -> &mut Scope {
        &mut self.scopes.entry(id).or_default().row.scope
    }
}

impl Rows for TransactionRows {
    fn is_shared(&self) -> bool {
        true
    }

    fn waiters(&self, cell: CellId) -> &[Waiter] {
        self.cells
            .get(&cell)
            .map_or(&[], |stored| &stored.row.waiters)
    }

    fn waiters_mut(&mut self, cell: CellId) -> &mut Vec<Waiter> {
        &mut self.cells.entry(cell).or_default().row.waiters
    }

    fn peek(&self, cell: CellId, rule: &Rule, now: TimeBounds) -> CellView {
        match self.cells.get(&cell) {
            Some(stored) => stored.row.cell.peek(rule, now),
            None => Cell::default().peek(rule, now),
        }
    }
}

impl TransactionRows {
    /// Reads every row that these batches touch and that is not kept.
    pub(super) fn read(
        (conn, cache): (&Connection, &mut RowCache),
        context: &BootContext,
        now: Now,
        batches: &[Batch<'_>],
    ) -> Result<TransactionRows> {
        let mut rows = TransactionRows::default();
        cache.check(conn)?;
        for batch in batches {
            batch.for_each_row(|row| match row {
                TouchedRow::Cell(id, rule) if rows.is_known(id, rule) => {
                    Ok::<_, rusqlite::Error>(())
                }
                TouchedRow::Cell(id, rule) => {
                    let row = match (cache.cells.remove(&id), rule) {
                        (Some(row), _) => row,
                        (None, Some(rule)) => rows.read_cell(conn, context, now, id, rule)?,
                        (None, None) => read_waiters(conn, context, id)?,
                    };
                    rows.cells.insert(id, row);
                    Ok(())
                }
                TouchedRow::Scope(id) if rows.scopes.contains_key(&id) => Ok(()),
                TouchedRow::Scope(id) => {
                    let row = match cache.scopes.remove(&id) {
                        Some(row) => row,
                        None => rows.read_scope(conn, context, now.at, id)?,
                    };
                    rows.scopes.insert(id, row);
                    Ok(())
                }
            })?;
        }
        Ok(rows)
    }

    /// A row that was not read is known only to those to whom its count does not matter.
    fn is_known(&self, id: CellId, rule: Option<&Arc<Rule>>) -> bool {
        let known = self.cells.get(&id);
        known.is_some_and(|known| known.is_read || rule.is_none())
    }

    /// One cell as it is to be believed.
    pub(super) fn read_cell(
        &mut self,
        conn: &Connection,
        context: &BootContext,
        now: Now,
        id: CellId,
        rule: &Rule,
    ) -> Result<StoredCell> {
        let stored = select_cell(conn, id)?;
        let exists = stored.is_some();
        let is_short = rule.period() < LONG_PERIOD;
        // Calls in flight have ended with the boot before; what has arrived leaves a short window
        // within its period.
        let after_boot = || match rule.period() {
            Span::ZERO => Cell::default(),
            _ => Cell::used_up(rule, context.boot_started),
        };
        let unknown = || Cell::used_up(rule, context.unknown.1);
        let instead = match &stored {
            None if !context.trusts_epoch(0) => Some(unknown()),
            Some((epoch, _)) if !context.trusts_epoch(*epoch) => Some(unknown()),
            None if is_short && context.may_miss_rows(now.at) => Some(after_boot()),
            None => Some(Cell::default()),
            Some((epoch, _)) if is_short && *epoch != context.epoch => Some(after_boot()),
            Some(_) => None,
        };
        let (row, stored) = match (instead, stored) {
            (Some(cell), _) => (fresh_row(cell), None),
            (None, None) => (CellRow::default(), None),
            (None, Some((epoch, bytes))) => match CellRow::from_bytes(&bytes) {
                Ok(row) if context.is_on_this_clock(&row.meta) => {
                    let stored = (epoch == context.epoch).then(|| row.contents());
                    let mut row = context.without_dead(row);
                    row.reservation.charge(&mut row.cell, rule, now.into());
                    (row, stored)
                }
                Ok(_) | Err(_) => {
                    self.damaged_rows += 1;
                    (fresh_row(Cell::used_up(rule, now.at)), None)
                }
            },
        };
        Ok(StoredCell {
            row,
            is_read: true,
            stored,
            exists,
        })
    }

    fn read_scope(
        &mut self,
        conn: &Connection,
        context: &BootContext,
        now: Micros,
        id: ScopeId,
    ) -> Result<StoredScope> {
        let bytes: Option<Vec<u8>> = conn
            .prepare_cached("SELECT state FROM scopes WHERE id = ?1")?
            .query_row([&id.0.to_le_bytes()[..]], |row| row.get(0))
            .optional()?;
        let Some(bytes) = bytes else {
            return Ok(StoredScope::default());
        };
        Ok(match ScopeRow::from_bytes(&bytes) {
            Ok(row) if context.is_on_this_clock(&row.meta) => StoredScope {
                stored: Some(row.contents()),
                row,
            },
            Ok(_) | Err(_) => {
                self.damaged_rows += 1;
                let (scope, meta) = (Scope::lost(now), RowMeta::default());
                StoredScope {
                    row: ScopeRow { scope, meta },
                    stored: None,
                }
            }
        })
    }

    /// One scope as it is to be believed.
    pub(super) fn peek_scope(
        conn: &Connection,
        context: &BootContext,
        now: Micros,
        id: ScopeId,
    ) -> Result<Scope> {
        let stored = TransactionRows::default().read_scope(conn, context, now, id)?;
        Ok(stored.row.scope)
    }

    /// Counts what a batch was granted in the reservations of its limits, and says which of its
    /// permits they cover.
    pub(super) fn cover(
        &mut self,
        batch: &Batch<'_>,
        decision: &BatchResult,
        generations: Generations,
    ) -> SyncAhead {
        let mut renew = |settle: &Settle| {
            if let Settle::Inherit { to, rule, .. } = settle
                && is_long(rule)
                && let Some(stored) = self.cells.get_mut(to)
            {
                stored.row.reservation.renew(generations.commit);
            }
        };
        match batch.settles {
            Settles::Now(settles) => settles.iter().for_each(&mut renew),
            Settles::Queued(settles) => settles.iter().for_each(|queued| renew(&queued.settle)),
        }
        let mut ahead = SyncAhead::default();
        let decided = batch.asks.iter().zip(&decision.verdicts);
        for (index, (ask, _)) in decided.enumerate().filter(|(_, it)| grants_long_limit(*it)) {
            let (is_covered, is_due) = self.cover_ask(ask, decision.at, generations);
            ahead.is_due |= is_due;
            if !is_covered {
                ahead.waiting.push(index);
            }
        }
        ahead
    }

    /// Is a granted ask covered, and should a sync begin?
    fn cover_ask(&mut self, ask: &Ask, now: Micros, generations: Generations) -> (bool, bool) {
        let (mut is_covered, mut is_due) = (true, false);
        for (index, term) in ask.terms.iter().enumerate() {
            let same = |other: &&tollgate_core::ask::Term| other.cell == term.cell;
            if !is_long(&term.rule) || ask.terms[..index].iter().any(|other| same(&other)) {
                continue;
            }
            let costs = ask.terms.iter().filter(same).map(|term| term.cost);
            let cost = costs.fold(0, u64::saturating_add);
            let row = &mut self.cells.entry(term.cell).or_default().row;
            let wanted = (
                row.cell.reservation(&term.rule, now),
                term.rule.longest_hold(),
            );
            is_covered &= row.reservation.grant(cost, wanted, generations);
            is_due |= row.reservation.is_due();
        }
        (is_covered, is_due)
    }

    /// Writes the rows that changed, in the epoch in which they were read.
    pub(super) fn write(
        &mut self,
        conn: &Connection,
        epoch: i64,
        stamp: WriteStamp,
        scratch: &mut WriteScratch,
    ) -> Result<()> {
        let scale = epoch.cast_unsigned();
        let mut insert = conn.prepare_cached(
            "INSERT INTO cells (id, epoch, state) VALUES (?1, ?2, ?3) \
             ON CONFLICT (id) DO UPDATE SET epoch = ?2, state = ?3",
        )?;
        let mut new = 0;
        for (id, cell) in self.cells.iter_mut().filter(|(_, cell)| cell.is_read) {
            let WriteScratch { contents, row } = scratch;
            cell.row.write_contents(contents);
            if cell.stored.as_ref() != Some(contents) {
                stamp.stamp(&mut cell.row.meta, scale);
                contents.write_cell_row(&cell.row.meta, row);
                insert.execute(params![&id.0.to_le_bytes()[..], epoch, &row[..]])?;
                new ^= if cell.exists { 0 } else { id.0 };
                scratch.store_contents(&mut cell.stored);
                cell.exists = true;
            }
        }
        toggle_ids(conn, new)?;
        let mut insert = conn.prepare_cached(
            "INSERT INTO scopes (id, state) VALUES (?1, ?2) \
             ON CONFLICT (id) DO UPDATE SET state = ?2",
        )?;
        for (id, scope) in &mut self.scopes {
            // A scope that is missing is open.
            let is_new = scope.stored.is_none() && scope.row.scope == Scope::default();
            let WriteScratch { contents, row } = scratch;
            scope.row.write_contents(contents);
            if !is_new && scope.stored.as_ref() != Some(contents) {
                stamp.stamp(&mut scope.row.meta, scale);
                contents.write_scope_row(&scope.row.meta, row);
                insert.execute(params![&id.0.to_le_bytes()[..], &row[..]])?;
                scratch.store_contents(&mut scope.stored);
            }
        }
        Ok(())
    }
}

impl WriteStamp {
    fn stamp(self, meta: &mut RowMeta, scale: u64) {
        meta.version = self.version;
        (meta.time, meta.scale) = (self.time, scale);
    }
}

fn fresh_row(cell: Cell) -> CellRow {
    CellRow {
        cell,
        ..CellRow::default()
    }
}

fn select_cell(conn: &Connection, id: CellId) -> Result<Option<(i64, Vec<u8>)>> {
    conn.prepare_cached("SELECT epoch, state FROM cells WHERE id = ?1")?
        .query_row([&id.0.to_le_bytes()[..]], |row| {
            Ok((row.get(0)?, row.get(1)?))
        })
        .optional()
}

/// A cell of which only those who wait matter: one that cannot be believed is left alone.
fn read_waiters(conn: &Connection, context: &BootContext, id: CellId) -> Result<StoredCell> {
    let Some((epoch, bytes)) = select_cell(conn, id)? else {
        return Ok(StoredCell::default());
    };
    let row = CellRow::from_bytes(&bytes).ok();
    Ok(match row.filter(|_| epoch == context.epoch) {
        Some(row) => StoredCell {
            stored: Some(row.contents()),
            row: context.without_dead(row),
            is_read: true,
            exists: true,
        },
        None => StoredCell::default(),
    })
}

/// A point in time as SQLite's integer. The clock reaches the end of it in 292,000 years.
pub(super) fn to_sql_integer(at: Micros) -> i64 {
    i64::try_from(at.0).unwrap_or(i64::MAX)
}

/// Notes that rows of cells have come or gone: `meta.ids` is the exclusive or of all their ids. A
/// row whose id was damaged would otherwise be missed by nobody, and its limit be unused.
pub(super) fn toggle_ids(conn: &Connection, ids: u128) -> Result<()> {
    if ids == 0 {
        return Ok(());
    }
    let noted: Vec<u8> = conn
        .prepare_cached("SELECT ids FROM meta")?
        .query_row([], |row| row.get(0))?;
    let ids = ids ^ parse_id(&noted);
    conn.prepare_cached("UPDATE meta SET ids = ?1")?
        .execute([&ids.to_le_bytes()[..]])?;
    Ok(())
}

/// Are the rows there that were written?
pub(super) fn is_complete(conn: &Connection) -> Result<bool> {
    let noted: Vec<u8> = conn.query_row("SELECT ids FROM meta", [], |row| row.get(0))?;
    let mut select = conn.prepare("SELECT id FROM cells")?;
    let rows = select.query_map([], |row| row.get::<_, Vec<u8>>(0))?;
    let mut found = 0;
    for row in rows {
        found ^= parse_id(&row?);
    }
    Ok(noted.len() == 16 && parse_id(&noted) == found)
}

/// The number that an id's bytes are. Another length can only be damage; it reads as some number
/// that nobody wrote.
pub(super) fn parse_id(bytes: &[u8]) -> u128 {
    bytes.try_into().map_or(u128::MAX, u128::from_le_bytes)
}

/// A reading of both clocks as it is stored, with a checksum: after a boot all limits of a minute
/// or longer depend on it.
pub(super) fn clock_pair(now: Now) -> [i64; 3] {
    let (at, wall) = (to_sql_integer(now.at), to_sql_integer(Micros(now.wall.0)));
    // FNV-1a: no defence, but a bit that flips is found.
    let sum = [at, wall]
        .iter()
        .flat_map(|clock| clock.to_le_bytes())
        .fold(0xcbf2_9ce4_8422_2325_u64, |sum, byte| {
            (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
    [at, wall, sum.cast_signed()]
}
