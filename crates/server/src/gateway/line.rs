//! One connection of a caller, watched: heads that dribble, readers that stand still, requests whose
//! end is not clear.
//!
//! Promises: a head has its time from its first byte on, each piece of a body its own, and what is
//! written must be taken within its time. Timers are made only where bytes are waited for, so a
//! quick caller costs none.
//!
//! What the parser answers by itself to a request that it cannot read is kept back until the
//! connection ends with it or goes on; in the first case it is said in JSON (`unread.rs`).
//!
//! Never: changes a byte of anything else.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;
use tollgate_core::time::Span;

use super::framing::Framing;
use super::unread;

/// How long callers may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// A head, from its first byte: some round trips of a bad line. Longer is a client that holds a
    /// connection by dribbling.
    pub head: Span,
    /// The next piece of a body. A flowing body is never cut; one that stands still holds a place
    /// here and at the provider.
    pub body: Span,
    /// To take something of what is written to it. Its kernel takes for it until its buffers are full,
    /// so this is a program that has stopped reading.
    pub take: Span,
    /// Between two requests. Longer than the pools of common clients keep theirs (90 s), so that it is
    /// the client that closes: a request that meets a closing connection is an error that somebody has
    /// to repeat.
    pub idle: Span,
}

impl Default for Patience {
    fn default() -> Patience {
        Patience {
            head: Span::from_secs(10),
            body: Span::from_secs(60),
            take: Span::from_secs(60),
            idle: Span::from_secs(100),
        }
    }
}

/// Head and body of an answer up to this size are written as one. Most answers of APIs are no
/// longer, and it is no burden for the stack.
const SHORT: usize = 2 * 1_024;

/// What was seen on a connection, for whoever answers its requests.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// The number of the first request whose end is not clear; 0 = none so far.
    unclear: AtomicU64,
    /// Requests that were read.
    begun: AtomicU64,
    /// It is a tunnel now: no requests follow.
    is_tunnel: AtomicBool,
}

impl Seen {
    /// A request begins. Is it clear where it ends? Requests are counted from 1.
    pub(super) fn begins(&self) -> bool {
        let number = self.begun.fetch_add(1, Ordering::AcqRel) + 1;
        match self.unclear.load(Ordering::Acquire) {
            0 => true,
            unclear => number < unclear,
        }
    }

    /// No requests follow, only bytes.
    pub(super) fn becomes_tunnel(&self) {
        self.is_tunnel.store(true, Ordering::Release);
    }
}

/// A watched connection.
#[derive(Debug)]
pub(super) struct Line<S> {
    stream: S,
    seen: Arc<Seen>,
    patience: Patience,
    framing: Framing,
    head: Option<Pin<Box<Sleep>>>,
    body: Option<Pin<Box<Sleep>>>,
    take: Option<Pin<Box<Sleep>>>,
    /// What the parser has answered by itself, perhaps, and how much of it was written.
    kept: Vec<u8>,
    written: usize,
}

impl<S> Line<S> {
    pub(super) fn new(stream: S, seen: Arc<Seen>, patience: Patience) -> Line<S> {
        Line {
            stream,
            seen,
            patience,
            framing: Framing::default(),
            head: None,
            body: None,
            take: None,
            kept: Vec::new(),
            written: 0,
        }
    }

    fn came(&mut self, bytes: &[u8]) {
        self.framing.feed(bytes);
        if let Some(number) = self.framing.unclear() {
            self.seen.unclear.store(number, Ordering::Release);
        }
        self.body = None;
        if !self.framing.is_in_head() {
            self.head = None;
        } else if self.head.is_none() {
            self.head = Some(timer(self.patience.head));
        }
    }

    /// Nothing has come: how long may that last? Between two requests it is the server's to say.
    fn waits(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let timer = if self.framing.is_in_body() {
            let most = self.patience.body;
            Some(self.body.get_or_insert_with(|| timer(most)))
        } else {
            self.head.as_mut()
        };
        match timer {
            Some(timer) => timer.as_mut().poll(cx).map(|()| late()),
            None => Poll::Pending,
        }
    }

