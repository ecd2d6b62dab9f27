//! What this host knows of the clock of a networked store, in its state folder: so that a process that
//! ends after one permit need not distrust the store's clock anew.
//!
//! One file per store and provider, replaced as a whole. Its readings are on this boot's clock, so
//! it names the boot and the time namespace, and counts for no other.
//!
//! Promises: a file that is missing, damaged, of another boot or of another version is no knowledge.
//! A file that cannot be written is not: the next process begins anew, as the first one did.
//!
//! Never: names a user or a password, and never waits for the disk: after a crash nobody reads it. A folder that
//! hangs delays one reply a little.

use std::fs::{DirBuilder, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tollgate_core::ask::{CellId, OwnerId};
use tollgate_core::replica::{ClockRecord, Epoch, READINGS_MAX, Stamp};
use tollgate_core::row::Incarnation;
use tollgate_core::time::Micros;

use super::folder_writes::FolderWrites;
use crate::clock::Clock;

/// The folder in the state folder.
const FOLDER: &str = "networked-clocks";

/// The first line.
const VERSION: &str = "tollgate store clock 1";

/// No file is longer: six short lines, and the readings of three numbers each.
const FILE_MAX: u64 = 4_096 + 64 * READINGS_MAX as u64;

/// How long a reply waits for its write, so that a process that ends with it has left the file: a
/// page in memory, which takes far less than a millisecond. A folder that takes longer hangs, or
/// is on a network; a tenth of a request's deadline (500 ms) is left for it, and the write goes on alone.
const WAITED_FOR: Duration = Duration::from_millis(50);

/// The files of one store.
#[derive(Clone, Debug)]
pub(crate) struct ClockFiles {
    /// `None`: nothing is remembered.
    folder: Option<PathBuf>,
    store: String,
    boot: String,
    writes: FolderWrites,
}

impl ClockFiles {
    /// Of the store at this redacted address. A clock that is not the machine's is not remembered:
    /// no other process has it.
    pub(crate) fn of(state_dir: Option<&Path>, store: &str, clock: &Clock) -> ClockFiles {
        let boot = match clock {
            Clock::System => boot(),
            Clock::Tokio(_) | Clock::Manual(_) | Clock::Slow(_) => None,
        };
        let folder = state_dir.filter(|_| boot.is_some());
        ClockFiles {
            folder: folder.map(|folder| folder.join(FOLDER)),
            store: store.to_owned(),
            boot: boot.unwrap_or_default(),
            writes: FolderWrites::default(),
        }
    }

    /// What earlier processes have left of this provider's clock.
    pub(crate) fn load(&self, tag: &str) -> Option<ClockRecord> {
        let mut text = String::new();
        let file = std::fs::File::open(self.file(tag)?).ok()?;
        file.take(FILE_MAX).read_to_string(&mut text).ok()?;
        read(text.strip_prefix(&self.head(tag))?)
    }

    /// Leaves it for the next process. If that fails, or is being written, what was written last stays;
    /// the next reading comes some seconds later.
    pub(crate) async fn store(&self, tag: &str, record: ClockRecord) {
        if self.folder.is_none() {
            return;
        }
        let (files, owned) = (self.clone(), tag.to_owned());
        let writing = self.writes.run(tag, move || files.write(&owned, &record));
        drop(tokio::time::timeout(WAITED_FOR, writing).await);
    }

    fn write(&self, tag: &str, record: &ClockRecord) -> io::Result<()> {
        let Some(file) = self.file(tag) else {
            return Ok(());
        };
        if let Some(folder) = file.parent() {
            // As all of the state: its owner's alone.
            let mut builder = DirBuilder::new();
            builder.recursive(true).mode(0o700).create(folder)?;
        }
        let new = unfinished(&file);
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600);
        let text = self.head(tag) + &written(record);
        options.open(&new)?.write_all(text.as_bytes())?;
        std::fs::rename(&new, &file).inspect_err(|_| drop(std::fs::remove_file(&new)))
    }

    fn file(&self, tag: &str) -> Option<PathBuf> {
        // Any hash of names will do that does not collide.
        let name = CellId::named(&[&self.store, tag]).0;
        Some(self.folder.as_ref()?.join(format!("{name:032x}")))
    }

    /// For what the file counts. A line feed would end a line: no name has one.
    fn head(&self, tag: &str) -> String {
        let (store, boot) = (&self.store, &self.boot);
        format!("{VERSION}\nstore {store}\nprovider {tag}\nboot {boot}\n")
    }
}

/// Where this process writes what is then renamed to this file.
fn unfinished(file: &Path) -> PathBuf {
    file.with_extension(format!("new-{}", std::process::id()))
}

/// This boot and this process's time namespace: boot time is the same clock for all processes with both.
fn boot() -> Option<String> {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    // Kernels without time namespaces have one clock.
    let namespace = std::fs::read_link("/proc/self/ns/time").unwrap_or_default();
    Some(format!("{} {}", boot.trim(), namespace.display()))
}

