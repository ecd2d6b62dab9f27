//! A governed HTTP client: the whole path around a tower service that sends.
//!
//! Promises: the permit comes before the client connects; an error that says that the connection
//! failed gives it back. The service is asked only when it is ready, and once per attempt.
//!
//! Never: follows a redirect: each response goes to the caller.

use std::error::Error as StdError;
use std::fmt;
use std::future::{Future, poll_fn};
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use parking_lot::Mutex;
use tollgate_core::health::Fault;
use tower_layer::Layer;
use tower_service::Service;

use crate::body::{BodyError, ReplyBody};
use crate::embed::{Observation, causes, observed_in_causes};
use crate::foreign::{Exchange, ForeignBody, ForeignClient, ForeignError, ForeignFuture};
use crate::{Error, RequestBody, Tollgate, governed_call};

/// Says of an error of a client whether its connection failed before a byte left.
type IsUnsent = Arc<dyn Fn(&(dyn StdError + 'static)) -> bool + Send + Sync>;

/// Governs the calls of an HTTP client.
///
/// The client is a service of `Request<RequestBody>`, cheap to clone; hyper-util's is one. Options
/// of a call are a [`Call`](crate::Call) in the extensions of its request.
///
/// ```
/// use http_body_util::Full;
/// use hyper_util::{client::legacy::Client, rt::TokioExecutor};
/// use tollgate::{Provider, RequestBody, Tollgate, tower::GovernLayer};
/// use tower_layer::Layer;
///
/// # #[tokio::main]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let shop = Provider::new("shop").domain("api.example.org").limit_with("40/10s");
/// let tollgate = Tollgate::builder().provider(shop)?.build().await?;
/// let client = Client::builder(TokioExecutor::new()).build_http::<RequestBody>();
/// let client = GovernLayer::new(&tollgate).layer(client); // a `Service`, as before
/// # drop(client);
/// # drop(Full::<bytes::Bytes>::default());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct GovernLayer {
    tollgate: Tollgate,
    is_isolated: bool,
    is_unsent: Option<IsUnsent>,
}

impl GovernLayer {
    /// Under the limits of this Tollgate.
    #[must_use]
    pub fn new(tollgate: &Tollgate) -> GovernLayer {
        GovernLayer {
            tollgate: tollgate.clone(),
            is_isolated: false,
            is_unsent: None,
        }
    }

    /// The client adds something to requests by itself that decides who gets which response: a
    /// credential, cookies, a certificate. Its responses, cached ones too, go to its own callers
    /// only: those of the service that [`Layer::layer`] returns, and of clones of it. Headers that
    /// requests have when they come to this layer need no such thing.
    #[must_use]
    pub fn isolated(mut self) -> GovernLayer {
        self.is_isolated = true;
        self
    }

    /// Says which errors of the client mean that no connection was made, so that no byte has left and
    /// the permit comes back. An error and each of its causes are asked. Without it only a refused
    /// connection does; any other error counts as sent. For hyper-util: `|error| error.is_connect()`.
    #[must_use]
    pub fn connect_errors<E: StdError + 'static>(
        mut self,
        is_connect: impl Fn(&E) -> bool + Send + Sync + 'static,
    ) -> GovernLayer {
        self.is_unsent = Some(Arc::new(move |error| {
            error.downcast_ref::<E>().is_some_and(&is_connect)
        }));
        self
    }
}

impl fmt::Debug for GovernLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GovernLayer")
    }
}

impl<S, R> Layer<S> for GovernLayer
where
    S: Service<Request<RequestBody>, Response = Response<R>> + Clone + Send + 'static,
    S::Error: Into<BodyError>,
    S::Future: Send + 'static,
    R: Body<Data = Bytes> + Send + 'static,
    R::Error: Into<BodyError>,
{
    type Service = Govern<S>;

    fn layer(&self, inner: S) -> Govern<S> {
        let client = ForeignClient::new(TowerClient {
            service: Mutex::new(inner),
            is_unsent: self.is_unsent.clone(),
        });
        Govern {
            client: match self.is_isolated {
                true => client.isolated(),
                false => client,
            },
            tollgate: self.tollgate.clone(),
            service: PhantomData,
        }
    }
}

/// A client whose calls are governed. Made by [`GovernLayer`].
pub struct Govern<S> {
    client: ForeignClient,
    tollgate: Tollgate,
    service: PhantomData<fn() -> S>,
}

impl<S> Clone for Govern<S> {
    fn clone(&self) -> Govern<S> {
        Govern {
            client: self.client.clone(),
            tollgate: self.tollgate.clone(),
            service: PhantomData,
        }
    }
}

impl<S> fmt::Debug for Govern<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Govern")
    }
}

impl<S, B> Service<Request<B>> for Govern<S>
where
    B: Body<Data = Bytes> + Send + Sync + Unpin + 'static,
    B::Error: Into<BodyError>,
{
    type Response = Response<ReplyBody>;
    type Error = Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<ReplyBody>, Error>> + Send>>;

    /// Always: calls wait in the queue of their provider, which knows for how long.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (tollgate, client) = (self.tollgate.clone(), self.client.clone());
        Box::pin(async move {
            let (mut response, links) = governed_call::send(&tollgate, client, request).await?;
            links.rewrite(response.headers_mut());
            Ok(response)
        })
    }
}

struct TowerClient<S> {
    /// Locked to clone it.
    service: Mutex<S>,
    is_unsent: Option<IsUnsent>,
}

impl<S, R> Exchange for TowerClient<S>
where
    S: Service<Request<RequestBody>, Response = Response<R>> + Clone + Send + 'static,
    S::Error: Into<BodyError>,
    S::Future: Send + 'static,
    R: Body<Data = Bytes> + Send + 'static,
    R::Error: Into<BodyError>,
{
    fn exchange(&self, request: Request<RequestBody>) -> ForeignFuture {
        let mut service = self.service.lock().clone();
        let is_unsent = self.is_unsent.clone();
        Box::pin(async move {
            // A service that cannot take the request has sent nothing.
            if let Err(error) = poll_fn(|cx| service.poll_ready(cx)).await {
                return Err(match classify(&*error.into(), None) {
                    ForeignError::Failed(fault) => ForeignError::Unsent(fault),
                    unsent => unsent,
                });
            }
            match service.call(request).await {
                Ok(response) => Ok(response.map(ForeignBody::new)),
                Err(error) => Err(classify(&*error.into(), is_unsent.as_ref())),
            }
        })
    }
}

/// What an error of the client means. Clients wrap their errors, so each cause may be the one that
/// says that there was no connection.
fn classify(error: &(dyn StdError + 'static), is_unsent: Option<&IsUnsent>) -> ForeignError {
    let is_unsent = is_unsent.is_some_and(|is_unsent| causes(error).any(|cause| is_unsent(cause)));
    if is_unsent {
        return ForeignError::Unsent(Fault::Connect);
    }
    match observed_in_causes(error) {
        Observation::Unsent(fault) => ForeignError::Unsent(fault),
        Observation::Failed(fault) => ForeignError::Failed(fault),
        Observation::Response { .. } | Observation::NotSent => ForeignError::Failed(Fault::Reset),
    }
}
