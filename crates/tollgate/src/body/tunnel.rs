//! A tunnel: a call that was upgraded, bytes both ways until both sides are done.
//!
//! Promises: one permit, whose place among the calls at a time is held until the tunnel ends. Each
//! side may close its own direction and still hear the other. A tunnel in which nothing moves for the
//! idle time is closed. Ended well, the permit is settled; cut off, it counts as one that may go on
//! at the provider for a while.
//!
//! Never: reads what passes.

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

/// The idle time is looked at so often: a tunnel lives at most a quarter longer than it says.
const IDLE_CHECKS: u64 = 4;

/// How much longer than the idle time a place is kept, so that the next word of it is in time.
const MARGIN: Span = Span::from_secs(1);

/// The upstream's side of an upgraded call, with the permit that it holds.
#[derive(Debug)]
pub struct Tunnel {
    pub(super) upstream: OnUpgrade,
    pub(super) permit: Permit,
    pub(super) idle: Span,
}

impl Tunnel {
    /// Carries bytes between the caller and the upstream until both are done, one breaks, or nothing
    /// moves any more.
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
        // Closed before the place is given up.
        drop(upstream);
        if carried {
            permit.finished(|_| None);
        }
    }
}

/// Waits until nothing has moved for the idle time; keeps the permit's place meanwhile.
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

/// Counts the pieces that come from one side.
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
