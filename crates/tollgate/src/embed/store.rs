//! The store of an embedded Tollgate: where permits are counted and responses are cached.
//!
//! Promises: a store that cannot be opened is an error now, not a loss later. Without the feature of a
//! store the error names it.
//!
//! Never: shares anything between two processes that use `memory:`, or shows a password.

#[cfg(not(all(feature = "sqlite", feature = "redis", feature = "postgres")))]
use std::future::Ready;
use std::path::PathBuf;

use tollgate_config::config::Store;
use tollgate_ledger::{Clock, Ledger};

use super::builder::SetupError;
use crate::cache::Cache;
use crate::event::Events;

/// Opens the ledger and the response cache of a store.
pub(super) async fn open(
    store: &Store,
    state_dir: Option<PathBuf>,
    clock: Clock,
    events: &Events,
) -> Result<(Ledger, Cache), SetupError> {
    let named = store.redacted();
    let opened = match store {
        Store::Memory => Ok((Ledger::memory(clock), Cache::memory())),
        Store::Sqlite(folder) => open_folder(folder.clone(), clock, events.clone()).await,
        Store::Redis(url) => open_redis(url.expose(), state_dir, clock).await,
        Store::Postgres(url) => open_postgres(url.expose(), state_dir, clock).await,
    };
    opened.map_err(|why| SetupError::Store { store: named, why })
}

/// Opening a folder waits for its lock and its disk.
#[cfg(feature = "sqlite")]
async fn open_folder(
    folder: String,
    clock: Clock,
    events: Events,
) -> Result<(Ledger, Cache), String> {
    let open = move || -> Result<(Ledger, Cache), String> {
        let ledger = Ledger::sqlite(&folder, clock).map_err(|error| error.with_source())?;
        Ok((ledger, folder_cache(&folder, &events)))
    };
    let opened = tokio::task::spawn_blocking(open).await;
    opened.unwrap_or_else(|_| Err("the runtime shut down while it was opened".to_owned()))
}

#[cfg(not(feature = "sqlite"))]
fn open_folder(_: String, _: Clock, _: Events) -> Ready<Result<(Ledger, Cache), String>> {
    without("sqlite")
}

#[cfg(all(feature = "sqlite", feature = "cache"))]
fn folder_cache(folder: &str, events: &Events) -> Cache {
    Cache::open(std::path::Path::new(folder), events)
}

#[cfg(all(feature = "sqlite", not(feature = "cache")))]
fn folder_cache(_: &str, _: &Events) -> Cache {
    Cache::memory()
}

#[cfg(feature = "redis")]
async fn open_redis(
    url: &str,
    state_dir: Option<PathBuf>,
    clock: Clock,
) -> Result<(Ledger, Cache), String> {
    use tollgate_ledger::redis::RedisAddress;

    let address = RedisAddress::parse(url).map_err(|error| error.to_string())?;
    opened(Ledger::redis_or_lost(&address, clock, &of_many_hosts(state_dir)).await)
}

#[cfg(not(feature = "redis"))]
fn open_redis(_: &str, _: Option<PathBuf>, _: Clock) -> Ready<Result<(Ledger, Cache), String>> {
    without("redis")
}

#[cfg(feature = "postgres")]
async fn open_postgres(
    url: &str,
    state_dir: Option<PathBuf>,
    clock: Clock,
) -> Result<(Ledger, Cache), String> {
    use tollgate_ledger::postgres::PostgresAddress;

    let address = PostgresAddress::parse(url).map_err(|error| error.to_string())?;
    opened(Ledger::postgres_or_lost(&address, clock, &of_many_hosts(state_dir)).await)
}

#[cfg(not(feature = "postgres"))]
fn open_postgres(_: &str, _: Option<PathBuf>, _: Clock) -> Ready<Result<(Ledger, Cache), String>> {
    without("postgres")
}

/// Responses are cached in the memory of this process.
#[cfg(any(feature = "redis", feature = "postgres"))]
fn opened((ledger, why): (Ledger, Option<String>)) -> Result<(Ledger, Cache), String> {
    match why {
        None => Ok((ledger, Cache::memory())),
        Some(why) => Err(why),
    }
}

/// As the daemon: a folder of this host remembers what the store has held, so that a store that was
/// wiped does not pass for a new one.
#[cfg(any(feature = "redis", feature = "postgres"))]
fn of_many_hosts(state_dir: Option<PathBuf>) -> tollgate_ledger::NetworkedOptions {
    let usual = || tollgate_config::config::state_dir(&tollgate_config::disk::environment()).into();
    tollgate_ledger::NetworkedOptions {
        state_dir: Some(state_dir.unwrap_or_else(usual)),
        ..tollgate_ledger::NetworkedOptions::default()
    }
}

#[cfg(not(all(feature = "sqlite", feature = "redis", feature = "postgres")))]
fn without(feature: &str) -> Ready<Result<(Ledger, Cache), String>> {
    let why = format!("this program was built without the feature `{feature}` of tollgate");
    std::future::ready(Err(why))
}
