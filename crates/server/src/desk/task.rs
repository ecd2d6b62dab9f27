//! Tasks of named queues (C5, C6): counts that workers report, without payloads.
//!
//! Promises: an event that comes twice in a row counts once; a late one brings no task back that has
//! ended. A task that fails is put back, as often as its guard allows, and the reply says when to run
//! it again; one that was only put back has used no retry. A queue stays listed when it is empty. A
//! task that nobody mentions for a week is gone.
//!
//! Never: runs a task.

use std::collections::BTreeMap;

use rusqlite::{OptionalExtension, Transaction, TransactionBehavior, params};
use tollgate_config::config::Task as TaskRules;
use tollgate_core::backoff::{Backoff, Jitter};
use tollgate_core::time::{Span, Wall};

use super::{Desk, DeskError};

/// The most tasks: at some hundred bytes each 10 MB.
const TASKS_MAX: i64 = 100_000;

/// The most queues: each is an entry of every status.
const QUEUES_MAX: i64 = 1_000;

/// How long an ended task is remembered: late events come within seconds.
const ENDED_FOR: Span = Span::from_secs(60);

/// The most ended tasks that are remembered: 160 a second.
const ENDED_MAX: i64 = 10_000;

/// A task without an event for so long was lost with its worker.
const FORGOTTEN_AFTER: Span = Span::from_secs(7 * 86_400);

/// Lost tasks that one event removes, so that none takes long.
const SWEEP_MAX: i64 = 100;

/// The first wait after a failure (C5).
const RETRY_BASE: Span = Span::from_secs(1);

/// The longest wait after a failure.
const RETRY_MAX: Span = Span::from_secs(86_400);

/// What happened to a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskEvent {
    /// It waits in the queue.
    Submitted,
    /// A worker runs it.
    Started,
    /// It is put back, to run later: no retry.
    Scheduled,
    /// It is done.
    Finished,
    /// It failed.
    Failed,
}

/// The state of a task that has not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TaskState {
    Reserved,
    Active,
    Scheduled,
}

/// The tasks of one queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueCounts {
    /// Running.
    pub active: u64,
    /// Put back, to run later.
    pub scheduled: u64,
    /// Submitted, and not running.
    pub reserved: u64,
}

/// What an event has led to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TaskNoted {
    /// The tasks of its queue now.
    pub counts: QueueCounts,
    /// How often the task has failed so far.
    pub failures: u32,
    /// When to run it again; `None` = it runs, waits for its turn, or has ended.
    pub retry_in: Option<Span>,
}

/// A task as it is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct OpenTask {
    state: TaskState,
    failures: u32,
}

impl QueueCounts {
    /// Tasks that are not running yet.
    #[must_use]
    pub fn pending(&self) -> u64 {
        self.scheduled + self.reserved
    }
}

impl TaskEvent {
    /// The names of all events.
    pub const NAMES: [&'static str; 5] =
        ["submitted", "started", "scheduled", "finished", "failed"];

    /// By its name.
    #[must_use]
    pub fn parse(word: &str) -> Option<TaskEvent> {
        Some(match word {
            "submitted" => TaskEvent::Submitted,
            "started" => TaskEvent::Started,
            "scheduled" => TaskEvent::Scheduled,
            "finished" => TaskEvent::Finished,
            "failed" => TaskEvent::Failed,
            _ => return None,
        })
    }
}

impl TaskState {
    fn word(self) -> &'static str {
        match self {
            TaskState::Reserved => "reserved",
            TaskState::Active => "active",
            TaskState::Scheduled => "scheduled",
        }
    }

    fn parse(word: &str) -> TaskState {
        match word {
            "active" => TaskState::Active,
            "scheduled" => TaskState::Scheduled,
            _ => TaskState::Reserved,
        }
    }
}

