//! The database: one transaction, and what is read without one.
//!
//! Promises: `now` is read inside the transaction, with the kernel lock held, so time does not go
//! back between two of them, whichever process makes them. All of a transaction is written, or
//! nothing.
//!
//! Never: leaves a read open, which would keep the log from being reused.

use std::sync::Arc;
use std::time::Duration;

use rusqlite::{Connection, Result, params};
use tollgate_core::ask::{Ask, CellId, Outcome, OwnerId, ScopeId, Settle, Verdict};
use tollgate_core::limit::{Cell, CellView, Rule};
use tollgate_core::scope::ScopeView;
use tollgate_core::time::{Micros, Now, Span};
use tollgate_core::turn::turn;

use crate::Clock;
use crate::failpoint;
use crate::sqlite::checkpointer::{LogStatus, checkpoint};
use crate::sqlite::fairness::{Wake, Withheld, tally, wake_ups, wake_ups_after_leaving, withheld};
use crate::sqlite::inbox::QueuedSettle;
use crate::sqlite::rows::{self, BootContext, LONG_PERIOD, RowCache, TransactionRows, clock_pair};
use crate::sqlite::waiters;

/// How often the pair of clocks is noted: after a boot, this much of calendar time may be unsure.
const CLOCK_PAIR_EVERY: Span = Span::from_secs(1);

/// Every so many transactions idle rows are looked for, so many at a time: at least one row is
/// looked at for each that a transaction can add.
const SWEEP_EVERY: u64 = 32;
const SWEEP_ROWS: i64 = 128;

/// Something to read.
#[derive(Debug)]
pub(super) enum PeekQuery {
    Cells(Vec<(CellId, Arc<Rule>)>),
    Scope(ScopeId),
}

/// What was read.
#[derive(Debug)]
pub(super) enum PeekReply {
    Cells(Vec<CellView>),
    Scope(ScopeView),
}

/// What one transaction did.
#[derive(Debug)]
pub(super) struct CommitReport {
    /// One per ask, in their order.
    pub(super) verdicts: Vec<Verdict>,
    pub(super) freed: Vec<CellId>,
    pub(super) scopes: Vec<ScopeId>,
    pub(super) wakes: Vec<Wake>,
    /// For whom something is saved up; they may be dead.
    pub(super) saved_for: Vec<OwnerId>,
    /// When it was decided.
    pub(super) now: Micros,
    /// A limit of a minute or longer was granted: it must be on disk before it is used.
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
    turns: u64,
    clock_pair_at: Micros,
    swept_to: Vec<u8>,
    row_cache: RowCache,
    /// Owners found dead, whose rows go with the next transaction.
    dead_owners: Vec<OwnerId>,
    /// The busy timeout that is set.
    busy_timeout: Duration,
}

impl Database {
    pub(super) fn new(conn: Connection, home: BootContext, clock: Clock) -> Database {
        Database {
            conn,
            context: home,
            clock,
            turns: 0,
            clock_pair_at: Micros(0),
            swept_to: Vec::new(),
            row_cache: RowCache::default(),
            dead_owners: Vec::new(),
            busy_timeout: Duration::ZERO,
        }
    }

    /// This owner was to be woken and is no more: nobody leaves anything to it.
    pub(super) fn mark_dead(&mut self, owner: OwnerId) {
        self.dead_owners.push(owner);
    }

    /// How long programs that do not take the kernel lock (SQLite's own shell) are waited for.
    pub(super) fn set_busy_timeout(&mut self, longest: Duration) {
        if self.busy_timeout != longest && self.conn.busy_timeout(longest).is_ok() {
            self.busy_timeout = longest;
        }
    }

    /// One transaction: who has left, settles, then asks. The caller holds the kernel lock.
    pub(super) fn turn(
        &mut self,
        left: &[CellId],
        told: &[QueuedSettle],
        asks: &[Ask],
    ) -> Result<CommitReport> {
        self.conn
            .prepare_cached("BEGIN IMMEDIATE")?
            .execute([])
            .inspect_err(|_| self.roll_back())?;
        failpoint::reached("locked");
        let done = self.decide(left, told, asks).and_then(|(done, page)| {
            failpoint::reached("before commit");
            self.conn.prepare_cached("COMMIT")?.execute([])?;
            failpoint::reached("after commit");
            if let Some(page) = page {
                self.row_cache.insert(page);
            }
            Ok(done)
        });
        if done.is_err() {
            self.row_cache.clear();
            self.roll_back();
        }
        done
    }

