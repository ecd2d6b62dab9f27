//! The store in a folder: one host, any number of processes, no daemon.
//!
//! A batch is one transaction under a kernel lock, so that processes take turns. The folder holds
//! `ledger.db` (SQLite: a row per cell), `ledger.lock`, and a socket per living process for wake-ups.
//!
//! Promises: a permit is committed before it is handed out, so a process that is killed at any
//! instant never lets its successors exceed a limit; permits of limits of a minute or longer are on
//! disk before they are used, or covered by a reservation that is, so a loss of power exceeds none. State that cannot be believed counts
//! as used up, or is rejected with a message that says what to do. A folder that cannot be opened,
//! or that was replaced, is tried again each second.
//!
//! Never: works over a network file system, in a child after `fork`, or with clocks that processes
//! do not share (`Clock::Tokio`).

mod database;
mod checkpointer;
mod folder;
mod lock;
mod generation;
mod reserve;
mod open;
mod rows;
mod tables;
mod error;
pub use error::OpenError;
mod wake;
#[cfg(test)]
mod power_tests;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use tollgate_core::ask::{CellId, OwnerId, ScopeId};
use tollgate_core::batch::{Batch, BatchResult};
use tollgate_core::time::{Micros, Span};

use crate::Clock;
use crate::lock_order::{RankedMutex, rank};
use crate::store::{EventSink, Liveness, PeekQuery, PeekReply, Store, StoreError};
use error::FolderError;
use folder::{DurableLog, Folder, LOCK_WAIT, LOST_WAIT};
use generation::GenerationRecord;
use open::OPEN_WAIT;

/// How often a folder that cannot be opened is tried again.
const OPEN_EVERY: Span = Span::from_secs(1);

/// A state folder, open or to be opened.
#[derive(Debug)]
pub(crate) struct SqliteStore {
    path: PathBuf,
    clock: Clock,
    sink: EventSink,
    /// Used by the ledger thread; what the sync thread needs stands beside it.
    state: RankedMutex<{ rank::SQLITE }, State>,
    durable: RankedMutex<{ rank::DURABLE }, Option<Arc<DurableLog>>>,
    /// This process among those that share the folder; 0 until it is open.
    owner: AtomicU32,
    damaged_rows: AtomicU64,
    /// See [`Store::held_log_bytes`]; 0 = none.
    held_log_bytes: AtomicU64,
}

#[derive(Debug)]
struct State {
    /// `Err`: why it could not be opened yet.
    folder: Result<Folder, StoreError>,
    /// What the one before knew of the database.
    known: Option<GenerationRecord>,
    /// When opening was tried last.
    last_open_attempt: Micros,
    /// The last batch failed: nobody waits long to hear so again.
    is_lost: bool,
}

impl SqliteStore {
    pub(crate) fn open(
        path: &Path,
        clock: Clock,
        sink: EventSink,
    ) -> Result<SqliteStore, OpenError> {
        match SqliteStore::open_or_lost(path, clock, sink) {
            (store, None) => Ok(store),
            (_, Some(error)) => Err(error),
        }
    }

    /// Opens the folder; if that cannot be, the store is lost from the start, and comes back when
    /// the folder can be opened.
    pub(crate) fn open_or_lost(
        path: &Path,
        clock: Clock,
        sink: EventSink,
    ) -> (SqliteStore, Option<OpenError>) {
        let opened = open::open(path, clock.now(), OPEN_WAIT, None);
        let opened = opened.and_then(|opened| Folder::start(opened, path, &clock, &sink));
        let (folder, error) = match opened {
            Ok(folder) => (Ok(folder), None),
            Err(error) => (Err(StoreError::from(&error)), Some(error)),
        };
        let store = SqliteStore {
            path: path.to_owned(),
            clock,
            sink,
            state: RankedMutex::new(State {
                is_lost: folder.is_err(),
                folder: Err(StoreError {
                    message: "the state folder is not open".into(),
                    is_final: false,
                }),
                known: None,
                last_open_attempt: Clock::System.now().at,
            }),
            durable: RankedMutex::default(),
            owner: AtomicU32::new(0),
            damaged_rows: AtomicU64::new(0),
            held_log_bytes: AtomicU64::new(0),
        };
        store.use_folder(&mut store.state.lock(), folder);
        (store, error)
    }

    fn use_folder(&self, state: &mut State, folder: Result<Folder, StoreError>) {
        if let Ok(folder) = &folder {
            self.owner.store(folder.owner().0, Ordering::Release);
            *self.durable.lock() = Some(folder.durable());
        }
        state.folder = folder;
    }

