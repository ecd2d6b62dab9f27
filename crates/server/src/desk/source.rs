//! Sources (H5): URLs that are fetched regularly, by name.
//!
//! Promises: a name is there once.
//!
//! Never: fetches anything.

use rusqlite::{Row, TransactionBehavior, params};

use super::{Desk, DeskError};

/// The most sources: a scheduler looks at all of them each second.
const SOURCES_MAX: i64 = 10_000;

/// A URL that is fetched regularly.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Source {
    /// Its name.
    pub name: String,
    /// What is fetched.
    pub url: String,
    /// How often: `5m`.
    pub every: Option<String>,
    /// When: `0 6 * * *`.
    pub cron: Option<String>,
    /// How urgently.
    pub priority: Option<String>,
    /// Where the response goes.
    pub output: Option<String>,
}

impl Desk {
    /// Adds a source; `false` = there is one of this name.
    pub fn add_source(&self, source: &Source) -> Result<bool, DeskError> {
        let mut database = self.database.lock();
        let change = database.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let Source {
            name,
            url,
            every,
            cron,
            priority,
            output,
        } = source;
        let insert = "INSERT INTO sources VALUES (?1, ?2, ?3, ?4, ?5, ?6) ON CONFLICT DO NOTHING";
        let added = change.execute(insert, params![name, url, every, cron, priority, output])?;
        let count: i64 = change.query_row("SELECT count(*) FROM sources", [], |row| row.get(0))?;
        if count > SOURCES_MAX {
            let why = "there are 10,000 sources already; remove some";
            return Err(DeskError::Full(why));
        }
        change.commit()?;
        self.on_sources_changed();
        Ok(added > 0)
    }

    /// All sources, by name.
    pub fn sources(&self) -> Result<Vec<Source>, DeskError> {
        let database = self.database.lock();
        let columns = "SELECT name, url, every, cron, priority, output FROM sources ORDER BY name";
        let mut query = database.prepare_cached(columns)?;
        let rows = query.query_map([], read)?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// Removes a source; `false` = there is none.
    pub fn remove_source(&self, name: &str) -> Result<bool, DeskError> {
        let mut database = self.database.lock();
        let change = database.transaction_with_behavior(TransactionBehavior::Immediate)?;
        change.execute("DELETE FROM source_runs WHERE name = ?1", [name])?;
        let removed = change.execute("DELETE FROM sources WHERE name = ?1", [name])?;
        change.commit()?;
        self.on_sources_changed();
        Ok(removed > 0)
    }
}

fn read(row: &Row<'_>) -> rusqlite::Result<Source> {
    Ok(Source {
        name: row.get(0)?,
        url: row.get(1)?,
        every: row.get(2)?,
        cron: row.get(3)?,
        priority: row.get(4)?,
        output: row.get(5)?,
    })
}
