//! A small HTTP client, and helpers for waiting.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{HeaderMap, Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

/// Far beyond what loopback needs on a busy machine: turns a test that would hang into one that
/// fails.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Times for a call that is to run out of time at a certain stage. The first is for a quick
/// machine; on one so busy that it was over before that stage, the next is tried.
pub(crate) const TIMEOUTS: [&str; 3] = ["50ms", "1s", "10s"];

/// A complete response.
#[derive(Debug)]
pub(crate) struct ClientResponse {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: String,
}

impl ClientResponse {
    /// A header; empty if it is absent.
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers
            .get(name)
            .map_or("", |value| value.to_str().unwrap())
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).expect("a JSON body")
    }

    /// Everything a caller could see.
    pub(crate) fn everything(&self) -> String {
        format!("{} {:?} {}", self.status, self.headers, self.body)
    }
}

/// One keep-alive connection.
pub(crate) struct Session(SendRequest<Full<Bytes>>);

impl Session {
    pub(crate) async fn open(to: SocketAddr) -> Session {
        Session::over(TcpStream::connect(to).await.expect("a listener")).await
    }

    /// The same from another address of this host.
    pub(crate) async fn from(own: IpAddr, to: SocketAddr) -> Session {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.bind(SocketAddr::new(own, 0)).expect("an address");
        Session::over(socket.connect(to).await.expect("a listener")).await
    }

    async fn over(stream: TcpStream) -> Session {
        let (sender, connection) = handshake(TokioIo::new(stream)).await.expect("HTTP");
        tokio::spawn(connection);
        Session(sender)
    }

    /// The head of the response; the body follows.
    pub(crate) async fn send(&mut self, request: Request<Full<Bytes>>) -> Response<Incoming> {
        within_timeout(self.0.ready())
            .await
            .expect("an open connection");
        within_timeout(self.0.send_request(request))
            .await
            .expect("a response")
    }

    pub(crate) async fn get(&mut self, path: &str, headers: &[(&str, &str)]) -> ClientResponse {
        let response = self.send(request("GET", path, headers, "")).await;
        read_response(response).await
    }
}

pub(crate) fn request(
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> Request<Full<Bytes>> {
    let mut request = Request::builder()
        .method(method)
        .uri(path)
        .header("host", "gateway");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request
        .body(Full::new(Bytes::from(body.to_owned())))
        .unwrap()
}

/// Reads a response to its end.
pub(crate) async fn read_response(response: Response<Incoming>) -> ClientResponse {
    let (head, body) = response.into_parts();
    let body = within_timeout(body.collect())
        .await
        .expect("a whole body")
        .to_bytes();
    ClientResponse {
        status: head.status.as_u16(),
        headers: head.headers,
        body: String::from_utf8(body.to_vec()).unwrap(),
    }
}

/// One GET on a connection of its own.
pub(crate) async fn get(to: SocketAddr, path: &str) -> ClientResponse {
    get_with(to, path, &[]).await
}

pub(crate) async fn get_with(
    to: SocketAddr,
    path: &str,
    headers: &[(&str, &str)],
) -> ClientResponse {
    Session::open(to).await.get(path, headers).await
}

/// A GET whose deadline passes in the queue.
pub(crate) async fn get_until_late(to: SocketAddr, path: &str) -> ClientResponse {
    let mut answer = None;
    for time in TIMEOUTS {
        let late = get_with(to, path, &[("x-tollgate-timeout", time)]).await;
        let is_late = late.status == 504;
        answer = Some(late);
        if is_late {
            break;
        }
    }
    answer.expect("at least one was made")
}

pub(crate) async fn post(
    to: SocketAddr,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> ClientResponse {
    let response = Session::open(to)
        .await
        .send(request("POST", path, headers, body))
        .await;
    read_response(response).await
}

/// Sends bytes as they are and reads until the other side closes.
pub(crate) async fn raw(to: SocketAddr, bytes: &str) -> String {
    let mut stream = TcpStream::connect(to).await.expect("a listener");
    stream
        .write_all(bytes.as_bytes())
        .await
        .expect("a connection");
    let mut answer = Vec::new();
    within_timeout(stream.read_to_end(&mut answer))
        .await
        .expect("a closed connection");
    String::from_utf8_lossy(&answer).into_owned()
}

/// Waits until something has happened; gives way to other tasks meanwhile.
pub(crate) async fn wait_until(happened: impl Fn() -> bool) {
    within_timeout(async {
        while !happened() {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

/// Lets real time pass, for peers whose slowness is the point.
#[expect(clippy::disallowed_methods, reason = "the slowness of a peer")]
pub(crate) async fn pause(millis: u64) {
    tokio::time::sleep(Duration::from_millis(millis)).await;
}

/// Fails the test if the future takes longer than the timeout.
pub(crate) async fn within_timeout<T>(answer: impl Future<Output = T>) -> T {
    tokio::time::timeout(TIMEOUT, answer)
        .await
        .expect("it should have come by now")
}
