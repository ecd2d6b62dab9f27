//! A tunnel: an upgraded call, with bytes in both directions until both sides are done.
//!
//! Promises: one permit, which counts against the concurrency until the tunnel ends. Each side may
//! close its own direction and still receive. A tunnel without traffic for the idle timeout is
//! closed. After a clean end the permit is settled; after a broken one it counts as a call that may
//! continue at the provider for a while.
//!
//! Never: interprets the bytes.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tollgate_core::time::Span;

use crate::Permit;
use crate::timer::{sleep, within};

/// Idle checks per idle timeout: a tunnel lives at most a quarter longer than configured.
const IDLE_CHECKS: u64 = 4;

/// How much longer than the idle timeout a permit is held, so that the next report is in time.
const MARGIN: Span = Span::from_secs(1);

/// The upstream side of an upgraded call, with its permit.
#[derive(Debug)]
pub struct Tunnel {
    pub(super) upstream: OnUpgrade,
    pub(super) permit: Permit,
    pub(super) idle: Span,
}

impl Tunnel {
    /// Copies bytes between the caller and the upstream until both are done, one fails, or the
    /// tunnel is idle.
    pub async fn run<S>(self, mut caller: S)
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let Tunnel {
            upstream,
            mut permit,
            idle,
        } = self;
        let Ok(Ok(upstream)) = within(Some(idle), upstream).await else {
            return;
        };
        let moved = AtomicU64::new(0);
        let mut caller = Counted {
            stream: &mut caller,
            moved: &moved,
        };
        let mut upstream = Counted {
            stream: TokioIo::new(upstream),
            moved: &moved,
        };
        let carried = tokio::select! {
            carried = tokio::io::copy_bidirectional(&mut caller, &mut upstream) => carried.is_ok(),
            () = until_idle(&moved, idle, &mut permit) => false,
        };
        // Closed before the permit is released.
        drop(upstream);
        if carried {
            permit.finished(|_| None);
        }
    }
}

/// Waits until the tunnel has been idle for the timeout; extends the hold of the permit meanwhile.
async fn until_idle(moved: &AtomicU64, idle: Span, permit: &mut Permit) {
    let look = Span((idle.0 / IDLE_CHECKS).max(1));
    let mut seen = moved.load(Ordering::Relaxed);
    let mut quiet = 0;
    while quiet < IDLE_CHECKS {
        permit.keep_alive(idle + MARGIN);
        sleep(Some(look)).await;
        let now = moved.load(Ordering::Relaxed);
        quiet = if now == seen { quiet + 1 } else { 0 };
        seen = now;
    }
}

/// Counts the pieces that arrive from one side.
struct Counted<'a, S> {
    stream: S,
    moved: &'a AtomicU64,
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
        Pin::new(&mut self.get_mut().stream).poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}
