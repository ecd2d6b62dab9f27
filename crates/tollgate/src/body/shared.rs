//! One response for many readers: its chunks are held in order, and each reader has its own speed.
//!
//! The reader that has read everything polls the upstream for more, so no reader depends on the
//! leader, and no task is needed.
//!
//! Promises: each reader gets every byte in order, or an error. Late readers start at the beginning
//! while all of it is still held. At most [`OBJECT_MAX`] is held per response: beyond that, chunks
//! that all have read are dropped, fast readers wait for slow ones, and a reader that stalls for
//! the idle timeout gets an error. A reader that reads, however slowly, does not.
//!
//! Never: drops foreign values while it holds its lock.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker, ready};
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use tokio::time::{Instant, Sleep};
use tollgate_core::time::Span;
use tollgate_ledger::lock_order::{RankedMutex, rank};

use super::ReplyBody;
use crate::body_memory::BodyMemory;
use crate::event;
use crate::payload::BodyError;

/// The most bytes held per response: the same as the largest cached response, so that every
/// cacheable response is shareable. JSON responses are far below it. A thousand different responses
/// of this size in flight would be 8 GiB, which is why [`BodyMemory`] exists.
pub(crate) const OBJECT_MAX: usize = crate::cache::OBJECT_MAX;

/// The bound per response when all together hold too much: enough to keep a stream going.
const SCARCE_MAX: usize = 64 * 1024;

/// How often a reader that waits for slower ones looks again: nobody tells it when memory is no
/// longer scarce.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// How many bytes all bodies hold. Beyond its bound, nothing is held for late readers, and fast
/// readers wait for slow ones.
pub(crate) type HeldBytes = Arc<BodyMemory>;

/// Dropped when nobody can join the response any more.
pub(crate) type JoinGuard = Box<dyn std::any::Any + Send + Sync>;

/// A response with many readers.
#[derive(Clone, Debug)]
pub(crate) struct SharedBody {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    state: RankedMutex<{ rank::SHARED_BODY }, State>,
    /// The wakers of the readers that wait for the next chunk. Separate from the state, because the
    /// upstream may wake us while we poll it.
    wakers: RankedMutex<{ rank::BODY_WAKERS }, Vec<Option<Waker>>>,
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
    /// Readers that have reserved a slot and not opened it yet.
    reserved: usize,
    /// A reader waits until a slower one has read.
    has_blocked: bool,
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

/// The shared response broke off.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Broken(Arc<str>);

/// A reader was too slow for the others to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the response was not read for the idle timeout while others waited for it")]
pub struct SlowReader;

/// A reader of a shared response.
#[derive(Debug)]
pub(crate) struct Reader {
    inner: Arc<Inner>,
    slot: usize,
    at: usize,
    read: u64,
    is_over: bool,
    /// How much longer the slow readers may take.
    patience: Option<Patience>,
}

/// The patience of a reader with slower ones.
#[derive(Debug)]
struct Patience {
    /// The slowest reader's next chunk. If it reads, it gets the whole time again.
    slowest: usize,
    until: Instant,
    next_look: Pin<Box<Sleep>>,
}

impl SharedBody {
    /// A response with one reader, and slots reserved for so many others. Nobody can join once the
    /// guard is dropped.
    pub(crate) fn new(
        source: ReplyBody,
        reserved: usize,
        idle: Span,
        held: HeldBytes,
        join_guard: JoinGuard,
    ) -> (SharedBody, Reader) {
        let length = source.size_hint().exact();
        let inner = Arc::new(Inner {
            state: RankedMutex::new(State {
                source: Some(source),
                end: None,
                chunks: VecDeque::new(),
                first: 0,
                bytes: 0,
                readers: vec![ReaderSlot::Reading(0)],
                reserved,
                has_blocked: false,
                join_guard: Some(join_guard),
            }),
            wakers: RankedMutex::new(vec![None]),
            held,
            idle,
            length,
        });
        let shared = SharedBody {
            inner: inner.clone(),
        };
        (shared, Reader::new(inner, 0))
    }

    /// Reserves a slot; `false` = the beginning is gone, or all readers have left.
    pub(crate) fn reserve(&self) -> bool {
        let mut state = self.inner.state.lock();
        let is_there =
            state.join_guard.is_some() && (state.source.is_some() || state.end.is_some());
        if is_there {
            state.reserved += 1;
        }
        is_there
    }

