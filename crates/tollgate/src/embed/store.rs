//! The store of an embedded Tollgate: where permits are counted and responses are cached.
//!
//! Promises: a folder that cannot be opened is an error now, not a loss later.
//!
//! Never: shares anything between two processes that use `memory:`.

use tollgate_config::config::Store;
use tollgate_ledger::{Clock, Ledger};

use super::builder::SetupError;
use crate::cache::Cache;
use crate::event::Events;

/// Opens the ledger and the response cache of a store.
pub(super) fn open(
    store: &Store,
    clock: Clock,
    events: &Events,
) -> Result<(Ledger, Cache), SetupError> {
    match store {
        Store::Memory => Ok((Ledger::memory(clock), memory_cache())),
        Store::Sqlite(folder) => open_folder(folder, clock, events),
        Store::Postgres(_) | Store::Redis(_) => Err(SetupError::Store {
            store: store.redacted(),
            why: "it is not supported yet; use sqlite:DIR or memory:".to_owned(),
        }),
    }
}

#[cfg(feature = "sqlite")]
fn open_folder(folder: &str, clock: Clock, events: &Events) -> Result<(Ledger, Cache), SetupError> {
    let ledger = Ledger::sqlite(folder, clock).map_err(|error| SetupError::Store {
        store: format!("sqlite:{folder}"),
        why: error.with_source(),
    })?;
    Ok((ledger, folder_cache(folder, events)))
}

#[cfg(not(feature = "sqlite"))]
fn open_folder(folder: &str, _: Clock, _: &Events) -> Result<(Ledger, Cache), SetupError> {
    Err(SetupError::Store {
        store: format!("sqlite:{folder}"),
        why: "this program was built without the feature `sqlite` of tollgate".to_owned(),
    })
}

#[cfg(all(feature = "sqlite", feature = "cache"))]
fn folder_cache(folder: &str, events: &Events) -> Cache {
    Cache::open(std::path::Path::new(folder), events)
}

#[cfg(all(feature = "sqlite", not(feature = "cache")))]
fn folder_cache(_: &str, _: &Events) -> Cache {
    memory_cache()
}

fn memory_cache() -> Cache {
    Cache::memory()
}
