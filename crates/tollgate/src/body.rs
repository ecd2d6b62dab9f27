//! Bodies on their way: the request's to the upstream here, the answer's to the caller in `reply`,
//! and to many callers in `shared`.
//!
//! Promises: a request body of at most 256 KiB is whole before the permit is asked for, so that a
//! dribbling client cannot hold quota. A larger one is sent as it comes, once.
//!
//! Never: changes a byte.

mod reply;
mod shared;
mod tally;
mod tunnel;
pub(crate) use reply::Flow;
pub use reply::{ReplyBody, StoodStill};
pub use shared::{Broken, LeftBehind};
pub(crate) use shared::{Held, OBJECT_MAX, Shared, Ticket};
pub(crate) use tally::{Kind as Written, Open, Tally};
pub use tunnel::Tunnel;

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use http_body_util::combinators::BoxBody;

use crate::Error;

/// Any error of a body.
pub type BodyError = Box<dyn std::error::Error + Send + Sync>;

/// The largest request body that is read before the permit is asked for. 1 000 waiting calls with
/// such bodies are 256 MiB, which a host has; nearly all API calls are below 64 KiB.
pub const WHOLE_MAX: usize = 256 * 1024;

/// What a caller sends.
#[derive(Debug)]
pub(crate) enum Payload {
    /// All of it: it can be sent again.
    Whole(Bytes),
    /// The rest is still coming: it can be sent once.
    Stream(Option<BoxBody<Bytes, BodyError>>),
}

/// The body of a request on its way to the upstream.
#[derive(Debug)]
pub struct Outgoing {
    kind: Kind,
    /// Of a stream: how many pieces of it have left.
    progress: Option<Arc<AtomicU64>>,
}

#[derive(Debug)]
enum Kind {
    Whole(Option<Bytes>),
    Stream(BoxBody<Bytes, BodyError>),
}

impl Payload {
    /// Reads a body as far as it may be read before the permit.
    pub(crate) async fn gather<B>(mut body: B) -> Result<Payload, Error>
    where
        B: Body<Data = Bytes> + Send + Sync + Unpin + 'static,
        B::Error: Into<BodyError>,
    {
        let mut read = BytesMut::new();
        loop {
            if body.is_end_stream() {
                return Ok(Payload::Whole(read.freeze()));
            }
            if body.size_hint().lower() > WHOLE_MAX as u64 {
                break;
            }
            let Some(frame) = body.frame().await else {
                return Ok(Payload::Whole(read.freeze()));
            };
            let Ok(data) = frame.map_err(|_| Error::NoBody)?.into_data() else {
                // Trailers end a body; alone they are not worth a stream.
                return Ok(Payload::Whole(read.freeze()));
            };
            read.extend_from_slice(&data);
            if read.len() > WHOLE_MAX {
                break;
            }
        }
        let rest = Chained {
            first: Some(read.freeze()),
            rest: body,
        };
        Ok(Payload::Stream(Some(BoxBody::new(
            rest.map_err(Into::into),
        ))))
    }

    /// What has been read so far, for what is decided by the body.
    pub(crate) fn known(&self) -> &[u8] {
        match self {
            Payload::Whole(bytes) => bytes,
            Payload::Stream(_) => &[],
        }
    }

    /// There is none.
    pub(crate) fn is_empty(&self) -> bool {
        matches!(self, Payload::Whole(bytes) if bytes.is_empty())
    }

    /// Can it be sent once more?
    pub(crate) fn is_left(&self) -> bool {
        match self {
            Payload::Whole(_) | Payload::Stream(Some(_)) => true,
            Payload::Stream(None) => false,
        }
    }

    /// The body comes back: not a byte of it has left.
    pub(crate) fn restore(&mut self, outgoing: Outgoing) {
        if let (Payload::Stream(gone @ None), Kind::Stream(stream)) = (self, outgoing.kind) {
            *gone = Some(stream);
        }
    }

    /// A body to send. A stream is gone afterwards.
    pub(crate) fn outgoing(&mut self) -> Outgoing {
        let kind = match self {
            Payload::Whole(bytes) => Kind::Whole(Some(bytes.clone())),
            Payload::Stream(stream) => match stream.take() {
                Some(stream) => Kind::Stream(stream),
                None => Kind::Whole(None),
            },
        };
        let progress = match kind {
            Kind::Whole(_) => None,
            Kind::Stream(_) => Some(Arc::default()),
        };
        Outgoing { kind, progress }
    }
}

impl Outgoing {
    /// Counts the pieces that have left, for the timeout of an upload that flows.
    pub(crate) fn progress(&self) -> Option<Arc<AtomicU64>> {
        self.progress.clone()
    }
}

impl Body for Outgoing {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let frame = match &mut self.kind {
            Kind::Whole(bytes) => {
                let bytes = bytes.take().filter(|bytes| !bytes.is_empty());
                return Poll::Ready(bytes.map(|bytes| Ok(Frame::data(bytes))));
            }
            Kind::Stream(stream) => ready!(Pin::new(stream).poll_frame(cx)),
        };
        if let Some(progress) = &self.progress {
            progress.fetch_add(1, Ordering::Relaxed);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            Kind::Whole(bytes) => bytes.as_ref().is_none_or(Bytes::is_empty),
            Kind::Stream(stream) => stream.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Whole(bytes) => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |b| b.len() as u64))
            }
            Kind::Stream(stream) => stream.size_hint(),
        }
    }
}

/// What was read already, then the rest.
struct Chained<B> {
    first: Option<Bytes>,
    rest: B,
}

impl<B: Body<Data = Bytes> + Unpin> Body for Chained<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        match self.first.take().filter(|first| !first.is_empty()) {
            Some(first) => Poll::Ready(Some(Ok(Frame::data(first)))),
            None => Pin::new(&mut self.rest).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.first.is_none() && self.rest.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let first = self.first.as_ref().map_or(0, |first| first.len() as u64);
        let rest = self.rest.size_hint();
        match rest.exact() {
            Some(rest) => SizeHint::with_exact(first + rest),
            None => SizeHint::default(),
        }
    }
}
