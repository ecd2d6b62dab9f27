//! A scripted upstream that records the requests it receives.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{HeaderMap, Request, Response};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;
use tollgate_core::time::Micros;
use tollgate_ledger::Clock;

/// A recorded request.
#[derive(Clone, Debug)]
pub(crate) struct ReceivedRequest {
    pub(crate) at: Micros,
    pub(crate) method: String,
    pub(crate) target: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

pub(crate) type Reply = Response<BoxBody<Bytes, Infallible>>;
type Script =
    dyn Fn(usize, ReceivedRequest) -> Pin<Box<dyn Future<Output = Reply> + Send>> + Send + Sync;

/// A running upstream; it ends when it is dropped.
pub(crate) struct Upstream {
    pub(crate) address: SocketAddr,
    requests: Arc<Mutex<Vec<ReceivedRequest>>>,
    accepted: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

impl Upstream {
    /// Responds to each request by its number, counted from 0.
    pub(crate) async fn start<F, A>(script: F) -> Upstream
    where
        F: Fn(usize, ReceivedRequest) -> A + Send + Sync + 'static,
        A: Future<Output = Reply> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        Upstream::on(listener, script)
    }

    pub(crate) fn on<F, A>(listener: TcpListener, script: F) -> Upstream
    where
        F: Fn(usize, ReceivedRequest) -> A + Send + Sync + 'static,
        A: Future<Output = Reply> + Send + 'static,
    {
        Upstream::over(listener, None, script)
    }

    /// The same, perhaps over TLS.
    pub(crate) fn over<F, A>(listener: TcpListener, tls: Option<TlsAcceptor>, script: F) -> Upstream
    where
        F: Fn(usize, ReceivedRequest) -> A + Send + Sync + 'static,
        A: Future<Output = Reply> + Send + 'static,
    {
        let address = listener.local_addr().expect("an address");
        let received: Arc<Mutex<Vec<ReceivedRequest>>> = Arc::default();
        let script: Arc<Script> =
            Arc::new(move |number, received| Box::pin(script(number, received)));
        let accepted: Arc<AtomicUsize> = Arc::default();
        let log = (received.clone(), accepted.clone());
        let task = tokio::spawn(serve(listener, tls, log, script));
        Upstream {
            address,
            requests: received,
            accepted,
            task,
        }
    }

    pub(crate) fn requests(&self) -> Vec<ReceivedRequest> {
        self.requests.lock().clone()
    }

    pub(crate) fn count(&self) -> usize {
        self.requests.lock().len()
    }

    /// How many connections were opened to it.
    pub(crate) fn accepted(&self) -> usize {
        self.accepted.load(Ordering::SeqCst)
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    (log, accepted): (Arc<Mutex<Vec<ReceivedRequest>>>, Arc<AtomicUsize>),
    script: Arc<Script>,
) {
    while let Ok((stream, _)) = listener.accept().await {
        accepted.fetch_add(1, Ordering::SeqCst);
        let (log, script) = (log.clone(), script.clone());
        let service = service_fn(move |request: Request<hyper::body::Incoming>| {
            let (log, script) = (log.clone(), script.clone());
            async move {
                let (head, body) = request.into_parts();
                let body = body
                    .collect()
                    .await
                    .map(http_body_util::Collected::to_bytes);
                let received = ReceivedRequest {
                    at: Clock::System.now().at,
                    method: head.method.to_string(),
                    target: head.uri.to_string(),
                    headers: head.headers,
                    body: body.unwrap_or_default(),
                };
                let number = {
                    let mut log = log.lock();
                    log.push(received.clone());
                    log.len() - 1
                };
                Ok::<_, Infallible>(script(number, received).await)
            }
        });
        let (tls, http) = (tls.clone(), http1::Builder::new());
        tokio::spawn(async move {
            match tls {
                None => http
                    .serve_connection(TokioIo::new(stream), service)
                    .await
                    .ok(),
                Some(tls) => {
                    let stream = tls.accept(stream).await.ok()?;
                    http.serve_connection(TokioIo::new(stream), service)
                        .await
                        .ok()
                }
            }
        });
    }
}

/// A status, headers and a body.
pub(crate) fn reply(status: u16, headers: &[(&str, &str)], body: &str) -> Reply {
    let mut response = Response::builder().status(status);
    for (name, value) in headers {
        response = response.header(*name, *value);
    }
    response
        .body(Full::new(Bytes::from(body.to_owned())).boxed())
        .unwrap()
}

/// Fine.
pub(crate) fn ok() -> Reply {
    reply(200, &[], "fine")
}
