//! Standard output and standard error of commands, for readers who may leave early.
//!
//! Promises: where the reader is gone (`tollgate status | head -1`), what is left to say is dropped and
//! the command comes to its end as if it had been read: its exit code is the one that it decides.
//!
//! Never: hides any other failure, such as a full disk behind `>`, or a broken connection.

use std::io::{self, Write};

/// A writer whose reader may leave.
#[derive(Debug)]
pub(crate) struct Heard<W> {
    to: W,
    is_gone: bool,
}

/// Standard output.
pub(crate) fn out() -> Heard<io::StdoutLock<'static>> {
    Heard::new(io::stdout().lock())
}

/// Standard error.
pub(crate) fn err() -> Heard<io::StderrLock<'static>> {
    Heard::new(io::stderr().lock())
}

impl<W: Write> Heard<W> {
    fn new(to: W) -> Heard<W> {
        Heard { to, is_gone: false }
    }

    /// Nobody reads any more: whoever would go on for long need not.
    pub(crate) fn is_gone(&self) -> bool {
        self.is_gone
    }

    fn heard<T>(&mut self, written: io::Result<T>, instead: T) -> io::Result<T> {
        match written {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                self.is_gone = true;
                Ok(instead)
            }
            written => written,
        }
    }
}

impl<W: Write> Write for Heard<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.is_gone {
            return Ok(bytes.len());
        }
        let written = self.to.write(bytes);
        self.heard(written, bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.is_gone {
            return Ok(());
        }
        let flushed = self.to.flush();
        self.heard(flushed, ())
    }
}
