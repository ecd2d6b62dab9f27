//! Request bodies that are sent while they arrive: what was read before, then the rest.
//!
//! Promises: says which part a pending body is at, so that a slow disk is not taken for a caller that
//! has stalled.
//!
//! Never: changes a byte.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::combinators::BoxBody;

use super::BodyError;

/// A body of which the beginning was read, and the rest is still to come.
#[derive(Debug)]
pub(crate) struct StreamedBody {
    pub(super) body: BoxBody<Bytes, BodyError>,
    /// The beginning is being sent: whatever takes long is ours, not the caller's.
    pub(super) reads_first: Arc<AtomicBool>,
}

impl StreamedBody {
    pub(super) fn new<A, B>(chained: Chained<A, B>) -> StreamedBody
    where
        A: Body<Data = Bytes> + Send + Sync + Unpin + 'static,
        A::Error: Into<BodyError>,
        B: Body<Data = Bytes, Error = BodyError> + Send + Sync + Unpin + 'static,
    {
        let reads_first = Arc::new(AtomicBool::new(true));
        StreamedBody {
            body: BoxBody::new(TrackedChain {
                chained,
                reads_first: reads_first.clone(),
            }),
            reads_first,
        }
    }
}

/// Reports which of its parts a body is at.
struct TrackedChain<A, B> {
    chained: Chained<A, B>,
    reads_first: Arc<AtomicBool>,
}

impl<A, B> Body for TrackedChain<A, B>
where
    A: Body<Data = Bytes> + Unpin,
    A::Error: Into<BodyError>,
    B: Body<Data = Bytes, Error = BodyError> + Unpin,
{
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let frame = Pin::new(&mut self.chained).poll_frame(cx);
        let reads_first = !self.chained.first.is_end_stream();
        self.reads_first.store(reads_first, Ordering::Relaxed);
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.chained.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.chained.size_hint()
    }
}

/// The bytes read so far, then the rest.
pub(super) struct Chained<A, B> {
    pub(super) first: A,
    pub(super) rest: B,
}

impl<A, B> Body for Chained<A, B>
where
    A: Body<Data = Bytes> + Unpin,
    A::Error: Into<BodyError>,
    B: Body<Data = Bytes, Error = BodyError> + Unpin,
{
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if !self.first.is_end_stream()
            && let Some(frame) = ready!(Pin::new(&mut self.first).poll_frame(cx))
        {
            return Poll::Ready(Some(frame.map_err(Into::into)));
        }
        Pin::new(&mut self.rest).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.first.is_end_stream() && self.rest.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        match (
            self.first.size_hint().exact(),
            self.rest.size_hint().exact(),
        ) {
            (Some(first), Some(rest)) => SizeHint::with_exact(first + rest),
            _ => SizeHint::default(),
        }
    }
}
