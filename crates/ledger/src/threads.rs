//! Threads of a ledger, by name.
//!
//! Promises: one that cannot be had is an error, not a panic. A panic on one is an error too.
//!
//! Never: waits for one.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread::JoinHandle;

use crate::store::StoreError;

/// Starts a thread.
pub(crate) fn spawn(
    name: &str,
    work: impl FnOnce() + Send + 'static,
) -> std::io::Result<JoinHandle<()>> {
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(work)
}

/// Runs a part of a ledger that must not take its thread along: if it panics, the store is lost for
/// good, because nobody knows what it has left behind.
pub(crate) fn catch_panic<T>(what: &str, run: impl FnOnce() -> T) -> Result<T, StoreError> {
    // Nothing that it has used is used again after this.
    catch_unwind(AssertUnwindSafe(run)).map_err(|panic| StoreError {
        message: format!(
            "{what} panicked ({}), which is an error in Tollgate; restart it and report this",
            panic_message(&*panic)
        )
        .into(),
        is_final: true,
    })
}

fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let literal = panic.downcast_ref::<&str>().copied();
    let message = literal.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    message.unwrap_or("without a message")
}