/// What an event makes of a task that has not ended; `None` = it ends. Of a failure that is reported
/// twice the second one finds the task put back, and changes nothing. After the time to run it again
/// it has run and failed again: a worker that reports failures only uses its retries up too.
fn next(
    before: Option<OpenTask>,
    event: TaskEvent,
    retries: u32,
    is_due: bool,
) -> Option<OpenTask> {
    let failures = before.map_or(0, |task| task.failures);
    let to = |state| Some(OpenTask { state, failures });
    match (event, before.map(|task| task.state)) {
        (TaskEvent::Failed, Some(TaskState::Scheduled)) if !is_due => to(TaskState::Scheduled),
        (TaskEvent::Submitted, None) => to(TaskState::Reserved),
        (TaskEvent::Submitted, Some(state)) => to(state),
        (TaskEvent::Started, _) => to(TaskState::Active),
        (TaskEvent::Scheduled, _) => to(TaskState::Scheduled),
        (TaskEvent::Finished, _) => None,
        (TaskEvent::Failed, _) => (failures < retries).then(|| OpenTask {
            state: TaskState::Scheduled,
            failures: failures + 1,
        }),
    }
}

/// When to run a task again.
fn retry_in(event: TaskEvent, after: Option<OpenTask>, rules: Option<&TaskRules>) -> Option<Span> {
    let (task, rules) = (after?, rules?);
    match event {
        TaskEvent::Scheduled => Some(rules.retry_delay),
        TaskEvent::Failed => Some(backoff(task.failures, rules)),
        TaskEvent::Submitted | TaskEvent::Started | TaskEvent::Finished => None,
    }
}

/// How long after its last failure a task runs again.
fn backoff(failures: u32, rules: &TaskRules) -> Span {
    let backoff = Backoff {
        base: RETRY_BASE,
        factor: rules.factor,
        max: RETRY_MAX,
        jitter: Jitter::None,
    };
    backoff.ceiling(failures.saturating_sub(1))
}

/// The time to run a task again has come.
fn is_due((task, at): (OpenTask, i64), rules: Option<&TaskRules>, now: Wall) -> bool {
    let wait = rules.map_or(Span::ZERO, |rules| match task.failures {
        0 => rules.retry_delay,
        failures => backoff(failures, rules),
    });
    // Both times are cut to whole seconds.
    seconds(now) - at > i64::try_from(wait.0 / 1_000_000).unwrap_or(i64::MAX)
}

impl Desk {
    /// Notes an event of a task. `rules` are those of the guard of tasks; without one nothing is
    /// tried again.
    pub fn on_task(
        &self,
        (queue, id): (&str, &str),
        event: TaskEvent,
        rules: Option<&TaskRules>,
        now: Wall,
    ) -> Result<TaskNoted, DeskError> {
        let mut database = self.database.lock();
        let change = database.transaction_with_behavior(TransactionBehavior::Immediate)?;
        drop_lost(&change, now)?;
        add_queue(&change, queue)?;
        let found = open_task(&change, queue, id)?;
        let before = found.map(|(task, _)| task);
        let mut after = before;
        if before.is_some() || !has_ended(&change, queue, id)? {
            let is_due = found.is_some_and(|found| is_due(found, rules, now));
            after = next(
                before,
                event,
                rules.map_or(0, |rules| rules.retries),
                is_due,
            );
            // A failure that is reported twice does not put the task back again.
            if event != TaskEvent::Failed || after != before {
                store(&change, (queue, id), before, after, now)?;
            }
        }
        let noted = TaskNoted {
            counts: counts_of(&change, queue)?,
            failures: match after {
                Some(task) => task.failures,
                None => {
                    let failed = u32::from(event == TaskEvent::Failed);
                    before.map_or(0, |task| task.failures) + failed
                }
            },
            retry_in: retry_in(event, after, rules),
        };
        change.commit()?;
        Ok(noted)
    }

