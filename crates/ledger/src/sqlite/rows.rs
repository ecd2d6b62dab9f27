//! The rows that one transaction reads and writes: a blob per cell and per scope, and who waits.
//!
//! Promises: only rows that changed are written. A row that is damaged, or that belongs to a short
//! limit and another boot, counts as used up for one period.
//!
//! Never: outlives its transaction; [`RowCache`] is what is left of it for the next one.

use std::collections::BTreeMap;

use rusqlite::{Connection, OptionalExtension, Result, params};
use tollgate_core::ask::{CellId, OwnerId, ScopeId};
use tollgate_core::batch::{Batch, LONG_PERIOD, RowId, Rows};
use tollgate_core::fairness::Waiter;
use tollgate_core::limit::{Cell, CellView, Rule};
use tollgate_core::scope::Scope;
use tollgate_core::time::{Micros, Now, Span, TimeBounds};
use tollgate_core::turn::CellStore;

use crate::sqlite::waiters;

/// The number of the boot in which a folder is made.
pub(super) const FIRST_EPOCH: i64 = 1;

/// Which process and which boot a ledger works in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BootContext {
    pub(super) owner: OwnerId,
    /// Counts the boots that this folder has seen.
    pub(super) epoch: i64,
    /// When this boot's first process came.
    pub(super) boot_started: Micros,
    /// Rows from before this epoch, and rows that are missing, say nothing of what was used until
    /// this time: an older database was put in place. Epoch 0: that never happened.
    pub(super) unknown: (i64, Micros),
}

impl BootContext {
    /// Is what was written in this epoch all there was?
    fn trusts_epoch(self, epoch: i64) -> bool {
        epoch >= self.unknown.0
    }

    /// Shortly after a boot a row that is missing may have been lost with the power: rows of short
    /// limits are not synced. Before the first boot there was nothing to lose.
    fn may_miss_rows(self, now: Micros) -> bool {
        self.epoch > FIRST_EPOCH && now.since(self.boot_started) < LONG_PERIOD
    }
}

#[derive(Debug, Default)]
pub(super) struct CellRow {
    pub(super) cell: Cell,
    /// Was the cell itself read? If not, only its waiters count.
    is_read: bool,
    pub(super) waiters: Vec<Waiter>,
    stored_waiters: Vec<Waiter>,
    /// The blob as it is stored, unless it must be written in any case.
    stored: Option<Vec<u8>>,
    /// There is a row for it.
    exists: bool,
}

#[derive(Debug, Default)]
struct ScopeRow {
    scope: Scope,
    stored: Option<Vec<u8>>,
}

/// Rows as the last transactions left them, so that a process that is alone with its limits reads
/// none of them again. They are true for as long as nobody else has written, which SQLite tells.
#[derive(Debug, Default)]
pub(super) struct RowCache {
    cells: BTreeMap<CellId, CellRow>,
    scopes: BTreeMap<ScopeId, ScopeRow>,
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
    pub(super) fn insert(&mut self, page: TransactionRows) {
        let rows = self.cells.len() + self.scopes.len() + page.cells.len() + page.scopes.len();
        if rows > CACHED_ROWS_MAX {
            self.clear();
        }
        let cells = page.cells.into_iter();
        self.cells.extend(cells.filter(|(_, row)| row.is_read));
        self.scopes.extend(page.scopes);
    }

    /// Nothing is known any more.
    pub(super) fn clear(&mut self) {
        self.cells.clear();
        self.scopes.clear();
    }

    fn take_cell(&mut self, id: CellId) -> Option<CellRow> {
        let row = self.cells.remove(&id)?;
        Some(CellRow {
            waiters: Vec::new(),
            stored_waiters: Vec::new(),
            ..row
        })
    }
}

/// The rows of one transaction.
#[derive(Debug, Default)]
pub(super) struct TransactionRows {
    pub(super) cells: BTreeMap<CellId, CellRow>,
    scopes: BTreeMap<ScopeId, ScopeRow>,
    /// Rows that could not be believed.
    pub(super) damaged_rows: u64,
}

impl CellStore for TransactionRows {
    fn cell(&mut self, id: CellId) -> &mut Cell {
        &mut self.cells.entry(id).or_default().cell
    }

    fn scope(&mut self, id: ScopeId) -> &mut Scope {
        &mut self.scopes.entry(id).or_default().scope
    }
}

impl Rows for TransactionRows {
    fn is_shared(&self) -> bool {
        true
    }

    fn waiters(&self, cell: CellId) -> &[Waiter] {
        self.cells.get(&cell).map_or(&[], |row| &row.waiters)
    }

    fn waiters_mut(&mut self, cell: CellId) -> &mut Vec<Waiter> {
        &mut self.cells.entry(cell).or_default().waiters
    }

    fn peek(&self, cell: CellId, rule: &Rule, now: TimeBounds) -> CellView {
        match self.cells.get(&cell) {
            Some(row) => row.cell.peek(rule, now),
            None => Cell::default().peek(rule, now),
        }
    }
}

