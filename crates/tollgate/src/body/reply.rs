//! The body of a response on its way to the caller.
//!
//! Promises: the body carries the permit and the connection; its end settles the one and frees the
//! other, whoever reads it. A body that makes progress is never cut; one that stalls for the idle
//! timeout is.
//!
//! Never: holds a chunk back. Each chunk is passed on as it arrives.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::time::Sleep;
use tollgate_core::time::{Micros, Span};

use super::shared::Reader;
use super::{CostReader, Tunnel};
use crate::Permit;
use crate::event::DeferredEvent;
use crate::failpoint;
use crate::foreign::ForeignBody;
use crate::payload::BodyError;
use crate::pool::Conn;
use crate::timer::sleep;
use crate::usage_event::UsageFilter;

/// How often the ledger learns that a body is still arriving and extends the hold of its permit: at
/// least four times per hold, or this often, which is rare enough to cost nothing.
const ALIVE_EVERY: Span = Span::from_secs(1);

/// The body of a response on its way to the caller.
#[derive(Debug, Default)]
pub struct ReplyBody {
    /// The bytes that were read ahead to learn from them.
    first: Option<Bytes>,
    upstream: Option<Box<UpstreamBody>>,
    /// Other callers read it too.
    shared: Option<Reader>,
    /// Stores it while it passes.
    recorder: Option<Box<dyn BodyRecorder>>,
    /// The event of the recording, emitted with the end of this body, when no lock is held.
    fact: Option<Box<DeferredEvent>>,
    is_stored: bool,
}

/// Records a body while it passes to its caller. Dropped before the end, it has recorded nothing.
pub(crate) trait BodyRecorder: std::fmt::Debug + Send + Sync + 'static {
    /// May the next caller use what is recorded, as it is?
    fn is_reusable(&self) -> bool;

    /// Adds a piece. `false`: the body is too large to record.
    fn push(&mut self, piece: &Bytes) -> bool;

    /// The body is complete. A lock may be held, so the event is returned.
    fn finish(self: Box<Self>) -> Option<DeferredEvent>;
}

/// A response that is still arriving, with its permit and connection.
#[derive(Debug)]
pub(crate) struct UpstreamBody {
    incoming: IncomingBody,
    /// What followed the bytes read ahead: trailers, or the error that ended the body.
    next: Option<Result<Frame<Bytes>, BodyError>>,
    conn: Option<Conn>,
    permit: Option<Permit>,
    has_ended: bool,
    idle: Span,
    timer: Option<IdleTimer>,
    alive: Micros,
    /// How often the ledger learns that the body is still arriving.
    every: Span,
    /// Reads the real cost of the call.
    cost_reader: Option<Box<CostReader>>,
    /// Removes usage that the client did not ask for.
    usage_filter: Option<Box<UsageFilter>>,
}

/// A body as it arrives: on a connection of our pool, or through a foreign client.
#[derive(Debug)]
pub(crate) enum IncomingBody {
    Own(Incoming),
    Foreign(ForeignBody),
}

impl IncomingBody {
    fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match self {
            IncomingBody::Own(incoming) => Pin::new(incoming).poll_frame(cx).map_err(Into::into),
            IncomingBody::Foreign(body) => Pin::new(body).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            IncomingBody::Own(incoming) => incoming.is_end_stream(),
            IncomingBody::Foreign(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            IncomingBody::Own(incoming) => incoming.size_hint(),
            IncomingBody::Foreign(body) => body.size_hint(),
        }
    }
}

/// How long nothing has arrived.
#[derive(Debug)]
struct IdleTimer {
    timer: Pin<Box<Sleep>>,
    /// The ledger has learned that the response takes longer.
    reported: bool,
}

/// The provider stalled in the middle of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the response stalled for the idle timeout; raise timeout.idle if the provider is that slow"
)]
pub struct IdleTimeout;

