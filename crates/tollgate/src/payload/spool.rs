//! Request bodies in files: what is too large for memory, before its permit is asked for.
//!
//! Promises: a file has no name, so it is gone with its call or its process, and nobody else can
//! open it. All files together are bounded, in bytes and in number: room is taken before it is
//! written. Disks are read and written on blocking threads.
//!
//! Never: holds more than one piece of a file in memory.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use tokio::task::JoinHandle;

use super::BodyError;

/// How much is written or read at a time: a few pieces are faster than many small ones, and 100
/// uploads at a time are 25 MiB.
const PIECE: usize = 256 * 1024;

/// All files of this process together. With more, a body is streamed from where its file is full:
/// 16 uploads of the default `spool`, or a thousand of 1 MiB, which any disk has.
const TOTAL_MAX: u64 = 1 << 30;

/// The most files, unless the program knows how many descriptors it has: few enough for the usual
/// 1,024 descriptors of a process.
const FILES_MAX: usize = 64;

/// What all files together may take.
#[derive(Debug)]
pub(crate) struct SpoolSpace {
    bytes: AtomicU64,
    bytes_max: u64,
    files: AtomicUsize,
    files_max: AtomicUsize,
}

/// Disks and descriptors belong to the process.
static OF_PROCESS: SpoolSpace = SpoolSpace::new(TOTAL_MAX, FILES_MAX);

/// Sets how many request bodies may be in files at a time: each takes a descriptor.
pub fn set_spool_files_max(files: usize) {
    OF_PROCESS.files_max.store(files, Ordering::Relaxed);
}

impl SpoolSpace {
    pub(super) const fn new(bytes_max: u64, files_max: usize) -> SpoolSpace {
        SpoolSpace {
            bytes: AtomicU64::new(0),
            bytes_max,
            files: AtomicUsize::new(0),
            files_max: AtomicUsize::new(files_max),
        }
    }

    /// The one of this process.
    pub(crate) fn of_process() -> &'static SpoolSpace {
        &OF_PROCESS
    }

    /// How many bytes all files have.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Room for so many more bytes. `false`: there is none.
    fn reserve(&self, bytes: u64) -> bool {
        let more = |held: u64| {
            let all = held.checked_add(bytes)?;
            (all <= self.bytes_max).then_some(all)
        };
        let (set, fetch) = (Ordering::Relaxed, Ordering::Relaxed);
        self.bytes.fetch_update(set, fetch, more).is_ok()
    }
}

/// The place of one file, and its bytes. Dropping it frees both.
#[derive(Debug)]
struct SpoolPlace {
    space: &'static SpoolSpace,
    bytes: u64,
}

impl SpoolPlace {
    fn open(space: &'static SpoolSpace) -> Option<SpoolPlace> {
        let place = SpoolPlace { space, bytes: 0 };
        let before = space.files.fetch_add(1, Ordering::Relaxed);
        (before < space.files_max.load(Ordering::Relaxed)).then_some(place)
    }

    /// Room for so many more bytes. `false`: there is none.
    fn reserve(&mut self, bytes: u64) -> bool {
        let has_room = self.space.reserve(bytes);
        self.bytes += if has_room { bytes } else { 0 };
        has_room
    }
}

