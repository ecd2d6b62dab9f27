//! One answer for many: its chunks are kept in order, and everybody reads them at their own speed.
//!
//! Whoever has read all there is asks the upstream for more, so nobody depends on the call that
//! came first, and no task is needed.
//!
//! Promises: everybody gets every byte in order, or an error. Readers that come late start at the
//! beginning as long as all of it is still held. At most [`OBJECT_MAX`] is held for one answer:
//! past it what all have read is let go, the fast wait for the slow, and a reader that stands still
//! for the idle time is left behind.
//!
//! Never: drops what belongs to somebody else while it holds its lock.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use parking_lot::Mutex;
use tokio::time::Sleep;
use tollgate_core::time::Span;

use super::{BodyError, ReplyBody};

/// The most that is held of one answer: as much as is kept of one, so that what may be kept for who
/// asks next may be shared with who asks now. JSON answers are far below it; with a thousand different
/// answers of this size on their way at a time it would be 8 GiB, which is why [`TOTAL_MAX`] exists.
pub(crate) const OBJECT_MAX: usize = crate::cache::OBJECT_MAX;

/// The most that is held of all answers together; past it, nothing is kept for late comers and the
/// fast wait for the slow.
pub(crate) const TOTAL_MAX: usize = 256 * 1024 * 1024;

/// What an answer may hold when all of them hold too much: enough to keep a stream flowing.
const SCARCE_MAX: usize = 64 * 1024;

/// How much all answers hold.
pub(crate) type HeldBytes = Arc<AtomicUsize>;

/// Something that ends when nobody can join the answer any more.
pub(crate) type JoinGuard = Box<dyn std::any::Any + Send + Sync>;

/// An answer that many read.
#[derive(Clone, Debug)]
pub(crate) struct SharedBody {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    state: Mutex<State>,
    /// Who waits for the next chunk, by seat. Apart from the state, because the upstream may wake
    /// us while we ask it.
    wakers: Mutex<Vec<Option<Waker>>>,
    held: HeldBytes,
    idle: Span,
    length: Option<u64>,
}

#[derive(Debug)]
struct State {
    source: Option<ReplyBody>,
    end: Option<End>,
    chunks: VecDeque<Bytes>,
    /// The number of the first chunk that is held.
    first: usize,
    bytes: usize,
    readers: Vec<ReaderSlot>,
    /// Those who have been promised a seat and have not taken it yet.
    reserved: usize,
    join_guard: Option<JoinGuard>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReaderSlot {
    /// The number of the chunk that it reads next.
    Reading(usize),
    /// It was too slow.
    TooSlow,
    Empty,
}

#[derive(Clone, Debug)]
enum End {
    Whole(Option<HeaderMap>),
    Broken(Broken),
}

/// The shared answer broke off.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Broken(Arc<str>);

/// A reader was so slow that the others could not wait for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the answer was not read for the idle time while others waited for it")]
pub struct SlowReader;

/// One who reads a shared answer.
#[derive(Debug)]
pub(crate) struct Reader {
    inner: Arc<Inner>,
    slot: usize,
    at: usize,
    read: u64,
    is_over: bool,
    /// How long the slow may still take.
    patience: Option<Pin<Box<Sleep>>>,
}

impl SharedBody {
    /// An answer with one reader, and seats promised to so many others. Nobody can join once the
    /// ticket is gone.
    pub(crate) fn new(
        source: ReplyBody,
        promised: usize,
        idle: Span,
        held: HeldBytes,
        ticket: JoinGuard,
    ) -> (SharedBody, Reader) {
        let length = source.size_hint().exact();
        let inner = Arc::new(Inner {
            state: Mutex::new(State {
                source: Some(source),
                end: None,
                chunks: VecDeque::new(),
                first: 0,
                bytes: 0,
                readers: vec![ReaderSlot::Reading(0)],
                reserved: promised,
                join_guard: Some(ticket),
            }),
            wakers: Mutex::new(vec![None]),
            held,
            idle,
            length,
        });
        let shared = SharedBody {
            inner: inner.clone(),
        };
        (shared, Reader::new(inner, 0))
    }

    /// One more wants a seat; `false` = the beginning is gone, or everybody has left.
    pub(crate) fn reserve(&self) -> bool {
        let mut state = self.inner.state.lock();
        let is_there =
            state.join_guard.is_some() && (state.source.is_some() || state.end.is_some());
        if is_there {
            state.reserved += 1;
        }
        is_there
    }

