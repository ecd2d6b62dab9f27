//! Opens the ledger that the configuration names, for the daemon and for commands without one.
//!
//! Promises: a store that cannot be reached is lost, not an error: `on_store_loss` of each provider
//! applies until it is back.
//!
//! Never: prints an address with its password.

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use tollgate_config::Config;
use tollgate_config::config::{PostgresMode, Store};
use tollgate_ledger::postgres::PostgresAddress;
use tollgate_ledger::redis::RedisAddress;
use tollgate_ledger::{Clock, Ledger, NetworkedOptions};

/// How long the end of a process waits for a store of many hosts to have all settles.
const FLUSH_WITHIN: Duration = Duration::from_secs(2);

/// Opens the ledger, and prints why its store is lost, if it is.
pub(crate) async fn open_ledger(config: &Config) -> anyhow::Result<Ledger> {
    let (ledger, why) = try_open_ledger(config).await?;
    if let Some(why) = why {
        let mut out = crate::out::err();
        writeln!(out, "error: {why}")?;
        writeln!(
            out,
            "  until it is fixed, on_store_loss of each provider applies"
        )?;
    }
    Ok(ledger)
}

/// Like [`open_ledger`], but returns the reason if the store cannot be opened.
pub(crate) async fn try_open_ledger(config: &Config) -> anyhow::Result<(Ledger, Option<String>)> {
    let options = || networked_options(config);
    match &config.store {
        Store::Memory => Ok((Ledger::memory(Clock::System), None)),
        Store::Sqlite(folder) => {
            let (ledger, why) = Ledger::sqlite_or_lost(folder, Clock::System)
                .with_context(|| format!("could not open the ledger in {folder}"))?;
            Ok((ledger, why.map(|why| why.with_source())))
        }
        Store::Redis(url) => {
            let address = RedisAddress::parse(url.expose()).context("store")?;
            Ok(Ledger::redis_or_lost(&address, Clock::System, &options()).await)
        }
        // Permits are counted in memory, and the counts are written now and then (`serve/snapshot.rs`).
        Store::Postgres(_) if config.postgres.mode == PostgresMode::Snapshot => {
            Ok((Ledger::memory(Clock::System), None))
        }
        Store::Postgres(url) => {
            let address = PostgresAddress::parse(url.expose()).context("store")?;
            Ok(Ledger::postgres_or_lost(&address, Clock::System, &options()).await)
        }
    }
}

fn networked_options(config: &Config) -> NetworkedOptions {
    NetworkedOptions {
        state_dir: Some(PathBuf::from(&config.state_dir)),
        node_lease: config.node_lease,
        ..NetworkedOptions::default()
    }
}

/// Waits until a store of many hosts has everything that was settled. Other stores have it when
/// their last handle is dropped.
pub(crate) async fn flush(ledger: &Ledger) {
    // What is not stored by then is held until it expires by itself.
    drop(tokio::time::timeout(FLUSH_WITHIN, ledger.flush()).await);
}