    /// An error may have ended the transaction already; then there is nothing to roll back.
    fn roll_back(&self) {
        drop(self.conn.execute_batch("ROLLBACK"));
    }

    /// Decides and writes. The rows are returned for the next transaction, if what is known of them
    /// is still true after this one.
    fn decide(
        &mut self,
        left: &[CellId],
        told: &[QueuedSettle],
        asks: &[Ask],
    ) -> Result<(CommitReport, Option<TransactionRows>)> {
        let now = self.clock.now();
        for owner in self.dead_owners.drain(..) {
            waiters::remove_owner(&self.conn, owner)?;
        }
        let mut wakes = self.remove_waiters(left, now)?;
        let settles: Vec<Settle> = told.iter().map(|told| aged(told, now.at)).collect();
        let source = (&self.conn, &mut self.row_cache);
        let mut page =
            TransactionRows::read(source, self.context, now.at, settles.iter(), asks.iter())?;
        let before = turn(&mut page, now, &settles, &[]);
        let (verdicts, woken, saved_for) = self.serve(&mut page, asks, &before.freed, now)?;
        wakes.extend(woken);
        page.write(&self.conn, self.context)?;
        let is_long = asks.iter().zip(&verdicts).any(grants_long_limit)
            || settles.iter().any(carries_long_limit);
        let home = self.context;
        let noted = self.record_clock_pair(now, is_long)?;
        self.turns += 1;
        let is_swept = self.turns.is_multiple_of(SWEEP_EVERY) && self.sweep(now.at)?;
        let done = CommitReport {
            needs_sync: is_long,
            new_generation: noted,
            verdicts,
            freed: before.freed,
            scopes: before.changed_scopes,
            wakes,
            saved_for,
            now: now.at,
            damaged_rows: page.damaged_rows,
        };
        let is_true = !is_swept && home == self.context;
        if !is_true {
            self.row_cache.clear();
        }
        Ok((done, is_true.then_some(page)))
    }

    /// This owner waits for these no longer: who was held up for it hears so at once.
    fn remove_waiters(&self, cells: &[CellId], now: Now) -> Result<Vec<Wake>> {
        let mut wakes = Vec::new();
        for &cell in cells {
            if waiters::remove(&self.conn, cell, self.context.owner)? {
                let others = waiters::read(&self.conn, cell, now.at)?;
                wakes.extend(wake_ups_after_leaving(cell, &others));
            }
        }
        for wake in &wakes {
            waiters::mark_woken(&self.conn, wake, now.at)?;
        }
        Ok(wakes)
    }

    /// Decides the asks, this owner's share only where others wait, and notes who waits now.
    fn serve(
        &self,
        page: &mut TransactionRows,
        asks: &[Ask],
        freed: &[CellId],
        now: Now,
    ) -> Result<(Vec<Verdict>, Vec<Wake>, Vec<OwnerId>)> {
        let owner = self.context.owner;
        let Withheld {
            verdicts: withheld,
            saved_for,
        } = withheld(page, asks, freed, owner, now);
        let verdicts = if withheld.iter().all(Option::is_none) {
            turn(page, now, &[], asks).verdicts
        } else {
            let served: Vec<Ask> = asks
                .iter()
                .zip(&withheld)
                .filter(|(_, withheld)| withheld.is_none())
                .map(|(ask, _)| ask.clone())
                .collect();
            let mut served = turn(page, now, &[], &served).verdicts.into_iter();
            let verdict = |withheld: Option<Verdict>| withheld.or_else(|| served.next());
            withheld.into_iter().filter_map(verdict).collect()
        };
        for (cell, tally) in tally(asks, &verdicts) {
            let row = page.cells.get(&cell);
            let waiters = row.map_or(&[][..], |row| &row.waiters);
            waiters::record(&self.conn, (cell, owner), waiters, tally, now.at)?;
        }
        let wakes = wake_ups(page, freed, owner, now);
        for wake in &wakes {
            waiters::mark_woken(&self.conn, wake, now.at)?;
        }
        Ok((verdicts, wakes, saved_for))
    }

