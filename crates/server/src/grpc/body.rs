//! Response bodies of gRPC: a message or a stream of them, then the status in trailers.
//!
//! Promises: every body ends with a status.
//!
//! Never: holds more than one message.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::HeaderMap;
use hyper::body::{Body, Frame, SizeHint};

use super::status::ok_trailers;

/// What a stream waits for before its last message.
type LastMessage = Pin<Box<dyn Future<Output = Bytes> + Send>>;

/// A response body.
#[derive(Default)]
pub(super) struct GrpcBody {
    message: Option<Bytes>,
    last: Option<LastMessage>,
    trailers: Option<HeaderMap>,
}

impl GrpcBody {
    /// One message, and success.
    pub(super) fn of(frame: Vec<u8>) -> GrpcBody {
        GrpcBody {
            message: Some(frame.into()),
            last: None,
            trailers: Some(ok_trailers()),
        }
    }

    /// A first message at once, a last one later, and success.
    pub(super) fn stream(first: Vec<u8>, last: LastMessage) -> GrpcBody {
        GrpcBody {
            last: Some(last),
            ..GrpcBody::of(first)
        }
    }
}

impl Body for GrpcBody {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut GrpcBody>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if let Some(message) = self.message.take() {
            return Poll::Ready(Some(Ok(Frame::data(message))));
        }
        if let Some(last) = &mut self.last {
            let Poll::Ready(message) = last.as_mut().poll(context) else {
                return Poll::Pending;
            };
            self.last = None;
            return Poll::Ready(Some(Ok(Frame::data(message))));
        }
        let trailers = self.trailers.take();
        Poll::Ready(trailers.map(|trailers| Ok(Frame::trailers(trailers))))
    }

    fn is_end_stream(&self) -> bool {
        self.message.is_none() && self.last.is_none() && self.trailers.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}
