//! A large body once more, as a file in memory: the kernel hands its pages to a socket, and nobody
//! copies them.
//!
//! Promises: what is in it never changes, so what a socket still holds of it is right even when it is
//! gone. There are only so many, and they hold only so much.
//!
//! Never: touches a disk, or is the only place of a body. Where there can be none, bodies are copied.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;

/// Below this, one write of head and body costs less than two calls of the kernel.
const LEAST: usize = 32 * 1_024;

/// Above this, an answer is rare, and a few of them would take all the room.
const MOST: usize = 1_024 * 1_024;

/// Each is a descriptor, and those are for connections. What is asked for most is asked for first.
const SHEETS_MAX: usize = 128;

/// All of them together, in bytes: a quarter of what is kept in memory, which they come on top of.
const BYTES_MAX: usize = 16 * 1_024 * 1_024;

/// Descriptors and memory are those of the process.
static SHEETS: AtomicUsize = AtomicUsize::new(0);
static BYTES: AtomicUsize = AtomicUsize::new(0);

/// A body as a file in memory.
#[derive(Debug)]
pub struct Sheet {
    file: OwnedFd,
    /// It is counted as long as it is there.
    room: Room,
}

/// What one sheet takes of the bounds.
#[derive(Debug)]
struct Room(usize);

impl Room {
    fn take(length: usize) -> Option<Room> {
        let sheets = SHEETS.fetch_add(1, Ordering::AcqRel);
        let bytes = BYTES.fetch_add(length, Ordering::AcqRel);
        // Given back at once if it is too much.
        let room = Room(length);
        (sheets < SHEETS_MAX && bytes + length <= BYTES_MAX).then_some(room)
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        SHEETS.fetch_sub(1, Ordering::AcqRel);
        BYTES.fetch_sub(self.0, Ordering::AcqRel);
    }
}

impl Sheet {
    /// A body as a file, if that pays and there is room.
    pub(crate) fn of(body: &Bytes) -> Option<Arc<Sheet>> {
        if !(LEAST..=MOST).contains(&body.len()) || SHEETS.load(Ordering::Acquire) >= SHEETS_MAX {
            return None;
        }
        let room = Room::take(body.len())?;
        let file = sealed(body)?;
        Some(Arc::new(Sheet { file, room }))
    }

    /// Its length, in bytes; none is empty.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "none is empty")]
    pub fn len(&self) -> usize {
        self.room.0
    }
}

impl AsFd for Sheet {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

#[cfg(target_os = "linux")]
fn sealed(body: &[u8]) -> Option<OwnedFd> {
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
    use std::io::Write;

    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let mut file = std::fs::File::from(memfd_create("tollgate-body", flags).ok()?);
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
mod tests {
    use std::io::Write;
    use std::os::unix::fs::FileExt;

    use super::*;

    fn body(length: usize) -> Bytes {
        (0..=250).cycle().take(length).collect()
    }

    #[test]
    fn a_sheet_holds_its_body_and_cannot_be_changed() {
        let body = body(LEAST);
        let sheet = Sheet::of(&body).unwrap();
        let mut file = std::fs::File::from(sheet.as_fd().try_clone_to_owned().unwrap());
        let mut read = vec![0; LEAST];
        file.read_exact_at(&mut read, 0).unwrap();
        assert_eq!((read.as_slice(), sheet.len()), (&*body, LEAST));
        assert!(file.write_all(b"x").is_err());
        assert!(file.set_len(1).is_err());
    }

    #[test]
    fn short_and_huge_bodies_have_none() {
        assert!(Sheet::of(&body(LEAST - 1)).is_none());
        assert!(Sheet::of(&body(MOST + 1)).is_none());
    }

    /// Those of other tests may be there too, but never more than the bound.
    #[test]
    fn there_are_only_so_many_and_room_comes_back() {
        let most = body(MOST);
        let sheets: Vec<_> = (0..40).filter_map(|_| Sheet::of(&most)).collect();
        assert!((1..=BYTES_MAX / MOST).contains(&sheets.len()));
        assert!(Sheet::of(&most).is_none());
        drop(sheets);
        assert!(Sheet::of(&most).is_some());
    }
}