fn written(record: &ClockRecord) -> String {
    let incarnation = match record.incarnation {
        Some(one) => format!("{} {}", one.owner.0, one.nonce),
        None => "- 0".into(),
    };
    let reading = |one: &Stamp| {
        let (stored_at, sent, received) = (one.stored_at.0, one.sent.0, one.received.0);
        format!("{stored_at} {sent} {received}\n")
    };
    let readings: String = record.readings.iter().map(reading).collect();
    let (epoch, changes) = (record.epoch.0, record.changes);
    format!("rows {epoch} {incarnation} {changes}\n{readings}end\n")
}

/// `None`: it is damaged.
fn read(text: &str) -> Option<ClockRecord> {
    let text = text.strip_prefix("rows ")?.strip_suffix("\nend\n")?;
    let mut lines = text.lines();
    let rows: Vec<&str> = lines.next()?.split(' ').collect();
    let [epoch, owner, nonce, changes] = rows.as_slice() else {
        return None;
    };
    let incarnation = match *owner {
        "-" => None,
        owner => Some(Incarnation {
            owner: OwnerId(owner.parse().ok()?),
            nonce: nonce.parse().ok()?,
        }),
    };
    let readings: Option<Vec<Stamp>> = lines.map(read_reading).collect();
    let readings = readings.filter(|readings| readings.len() <= READINGS_MAX)?;
    Some(ClockRecord {
        epoch: Epoch(epoch.parse().ok()?),
        incarnation,
        changes: changes.parse().ok()?,
        readings,
    })
}

fn read_reading(line: &str) -> Option<Stamp> {
    let numbers: Option<Vec<u64>> = line.split(' ').map(|one| one.parse().ok()).collect();
    let [stored_at, sent, received] = numbers?.try_into().ok()?;
    Some(Stamp {
        stored_at: Micros(stored_at),
        sent: Micros(sent),
        received: Micros(received),
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn record() -> ClockRecord {
        let reading = |at: u64| Stamp {
            stored_at: Micros(1_800_000_000_000_000 + at),
            sent: Micros(at),
            received: Micros(at + 500),
        };
        ClockRecord {
            epoch: Epoch(u64::MAX),
            incarnation: Some(Incarnation {
                owner: OwnerId(7),
                nonce: u64::MAX,
            }),
            changes: 3,
            readings: (0..READINGS_MAX as u64).map(reading).collect(),
        }
    }

    /// Each batch wrote again to a folder that hung, and waited for it until its deadline: no call was served.
    #[tokio::test]
    async fn a_folder_that_hangs_delays_a_reply_and_no_other() {
        let folder = std::env::temp_dir().join(format!("clock-file-hang-{}", std::process::id()));
        drop(std::fs::remove_dir_all(&folder));
        let files = ClockFiles::of(Some(&folder), "redis://a:1/0", &Clock::System);
        let file = files.file("p").unwrap();
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        let unfinished = unfinished(&file);
        rustix::fs::mkfifoat(rustix::fs::CWD, &unfinished, mode).unwrap();
        let stored = async {
            for _ in 0..3 {
                files.store("p", record()).await;
            }
        };
        let stored = tokio::time::timeout(Duration::from_secs(30), stored).await;
        let hangs = !files.writes.is_idle();
        // Somebody reads at last: the one write ends.
        let text = std::thread::spawn(move || std::fs::read_to_string(unfinished).unwrap());
        while !files.writes.is_idle() {
            tokio::task::yield_now().await;
        }
        let text = text.join().unwrap();
        assert!(stored.is_ok(), "a reply waits for the folder");
        assert!(hangs, "the first write does not hang");
        assert_eq!(text.matches("provider p\n").count(), 1, "{text}");
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[tokio::test]
    async fn the_next_process_of_this_boot_store_and_provider_reads_it() {
        let folder = std::env::temp_dir().join(format!("clock-file-{}", std::process::id()));
        drop(std::fs::remove_dir_all(&folder));
        let of = |store: &str| ClockFiles::of(Some(&folder), store, &Clock::System);
        let files = of("redis://a:1/0");
        assert_eq!(files.load("p"), None);
        files.store("p", record()).await;
        assert_eq!(of("redis://a:1/0").load("p"), Some(record()));
        let unnamed = ClockRecord::default();
        files.store("q", unnamed.clone()).await;
        assert_eq!(files.load("q"), Some(unnamed));
        // For nobody else.
        assert_eq!(of("redis://b:1/0").load("p"), None);
        let rebooted = ClockFiles {
            boot: "another".into(),
            ..files.clone()
        };
        assert_eq!(rebooted.load("p"), None, "a copy, or after a reboot");
        let file = files.file("p").unwrap();
        let mode = std::fs::metadata(&file).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let names = std::fs::read_dir(file.parent().unwrap()).unwrap();
        assert_eq!(names.count(), 2, "nothing else stays");
        // Cut at any place it is no knowledge.
        let whole = std::fs::read(&file).unwrap();
        for cut in 0..whole.len() {
            std::fs::write(&file, &whole[..cut]).unwrap();
            assert_eq!(files.load("p"), None, "{cut}");
        }
        drop(std::fs::remove_dir_all(&folder));
    }
}
