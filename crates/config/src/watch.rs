//! Watches for reasons to reload: SIGHUP or a changed file.
//!
//! Promises: one event for a burst of changes, after the files have been quiet for a moment.
//! Folders are watched, not files, so that replaced files and switched symbolic links are noticed.
//! Reading a file is not a change.
//!
//! Never: reads or loads anything; it only reports the reason.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use notify::event::{AccessKind, AccessMode};
use notify::{Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use tokio::sync::mpsc;
use tokio::time::timeout;

/// How long files must be quiet: editors and package managers write in several steps, and people do
/// not notice a fifth of a second.
pub const DEBOUNCE: Duration = Duration::from_millis(200);

/// Files that change all the time trigger a reload after this many rounds of [`DEBOUNCE`]: 5 s.
const ROUNDS_MAX: u32 = 25;

/// Extensions of files without settings. Any other change triggers a reload: a file may have any
/// name, and an unnecessary reload costs little.
const NOT_SETTINGS: [&str; 9] = [
    "log",
    "out",
    "pid",
    "sock",
    "lock",
    "db",
    "db-wal",
    "db-shm",
    "db-journal",
];

/// Why to reload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReloadReason {
    /// A file or folder changed.
    Files,
    /// SIGHUP.
    Signal,
}

/// Reports when to reload.
pub struct Watch {
    changes: mpsc::Receiver<()>,
    hangups: tokio::signal::unix::Signal,
    debounce: Duration,
    // Watches as long as it lives.
    _watcher: RecommendedWatcher,
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Watch")
    }
}

/// Why watching could not start.
#[derive(Debug, thiserror::Error)]
#[error("cannot watch the configuration")]
pub struct WatchError(#[source] Box<dyn std::error::Error + Send + Sync>);

impl Watch {
    /// Watches these files and folders, and SIGHUP. A file that does not exist yet is watched by
    /// its folder. `log` is the process's own log file: a reload writes a log line, which must not
    /// trigger another reload. Must be called inside a tokio runtime.
    pub fn start(
        paths: &[String],
        log: Option<&str>,
        quiet: Duration,
    ) -> Result<Watch, WatchError> {
        let log = log.and_then(|path| Path::new(path).file_name()?.to_str().map(str::to_owned));
        // One slot: a second change before the reload adds nothing.
        let (sender, changes) = mpsc::channel(1);
        let on_event = move |event: notify::Result<Event>| {
            if event.is_ok_and(|event| {
                !is_changed(event.kind) || is_unrelated(&event.paths, log.as_deref())
            }) {
                return;
            }
            // Full means that a reload is already due. An error of the watcher also triggers a
            // reload.
            let _due = sender.try_send(());
        };
        let mut watcher =
            notify::recommended_watcher(on_event).map_err(|error| WatchError(error.into()))?;
        for folder in folders(paths) {
            // A missing folder cannot be watched; SIGHUP still works.
            watcher.watch(&folder, RecursiveMode::NonRecursive).ok();
        }
        Ok(Watch {
            changes,
            hangups: tokio::signal::unix::signal(tokio::signal::unix::SignalKind::hangup())
                .map_err(|error| WatchError(error.into()))?,
            debounce: quiet,
            _watcher: watcher,
        })
    }

    /// The next reason to reload. Cancelling loses only a reason that another event repeats.
    pub async fn next(&mut self) -> ReloadReason {
        let due = tokio::select! {
            _ = self.hangups.recv() => return ReloadReason::Signal,
            _ = self.changes.recv() => ReloadReason::Files,
        };
        for _ in 0..ROUNDS_MAX {
            if timeout(self.debounce, self.changes.recv()).await.is_err() {
                break;
            }
        }
        due
    }
}

/// Reading is not a change; closing a file after writing is.
fn is_changed(kind: EventKind) -> bool {
    !matches!(kind, EventKind::Access(access) if access != AccessKind::Close(AccessMode::Write))
}

/// Whether only files without settings changed. A log or a store in the same folder changes all the
/// time.
fn is_unrelated(paths: &[PathBuf], log: Option<&str>) -> bool {
    let is_other = |path: &PathBuf| {
        let text = |part: Option<&OsStr>| part.and_then(|part| part.to_str().map(str::to_owned));
        let (name, ending) = (text(path.file_name()), text(path.extension()));
        // The log and its rotated files: `told.txt`, `told.txt.1`.
        let is_log = log.zip(name).is_some_and(|(log, name)| {
            let number = name.strip_prefix(log).map(|rest| rest.strip_prefix('.'));
            let is_number =
                |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            name == log || number.flatten().is_some_and(is_number)
        });
        is_log || ending.is_some_and(|ending| NOT_SETTINGS.contains(&ending.as_str()))
    };
    !paths.is_empty() && paths.iter().all(is_other)
}

/// The folders to watch: those that are named, and those of the files.
fn folders(paths: &[String]) -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> = Vec::new();
    for path in paths {
        let path = Path::new(path);
        let folder = match path.parent() {
            _ if path.is_dir() => path,
            Some(folder) if folder != Path::new("") => folder,
            _ => Path::new("."),
        };
        if !folders.iter().any(|known| known == folder) {
            folders.push(folder.to_owned());
        }
    }
    folders
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_and_store_files_do_not_trigger_a_reload() {
        let about = |names: &[&str]| {
            let paths: Vec<PathBuf> = names.iter().map(PathBuf::from).collect();
            is_unrelated(&paths, Some("told.txt"))
        };
        assert!(about(&["conf/told.txt"]) && about(&["conf/told.txt", "conf/told.txt.1"]));
        assert!(about(&["conf/gateway.log"]) && about(&["conf/ledger.db-wal", "conf/ledger.db"]));
        for names in [
            &["conf/tmdb.yaml"][..],
            &["conf/..data"],
            &["conf/key"],
            &["conf/told.txt.yaml"],
            &["conf/told.txtmdb.yaml"],
            &["conf/gateway.log", "conf/tmdb.yaml"],
            &[],
        ] {
            assert!(!about(names), "{names:?}");
        }
    }
}
