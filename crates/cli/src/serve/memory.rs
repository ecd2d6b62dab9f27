//! Returns memory to the system that bodies no longer use.
//!
//! The allocator keeps what a thread has freed until that thread calls it again, which the threads
//! of an idle process do not do.
//!
//! Promises: some seconds after the last of a burst of bodies, every thread has returned what it
//! does not use. Nothing happens while bodies are under way, or after calls without large ones.
//!
//! Never: holds up a call: a thread does it before it goes to sleep.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How often this looks for a burst that is over.
const EVERY: Duration = Duration::from_secs(5);

/// Bodies of less than this together leave nothing worth returning.
const BURST_MIN: u64 = 16 * 1024 * 1024;

/// Empty tasks that wake the threads of the runtime: more than there are threads, so that each gets
/// one.
const WAKE_TASKS: usize = 64;

/// How many bursts are over.
static BURSTS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// The burst after which this thread has returned its memory.
    static RETURNED: Cell<u64> = const { Cell::new(0) };
}

/// Looks for bursts that are over, and lets every thread return its memory.
pub(super) async fn return_freed() {
    let mut ticks = tokio::time::interval(EVERY);
    let mut had_burst = false;
    loop {
        ticks.tick().await;
        had_burst |= tollgate::body::take_body_memory_peak() >= BURST_MIN;
        if !had_burst || tollgate::body::body_memory_in_use() > 0 {
            continue;
        }
        had_burst = false;
        BURSTS.fetch_add(1, Ordering::Relaxed);
        for _ in 0..WAKE_TASKS {
            tokio::spawn(tokio::task::yield_now());
        }
    }
}

/// A thread of the runtime goes to sleep.
pub(super) fn on_thread_park() {
    let bursts = BURSTS.load(Ordering::Relaxed);
    if RETURNED.replace(bursts) != bursts {
        collect();
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
