//! What happens on a connection between a request and its response: when the request has left, and
//! how many bytes come before the response (hints, 1xx, and the head itself).
//!
//! Promises: cuts off a provider that keeps sending without starting a response after
//! [`BYTES_MAX`], long before the first-byte timeout. Bodies are not counted. Tells whether the
//! bytes that arrived with a head can be a chunk. A request has left when the kernel has its last
//! byte, and is acknowledged when the peer's kernel has it.
//!
//! Never: changes a byte.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tollgate_core::time::Micros;
use tollgate_ledger::Ledger;

use super::head_scan::HeadScan;
use super::send_queue::SendQueue;
use crate::failpoint;

/// The most bytes before a response begins. A head has at most 64 KiB, one or two hints are usual,
/// and the first chunks of the body may be read along with it.
const BYTES_MAX: u64 = 1024 * 1024;

/// Nothing is counted.
const UNCOUNTED: u64 = u64::MAX;

/// The request has not left.
const NOT_SENT: u64 = u64::MAX;

/// The request that is under way on one connection, for the call that waits for its response.
#[derive(Clone, Debug)]
pub(crate) struct Preamble {
    shared: Arc<Exchange>,
}

#[derive(Debug)]
struct Exchange {
    /// How many bytes may still come before the response begins.
    remaining: AtomicU64,
    /// When the kernel had all bytes written so far, on the ledger's clock.
    sent_at: AtomicU64,
    queue: SendQueue,
    /// A request was started, and no byte has come since.
    is_unanswered: AtomicBool,
    /// The bytes that arrived with the head cannot be a chunk.
    has_bad_chunk: AtomicBool,
}

impl Preamble {
    /// A request is sent: its response has not begun.
    pub(crate) fn start(&self) {
        self.shared.is_unanswered.store(true, Ordering::Relaxed);
        self.shared.has_bad_chunk.store(false, Ordering::Relaxed);
        self.shared.sent_at.store(NOT_SENT, Ordering::Relaxed);
        self.shared.remaining.store(BYTES_MAX, Ordering::Relaxed);
    }

    /// The response has begun.
    pub(crate) fn finish(&self) {
        self.shared.remaining.store(UNCOUNTED, Ordering::Relaxed);
    }

    /// When the last byte written so far was handed to the kernel.
    pub(crate) fn sent_at(&self) -> Option<Micros> {
        let sent_at = self.shared.sent_at.load(Ordering::Relaxed);
        (sent_at != NOT_SENT).then_some(Micros(sent_at))
    }

    /// The peer's kernel has all bytes of the request that have left.
    pub(crate) fn is_acknowledged(&self) -> bool {
        self.sent_at().is_some() && self.shared.queue.is_empty()
    }

    /// The bytes that arrived with the head cannot be a chunk.
    pub(crate) fn has_bad_chunk(&self) -> bool {
        self.shared.has_bad_chunk.load(Ordering::Relaxed)
    }
}

/// A stream over one TCP connection.
pub(super) trait OverTcp {
    /// The connection; `None` in tests that have none.
    fn tcp(&self) -> Option<&TcpStream>;
}

impl OverTcp for TcpStream {
    fn tcp(&self) -> Option<&TcpStream> {
        Some(self)
    }
}

/// A connection whose preambles are counted.
#[derive(Debug)]
pub(super) struct CountedStream<S: OverTcp> {
    stream: S,
    preamble: Preamble,
    scan: HeadScan,
    clock: Ledger,
    /// Bytes were written and not flushed.
    is_unflushed: bool,
}

impl<S: OverTcp> CountedStream<S> {
    pub(super) fn new(stream: S, clock: Ledger) -> (CountedStream<S>, Preamble) {
        let preamble = Preamble {
            shared: Arc::new(Exchange {
                remaining: AtomicU64::new(UNCOUNTED),
                sent_at: AtomicU64::new(NOT_SENT),
                queue: SendQueue::of(stream.tcp()),
                is_unanswered: AtomicBool::new(false),
                has_bad_chunk: AtomicBool::new(false),
            }),
        };
        let counted = CountedStream {
            stream,
            preamble: preamble.clone(),
            scan: HeadScan::default(),
            clock,
            is_unflushed: false,
        };
        (counted, preamble)
    }

