//! A client's stream with timeouts: detects slow heads, stalled readers and requests whose end is
//! ambiguous.
//!
//! Promises: applies a timeout to each head from its first byte, to each piece of a body, to each
//! write, and to the idle time between two requests. It creates a timer only when it waits for
//! bytes, and one idle timer for all requests, so a fast client costs none.
//!
//! A request that arrives on an idle connection tries the fast path first (`hit_fast_path.rs`). The
//! parser above never sees a request that the fast path serves.
//!
//! If the parser itself rejects a request, its response is held until the connection closes or
//! continues. If it closes, a JSON response replaces it (`parse_error.rs`).
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

use super::client_connection::HEAD_MAX;
use super::framing::Framing;
use super::hang_up::SocketHandle;
use super::hit_fast_path::{HitBody, HitFastPath};
use super::parse_error;
use super::sendfile::SendFile;

/// The timeouts of a client connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientTimeouts {
    /// A head, from its first byte: enough for some round trips on a bad link. A slower client is a
    /// slow-loris attack.
    pub head: Span,
    /// The next piece of a body. A flowing body is never cut; a stalled one holds a slot here and
    /// at the provider.
    pub body: Span,
    /// Progress of a write. The client's kernel accepts bytes until its buffers are full, so a
    /// timeout means that the client has stopped reading.
    pub write: Span,
    /// Between two requests. Longer than the idle time of common client pools (90 s), so that the
    /// client closes first: a request on a connection that the server closes fails and must be
    /// retried.
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

/// Head and body of a response up to this size are one write. Most API responses are shorter, and
/// the buffer fits on the stack.
pub(super) const SINGLE_WRITE_MAX: usize = 2 * 1_024;

/// The progress of the requests on a connection, shared with the request handler.
#[derive(Debug, Default)]
pub(super) struct RequestProgress {
    /// The number of the first request whose end is ambiguous; 0 = none yet.
    first_ambiguous: AtomicU64,
    /// The number of the last request that ended with plain chunks; 0 = none yet.
    last_plain_chunks: AtomicU64,
    /// Requests that the parser has read.
    begun: AtomicU64,
    /// Those whose responses were handed over to be written.
    ended: AtomicU64,
    /// The connection is a tunnel: no requests follow.
    is_tunnel: AtomicBool,
    /// The connection closes as soon as it is idle.
    is_closing: AtomicBool,
    /// It closes even if it has had no request.
    closes_unused: AtomicBool,
    /// For a call that watches whether its caller hangs up.
    pub(super) socket: SocketHandle,
}

impl RequestProgress {
    /// A request begins. Is its end unambiguous? Requests are counted from 1.
    pub(super) fn begin_request(&self) -> bool {
        let number = self.begun.fetch_add(1, Ordering::AcqRel) + 1;
        match self.first_ambiguous.load(Ordering::Acquire) {
            0 => true,
            unclear => number < unclear,
        }
    }

    /// Has the current request ended with plain chunks?
    pub(super) fn has_plain_end(&self) -> bool {
        let current = self.begun.load(Ordering::Acquire);
        current > 0 && self.last_plain_chunks.load(Ordering::Acquire) == current
    }

    /// A whole response was handed over to be written.
    pub(super) fn end_response(&self) {
        self.ended.fetch_add(1, Ordering::AcqRel);
    }

    /// No request follows the running one and those that have arrived already. A connection that
    /// has had no request waits for its first one.
    pub(super) fn close_when_idle(&self) {
        self.is_closing.store(true, Ordering::Release);
    }

    /// A connection that has had no request closes too.
    pub(super) fn close_when_unused(&self) {
        self.closes_unused.store(true, Ordering::Release);
    }

    pub(super) fn is_closing(&self) -> bool {
        self.is_closing.load(Ordering::Acquire)
    }

    /// No requests follow, only bytes.
    pub(super) fn become_tunnel(&self) {
        self.is_tunnel.store(true, Ordering::Release);
    }
}

