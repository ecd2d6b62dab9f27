//! One connection of a caller, watched: heads that dribble, readers that stand still, requests whose
//! end is not clear.
//!
//! Promises: a head has its time from its first byte on, each piece of a body its own, what is
//! written must be taken within its time, and between two requests a connection lies idle for at most
//! its time. Timers are made only where bytes are waited for, and that of idleness once for all
//! requests, so a quick caller costs none.
//!
//! A request that comes while nothing else is under way is shown to the short way first (`lane.rs`).
//! What that answers, the parser above never hears of.
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
use tokio::time::{Instant, Sleep};
use tollgate_core::time::Span;

use super::carry::Carry;
use super::framing::Framing;
use super::lane::{Lane, Rest};
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
pub(super) const SHORT: usize = 2 * 1_024;

/// What was seen on a connection, for whoever answers its requests.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// The number of the first request whose end is not clear; 0 = none so far.
    unclear: AtomicU64,
    /// Requests that were read.
    begun: AtomicU64,
    /// Those of them whose answers were handed over to be written.
    ended: AtomicU64,
    /// It is a tunnel now: no requests follow.
    is_tunnel: AtomicBool,
    /// It ends as soon as nothing is under way.
    is_last: AtomicBool,
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

    /// An answer was handed over to be written, all of it.
    pub(super) fn ends(&self) {
        self.ended.fetch_add(1, Ordering::AcqRel);
    }

    /// Nothing follows what is under way.
    pub(super) fn is_last(&self) {
        self.is_last.store(true, Ordering::Release);
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
    lane: Option<Lane>,
    /// The short way was the last to answer: the parser does not know that it has been idle since.
    is_ahead: bool,
    /// Answers that have been written out.
    answered: u64,
    head: Option<Pin<Box<Sleep>>>,
    body: Option<Pin<Box<Sleep>>>,
    take: Option<Pin<Box<Sleep>>>,
    /// When it was found idle, and what wakes it; the latter may be of an earlier time.
    idle_since: Option<Instant>,
    idle: Option<Pin<Box<Sleep>>>,
    /// What must be written before anything else: what the parser has answered by itself, perhaps, or
    /// an answer of the short way, whose body is beside it. And how much of both was written.
    kept: Vec<u8>,
    kept_rest: Rest,
    written: usize,
}

impl<S> Line<S> {
    pub(super) fn new(stream: S, seen: Arc<Seen>, patience: Patience) -> Line<S> {
        Line {
            stream,
            seen,
            patience,
            framing: Framing::default(),
            lane: None,
            is_ahead: false,
            answered: 0,
            head: None,
            body: None,
            take: None,
            idle_since: None,
            idle: None,
            kept: Vec::new(),
            kept_rest: Rest::default(),
            written: 0,
        }
    }

    /// The same, with a short way for what can be answered at once.
    pub(super) fn with(self, lane: Lane) -> Line<S> {
        Line {
            lane: Some(lane),
            ..self
        }
    }

    /// Nothing is under way: all that came was answered, and the answers are written. The parser above
    /// has then used up every byte that it was given, and waits for the next request.
    fn is_idle(&self) -> bool {
        self.framing.is_between() && self.answered == self.framing.heads()
    }

    /// Answers what came, if that can be done at once.
    fn goes_ahead(&mut self, bytes: &[u8]) -> bool {
        if !self.is_idle() || self.seen.is_last.load(Ordering::Acquire) {
            return false;
        }
        let lane = self.lane.as_mut();
        let Some(rest) = lane.and_then(|lane| lane.answer(bytes, &mut self.kept)) else {
            return false;
        };
        self.kept_rest = rest;
        self.framing.passed();
        self.seen.begun.fetch_add(1, Ordering::AcqRel);
        self.seen.ends();
        self.answered += 1;
        self.is_ahead = true;
        self.idle_since = None;
        true
    }

    fn came(&mut self, bytes: &[u8]) {
        self.is_ahead = false;
        self.idle_since = None;
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

    /// Nothing has come: how long may that last? While an answer is under way, it does not matter.
    fn waits(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.is_idle() {
            return self.rests(cx);
        }
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

    /// Between two requests. One timer serves all of them: when it fires too early for the present
    /// one, it is set anew.
    #[expect(
        clippy::disallowed_methods,
        reason = "since when a connection lies idle"
    )]
    fn rests(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let since = *self.idle_since.get_or_insert_with(Instant::now);
        let end = since + std::time::Duration::from(self.patience.idle);
        let idle = self
            .idle
            .get_or_insert_with(|| Box::pin(tokio::time::sleep_until(end)));
        ready!(idle.as_mut().poll(cx));
        if idle.deadline() < end {
            idle.as_mut().reset(end);
            ready!(idle.as_mut().poll(cx));
        }
        Poll::Ready(late())
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

impl<S: Carry> Line<S> {
    /// Writes what must be written before anything else.
    fn release(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.kept.is_empty() {
            return Poll::Ready(Ok(()));
        }
        while self.written < self.kept.len() + self.kept_rest.len() {
            let head = self.kept.get(self.written..).unwrap_or_default();
            let sent = self.written.saturating_sub(self.kept.len());
            let stream = Pin::new(&mut self.stream);
            let written = match (head, &self.kept_rest) {
                ([], Rest::Bytes(body)) => {
                    stream.poll_write(cx, body.get(sent..).unwrap_or_default())
                }
                (head, Rest::Bytes(body)) if body.is_empty() => stream.poll_write(cx, head),
                (head, Rest::Bytes(body)) => {
                    let pieces = [io::IoSlice::new(head), io::IoSlice::new(body)];
                    stream.poll_write_vectored(cx, &pieces)
                }
                ([], Rest::Sheet(sheet)) => self.stream.poll_sheet(cx, sheet, sent),
                (head, Rest::Sheet(_)) => self.stream.poll_head(cx, head),
            };
            match ready!(self.taken(cx, written)).unwrap_or_else(late)? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                written => self.written += written,
            }
        }
        self.kept.clear();
        (self.kept_rest, self.written) = (Rest::default(), 0);
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

impl<S: AsyncRead + Carry> AsyncRead for Line<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let line = self.get_mut();
        let before = buf.filled().len();
        let read = loop {
            ready!(line.release(cx))?;
            if line.is_ahead && line.seen.is_last.load(Ordering::Acquire) {
                // The parser waits for a first request, and would go on to do so.
                return Poll::Ready(Ok(()));
            }
            let read = Pin::new(&mut line.stream).poll_read(cx, buf);
            if line.seen.is_tunnel.load(Ordering::Acquire) {
                return read;
            }
            let came = buf.filled().get(before..).unwrap_or_default();
            if !matches!(read, Poll::Ready(Ok(()))) || !line.goes_ahead(came) {
                break read;
            }
            buf.set_filled(before);
        };
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

impl<S: Carry> AsyncWrite for Line<S> {
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
        let line = self.get_mut();
        // Whoever flushes has written all that it has: the answers that were handed over are out.
        let ended = line.seen.ended.load(Ordering::Acquire);
        if ended != line.answered {
            line.answered = ended;
            // The parser reads again only when something comes, so from here on somebody must wait
            // for the end of idleness; when it has come, the parser is made to look.
            if line.is_idle() && !line.seen.is_tunnel.load(Ordering::Acquire) {
                let is_over = line.rests(cx).is_ready();
                is_over.then(|| cx.waker().wake_by_ref());
            }
        }
        Pin::new(&mut line.stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let line = self.get_mut();
        line.last_word();
        ready!(line.release(cx))?;
        Pin::new(&mut line.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
#[path = "line_tests.rs"]
mod tests;