    /// Bytes have arrived. `false`: the bound is exceeded.
    fn take(&mut self, bytes: &[u8]) -> bool {
        let state = &*self.preamble.shared;
        if !bytes.is_empty() {
            state.is_unanswered.store(false, Ordering::Relaxed);
        }
        let remaining = state.remaining.load(Ordering::Relaxed);
        if remaining == UNCOUNTED {
            return true;
        }
        if remaining == BYTES_MAX {
            self.scan = HeadScan::default(); // the first bytes since the request
        }
        if self.scan.ends_in_bad_chunk(bytes) {
            state.has_bad_chunk.store(true, Ordering::Relaxed);
        }
        let length = u64::try_from(bytes.len()).unwrap_or(UNCOUNTED);
        let rest = remaining.saturating_sub(length);
        state.remaining.store(rest, Ordering::Relaxed);
        length <= remaining
    }

    fn wrote(&mut self, written: &io::Result<usize>) {
        if written.is_ok() {
            self.is_unflushed = true;
            self.preamble
                .shared
                .sent_at
                .store(NOT_SENT, Ordering::Relaxed);
        }
        failpoint::reached("sent");
    }
}

impl<S: OverTcp> Drop for CountedStream<S> {
    /// A request that is given up must not arrive later: the kernel would go on to send what the peer
    /// has not acknowledged for minutes after `close`. With a linger time of zero it drops it.
    fn drop(&mut self) {
        let shared = &self.preamble.shared;
        if shared.is_unanswered.load(Ordering::Relaxed)
            && !shared.queue.is_empty()
            && let Some(tcp) = self.stream.tcp()
        {
            // Without it the call may still arrive within `late_arrival`, as before.
            let _is_set = rustix::net::sockopt::set_socket_linger(tcp, Some(Duration::ZERO));
        }
        shared.queue.close();
    }
}