impl ReplyBody {
    /// The bytes read ahead, then the rest.
    pub(crate) fn new(first: Bytes, upstream: Option<UpstreamBody>) -> ReplyBody {
        ReplyBody {
            first: Some(first).filter(|first| !first.is_empty()),
            upstream: upstream
                .filter(|upstream| !upstream.is_over())
                .map(Box::new),
            shared: None,
            recorder: None,
            fact: None,
            is_stored: false,
        }
    }

    /// A body that other callers read too.
    pub(crate) fn shared(reader: Reader) -> ReplyBody {
        ReplyBody {
            shared: Some(reader),
            ..ReplyBody::default()
        }
    }

    /// It is stored, and the next caller may use it.
    pub(crate) fn is_stored(&self) -> bool {
        self.is_stored
    }

    /// The same body, marked as stored and usable by the next caller, or not.
    pub(crate) fn stored(self, is_stored: bool) -> ReplyBody {
        ReplyBody { is_stored, ..self }
    }

    /// All of it has arrived.
    pub(crate) fn is_whole(&self) -> bool {
        self.shared.is_none() && self.upstream.as_deref().is_none_or(UpstreamBody::has_ended)
    }

    /// The same body, stored while it passes. A complete one is stored at once.
    pub(crate) fn recorded(mut self, mut recorder: Box<impl BodyRecorder>) -> ReplyBody {
        let fits = self.first.as_ref().is_none_or(|first| recorder.push(first));
        let is_whole = self.upstream.as_deref().is_none_or(UpstreamBody::has_ended);
        self.is_stored = fits && recorder.is_reusable();
        if fits && is_whole {
            drop(recorder.finish());
        } else if fits {
            self.recorder = Some(recorder);
        }
        self
    }

    /// A complete body.
    #[must_use]
    pub fn whole(bytes: Bytes) -> ReplyBody {
        ReplyBody::new(bytes, None)
    }

    /// The upstream side of an upgraded call; `None` for every other response.
    #[must_use]
    pub fn into_tunnel(self) -> Option<Tunnel> {
        let mut upstream = self.upstream?;
        let (conn, permit, idle) = (upstream.conn.take(), upstream.permit.take(), upstream.idle);
        Some(Tunnel {
            upstream: conn?.upgraded?,
            permit: permit?,
            idle,
            is_websocket: false,
        })
    }

    /// Stores a piece that passes. A reader may not poll again after the last one.
    fn record(&mut self, frame: Option<&Result<Frame<Bytes>, BodyError>>, has_ended: bool) {
        let Some(mut recorder) = self.recorder.take() else {
            return;
        };
        let fits = match frame {
            Some(Ok(frame)) => frame.data_ref().is_none_or(|data| recorder.push(data)),
            Some(Err(_)) => false,
            None => true,
        };
        if fits && has_ended {
            self.fact = recorder.finish().map(Box::new);
        } else if fits {
            self.recorder = Some(recorder);
        }
    }

    /// Reads a little of the rest and discards it, so that the connection can be reused.
    pub(crate) async fn drain(mut self, most: usize) {
        let mut read = 0;
        while read <= most
            && let Some(Ok(frame)) = self.frame().await
        {
            read += frame.data_ref().map_or(0, Bytes::len);
        }
    }
}

impl UpstreamBody {
    pub(crate) fn new(incoming: IncomingBody, conn: Option<Conn>, idle: Span) -> UpstreamBody {
        let mut upstream = UpstreamBody {
            incoming,
            next: None,
            conn,
            permit: None,
            has_ended: false,
            idle,
            timer: None,
            alive: Micros::default(),
            every: ALIVE_EVERY,
            cost_reader: None,
            usage_filter: None,
        };
        if upstream.incoming.is_end_stream() {
            upstream.end();
        }
        upstream
    }

    /// From now on, passing chunks are searched for the cost.
    pub(crate) fn count_costs(&mut self, cost_reader: Option<CostReader>) {
        self.cost_reader = cost_reader.map(Box::new);
    }

    /// From now on, usage that the client did not ask for is removed. Not from a body of a known
    /// length: that length is promised already.
    pub(crate) fn strip_usage(&mut self) {
        if self.incoming.size_hint().exact().is_none() {
            self.usage_filter = Some(Box::default());
        }
    }

