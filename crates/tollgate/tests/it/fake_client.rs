//! An HTTP client that sends nothing: each test says what comes back. It notes every arrival.

#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "a client of the tests, in paused time"
)]

use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::sync::Arc;

use parking_lot::Mutex;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use tollgate::RequestBody;
use tower_service::Service;

/// What arrived, and when.
#[derive(Clone, Debug)]
pub(crate) struct Arrival {
    pub(crate) at: tokio::time::Instant,
    pub(crate) request: Arc<Request<Bytes>>,
}

type Script =
    dyn Fn(usize, &Request<Bytes>) -> Result<Response<Full<Bytes>>, io::Error> + Send + Sync;

/// Its clones share the log.
#[derive(Clone)]
pub(crate) struct FakeClient {
    script: Arc<Script>,
    log: Arc<Mutex<Vec<Arrival>>>,
    takes: Duration,
}

impl FakeClient {
    /// The script gets the number of the arrival, from 0, and the request.
    pub(crate) fn new(
        script: impl Fn(usize, &Request<Bytes>) -> Result<Response<Full<Bytes>>, io::Error>
        + Send
        + Sync
        + 'static,
    ) -> FakeClient {
        FakeClient {
            script: Arc::new(script),
            log: Arc::default(),
            takes: Duration::from_millis(20),
        }
    }

    /// Each response takes so long.
    pub(crate) fn taking(self, takes: Duration) -> FakeClient {
        FakeClient { takes, ..self }
    }

    pub(crate) fn arrivals(&self) -> Vec<Arrival> {
        self.log.lock().clone()
    }
}

impl Service<Request<RequestBody>> for FakeClient {
    type Response = Response<Full<Bytes>>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, io::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), io::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<RequestBody>) -> Self::Future {
        let this = self.clone();
        Box::pin(async move {
            let (head, body) = request.into_parts();
            let body = body.collect().await.map_err(io::Error::other)?.to_bytes();
            let request = Arc::new(Request::from_parts(head, body));
            let number = {
                let mut log = this.log.lock();
                log.push(Arrival {
                    at: tokio::time::Instant::now(),
                    request: request.clone(),
                });
                log.len() - 1
            };
            tokio::time::sleep(this.takes).await;
            (this.script)(number, &request)
        })
    }
}

/// A response with a body.
pub(crate) fn response(status: u16, body: &str) -> Response<Full<Bytes>> {
    let body = Full::new(Bytes::from(body.to_owned()));
    Response::builder().status(status).body(body).unwrap()
}

/// Calls a service that is ready.
pub(crate) async fn send<S, B>(service: &S, request: Request<B>) -> Result<S::Response, S::Error>
where
    S: Service<Request<B>> + Clone,
{
    let mut service = service.clone();
    poll_fn(|cx| service.poll_ready(cx)).await?;
    service.call(request).await
}
