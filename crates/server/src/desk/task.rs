//! Tasks of named queues (C5, C6): counts that workers report, without payloads.
//!
//! Promises: an event that comes twice in a row counts once, and a late `submitted` does not put a
//! running task back. A task that is finished or has failed is gone.
//!
//! Never: runs a task.

use std::collections::BTreeMap;

use rusqlite::params;

use super::{Desk, DeskError};

/// The most tasks: at some hundred bytes each 10 MB.
const TASKS_MAX: i64 = 100_000;

/// What happened to a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskEvent {
    /// It waits in the queue.
    Submitted,
    /// A worker runs it.
    Started,
    /// It is put back, to run later.
    Scheduled,
    /// It is done.
    Finished,
    /// It failed and is not tried again.
    Failed,
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

impl QueueCounts {
    /// Tasks that are not running yet.
    #[must_use]
    pub fn pending(&self) -> u64 {
        self.scheduled + self.reserved
    }
}

impl TaskEvent {
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

    /// The state that it leads to; `None` = the task is gone.
    fn state(self) -> Option<&'static str> {
        match self {
            TaskEvent::Submitted => Some("reserved"),
            TaskEvent::Started => Some("active"),
            TaskEvent::Scheduled => Some("scheduled"),
            TaskEvent::Finished | TaskEvent::Failed => None,
        }
    }
}

impl Desk {
    /// Notes an event of a task.
    pub fn on_task(&self, queue: &str, id: &str, event: TaskEvent) -> Result<(), DeskError> {
        let mut database = self.database.lock();
        let change = database.transaction()?;
        match event.state() {
            None => {
                change.execute(
                    "DELETE FROM tasks WHERE queue = ?1 AND id = ?2",
                    params![queue, id],
                )?;
            }
            Some(state) => {
                change.execute(
                    "INSERT INTO tasks (queue, id, state) VALUES (?1, ?2, ?3)
                     ON CONFLICT DO UPDATE SET state = excluded.state
                     WHERE excluded.state <> 'reserved'",
                    params![queue, id, state],
                )?;
                let tasks: i64 =
                    change.query_row("SELECT count(*) FROM tasks", [], |row| row.get(0))?;
                if tasks > TASKS_MAX {
                    return Err(DeskError::Full(
                        "100,000 tasks are open; report those that are finished or have failed",
                    ));
                }
            }
        }
        change.commit()?;
        Ok(())
    }

    /// The counts of every queue with tasks.
    pub fn queues(&self) -> Result<BTreeMap<String, QueueCounts>, DeskError> {
        let database = self.database.lock();
        let mut query =
            database.prepare_cached("SELECT queue, state, count(*) FROM tasks GROUP BY 1, 2")?;
        let mut queues: BTreeMap<String, QueueCounts> = BTreeMap::new();
        let mut rows = query.query([])?;
        while let Some(row) = rows.next()? {
            let (queue, state, count): (String, String, i64) =
                (row.get(0)?, row.get(1)?, row.get(2)?);
            let count = u64::try_from(count).unwrap_or(0);
            let counts = queues.entry(queue).or_default();
            match state.as_str() {
                "active" => counts.active = count,
                "scheduled" => counts.scheduled = count,
                _ => counts.reserved = count,
            }
        }
        Ok(queues)
    }
}
