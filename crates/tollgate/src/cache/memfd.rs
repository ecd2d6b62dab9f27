//! A large body once more, as a file in memory: the kernel hands its pages to a socket, and nobody
//! copies them.
//!
//! Promises: what is in it never changes, so what a socket still holds of it is right even when it is
//! gone. There are only so many, and they hold only so much; what is asked for more often takes the
//! place of what is asked for less.
//!
//! Never: touches a disk, or is the only place of a body. Where there can be none, bodies are copied.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;

use super::CachedResponse;

/// Below this, one write of head and body costs less than two calls of the kernel.
const BODY_MIN: usize = 32 * 1_024;

/// Above this, an answer is rare, and a few of them would take all the room.
const BODY_MAX: usize = 1_024 * 1_024;

/// Each is a descriptor, and those are for connections; a process with few has fewer
/// ([`sheets_at_most`]).
pub const MEMFDS_MAX: usize = 128;

/// All of them together, in bytes: a quarter of what is kept in memory, which they come on top of.
const BYTES_MAX: usize = 16 * 1_024 * 1_024;

/// Uses of a sheet that are remembered. Each look for room takes one away, so what is used more often
/// than room is looked for stays.
const USES_MAX: u8 = 3;

/// How often a body is wanted as a sheet before another gives way to it: what is sent once or twice
/// pushes nothing out.
const REQUESTS_MIN: u8 = 4;

/// Descriptors and memory are those of the process.
static MEMFDS: AtomicUsize = AtomicUsize::new(0);
static BYTES: AtomicUsize = AtomicUsize::new(0);
static MEMFDS_LIMIT: AtomicUsize = AtomicUsize::new(MEMFDS_MAX);
static BYTES_LIMIT: AtomicUsize = AtomicUsize::new(BYTES_MAX);

/// Whose sheets there are, the one that is looked at next first.
static OWNERS: Mutex<VecDeque<Weak<CachedResponse>>> = Mutex::new(VecDeque::new());

/// So many descriptors are for bodies, at most [`SHEETS_MAX`].
pub fn set_memfds_max(sheets: usize) {
    MEMFDS_LIMIT.store(sheets.min(MEMFDS_MAX), Ordering::Release);
}

/// So much is kept in memory, in bytes.
pub(super) fn set_memory_bytes(memory: u64) {
    let part = usize::try_from(memory / 4).unwrap_or(BYTES_MAX);
    BYTES_LIMIT.store(part.min(BYTES_MAX), Ordering::Release);
}

/// A body as a file in memory.
#[derive(Debug)]
pub struct MemfdBody {
    file: OwnedFd,
    /// It is counted as long as it is there.
    reservation: Reservation,
}

/// A body's sheet, while it has one, and how much that is wanted.
#[derive(Debug, Default)]
pub(crate) struct MemfdSlot {
    body: ArcSwapOption<MemfdBody>,
    uses: AtomicU8,
    requests: AtomicU8,
}

/// What one sheet takes of the bounds.
#[derive(Debug)]
struct Reservation(usize);

impl Reservation {
    fn reserve(length: usize) -> Option<Reservation> {
        let sheets = MEMFDS.fetch_add(1, Ordering::AcqRel);
        let bytes = BYTES.fetch_add(length, Ordering::AcqRel);
        // Given back at once if it is too much.
        let room = Reservation(length);
        let has_place = sheets < MEMFDS_LIMIT.load(Ordering::Acquire);
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
    /// The body of an answer as a file, if that pays and there is room, or others are wanted less.
    pub(crate) fn of(object: &Arc<CachedResponse>) -> Option<Arc<MemfdBody>> {
        let (shown, length) = (&object.wire_form.memfd, object.body.len());
        if !(BODY_MIN..=BODY_MAX).contains(&length) {
            return None;
        }
        if let Some(sheet) = shown.body.load_full() {
            let uses = shown.uses.load(Ordering::Relaxed);
            if uses < USES_MAX {
                shown.uses.store(uses + 1, Ordering::Relaxed);
            }
            return Some(sheet);
        }
        // Nobody waits for a sheet: a copy does as well.
        let mut all = OWNERS.try_lock()?;
        let room = match Reservation::reserve(length) {
            Some(room) => room,
            None => {
                let wishes = shown.requests.fetch_add(1, Ordering::Relaxed) + 1;
                if wishes < REQUESTS_MIN {
                    return None;
                }
                shown.requests.store(0, Ordering::Relaxed);
                reclaim(&mut all, length)?
            }
        };
        let sheet = Arc::new(MemfdBody {
            file: sealed(&object.body)?,
            reservation: room,
        });
        shown.body.store(Some(sheet.clone()));
        drop_dead_owners(&mut all);
        all.push_back(Arc::downgrade(object));
        Some(sheet)
    }

    /// Its length, in bytes; none is empty.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "none is empty")]
    pub fn len(&self) -> usize {
        self.reservation.0
    }
}

/// What is gone took its sheet along, but not its place in the list. Those that are there are at most
/// [`SHEETS_MAX`], so that half of a list of twice that can be forgotten.
fn drop_dead_owners(all: &mut VecDeque<Weak<CachedResponse>>) {
    if all.len() >= 2 * MEMFDS_MAX {
        all.retain(|one| one.strong_count() > 0);
    }
}

/// Takes the sheets of those that were not used since the last look, one round at most, until there is
/// room. What a socket still sends takes its room until it is sent.
fn reclaim(all: &mut VecDeque<Weak<CachedResponse>>, length: usize) -> Option<Reservation> {
    for _ in 0..all.len() {
        let next = all.pop_front()?;
        // One that is gone took its sheet along.
        if let Some(object) = next.upgrade() {
            let shown = &object.wire_form.memfd;
            let uses = shown.uses.load(Ordering::Relaxed);
            if uses > 0 {
                shown.uses.store(uses - 1, Ordering::Relaxed);
                all.push_back(next);
                continue;
            }
            shown.body.store(None);
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
    // Nobody runs a body. Kernels before 6.3 do not know how to say that.
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

#[cfg(all(test, target_os = "linux"))]
#[path = "memfd_tests.rs"]
mod tests;
