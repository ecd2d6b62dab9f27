//! Request bodies in files: what is too large for memory, before its permit is asked for.
//!
//! Promises: a file has no name, so it is gone with its call or its process, and nobody else can
//! open it. All files together are bounded. Disks are read and written on blocking threads.
//!
//! Never: holds more than one piece of a file in memory.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
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

/// The bytes of all files.
static TOTAL: AtomicU64 = AtomicU64::new(0);

/// A request body, or its beginning, in a file.
#[derive(Debug)]
pub(crate) struct Spool {
    file: Arc<File>,
    length: u64,
    pub(super) trailers: Option<Box<HeaderMap>>,
}

/// A file that is being written.
#[derive(Debug)]
pub(super) struct SpoolWriter {
    spool: Spool,
    max: u64,
    pending: Vec<Bytes>,
    pending_bytes: usize,
}

impl SpoolWriter {
    /// A new file for at most `max` bytes. `None`: there can be none, so the body is streamed.
    pub(super) async fn create(max: u64) -> Option<SpoolWriter> {
        let file = tokio::task::spawn_blocking(unnamed_file).await.ok()?.ok()?;
        Some(SpoolWriter {
            spool: Spool {
                file: Arc::new(file),
                length: 0,
                trailers: None,
            },
            max,
            pending: Vec::new(),
            pending_bytes: 0,
        })
    }

    /// Adds bytes. `false`: the file is full with them.
    pub(super) async fn push(&mut self, bytes: Bytes) -> io::Result<bool> {
        self.pending_bytes += bytes.len();
        self.pending.push(bytes);
        if self.pending_bytes >= PIECE {
            self.flush().await?;
        }
        let length = self.spool.length + self.pending_bytes as u64;
        Ok(length < self.max && TOTAL.load(Ordering::Relaxed) < TOTAL_MAX)
    }

    /// The body, when everything is written.
    pub(super) async fn finish(mut self, trailers: Option<HeaderMap>) -> io::Result<Arc<Spool>> {
        self.flush().await?;
        self.spool.trailers = trailers.map(Box::new);
        Ok(Arc::new(self.spool))
    }

    async fn flush(&mut self) -> io::Result<()> {
        let pieces = std::mem::take(&mut self.pending);
        let (file, mut at) = (self.spool.file.clone(), self.spool.length);
        let bytes = std::mem::take(&mut self.pending_bytes) as u64;
        // Counted before it is written: a file that is dropped meanwhile returns all of it.
        self.spool.length += bytes;
        TOTAL.fetch_add(bytes, Ordering::Relaxed);
        let written = tokio::task::spawn_blocking(move || {
            for piece in pieces {
                file.write_all_at(&piece, at)?;
                at += piece.len() as u64;
            }
            Ok(())
        });
        written.await.map_err(io::Error::other)?
    }
}

impl Drop for Spool {
    fn drop(&mut self) {
        TOTAL.fetch_sub(self.length, Ordering::Relaxed);
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
        let (file, at) = (self.spool.file.clone(), self.at);
        let length =
            usize::try_from(self.remaining()).map_or(PIECE, |remaining| remaining.min(PIECE));
        tokio::task::spawn_blocking(move || {
            let mut piece = BytesMut::zeroed(length);
            file.read_exact_at(&mut piece, at)?;
            Ok(piece.freeze())
        })
    }
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
