//! What the folder remembers of its database outside of it, to notice a copy that was restored.
//!
//! The lock file says which generation of the database there was, and when it was last written. A
//! generation is a transaction that granted permits of a limit of a minute or longer, and it is
//! noted after it is on disk, so that no power cut makes the note newer than the database.
//!
//! Promises: a database that is older than its note was put back; one that is newer is as good.
//!
//! Never: needed to read the database. Not noticed is what is put in place under a process that
//! runs, if it keeps the file's identity.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Begins the lock file once there is a database: without it an empty folder is new, with it
/// somebody has taken the database away.
pub(super) const MARK: &[u8] = b"tollgate ledger\n";

/// Digits of a number in the file, so that a note always has one length.
const DIGITS: usize = 20;

/// One reading of the database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GenerationRecord {
    /// Transactions that must not be forgotten.
    pub(super) generation: i64,
    /// When it was last noted, on the clock of its boot.
    pub(super) at: i64,
    /// Which boot, and which view of its clock.
    pub(super) boot: String,
}

impl GenerationRecord {
    /// What the rest of a lock file says. One that makes no sense says nothing.
    pub(super) fn read(bytes: &[u8]) -> Option<GenerationRecord> {
        let line = std::str::from_utf8(bytes).ok()?.lines().next()?;
        let (generation, rest) = line.split_once(' ')?;
        let (at, boot) = rest.split_once(' ')?;
        Some(GenerationRecord {
            generation: generation.parse().ok()?,
            at: at.parse().ok()?,
            boot: boot.to_owned(),
        })
    }

    /// Writes it after the mark, unless somebody has noted a later one meanwhile.
    pub(super) fn write(&self, file: &File) -> io::Result<()> {
        let start = MARK.len() as u64;
        let line = format!(
            "{:0DIGITS$} {:0DIGITS$} {}\n",
            self.generation, self.at, self.boot
        );
        let mut found = vec![0; line.len()];
        let length = file.read_at(&mut found, start)?;
        let later = GenerationRecord::read(&found[..length])
            .is_some_and(|found| self.is_older_than(&found));
        if later {
            return Ok(());
        }
        file.write_all_at(line.as_bytes(), start)
    }

    /// Was this the same database, some time before?
    pub(super) fn is_older_than(&self, other: &GenerationRecord) -> bool {
        let earlier = self.boot == other.boot && self.at < other.at;
        self.generation < other.generation || earlier
    }
}

/// Which boot this is, and which view of its clock this process has.
pub(super) fn this_boot() -> (String, String) {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let clock = std::fs::read_link("/proc/self/ns/time")
        .map(|link| link.to_string_lossy().into_owned())
        .unwrap_or_default();
    (boot.trim().to_owned(), clock)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(generation: i64, at: i64, boot: &str) -> GenerationRecord {
        GenerationRecord {
            generation,
            at,
            boot: boot.to_owned(),
        }
    }

    #[test]
    fn a_record_is_older_by_generation_or_by_time_of_the_same_boot() {
        let now = record(7, 500, "a b");
        assert!(record(6, 900, "a b").is_older_than(&now));
        assert!(record(7, 499, "a b").is_older_than(&now));
        assert!(
            !record(7, 499, "c b").is_older_than(&now),
            "clocks of two boots"
        );
        assert!(record(6, 499, "c b").is_older_than(&now));
        assert!(!now.is_older_than(&now) && !record(8, 501, "a b").is_older_than(&now));
    }

    #[test]
    fn a_record_is_read_as_written_and_an_earlier_one_does_not_replace_it() {
        let path = std::env::temp_dir().join(format!("tollgate-note-{}", std::process::id()));
        std::fs::write(&path, MARK).unwrap();
        let file = File::options().read(true).write(true).open(&path).unwrap();
        let later = record(i64::MAX, 12, "boot time:[4026531834]");
        later.write(&file).unwrap();
        record(3, 12, "boot time:[4026531834]")
            .write(&file)
            .unwrap();
        let found = std::fs::read(&path).unwrap();
        assert_eq!(GenerationRecord::read(&found[MARK.len()..]), Some(later));
        for nonsense in [&b""[..], b"7", b"7 x y\n", b"\xff\n"] {
            assert_eq!(GenerationRecord::read(nonsense), None);
        }
        std::fs::remove_file(&path).unwrap();
    }
}
