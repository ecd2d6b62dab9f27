//! A second copy of a large body as a memfd: the kernel sends its pages to a socket without
//! copying.
//!
//! Promises: the content never changes, so pages that a socket still sends stay valid after the
//! memfd is closed. The number of memfds and their bytes are bounded; bodies that are requested
//! more often replace those requested less.
//!
//! Never: touches a disk, or holds the only copy of a body. Where no memfd is possible, bodies are
//! copied.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;

use super::CachedResponse;

/// Below this, one write of head and body costs less than two system calls.
const BODY_MIN: usize = 32 * 1_024;

/// Above this, responses are rare, and a few would use the whole budget.
const BODY_MAX: usize = 1_024 * 1_024;

/// Each memfd takes a descriptor, and connections need those; a process with few descriptors has
/// fewer memfds ([`set_memfds_max`]).
pub const MEMFDS_MAX: usize = 128;

/// All memfds together, in bytes: a quarter of the memory tier, on top of it.
const BYTES_MAX: usize = 16 * 1_024 * 1_024;

/// Uses of a memfd that are remembered. Each search for room takes one away, so a memfd that is
/// used more often than room is searched for stays.
const USES_MAX: u8 = 3;

/// How often a body is requested before it replaces another memfd: a body that is sent once or
/// twice evicts nothing.
const REQUESTS_MIN: u8 = 4;

/// Descriptors and memory belong to the process.
static MEMFDS: AtomicUsize = AtomicUsize::new(0);
static BYTES: AtomicUsize = AtomicUsize::new(0);
static MEMFDS_LIMIT: AtomicUsize = AtomicUsize::new(MEMFDS_MAX);
static BYTES_LIMIT: AtomicUsize = AtomicUsize::new(BYTES_MAX);

/// The responses that have a memfd, the next candidate for eviction first.
static OWNERS: Mutex<VecDeque<Weak<CachedResponse>>> = Mutex::new(VecDeque::new());

/// Sets the number of descriptors for bodies, at most [`MEMFDS_MAX`].
pub fn set_memfds_max(memfds: usize) {
    MEMFDS_LIMIT.store(memfds.min(MEMFDS_MAX), Ordering::Release);
}

/// Sets the size of the memory tier, in bytes.
pub(super) fn set_memory_bytes(memory: u64) {
    let part = usize::try_from(memory / 4).unwrap_or(BYTES_MAX);
    BYTES_LIMIT.store(part.min(BYTES_MAX), Ordering::Release);
}

/// A body as a memfd.
#[derive(Debug)]
pub struct MemfdBody {
    file: OwnedFd,
    /// Counts as long as the memfd exists.
    reservation: Reservation,
}

/// A body's memfd, while it has one, and how often it was used and requested.
#[derive(Debug, Default)]
pub(crate) struct MemfdSlot {
    body: ArcSwapOption<MemfdBody>,
    uses: AtomicU8,
    requests: AtomicU8,
}

/// The share of the bounds that one memfd takes.
#[derive(Debug)]
struct Reservation(usize);

impl Reservation {
    fn reserve(length: usize) -> Option<Reservation> {
        let memfds = MEMFDS.fetch_add(1, Ordering::AcqRel);
        let bytes = BYTES.fetch_add(length, Ordering::AcqRel);
        // Dropped at once if it exceeds a bound.
        let room = Reservation(length);
        let has_place = memfds < MEMFDS_LIMIT.load(Ordering::Acquire);
        (has_place && bytes + length <= BYTES_LIMIT.load(Ordering::Acquire)).then_some(room)
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        MEMFDS.fetch_sub(1, Ordering::AcqRel);
        BYTES.fetch_sub(self.0, Ordering::AcqRel);
    }
}

impl MemfdBody {
    /// The body of a response as a memfd, if that pays and there is room, or others are used less.
    pub(crate) fn of(object: &Arc<CachedResponse>) -> Option<Arc<MemfdBody>> {
        let (slot, length) = (&object.wire_form.memfd, object.body.len());
        if !(BODY_MIN..=BODY_MAX).contains(&length) {
            return None;
        }
        if let Some(memfd) = slot.body.load_full() {
            let uses = slot.uses.load(Ordering::Relaxed);
            if uses < USES_MAX {
                slot.uses.store(uses + 1, Ordering::Relaxed);
            }
            return Some(memfd);
        }
        // Nobody waits for a memfd: a copy works as well.
        let mut all = OWNERS.try_lock()?;
        let room = match Reservation::reserve(length) {
            Some(room) => room,
            None => {
                let requests = slot.requests.fetch_add(1, Ordering::Relaxed) + 1;
                if requests < REQUESTS_MIN {
                    return None;
                }
                slot.requests.store(0, Ordering::Relaxed);
                reclaim(&mut all, length)?
            }
        };
        let memfd = Arc::new(MemfdBody {
            file: sealed(&object.body)?,
            reservation: room,
        });
        slot.body.store(Some(memfd.clone()));
        drop_dead_owners(&mut all);
        all.push_back(Arc::downgrade(object));
        Some(memfd)
    }

    /// Its length, in bytes; none is empty.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "no memfd is empty")]
    pub fn len(&self) -> usize {
        self.reservation.0
    }
}

/// A dropped response closed its memfd but is still in the list. At most [`MEMFDS_MAX`] are alive,
/// so half of a list of twice that can be dropped.
fn drop_dead_owners(all: &mut VecDeque<Weak<CachedResponse>>) {
    if all.len() >= 2 * MEMFDS_MAX {
        all.retain(|one| one.strong_count() > 0);
    }
}

/// Closes the memfds that were not used since the last search, in one round at most, until there is
/// room. A memfd that a socket still sends takes its room until it is sent.
fn reclaim(all: &mut VecDeque<Weak<CachedResponse>>, length: usize) -> Option<Reservation> {
    for _ in 0..all.len() {
        let next = all.pop_front()?;
        // A dropped response has closed its memfd.
        if let Some(object) = next.upgrade() {
            let slot = &object.wire_form.memfd;
            let uses = slot.uses.load(Ordering::Relaxed);
            if uses > 0 {
                slot.uses.store(uses - 1, Ordering::Relaxed);
                all.push_back(next);
                continue;
            }
            slot.body.store(None);
        }
        if let Some(room) = Reservation::reserve(length) {
            return Some(room);
        }
    }
    None
}

impl AsFd for MemfdBody {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

#[cfg(target_os = "linux")]
fn sealed(body: &[u8]) -> Option<OwnedFd> {
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
    use rustix::io::Errno;
    use std::io::Write;

    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // Nobody executes a body. Kernels before 6.3 lack this flag.
    let file = match memfd_create("tollgate-body", flags | MemfdFlags::NOEXEC_SEAL) {
        Err(Errno::INVAL) => memfd_create("tollgate-body", flags),
        made => made,
    };
    let mut file = std::fs::File::from(file.ok()?);
    file.write_all(body).ok()?;
    let all = SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL;
    fcntl_add_seals(&file, all).ok()?;
    Some(file.into())
}

#[cfg(not(target_os = "linux"))]
fn sealed(_body: &[u8]) -> Option<OwnedFd> {
    None
}

#[cfg(test)]
#[cfg(all(target_os = "linux", feature = "cache", feature = "sqlite"))]
#[path = "memfd_tests.rs"]
mod tests;
