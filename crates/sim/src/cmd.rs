//! The commands of `tollgate-sim`, one file each, and the code they share: the runtime, the signals
//! that end a run, and lines on stdout.
//!
//! Promises: a closed stdout is not a failure (`tollgate-sim serve | head -1`).
//!
//! Never: holds logic of a command.

use std::error::Error;
use std::io::{self, Write};

use tokio::signal::unix::{SignalKind, signal};

pub(crate) mod delay;
pub(crate) mod serve;
pub(crate) mod llm;
pub(crate) mod proxy;
pub(crate) mod exactness;
pub(crate) mod stores;

/// The result of a command.
pub(crate) type CommandResult = Result<(), Box<dyn Error>>;

/// Runs a command's future on one thread: the provider is the slow side on purpose.
fn block_on(command: impl Future<Output = CommandResult>) -> CommandResult {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?
        .block_on(command)
}

/// The two signals that end a run.
#[derive(Debug)]
struct ShutdownSignals {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
}

impl ShutdownSignals {
    /// Handles both signals from now on; a signal before that still kills.
    fn listen() -> io::Result<ShutdownSignals> {
        let terminate = signal(SignalKind::terminate())?;
        let interrupt = signal(SignalKind::interrupt())?;
        Ok(ShutdownSignals {
            terminate,
            interrupt,
        })
    }

    /// Returns when SIGTERM or SIGINT has arrived.
    async fn wait(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// Prints one line on stdout and flushes it.
fn print_line(line: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    match writeln!(out, "{line}").and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        done => done,
    }
}