    /// What passes of a frame.
    fn filtered(&mut self, frame: Frame<Bytes>, is_last: bool) -> Frame<Bytes> {
        let (Some(filter), Some(data)) = (&mut self.usage_filter, frame.data_ref()) else {
            return frame;
        };
        let passed = filter.push(data);
        if !is_last || filter.is_empty() {
            return Frame::data(passed);
        }
        Frame::data([passed, filter.rest()].concat().into())
    }

    /// From now on the body holds the permit, whose head is already settled.
    pub(crate) fn hold_permit(&mut self, permit: Permit) {
        self.alive = permit.granted();
        self.every = ALIVE_EVERY.min(Span(permit.held_for().0 / 4));
        if self.has_ended {
            self.finish(permit);
        } else {
            self.permit = Some(permit);
        }
    }

    /// Nothing more will arrive.
    fn is_over(&self) -> bool {
        self.has_ended && self.next.is_none()
    }

    /// The response is complete.
    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Reads up to `most` bytes, or what arrives within this time. A later read returns the error
    /// that ended the body.
    pub(crate) async fn read(&mut self, most: usize, patience: Span) -> Bytes {
        let mut read = BytesMut::new();
        let mut late = std::pin::pin!(sleep(Some(patience)));
        while read.len() < most && !self.has_ended {
            let next = std::future::poll_fn(|cx| match self.poll(cx) {
                Poll::Pending => late.as_mut().poll(cx).map(|()| None),
                Poll::Ready(frame) => Poll::Ready(Some(frame)),
            });
            match next.await {
                None => break,
                Some(Some(Ok(frame))) if frame.is_data() => read.extend(frame.into_data().ok()),
                Some(other) => {
                    self.next = other;
                    break;
                }
            }
        }
        read.freeze()
    }

