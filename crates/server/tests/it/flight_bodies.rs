//! Shared responses: bodies reach every follower, although others disconnect, join late or read
//! slowly; and never another user.

use std::pin::{Pin, pin};
use std::task::Poll;

use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper::body::Frame;
use hyper::{HeaderMap, Method, Response};
use tokio::sync::mpsc;
use tollgate::path::{self, CallOptions, CallTrace, HttpCall, Reply, Target};

use crate::client::{Session, get_with, read_response, request, wait_until, within_timeout};
use crate::streaming::ChannelBody;
use crate::test_gateway::{TestGateway, file};
use crate::upstream::{Upstream, ok, reply};

pub(crate) fn call() -> HttpCall<Empty<Bytes>> {
    HttpCall {
        target: Target::Provider {
            name: "x".to_owned(),
            path: "/a".to_owned(),
            query: None,
        },
        method: Method::GET,
        headers: HeaderMap::new(),
        body: Empty::new(),
        options: CallOptions::default(),
    }
}

/// Polls a future up to `times` times, each time after its wake-up; `None` = it is still pending.
pub(crate) async fn polled<F: Future>(mut future: Pin<&mut F>, times: usize) -> Option<F::Output> {
    let mut left = times;
    std::future::poll_fn(|cx| {
        left -= 1;
        match future.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

pub(crate) async fn text(reply: Reply) -> Bytes {
    within_timeout(reply.body.collect())
        .await
        .expect("a whole body")
        .to_bytes()
}

/// S7, R-C7: wherever the leader is dropped, its follower gets the one response.
#[tokio::test]
async fn s7_a_leader_dropped_at_any_await_does_not_fail_its_followers() {
    let upstream = Upstream::start(|_, _| async { reply(200, &[], &"x".repeat(100_000)) }).await;
    let mut rounds = 0;
    loop {
        rounds += 1;
        let gateway = TestGateway::start(&[file(upstream.address, "limits: [1/1h]")]).await;
        let active = gateway.registry.named("x").unwrap();
        let registry = gateway.registry.clone();
        let mut trail = CallTrace::default();
        let mut first = Box::pin(path::call(&gateway.registry, call(), &mut trail));
        let mut done = polled(first.as_mut(), 1).await;
        let second = tokio::spawn(async move {
            let reply = path::call(&registry, call(), &mut CallTrace::default()).await;
            text(reply.expect("a response")).await
        });
        wait_until(|| active.joined() == 1 || active.shared() == 1).await;
        if done.is_none() && rounds > 1 {
            done = within_timeout(polled(first.as_mut(), rounds - 1)).await;
        }
        let is_over = done.is_some();
        drop((first, done));
        assert_eq!(
            within_timeout(second).await.unwrap().len(),
            100_000,
            "{rounds}"
        );
        assert_eq!(upstream.count(), rounds);
        if is_over {
            break;
        }
    }
    assert!(rounds > 2, "there are more awaits than that: {rounds}");
}

/// An upstream that streams frames from a channel; each request has its own stream.
async fn streaming(headers: &'static [(&'static str, &'static str)]) -> (Upstream, FrameSender) {
    let (sender, frames) = mpsc::channel(64);
    let frames = parking_lot::Mutex::new(Some(frames));
    let upstream = Upstream::start(move |_, _| {
        let frames = frames.lock().take();
        async move {
            let Some(frames) = frames else { return ok() };
            let mut response = Response::new(ChannelBody(frames).boxed());
            for (name, value) in headers {
                response.headers_mut().insert(*name, value.parse().unwrap());
            }
            response
        }
    })
    .await;
    (upstream, sender)
}

type FrameSender = mpsc::Sender<Frame<Bytes>>;

fn chunk(text: impl Into<Bytes>) -> Frame<Bytes> {
    Frame::data(text.into())
}

/// S7: a follower that joins during the body gets it from the start.
#[tokio::test]
async fn s7_a_late_follower_gets_the_body_from_the_start() {
    let (upstream, sender) = streaming(&[]).await;
    let gateway = TestGateway::start(&[file(upstream.address, "limits: [1/1h]")]).await;
    let mut first = Session::open(gateway.address).await;
    sender.send(chunk("one ")).await.unwrap();
    let mut first = first
        .send(request("GET", "/x/a", &[], ""))
        .await
        .into_body();
    let frame = within_timeout(first.frame()).await.unwrap().unwrap();
    assert_eq!(frame.into_data().unwrap(), "one ");
    let mut late = Session::open(gateway.address).await;
    let late = late.send(request("GET", "/x/a", &[], "")).await;
    assert_eq!(late.headers()["x-tollgate-source"], "shared");
    drop(first); // the follower does not depend on the leader
    sender.send(chunk("two")).await.unwrap();
    drop(sender);
    assert_eq!(read_response(late).await.body, "one two");
    assert_eq!(upstream.count(), 1);
}

/// A body without an announced size is shared in pieces, and only a part of it is in memory.
#[tokio::test]
async fn s7_a_body_above_the_cap_reaches_every_reader() {
    let (upstream, sender) = streaming(&[]).await;
    let gateway = TestGateway::start(&[file(upstream.address, "limits: [1/1h]")]).await;
    let (mut first, mut second) = (
        Session::open(gateway.address).await,
        Session::open(gateway.address).await,
    );
    let both = tokio::spawn(async move {
        let first = first.send(request("GET", "/x/a", &[], "")).await;
        let second = second.send(request("GET", "/x/a", &[], "")).await;
        let (first, second) = tokio::join!(read_response(first), read_response(second));
        (first.body, second.body)
    });
    for number in 0..160_u32 {
        let piece = format!("{number:08}").repeat(8_192);
        within_timeout(sender.send(chunk(piece))).await.unwrap();
    }
    drop(sender);
    let (first, second) = within_timeout(both).await.unwrap();
    assert_eq!(first.len(), 160 * 65_536);
    assert_eq!(first, second);
    assert_eq!(upstream.count(), 1);
}

/// A stalled reader does not block the others for ever.
#[tokio::test]
async fn s7_a_stalled_reader_is_dropped_after_the_idle_timeout() {
    let (upstream, sender) = streaming(&[]).await;
    let rest = "timeout: {idle: 2s}\nlimits: [1/1h]";
    let gateway = TestGateway::start(&[file(upstream.address, rest)]).await;
    let registry = gateway.registry.clone();
    let first = tokio::spawn(async move {
        let reply = path::call(&registry, call(), &mut CallTrace::default()).await;
        text(reply.expect("a response")).await
    });
    wait_until(|| upstream.count() == 1).await;
    let mut trail = CallTrace::default();
    let mut slow = pin!(path::call(&gateway.registry, call(), &mut trail));
    assert!(polled(slow.as_mut(), 1).await.is_none());
    for _ in 0..160 {
        within_timeout(sender.send(chunk(vec![7; 65_536])))
            .await
            .unwrap();
    }
    drop(sender);
    let slow = within_timeout(slow).await;
    assert_eq!(within_timeout(first).await.unwrap().len(), 160 * 65_536);
    // It got the head or was too late; in both cases nobody waited for it.
    if let Ok(slow) = slow {
        assert!(within_timeout(slow.body.collect()).await.is_err());
    }
}

/// R-E6: a thousand concurrent users with several requests each: each body names its owner.
#[tokio::test]
async fn s7_a_shared_response_never_reaches_another_user() {
    static WORD: tokio::sync::Semaphore = tokio::sync::Semaphore::const_new(0);
    let upstream = Upstream::start(|_, received| async move {
        let _word = WORD.acquire().await.unwrap();
        let who = |name: &str| {
            let value = received
                .headers
                .get(name)
                .map(|value| value.to_str().unwrap());
            value.unwrap_or("nobody").to_owned()
        };
        let body = format!("{} {}", who("authorization"), who("cookie"));
        reply(200, &[("cache-control", "private")], &body)
    })
    .await;
    let rest = "dedup: true\nconnections: 64\nlimits: [100000/1s]";
    let gateway = TestGateway::start(&[file(upstream.address, rest)]).await;
    let address = gateway.address;
    let calls: Vec<_> = (0..2_000_u32)
        .map(|n| {
            let user = n * 7_919 % 1_000; // each twice, in no order
            tokio::spawn(async move {
                let (bearer, cookie) = (format!("Bearer {user}"), format!("who={user}"));
                let (headers, expected) = match user % 3 {
                    0 => (
                        vec![("authorization", &*bearer)],
                        format!("{bearer} nobody"),
                    ),
                    1 => (vec![("cookie", &*cookie)], format!("nobody {cookie}")),
                    _ => (
                        vec![("authorization", &*bearer), ("cookie", &*cookie)],
                        format!("{bearer} {cookie}"),
                    ),
                };
                let answer = get_with(address, "/x/me", &headers).await;
                (answer.body, expected)
            })
        })
        .collect();
    let active = gateway.registry.named("x").unwrap();
    wait_until(|| active.joined() == 1_000).await;
    WORD.add_permits(1_000);
    for call in calls {
        let (body, expected) = within_timeout(call).await.unwrap();
        assert_eq!(body, expected);
    }
    assert_eq!((upstream.count(), active.shared()), (1_000, 1_000));
}
