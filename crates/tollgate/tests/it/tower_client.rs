//! `GovernLayer` around a client: the whole path, in virtual time, without a socket.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "helpers of tests"
)]

use std::io;
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Empty, Full};
use tollgate::tower::{Govern, GovernLayer};
use tollgate::{Call, Error, Fault, Provider, Reason, Source, UseCache};
use tower_layer::Layer;

use crate::embed::{provider, tollgate_with};
use crate::fake_client::{FakeClient, response, send};

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3_600);

fn get(path: &str) -> Request<Empty<Bytes>> {
    let url = format!("https://api.example.org{path}");
    Request::get(url).body(Empty::new()).unwrap()
}

/// Half a second is not long enough for any limit here, and long enough for a call.
fn soon() -> Call {
    Call::unaddressed().timeout(SECOND / 2)
}

fn with(mut request: Request<Empty<Bytes>>, call: Call) -> Request<Empty<Bytes>> {
    request.extensions_mut().insert(call);
    request
}

async fn governed(of: Provider, client: &FakeClient) -> Govern<FakeClient> {
    GovernLayer::new(&tollgate_with(of).await).layer(client.clone())
}

fn ok() -> FakeClient {
    FakeClient::new(|number, _| Ok(response(200, &number.to_string())))
}

/// Nine calls at once under 3/1s: never more than three in any second, and all of them come through.
#[tokio::test(start_paused = true)]
async fn no_window_of_a_governed_client_has_more_calls_than_its_limit() {
    let client = ok();
    let service = governed(provider().limit(3, SECOND), &client).await;
    let mut calls = tokio::task::JoinSet::new();
    for number in 0..9 {
        let service = service.clone();
        calls.spawn(async move { send(&service, get(&format!("/{number}"))).await });
    }
    while let Some(done) = calls.join_next().await {
        assert_eq!(done.unwrap().expect("a response").status(), 200);
    }
    let arrivals = client.arrivals();
    assert_eq!(arrivals.len(), 9);
    for window in arrivals.windows(4) {
        assert!(window[3].at - window[0].at >= SECOND, "four in one second");
    }
}

/// S11: the cache and dedup, chosen per call.
#[tokio::test(start_paused = true)]
async fn s11_a_call_chooses_cache_and_dedup() {
    let client = ok();
    let service = governed(provider().limit(100, SECOND).cache(HOUR), &client).await;
    let source = async |call: Call| {
        let response = send(&service, with(get("/a"), call))
            .await
            .expect("a response");
        let source = *response.extensions().get::<Source>().expect("known");
        response.into_body().collect().await.expect("a body");
        source
    };
    let plain = Call::unaddressed;
    assert_eq!(source(plain()).await, Source::Upstream);
    assert_eq!(source(plain()).await, Source::Cache);
    assert_eq!(source(plain().cache(UseCache::Only)).await, Source::Cache);
    assert_eq!(source(plain().cache(UseCache::No)).await, Source::Upstream);
    assert_eq!(
        source(plain().cache(UseCache::Refresh)).await,
        Source::Upstream
    );
    assert_eq!(client.arrivals().len(), 3);
    let error = send(&service, with(get("/b"), plain().cache(UseCache::Only))).await;
    assert!(matches!(error, Err(Error::NotInCache { .. })), "{error:?}");

    let shared = (send(&service, get("/c")), send(&service, get("/c")));
    let (first, second) = tokio::join!(shared.0, shared.1);
    assert!(first.is_ok() && second.is_ok());
    assert_eq!(client.arrivals().len(), 4, "one call for both");
    let alone = || with(get("/d"), plain().dedup(false).cache(UseCache::No));
    let (first, second) = tokio::join!(send(&service, alone()), send(&service, alone()));
    assert!(first.is_ok() && second.is_ok());
    assert_eq!(client.arrivals().len(), 6, "each its own");
}

