//! One accepted connection that can be reset on demand.
//!
//! Promises: a connection with a requested reset sends RST, not FIN, whatever was buffered; a
//! request that gets a reset before it is read is never read.
//!
//! Never: inspects the bytes.

use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::Notify;

/// Lets the handler of a connection's requests reset the connection.
#[derive(Debug, Default)]
pub(crate) struct ConnectionControl {
    reset: AtomicBool,
    reset_requested: Notify,
}

impl ConnectionControl {
    /// Resets the connection with RST.
    pub(crate) fn reset(&self) {
        self.reset.store(true, Ordering::Release);
        self.reset_requested.notify_one();
    }

    /// Returns when a reset has been requested.
    pub(crate) async fn wait_for_reset(&self) {
        self.reset_requested.notified().await;
    }
}

/// Decides whether bytes that wait now may be read. `may_reset` is called often and uses nothing
/// up; `resets` is called only when there are bytes.
pub(crate) trait ResetPolicy {
    /// Whether a reset is possible at all right now.
    fn may_reset(&self) -> bool;
    /// Whether these bytes cause a reset.
    fn resets(&self) -> bool;
}

/// The socket of an accepted connection.
#[derive(Debug)]
pub(crate) struct FaultStream<D> {
    stream: TcpStream,
    control: Arc<ConnectionControl>,
    policy: D,
}

impl<D> FaultStream<D> {
    pub(crate) fn new(
        stream: TcpStream,
        control: Arc<ConnectionControl>,
        policy: D,
    ) -> FaultStream<D> {
        FaultStream {
            stream,
            control,
            policy,
        }
    }
}

impl<D> Drop for FaultStream<D> {
    fn drop(&mut self) {
        if self.control.reset.load(Ordering::Acquire) {
            // Closing with zero linger sends RST and discards the buffer. If the peer was faster
            // and the socket is closed already, there is nothing to reset.
            self.stream.set_zero_linger().ok();
        }
    }
}

impl<D: ResetPolicy + Unpin> AsyncRead for FaultStream<D> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.policy.may_reset() {
            let mut one = [MaybeUninit::uninit(); 1];
            let waiting = ready!(self.stream.poll_peek(cx, &mut ReadBuf::uninit(&mut one)))?;
            if waiting > 0 && self.policy.resets() {
                self.control.reset();
                return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
            }
        }
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<D: Unpin> AsyncWrite for FaultStream<D> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.control.reset.load(Ordering::Acquire) {
            // A shutdown first would make the client see FIN instead of RST.
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