    /// The counts of every queue, by name.
    pub fn queues(&self) -> Result<BTreeMap<String, QueueCounts>, DeskError> {
        let database = self.database.lock();
        let columns = "SELECT active, scheduled, reserved, name FROM queues";
        let mut query = database.prepare_cached(columns)?;
        let rows = query.query_map([], |row| Ok((row.get(3)?, read_counts(row)?)))?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// The counts of one queue.
    pub fn queue(&self, name: &str) -> Result<QueueCounts, DeskError> {
        counts_of(&self.database.lock(), name)
    }

    /// Removes a queue and its tasks; `false` = there is none.
    pub fn remove_queue(&self, name: &str) -> Result<bool, DeskError> {
        let mut database = self.database.lock();
        let change = database.transaction_with_behavior(TransactionBehavior::Immediate)?;
        change.execute("DELETE FROM tasks WHERE queue = ?1", [name])?;
        let removed = change.execute("DELETE FROM queues WHERE name = ?1", [name])?;
        change.commit()?;
        Ok(removed > 0)
    }
}

/// Writes what has become of a task, and counts it.
fn store(
    change: &Transaction<'_>,
    (queue, id): (&str, &str),
    before: Option<OpenTask>,
    after: Option<OpenTask>,
    now: Wall,
) -> Result<(), DeskError> {
    if let Some(before) = before {
        count(change, queue, before.state, -1)?;
    }
    let at = seconds(now);
    let Some(task) = after else {
        let delete = "DELETE FROM tasks WHERE queue = ?1 AND id = ?2";
        change.execute(delete, params![queue, id])?;
        let remember = "INSERT OR REPLACE INTO ended (queue, id, at) VALUES (?1, ?2, ?3)";
        change.execute(remember, params![queue, id, at])?;
        let oldest = "DELETE FROM ended WHERE (queue, id) IN
            (SELECT queue, id FROM ended ORDER BY at DESC LIMIT -1 OFFSET ?1)";
        change.execute(oldest, [ENDED_MAX])?;
        return Ok(());
    };
    count(change, queue, task.state, 1)?;
    let write =
        "INSERT OR REPLACE INTO tasks (queue, id, state, failures, at) VALUES (?1, ?2, ?3, ?4, ?5)";
    let OpenTask { state, failures } = task;
    change.execute(write, params![queue, id, state.word(), failures, at])?;
    let all = "SELECT sum(active + scheduled + reserved) FROM queues";
    let tasks: i64 = change.query_row(all, [], |row| row.get(0))?;
    if tasks > TASKS_MAX {
        return Err(DeskError::Full(
            "100,000 tasks are open; report those that are finished or have failed",
        ));
    }
    Ok(())
}

/// A task, and the time of its last event in seconds.
fn open_task(
    change: &Transaction<'_>,
    queue: &str,
    id: &str,
) -> Result<Option<(OpenTask, i64)>, DeskError> {
    let select = "SELECT state, failures, at FROM tasks WHERE queue = ?1 AND id = ?2";
    let read = |row: &rusqlite::Row<'_>| {
        let state: String = row.get(0)?;
        let task = OpenTask {
            state: TaskState::parse(&state),
            failures: row.get(1)?,
        };
        Ok((task, row.get(2)?))
    };
    Ok(change
        .query_row(select, params![queue, id], read)
        .optional()?)
}

fn has_ended(change: &Transaction<'_>, queue: &str, id: &str) -> Result<bool, DeskError> {
    let select = "SELECT 1 FROM ended WHERE queue = ?1 AND id = ?2";
    let found: Option<i64> = change
        .query_row(select, params![queue, id], |row| row.get(0))
        .optional()?;
    Ok(found.is_some())
}

