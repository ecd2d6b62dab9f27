//! The body of a request, on its way to the upstream.
//!
//! Promises: a request body of at most 256 KiB (1 MiB where the body decides something) is read
//! completely before the permit is requested, so that a slow client cannot hold quota. A larger one
//! is streamed, once.
//!
//! Never: changes a byte.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use http_body_util::combinators::BoxBody;
use tollgate_core::time::Span;

use crate::Error;
use crate::timer::within;

/// Any error of a body.
pub type BodyError = Box<dyn std::error::Error + Send + Sync>;

/// The largest request body that is read before the permit is requested. 1 000 waiting calls with
/// such bodies are 256 MiB, which a host has; nearly all API calls are below 64 KiB.
pub const WHOLE_MAX: usize = 256 * 1024;

/// The same where the body determines the entity or the cost: the bound of the entity search. 1 000
/// waiting calls with such bodies would be 1 GiB, but only those above 256 KiB take more than
/// others.
pub(crate) const READ_MAX: usize = tollgate_core::entity::BODY_MAX;

/// How long a request body may stall before the permit: what proxies usually grant a slow client. A
/// body that makes progress is not cut, however slow.
const IDLE_MAX: Span = Span::from_secs(60);

/// The request body of a caller.
#[derive(Debug)]
pub(crate) enum Payload {
    /// All of it: it can be sent again.
    Whole(Bytes),
    /// All of it, and its trailers.
    Trailed(Bytes, Box<HeaderMap>),
    /// The rest is still to come: it can be sent once.
    Stream(Option<BoxBody<Bytes, BodyError>>),
}

/// The body of a request on its way to the upstream.
#[derive(Debug)]
pub(crate) struct Outgoing {
    kind: OutgoingKind,
    /// The progress of a stream.
    upload: Option<Arc<Upload>>,
}

/// The progress of an upload, for the call that waits for the response.
#[derive(Debug, Default)]
pub(crate) struct Upload {
    pieces: AtomicU64,
    /// The connection has taken everything so far and waits for the caller.
    awaits_caller: AtomicBool,
    has_failed: AtomicBool,
}

impl Upload {
    /// How many pieces have left: an upload that makes progress is not cut.
    pub(crate) fn pieces(&self) -> u64 {
        self.pieces.load(Ordering::Relaxed)
    }

    /// The caller must send the next piece.
    pub(crate) fn awaits_caller(&self) -> bool {
        self.awaits_caller.load(Ordering::Relaxed)
    }

