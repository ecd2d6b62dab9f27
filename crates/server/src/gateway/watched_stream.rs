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

use super::framing::Framing;
use super::hit_fast_path::{HitBody, HitFastPath};
use super::parse_error;
use super::sendfile::SendFile;

/// How long callers may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientTimeouts {
    /// A head, from its first byte: some round trips of a bad line. Longer is a client that holds a
    /// connection by dribbling.
    pub head: Span,
    /// The next piece of a body. A flowing body is never cut; one that stands still holds a place
    /// here and at the provider.
    pub body: Span,
    /// To take something of what is written to it. Its kernel takes for it until its buffers are full,
    /// so this is a program that has stopped reading.
    pub write: Span,
    /// Between two requests. Longer than the pools of common clients keep theirs (90 s), so that it is
    /// the client that closes: a request that meets a closing connection is an error that somebody has
    /// to repeat.
    pub idle: Span,
}

impl Default for ClientTimeouts {
    fn default() -> ClientTimeouts {
        ClientTimeouts {
            head: Span::from_secs(10),
            body: Span::from_secs(60),
            write: Span::from_secs(60),
            idle: Span::from_secs(100),
        }
    }
}

/// Head and body of an answer up to this size are written as one. Most answers of APIs are no
/// longer, and it is no burden for the stack.
pub(super) const SINGLE_WRITE_MAX: usize = 2 * 1_024;

/// What was seen on a connection, for whoever answers its requests.
#[derive(Debug, Default)]
pub(super) struct RequestProgress {
    /// The number of the first request whose end is not clear; 0 = none so far.
    first_ambiguous: AtomicU64,
    /// Requests that were read.
    begun: AtomicU64,
    /// Those of them whose answers were handed over to be written.
    ended: AtomicU64,
    /// It is a tunnel now: no requests follow.
    is_tunnel: AtomicBool,
    /// It ends as soon as nothing is under way.
    is_closing: AtomicBool,
}

impl RequestProgress {
    /// A request begins. Is it clear where it ends? Requests are counted from 1.
    pub(super) fn begin_request(&self) -> bool {
        let number = self.begun.fetch_add(1, Ordering::AcqRel) + 1;
        match self.first_ambiguous.load(Ordering::Acquire) {
            0 => true,
            unclear => number < unclear,
        }
    }

    /// An answer was handed over to be written, all of it.
    pub(super) fn end_response(&self) {
        self.ended.fetch_add(1, Ordering::AcqRel);
    }

    /// Nothing follows what is under way.
    pub(super) fn close_when_idle(&self) {
        self.is_closing.store(true, Ordering::Release);
    }

    /// No requests follow, only bytes.
    pub(super) fn become_tunnel(&self) {
        self.is_tunnel.store(true, Ordering::Release);
    }
}

/// A watched connection.
#[derive(Debug)]
pub(super) struct WatchedStream<S> {
    stream: S,
    progress: Arc<RequestProgress>,
    timeouts: ClientTimeouts,
    framing: Framing,
    fast_path: Option<HitFastPath>,
    /// The short way was the last to answer: the parser does not know that it has been idle since.
    used_fast_path: bool,
    /// Answers that have been written out.
    responses: u64,
    head_timer: Option<Pin<Box<Sleep>>>,
    body_timer: Option<Pin<Box<Sleep>>>,
    write_timer: Option<Pin<Box<Sleep>>>,
    /// When it was found idle, and what wakes it; the latter may be of an earlier time.
    idle_since: Option<Instant>,
    idle_timer: Option<Pin<Box<Sleep>>>,
    /// What must be written before anything else: what the parser has answered by itself, perhaps, or
    /// an answer of the short way, whose body is beside it. And how much of both was written.
    pending_head: Vec<u8>,
    pending_body: HitBody,
    pending_written: usize,
}

impl<S> WatchedStream<S> {
    pub(super) fn new(
        stream: S,
        seen: Arc<RequestProgress>,
        patience: ClientTimeouts,
    ) -> WatchedStream<S> {
        WatchedStream {
            stream,
            progress: seen,
            timeouts: patience,
            framing: Framing::default(),
            fast_path: None,
            used_fast_path: false,
            responses: 0,
            head_timer: None,
            body_timer: None,
            write_timer: None,
            idle_since: None,
            idle_timer: None,
            pending_head: Vec::new(),
            pending_body: HitBody::default(),
            pending_written: 0,
        }
    }

    /// The same, with a short way for what can be answered at once.
    pub(super) fn with_fast_path(self, lane: HitFastPath) -> WatchedStream<S> {
        WatchedStream {
            fast_path: Some(lane),
            ..self
        }
    }

