//! Servers that always reply the same: what sockets cost, with the same library as Tollgate's.
//!
//! Promises: one read and one write per batch, as Tollgate has them; no decision, and of the commands
//! only their number is read.

use std::convert::Infallible;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use hyper::server::conn;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const REPLY: &[u8] = b"*5\r\n:0\r\n:1000001\r\n:1000000\r\n:-1\r\n:1\r\n";

/// The length of a grant over HTTP.
const BODY: &str = r#"{"granted":true,"permit":null,"waited":0.0,"retry_in":null,"limit":{"name":"4000000000/1m","limit":4000000000,"period":"1m","scope":"guard"},"remaining":3999999999,"reason":null,"decision":"allow","use_within":null,"guard":"api"}"#;

pub fn serve(kind: &str, port: u16) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        if kind == "grpc" {
            return crate::floor_grpc::serve(port).await;
        }
        let listener = TcpListener::bind(("127.0.0.1", port)).await?;
        loop {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            match kind {
                "http" => tokio::spawn(http(stream)),
                "http2" => tokio::spawn(http2(stream)),
                _ => tokio::spawn(resp(stream)),
            };
        }
    })
}

async fn resp(mut stream: TcpStream) {
    let mut buffer = vec![0; 16 * 1_024];
    let mut output = Vec::new();
    loop {
        let Ok(read @ 1..) = stream.read(&mut buffer).await else {
            return;
        };
        // A command begins with `*`, and keys and numbers have none. One that is cut counts here.
        let commands = buffer[..read].iter().filter(|byte| **byte == b'*').count();
        output.clear();
        (0..commands).for_each(|_| output.extend_from_slice(REPLY));
        if stream.write_all(&output).await.is_err() {
            return;
        }
    }
}

async fn http(stream: TcpStream) {
    let reply = |request: Request<Incoming>| async {
        // The body is read, as a decision needs it.
        let _request = request.into_body().collect().await;
        Ok::<_, Infallible>(Response::new(Full::new(Bytes::from_static(
            BODY.as_bytes(),
        ))))
    };
    let connection =
        conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service_fn(reply));
    connection.await.ok();
}

/// `overall_code: OK` with one status, in a frame: the length of a grant.
const GRANT: &[u8] = b"\0\0\0\0\x19\x08\x01\x12\x15\x08\x01\x12\x0b\x08\x80\xd0\xac\xf3\x0e\x10\x02\x1a\x01a\x18\xff\xcf\xac\xf3\x0e";

async fn http2(stream: TcpStream) {
    let reply = |request: Request<Incoming>| async {
        let _request = request.into_body().collect().await;
        let trailers = async {
            let mut trailers = HeaderMap::new();
            trailers.insert("grpc-status", HeaderValue::from_static("0"));
            Some(Ok(trailers))
        };
        let mut response =
            Response::new(Full::new(Bytes::from_static(GRANT)).with_trailers(trailers));
        let content = HeaderValue::from_static("application/grpc");
        response.headers_mut().insert(CONTENT_TYPE, content);
        Ok::<_, Infallible>(response)
    };
    let connection = conn::http2::Builder::new(TokioExecutor::new())
        .serve_connection(TokioIo::new(stream), service_fn(reply));
    connection.await.ok();
}
