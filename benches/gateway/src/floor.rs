//! The bare proxy: hyper on both sides, a stack of idle connections, and nothing else. And the bare
//! server, which has one response for every request.
//!
//! They are the lower bound for everything built from the same parts: no limits, no key, no
//! metrics, no cache.

use std::cell::RefCell;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::rc::Rc;

use anyhow::Context;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::client::conn::http1 as client;
use hyper::header::{HOST, HeaderValue};
use hyper::server::conn::http1 as server;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};

type Sender = client::SendRequest<Incoming>;
type Idle = Rc<RefCell<Vec<Sender>>>;
type Body = http_body_util::combinators::UnsyncBoxBody<bytes::Bytes, hyper::Error>;

/// Forwards every request until it is killed.
pub fn run(listen: SocketAddr, upstream: SocketAddr) -> anyhow::Result<()> {
    let idle = Idle::default();
    serve(listen, move |stream| {
        connection(stream, upstream, idle.clone())
    })
}

/// Responds to every request with `bytes` bytes until it is killed.
pub fn constant(listen: SocketAddr, bytes: usize) -> anyhow::Result<()> {
    let body = bytes::Bytes::from(vec![b'x'; bytes]);
    serve(listen, move |stream| {
        let body = body.clone();
        let service = service_fn(move |_: Request<Incoming>| {
            let response = Response::new(http_body_util::Full::new(body.clone()));
            async move { Ok::<_, Infallible>(response) }
        });
        async move {
            let http = server::Builder::new();
            let _ended = http.serve_connection(TokioIo::new(stream), service).await;
        }
    })
}

/// Serves connections on this thread.
fn serve<F>(listen: SocketAddr, mut connection: impl FnMut(TcpStream) -> F) -> anyhow::Result<()>
where
    F: Future<Output = ()> + 'static,
{
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let local = tokio::task::LocalSet::new();
    local.block_on(&runtime, async move {
        let listener = TcpListener::bind(listen).await.context("listen")?;
        loop {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            tokio::task::spawn_local(connection(stream));
        }
    })
}

async fn connection(stream: TcpStream, upstream: SocketAddr, idle: Idle) {
    let service = service_fn(move |request| {
        let idle = idle.clone();
        async move { Ok::<_, Infallible>(respond(request, upstream, idle).await) }
    });
    // An error on a client's connection concerns only that client.
    let _ended = server::Builder::new()
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

async fn respond(
    mut request: Request<Incoming>,
    upstream: SocketAddr,
    idle: Idle,
) -> Response<Body> {
    let host = HeaderValue::from_static("upstream.example");
    request.headers_mut().insert(HOST, host);
    let mut sender = match take(&idle) {
        Some(sender) => sender,
        None => match dial(upstream).await {
            Ok(sender) => sender,
            Err(_) => return failed(),
        },
    };
    let Ok(response) = sender.send_request(request).await else {
        return failed();
    };
    // It is ready again once the response has been read.
    idle.borrow_mut().push(sender);
    response.map(BodyExt::boxed_unsync)
}

/// The youngest connection that has finished its last response.
fn take(idle: &Idle) -> Option<Sender> {
    let mut idle = idle.borrow_mut();
    idle.retain(|sender| !sender.is_closed());
    let at = idle.iter().rposition(Sender::is_ready)?;
    Some(idle.remove(at))
}

async fn dial(upstream: SocketAddr) -> anyhow::Result<Sender> {
    let stream = TcpStream::connect(upstream).await?;
    stream.set_nodelay(true)?;
    let (sender, connection) = client::handshake(TokioIo::new(stream)).await?;
    tokio::task::spawn_local(connection);
    Ok(sender)
}

fn failed() -> Response<Body> {
    let empty = http_body_util::Empty::new().map_err(|never| match never {});
    let mut response = Response::new(empty.boxed_unsync());
    *response.status_mut() = hyper::StatusCode::BAD_GATEWAY;
    response
}