    /// The bytes that arrived together with the head, without waiting for more: most responses are
    /// complete then, and need neither a task nor an entry in the flight table.
    pub(crate) async fn read_available(&mut self) -> Bytes {
        // Only with a known length: then only data can follow.
        if self.has_ended || self.incoming.size_hint().exact().is_none() {
            return Bytes::new();
        }
        let seen = std::future::poll_fn(|cx| Poll::Ready(self.poll_incoming(cx))).await;
        match seen {
            Poll::Ready(Some(Ok(frame))) if frame.is_data() => {
                frame.into_data().unwrap_or_default()
            }
            Poll::Ready(other) => {
                self.next = other;
                Bytes::new()
            }
            Poll::Pending => Bytes::new(),
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match self.poll_incoming(cx) {
            Poll::Pending => self.poll_idle(cx),
            ready @ Poll::Ready(_) => ready,
        }
    }

    fn poll_incoming(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if self.next.is_some() {
            return Poll::Ready(self.next.take());
        }
        match self.incoming.poll_frame(cx) {
            Poll::Ready(Some(Ok(frame))) => {
                self.timer = None;
                if let (Some(cost_reader), Some(data)) = (&mut self.cost_reader, frame.data_ref()) {
                    cost_reader.push(data);
                }
                // A reader may not poll again after the last byte.
                let is_last = self.incoming.is_end_stream();
                let frame = self.filtered(frame, is_last);
                if is_last {
                    self.end();
                } else {
                    failpoint::reached("mid-body");
                    self.keep_alive(self.every);
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(Some(Err(error))) => {
                self.break_off();
                Poll::Ready(Some(Err(error)))
            }
            Poll::Ready(None) => {
                self.end();
                let rest = self.usage_filter.take().map(|mut filter| filter.rest());
                let rest = rest.filter(|rest| !rest.is_empty());
                Poll::Ready(rest.map(|rest| Ok(Frame::data(rest))))
            }
            Poll::Pending => Poll::Pending,
        }
    }

    /// Nothing has arrived: for how long? The ledger learns only of slow responses: a report costs
    /// as much as a decision, and most bodies arrive with their heads.
    #[expect(clippy::disallowed_methods, reason = "the idle timeout of a body")]
    fn poll_idle(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let first = self.idle.min(self.every);
        let idle = self.timer.get_or_insert_with(|| IdleTimer {
            timer: Box::pin(tokio::time::sleep(first.into())),
            reported: false,
        });
        ready!(idle.timer.as_mut().poll(cx));
        if !idle.reported {
            idle.reported = true;
            let rest = Span(self.idle.0.saturating_sub(first.0));
            idle.timer = Box::pin(tokio::time::sleep(rest.into()));
            let is_over = idle.timer.as_mut().poll(cx).is_ready();
            self.keep_alive(Span::ZERO);
            if !is_over {
                return Poll::Pending;
            }
        }
        self.break_off();
        Poll::Ready(Some(Err(IdleTimeout.into())))
    }

    /// Extends the hold of the permit, at most this often.
    fn keep_alive(&mut self, every: Span) {
        if let Some(permit) = &mut self.permit {
            let now = permit.now();
            if now.since(self.alive) >= every {
                self.alive = now;
                permit.keep_alive(self.idle + Span::from_secs(1));
            }
        }
    }

    /// The end of the response is not the end of the call: it is a tunnel now.
    fn is_tunnel(&self) -> bool {
        let is_upgraded = |conn: &Conn| conn.upgraded.is_some();
        self.conn.as_ref().is_some_and(is_upgraded)
    }

    /// The response is complete.
    fn end(&mut self) {
        if self.is_tunnel() {
            return;
        }
        self.has_ended = true;
        self.timer = None;
        if let Some(conn) = self.conn.take() {
            conn.release();
        }
        if let Some(permit) = self.permit.take() {
            self.finish(permit);
        }
    }

    /// The rest of the response does not come: the call costs what it held.
    fn break_off(&mut self) {
        (self.conn, self.permit) = (None, None);
        if let Some(reader) = self.cost_reader.take() {
            reader.broke_off();
        }
    }

    /// Settles the permit with the real cost of the call, if the response reported it.
    fn finish(&mut self, permit: Permit) {
        let costs = self
            .cost_reader
            .take()
            .map(|cost_reader| cost_reader.costs());
        let costs = costs.unwrap_or_default();
        permit.finished(|term| costs.iter().find(|cost| cost.0 == term).map(|cost| cost.1));
    }
}

impl Drop for UpstreamBody {
    /// Its reader has left in the middle of a stream: what was seen is what it cost. Without a
    /// stream, or if nothing was seen, the estimate stays.
    fn drop(&mut self) {
        let (Some(permit), Some(reader)) = (self.permit.take(), self.cost_reader.take()) else {
            return;
        };
        let seen = reader.costs_so_far();
        if seen.is_empty() {
            return;
        }
        let held: Vec<u64> = permit.limits().iter().map(|term| term.cost).collect();
        permit.finished(|term| {
            let (_, cost) = seen.iter().find(|(of, _)| *of == term)?;
            Some((*cost).min(held.get(term).copied().unwrap_or(*cost)))
        });
    }
}

impl Body for ReplyBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Some(Ok(Frame::data(first))));
        }
        if let Some(reader) = &mut self.shared {
            return reader.poll(cx);
        }
        let Some(upstream) = &mut self.upstream else {
            return Poll::Ready(None);
        };
        let frame = ready!(upstream.poll(cx));
        let has_ended = upstream.has_ended();
        self.record(frame.as_ref(), has_ended);
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        if let Some(reader) = &self.shared {
            return reader.is_end();
        }
        let ended =
            |upstream: &UpstreamBody| upstream.next.is_none() && upstream.incoming.is_end_stream();
        self.first.is_none() && self.upstream.as_deref().is_none_or(ended)
    }

    fn size_hint(&self) -> SizeHint {
        if let Some(reader) = &self.shared {
            return reader.size();
        }
        let first = self.first.as_ref().map_or(0, |first| first.len() as u64);
        let Some(upstream) = &self.upstream else {
            return SizeHint::with_exact(first);
        };
        match upstream.incoming.size_hint().exact() {
            Some(rest) => SizeHint::with_exact(first + rest),
            None => SizeHint::default(),
        }
    }
}