    /// Takes a seat that was promised; `None` = the beginning is gone.
    pub(crate) fn open_reader(&self) -> Option<Reader> {
        let mut state = self.inner.state.lock();
        state.reserved = state.reserved.saturating_sub(1);
        if state.first > 0 || (state.source.is_none() && state.end.is_none()) {
            return None;
        }
        let free = state
            .readers
            .iter()
            .position(|seat| *seat == ReaderSlot::Empty);
        let seat = free.unwrap_or(state.readers.len());
        if seat == state.readers.len() {
            state.readers.push(ReaderSlot::Empty);
            self.inner.wakers.lock().push(None);
        }
        if let Some(empty) = state.readers.get_mut(seat) {
            *empty = ReaderSlot::Reading(0);
        }
        Some(Reader::new(self.inner.clone(), seat))
    }

    /// Gives up a seat that was promised.
    pub(crate) fn release(&self) {
        let mut state = self.inner.state.lock();
        state.reserved = state.reserved.saturating_sub(1);
        let left = state.release_if_unread();
        drop(state);
        drop(left);
    }
}

impl State {
    fn limit(&self, held: &HeldBytes) -> usize {
        if held.load(Ordering::Relaxed) > TOTAL_MAX {
            SCARCE_MAX
        } else {
            OBJECT_MAX
        }
    }

    /// If nobody is left, the upstream is let go too. What is returned must be dropped outside the
    /// lock.
    fn release_if_unread(&mut self) -> Option<(Option<ReplyBody>, Option<JoinGuard>)> {
        let is_taken = |seat: &ReaderSlot| matches!(seat, ReaderSlot::Reading(_));
        if self.reserved > 0 || self.readers.iter().any(is_taken) {
            return None;
        }
        Some((self.source.take(), self.join_guard.take()))
    }

    /// The slowest reader's next chunk.
    fn slowest(&self) -> usize {
        let promised = (self.reserved > 0).then_some(0);
        let at = |seat: &ReaderSlot| match seat {
            ReaderSlot::Reading(at) => Some(*at),
            ReaderSlot::TooSlow | ReaderSlot::Empty => None,
        };
        let seats = self.readers.iter().filter_map(at);
        seats.chain(promised).min().unwrap_or(self.first)
    }

    /// Lets go of what everybody has read. Nobody can join from then on.
    fn trim(&mut self, held: &HeldBytes) -> Option<JoinGuard> {
        let slowest = self.slowest();
        while self.first < slowest
            && let Some(chunk) = self.chunks.pop_front()
        {
            self.first += 1;
            self.bytes -= chunk.len();
            held.fetch_sub(chunk.len(), Ordering::Relaxed);
        }
        if self.first > 0 {
            self.join_guard.take()
        } else {
            None
        }
    }

    /// Leaves behind those who hold everybody up.
    fn drop_slow_readers(&mut self) {
        self.reserved = 0;
        let first = self.first;
        for seat in &mut self.readers {
            if *seat == ReaderSlot::Reading(first) {
                *seat = ReaderSlot::TooSlow;
            }
        }
    }
}

impl Inner {
    /// Wakes everybody who waits for the next chunk.
    fn wake_all(&self) {
        let wakers: Vec<Waker> = {
            let mut wakers = self.wakers.lock();
            wakers.iter_mut().filter_map(Option::take).collect()
        };
        wakers.into_iter().for_each(Waker::wake);
    }
}

impl Wake for Inner {
    fn wake(self: Arc<Inner>) {
        self.wake_all();
    }

    fn wake_by_ref(self: &Arc<Inner>) {
        self.wake_all();
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.held
            .fetch_sub(self.state.get_mut().bytes, Ordering::Relaxed);
    }
}

/// What a reader finds.
enum Found {
    Chunk(Bytes),
    Trailers(HeaderMap),
    End,
    Broken(BodyError),
    /// Somebody slower must read first.
    Full,
    Nothing,
}

impl Reader {
    fn new(inner: Arc<Inner>, seat: usize) -> Reader {
        Reader {
            inner,
            slot: seat,
            at: 0,
            read: 0,
            is_over: false,
            patience: None,
        }
    }

    pub(super) fn poll(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if self.is_over {
            return Poll::Ready(None);
        }
        loop {
            let found = self.next_piece(cx);
            if !matches!(found, Found::Full) {
                self.patience = None;
            }
            return match found {
                Found::Chunk(chunk) => {
                    self.read += chunk.len() as u64;
                    Poll::Ready(Some(Ok(Frame::data(chunk))))
                }
                Found::Trailers(trailers) => {
                    self.is_over = true;
                    Poll::Ready(Some(Ok(Frame::trailers(trailers))))
                }
                Found::End => {
                    self.is_over = true;
                    Poll::Ready(None)
                }
                Found::Broken(error) => {
                    self.is_over = true;
                    Poll::Ready(Some(Err(error)))
                }
                Found::Nothing => Poll::Pending,
                Found::Full if self.poll_patience(cx).is_ready() => {
                    self.patience = None;
                    self.inner.state.lock().drop_slow_readers();
                    self.inner.wake_all();
                    continue;
                }
                Found::Full => Poll::Pending,
            };
        }
    }

