//! Returns memory to the system that bodies no longer use.
//!
//! The allocator returns freed memory when it is called again, which an idle process does not do.
//!
//! Promises: some seconds after a burst of large bodies, most of their memory is returned.
//!
//! Never: holds up a call; it runs on a thread of its own.

use std::time::Duration;

/// How often freed memory is returned: rare enough to cost nothing, and soon enough for whoever
/// looks at the memory of the process.
const EVERY: Duration = Duration::from_secs(5);

/// Returns freed memory again and again.
pub(super) async fn return_freed() {
    let mut ticks = tokio::time::interval(EVERY);
    loop {
        ticks.tick().await;
        if tokio::task::spawn_blocking(collect).await.is_err() {
            return; // the runtime ends
        }
    }
}

#[expect(
    unsafe_code,
    reason = "a function of the allocator that has no wrapper"
)]
fn collect() {
    unsafe extern "C" {
        /// Frees what this thread and threads that have ended hold, and returns it to the system.
        fn mi_collect(force: bool);
    }
    // SAFETY: mimalloc is the allocator of this program, and any thread may call this at any time.
    unsafe { mi_collect(true) }
}