/// Removes tasks that nobody mentions any more, and ended ones that no late event can mean.
fn drop_lost(change: &Transaction<'_>, now: Wall) -> Result<(), DeskError> {
    let before = |age: Span| seconds(now) - i64::try_from(age.0 / 1_000_000).unwrap_or(i64::MAX);
    change.execute("DELETE FROM ended WHERE at < ?1", [before(ENDED_FOR)])?;
    let mut lost =
        change.prepare_cached("SELECT queue, id, state FROM tasks WHERE at < ?1 LIMIT ?2")?;
    let rows = lost.query_map([before(FORGOTTEN_AFTER), SWEEP_MAX], |row| {
        Ok((row.get(0)?, row.get(1)?, row.get(2)?))
    })?;
    let rows: Vec<(String, String, String)> = rows.collect::<Result<_, _>>()?;
    for (queue, id, state) in rows {
        let delete = "DELETE FROM tasks WHERE queue = ?1 AND id = ?2";
        change.execute(delete, params![queue, id])?;
        count(change, &queue, TaskState::parse(&state), -1)?;
    }
    Ok(())
}

/// Lists a queue. Of too many, an empty one is given up.
fn add_queue(change: &Transaction<'_>, name: &str) -> Result<(), DeskError> {
    let insert = "INSERT INTO queues (name) VALUES (?1) ON CONFLICT DO NOTHING";
    if change.execute(insert, [name])? == 0 {
        return Ok(());
    }
    let queues: i64 = change.query_row("SELECT count(*) FROM queues", [], |row| row.get(0))?;
    let give_up = "DELETE FROM queues WHERE name =
        (SELECT name FROM queues WHERE active + scheduled + reserved = 0 AND name <> ?1 LIMIT 1)";
    if queues > QUEUES_MAX && change.execute(give_up, [name])? == 0 {
        return Err(DeskError::Full("1,000 queues have tasks; remove some"));
    }
    Ok(())
}

fn count(
    change: &Transaction<'_>,
    queue: &str,
    state: TaskState,
    by: i64,
) -> Result<(), DeskError> {
    let column = state.word();
    let update = format!("UPDATE queues SET {column} = max({column} + ?2, 0) WHERE name = ?1");
    change
        .prepare_cached(&update)?
        .execute(params![queue, by])?;
    Ok(())
}

fn counts_of(database: &rusqlite::Connection, queue: &str) -> Result<QueueCounts, DeskError> {
    let select = "SELECT active, scheduled, reserved FROM queues WHERE name = ?1";
    let mut query = database.prepare_cached(select)?;
    let counts = query.query_row([queue], read_counts).optional()?;
    Ok(counts.unwrap_or_default())
}

fn read_counts(row: &rusqlite::Row<'_>) -> rusqlite::Result<QueueCounts> {
    let count = |at: usize| -> rusqlite::Result<u64> {
        let count: i64 = row.get(at)?;
        Ok(u64::try_from(count).unwrap_or(0))
    };
    Ok(QueueCounts {
        active: count(0)?,
        scheduled: count(1)?,
        reserved: count(2)?,
    })
}

fn seconds(wall: Wall) -> i64 {
    i64::try_from(wall.0 / 1_000_000).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_core::ratio::Ppm;

    const RETRIES: u32 = 2;

    /// A worker that reports nothing but failures was told to retry for ever.
    #[test]
    fn failures_alone_use_the_retries_up() {
        let failed = |before, is_due| next(before, TaskEvent::Failed, RETRIES, is_due);
        let first = failed(None, false);
        assert_eq!(first.map(|task| task.failures), Some(1));
        assert_eq!(failed(first, false), first, "the same failure again");
        let second = failed(first, true);
        assert_eq!(second.map(|task| task.failures), Some(2));
        assert_eq!(failed(second, true), None, "no more retries");
    }

    #[test]
    fn a_task_is_due_after_its_backoff() {
        let rules = TaskRules {
            max_pending: None,
            retry_delay: Span::from_secs(60),
            wait: Span::ZERO,
            retries: RETRIES,
            factor: Ppm(2_000_000),
        };
        let due = |failures, after: u64| {
            let task = OpenTask {
                state: TaskState::Scheduled,
                failures,
            };
            is_due((task, 100), Some(&rules), Wall((100 + after) * 1_000_000))
        };
        assert!(!due(0, 60) && due(0, 61), "put back: after its countdown");
        assert!(!due(1, 1) && due(1, 2) && !due(2, 2) && due(2, 3));
    }
}
