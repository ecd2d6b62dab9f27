//! A small HTTP client and the ways tests wait.

use std::net::SocketAddr;
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{HeaderMap, Method, Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;

/// Any error of a client.
pub(crate) type Failure = Box<dyn std::error::Error + Send + Sync>;

/// A whole response.
#[derive(Debug)]
pub(crate) struct FullResponse {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: String,
}

impl FullResponse {
    /// The text of a header; `None` if it is absent.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .get(name)
            .map(|value| value.to_str().expect("headers of the simulator are text"))
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).expect("bodies of the simulator are JSON")
    }
}

/// One connection that stays open.
pub(crate) struct Session(SendRequest<Full<Bytes>>);

impl Session {
    pub(crate) async fn open(to: SocketAddr) -> Result<Session, Failure> {
        let stream = TcpStream::connect(to).await?;
        stream.set_nodelay(true)?;
        let (sender, connection) = handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        Ok(Session(sender))
    }

    /// The head of the response; the body has not been read.
    pub(crate) async fn send(
        &mut self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Result<Response<Incoming>, Failure> {
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", "sim");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::new(Bytes::from(body.to_owned())))?;
        self.0.ready().await?;
        Ok(self.0.send_request(request).await?)
    }

    pub(crate) async fn get(
        &mut self,
        path: &str,
        headers: &[(&str, &str)],
    ) -> Result<FullResponse, Failure> {
        read_all(self.send(Method::GET, path, headers, "").await?).await
    }
}

/// Reads a response to its end.
pub(crate) async fn read_all(response: Response<Incoming>) -> Result<FullResponse, Failure> {
    let (head, body) = response.into_parts();
    let body = body.collect().await?.to_bytes();
    let body = String::from_utf8(body.to_vec())?;
    Ok(FullResponse {
        status: head.status.as_u16(),
        headers: head.headers,
        body,
    })
}

/// One request on a connection of its own.
pub(crate) async fn get(to: SocketAddr, path: &str) -> Result<FullResponse, Failure> {
    get_with(to, path, &[]).await
}

pub(crate) async fn get_with(
    to: SocketAddr,
    path: &str,
    headers: &[(&str, &str)],
) -> Result<FullResponse, Failure> {
    Session::open(to).await?.get(path, headers).await
}

pub(crate) async fn post(to: SocketAddr, path: &str, body: &str) -> Result<FullResponse, Failure> {
    read_all(
        Session::open(to)
            .await?
            .send(Method::POST, path, &[], body)
            .await?,
    )
    .await
}

/// Waits until a condition holds. Yields to other tasks instead of sleeping, so that paused time
/// stands still meanwhile; the bound turns a test that would hang into one that fails.
pub(crate) async fn until(happened: impl Fn() -> bool) {
    let start = real_now();
    while !happened() {
        assert!(start.elapsed() < PATIENCE, "the condition never held");
        tokio::task::yield_now().await;
    }
}

/// A result that must arrive within the bound. Not for paused time, which would jump to the end of
/// the bound at once.
pub(crate) async fn with_timeout<T>(result: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, result)
        .await
        .expect("it arrives within the bound")
}

/// Far beyond what loopback needs on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

#[expect(
    clippy::disallowed_methods,
    reason = "bounds a wait in real time while tokio's is paused"
)]
fn real_now() -> std::time::Instant {
    std::time::Instant::now()
}

/// Moves paused time forward.
pub(crate) async fn advance(secs: u64) {
    tokio::time::advance(Duration::from_secs(secs)).await;
}
