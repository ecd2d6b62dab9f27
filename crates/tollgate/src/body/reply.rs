//! The body of an answer on its way to the caller.
//!
//! Promises: the permit and the connection travel with it: its end settles the one and frees the
//! other, whoever reads it. A body that flows is never cut; one that stands still for the idle time
//! is.
//!
//! Never: holds a chunk back. What comes in goes out, one by one.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::time::Sleep;
use tollgate_core::time::{Micros, Span};

use super::shared::Reader;
use super::{BodyError, CostReader, Tunnel};
use crate::Permit;
use crate::failpoint;
use crate::path::Recorder;
use crate::pool::Conn;
use crate::timer::sleep;

/// How often a body that still comes is told to the ledger, which holds its place for longer each
/// time. At least four times as often as it must, or this often: seldom enough to cost nothing.
const ALIVE_EVERY: Span = Span::from_secs(1);

/// The body of an answer on its way to the caller.
#[derive(Debug, Default)]
pub struct ReplyBody {
    /// What was read already to learn from it.
    first: Option<Bytes>,
    upstream: Option<Box<UpstreamBody>>,
    /// Others read it too.
    shared: Option<Reader>,
    /// It is kept while it passes.
    recorder: Option<Box<Recorder>>,
    is_stored: bool,
}

/// An answer that still comes in, with the permit and the connection that it holds.
#[derive(Debug)]
pub(crate) struct UpstreamBody {
    incoming: Incoming,
    /// What came after the bytes that were read already: trailers, or what stopped it.
    next: Option<Result<Frame<Bytes>, BodyError>>,
    conn: Option<Conn>,
    permit: Option<Permit>,
    has_ended: bool,
    idle: Span,
    timer: Option<IdleTimer>,
    alive: Micros,
    /// How often the ledger hears that it still comes.
    every: Span,
    /// Reads what the call really cost.
    cost_reader: Option<Box<CostReader>>,
}

/// How long nothing has come already.
#[derive(Debug)]
struct IdleTimer {
    timer: Pin<Box<Sleep>>,
    /// The permit has been told that its answer takes longer.
    reported: bool,
}

/// The provider stopped in the middle of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the answer stood still for the idle time; raise timeout.idle if the provider is that slow"
)]
pub struct IdleTimeout;

impl ReplyBody {
    /// What was read, then what still comes.
    pub(crate) fn new(first: Bytes, flow: Option<UpstreamBody>) -> ReplyBody {
        ReplyBody {
            first: Some(first).filter(|first| !first.is_empty()),
            upstream: flow.filter(|flow| !flow.is_over()).map(Box::new),
            shared: None,
            recorder: None,
            is_stored: false,
        }
    }

    /// A body that others read too.
    pub(crate) fn shared(reader: Reader) -> ReplyBody {
        ReplyBody {
            shared: Some(reader),
            ..ReplyBody::default()
        }
    }

    /// It is kept, and good for whoever asks next.
    pub(crate) fn is_stored(&self) -> bool {
        self.is_stored
    }

    /// The same body, which was kept and is good for whoever asks next, or is not.
    pub(crate) fn stored(self, is_kept: bool) -> ReplyBody {
        ReplyBody {
            is_stored: is_kept,
            ..self
        }
    }

    /// All of it is here already.
    pub(crate) fn is_whole(&self) -> bool {
        self.shared.is_none() && self.upstream.as_deref().is_none_or(UpstreamBody::has_ended)
    }

    /// The same body, kept while it passes. One that is here already is kept at once.
    pub(crate) fn recorded(mut self, mut recorder: Recorder) -> ReplyBody {
        let fits = self.first.as_ref().is_none_or(|first| recorder.push(first));
        let is_whole = self.upstream.as_deref().is_none_or(UpstreamBody::has_ended);
        self.is_stored = fits && recorder.is_reusable();
        if fits && is_whole {
            recorder.finish();
        } else if fits {
            self.recorder = Some(Box::new(recorder));
        }
        self
    }

    /// A body that is known.
    #[must_use]
    pub fn whole(bytes: Bytes) -> ReplyBody {
        ReplyBody::new(bytes, None)
    }

    /// The upstream's side of an upgraded call; `None` for every other answer.
    #[must_use]
    pub fn into_tunnel(self) -> Option<Tunnel> {
        let UpstreamBody {
            conn, permit, idle, ..
        } = *self.upstream?;
        Some(Tunnel {
            upstream: conn?.upgraded?,
            permit: permit?,
            idle,
        })
    }

