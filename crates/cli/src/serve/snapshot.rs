//! `postgres: {mode: snapshot}`: permits are counted in memory, and the counts are written to Postgres every ten
//! seconds and read at the start (H8).
//!
//! Promises: counts are read before the gateway listens, or, if Postgres cannot be reached then, as soon as it can;
//! until they are read nothing is written over them. They are written once more at a graceful end.
//!
//! Never: makes a call wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context;
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval};
use tollgate::ProviderRegistry;
use tollgate::event::Event;
use tollgate::providers::UsageState;
use tollgate_config::Config;
use tollgate_config::config::{PostgresMode, Store};
use tollgate_ledger::postgres::{DomainState, PostgresAddress, StateTable};

/// Writes counts until it is stopped.
pub(super) struct Snapshots {
    table: StateTable,
    registry: ProviderRegistry,
    is_read: Arc<AtomicBool>,
    task: JoinHandle<()>,
}

impl Snapshots {
    /// Reads the counts, and begins to write them; `None` if the configuration does not ask for it.
    pub(super) async fn start(
        config: &Config,
        registry: &ProviderRegistry,
    ) -> anyhow::Result<Option<Snapshots>> {
        let Store::Postgres(url) = &config.store else {
            return Ok(None);
        };
        if config.postgres.mode != PostgresMode::Snapshot {
            return Ok(None);
        }
        let address = PostgresAddress::parse(url.expose()).context("store")?;
        let table = StateTable::new(address);
        let is_read = Arc::new(AtomicBool::new(read(&table, registry).await));
        let every = Duration::from(config.postgres.every);
        let writing = write_each(table.clone(), registry.clone(), every, is_read.clone());
        let task = tokio::spawn(writing);
        Ok(Some(Snapshots {
            table,
            registry: registry.clone(),
            is_read,
            task,
        }))
    }

    /// The last write.
    pub(super) async fn finish(self) {
        self.task.abort();
        let _cancelled = self.task.await;
        if self.is_read.load(Ordering::Acquire) {
            write(&self.table, &self.registry).await;
        }
    }
}

/// Reads and writes at this interval; nothing is written before it was read.
async fn write_each(
    table: StateTable,
    registry: ProviderRegistry,
    every: Duration,
    is_read: Arc<AtomicBool>,
) {
    let mut ticks = interval(every.max(Duration::from_millis(100)));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks.tick().await;
    let mut is_lost = false;
    loop {
        ticks.tick().await;
        if !is_read.load(Ordering::Acquire) {
            is_read.store(read(&table, &registry).await, Ordering::Release);
            continue;
        }
        let is_written = write(&table, &registry).await;
        if !is_written && !is_lost {
            let why = "counts could not be written to rate_limiter_state; a crash now loses more than usual";
            registry.events().emit(Event::StoreLost { why: why.into() });
        }
        is_lost = !is_written;
    }
}

async fn read(table: &StateTable, registry: &ProviderRegistry) -> bool {
    match table.load().await {
        Ok(rows) => {
            let states = rows.into_iter().map(|row| UsageState {
                domain: row.domain,
                used: row.request_count,
                window_start: row.window_start,
            });
            let states: Vec<UsageState> = states.collect();
            registry.restore_usage(&states).await;
            true
        }
        Err(why) => {
            registry.events().emit(Event::StoreLost { why: why.into() });
            false
        }
    }
}

async fn write(table: &StateTable, registry: &ProviderRegistry) -> bool {
    let states = registry.usage_states().await;
    let rows = states.into_iter().map(|state| DomainState {
        domain: state.domain,
        request_count: state.used,
        window_start: state.window_start,
    });
    let rows: Vec<DomainState> = rows.collect();
    rows.is_empty() || table.save(&rows).await.is_ok()
}
