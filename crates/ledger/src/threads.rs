//! Threads of a ledger, by name.
//!
//! Promises: one that cannot be had is an error, not a panic. Never: waits for one.

use std::thread::JoinHandle;

/// Starts a thread.
pub(crate) fn spawn(
    name: &str,
    work: impl FnOnce() + Send + 'static,
) -> std::io::Result<JoinHandle<()>> {
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(work)
}
