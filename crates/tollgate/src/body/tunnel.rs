//! A tunnel: an upgraded call, with bytes in both directions until both sides are done.
//!
//! Promises: one permit, which counts against the concurrency until the tunnel ends. Each side may
//! close its own direction and still receive. A tunnel without traffic for `timeout.tunnel` is
//! closed. Where we end a WebSocket between two frames, both sides get a close frame. After a clean
//! end the permit is settled; after a broken one it counts as a call that may continue at the
//! provider for a while.
//!
//! Never: interprets the bytes, except where a frame of a WebSocket ends.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use http::HeaderValue;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tollgate_core::time::Span;

use super::websocket::{CloseReason, FrameTracker};
use crate::Permit;
use crate::timer::{sleep, within};

/// Idle checks per idle timeout: a tunnel lives at most a quarter longer than configured.
const IDLE_CHECKS: u64 = 4;

/// The longest time between two checks. Each extends the hold of the permit, and the hold of a
/// process that dies should end soon.
const CHECK_EVERY: Span = Span::from_secs(15);

/// How much longer than four checks a permit is held, so that the next report is in time.
const MARGIN: Span = Span::from_secs(1);

/// How long both sides may take to read a close frame and to close.
const CLOSE_WAIT: Span = Span::from_millis(500);

/// The upstream side of an upgraded call, with its permit.
#[derive(Debug)]
pub struct Tunnel {
    pub(super) upstream: OnUpgrade,
    pub(super) permit: Permit,
    pub(super) idle: Span,
    pub(super) is_websocket: bool,
}

impl Tunnel {
    /// The protocol is this, as in the header `Upgrade`.
    #[must_use]
    pub fn speaking(self, protocol: Option<&HeaderValue>) -> Tunnel {
        let is_websocket =
            protocol.is_some_and(|name| name.as_bytes().eq_ignore_ascii_case(b"websocket"));
        Tunnel {
            is_websocket,
            ..self
        }
    }

    /// Copies bytes between the caller and the upstream until both are done, one fails, the tunnel
    /// is idle, or `ended`.
    pub async fn run<S>(self, mut caller: S, ended: impl Future<Output = ()>)
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let Tunnel {
            upstream,
            mut permit,
            idle,
            is_websocket,
        } = self;
        let Ok(Ok(upstream)) = within(Some(idle), upstream).await else {
            return;
        };
        let moved = AtomicU64::new(0);
        let mut caller = Counted::new(&mut caller, &moved);
        let mut upstream = Counted::new(TokioIo::new(upstream), &moved);
        let end = tokio::select! {
            carried = tokio::io::copy_bidirectional(&mut caller, &mut upstream) => Err(carried.is_ok()),
            () = until_idle(&moved, idle, &mut permit) => Ok(CloseReason::Idle),
            () = ended => Ok(CloseReason::ShuttingDown),
        };
        if let (Ok(reason), true) = (end, is_websocket) {
            let closed = close(&mut caller, &mut upstream, reason);
            let _late = within(Some(CLOSE_WAIT), closed).await;
        }
        // Closed before the permit is released.
        drop(upstream);
        if end == Err(true) {
            permit.finished(|_| None);
        }
    }
}

/// Sends close frames to both sides, and waits until they close. Neither waits for the other: one
/// that does not read would keep the other from its frame.
async fn close<A, B>(
    caller: &mut Counted<'_, A>,
    upstream: &mut Counted<'_, B>,
    reason: CloseReason,
) where
    A: AsyncRead + AsyncWrite + Unpin,
    B: AsyncRead + AsyncWrite + Unpin,
{
    let (frame, masked) = (reason.frame(), reason.masked_frame());
    tokio::join!(caller.close(&frame), upstream.close(&masked));
}

/// Waits until the tunnel has been idle for the timeout; extends the hold of the permit meanwhile.
async fn until_idle(moved: &AtomicU64, idle: Span, permit: &mut Permit) {
    let check_every = Span((idle.0 / IDLE_CHECKS).clamp(1, CHECK_EVERY.0));
    let mut seen = moved.load(Ordering::Relaxed);
    let mut quiet = Span::ZERO;
    while quiet < idle {
        permit.keep_alive(Span(check_every.0 * IDLE_CHECKS) + MARGIN);
        sleep(Some(check_every)).await;
        let now = moved.load(Ordering::Relaxed);
        quiet = if now == seen {
            quiet + check_every
        } else {
            Span::ZERO
        };
        seen = now;
    }
}

/// Counts the pieces that arrive from one side, and follows the frames that are sent to it.
struct Counted<'a, S> {
    stream: S,
    moved: &'a AtomicU64,
    sent: FrameTracker,
}

impl<'a, S> Counted<'a, S> {
    fn new(stream: S, moved: &'a AtomicU64) -> Counted<'a, S> {
        Counted {
            stream,
            moved,
            sent: FrameTracker::default(),
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Counted<'_, S> {
    /// Sends a last frame, and waits until the other side closes.
    async fn close(&mut self, frame: &[u8]) {
        self.send_frame(frame).await;
        self.read_out().await;
    }

    /// Sends a last frame, unless it would be in the middle of another.
    async fn send_frame(&mut self, frame: &[u8]) {
        if self.sent.is_between() && self.stream.write_all(frame).await.is_ok() {
            self.stream.shutdown().await.ok();
        }
    }

    /// Reads what still comes: closing with unread bytes would discard the last frame.
    async fn read_out(&mut self) {
        tokio::io::copy(&mut self.stream, &mut tokio::io::sink())
            .await
            .ok();
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Counted<'_, S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let counted = self.get_mut();
        let read = Pin::new(&mut counted.stream).poll_read(cx, buf);
        if read.is_ready() {
            counted.moved.fetch_add(1, Ordering::Relaxed);
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Counted<'_, S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let counted = self.get_mut();
        let written = Pin::new(&mut counted.stream).poll_write(cx, bytes);
        if let Poll::Ready(Ok(length)) = &written {
            counted.sent.feed(bytes.get(..*length).unwrap_or_default());
        }
        written
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt;

    use super::*;

    /// At a shutdown, a side that did not read kept the other one from its close frame.
    #[tokio::test(start_paused = true)]
    async fn a_side_that_does_not_read_does_not_delay_the_close_frame_of_the_other() {
        let moved = AtomicU64::new(0);
        let reason = CloseReason::ShuttingDown;
        let (frame, masked) = (reason.frame().to_vec(), reason.masked_frame().to_vec());
        for caller_is_stuck in [true, false] {
            let room = |is_stuck: bool| if is_stuck { 1 } else { 64 };
            let (mut client, caller) = tokio::io::duplex(room(caller_is_stuck));
            let (mut provider, upstream) = tokio::io::duplex(room(!caller_is_stuck));
            let mut caller = Counted::new(caller, &moved);
            let mut upstream = Counted::new(upstream, &moved);
            let closed = close(&mut caller, &mut upstream, reason);
            assert!(within(Some(CLOSE_WAIT), closed).await.is_err());
            let (reader, expected) = if caller_is_stuck {
                (&mut provider, &masked)
            } else {
                (&mut client, &frame)
            };
            let mut received = vec![0; expected.len()];
            let read = within(Some(CLOSE_WAIT), reader.read_exact(&mut received));
            assert!(matches!(read.await, Ok(Ok(_))), "{caller_is_stuck}");
            assert_eq!(&received, expected);
        }
    }
}
