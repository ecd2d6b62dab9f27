//! The database: one transaction, and what is read without one.
//!
//! Promises: `now` is read inside the transaction, with the kernel lock held, so time does not go
//! back between two of them, whichever process makes them. All of a transaction is written, or
//! nothing.
//!
//! Never: leaves a read open, which would keep the log from being reused.

use std::time::Duration;

use rusqlite::{Connection, Result, params};
use tollgate_core::ask::OwnerId;
use tollgate_core::batch::{Batch, BatchResult, LONG_PERIOD, decide};
use tollgate_core::limit::CellView;
use tollgate_core::reservation::Generations;
use tollgate_core::row::{CellRow, RowVersion, ScopeRow};
use tollgate_core::scope::ScopeView;
use tollgate_core::time::{Micros, Now, Span};

use crate::Clock;
use crate::failpoint;
use crate::sqlite::checkpointer::{Checkpoint, checkpoint};
use crate::sqlite::rows::{
    self, BootContext, RowCache, TransactionRows, WriteScratch, WriteStamp, clock_pair,
};
use crate::store::{PeekQuery, PeekReply};

/// How often the pair of clocks is noted: after a boot, this much of calendar time may be unsure.
const CLOCK_PAIR_EVERY: Span = Span::from_secs(1);

/// Every so many transactions idle rows are looked for, so many at a time: at least one row is
/// looked at for each that a transaction can add.
const SWEEP_EVERY: u64 = 32;
const SWEEP_ROWS: i64 = 128;

/// What one transaction did.
#[derive(Debug)]
pub(super) struct CommitReport {
    /// One per batch, in their order.
    pub(super) decisions: Vec<BatchResult>,
    /// A limit of a minute or longer was granted: it must be on disk before it is used, or soon.
    pub(super) needs_sync: bool,
    /// Rows that could not be believed.
    pub(super) damaged_rows: u64,
    /// What is to be noted outside of the database: generation and time.
    pub(super) new_generation: Option<(i64, i64)>,
}

/// The database of one process.
#[derive(Debug)]
pub(super) struct Database {
    conn: Connection,
    context: BootContext,
    clock: Clock,
    /// Together with the owner's number it tells this process from every other one.
    opened_at: Micros,
    turns: u64,
    clock_pair_at: Micros,
    swept_to: Vec<u8>,
    scopes_swept_to: Vec<u8>,
    row_cache: RowCache,
    scratch: WriteScratch,
    /// The busy timeout that is set.
    busy_timeout: Duration,
}

impl Database {
    pub(super) fn new(conn: Connection, context: BootContext, clock: Clock) -> Database {
        Database {
            conn,
            context,
            opened_at: clock.at(),
            clock,
            turns: 0,
            clock_pair_at: Micros(0),
            swept_to: Vec::new(),
            scopes_swept_to: Vec::new(),
            row_cache: RowCache::default(),
            scratch: WriteScratch::default(),
            busy_timeout: Duration::ZERO,
        }
    }

    /// This process among those that share the folder: a number that is never given twice.
    pub(super) fn owner(&self) -> OwnerId {
        self.context.owner
    }

    /// How long programs that do not take the kernel lock (SQLite's own shell) are waited for.
    pub(super) fn set_busy_timeout(&mut self, longest: Duration) {
        if self.busy_timeout != longest && self.conn.busy_timeout(longest).is_ok() {
            self.busy_timeout = longest;
        }
    }

