//! The SQLite ledger: conformance with one process and between processes, and what survives.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use tollgate_core::time::{Micros, Now, Span, Wall};
use tollgate_ledger::{Clock, Ledger, ManualClock};

use crate::bench::Bench;
use crate::conformance::conformance;

/// A folder of its own, gone with the test.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new() -> Folder {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("tollgate-{}-{number}", std::process::id());
        Folder(std::env::temp_dir().join(name))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

/// A Sunday in 2026, and a boot that is some days old.
pub(crate) const START: Now = Now {
    at: Micros(500_000_000_000),
    wall: Wall(1_772_323_200_000_000),
};

/// One folder; every handle is as another process would have it.
pub(crate) struct Sqlite {
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) folder: Folder,
}

impl Sqlite {
    pub(crate) fn new() -> Sqlite {
        Sqlite {
            clock: ManualClock::new(START),
            folder: Folder::new(),
        }
    }
}

impl Bench for Sqlite {
    fn ledger(&self) -> Ledger {
        Ledger::sqlite(self.folder.path(), Clock::Manual(self.clock.clone())).unwrap()
    }

    fn pass(&self, span: Span) {
        self.clock.pass(span);
    }
}

conformance!(Sqlite::new());
