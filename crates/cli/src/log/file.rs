//! The log file and its rotated files.
//!
//! Promises: `NAME` has at most `max_size` bytes (except for one longer line), and there are at
//! most `keep` rotated files, `NAME.1` (the newest) to `NAME.<keep>`. A file that cannot be renamed
//! is truncated: a bounded log is more important than a complete one.
//!
//! Never: splits a line, or waits for anything but the disk.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// An open log file.
#[derive(Debug)]
pub(crate) struct LogFile {
    path: PathBuf,
    max_size: u64,
    keep: u32,
    file: File,
    size: u64,
}

impl LogFile {
    /// Appends to the file, or creates it.
    pub(crate) fn open(path: &Path, max_size: u64, keep: u32) -> io::Result<LogFile> {
        let file = append_to(path)?;
        let size = file.metadata()?.len();
        Ok(LogFile {
            path: path.to_owned(),
            max_size,
            keep,
            file,
            size,
        })
    }

    fn add(&mut self, line: &[u8]) -> io::Result<()> {
        let length = line.len() as u64;
        if self.size > 0 && self.size + length > self.max_size {
            self.rotate()?;
        }
        self.file.write_all(line)?;
        self.size += length;
        Ok(())
    }

    fn rotate(&mut self) -> io::Result<()> {
        if self.shift_old_files().is_err() {
            self.file.set_len(0)?;
        }
        self.file = append_to(&self.path)?;
        self.size = self.file.metadata()?.len();
        Ok(())
    }

    fn shift_old_files(&self) -> io::Result<()> {
        if self.keep == 0 {
            return self.file.set_len(0);
        }
        // Only up to the first missing file: `keep` may be any number.
        let gap = (1..self.keep).find(|number| !self.old_path(*number).exists());
        for number in (1..gap.unwrap_or(self.keep)).rev() {
            fs::rename(self.old_path(number), self.old_path(number + 1))?;
        }
        fs::rename(&self.path, self.old_path(1))
    }

    fn old_path(&self, number: u32) -> PathBuf {
        let mut name = OsString::from(&self.path);
        name.push(format!(".{number}"));
        name.into()
    }
}

impl Write for LogFile {
    /// A whole line: the layer above writes it in one piece.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.add(line)?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(()) // nothing is held back
    }
}

fn append_to(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).open(path)
}