    /// Tries again to open the folder, now and then.
    fn try_open(&self, state: &mut State) {
        let now = Clock::System.now().at;
        if state.folder.is_ok() || now.since(state.last_open_attempt) < OPEN_EVERY {
            return;
        }
        let opened = open::open(
            &self.path,
            self.clock.now(),
            LOST_WAIT,
            state.known.as_ref(),
        );
        let opened =
            opened.and_then(|opened| Folder::start(opened, &self.path, &self.clock, &self.sink));
        state.last_open_attempt = Clock::System.now().at;
        self.use_folder(state, opened.map_err(|error| StoreError::from(&error)));
    }

    /// What is there now is opened like any other folder, but it is not believed to be new.
    fn on_error(&self, state: &mut State, error: &FolderError) -> StoreError {
        state.is_lost = true;
        let error_for_people = StoreError::from(error);
        if let FolderError::Replaced = error {
            let replaced = std::mem::replace(&mut state.folder, Err(error_for_people.clone()));
            if let Ok(folder) = replaced {
                state.known = Some(folder.generation_record());
                state.last_open_attempt = Clock::System.now().at;
                folder.close();
            }
        }
        error_for_people
    }

    fn commit_in_folder(&self, batches: &[Batch<'_>]) -> Result<Vec<BatchResult>, StoreError> {
        let mut state = self.state.lock();
        let longest: Duration = if state.is_lost { LOST_WAIT } else { LOCK_WAIT };
        let folder = state.folder.as_mut().map_err(|error| error.clone())?;
        match folder.commit(batches, longest) {
            Ok((decisions, damaged_rows)) => {
                let held = folder.held_log_bytes();
                state.is_lost = false;
                drop(state);
                // Once for each reader that stays: the log grows with every commit.
                if self.held_log_bytes.swap(held, Ordering::Relaxed) == 0 && held > 0 {
                    self.sink.log_held(held);
                }
                if damaged_rows > 0 {
                    self.damaged_rows.fetch_add(damaged_rows, Ordering::Relaxed);
                    self.sink.rows_damaged(damaged_rows);
                }
                Ok(decisions)
            }
            Err(error) => Err(self.on_error(&mut state, &error)),
        }
    }
}

impl Store for SqliteStore {
    fn commit(&self, batch: &Batch<'_>) -> Result<BatchResult, StoreError> {
        let decisions = self.commit_in_folder(std::slice::from_ref(batch))?;
        Ok(decisions.into_iter().next().unwrap_or_default())
    }

    /// One transaction for all of them.
    fn commit_together(&self, batches: &[Batch<'_>]) -> Vec<Result<BatchResult, StoreError>> {
        match self.commit_in_folder(batches) {
            Ok(decisions) => decisions.into_iter().map(Ok).collect(),
            Err(error) => batches.iter().map(|_| Err(error.clone())).collect(),
        }
    }

    fn sync(&self) -> Result<(), StoreError> {
        let durable = self.durable.lock().clone();
        match durable {
            Some(durable) => durable.sync().map_err(|error| StoreError::from(&error)),
            None => Ok(()),
        }
    }

    fn peek(&self, query: &PeekQuery) -> Result<PeekReply, StoreError> {
        let state = self.state.lock();
        let folder = state.folder.as_ref().map_err(|error| error.clone())?;
        let reply = folder.peek(query);
        reply.map_err(|error| StoreError::from(&FolderError::Store(error)))
    }

    fn owner(&self) -> OwnerId {
        OwnerId(self.owner.load(Ordering::Acquire))
    }

    /// Not part of a commit: in the folder that is opened now, this process has another number.
    fn reopen(&self) {
        self.try_open(&mut self.state.lock());
    }

    fn wake(&self, owner: OwnerId, cell: CellId) -> Liveness {
        match &self.state.lock().folder {
            Ok(folder) => folder.wake(owner, cell),
            Err(_) => Liveness::Unknown,
        }
    }

    fn liveness(&self, owner: OwnerId) -> Liveness {
        match &self.state.lock().folder {
            Ok(folder) => folder.liveness(owner),
            Err(_) => Liveness::Unknown,
        }
    }

    fn notify_scopes(&self, scopes: &[ScopeId]) {
        if let Ok(folder) = &self.state.lock().folder {
            folder.notify_scopes(scopes);
        }
    }

    fn maintain(&self) {
        if let Ok(folder) = &mut self.state.lock().folder {
            folder.maintain();
        }
    }

    fn close(&self) {
        let closed = Err(StoreError {
            message: "the ledger is closed".into(),
            is_final: true,
        });
        let folder = std::mem::replace(&mut self.state.lock().folder, closed);
        *self.durable.lock() = None;
        if let Ok(folder) = folder {
            folder.close();
        }
    }

    fn not_open(&self) -> Option<StoreError> {
        self.state.lock().folder.as_ref().err().cloned()
    }

    fn damaged_rows(&self) -> u64 {
        self.damaged_rows.load(Ordering::Relaxed)
    }

    fn held_log_bytes(&self) -> Option<u64> {
        let bytes = self.held_log_bytes.load(Ordering::Relaxed);
        (bytes > 0).then_some(bytes)
    }
}