impl<S: AsyncRead + OverTcp + Unpin> AsyncRead for CountedStream<S> {
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

impl<S: AsyncWrite + OverTcp + Unpin> AsyncWrite for CountedStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.stream).poll_write(cx, bytes));
        self.wrote(&written);
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
        self.wrote(&written);
        Poll::Ready(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    /// hyper flushes when it has written all that it has.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.stream).poll_flush(cx))?;
        if self.is_unflushed {
            self.is_unflushed = false;
            let now = self.clock.at();
            self.preamble.shared.sent_at.store(now.0, Ordering::Relaxed);
        }
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use socket2::{SockFilter, SockRef};
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
    use tokio::net::TcpListener;
    use tollgate_core::time::{Now, Span};
    use tollgate_ledger::{Clock, ManualClock};

    impl OverTcp for DuplexStream {
        fn tcp(&self) -> Option<&TcpStream> {
            None
        }
    }

    fn ledger() -> (Arc<ManualClock>, Ledger) {
        let clock = ManualClock::new(Now::default());
        let ledger = Ledger::memory(Clock::Manual(clock.clone()));
        (clock, ledger)
    }

    #[tokio::test]
    async fn a_request_has_left_when_it_is_flushed() {
        let (clock, ledger) = ledger();
        let (_far, near) = tokio::io::duplex(1024);
        let (mut counted, preamble) = CountedStream::new(near, ledger);
        preamble.start();
        counted.write_all(b"GET / ").await.unwrap();
        assert_eq!(preamble.sent_at(), None, "it is not flushed");
        clock.pass(Span::from_secs(1));
        counted.flush().await.unwrap();
        assert_eq!(preamble.sent_at(), Some(Micros(1_000_000)));
        clock.pass(Span::from_secs(1));
        counted.flush().await.unwrap();
        assert_eq!(preamble.sent_at(), Some(Micros(1_000_000)), "nothing more");
        preamble.start();
        assert_eq!(preamble.sent_at(), None, "the next request has not left");
    }

    /// Drops every segment with data, so that the kernel acknowledges none: the length of a segment is
    /// that of its header, 60 bytes at most, and of its data.
    fn drop_data(listener: &TcpListener) {
        let filter = [
            SockFilter::new(0x80, 0, 0, 0),        // load the length
            SockFilter::new(0x25, 0, 1, 60),       // more than 60?
            SockFilter::new(0x06, 0, 0, 0),        // drop it
            SockFilter::new(0x06, 0, 0, u32::MAX), // else pass it
        ];
        let socket = SockRef::from(listener);
        socket.attach_filter(&filter).expect("a classic filter");
    }

    /// A request of 100 bytes to this peer, which reads nothing.
    async fn sent_to(listener: &TcpListener) -> (CountedStream<TcpStream>, Preamble, TcpStream) {
        let address = listener.local_addr().unwrap();
        let (near, far) = tokio::join!(TcpStream::connect(address), listener.accept());
        let (mut counted, preamble) = CountedStream::new(near.unwrap(), ledger().1);
        preamble.start();
        counted.write_all(&[b'x'; 100]).await.unwrap();
        assert!(!preamble.is_acknowledged(), "it is not flushed");
        counted.flush().await.unwrap();
        (counted, preamble, far.unwrap().0)
    }

    /// The kernel itself says whether the peer has the bytes, also if the peer does not read them.
    #[tokio::test]
    async fn a_request_is_acknowledged_when_the_peer_s_kernel_has_it() {
        let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
        drop_data(&silent);
        let (_counted, unheard, _peer) = sent_to(&silent).await;
        let normal = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (counted, heard, _peer) = sent_to(&normal).await;
        let began = Clock::System.at();
        while !heard.is_acknowledged() {
            let passed = Clock::System.at().since(began);
            assert!(passed < Span::from_secs(10), "the peer acknowledges");
            tokio::task::yield_now().await;
        }
        assert!(!unheard.is_acknowledged(), "the other one never does");
        drop(counted);
        assert!(!heard.is_acknowledged(), "nothing is known of a closed one");
    }

    /// Symptom: the kernel sent the request of a caller that had left again and again, for minutes.
    #[tokio::test]
    async fn a_request_that_is_given_up_is_dropped_by_the_kernel() {
        let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
        drop_data(&silent);
        let (counted, _, mut peer) = sent_to(&silent).await;
        drop(counted);
        let mut bytes = [0; 8];
        let read = peer.read(&mut bytes);
        let end = tokio::time::timeout(Duration::from_secs(5), read).await;
        let error = end.expect("the connection is reset").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    }

    #[tokio::test]
    async fn bytes_before_a_response_are_bounded_and_bodies_are_not() {
        let (mut far, near) = tokio::io::duplex(64 * 1024);
        let (mut counted, preamble) = CountedStream::new(near, ledger().1);
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

    #[tokio::test]
    async fn a_bad_chunk_is_found_in_every_response_of_a_connection() {
        let (mut far, near) = tokio::io::duplex(4_096);
        let (mut counted, preamble) = CountedStream::new(near, ledger().1);
        let head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
        let (good, bad) = (&b"0\r\n\r\n"[..], &b"zz\r\n"[..]);
        for (chunk, is_bad) in [(good, false), (bad, true), (good, false), (bad, true)] {
            preamble.start();
            let text = [&head[..], chunk].concat();
            far.write_all(&text).await.unwrap();
            let mut read = vec![0; text.len()];
            counted.read_exact(&mut read).await.unwrap();
            assert_eq!(preamble.has_bad_chunk(), is_bad);
            preamble.finish();
        }
    }
}
