//! Configurations and daemons without files and sockets, for tests and fuzz targets.
//!
//! Promises: the configuration is the given text, and nothing of this machine.
//!
//! Never: is part of a program.

use std::cell::RefCell;
use std::sync::Arc;

use tollgate::ProviderRegistry;
use tollgate::providers::{Options, Unknown};
use tollgate_config::{Config, Environment, FileContent, Loaded, PathKind, Sources};
use tollgate_core::time::{Micros, Now, Wall};
use tollgate_ledger::{Ledger, ManualClock};

use crate::daemon::Daemon;

thread_local! {
    /// Loading takes milliseconds, and fuzz targets load the same text for every input.
    static LAST: RefCell<Option<(String, Loaded)>> = const { RefCell::new(None) };
}

/// A `tollgate.yaml` with this text.
pub(crate) fn load(text: &str) -> (Sources, Loaded) {
    let sources = Sources {
        only_named: true,
        config: Some("tollgate.yaml".to_owned()),
        ..Sources::default()
    };
    let known = LAST.with_borrow(|last| match last {
        Some((known, loaded)) if known == text => Some(loaded.clone()),
        _ => None,
    });
    if let Some(loaded) = known {
        return (sources, loaded);
    }
    let read = |_: &str| {
        Ok(FileContent {
            text: text.to_owned(),
            readable_by_others: false,
        })
    };
    let world = Environment {
        read_file: &read,
        path_kind: &|_| Ok(PathKind::File),
        ..Environment::empty()
    };
    let loaded = Config::load(&sources, &world).expect("a valid file");
    LAST.set(Some((text.to_owned(), loaded.clone())));
    (sources, loaded)
}

/// A daemon with this `tollgate.yaml` and without providers. A permit has an id that nobody can guess, so
/// no two runs with one would be the same.
pub(crate) fn daemon(ledger: Ledger, text: &str) -> Daemon {
    let (sources, loaded) = load(text);
    let options = Options {
        unknown: Unknown::Refuse,
        ..Options::default()
    };
    let registry = ProviderRegistry::build(Vec::new(), ledger, options);
    let registry = registry.expect("a registry without providers needs nothing");
    Daemon::new(registry, sources, loaded, Environment::empty)
}

/// A clock that stands still until it is moved.
pub(crate) fn clock() -> Arc<ManualClock> {
    ManualClock::new(Now {
        at: Micros(1_000_000_000),
        wall: Wall(1_772_323_200_000_000),
    })
}
