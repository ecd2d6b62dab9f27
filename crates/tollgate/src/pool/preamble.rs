//! Watches the bytes before a response: hints (1xx) and the head itself.
//!
//! Promises: cuts off a provider that keeps sending without starting a response after
//! [`BYTES_MAX`], long before the first-byte timeout. Bodies are not counted. Tells whether the
//! bytes that arrived with a head can be a chunk.
//!
//! Never: changes a byte.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::head_scan::HeadScan;
use crate::failpoint;

/// The most bytes before a response begins. A head has at most 64 KiB, one or two hints are usual,
/// and the first chunks of the body may be read along with it.
const BYTES_MAX: u64 = 1024 * 1024;

/// Nothing is counted.
const UNCOUNTED: u64 = u64::MAX;

/// How many bytes one connection may still receive before its response begins.
#[derive(Clone, Debug)]
pub(crate) struct Preamble {
    state: Arc<PreambleState>,
}

#[derive(Debug)]
struct PreambleState {
    remaining: AtomicU64,
    has_bad_chunk: AtomicBool,
}

impl Preamble {
    /// A request is sent: its response has not begun.
    pub(crate) fn start(&self) {
        self.state.has_bad_chunk.store(false, Ordering::Relaxed);
        self.state.remaining.store(BYTES_MAX, Ordering::Relaxed);
    }

    /// The response has begun.
    pub(crate) fn finish(&self) {
        self.state.remaining.store(UNCOUNTED, Ordering::Relaxed);
    }

    /// The bytes that arrived with the head cannot be a chunk.
    pub(crate) fn has_bad_chunk(&self) -> bool {
        self.state.has_bad_chunk.load(Ordering::Relaxed)
    }
}

/// A connection whose preambles are counted.
#[derive(Debug)]
pub(super) struct CountedStream<S> {
    stream: S,
    preamble: Preamble,
    scan: HeadScan,
}

impl<S> CountedStream<S> {
    pub(super) fn new(stream: S) -> (CountedStream<S>, Preamble) {
        let preamble = Preamble {
            state: Arc::new(PreambleState {
                remaining: AtomicU64::new(UNCOUNTED),
                has_bad_chunk: AtomicBool::new(false),
            }),
        };
        let counted = CountedStream {
            stream,
            preamble: preamble.clone(),
            scan: HeadScan::default(),
        };
        (counted, preamble)
    }

    /// Bytes have arrived. `false`: the bound is exceeded.
    fn take(&mut self, bytes: &[u8]) -> bool {
        let state = &*self.preamble.state;
        let left = state.remaining.load(Ordering::Relaxed);
        if left == UNCOUNTED {
            return true;
        }
        if left == BYTES_MAX {
            self.scan = HeadScan::default(); // the first bytes since the request
        }
        if self.scan.ends_in_bad_chunk(bytes) {
            state.has_bad_chunk.store(true, Ordering::Relaxed);
        }
        let length = u64::try_from(bytes.len()).unwrap_or(UNCOUNTED);
        let rest = left.saturating_sub(length);
        state.remaining.store(rest, Ordering::Relaxed);
        length <= left
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for CountedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buf))?;
        if self.take(buf.filled().get(before..).unwrap_or_default()) {
            Poll::Ready(Ok(()))
        } else {
            Poll::Ready(Err(io::ErrorKind::InvalidData.into()))
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for CountedStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.stream).poll_write(cx, bytes));
        failpoint::reached("sent");
        Poll::Ready(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(match pieces {
            // A request without a body. A plain write costs less than a vectored one.
            [one] => Pin::new(&mut self.stream).poll_write(cx, one),
            _ => Pin::new(&mut self.stream).poll_write_vectored(cx, pieces),
        });
        failpoint::reached("sent");
        Poll::Ready(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[tokio::test]
    async fn bytes_before_a_response_are_bounded_and_bodies_are_not() {
        let (mut far, near) = tokio::io::duplex(64 * 1024);
        let (mut counted, preamble) = CountedStream::new(near);
        tokio::spawn(async move { while far.write_all(&[b'x'; 4_096]).await.is_ok() {} });
        let mut piece = vec![0; 4_096];
        for _ in 0..2 * BYTES_MAX / 4_096 {
            counted.read_exact(&mut piece).await.unwrap();
        }
        preamble.start();
        for _ in 0..BYTES_MAX / 4_096 {
            counted.read_exact(&mut piece).await.unwrap();
        }
        let error = counted.read_exact(&mut piece).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        preamble.finish();
        counted.read_exact(&mut piece).await.unwrap();
    }
}