    /// One transaction. The caller holds the kernel lock. `durable` says which generation is known to
    /// be on disk, before the one that is being written.
    pub(super) fn turn(
        &mut self,
        batches: &[Batch<'_>],
        durable: &dyn Fn(i64) -> i64,
    ) -> Result<CommitReport> {
        self.conn
            .prepare_cached("BEGIN IMMEDIATE")?
            .execute([])
            .inspect_err(|_| self.roll_back())?;
        failpoint::reached("locked");
        let done = self.decide(batches, durable).and_then(|(done, rows)| {
            failpoint::reached("before commit");
            self.conn.prepare_cached("COMMIT")?.execute([])?;
            failpoint::reached("after commit");
            if let Some(rows) = rows {
                self.row_cache.insert(rows);
            }
            Ok(done)
        });
        if done.is_err() {
            self.abort_turn();
        }
        done
    }

    /// A panic has left the transaction open.
    pub(super) fn abort_turn(&mut self) {
        self.row_cache.clear();
        self.roll_back();
    }

    /// An error may have ended the transaction already; then there is nothing to roll back.
    fn roll_back(&self) {
        drop(self.conn.execute_batch("ROLLBACK"));
    }

    /// Decides and writes. The rows are returned for the next transaction, if what is known of them
    /// is still true after this one.
    fn decide(
        &mut self,
        batches: &[Batch<'_>],
        durable: &dyn Fn(i64) -> i64,
    ) -> Result<(CommitReport, Option<TransactionRows>)> {
        let now = self.clock.now();
        let source = (&self.conn, &mut self.row_cache);
        let mut rows = TransactionRows::read(source, &self.context, now, batches)?;
        let mut decisions: Vec<BatchResult> = batches
            .iter()
            .map(|batch| decide(&mut rows, now, batch))
            .collect();
        let stamp = WriteStamp {
            version: RowVersion {
                owner: self.context.owner,
                nonce: self.opened_at.0,
                batch: self.turns,
            },
            time: now.at,
        };
        let is_long = batches
            .iter()
            .zip(&decisions)
            .any(|(batch, decision)| batch.must_be_durable(&decision.verdicts));
        let (epoch, unknown) = (self.context.epoch, self.context.unknown);
        // Who commits nothing wants to know whether the store can be written.
        let is_probe = batches.iter().all(Batch::is_empty);
        let new_generation = self.record_clock_pair(now, is_long, is_probe)?;
        if let Some((commit, _)) = new_generation.filter(|_| is_long) {
            let generations = Generations {
                commit: commit.cast_unsigned(),
                durable: durable(commit).cast_unsigned(),
            };
            for (batch, decision) in batches.iter().zip(&mut decisions) {
                decision.sync_ahead = Some(rows.cover(batch, decision, generations));
            }
        }
        rows.write(&self.conn, epoch, stamp, &mut self.scratch)?;
        self.turns += 1;
        let is_swept = self.turns.is_multiple_of(SWEEP_EVERY) && self.sweep(now.at)?;
        let report = CommitReport {
            decisions,
            needs_sync: is_long,
            new_generation,
            damaged_rows: rows.damaged_rows,
        };
        let is_same = (epoch, unknown) == (self.context.epoch, self.context.unknown);
        let is_true = !is_swept && is_same;
        if !is_true {
            self.row_cache.clear();
        }
        Ok((report, is_true.then_some(rows)))
    }

    /// Notes which calendar time belongs to which boot time, for the next boot, and which generation
    /// this is. Hears from the same row if somebody has found the rows to be older than they were.
    fn record_clock_pair(
        &mut self,
        now: Now,
        is_long: bool,
        is_probe: bool,
    ) -> Result<Option<(i64, i64)>> {
        let is_due =
            self.clock_pair_at == Micros(0) || now.at.since(self.clock_pair_at) >= CLOCK_PAIR_EVERY;
        if !is_due && !is_long && !is_probe {
            return Ok(None);
        }
        let [at, wall, sum] = clock_pair(now);
        let context = &mut self.context;
        let noted = self
            .conn
            .prepare_cached(
                "UPDATE meta SET at = ?1, wall = ?2, pair = ?3, generation = generation + ?4 \
                 RETURNING generation, epoch, unknown_epoch, unknown_at",
            )?
            .query_row(params![at, wall, sum, is_long], |row| {
                context.epoch = row.get(1)?;
                let unknown_at: i64 = row.get(3)?;
                context.unknown = (row.get(2)?, Micros(unknown_at.cast_unsigned()));
                row.get(0)
            })?;
        self.clock_pair_at = now.at;
        Ok(Some((noted, at)))
    }

    /// Forgets idle rows, some at a time. A cell that is missing is empty, so shortly after a boot
    /// nothing is forgotten: short limits of the boot before are still closed by their rows. `true`
    /// if rows have gone.
    fn sweep(&mut self, now: Micros) -> Result<bool> {
        if now.since(self.context.boot_started) < LONG_PERIOD {
            return Ok(false);
        }
        let (cells, scopes) = (self.sweep_cells(now)?, self.sweep_scopes(now)?);
        Ok(cells || scopes)
    }

    fn sweep_cells(&mut self, now: Micros) -> Result<bool> {
        let mut select = self
            .conn
            .prepare_cached("SELECT id, state FROM cells WHERE id > ?1 ORDER BY id LIMIT ?2")?;
        let rows: Vec<(Vec<u8>, Vec<u8>)> = select
            .query_map(params![self.swept_to, SWEEP_ROWS], |row| {
                Ok((row.get(0)?, row.get(1)?))
            })?
            .collect::<Result<_>>()?;
        self.swept_to = match rows.last() {
            Some((id, _)) => id.clone(),
            None => Vec::new(),
        };
        let mut delete = self
            .conn
            .prepare_cached("DELETE FROM cells WHERE id = ?1")?;
        let (mut gone, mut is_any) = (0, false);
        for (id, state) in &rows {
            if CellRow::from_bytes(state).is_ok_and(|row| is_idle(&row, now)) {
                delete.execute([id])?;
                gone ^= rows::parse_id(id);
                is_any = true;
            }
        }
        rows::toggle_ids(&self.conn, gone)?;
        Ok(is_any)
    }

    /// Forgets scopes that nobody uses: each path that has failed has one. `true` if rows have gone.
    fn sweep_scopes(&mut self, now: Micros) -> Result<bool> {
        let mut select = self
            .conn
            .prepare_cached("SELECT id, state FROM scopes WHERE id > ?1 ORDER BY id LIMIT ?2")?;
        let rows: Vec<(Vec<u8>, Vec<u8>)> = select
            .query_map(params![self.scopes_swept_to, SWEEP_ROWS], |row| {
                Ok((row.get(0)?, row.get(1)?))
            })?
            .collect::<Result<_>>()?;
        self.scopes_swept_to = match rows.last() {
            Some((id, _)) => id.clone(),
            None => Vec::new(),
        };
        let mut delete = self
            .conn
            .prepare_cached("DELETE FROM scopes WHERE id = ?1")?;
        let mut is_any = false;
        for (id, state) in &rows {
            if ScopeRow::from_bytes(state).is_ok_and(|row| self.is_unused(&row, now)) {
                delete.execute([id])?;
                is_any = true;
            }
        }
        Ok(is_any)
    }

    /// Nobody uses the scope. The time of a change before the last boot is on another clock: it was
    /// before this boot began.
    fn is_unused(&self, row: &ScopeRow, now: Micros) -> bool {
        let is_ours = row.meta.scale == self.context.epoch.cast_unsigned();
        let changed = if is_ours {
            row.meta.time
        } else {
            self.context.boot_started
        };
        row.scope.is_idle(changed, now) && row.meta.unknown.is_empty()
    }

    /// Reads without a lock. What cannot be read looks used up.
    pub(super) fn peek(&self, query: &PeekQuery) -> Result<PeekReply> {
        let now = self.clock.now();
        let mut rows = TransactionRows::default();
        let cell = |(id, rule): &(_, std::sync::Arc<_>)| -> Result<CellView> {
            let stored = rows.read_cell(&self.conn, &self.context, now, *id, rule)?;
            Ok(stored.row.cell.peek(rule, now))
        };
        let cells = query.cells.iter().map(cell).collect::<Result<_>>()?;
        let scope = |id: &_| -> Result<ScopeView> {
            let scope = TransactionRows::peek_scope(&self.conn, &self.context, now.at, *id)?;
            Ok(scope.peek(now.at))
        };
        let scopes = query.scopes.iter().map(scope).collect::<Result<_>>()?;
        Ok(PeekReply { cells, scopes })
    }

    /// Moves the log into the database. The caller holds the kernel lock, so nobody adds to it.
    pub(super) fn checkpoint(&self) -> Result<Checkpoint> {
        checkpoint(&self.conn)
    }
}

/// Nothing is lost with it: nothing is used, nobody waits, and nothing is in it that a newer program
/// would miss.
fn is_idle(row: &CellRow, now: Micros) -> bool {
    let awaited = row.waiters.iter().any(|waiter| waiter.until > now);
    let is_counted = row.reservation.is_idle(now);
    row.cell.is_idle(now) && is_counted && !awaited && row.meta.unknown.is_empty()
}