    /// Keeps a piece that passes. Whoever reads may not ask again after the last one.
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
            recorder.finish();
        } else if fits {
            self.recorder = Some(recorder);
        }
    }

    /// Reads a little of what is left and throws it away, so that the connection can be used again.
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
    pub(crate) fn new(incoming: Incoming, conn: Conn, idle: Span) -> UpstreamBody {
        let mut flow = UpstreamBody {
            incoming,
            next: None,
            conn: Some(conn),
            permit: None,
            has_ended: false,
            idle,
            timer: None,
            alive: Micros::default(),
            every: ALIVE_EVERY,
            cost_reader: None,
        };
        if flow.incoming.is_end_stream() {
            flow.end();
        }
        flow
    }

    /// From now on what passes is looked through for its cost.
    pub(crate) fn count_costs(&mut self, tally: Option<CostReader>) {
        self.cost_reader = tally.map(Box::new);
    }

    /// From now on the permit travels with the body. It has been told of the head already.
    pub(crate) fn hold_permit(&mut self, permit: Permit) {
        self.alive = permit.granted();
        self.every = ALIVE_EVERY.min(Span(permit.held_for().0 / 4));
        if self.has_ended {
            self.finish(permit);
        } else {
            self.permit = Some(permit);
        }
    }

    /// Nothing more comes of it.
    fn is_over(&self) -> bool {
        self.has_ended && self.next.is_none()
    }

    /// The answer is whole.
    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Reads up to `most` bytes now, or what comes within this time. Whoever reads on meets the error
    /// that stopped it.
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

    /// What has come along with the head, without a wait for more: most answers are whole then, and
    /// cost neither a task nor a place among those that others may join.
    pub(crate) async fn read_available(&mut self) -> Bytes {
        // Only a known length: nothing but bytes can come then.
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
        match Pin::new(&mut self.incoming).poll_frame(cx) {
            Poll::Ready(Some(Ok(frame))) => {
                self.timer = None;
                if let (Some(tally), Some(data)) = (&mut self.cost_reader, frame.data_ref()) {
                    tally.push(data);
                }
                // Whoever reads may not ask again after the last byte.
                if self.incoming.is_end_stream() {
                    self.end();
                } else {
                    failpoint::reached("mid-body");
                    self.keep_alive(self.every);
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(Some(Err(error))) => {
                self.conn = None;
                self.permit = None;
                Poll::Ready(Some(Err(error.into())))
            }
            Poll::Ready(None) => {
                self.end();
                Poll::Ready(None)
            }
            Poll::Pending => Poll::Pending,
        }
    }

    /// Nothing comes: how long already? The permit is told only of answers that take a while: a
    /// word to the ledger costs as much as a decision, and most bodies come with their heads.
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
        self.conn = None;
        self.permit = None;
        Poll::Ready(Some(Err(IdleTimeout.into())))
    }

    /// Keeps the place of a long answer, at most so often.
    fn keep_alive(&mut self, every: Span) {
        if let Some(permit) = &mut self.permit {
            let now = permit.now();
            if now.since(self.alive) >= every {
                self.alive = now;
                permit.keep_alive(self.idle + Span::from_secs(1));
            }
        }
    }

    /// Its end is not the end of the call: it has become a tunnel.
    fn is_tunnel(&self) -> bool {
        let is_upgraded = |conn: &Conn| conn.upgraded.is_some();
        self.conn.as_ref().is_some_and(is_upgraded)
    }

    /// The answer is whole.
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

    /// The permit is settled with what the call really cost, where its answer has told.
    fn finish(&mut self, permit: Permit) {
        let costs = self.cost_reader.take().map(|tally| tally.costs());
        let costs = costs.unwrap_or_default();
        permit.finished(|term| costs.iter().find(|cost| cost.0 == term).map(|cost| cost.1));
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
        let Some(flow) = &mut self.upstream else {
            return Poll::Ready(None);
        };
        let frame = ready!(flow.poll(cx));
        let has_ended = flow.has_ended();
        self.record(frame.as_ref(), has_ended);
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        if let Some(reader) = &self.shared {
            return reader.is_end();
        }
        let ended = |flow: &UpstreamBody| flow.next.is_none() && flow.incoming.is_end_stream();
        self.first.is_none() && self.upstream.as_deref().is_none_or(ended)
    }

    fn size_hint(&self) -> SizeHint {
        if let Some(reader) = &self.shared {
            return reader.size();
        }
        let first = self.first.as_ref().map_or(0, |first| first.len() as u64);
        let Some(flow) = &self.upstream else {
            return SizeHint::with_exact(first);
        };
        match flow.incoming.size_hint().exact() {
            Some(rest) => SizeHint::with_exact(first + rest),
            None => SizeHint::default(),
        }
    }
}