/// Under a flood with deadlines every call waited until its last moment, was sent, and its caller was gone before
/// the response: all of the quota was used, and nobody was served.
#[tokio::test(start_paused = true)]
async fn a_call_is_not_sent_too_late_for_its_response() {
    let client = ok().taking(SECOND);
    let service = governed(provider().limit(1, SECOND), &client).await;
    let first = send(&service, get("/first")).await;
    assert!(first.is_ok(), "it tells how long a response takes");
    let mut calls = tokio::task::JoinSet::new();
    for number in 0..40 {
        let request = with(
            get(&format!("/{number}")),
            Call::unaddressed().timeout(6 * SECOND),
        );
        let service = service.clone();
        calls.spawn(async move { send(&service, request).await.is_ok() });
        tokio::time::advance(SECOND / 4).await;
    }
    let served = calls.join_all().await.into_iter().filter(|ok| *ok).count();
    assert!(served >= 5, "{served}");
    assert_eq!(client.arrivals().len(), 1 + served, "all that were sent");
}

/// Each attempt costs a permit, and a retry is one.
#[tokio::test(start_paused = true)]
async fn a_retry_is_counted_like_any_attempt() {
    let client = FakeClient::new(|number, _| Ok(response(if number == 0 { 503 } else { 200 }, "")));
    let service = governed(provider().limit(2, HOUR), &client).await;
    let done = send(&service, get("/a")).await.expect("the second attempt");
    assert_eq!(done.status(), 200);
    assert_eq!(client.arrivals().len(), 2);
    let error = send(&service, with(get("/b"), soon())).await;
    let error = error.unwrap_err();
    assert_eq!(
        (error.reason(), error.limit()),
        (Some(Reason::Limit), Some("2/1h"))
    );
    assert_eq!(
        client.arrivals().len(),
        2,
        "nothing is sent without a permit"
    );
}

/// The permit comes before the connection of a foreign client: a connect error settles it unsent.
#[tokio::test(start_paused = true)]
async fn a_refused_connection_costs_no_permit() {
    let client = FakeClient::new(|number, _| match number {
        0 => Err(io::Error::from(io::ErrorKind::ConnectionRefused)),
        _ => Ok(response(200, "")),
    });
    let service = governed(provider().limit(1, HOUR), &client).await;
    let done = send(&service, get("/a"))
        .await
        .expect("the retry has the one permit");
    assert_eq!(done.status(), 200);
    let error = send(&service, with(get("/b"), soon())).await;
    assert_eq!(
        error.unwrap_err().reason(),
        Some(Reason::Limit),
        "now it is used"
    );
}

/// Nobody knows whether the provider counted it.
#[tokio::test(start_paused = true)]
async fn a_broken_connection_counts_as_sent() {
    let client = FakeClient::new(|_, _| Err(io::Error::from(io::ErrorKind::ConnectionReset)));
    let service = governed(provider().limit(1, HOUR), &client).await;
    let post = Request::post("https://api.example.org/a").body(Full::<Bytes>::from("x"));
    let error = send(&service, post.unwrap()).await.unwrap_err();
    let Error::NoResponse { fault, .. } = error else {
        panic!("{error:?}");
    };
    assert_eq!(fault, Fault::Reset);
    assert_eq!(client.arrivals().len(), 1, "a POST is not repeated");
    let error = send(&service, with(get("/b"), soon())).await;
    assert!(error.is_err(), "its permit is held");
}

/// Which errors mean that nothing was sent, the program knows best.
#[tokio::test(start_paused = true)]
async fn a_program_can_say_which_errors_are_connect_errors() {
    let client = FakeClient::new(|number, _| match number {
        0 => Err(io::Error::other("no route")),
        _ => Ok(response(200, "")),
    });
    let tollgate = tollgate_with(provider().limit(1, HOUR)).await;
    let layer = GovernLayer::new(&tollgate);
    let layer = layer.connect_errors(|error: &io::Error| error.to_string() == "no route");
    let service = layer.layer(client.clone());
    let done = send(&service, get("/a"))
        .await
        .expect("the retry has the one permit");
    assert_eq!((done.status().as_u16(), client.arrivals().len()), (200, 2));
}

