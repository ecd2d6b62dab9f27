//! Response bodies: whole ones, and those that drip, end early or never end.
//!
//! Promises: a request leaves the provider's count of calls in flight *before* its last byte is
//! handed over, so a client that has the whole response never competes with its own old call; if
//! the client disconnects earlier, the call leaves when the body is dropped, and counts as not
//! answered.
//!
//! Never: buffers more than one chunk.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use hyper::body::{Body, Bytes, Frame, SizeHint};
use tokio::time::Sleep;
use tollgate_core::time::Span;

use crate::fault::BodyFault;
use crate::real_time;

use super::context::InFlightRequest;

/// Chunk of an endless body: the size of one write, so that a client that stops reading stops the
/// server.
const CHUNK_BYTES: usize = 16 * 1024;

/// The body of a response.
#[derive(Debug)]
pub(crate) struct SimBody {
    kind: BodyKind,
    /// The delay before the next frame.
    pause: Option<Pin<Box<Sleep>>>,
    in_flight: Option<InFlightRequest>,
}

#[derive(Debug)]
enum BodyKind {
    Whole(Bytes),
    Drip {
        rest: Bytes,
        gap: Span,
    },
    Endless(Bytes),
    /// The half that is sent, then nothing until it is flushed, then the error.
    Truncated {
        half: Bytes,
        flushed: bool,
    },
}

impl SimBody {
    /// All of `text` at once.
    pub(crate) fn whole(text: String) -> SimBody {
        SimBody {
            kind: BodyKind::Whole(text.into()),
            pause: None,
            in_flight: None,
        }
    }

    /// `text` after a `wait`, with `fault` applied.
    pub(crate) fn new(
        text: String,
        wait: Span,
        fault: BodyFault,
        in_flight: Option<InFlightRequest>,
    ) -> SimBody {
        let mut bytes = Bytes::from(text);
        let shape = match fault {
            BodyFault::Whole => BodyKind::Whole(bytes),
            BodyFault::Drip(gap) => BodyKind::Drip { rest: bytes, gap },
            BodyFault::Endless => BodyKind::Endless(Bytes::from(vec![b' '; CHUNK_BYTES])),
            BodyFault::Truncated => {
                bytes.truncate(bytes.len() / 2);
                BodyKind::Truncated {
                    half: bytes,
                    flushed: false,
                }
            }
        };
        let pause = (wait > Span::ZERO).then(|| Box::pin(real_time::sleep(wait)));
        SimBody {
            kind: shape,
            pause,
            in_flight,
        }
    }
}

impl Body for SimBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        let this = self.get_mut();
        if let Some(pause) = &mut this.pause {
            ready!(pause.as_mut().poll(cx));
            this.pause = None;
        }
        let last = match &mut this.kind {
            BodyKind::Whole(bytes) => std::mem::take(bytes),
            BodyKind::Drip { rest, gap } => {
                let byte = rest.split_to(rest.len().min(1));
                if !rest.is_empty() {
                    this.pause = Some(Box::pin(real_time::sleep(*gap)));
                    return Poll::Ready(Some(Ok(Frame::data(byte))));
                }
                byte
            }
            BodyKind::Endless(chunk) => return Poll::Ready(Some(Ok(Frame::data(chunk.clone())))),
            BodyKind::Truncated { half, .. } if !half.is_empty() => {
                return Poll::Ready(Some(Ok(Frame::data(std::mem::take(half)))));
            }
            BodyKind::Truncated { flushed, .. } if !*flushed => {
                // The server flushes its buffer when a body has nothing to give; an error straight
                // away would discard the first half with it.
                *flushed = true;
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            BodyKind::Truncated { .. } => {
                return Poll::Ready(Some(Err(io::ErrorKind::ConnectionAborted.into())));
            }
        };
        if let Some(in_flight) = this.in_flight.take() {
            in_flight.complete();
        }
        if last.is_empty() {
            return Poll::Ready(None);
        }
        Poll::Ready(Some(Ok(Frame::data(last))))
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            BodyKind::Whole(rest) | BodyKind::Drip { rest, .. } => rest.is_empty(),
            BodyKind::Endless(_) | BodyKind::Truncated { .. } => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            BodyKind::Whole(rest) | BodyKind::Drip { rest, .. } => {
                SizeHint::with_exact(rest.len() as u64)
            }
            BodyKind::Endless(_) | BodyKind::Truncated { .. } => SizeHint::default(),
        }
    }
}