    /// Keeps back what looks like the parser's own answer.
    fn keeps(&mut self, bytes: &[u8]) -> bool {
        let is_tunnel = self.seen.is_tunnel.load(Ordering::Acquire);
        let keeps = !is_tunnel && unread::bare(bytes).is_some();
        if keeps {
            (self.kept, self.written) = (bytes.to_vec(), 0);
        }
        keeps
    }

    /// The connection ends. If the parser has not read the last head, what is kept is its answer.
    fn last_word(&mut self) {
        let unread = self.framing.heads() > self.seen.begun.load(Ordering::Acquire);
        if let Some(status) = unread::bare(&self.kept).filter(|_| unread && self.written == 0) {
            self.kept = unread::answer(status);
        }
    }

    fn taken<T>(&mut self, cx: &mut Context<'_>, written: Poll<T>) -> Poll<Option<T>> {
        match written {
            Poll::Ready(written) => {
                self.take = None;
                Poll::Ready(Some(written))
            }
            Poll::Pending => {
                let timer = self.take.get_or_insert_with(|| timer(self.patience.take));
                timer.as_mut().poll(cx).map(|()| None)
            }
        }
    }
}

impl<S: AsyncWrite + Unpin> Line<S> {
    /// Writes what was kept back.
    fn release(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.kept.is_empty() {
            return Poll::Ready(Ok(()));
        }
        while let Some(rest) = self
            .kept
            .get(self.written..)
            .filter(|rest| !rest.is_empty())
        {
            let written = Pin::new(&mut self.stream).poll_write(cx, rest);
            match ready!(self.taken(cx, written)).unwrap_or_else(late)? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                written => self.written += written,
            }
        }
        (self.kept, self.written) = (Vec::new(), 0);
        Poll::Ready(Ok(()))
    }

    /// A head did not come in time: says so, as far as that goes at once, and ends.
    fn too_slow(&mut self, cx: &mut Context<'_>) {
        if self.framing.is_in_head()
            && self.framing.heads() > self.seen.begun.load(Ordering::Acquire)
        {
            let _said = Pin::new(&mut self.stream).poll_write(cx, &unread::answer(408));
        }
    }
}

/// Pieces that fit, as one: a plain write costs less than a gathering one, by more than the copy.
fn together<'a>(pieces: &[io::IoSlice<'_>], room: &'a mut [u8; SHORT]) -> Option<&'a [u8]> {
    let mut filled = 0;
    for piece in pieces {
        let end = filled + piece.len();
        room.get_mut(filled..end)?.copy_from_slice(piece);
        filled = end;
    }
    room.get(..filled)
}

/// How a wait for a caller ends.
#[expect(clippy::disallowed_methods, reason = "the timers of a connection")]
fn timer(most: Span) -> Pin<Box<Sleep>> {
    Box::pin(tokio::time::sleep(most.into()))
}

