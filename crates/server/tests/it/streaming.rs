//! Bodies flow in both directions, chunk by chunk.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::Response;
use hyper::body::{Body, Frame};
use parking_lot::Mutex;
use tokio::sync::mpsc;

use crate::client::{Session, get, post, request, wait_until, within_timeout};
use crate::test_gateway::{TestGateway, file};
use crate::upstream::{Upstream, ok, reply};

/// A body of frames from a channel.
pub(crate) struct ChannelBody(pub(crate) mpsc::Receiver<Frame<Bytes>>);

impl Body for ChannelBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(cx).map(|frame| frame.map(Ok))
    }
}

fn chunk(text: &'static str) -> Frame<Bytes> {
    Frame::data(Bytes::from_static(text.as_bytes()))
}

/// An upstream that streams what the test says, and the way to say it.
async fn streaming() -> (Upstream, mpsc::Sender<Frame<Bytes>>) {
    let (sender, frames) = mpsc::channel(8);
    let frames = Arc::new(Mutex::new(Some(frames)));
    let upstream = Upstream::start(move |_, _| {
        let frames = frames.lock().take();
        async move {
            match frames {
                Some(frames) => Response::builder()
                    .header("content-type", "text/event-stream")
                    .header("trailer", "x-sum")
                    .body(ChannelBody(frames).boxed())
                    .unwrap(),
                None => ok(),
            }
        }
    })
    .await;
    (upstream, sender)
}

#[tokio::test]
async fn each_chunk_arrives_before_the_next_is_sent_and_trailers_come_last() {
    let (upstream, sender) = streaming().await;
    let gateway = TestGateway::start(&[file(upstream.address, "limits: [100/1s]")]).await;
    let mut session = Session::open(gateway.address).await;
    sender.send(chunk("data: 1\n\n")).await.unwrap();
    let response = session
        .send(request("GET", "/x/a", &[("te", "trailers")], ""))
        .await;
    let mut body = response.into_body();
    for (next, expected) in [
        (Some("data: 2\n\n"), "data: 1\n\n"),
        (Some("data: 3\n\n"), "data: 2\n\n"),
        (None, "data: 3\n\n"),
    ] {
        let frame = within_timeout(body.frame()).await.unwrap().unwrap();
        assert_eq!(frame.into_data().unwrap(), expected);
        if let Some(next) = next {
            sender.send(chunk(next)).await.unwrap();
        }
    }
    let mut trailers = hyper::HeaderMap::new();
    trailers.insert("x-sum", "6".parse().unwrap());
    sender.send(Frame::trailers(trailers)).await.unwrap();
    drop(sender);
    let last = within_timeout(body.frame()).await.unwrap().unwrap();
    assert_eq!(last.into_trailers().unwrap()["x-sum"], "6");
}

/// A concurrency slot is held until the end of the body.
#[tokio::test]
async fn a_stream_holds_its_concurrency_slot_until_its_end() {
    let (upstream, sender) = streaming().await;
    let gateway =
        TestGateway::start(&[file(upstream.address, "concurrency: 1\nlimits: [100/1s]")]).await;
    let mut session = Session::open(gateway.address).await;
    sender.send(chunk("first")).await.unwrap();
    let mut body = session
        .send(request("GET", "/x/a", &[], ""))
        .await
        .into_body();
    within_timeout(body.frame()).await.unwrap().unwrap();
    let second = tokio::spawn(get(gateway.address, "/x/b"));
    let active = gateway.registry.named("x").unwrap();
    wait_until(|| active.waiting() == 1).await;
    assert_eq!(upstream.count(), 1);
    drop(sender);
    assert!(within_timeout(body.frame()).await.is_none());
    assert_eq!(within_timeout(second).await.unwrap().status, 200);
}

#[tokio::test]
async fn a_stalled_body_is_cut_after_the_idle_timeout() {
    let (upstream, sender) = streaming().await;
    let gateway = TestGateway::start(&[file(
        upstream.address,
        "timeout: {idle: 500ms}\nlimits: [100/1s]",
    )])
    .await;
    let mut session = Session::open(gateway.address).await;
    sender.send(chunk("first")).await.unwrap();
    let mut body = session
        .send(request("GET", "/x/a", &[], ""))
        .await
        .into_body();
    within_timeout(body.frame()).await.unwrap().unwrap();
    within_timeout(body.frame()).await.unwrap().unwrap_err();
}

#[tokio::test]
async fn large_and_small_request_bodies_arrive_whole() {
    let upstream = Upstream::start(|_, _| async { ok() }).await;
    let gateway = TestGateway::start(&[file(upstream.address, "limits: [100/1s]")]).await;
    for size in [0, 1, 200_000, 3_000_000] {
        let body = "x".repeat(size);
        assert_eq!(post(gateway.address, "/x/a", &[], &body).await.status, 200);
    }
    let sizes: Vec<usize> = upstream
        .requests()
        .iter()
        .map(|received| received.body.len())
        .collect();
    assert_eq!(sizes, [0, 1, 200_000, 3_000_000]);
    assert_eq!(upstream.requests()[0].method, "POST");
}

#[tokio::test]
async fn responses_without_a_body_end() {
    let upstream = Upstream::start(|_, received| async move {
        match received.target.as_str() {
            "/none" => reply(204, &[], ""),
            "/same" => reply(304, &[("etag", "\"a\"")], ""),
            _ => reply(200, &[("x-size", "4")], "body"),
        }
    })
    .await;
    let gateway =
        TestGateway::start(&[file(upstream.address, "concurrency: 1\nlimits: [100/1s]")]).await;
    let mut session = Session::open(gateway.address).await;
    for (method, path, status) in [
        ("GET", "/x/none", 204),
        ("GET", "/x/same", 304),
        ("HEAD", "/x/a", 200),
        ("GET", "/x/a", 200),
    ] {
        let response = session.send(request(method, path, &[], "")).await;
        assert_eq!(response.status(), status, "{method} {path}");
        within_timeout(response.into_body().collect())
            .await
            .unwrap();
    }
}