    /// Notes which calendar time belongs to which boot time, for the next boot, and which generation
    /// this is. Hears from the same row if somebody has found the rows to be older than they were.
    fn record_clock_pair(&mut self, now: Now, is_long: bool) -> Result<Option<(i64, i64)>> {
        let is_due =
            self.clock_pair_at == Micros(0) || now.at.since(self.clock_pair_at) >= CLOCK_PAIR_EVERY;
        if !is_due && !is_long {
            return Ok(None);
        }
        let [at, wall, sum] = clock_pair(now);
        let home = &mut self.context;
        let noted = self
            .conn
            .prepare_cached(
                "UPDATE meta SET at = ?1, wall = ?2, pair = ?3, generation = generation + ?4 \
                 RETURNING generation, epoch, unknown_epoch, unknown_at",
            )?
            .query_row(params![at, wall, sum, is_long], |row| {
                home.epoch = row.get(1)?;
                let unknown_at: i64 = row.get(3)?;
                home.unknown = (row.get(2)?, Micros(unknown_at.cast_unsigned()));
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
            if Cell::from_bytes(state, Micros(0)).is_ok_and(|cell| cell.is_idle(now)) {
                delete.execute([id])?;
                gone ^= rows::parse_id(id);
                is_any = true;
            }
        }
        rows::toggle_ids(&self.conn, gone)?;
        waiters::sweep(&self.conn, now)?;
        Ok(is_any)
    }

    /// Reads without a lock. What cannot be read looks used up.
    pub(super) fn peek(&self, question: &PeekQuery) -> Result<PeekReply> {
        let now = self.clock.now();
        match question {
            PeekQuery::Cells(cells) => {
                let view = |(id, rule): &(CellId, Arc<Rule>)| {
                    let row = TransactionRows::default().read_cell(
                        &self.conn,
                        self.context,
                        now.at,
                        *id,
                        rule,
                    )?;
                    Ok(row.cell.peek(rule, now))
                };
                let views: Result<Vec<CellView>> = cells.iter().map(view).collect();
                views.map(PeekReply::Cells)
            }
            PeekQuery::Scope(id) => TransactionRows::peek_scope(&self.conn, now.at, *id)
                .map(|scope| PeekReply::Scope(scope.peek(now.at))),
        }
    }

    /// Moves the log into the database. The caller holds the kernel lock, so nobody adds to it.
    pub(super) fn checkpoint(&self) -> Result<LogStatus> {
        checkpoint(&self.conn)
    }
}

/// A settle whose ages have grown by the time that it waited.
fn aged(told: &QueuedSettle, now: Micros) -> Settle {
    let waited = now.since(told.at);
    let mut settle = told.settle.clone();
    match &mut settle {
        Settle::Permit { outcome, .. } => match outcome {
            Outcome::Arrived { age, .. }
            | Outcome::Failed { age, .. }
            | Outcome::Finished { age }
            | Outcome::Complete { age }
            | Outcome::Unknown { age, .. } => *age = *age + waited,
            Outcome::Alive { extend_by: by } => *by = *by - waited,
            Outcome::Unsent => {}
        },
        Settle::Close { age, .. } | Settle::Failed { age, .. } => *age = *age + waited,
        Settle::Open { .. } | Settle::Succeeded { .. } | Settle::Inherit { .. } => {}
    }
    settle
}

/// What a long limit has taken over is as good as granted by it.
fn carries_long_limit(settle: &Settle) -> bool {
    matches!(settle, Settle::Inherit { rule, .. } if rule.period() >= LONG_PERIOD)
}

fn grants_long_limit((ask, verdict): (&Ask, &Verdict)) -> bool {
    matches!(verdict, Verdict::Go { .. })
        && ask
            .terms
            .iter()
            .any(|term| term.rule.period() >= LONG_PERIOD)
}