impl TransactionRows {
    /// Reads every row that these batches touch and that is not kept.
    pub(super) fn read(
        (conn, kept): (&Connection, &mut RowCache),
        context: BootContext,
        now: Micros,
        batches: &[Batch<'_>],
    ) -> Result<TransactionRows> {
        let mut rows = TransactionRows::default();
        kept.check(conn)?;
        let anybody_waits = waiters::any_waiting(conn)?;
        for batch in batches {
            batch.for_each_row(|row| match row {
                RowId::Cell(id, _) if rows.cells.contains_key(&id) => Ok::<_, rusqlite::Error>(()),
                RowId::Cell(id, rule) => {
                    let mut row = match (kept.take_cell(id), rule) {
                        (Some(row), _) => row,
                        (None, Some(rule)) => rows.read_cell(conn, context, now, id, rule)?,
                        (None, None) => CellRow::default(),
                    };
                    if anybody_waits {
                        row.waiters = waiters::read(conn, id, now)?;
                        row.stored_waiters.clone_from(&row.waiters);
                    }
                    rows.cells.insert(id, row);
                    Ok(())
                }
                RowId::Scope(id) if rows.scopes.contains_key(&id) => Ok(()),
                RowId::Scope(id) => {
                    let row = match kept.scopes.remove(&id) {
                        Some(row) => row,
                        None => rows.read_scope(conn, now, id)?,
                    };
                    rows.scopes.insert(id, row);
                    Ok(())
                }
            })?;
        }
        Ok(rows)
    }

    /// One cell as it is to be believed.
    pub(super) fn read_cell(
        &mut self,
        conn: &Connection,
        home: BootContext,
        now: Micros,
        id: CellId,
        rule: &Rule,
    ) -> Result<CellRow> {
        let row: Option<(i64, Vec<u8>)> = conn
            .prepare_cached("SELECT epoch, state FROM cells WHERE id = ?1")?
            .query_row([&id.0.to_le_bytes()[..]], |row| {
                Ok((row.get(0)?, row.get(1)?))
            })
            .optional()?;
        let is_there = row.is_some();
        let is_short = rule.period() < LONG_PERIOD;
        // Calls in flight have ended with the boot before; what has arrived leaves a short window
        // within its period.
        let after_boot = || match rule.period() {
            Span::ZERO => Cell::default(),
            _ => Cell::used_up(rule, home.boot_started),
        };
        let unknown = || Cell::used_up(rule, home.unknown.1);
        let (cell, stored) = match row {
            None if !home.trusts_epoch(0) => (unknown(), None),
            Some((epoch, _)) if !home.trusts_epoch(epoch) => (unknown(), None),
            None if is_short && home.may_miss_rows(now) => (after_boot(), None),
            None => (Cell::default(), None),
            Some((epoch, _)) if is_short && epoch != home.epoch => (after_boot(), None),
            Some((epoch, state)) => match Cell::from_bytes(&state, Micros(0)) {
                Ok(cell) => (cell, (epoch == home.epoch).then_some(state)),
                Err(_) => {
                    self.damaged_rows += 1;
                    (Cell::used_up(rule, now), None)
                }
            },
        };
        Ok(CellRow {
            cell,
            is_read: true,
            waiters: Vec::new(),
            stored_waiters: Vec::new(),
            stored,
            exists: is_there,
        })
    }

    fn read_scope(&mut self, conn: &Connection, now: Micros, id: ScopeId) -> Result<ScopeRow> {
        let stored: Option<Vec<u8>> = conn
            .prepare_cached("SELECT state FROM scopes WHERE id = ?1")?
            .query_row([&id.0.to_le_bytes()[..]], |row| row.get(0))
            .optional()?;
        let Some(stored) = stored else {
            return Ok(ScopeRow::default());
        };
        Ok(match Scope::from_bytes(&stored) {
            Ok(scope) => ScopeRow {
                scope,
                stored: Some(stored),
            },
            Err(_) => {
                self.damaged_rows += 1;
                ScopeRow {
                    scope: Scope::lost(now),
                    stored: None,
                }
            }
        })
    }

    /// One scope as it is to be believed.
    pub(super) fn peek_scope(conn: &Connection, now: Micros, id: ScopeId) -> Result<Scope> {
        Ok(TransactionRows::default().read_scope(conn, now, id)?.scope)
    }

    /// Writes the rows that changed.
    pub(super) fn write(&mut self, conn: &Connection, home: BootContext) -> Result<()> {
        let mut cells = conn.prepare_cached(
            "INSERT INTO cells (id, epoch, state) VALUES (?1, ?2, ?3) \
             ON CONFLICT (id) DO UPDATE SET epoch = ?2, state = ?3",
        )?;
        let mut new = 0;
        for (id, row) in &mut self.cells {
            if row.waiters != row.stored_waiters {
                waiters::write(conn, *id, &row.stored_waiters, &row.waiters)?;
            }
            if !row.is_read {
                continue;
            }
            let state = row.cell.to_bytes(Micros(0));
            if row.stored.as_ref() != Some(&state) {
                cells.execute(params![&id.0.to_le_bytes()[..], home.epoch, state])?;
                new ^= if row.exists { 0 } else { id.0 };
                (row.stored, row.exists) = (Some(state), true);
            }
        }
        toggle_ids(conn, new)?;
        let mut scopes = conn.prepare_cached(
            "INSERT INTO scopes (id, state) VALUES (?1, ?2) \
             ON CONFLICT (id) DO UPDATE SET state = ?2",
        )?;
        for (id, row) in &mut self.scopes {
            let state = row.scope.to_bytes();
            // A scope that is missing is open.
            let is_new = row.stored.is_none() && row.scope == Scope::default();
            if !is_new && row.stored.as_deref() != Some(&state[..]) {
                scopes.execute(params![&id.0.to_le_bytes()[..], &state[..]])?;
                row.stored = Some(state.to_vec());
            }
        }
        Ok(())
    }
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
