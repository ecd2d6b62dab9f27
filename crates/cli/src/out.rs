//! Standard output and standard error of commands, for pipes that may close early.
//!
//! Promises: if the reader closes the pipe (`tollgate status | head -1`), further output is dropped
//! and the command finishes normally, with its own exit code.
//!
//! Never: hides any other failure, such as a full disk behind `>`, or a broken connection.

use std::io::{self, Write};

/// A writer that ignores a closed pipe.
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

    /// Whether the reader has closed the pipe: a long loop may stop.
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
