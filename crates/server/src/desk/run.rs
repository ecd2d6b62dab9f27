//! How far each source has come: what a scheduler must know after a restart, and its last result for people.
//!
//! Promises: a source that was removed has no row. All rows of one call are written together.
//!
//! Never: holds a body.

use std::collections::BTreeMap;

use rusqlite::{Row, TransactionBehavior, params};
use tollgate_core::schedule::RunState;
use tollgate_core::time::Wall;

use super::{Desk, DeskError};

/// The longest error that is stored, in characters: a sentence for people.
const ERROR_MAX: usize = 300;

/// How far a source has come.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourceRun {
    /// Its times.
    pub state: RunState,
    /// It waits for a worker, or is being fetched.
    pub is_queued: bool,
    /// What its last fetch has brought; `None` = it was not fetched yet.
    pub result: Option<RunResult>,
}

/// What a fetch has brought.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunResult {
    /// `ok`, `failed` or `undelivered`.
    pub outcome: String,
    /// The status of the response, if there was one.
    pub status: Option<u16>,
    /// The size of its body.
    pub bytes: u64,
    /// Where the result is: a path below the folder of results, or the kind of receiver.
    pub output: Option<String>,
    /// Why it failed, in words.
    pub error: Option<String>,
}

impl Desk {
    /// All rows, by the name of the source.
    pub fn source_runs(&self) -> Result<BTreeMap<String, SourceRun>, DeskError> {
        let database = self.database.lock();
        let columns = "SELECT name, next_at, not_before, last_at, failures, queued,
            outcome, status, bytes, output, error FROM source_runs";
        let mut query = database.prepare_cached(columns)?;
        let rows = query.query_map([], |row| Ok((row.get(0)?, read(row)?)))?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// Writes rows of sources that are still there.
    pub fn store_runs(&self, runs: &[(String, SourceRun)]) -> Result<(), DeskError> {
        let mut database = self.database.lock();
        let change = database.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let insert = "INSERT OR REPLACE INTO source_runs
            SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11
            WHERE EXISTS (SELECT 1 FROM sources WHERE name = ?1)";
        for (name, run) in runs {
            let SourceRun {
                state,
                is_queued,
                result,
            } = run;
            let result = result.as_ref();
            let error = result.and_then(|result| result.error.as_deref());
            let error: Option<String> = error.map(|error| error.chars().take(ERROR_MAX).collect());
            let bytes = result.map(|result| i64::try_from(result.bytes).unwrap_or(i64::MAX));
            change.prepare_cached(insert)?.execute(params![
                name,
                state.next.map(micros),
                state.not_before.map(micros),
                state.last.map(micros),
                state.failures,
                is_queued,
                result.map(|result| &result.outcome),
                result.and_then(|result| result.status),
                bytes,
                result.and_then(|result| result.output.as_ref()),
                error,
            ])?;
        }
        change.commit()?;
        Ok(())
    }
}

fn read(row: &Row<'_>) -> rusqlite::Result<SourceRun> {
    let outcome: Option<String> = row.get(6)?;
    let bytes: Option<i64> = row.get(8)?;
    let result = match outcome {
        None => None,
        Some(outcome) => Some(RunResult {
            outcome,
            status: row.get(7)?,
            bytes: bytes.and_then(|bytes| bytes.try_into().ok()).unwrap_or(0),
            output: row.get(9)?,
            error: row.get(10)?,
        }),
    };
    Ok(SourceRun {
        state: RunState {
            next: wall(row.get(1)?),
            not_before: wall(row.get(2)?),
            last: wall(row.get(3)?),
            failures: row.get(4)?,
        },
        is_queued: row.get(5)?,
        result,
    })
}

fn micros(wall: Wall) -> i64 {
    i64::try_from(wall.0).unwrap_or(i64::MAX)
}

fn wall(micros: Option<i64>) -> Option<Wall> {
    micros.map(|micros| Wall(micros.try_into().unwrap_or(0)))
}
