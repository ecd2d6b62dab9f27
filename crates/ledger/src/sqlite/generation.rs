//! What the folder remembers of its database outside of it, to notice a copy that was restored.
//!
//! The lock file says which generation of the database there was, and when it was last written. A
//! generation is a transaction that granted permits of a limit of a minute or longer, and it is
//! noted after it is on disk, so that no power cut makes the note newer than the database. So it also
//! tells every process of the folder what is on disk, whoever has synced it.
//!
//! ```text
//! file = MARK generation " " at " " boot "\n" checksum of this line "\n"
//! ```
//!
//! Promises: a database that is older than its note was put back; one that is newer is as good. A
//! note that was read while it was written says nothing of what is on disk.
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

/// A note is not longer than this: two numbers, the names of a boot and of a clock, a checksum.
const NOTE_MAX: usize = 256;

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

    /// What is noted after the mark, and whether it is whole.
    fn noted(file: &File) -> io::Result<Option<(GenerationRecord, bool)>> {
        let mut bytes = [0; NOTE_MAX];
        let length = file.read_at(&mut bytes, MARK.len() as u64)?;
        let found = &bytes[..length];
        let mut lines = found.split_inclusive(|&byte| byte == b'\n');
        let (line, sum) = (lines.next(), lines.next());
        let is_whole = line.is_some_and(|line| sum == Some(checksum(line).as_bytes()));
        Ok(GenerationRecord::read(found).map(|record| (record, is_whole)))
    }

    /// The generation of this boot that is noted as being on disk.
    pub(super) fn durable(file: &File, boot: &str) -> Option<i64> {
        let (record, is_whole) = GenerationRecord::noted(file).ok().flatten()?;
        (is_whole && record.boot == boot).then_some(record.generation)
    }

    /// Writes it after the mark, together with what others have noted in this boot. Another one that
    /// is later stays.
    pub(super) fn write(&self, file: &File) -> io::Result<()> {
        let mut record = self.clone();
        match GenerationRecord::noted(file)? {
            Some((found, true)) if found.boot == self.boot => {
                record.generation = record.generation.max(found.generation);
                record.at = record.at.max(found.at);
                if record == found {
                    return Ok(());
                }
            }
            Some((found, _)) if self.is_older_than(&found) => return Ok(()),
            Some(_) | None => {}
        }
        let line = format!(
            "{:0DIGITS$} {:0DIGITS$} {}\n",
            record.generation, record.at, record.boot
        );
        let note = format!("{line}{}", checksum(line.as_bytes()));
        file.write_all_at(note.as_bytes(), MARK.len() as u64)
    }

    /// Was this the same database, some time before?
    pub(super) fn is_older_than(&self, other: &GenerationRecord) -> bool {
        let earlier = self.boot == other.boot && self.at < other.at;
        self.generation < other.generation || earlier
    }
}

/// A note of which some bytes are older than the others is not whole. FNV-1a: no defence.
fn checksum(line: &[u8]) -> String {
    let sum = line.iter().fold(0xcbf2_9ce4_8422_2325_u64, |sum, &byte| {
        (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{sum:016x}\n")
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

    /// A process that noted a later time with an earlier generation kept others from noting theirs.
    #[test]
    fn a_note_has_the_latest_of_what_all_processes_know() {
        let path = std::env::temp_dir().join(format!("tollgate-notes-{}", std::process::id()));
        std::fs::write(&path, MARK).unwrap();
        let file = File::options().read(true).write(true).open(&path).unwrap();
        for (generation, at) in [(7, 500), (5, 900), (9, 600)] {
            record(generation, at, "a b").write(&file).unwrap();
        }
        let found = std::fs::read(&path).unwrap();
        let found = GenerationRecord::read(&found[MARK.len()..]);
        assert_eq!(found, Some(record(9, 900, "a b")));
        assert_eq!(GenerationRecord::durable(&file, "a b"), Some(9));
        std::fs::remove_file(&path).unwrap();
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
        assert_eq!(
            GenerationRecord::durable(&file, "boot time:[4026531834]"),
            Some(i64::MAX)
        );
        assert_eq!(GenerationRecord::durable(&file, "another"), None);
        // One digit of another note: read while it was written.
        file.write_all_at(b"0", MARK.len() as u64 + 3).unwrap();
        assert_eq!(
            GenerationRecord::durable(&file, "boot time:[4026531834]"),
            None
        );
        for nonsense in [&b""[..], b"7", b"7 x y\n", b"\xff\n"] {
            assert_eq!(GenerationRecord::read(nonsense), None);
        }
        std::fs::remove_file(&path).unwrap();
    }
}
