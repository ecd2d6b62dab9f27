//! The memory of all bodies that are under way: one sum for the process, and its bound.
//!
//! Promises: whoever would keep more than the bound allows learns it, and keeps less: a request body
//! goes to a file, a shared response is read only as fast as its slowest reader, and a response is
//! not kept for the cache. Nobody waits for memory, so nobody can wait for ever.
//!
//! Never: counts the buffers that every connection has: up to 64 KiB to read and 64 KiB to write on
//! each side, and a piece of 256 KiB of an upload that is sent from a file.

use std::sync::Arc;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The bound, unless it is set: a host that runs a gateway has as much.
const MAX: usize = 256 * 1024 * 1024;

/// Memory belongs to the process.
static OF_PROCESS: LazyLock<Arc<BodyMemory>> = LazyLock::new(Arc::default);

/// Sets how much memory all bodies of this process may take together.
pub fn set_body_memory(bytes: u64) {
    let max = usize::try_from(bytes).unwrap_or(usize::MAX);
    OF_PROCESS.max.store(max, Ordering::Relaxed);
}

/// How many bytes the bodies that are under way take now.
#[must_use]
pub fn body_memory_in_use() -> u64 {
    OF_PROCESS.held.load(Ordering::Relaxed) as u64
}

/// The most bytes that they took since the last call.
#[must_use]
pub fn take_body_memory_peak() -> u64 {
    OF_PROCESS.peak.swap(0, Ordering::Relaxed) as u64
}

/// The memory of all bodies.
#[derive(Debug)]
pub(crate) struct BodyMemory {
    held: AtomicUsize,
    peak: AtomicUsize,
    max: AtomicUsize,
}

impl Default for BodyMemory {
    fn default() -> BodyMemory {
        BodyMemory::new(MAX)
    }
}

impl BodyMemory {
    pub(crate) fn new(max: usize) -> BodyMemory {
        BodyMemory {
            held: AtomicUsize::new(0),
            peak: AtomicUsize::new(0),
            max: AtomicUsize::new(max),
        }
    }

    /// The one of this process.
    pub(crate) fn of_process() -> Arc<BodyMemory> {
        OF_PROCESS.clone()
    }

    /// So many more bytes are held.
    pub(crate) fn add(&self, bytes: usize) {
        let before = self.held.fetch_add(bytes, Ordering::Relaxed);
        self.peak.fetch_max(before + bytes, Ordering::Relaxed);
    }

    /// So many bytes are released.
    pub(crate) fn release(&self, bytes: usize) {
        self.held.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// The most bytes that were held.
    #[cfg(test)]
    pub(crate) fn peak(&self) -> usize {
        self.peak.load(Ordering::Relaxed)
    }

    /// How many bytes are held.
    #[cfg(test)]
    pub(crate) fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    /// How many bytes all bodies may take.
    pub(crate) fn max(&self) -> usize {
        self.max.load(Ordering::Relaxed)
    }

    /// More is held than should be.
    pub(crate) fn is_scarce(&self) -> bool {
        self.held.load(Ordering::Relaxed) > self.max.load(Ordering::Relaxed)
    }
}

/// The part of one body. Dropping it releases it.
#[derive(Debug)]
pub(crate) struct BodyShare {
    memory: Arc<BodyMemory>,
    bytes: usize,
}

impl BodyShare {
    pub(crate) fn new(memory: Arc<BodyMemory>) -> BodyShare {
        BodyShare { memory, bytes: 0 }
    }

    /// So many more bytes are held. `false`: all bodies together hold too much now.
    pub(crate) fn grow(&mut self, bytes: usize) -> bool {
        self.set(self.bytes + bytes)
    }

    /// So many bytes are held. `false`: all bodies together hold too much now.
    pub(crate) fn set(&mut self, bytes: usize) -> bool {
        if bytes > self.bytes {
            self.memory.add(bytes - self.bytes);
        } else {
            self.memory.release(self.bytes - bytes);
        }
        self.bytes = bytes;
        !self.memory.is_scarce()
    }
}

impl Drop for BodyShare {
    fn drop(&mut self) {
        self.memory.release(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_of_all_bodies_is_bounded_and_released() {
        let memory = Arc::new(BodyMemory::new(100));
        let mut one = BodyShare::new(memory.clone());
        let mut other = BodyShare::new(memory.clone());
        assert!(one.grow(60) && other.grow(40));
        assert!(!other.grow(1) && memory.is_scarce());
        drop(one);
        assert!(!memory.is_scarce() && other.grow(59));
        drop(other);
        assert_eq!(memory.held(), 0);
    }
}
