//! HTTP clients of the program that embeds us: requests leave through them in place of our own pool.
//!
//! Promises: a client is asked to send exactly once per attempt, and says of every failure whether
//! bytes may have left.
//!
//! Never: knows which client it is.

use std::fmt;
use std::future::Future;
#[cfg(any(feature = "reqwest", feature = "tower", test))]
use std::hash::{BuildHasher, RandomState};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response};
use http_body::{Body, Frame, SizeHint};
use parking_lot::Mutex;
use tollgate_core::health::Fault;

use crate::payload::{BodyError, Outgoing};

/// The body of a request, as our own stages made it: read from memory, from a file, or streamed.
#[derive(Debug)]
pub struct RequestBody(pub(crate) Outgoing);

/// The body of a response, as a client delivers it.
pub(crate) struct ForeignBody {
    /// Taken by `&mut` only; the mutex makes a body that is not `Sync` one that is.
    inner: Mutex<Pin<Box<dyn Body<Data = Bytes, Error = BodyError> + Send>>>,
    is_end: bool,
    size: SizeHint,
}

/// An attempt without a response.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(
    not(all(feature = "reqwest", feature = "tower")),
    allow(dead_code, reason = "each client has failures of its own")
)]
pub(crate) enum ForeignError {
    /// No byte has left.
    Unsent(Fault),
    /// Bytes may have left.
    Failed(Fault),
    /// The client does not send such a request: why, and what to write. The provider has no part in
    /// it.
    NotBuilt(String),
}

/// A response, or why there is none.
pub(crate) type ForeignResult = Result<Response<ForeignBody>, ForeignError>;

/// A request under way.
pub(crate) type ForeignFuture = Pin<Box<dyn Future<Output = ForeignResult> + Send>>;

/// Sends one request.
pub(crate) trait Exchange: Send + Sync {
    fn exchange(&self, request: Request<RequestBody>) -> ForeignFuture;
}

/// A client of the embedding program.
#[derive(Clone)]
pub struct ForeignClient {
    exchange: Arc<dyn Exchange>,
    /// Names a client that adds something to requests that Tollgate does not see, a credential for
    /// example: its responses are its own. `None` = it adds nothing.
    name: Option<Arc<str>>,
}

impl ForeignClient {
    #[cfg(any(feature = "reqwest", feature = "tower", test))]
    pub(crate) fn new(exchange: impl Exchange + 'static) -> ForeignClient {
        ForeignClient {
            exchange: Arc::new(exchange),
            name: None,
        }
    }

    /// A client whose responses nobody else gets, in no process: the name is a random one.
    #[cfg(any(feature = "reqwest", feature = "tower", test))]
    pub(crate) fn isolated(self) -> ForeignClient {
        // The standard library seeds its hash maps from the system's random source.
        let [a, b] = [0, 1].map(|part: u64| RandomState::new().hash_one(part));
        ForeignClient {
            name: Some(format!("client {a:016x}{b:016x}").into()),
            ..self
        }
    }

    /// The name of an isolated client, for the keys of flights and of cached responses.
    pub(crate) fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    pub(crate) fn exchange(&self, request: Request<RequestBody>) -> ForeignFuture {
        self.exchange.exchange(request)
    }
}

impl fmt::Debug for ForeignClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ForeignClient")
    }
}

impl ForeignBody {
    #[cfg(any(feature = "reqwest", feature = "tower", test))]
    pub(crate) fn new<B>(body: B) -> ForeignBody
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BodyError>,
    {
        use http_body_util::BodyExt;
        let (is_end, size) = (body.is_end_stream(), body.size_hint());
        ForeignBody {
            inner: Mutex::new(Box::pin(body.map_err(Into::into))),
            is_end,
            size,
        }
    }
}

impl fmt::Debug for ForeignBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ForeignBody")
    }
}

impl Body for ForeignBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let inner = self.inner.get_mut();
        let frame = inner.as_mut().poll_frame(cx);
        if frame.is_ready() {
            (self.is_end, self.size) = {
                let inner = self.inner.get_mut();
                (inner.is_end_stream(), inner.size_hint())
            };
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.is_end
    }

    fn size_hint(&self) -> SizeHint {
        self.size
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        Pin::new(&mut self.0).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.0.size_hint()
    }
}