    /// The next piece, from what is held or from the upstream.
    fn next_piece(&mut self, cx: &mut Context<'_>) -> Found {
        let inner = self.inner.clone();
        let mut state = inner.state.lock();
        match state.readers.get(self.slot) {
            Some(ReaderSlot::Reading(_)) => {}
            Some(ReaderSlot::TooSlow | ReaderSlot::Empty) | None => {
                return Found::Broken(SlowReader.into());
            }
        }
        let next = self.at.checked_sub(state.first);
        if let Some(chunk) = next.and_then(|next| state.chunks.get(next)).cloned() {
            let is_full = state.bytes >= state.limit(&self.inner.held);
            self.advance(&mut state);
            drop(state);
            if is_full {
                self.inner.wake_all(); // the fast may have waited for us
            }
            return Found::Chunk(chunk);
        }
        let mut ticket = None;
        if state.end.is_none() {
            if state.bytes >= state.limit(&self.inner.held) {
                ticket = state.trim(&self.inner.held);
            }
            self.register_waker(cx);
            if state.bytes >= state.limit(&self.inner.held) {
                drop(state);
                drop(ticket);
                return Found::Full;
            }
        }
        let (found, news) = self.poll_upstream(&mut state);
        if state.end.is_some() && ticket.is_none() {
            ticket = state.join_guard.take();
        }
        drop(state);
        drop(ticket);
        if news {
            self.inner.wake_all();
        }
        found
    }

    /// Asks the upstream for more. `true`: there is something that the others wait for.
    fn poll_upstream(&mut self, state: &mut State) -> (Found, bool) {
        let mut news = false;
        if state.end.is_none() {
            let waker = Waker::from(self.inner.clone());
            let mut cx = Context::from_waker(&waker);
            let Some(source) = &mut state.source else {
                return (Found::Broken(SlowReader.into()), false);
            };
            match Pin::new(&mut *source).poll_frame(&mut cx) {
                Poll::Pending => return (Found::Nothing, false),
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(chunk) => {
                        if source.is_end_stream() {
                            state.end = Some(End::Whole(None));
                            state.source = None;
                        }
                        state.bytes += chunk.len();
                        self.inner.held.fetch_add(chunk.len(), Ordering::Relaxed);
                        state.chunks.push_back(chunk.clone());
                        self.advance(state);
                        return (Found::Chunk(chunk), true);
                    }
                    Err(frame) => state.end = Some(End::Whole(frame.into_trailers().ok())),
                },
                Poll::Ready(Some(Err(error))) => {
                    state.end = Some(End::Broken(Broken(error.to_string().into())));
                }
                Poll::Ready(None) => state.end = Some(End::Whole(None)),
            }
            state.source = None;
            news = true;
        }
        let found = match &state.end {
            Some(End::Whole(Some(trailers))) => Found::Trailers(trailers.clone()),
            Some(End::Whole(None)) | None => Found::End,
            Some(End::Broken(broken)) => Found::Broken(broken.clone().into()),
        };
        (found, news)
    }

    fn advance(&mut self, state: &mut State) {
        self.at += 1;
        if let Some(seat) = state.readers.get_mut(self.slot) {
            *seat = ReaderSlot::Reading(self.at);
        }
    }

    fn register_waker(&self, cx: &Context<'_>) {
        let mut wakers = self.inner.wakers.lock();
        if let Some(waker) = wakers.get_mut(self.slot) {
            match waker {
                Some(waker) => waker.clone_from(cx.waker()),
                None => *waker = Some(cx.waker().clone()),
            }
        }
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "the idle timeout of a slow reader"
    )]
    fn poll_patience(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let idle = self.inner.idle;
        let patience = self
            .patience
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(idle.into())));
        patience.as_mut().poll(cx)
    }

    pub(super) fn is_end(&self) -> bool {
        if self.is_over {
            return true;
        }
        let state = self.inner.state.lock();
        let is_at_end = self.at == state.first + state.chunks.len();
        is_at_end && matches!(state.end, Some(End::Whole(None)))
    }

    pub(super) fn size(&self) -> SizeHint {
        match self.inner.length {
            Some(length) => SizeHint::with_exact(length.saturating_sub(self.read)),
            None => SizeHint::default(),
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let mut state = self.inner.state.lock();
        if let Some(seat) = state.readers.get_mut(self.slot) {
            *seat = ReaderSlot::Empty;
        }
        let left = state.release_if_unread();
        drop(state);
        drop(left);
        let mut wakers = self.inner.wakers.lock();
        if let Some(waker) = wakers.get_mut(self.slot) {
            *waker = None;
        }
        drop(wakers);
        // The upstream's waker may have been ours alone, and the fast may have waited for us.
        self.inner.wake_all();
    }
}
