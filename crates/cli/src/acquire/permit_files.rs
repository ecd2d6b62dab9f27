//! Permits that `acquire` printed without a daemon, one file each in the store's folder.
//!
//! | file in `permits/` | the permit |
//! |---|---|
//! | `ID.open` | is neither reported nor released |
//! | `ID.reported`, `ID.released` | was settled; the file goes when the permit would have expired |
//! | `PID-TIME.stopped` | all that were open when a daemon stopped; the next daemon takes them up |
//!
//! Promises: one process settles a permit, because a rename takes it. Only their owner can read the
//! files; they contain neither keys nor URLs. Their number is bounded. A process that dies between
//! the rename and the settle leaves the permit counted as sent.
//!
//! Never: removes a permit that can still be settled.

use std::fs::{self, DirBuilder, DirEntry, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use tollgate::detached_permit::{DetachedPermit, StoredPermit};
use tollgate_core::time::{Now, Span};

/// The most files: at some 1 KiB each 4 MiB, and read in 50 ms by the next `acquire`. A permit
/// lives for a minute by default, so that is 68 unreported permits per second.
const FILES_MAX: usize = 4_096;

/// The most that is read of a file: 64 limits of 150 bytes.
const FILE_MAX: u64 = 16 * 1_024;

/// The most that is read of the permits of a daemon: as many as it may have, with 4 KiB each.
const STOPPED_MAX: u64 = 64 * 1_024 * 1_024;

/// A file that cannot be read goes after this time: longer than any permit lives.
const UNREADABLE_FOR: Span = Span::from_secs(24 * 3_600);

/// The permits of a store's folder.
#[derive(Clone, Debug)]
pub(crate) struct PermitFiles {
    folder: PathBuf,
}

/// What became of a permit.
#[derive(Debug)]
pub(super) enum PermitFile {
    Open(DetachedPermit),
    Settled(Ending),
}

/// How a permit ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    Reported,
    Released,
}

impl Ending {
    fn suffix(self) -> &'static str {
        match self {
            Ending::Reported => "reported",
            Ending::Released => "released",
        }
    }
}

impl PermitFiles {
    pub(super) fn new(store: &Path) -> PermitFiles {
        PermitFiles {
            folder: store.join("permits"),
        }
    }

    /// Writes the permits of a daemon that stops down, for the next one.
    pub(crate) fn write_stopped(&self, permits: &[StoredPermit], now: Now) -> io::Result<()> {
        if permits.is_empty() {
            return Ok(());
        }
        self.create_folder()?;
        let name = format!("{}-{}", std::process::id(), now.wall.0);
        self.write_whole(&name, "stopped", &serde_json::to_vec(permits)?)
    }

    /// The permits of daemons that have stopped. A rename takes them: no two daemons have one permit.
    pub(crate) fn take_stopped(&self) -> io::Result<Vec<StoredPermit>> {
        let entries = match fs::read_dir(&self.folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let mut permits = Vec::new();
        for entry in entries {
            let path = entry?.path();
            let taken = path.with_extension(format!("taken-{}", std::process::id()));
            let is_stopped = path.extension().is_some_and(|word| word == "stopped");
            // Another daemon may have been faster.
            if !is_stopped || fs::rename(&path, &taken).is_err() {
                continue;
            }
            let mut text = Vec::new();
            let file = fs::File::open(&taken)?;
            file.take(STOPPED_MAX).read_to_end(&mut text)?;
            fs::remove_file(&taken)?;
            let stored: Vec<StoredPermit> = serde_json::from_slice(&text)?;
            permits.extend(stored);
        }
        Ok(permits)
    }

    /// Writes an open permit down, for the process that will settle it.
    pub(super) fn write(&self, id: &str, permit: &DetachedPermit, now: Now) -> io::Result<()> {
        self.create_folder()?;
        if self.sweep(now)? >= FILES_MAX {
            return Err(io::Error::other(format!(
                "{FILES_MAX} permits are open in {}; report or release them",
                self.folder.display()
            )));
        }
        self.write_whole(id, "open", &serde_json::to_vec(permit)?)
    }

    fn create_folder(&self) -> io::Result<()> {
        let mut folder = DirBuilder::new();
        folder.recursive(true).mode(0o700).create(&self.folder)
    }

    /// A file with these bytes, or none.
    fn write_whole(&self, id: &str, suffix: &str, bytes: &[u8]) -> io::Result<()> {
        let new = self.path(id, "new");
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&new)?;
        let written = file.write_all(bytes);
        let renamed = written.and_then(|()| fs::rename(&new, self.path(id, suffix)));
        if renamed.is_err() {
            drop(fs::remove_file(&new));
        }
        renamed
    }