/// A client wraps the error that says so.
#[tokio::test(start_paused = true)]
async fn a_connect_error_is_found_among_the_causes() {
    #[derive(Debug, thiserror::Error)]
    #[error("no route")]
    struct NoRoute;
    #[derive(Debug, thiserror::Error)]
    #[error("the client failed")]
    struct Failed(#[source] NoRoute);
    let client = FakeClient::new(|number, _| match number {
        0 => Err(io::Error::other(Failed(NoRoute))),
        _ => Ok(response(200, "")),
    });
    let tollgate = tollgate_with(provider().limit(1, HOUR)).await;
    let layer = GovernLayer::new(&tollgate).connect_errors(|_: &NoRoute| true);
    let service = layer.layer(client.clone());
    let done = send(&service, get("/a")).await;
    assert_eq!(done.expect("the permit came back").status(), 200);
}

/// Two clients that add their own credential behind the layer: neither gets a response to the other.
#[tokio::test(start_paused = true)]
async fn isolated_clients_share_no_response() {
    let tollgate = tollgate_with(provider().limit(100, SECOND).cache(HOUR)).await;
    let of = |text: &'static str| FakeClient::new(move |_, _| Ok(response(200, text)));
    let layer = GovernLayer::new(&tollgate).isolated();
    let (first, second) = (layer.layer(of("first")), layer.layer(of("second")));
    let ask = async |service: &Govern<FakeClient>| {
        let response = send(service, get("/a")).await.expect("a response");
        let source = *response.extensions().get::<Source>().expect("known");
        let body = response.into_body().collect().await.expect("a body");
        (body.to_bytes(), source)
    };
    let (one, two) = tokio::join!(ask(&first), ask(&second));
    assert_eq!((&one.0[..], &two.0[..]), (&b"first"[..], &b"second"[..]));
    let (one, two) = (ask(&first.clone()).await, ask(&second).await);
    assert_eq!(one, (Bytes::from("first"), Source::Cache));
    assert_eq!(two, (Bytes::from("second"), Source::Cache));
}

/// The key of the provider is added, the body arrives whole, and headers of the connection do not.
#[tokio::test(start_paused = true)]
async fn the_client_gets_an_absolute_request_with_the_key() {
    let client = ok();
    let with_key = provider().limit(9, SECOND).api_key("k-${NOT_A_VARIABLE}"); // tidy:canary
    let service = governed(with_key.auth_header("x-api-key"), &client).await;
    let request = Request::post("https://api.example.org/a?b=c")
        .header("connection", "x-hop")
        .header("x-hop", "1")
        .header("x-mine", "2")
        .body(Full::<Bytes>::from("hello"));
    send(&service, request.unwrap()).await.expect("a response");
    let arrival = client.arrivals().remove(0).request;
    assert_eq!(arrival.uri(), "https://api.example.org/a?b=c");
    assert_eq!(arrival.headers()["x-api-key"], "k-${NOT_A_VARIABLE}"); // tidy:canary
    assert_eq!(arrival.headers()["x-mine"], "2");
    assert_eq!(&arrival.body()[..], b"hello");
    for absent in ["connection", "x-hop", "host"] {
        assert!(!arrival.headers().contains_key(absent), "{absent}");
    }
}

/// Bad input is a typed error; nothing is sent or counted.
#[tokio::test(start_paused = true)]
async fn a_wrong_request_is_not_sent() {
    let client = ok();
    let service = governed(provider().limit(1, HOUR), &client).await;
    let relative = Request::get("/a").body(Empty::<Bytes>::new()).unwrap();
    let upgrade = Request::get("https://api.example.org/a").header("upgrade", "websocket");
    let upgrade = upgrade.body(Empty::new()).unwrap();
    let bad_unit = with(get("/a"), Call::unaddressed().cost("bananas", 1));
    let no_time = with(get("/a"), Call::unaddressed().no_wait());
    for request in [relative, upgrade, bad_unit, no_time] {
        let error = send(&service, request).await.unwrap_err();
        assert!(matches!(error, Error::Malformed(_)), "{error:?}");
    }
    assert!(client.arrivals().is_empty());
    assert!(
        send(&service, get("/a")).await.is_ok(),
        "the permit is still there"
    );
}

/// A caller that goes away while its call waits leaves its permit to others.
#[tokio::test(start_paused = true)]
async fn a_dropped_call_gives_its_permit_back() {
    let client = ok();
    let service = governed(provider().limit(1, SECOND * 10), &client).await;
    send(&service, get("/a")).await.expect("the first");
    let waiting = send(&service, get("/b"));
    assert!(
        tokio::time::timeout(SECOND, waiting).await.is_err(),
        "it waited"
    );
    tokio::time::advance(SECOND * 10).await;
    let now = with(get("/c"), soon());
    assert!(send(&service, now).await.is_ok());
    let paths: Vec<_> = client
        .arrivals()
        .iter()
        .map(|one| one.request.uri().path().to_owned())
        .collect();
    assert_eq!(paths, ["/a", "/c"]);
}