    /// The caller aborted.
    pub(crate) fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Relaxed)
    }

    fn record(&self, frame: &Poll<Option<Result<Frame<Bytes>, BodyError>>>) {
        self.awaits_caller
            .store(frame.is_pending(), Ordering::Relaxed);
        match frame {
            Poll::Pending => {}
            Poll::Ready(Some(Err(_))) => self.has_failed.store(true, Ordering::Relaxed),
            Poll::Ready(Some(Ok(_)) | None) => {
                self.pieces.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

#[derive(Debug)]
enum OutgoingKind {
    Whole(Option<Bytes>),
    Trailed(Option<Bytes>, Option<Box<HeaderMap>>),
    Stream(BoxBody<Bytes, BodyError>),
}

impl Payload {
    /// Reads a body of at most `most` bytes completely; a larger one is left to be streamed.
    pub(crate) async fn gather<B>(mut body: B, most: usize) -> Result<Payload, Error>
    where
        B: Body<Data = Bytes> + Send + Sync + Unpin + 'static,
        B::Error: Into<BodyError>,
    {
        let mut read = BytesMut::new();
        loop {
            if body.is_end_stream() {
                return Ok(Payload::Whole(read.freeze()));
            }
            if body.size_hint().lower() > most as u64 {
                break;
            }
            let frame = within(Some(IDLE_MAX), body.frame()).await;
            let Some(frame) = frame.map_err(|_| Error::NoBody)? else {
                return Ok(Payload::Whole(read.freeze()));
            };
            let data = match frame.map_err(|_| Error::NoBody)?.into_data() {
                Ok(data) => data,
                Err(last) => return Ok(Payload::with_trailers(read.freeze(), last)),
            };
            read.extend_from_slice(&data);
            if read.len() > most {
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

    /// Trailers end a body.
    fn with_trailers(bytes: Bytes, last: Frame<Bytes>) -> Payload {
        match last.into_trailers() {
            Ok(trailers) => Payload::Trailed(bytes, Box::new(trailers)),
            Err(_) => Payload::Whole(bytes),
        }
    }

    /// The bytes read so far, for decisions that need the body.
    pub(crate) fn buffered(&self) -> &[u8] {
        match self {
            Payload::Whole(bytes) | Payload::Trailed(bytes, _) => bytes,
            Payload::Stream(_) => &[],
        }
    }

    /// It is larger than the bound for reading.
    pub(crate) fn is_stream(&self) -> bool {
        matches!(self, Payload::Stream(_))
    }

    /// There is no body.
    pub(crate) fn is_empty(&self) -> bool {
        matches!(self, Payload::Whole(bytes) if bytes.is_empty())
    }

    /// Can it be sent (again)?
    pub(crate) fn is_resendable(&self) -> bool {
        match self {
            Payload::Whole(_) | Payload::Trailed(..) | Payload::Stream(Some(_)) => true,
            Payload::Stream(None) => false,
        }
    }

    /// Takes the body back: no byte of it has left.
    pub(crate) fn restore(&mut self, outgoing: Outgoing) {
        if let (Payload::Stream(gone @ None), OutgoingKind::Stream(stream)) = (self, outgoing.kind)
        {
            *gone = Some(stream);
        }
    }

    /// A body to send. A stream is gone afterwards.
    pub(crate) fn outgoing(&mut self) -> Outgoing {
        let kind = match self {
            Payload::Whole(bytes) => OutgoingKind::Whole(Some(bytes.clone())),
            Payload::Trailed(bytes, trailers) => {
                OutgoingKind::Trailed(Some(bytes.clone()), Some(trailers.clone()))
            }
            Payload::Stream(stream) => match stream.take() {
                Some(stream) => OutgoingKind::Stream(stream),
                None => OutgoingKind::Whole(None),
            },
        };
        let upload = match kind {
            OutgoingKind::Whole(_) | OutgoingKind::Trailed(..) => None,
            OutgoingKind::Stream(_) => Some(Arc::default()),
        };
        Outgoing { kind, upload }
    }
}

impl Outgoing {
    /// Its progress, if it is a stream.
    pub(crate) fn upload(&self) -> Option<Arc<Upload>> {
        self.upload.clone()
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
            OutgoingKind::Whole(bytes) => {
                let bytes = bytes.take().filter(|bytes| !bytes.is_empty());
                return Poll::Ready(bytes.map(|bytes| Ok(Frame::data(bytes))));
            }
            OutgoingKind::Trailed(bytes, trailers) => {
                if let Some(bytes) = bytes.take().filter(|bytes| !bytes.is_empty()) {
                    return Poll::Ready(Some(Ok(Frame::data(bytes))));
                }
                let trailers = trailers.take().map(|trailers| Frame::trailers(*trailers));
                return Poll::Ready(trailers.map(Ok));
            }
            OutgoingKind::Stream(stream) => Pin::new(stream).poll_frame(cx),
        };
        if let Some(upload) = &self.upload {
            upload.record(&frame);
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            OutgoingKind::Whole(bytes) => bytes.as_ref().is_none_or(Bytes::is_empty),
            OutgoingKind::Trailed(_, trailers) => trailers.is_none(),
            OutgoingKind::Stream(stream) => stream.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            OutgoingKind::Whole(bytes) => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |b| b.len() as u64))
            }
            // Trailers need chunked encoding, so there is no length.
            OutgoingKind::Trailed(..) => SizeHint::default(),
            OutgoingKind::Stream(stream) => stream.size_hint(),
        }
    }
}

/// The bytes read so far, then the rest.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// So many bytes, each after this delay.
    struct Slow {
        remaining: usize,
        every: Span,
        timer: Option<Pin<Box<dyn Future<Output = ()> + Send + Sync>>>,
    }

    impl Body for Slow {
        type Data = Bytes;
        type Error = BodyError;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
            if self.remaining == 0 {
                return Poll::Ready(None);
            }
            let every = self.every;
            let timer = self
                .timer
                .get_or_insert_with(|| Box::pin(crate::timer::sleep(Some(every))));
            std::task::ready!(timer.as_mut().poll(cx));
            self.timer = None;
            self.remaining -= 1;
            Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(b"x")))))
        }
    }

    async fn gathered(left: usize, every: u64) -> Result<Payload, Error> {
        let body = Slow {
            remaining: left,
            every: Span::from_secs(every),
            timer: None,
        };
        Payload::gather(body, WHOLE_MAX).await
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_body_is_read_and_a_stalled_one_is_cut() {
        let slow = gathered(10, 50).await.unwrap();
        assert_eq!(slow.buffered(), b"xxxxxxxxxx");
        assert!(matches!(gathered(2, 61).await, Err(Error::NoBody)));
    }
}