    /// Opens a reserved slot; `None` = the beginning is gone.
    pub(crate) fn open_reader(&self) -> Option<Reader> {
        let mut state = self.inner.state.lock();
        state.reserved = state.reserved.saturating_sub(1);
        if state.first > 0 || (state.source.is_none() && state.end.is_none()) {
            return None;
        }
        let free = state
            .readers
            .iter()
            .position(|slot| *slot == ReaderSlot::Empty);
        let slot = free.unwrap_or(state.readers.len());
        if slot == state.readers.len() {
            state.readers.push(ReaderSlot::Empty);
            self.inner.wakers.lock().push(None);
        }
        if let Some(empty) = state.readers.get_mut(slot) {
            *empty = ReaderSlot::Reading(0);
        }
        Some(Reader::new(self.inner.clone(), slot))
    }

    /// Releases a reserved slot.
    pub(crate) fn release(&self) {
        let mut state = self.inner.state.lock();
        state.reserved = state.reserved.saturating_sub(1);
        let released = state.release_if_unread();
        drop(state);
        drop(released);
    }
}

impl State {
    fn limit(&self, held: &HeldBytes) -> usize {
        if held.is_scarce() {
            SCARCE_MAX
        } else {
            OBJECT_MAX
        }
    }

    /// If no reader remains, releases the upstream too. The caller must drop the returned values
    /// outside the lock.
    fn release_if_unread(&mut self) -> Option<(Option<ReplyBody>, Option<JoinGuard>)> {
        let is_taken = |slot: &ReaderSlot| matches!(slot, ReaderSlot::Reading(_));
        if self.reserved > 0 || self.readers.iter().any(is_taken) {
            return None;
        }
        Some((self.source.take(), self.join_guard.take()))
    }

    /// The slowest reader's next chunk.
    fn slowest(&self) -> usize {
        let reserved = (self.reserved > 0).then_some(0);
        let at = |slot: &ReaderSlot| match slot {
            ReaderSlot::Reading(at) => Some(*at),
            ReaderSlot::TooSlow | ReaderSlot::Empty => None,
        };
        let readers = self.readers.iter().filter_map(at);
        readers.chain(reserved).min().unwrap_or(self.first)
    }

    /// Drops chunks that all readers have read. Nobody can join from then on.
    fn trim(&mut self, held: &HeldBytes) -> Option<JoinGuard> {
        let slowest = self.slowest();
        while self.first < slowest
            && let Some(chunk) = self.chunks.pop_front()
        {
            self.first += 1;
            self.bytes -= chunk.len();
            held.release(chunk.len());
        }
        if self.first > 0 {
            self.join_guard.take()
        } else {
            None
        }
    }

    /// Gives up on the readers that block all others, and on reserved slots. Nobody can join from
    /// then on: a slot that is reserved later would be mistaken for one that was given up.
    fn drop_slow_readers(&mut self) -> Option<JoinGuard> {
        self.reserved = 0;
        let first = self.first;
        for slot in &mut self.readers {
            if *slot == ReaderSlot::Reading(first) {
                *slot = ReaderSlot::TooSlow;
            }
        }
        self.join_guard.take()
    }
}

impl Inner {
    /// Wakes all readers that wait for the next chunk.
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
        self.held.release(self.state.get_mut().bytes);
    }
}

/// The next piece for a reader.
enum Found {
    Chunk(Bytes),
    Trailers(HeaderMap),
    End,
    Broken(BodyError),
    /// A slower reader, whose next chunk this is, must read first.
    Full(usize),
    Nothing,
}

impl Reader {
    fn new(inner: Arc<Inner>, slot: usize) -> Reader {
        Reader {
            inner,
            slot,
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
            if !matches!(found, Found::Full(_)) {
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
                Found::Full(slowest) => match self.poll_patience(slowest, cx) {
                    Poll::Pending => Poll::Pending,
                    Poll::Ready(is_over) => {
                        if is_over {
                            self.patience = None;
                            let join_guard = self.inner.state.lock().drop_slow_readers();
                            drop(join_guard);
                            self.inner.wake_all();
                        }
                        continue;
                    }
                },
            };
        }
    }