/// A client's stream with timeouts.
#[derive(Debug)]
pub(super) struct WatchedStream<S> {
    stream: S,
    progress: Arc<RequestProgress>,
    timeouts: ClientTimeouts,
    framing: Framing,
    fast_path: Option<HitFastPath>,
    /// Responses that have been written.
    responses: u64,
    head_timer: Option<Pin<Box<Sleep>>>,
    body_timer: Option<Pin<Box<Sleep>>>,
    write_timer: Option<Pin<Box<Sleep>>>,
    /// Since when the connection is idle, and the timer, which may be set for an earlier deadline.
    idle_since: Option<Instant>,
    idle_timer: Option<Pin<Box<Sleep>>>,
    /// What must be written before anything else: a response of the parser itself, or a head and
    /// body of the fast path. And how many bytes of both were written.
    pending_head: Vec<u8>,
    pending_body: HitBody,
    pending_written: usize,
}

impl<S> WatchedStream<S> {
    pub(super) fn new(
        stream: S,
        progress: Arc<RequestProgress>,
        timeouts: ClientTimeouts,
    ) -> WatchedStream<S> {
        WatchedStream {
            stream,
            progress,
            timeouts,
            framing: Framing::default(),
            fast_path: None,
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

    /// The same, with the fast path for cache hits.
    pub(super) fn with_fast_path(self, fast_path: HitFastPath) -> WatchedStream<S> {
        WatchedStream {
            fast_path: Some(fast_path),
            ..self
        }
    }

    /// Every request that arrived has its response, and the responses are written. The parser above
    /// has then consumed every byte and waits for the next request.
    fn is_idle(&self) -> bool {
        self.framing.is_between() && self.responses == self.framing.heads()
    }

    /// The gateway shuts down, and this connection has nothing to finish.
    fn closes_now(&self) -> bool {
        let is_used = self.framing.heads() > 0;
        self.progress.is_closing()
            && self.is_idle()
            && (is_used || self.progress.closes_unused.load(Ordering::Acquire))
    }

    /// Serves the bytes on the fast path, if possible.
    fn try_fast_path(&mut self, bytes: &[u8]) -> bool {
        if !self.is_idle() || self.progress.is_closing() {
            return false;
        }
        let fast_path = self.fast_path.as_mut();
        let Some(rest) =
            fast_path.and_then(|fast_path| fast_path.respond(bytes, &mut self.pending_head))
        else {
            return false;
        };
        self.pending_body = rest;
        self.framing.skip_request();
        self.progress.begun.fetch_add(1, Ordering::AcqRel);
        self.progress.end_response();
        self.responses += 1;
        self.idle_since = None;
        true
    }

    fn on_bytes(&mut self, bytes: &[u8]) {
        self.idle_since = None;
        self.framing.feed(bytes);
        if let Some(number) = self.framing.first_ambiguous() {
            self.progress
                .first_ambiguous
                .store(number, Ordering::Release);
        }
        let plain = self.framing.last_plain_chunks();
        self.progress
            .last_plain_chunks
            .store(plain, Ordering::Release);
        self.body_timer = None;
        if !self.framing.is_in_head() {
            self.head_timer = None;
        } else if self.head_timer.is_none() {
            self.head_timer = Some(timer(self.timeouts.head));
        }
    }

    /// No bytes have arrived: applies the timeout. There is none while a response is in progress.
    fn poll_read_timeout(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.is_idle() {
            return self.poll_idle_timeout(cx);
        }
        let timer = if self.framing.is_in_body() {
            let limit = self.timeouts.body;
            Some(self.body_timer.get_or_insert_with(|| timer(limit)))
        } else {
            self.head_timer.as_mut()
        };
        match timer {
            Some(timer) => timer.as_mut().poll(cx).map(|()| timed_out()),
            None => Poll::Pending,
        }
    }

    /// The idle time between two requests. One timer serves all of them: if it fires too early for
    /// the current one, it is reset.
    #[expect(clippy::disallowed_methods, reason = "since when a connection is idle")]
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

    /// Holds bytes that look like a response of the parser itself.
    fn hold_parser_response(&mut self, bytes: &[u8]) -> bool {
        let is_tunnel = self.progress.is_tunnel.load(Ordering::Acquire);
        let holds = !is_tunnel && parse_error::parser_status(bytes).is_some();
        if holds {
            (self.pending_head, self.pending_written) = (bytes.to_vec(), 0);
        }
        holds
    }

    /// The connection closes. If the parser has not passed on the last head, the held bytes are its
    /// response to that head; JSON replaces them.
    fn replace_parser_response(&mut self) {
        let unread = self.framing.heads() > self.progress.begun.load(Ordering::Acquire);
        if let Some(status) = parse_error::parser_status(&self.pending_head)
            .filter(|_| unread && self.pending_written == 0)
        {
            self.pending_head = parse_error::response(status, HEAD_MAX);
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
    /// Writes the pending head and body.
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
                ([], HitBody::Memfd(memfd)) => self.stream.poll_sendfile(cx, memfd, sent),
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

    /// A head did not arrive in time: writes a 408 if the socket takes it at once.
    fn send_408(&mut self, cx: &mut Context<'_>) {
        if self.framing.is_in_head()
            && self.framing.heads() > self.progress.begun.load(Ordering::Acquire)
        {
            let _sent =
                Pin::new(&mut self.stream).poll_write(cx, &parse_error::response(408, HEAD_MAX));
        }
    }
}

/// Joins pieces that fit into one buffer: a plain write saves more than the copy costs.
fn coalesce<'a>(
    pieces: &[io::IoSlice<'_>],
    buffer: &'a mut [u8; SINGLE_WRITE_MAX],
) -> Option<&'a [u8]> {
    let mut filled = 0;
    for piece in pieces {
        let end = filled + piece.len();
        buffer.get_mut(filled..end)?.copy_from_slice(piece);
        filled = end;
    }
    buffer.get(..filled)
}

/// A timer for one of the client timeouts.
#[expect(clippy::disallowed_methods, reason = "the timers of a connection")]
fn timer(limit: Span) -> Pin<Box<Sleep>> {
    Box::pin(tokio::time::sleep(limit.into()))
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
        let this = self.get_mut();
        let before = buf.filled().len();
        let read = loop {
            ready!(this.poll_write_pending(cx))?;
            let read = Pin::new(&mut this.stream).poll_read(cx, buf);
            if this.progress.is_tunnel.load(Ordering::Acquire) {
                return read;
            }
            let came = buf.filled().get(before..).unwrap_or_default();
            if !matches!(read, Poll::Ready(Ok(()))) || !this.try_fast_path(came) {
                break read;
            }
            buf.set_filled(before);
        };
        match read {
            Poll::Ready(Ok(())) => {
                this.on_bytes(buf.filled().get(before..).unwrap_or_default());
                Poll::Ready(Ok(()))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            // Nothing has arrived, so nobody misses a response: the parser sees the end.
            Poll::Pending if this.closes_now() => Poll::Ready(Ok(())),
            Poll::Pending => {
                let late = ready!(this.poll_read_timeout(cx));
                this.send_408(cx);
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
        let this = self.get_mut();
        ready!(this.poll_write_pending(cx))?;
        if this.hold_parser_response(bytes) {
            return Poll::Ready(Ok(bytes.len()));
        }
        let written = Pin::new(&mut this.stream).poll_write(cx, bytes);
        this.poll_write_timeout(cx, written)
            .map(|written| written.unwrap_or_else(timed_out))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        ready!(this.poll_write_pending(cx))?;
        if let [one] = pieces
            && this.hold_parser_response(one)
        {
            return Poll::Ready(Ok(one.len()));
        }
        let mut buffer = [0; SINGLE_WRITE_MAX];
        let written = match coalesce(pieces, &mut buffer) {
            Some(bytes) => Pin::new(&mut this.stream).poll_write(cx, bytes),
            None => Pin::new(&mut this.stream).poll_write_vectored(cx, pieces),
        };
        this.poll_write_timeout(cx, written)
            .map(|written| written.unwrap_or_else(timed_out))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.progress.socket.is_wanted() {
            this.stream.give_handle(&this.progress.socket);
            cx.waker().wake_by_ref();
        }
        // A flush follows the last write, so all responses that were handed over are written.
        let ended = this.progress.ended.load(Ordering::Acquire);
        if ended != this.responses {
            this.responses = ended;
            // The parser polls again only when bytes arrive, so poll the idle timer here. When it
            // fires, wake the parser.
            if this.is_idle() && !this.progress.is_tunnel.load(Ordering::Acquire) {
                let is_over = this.poll_idle_timeout(cx).is_ready();
                is_over.then(|| cx.waker().wake_by_ref());
            }
        }
        Pin::new(&mut this.stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.replace_parser_response();
        ready!(this.poll_write_pending(cx))?;
        Pin::new(&mut this.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
#[path = "watched_stream_tests.rs"]
mod tests;