    /// Nothing is under way: all that came was answered, and the answers are written. The parser above
    /// has then used up every byte that it was given, and waits for the next request.
    fn is_idle(&self) -> bool {
        self.framing.is_between() && self.responses == self.framing.heads()
    }

    /// Answers what came, if that can be done at once.
    fn try_fast_path(&mut self, bytes: &[u8]) -> bool {
        if !self.is_idle() || self.progress.is_closing.load(Ordering::Acquire) {
            return false;
        }
        let lane = self.fast_path.as_mut();
        let Some(rest) = lane.and_then(|lane| lane.respond(bytes, &mut self.pending_head)) else {
            return false;
        };
        self.pending_body = rest;
        self.framing.skip_request();
        self.progress.begun.fetch_add(1, Ordering::AcqRel);
        self.progress.end_response();
        self.responses += 1;
        self.used_fast_path = true;
        self.idle_since = None;
        true
    }

    fn on_bytes(&mut self, bytes: &[u8]) {
        self.used_fast_path = false;
        self.idle_since = None;
        self.framing.feed(bytes);
        if let Some(number) = self.framing.first_ambiguous() {
            self.progress
                .first_ambiguous
                .store(number, Ordering::Release);
        }
        self.body_timer = None;
        if !self.framing.is_in_head() {
            self.head_timer = None;
        } else if self.head_timer.is_none() {
            self.head_timer = Some(timer(self.timeouts.head));
        }
    }

    /// Nothing has come: how long may that last? While an answer is under way, it does not matter.
    fn poll_read_timeout(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.is_idle() {
            return self.poll_idle_timeout(cx);
        }
        let timer = if self.framing.is_in_body() {
            let most = self.timeouts.body;
            Some(self.body_timer.get_or_insert_with(|| timer(most)))
        } else {
            self.head_timer.as_mut()
        };
        match timer {
            Some(timer) => timer.as_mut().poll(cx).map(|()| timed_out()),
            None => Poll::Pending,
        }
    }

    /// Between two requests. One timer serves all of them: when it fires too early for the present
    /// one, it is set anew.
    #[expect(
        clippy::disallowed_methods,
        reason = "since when a connection lies idle"
    )]
    fn poll_idle_timeout(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let since = *self.idle_since.get_or_insert_with(Instant::now);
        let end = since + std::time::Duration::from(self.timeouts.idle);
        let idle = self
            .idle_timer
            .get_or_insert_with(|| Box::pin(tokio::time::sleep_until(end)));
        ready!(idle.as_mut().poll(cx));
        if idle.deadline() < end {
            idle.as_mut().reset(end);
            ready!(idle.as_mut().poll(cx));
        }
        Poll::Ready(timed_out())
    }

    /// Keeps back what looks like the parser's own answer.
    fn hold_parser_response(&mut self, bytes: &[u8]) -> bool {
        let is_tunnel = self.progress.is_tunnel.load(Ordering::Acquire);
        let keeps = !is_tunnel && parse_error::parser_status(bytes).is_some();
        if keeps {
            (self.pending_head, self.pending_written) = (bytes.to_vec(), 0);
        }
        keeps
    }

    /// The connection ends. If the parser has not read the last head, what is kept is its answer.
    fn replace_parser_response(&mut self) {
        let unread = self.framing.heads() > self.progress.begun.load(Ordering::Acquire);
        if let Some(status) = parse_error::parser_status(&self.pending_head)
            .filter(|_| unread && self.pending_written == 0)
        {
            self.pending_head = parse_error::response(status);
        }
    }

    fn poll_write_timeout<T>(&mut self, cx: &mut Context<'_>, written: Poll<T>) -> Poll<Option<T>> {
        match written {
            Poll::Ready(written) => {
                self.write_timer = None;
                Poll::Ready(Some(written))
            }
            Poll::Pending => {
                let timer = self
                    .write_timer
                    .get_or_insert_with(|| timer(self.timeouts.write));
                timer.as_mut().poll(cx).map(|()| None)
            }
        }
    }
}