    /// The next piece, from the held chunks or from the upstream.
    fn next_piece(&mut self, cx: &mut Context<'_>) -> Found {
        // A body that ends may tell a doubt about its cost: after the lock.
        let _deferred = event::defer_events();
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
            // Whoever found it full waits for this, even if memory is no longer scarce.
            let has_blocked = std::mem::take(&mut state.has_blocked);
            self.advance(&mut state);
            drop(state);
            if has_blocked {
                self.inner.wake_all();
            }
            return Found::Chunk(chunk);
        }
        let mut join_guard = None;
        if state.end.is_none() {
            if state.bytes >= state.limit(&self.inner.held) {
                join_guard = state.trim(&self.inner.held);
            }
            self.register_waker(cx);
            if state.bytes >= state.limit(&self.inner.held) {
                state.has_blocked = true;
                let slowest = state.slowest();
                drop(state);
                drop(join_guard);
                return Found::Full(slowest);
            }
        }
        let (found, news, finished) = self.poll_upstream(&mut state);
        if state.end.is_some() && join_guard.is_none() {
            join_guard = state.join_guard.take();
        }
        drop(state);
        drop(join_guard);
        // Its end releases the connection and tells facts: not under the lock.
        drop(finished);
        if news {
            self.inner.wake_all();
        }
        found
    }

    /// Polls the upstream for more. `true`: there is something that the others wait for. An
    /// upstream that has ended is returned, to be dropped outside the lock.
    fn poll_upstream(&mut self, state: &mut State) -> (Found, bool, Option<ReplyBody>) {
        let (mut news, mut finished) = (false, None);
        if state.end.is_none() {
            let waker = Waker::from(self.inner.clone());
            let mut cx = Context::from_waker(&waker);
            let Some(source) = &mut state.source else {
                return (Found::Broken(SlowReader.into()), false, None);
            };
            match Pin::new(&mut *source).poll_frame(&mut cx) {
                Poll::Pending => return (Found::Nothing, false, None),
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(chunk) => {
                        if source.is_end_stream() {
                            state.end = Some(End::Whole(None));
                            finished = state.source.take();
                        }
                        state.bytes += chunk.len();
                        self.inner.held.add(chunk.len());
                        state.chunks.push_back(chunk.clone());
                        self.advance(state);
                        return (Found::Chunk(chunk), true, finished);
                    }
                    Err(frame) => state.end = Some(End::Whole(frame.into_trailers().ok())),
                },
                Poll::Ready(Some(Err(error))) => {
                    state.end = Some(End::Broken(Broken(error.to_string().into())));
                }
                Poll::Ready(None) => state.end = Some(End::Whole(None)),
            }
            finished = state.source.take();
            news = true;
        }
        let found = match &state.end {
            Some(End::Whole(Some(trailers))) => Found::Trailers(trailers.clone()),
            Some(End::Whole(None)) | None => Found::End,
            Some(End::Broken(broken)) => Found::Broken(broken.clone().into()),
        };
        (found, news, finished)
    }

    fn advance(&mut self, state: &mut State) {
        self.at += 1;
        if let Some(slot) = state.readers.get_mut(self.slot) {
            *slot = ReaderSlot::Reading(self.at);
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

    /// Waits for the next look. `true`: the slowest reader has not read for the idle timeout.
    #[expect(
        clippy::disallowed_methods,
        reason = "the idle timeout of a slow reader"
    )]
    fn poll_patience(&mut self, slowest: usize, cx: &mut Context<'_>) -> Poll<bool> {
        let now = Instant::now();
        let until = now + Duration::from(self.inner.idle);
        let patience = self.patience.get_or_insert_with(|| Patience {
            slowest,
            until,
            next_look: Box::pin(tokio::time::sleep_until(until.min(now + LOOK_EVERY))),
        });
        if patience.slowest != slowest {
            (patience.slowest, patience.until) = (slowest, until);
        }
        ready!(patience.next_look.as_mut().poll(cx));
        let next_look = patience.until.min(now + LOOK_EVERY);
        patience.next_look.as_mut().reset(next_look);
        Poll::Ready(patience.until <= now)
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
        if let Some(slot) = state.readers.get_mut(self.slot) {
            *slot = ReaderSlot::Empty;
        }
        let released = state.release_if_unread();
        drop(state);
        drop(released);
        // Only this reader's waker may have been registered upstream, and fast readers may wait for
        // it. Its own waker goes with the others: a new reader may have the slot already.
        self.inner.wake_all();
    }
}

#[cfg(test)]
#[path = "shared_tests.rs"]
mod tests;
