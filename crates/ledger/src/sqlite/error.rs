//! Why a state folder cannot be opened, or can no longer be used.
//!
//! Promises: each message names the folder or file and what to do next.
//!
//! Never: shows what is stored.

use std::io;
use std::path::{Path, PathBuf};

use rusqlite::ErrorCode;

use crate::store::StoreError;

/// Why a state folder cannot be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The folder or a file in it cannot be made, read or written.
    #[error("the state folder `{folder}` cannot be used; check that it can be created and written")]
    Folder {
        /// Which folder.
        folder: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The folder or the database may not be written.
    #[error(
        "`{0}` is read-only; permits are counted by writing: make it writable, or name another state folder"
    )]
    ReadOnly(PathBuf),
    /// The folder is not on this host's own disk.
    #[error(
        "the state folder `{folder}` is on {kind}, where locks between processes do not hold; use a local disk, or a Redis or Postgres store"
    )]
    Network {
        /// Which folder.
        folder: PathBuf,
        /// What kind of file system.
        kind: &'static str,
    },
    /// Another process keeps the lock.
    #[error(
        "another process keeps `{0}` locked; end it if it hangs (`fuser` on the lock file names it)"
    )]
    Busy(PathBuf),
    /// The database is damaged.
    #[error(
        "`{path}` is damaged ({what}); restore or move the state folder away, and mind that its limits then count from nothing"
    )]
    Corrupt {
        /// Which file.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// The database has gone, but the folder remembers it.
    #[error(
        "`{0}` is gone or empty although there was one; restore it, or remove its folder to count from nothing"
    )]
    Wiped(PathBuf),
    /// The file is some other program's.
    #[error("`{0}` is a database of another program; name another state folder")]
    Foreign(PathBuf),
    /// Written by a newer Tollgate.
    #[error("`{path}` has format {found}, this program knows {known}; upgrade Tollgate")]
    Newer {
        /// Which file.
        path: PathBuf,
        /// Its format.
        found: i64,
        /// Ours.
        known: i64,
    },
    /// The file system offers no shared memory for the write-ahead log.
    #[error("`{0}` cannot have a write-ahead log; put the state folder on a local disk")]
    NoLog(PathBuf),
    /// Processes with another view of the clock use the folder now.
    #[error(
        "`{0}` is in use by processes of another time namespace, whose clock reads differently; give this one a folder of its own"
    )]
    OtherClock(PathBuf),
    /// The disk is full.
    #[error("there is no space left for `{0}`; free some")]
    Full(PathBuf),
    /// SQLite cannot work with the file.
    #[error("`{path}` cannot be opened")]
    Store {
        /// Which file.
        path: PathBuf,
        /// Why.
        #[source]
        source: rusqlite::Error,
    },
}

impl OpenError {
    /// With what it comes from, in one sentence.
    #[must_use]
    pub fn with_source(&self) -> String {
        match std::error::Error::source(self) {
            Some(source) => format!("{self}: {source}"),
            None => self.to_string(),
        }
    }

    pub(crate) fn from_io(folder: &Path, source: io::Error) -> OpenError {
        let folder = folder.to_owned();
        match source.kind() {
            io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::PermissionDenied => {
                OpenError::ReadOnly(folder)
            }
            io::ErrorKind::StorageFull => OpenError::Full(folder),
            _ => OpenError::Folder { folder, source },
        }
    }

    pub(super) fn from_store(path: &Path, source: rusqlite::Error) -> OpenError {
        let path = path.to_owned();
        match source.sqlite_error_code() {
            // Every statement of ours is right, so one that makes no sense to SQLite has met a file
            // that makes none.
            Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt | ErrorCode::Unknown) => {
                OpenError::Corrupt {
                    path,
                    what: source.to_string(),
                }
            }
            Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied) => OpenError::ReadOnly(path),
            Some(ErrorCode::DiskFull) => OpenError::Full(path),
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => OpenError::Busy(path),
            _ => OpenError::Store { path, source },
        }
    }
}

/// Why a folder cannot be used now.
#[derive(Debug, thiserror::Error)]
pub(super) enum FolderError {
    #[error(
        "another process has held the lock for more than a second; continue or end it if it is stopped"
    )]
    Busy,
    #[error("the lock does not work: {0}")]
    Lock(io::Error),
    #[error("the database does not work: {0}")]
    Store(#[from] rusqlite::Error),
    /// What a sync failed for may be lost or not; trying again and believing it would be a guess.
    #[error(
        "the disk failed to store what was written ({0}); repair the disk, then restart Tollgate"
    )]
    Sync(io::Error),
    #[error(
        "the state folder was removed or replaced; what was used is unknown for one period, a minute for calls at a time"
    )]
    Replaced,
}

impl FolderError {
    /// Nothing but a restart helps.
    pub(super) fn is_final(&self) -> bool {
        match self {
            FolderError::Busy | FolderError::Lock(_) | FolderError::Replaced => false,
            FolderError::Sync(_) => true,
            FolderError::Store(error) => matches!(
                error.sqlite_error_code(),
                Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt)
            ),
        }
    }
}

impl From<&FolderError> for StoreError {
    fn from(error: &FolderError) -> StoreError {
        StoreError {
            message: error.to_string().into(),
            is_final: error.is_final(),
        }
    }
}

impl From<&OpenError> for StoreError {
    fn from(error: &OpenError) -> StoreError {
        StoreError {
            message: error.with_source().into(),
            is_final: false,
        }
    }
}
