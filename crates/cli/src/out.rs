//! Standard output and standard error of commands, for readers who may leave early.
//!
//! Promises: where the reader is gone (`tollgate status | head -1`), what is left to say is dropped and
//! the command comes to its end as if it had been read: its exit code is the one that it decides.
//!
//! Never: hides any other failure, such as a full disk behind `>`, or a broken connection.

use std::io::{self, Write};

/// A writer whose reader may leave.
#[derive(Debug)]
pub(crate) struct PipeSafeWriter<W> {
    to: W,
    is_closed: bool,
}

/// Standard output.
pub(crate) fn out() -> PipeSafeWriter<io::StdoutLock<'static>> {
    PipeSafeWriter::new(io::stdout().lock())
}

/// Standard error.
pub(crate) fn err() -> PipeSafeWriter<io::StderrLock<'static>> {
    PipeSafeWriter::new(io::stderr().lock())
}

impl<W: Write> PipeSafeWriter<W> {
    fn new(to: W) -> PipeSafeWriter<W> {
        PipeSafeWriter {
            to,
            is_closed: false,
        }
    }

    /// Nobody reads any more: whoever would go on for long need not.
    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed
    }

    fn ignore_broken_pipe<T>(&mut self, written: io::Result<T>, instead: T) -> io::Result<T> {
        match written {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                self.is_closed = true;
                Ok(instead)
            }
            written => written,
        }
    }
}

impl<W: Write> Write for PipeSafeWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.is_closed {
            return Ok(bytes.len());
        }
        let written = self.to.write(bytes);
        self.ignore_broken_pipe(written, bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.is_closed {
            return Ok(());
        }
        let flushed = self.to.flush();
        self.ignore_broken_pipe(flushed, ())
    }
}