impl Drop for SpoolPlace {
    fn drop(&mut self) {
        self.space.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
        self.space.files.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A request body, or its beginning, in a file.
#[derive(Debug)]
pub(crate) struct Spool {
    file: Arc<File>,
    length: u64,
    pub(super) trailers: Option<Box<HeaderMap>>,
    place: SpoolPlace,
}

impl Spool {
    /// All of it, if it has at most so many bytes.
    pub(super) async fn read(&self, most: usize) -> Option<io::Result<Bytes>> {
        let length = usize::try_from(self.length).ok()?;
        if length > most {
            return None;
        }
        let read = read_piece(self.file.clone(), 0, length).await;
        Some(read.map_err(io::Error::other).flatten())
    }
}

/// A file that is being written.
#[derive(Debug)]
pub(super) struct SpoolWriter {
    spool: Spool,
    max: u64,
    /// One buffer: many small pieces would take far more memory than their bytes.
    pending: BytesMut,
}

impl SpoolWriter {
    /// A new file for at most `max` bytes. `None`: there can be none, so the body is streamed.
    pub(super) async fn create(space: &'static SpoolSpace, max: u64) -> Option<SpoolWriter> {
        let place = SpoolPlace::open(space)?;
        let file = tokio::task::spawn_blocking(unnamed_file).await.ok()?.ok()?;
        Some(SpoolWriter {
            spool: Spool {
                file: Arc::new(file),
                length: 0,
                trailers: None,
                place,
            },
            max,
            pending: BytesMut::new(),
        })
    }

    /// Adds bytes. `false`: the file has no room for them, and they were not added.
    pub(super) async fn push(&mut self, bytes: &[u8]) -> io::Result<bool> {
        let place = &mut self.spool.place;
        let more = bytes.len() as u64;
        if place.bytes + more > self.max || !place.reserve(more) {
            return Ok(false);
        }
        if self.pending.len() + bytes.len() > PIECE {
            self.flush().await?;
        }
        self.pending.extend_from_slice(bytes);
        Ok(true)
    }

    /// The memory that it takes while it is written: little for a small body.
    pub(super) fn memory(&self) -> usize {
        self.pending.capacity()
    }

    /// The body, when everything is written.
    pub(super) async fn finish(mut self, trailers: Option<HeaderMap>) -> io::Result<Arc<Spool>> {
        self.flush().await?;
        self.spool.trailers = trailers.map(Box::new);
        Ok(Arc::new(self.spool))
    }

    async fn flush(&mut self) -> io::Result<()> {
        let piece = std::mem::take(&mut self.pending);
        let (file, at) = (self.spool.file.clone(), self.spool.length);
        self.spool.length += piece.len() as u64;
        let written = tokio::task::spawn_blocking(move || file.write_all_at(&piece, at));
        written.await.map_err(io::Error::other)?
    }
}

/// A file without a name, in the folder for temporary files.
fn unnamed_file() -> io::Result<File> {
    let folder = std::env::temp_dir();
    let mut options = File::options();
    options.read(true).write(true).mode(0o600);
    let flags = rustix::fs::OFlags::TMPFILE.bits();
    if let Ok(flags) = i32::try_from(flags)
        && let Ok(file) = options.clone().custom_flags(flags).open(&folder)
    {
        return Ok(file);
    }
    // A file system without nameless files: the name lives for a moment.
    static FILES: AtomicU64 = AtomicU64::new(0);
    let number = FILES.fetch_add(1, Ordering::Relaxed);
    let path = folder.join(format!("tollgate-{}-{number}", std::process::id()));
    let file = options.create_new(true).open(&path)?;
    std::fs::remove_file(&path)?;
    Ok(file)
}

/// The bytes of a file, as a body.
#[derive(Debug)]
pub(super) struct SpoolReader {
    spool: Arc<Spool>,
    at: u64,
    reading: Option<JoinHandle<io::Result<Bytes>>>,
    trailers: Option<Box<HeaderMap>>,
}

impl SpoolReader {
    pub(super) fn new(spool: Arc<Spool>) -> SpoolReader {
        SpoolReader {
            trailers: spool.trailers.clone(),
            spool,
            at: 0,
            reading: None,
        }
    }

    /// The bytes that are still to come.
    pub(super) fn remaining(&self) -> u64 {
        self.spool.length.saturating_sub(self.at)
    }

    /// Reads the next piece.
    fn read(&self) -> JoinHandle<io::Result<Bytes>> {
        let length =
            usize::try_from(self.remaining()).map_or(PIECE, |remaining| remaining.min(PIECE));
        read_piece(self.spool.file.clone(), self.at, length)
    }
}

fn read_piece(file: Arc<File>, at: u64, length: usize) -> JoinHandle<io::Result<Bytes>> {
    tokio::task::spawn_blocking(move || {
        let mut piece = BytesMut::zeroed(length);
        file.read_exact_at(&mut piece, at)?;
        Ok(piece.freeze())
    })
}

impl Body for SpoolReader {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if self.remaining() == 0 {
            let trailers = self.trailers.take();
            return Poll::Ready(trailers.map(|trailers| Ok(Frame::trailers(*trailers))));
        }
        let mut reading = match self.reading.take() {
            Some(reading) => reading,
            None => self.read(),
        };
        let Poll::Ready(read) = Pin::new(&mut reading).poll(cx) else {
            self.reading = Some(reading);
            return Poll::Pending;
        };
        let piece = read.map_err(io::Error::other).flatten()?;
        self.at += piece.len() as u64;
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.remaining() == 0 && self.trailers.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        match &self.trailers {
            // Trailers need chunked encoding, so there is no length.
            Some(_) => SizeHint::default(),
            None => SizeHint::with_exact(self.remaining()),
        }
    }
}