fn late<T>() -> io::Result<T> {
    Err(io::ErrorKind::TimedOut.into())
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Line<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let line = self.get_mut();
        ready!(line.release(cx))?;
        let before = buf.filled().len();
        let read = Pin::new(&mut line.stream).poll_read(cx, buf);
        if line.seen.is_tunnel.load(Ordering::Acquire) {
            return read;
        }
        match read {
            Poll::Ready(Ok(())) => {
                line.came(buf.filled().get(before..).unwrap_or_default());
                Poll::Ready(Ok(()))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => {
                let late = ready!(line.waits(cx));
                line.too_slow(cx);
                Poll::Ready(late)
            }
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Line<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let line = self.get_mut();
        ready!(line.release(cx))?;
        if line.keeps(bytes) {
            return Poll::Ready(Ok(bytes.len()));
        }
        let written = Pin::new(&mut line.stream).poll_write(cx, bytes);
        line.taken(cx, written)
            .map(|written| written.unwrap_or_else(late))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let line = self.get_mut();
        ready!(line.release(cx))?;
        if let [one] = pieces
            && line.keeps(one)
        {
            return Poll::Ready(Ok(one.len()));
        }
        let mut room = [0; SHORT];
        let written = match together(pieces, &mut room) {
            Some(bytes) => Pin::new(&mut line.stream).poll_write(cx, bytes),
            None => Pin::new(&mut line.stream).poll_write_vectored(cx, pieces),
        };
        line.taken(cx, written)
            .map(|written| written.unwrap_or_else(late))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let line = self.get_mut();
        line.last_word();
        ready!(line.release(cx))?;
        Pin::new(&mut line.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
#[expect(
    clippy::disallowed_methods,
    reason = "tokio's own time, which is paused here"
)]
mod tests {
    use std::time::Duration;

    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    async fn dribble(seen: &Arc<Seen>, gap: Duration) -> io::Result<usize> {
        let (mut client, server) = tokio::io::duplex(64);
        let mut line = Line::new(server, seen.clone(), Patience::default());
        let dribbling = tokio::spawn(async move {
            for byte in "GET / HTTP/1.1\r\nX-Long: aaaaaaaa".bytes() {
                client.write_all(&[byte]).await.ok();
                tokio::time::sleep(gap).await;
            }
        });
        let mut read = Vec::new();
        let outcome = line.read_to_end(&mut read).await;
        dribbling.abort();
        outcome
    }

    /// R-E1: a head that dribbles is cut ten seconds after its first byte.
    #[tokio::test(start_paused = true)]
    async fn a_head_that_dribbles_is_cut() {
        let began = tokio::time::Instant::now();
        let error = dribble(&Arc::default(), Duration::from_secs(1))
            .await
            .unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert_eq!(began.elapsed(), Duration::from_secs(10));
    }

    #[tokio::test(start_paused = true)]
    async fn the_bytes_of_a_tunnel_may_dribble() {
        let seen = Arc::new(Seen::default());
        seen.becomes_tunnel();
        let read = dribble(&seen, Duration::from_secs(1)).await.unwrap();
        assert_eq!(read, 32);
    }

    #[tokio::test(start_paused = true)]
    async fn silence_before_a_head_and_a_slow_body_are_not_cut_here() {
        let (mut client, server) = tokio::io::duplex(64);
        let mut line = Line::new(server, Arc::default(), Patience::default());
        let sending = tokio::spawn(async move {
            tokio::time::sleep(Duration::from_secs(90)).await;
            client
                .write_all(b"POST / HTTP/1.1\r\nContent-Length: 3\r\n\r\n")
                .await
                .unwrap();
            for byte in *b"abc" {
                tokio::time::sleep(Duration::from_secs(20)).await;
                client.write_all(&[byte]).await.unwrap();
            }
        });
        let mut read = String::new();
        line.read_to_string(&mut read).await.unwrap();
        assert!(read.ends_with("abc"));
        sending.await.unwrap();
    }

    /// R-C9: who reads nothing is let go; who reads slowly is not.
    #[tokio::test(start_paused = true)]
    async fn a_reader_that_stands_still_is_let_go_and_a_slow_one_is_not() {
        let (mut client, server) = tokio::io::duplex(8);
        let mut line = Line::new(server, Arc::default(), Patience::default());
        let slow = tokio::spawn(async move {
            let mut eight = [0; 8];
            for _ in 0..4 {
                tokio::time::sleep(Duration::from_secs(50)).await;
                client.read_exact(&mut eight).await.unwrap();
            }
            client
        });
        line.write_all(&[0; 40]).await.unwrap();
        let _client = slow.await.unwrap();
        let began = tokio::time::Instant::now();
        let error = line.write_all(&[0; 40]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert_eq!(began.elapsed(), Duration::from_secs(60));
    }
}
