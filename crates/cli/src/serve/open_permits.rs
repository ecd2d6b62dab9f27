//! The permits that are open while the daemon restarts: those who hold them report them to the next one.
//!
//! Promises: a graceful stop writes them down, once nobody can report any more; the next daemon of this
//! store takes them up before it listens. A failure is a line on standard error, and the permits count as
//! sent.
//!
//! Never: stores them while the daemon runs. Those of a daemon that is killed count as sent.

use std::io::{self, Write};

use tollgate_config::Config;
use tollgate_server::Daemon;

use crate::acquire::permit_files;

/// Takes up the permits of the daemon before.
pub(super) async fn take_up(daemon: &Daemon, config: &Config) {
    let Some(files) = permit_files(config) else {
        return; // a store in memory has ended with its permits
    };
    match files.take_stopped() {
        Ok(permits) => drop(daemon.decisions().attach_all(&permits).await),
        Err(error) => warn(&format!(
            "the open permits of the former daemon cannot be read and count as sent: {error}"
        )),
    }
}

/// Writes down what is still open.
pub(super) fn store(daemon: &Daemon, config: &Config) {
    let Some(files) = permit_files(config) else {
        return;
    };
    let decisions = daemon.decisions();
    let permits = decisions.detach_all();
    if let Err(error) = files.write_stopped(&permits, decisions.now()) {
        let count = permits.len();
        warn(&format!(
            "{count} open permits cannot be stored and count as sent: {error}"
        ));
    }
}

/// A closed standard error is no reason to stop.
fn warn(text: &str) {
    let _printed = writeln!(io::stderr(), "warning: {text}");
}