    /// The permit of this id; `None`: it expired and its file is gone, or it never was.
    pub(super) fn find(&self, id: &str) -> io::Result<Option<PermitFile>> {
        // As the decision service makes them, and nothing that leads out of the folder.
        if id.len() != 32 || !id.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Ok(None);
        }
        match read(&self.path(id, "open")) {
            Ok(permit) => return Ok(Some(PermitFile::Open(permit))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        let all = [Ending::Reported, Ending::Released].into_iter();
        let mut settled = all.filter(|ending| self.path(id, ending.suffix()).exists());
        Ok(settled.next().map(PermitFile::Settled))
    }

    /// Takes an open permit, to settle it. `false`: another process has taken it.
    pub(super) fn take(&self, id: &str, ending: Ending) -> io::Result<bool> {
        match fs::rename(self.path(id, "open"), self.path(id, ending.suffix())) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// It was not settled after all.
    pub(super) fn put_back(&self, id: &str, ending: Ending) -> io::Result<()> {
        fs::rename(self.path(id, ending.suffix()), self.path(id, "open"))
    }

    /// Removes permits that can no longer be settled. Returns how many files remain.
    fn sweep(&self, now: Now) -> io::Result<usize> {
        let mut remaining = 0;
        for entry in fs::read_dir(&self.folder)? {
            let entry = entry?;
            if is_over(&entry, now) {
                // Another process may have been faster.
                drop(fs::remove_file(entry.path()));
            } else {
                remaining += 1;
            }
        }
        Ok(remaining)
    }

    fn path(&self, id: &str, suffix: &str) -> PathBuf {
        self.folder.join(format!("{id}.{suffix}"))
    }
}

fn read(path: &Path) -> io::Result<DetachedPermit> {
    let mut text = Vec::new();
    fs::File::open(path)?
        .take(FILE_MAX)
        .read_to_end(&mut text)?;
    Ok(serde_json::from_slice(&text)?)
}

fn is_over(entry: &DirEntry, now: Now) -> bool {
    if let Ok(permit) = read(&entry.path()) {
        return permit.has_expired(now.at);
    }
    let changed = entry.metadata().and_then(|about| about.modified()).ok();
    let changed = changed.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    let wall = Duration::from_micros(now.wall.0);
    changed.is_some_and(|changed| wall.saturating_sub(changed) > Duration::from(UNREADABLE_FOR))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use tollgate_core::time::{Micros, Wall};

    const ID: &str = "0123456789abcdef0123456789abcdef";

    fn files(name: &str) -> (PathBuf, PermitFiles) {
        let store = std::env::temp_dir().join(format!("tollgate-{name}-{}", std::process::id()));
        drop(fs::remove_dir_all(&store));
        (store.clone(), PermitFiles::new(&store))
    }

    fn permit(granted: u64) -> DetachedPermit {
        serde_json::from_value(json!({
            "provider": "x", "entity": null, "caller": null, "host": null, "path": null,
            "owner": 1, "seq": 1, "granted": granted, "use_within": 30, "lives": 60,
            "scopes": [], "terms": [],
        }))
        .unwrap()
    }

    fn now(at: u64) -> Now {
        Now {
            at: Micros(at),
            wall: Wall(at),
        }
    }

    /// A permit that two processes settled at once was given back twice.
    #[test]
    fn a_permit_is_taken_once() {
        let (store, files) = files("permit-taken");
        files.write(ID, &permit(5), now(5)).unwrap();
        assert!(matches!(files.find(ID), Ok(Some(PermitFile::Open(_)))));
        assert!(files.take(ID, Ending::Released).unwrap());
        assert!(!files.take(ID, Ending::Reported).unwrap());
        let found = files.find(ID).unwrap().unwrap();
        assert!(matches!(found, PermitFile::Settled(Ending::Released)));
        files.put_back(ID, Ending::Released).unwrap();
        assert!(files.take(ID, Ending::Reported).unwrap());
        assert!(files.find("../../etc/passwd").unwrap().is_none());
        fs::remove_dir_all(store).unwrap();
    }

    /// What can no longer be settled goes with the next permit, also after a reboot: nothing adds up.
    #[test]
    fn files_go_when_their_permits_have_expired() {
        let (store, files) = files("permit-swept");
        let id = |number: usize| format!("{number:032x}");
        for (number, granted) in [5, 6, 500].into_iter().enumerate() {
            files
                .write(&id(number), &permit(granted), now(granted.min(6)))
                .unwrap();
        }
        files.take(&id(1), Ending::Reported).unwrap();
        fs::write(store.join("permits/part.new"), "{").unwrap();
        let left = || files.sweep(now(65)).unwrap();
        assert_eq!(left(), 2, "the reported one of 6, and what cannot be read");
        assert_eq!(files.sweep(now(66)).unwrap(), 1);
        fs::remove_dir_all(store).unwrap();
    }

    #[test]
    fn the_number_of_files_is_bounded() {
        let (store, files) = files("permit-bound");
        files.write(ID, &permit(5), now(5)).unwrap();
        for number in 1..FILES_MAX {
            fs::write(store.join(format!("permits/{number}.new")), "{").unwrap();
        }
        let full = files.write(&ID.replace('0', "1"), &permit(5), now(5));
        let error = full.unwrap_err().to_string();
        assert!(error.starts_with("4096 permits are open"), "{error}");
        fs::remove_dir_all(store).unwrap();
    }
}