impl<S: SendFile> WatchedStream<S> {
    /// Writes what must be written before anything else.
    fn poll_write_pending(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.pending_head.is_empty() {
            return Poll::Ready(Ok(()));
        }
        while self.pending_written < self.pending_head.len() + self.pending_body.len() {
            let head = self
                .pending_head
                .get(self.pending_written..)
                .unwrap_or_default();
            let sent = self.pending_written.saturating_sub(self.pending_head.len());
            let stream = Pin::new(&mut self.stream);
            let written = match (head, &self.pending_body) {
                ([], HitBody::Bytes(body)) => {
                    stream.poll_write(cx, body.get(sent..).unwrap_or_default())
                }
                (head, HitBody::Bytes(body)) if body.is_empty() => stream.poll_write(cx, head),
                (head, HitBody::Bytes(body)) => {
                    let pieces = [io::IoSlice::new(head), io::IoSlice::new(body)];
                    stream.poll_write_vectored(cx, &pieces)
                }
                ([], HitBody::Memfd(sheet)) => self.stream.poll_sendfile(cx, sheet, sent),
                (head, HitBody::Memfd(_)) => self.stream.poll_send_more(cx, head),
            };
            match ready!(self.poll_write_timeout(cx, written)).unwrap_or_else(timed_out)? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                written => self.pending_written += written,
            }
        }
        self.pending_head.clear();
        (self.pending_body, self.pending_written) = (HitBody::default(), 0);
        Poll::Ready(Ok(()))
    }

    /// A head did not come in time: says so, as far as that goes at once, and ends.
    fn send_408(&mut self, cx: &mut Context<'_>) {
        if self.framing.is_in_head()
            && self.framing.heads() > self.progress.begun.load(Ordering::Acquire)
        {
            let _said = Pin::new(&mut self.stream).poll_write(cx, &parse_error::response(408));
        }
    }
}

/// Pieces that fit, as one: a plain write costs less than a gathering one, by more than the copy.
fn coalesce<'a>(
    pieces: &[io::IoSlice<'_>],
    room: &'a mut [u8; SINGLE_WRITE_MAX],
) -> Option<&'a [u8]> {
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

fn timed_out<T>() -> io::Result<T> {
    Err(io::ErrorKind::TimedOut.into())
}

impl<S: AsyncRead + SendFile> AsyncRead for WatchedStream<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let line = self.get_mut();
        let before = buf.filled().len();
        let read = loop {
            ready!(line.poll_write_pending(cx))?;
            if line.used_fast_path && line.progress.is_closing.load(Ordering::Acquire) {
                // The parser waits for a first request, and would go on to do so.
                return Poll::Ready(Ok(()));
            }
            let read = Pin::new(&mut line.stream).poll_read(cx, buf);
            if line.progress.is_tunnel.load(Ordering::Acquire) {
                return read;
            }
            let came = buf.filled().get(before..).unwrap_or_default();
            if !matches!(read, Poll::Ready(Ok(()))) || !line.try_fast_path(came) {
                break read;
            }
            buf.set_filled(before);
        };
        match read {
            Poll::Ready(Ok(())) => {
                line.on_bytes(buf.filled().get(before..).unwrap_or_default());
                Poll::Ready(Ok(()))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => {
                let late = ready!(line.poll_read_timeout(cx));
                line.send_408(cx);
                Poll::Ready(late)
            }
        }
    }
}

impl<S: SendFile> AsyncWrite for WatchedStream<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let line = self.get_mut();
        ready!(line.poll_write_pending(cx))?;
        if line.hold_parser_response(bytes) {
            return Poll::Ready(Ok(bytes.len()));
        }
        let written = Pin::new(&mut line.stream).poll_write(cx, bytes);
        line.poll_write_timeout(cx, written)
            .map(|written| written.unwrap_or_else(timed_out))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let line = self.get_mut();
        ready!(line.poll_write_pending(cx))?;
        if let [one] = pieces
            && line.hold_parser_response(one)
        {
            return Poll::Ready(Ok(one.len()));
        }
        let mut room = [0; SINGLE_WRITE_MAX];
        let written = match coalesce(pieces, &mut room) {
            Some(bytes) => Pin::new(&mut line.stream).poll_write(cx, bytes),
            None => Pin::new(&mut line.stream).poll_write_vectored(cx, pieces),
        };
        line.poll_write_timeout(cx, written)
            .map(|written| written.unwrap_or_else(timed_out))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let line = self.get_mut();
        // Whoever flushes has written all that it has: the answers that were handed over are out.
        let ended = line.progress.ended.load(Ordering::Acquire);
        if ended != line.responses {
            line.responses = ended;
            // The parser reads again only when something comes, so from here on somebody must wait
            // for the end of idleness; when it has come, the parser is made to look.
            if line.is_idle() && !line.progress.is_tunnel.load(Ordering::Acquire) {
                let is_over = line.poll_idle_timeout(cx).is_ready();
                is_over.then(|| cx.waker().wake_by_ref());
            }
        }
        Pin::new(&mut line.stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let line = self.get_mut();
        line.replace_parser_response();
        ready!(line.poll_write_pending(cx))?;
        Pin::new(&mut line.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
#[path = "watched_stream_tests.rs"]
mod tests;
