//! Redirects, default headers and settings of `tollgate::reqwest::Governed`, over sockets.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "helpers of tests"
)]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::RawQuery;
use axum::response::{IntoResponse, Redirect};
use axum::routing::{any, get};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use http_body::Frame;
use tollgate::reqwest::Governed;
use tollgate::{Call, Error, Provider, Source, Tollgate};

use crate::reqwest_client::{HOUR, at, governed, serve};

async fn tollgate(provider: Provider) -> Tollgate {
    let builder = Tollgate::builder().provider(provider).expect("valid");
    builder.build().await.expect("it starts")
}

/// Says which of these headers arrived.
async fn echo(headers: HeaderMap) -> String {
    let names = ["authorization", "cookie", "x-api-key"];
    let arrived = names.iter().filter(|name| headers.contains_key(**name));
    arrived.copied().collect::<Vec<_>>().join(" ")
}

fn secrets() -> HeaderMap {
    let secret = HeaderValue::from_static("mine");
    let names = ["authorization", "cookie", "x-api-key"];
    let names = names.map(http::HeaderName::from_static);
    names
        .map(|name| (name, secret.clone()))
        .into_iter()
        .collect()
}

/// A server that redirects `/away` to another one, which says what arrived, and that one's calls.
async fn redirecting() -> (String, Arc<AtomicUsize>) {
    let seen = Arc::new(AtomicUsize::new(0));
    let counted = seen.clone();
    let elsewhere = any(async move |headers: HeaderMap| {
        counted.fetch_add(1, Ordering::Relaxed);
        echo(headers).await
    });
    let elsewhere = serve(Router::new().route("/end", elsewhere)).await;
    let target = format!("{elsewhere}/end");
    let away = get(async move || Redirect::to(&target));
    let here = Router::new().route("/away", away).route("/here", get(echo));
    (serve(here).await, seen)
}

/// reqwest adds the default headers of its client to every request, so a hop to another origin
/// would carry them: the caller gets the redirect instead.
#[tokio::test]
async fn a_default_credential_does_not_follow_to_another_origin() {
    let (url, seen) = redirecting().await;
    let tollgate = tollgate(at(&url).limit(100, HOUR)).await;
    for name in ["authorization", "cookie", "x-api-key"] {
        let mut headers = HeaderMap::new();
        headers.insert(name, HeaderValue::from_static("mine"));
        let builder = reqwest::Client::builder().default_headers(headers);
        let client = Governed::new(&tollgate, builder).expect("a client");
        let end = client.get("https://api.example.org/away").send().await;
        let end = end.expect("the redirect");
        assert_eq!(end.status(), StatusCode::SEE_OTHER, "{name}");
        assert_eq!(seen.load(Ordering::Relaxed), 0, "{name} was sent");
    }
    // A client without a credential goes there.
    let builder = reqwest::Client::builder().user_agent("a \"b}\" c");
    let client = Governed::new(&tollgate, builder).expect("a client");
    let end = client.get("https://api.example.org/away").send().await;
    assert_eq!(end.expect("the end").text().await.expect("a body"), "");
    assert_eq!(seen.load(Ordering::Relaxed), 1);
}

/// Default headers that Tollgate knows are sent to the caller's own origin only.
#[tokio::test]
async fn default_headers_of_the_governed_client_stay_at_their_origin() {
    let (url, seen) = redirecting().await;
    let tollgate = tollgate(at(&url).limit(100, HOUR)).await;
    let client = Governed::new(&tollgate, reqwest::Client::builder()).expect("a client");
    let client = client.default_headers(secrets());
    let text = async |path: &str| {
        let request = client.get(format!("https://api.example.org{path}"));
        let response = request.send().await.expect("a response");
        response.text().await.expect("a body")
    };
    assert_eq!(text("/here").await, "authorization cookie x-api-key");
    assert_eq!(text("/away").await, "", "elsewhere gets none of them");
    assert_eq!(seen.load(Ordering::Relaxed), 1);
}

/// Two clients on one Tollgate, each with its own default credential: neither gets a response to
/// the other, from the cache or by joining its call.
#[tokio::test]
async fn clients_with_different_default_credentials_share_no_response() {
    let who = get(async |headers: HeaderMap| {
        tokio::time::sleep(Duration::from_millis(100)).await;
        headers["authorization"].to_str().unwrap().to_owned()
    });
    let url = serve(Router::new().route("/a", who)).await;
    let tollgate = tollgate(at(&url).limit(100, HOUR).cache(HOUR)).await;
    let client = |token: &'static str, is_ours: bool| {
        let mut headers = HeaderMap::new();
        headers.insert("authorization", HeaderValue::from_static(token));
        let builder = reqwest::Client::builder();
        match is_ours {
            true => Governed::new(&tollgate, builder)
                .expect("a client")
                .default_headers(headers),
            false => Governed::new(&tollgate, builder.default_headers(headers)).expect("a client"),
        }
    };
    let ask = async |client: &Governed| {
        let response = client.get("https://api.example.org/a").send().await;
        let response = response.expect("a response");
        let source = *response.extensions().get::<Source>().expect("known");
        (response.text().await.expect("a body"), source)
    };
    for is_ours in [false, true] {
        let (first, second) = (client("first", is_ours), client("second", is_ours));
        let both = tokio::join!(ask(&first), ask(&second));
        assert_eq!((&*both.0.0, &*both.1.0), ("first", "second"));
        let (first, second) = (ask(&first.clone()).await, ask(&second).await);
        assert_eq!((&*first.0, &*second.0), ("first", "second"));
        // A response to `Authorization` is cached only if it says so.
        let source = if is_ours {
            Source::Upstream
        } else {
            Source::Cache
        };
        assert_eq!((first.1, second.1), (source, source));
    }
}

/// A redirect to the provider's own upstream is a call to the provider: it costs a permit, whether
/// its address is absolute or below the path of the upstream.
#[tokio::test]
async fn a_redirect_to_the_upstream_stays_under_the_limits() {
    let router = Router::new()
        .route("/v3/relative", get(async || Redirect::to("/v3/end?x=1")))
        .route("/other", get(async || "outside"))
        .route("/v3/outside", get(async || Redirect::to("/other")))
        .route(
            "/v3/end",
            get(async |RawQuery(query): RawQuery| query.unwrap_or_default()),
        )
        .route(
            "/v3/absolute",
            get(async |headers: HeaderMap, RawQuery(query): RawQuery| {
                let host = headers["host"].to_str().unwrap().to_owned();
                // It repeats its key, too.
                Redirect::to(&format!("http://{host}/v3/end?x=1&{}", query.unwrap()))
            }),
        );
    let url = serve(router).await;
    let provider = at(&format!("{url}/v3"))
        .auth_query("api_key")
        .api_key("k-1"); // tidy:canary
    let (tollgate, client) = governed(provider.limit(6, HOUR)).await;
    for (path, end, left) in [
        ("/absolute", "https://api.example.org/end?x=1", 4),
        ("/relative", "https://api.example.org/end?x=1", 2),
        ("/outside", "https://api.example.org/outside", 1),
    ] {
        let request = client.get(format!("https://api.example.org{path}"));
        let response = request.send().await.expect("a response");
        assert_eq!(response.url().as_str(), end, "{path}");
        let known = tollgate.capacity(Call::provider("x")).await.expect("known");
        assert_eq!(known.remaining, Some(left), "{path}");
        if path == "/outside" {
            assert_eq!(
                response.status(),
                StatusCode::SEE_OTHER,
                "the caller gets it"
            );
        } else {
            assert_eq!(response.text().await.expect("a body"), "x=1&api_key=k-1"); // tidy:canary
        }
    }
}

/// Links of a response that the program follows itself lead through Tollgate too.
#[tokio::test]
async fn links_of_a_response_are_in_the_terms_of_the_caller() {
    let link = get(async |headers: HeaderMap| {
        let host = headers["host"].to_str().unwrap().to_owned();
        let links = format!("<http://{host}/v3/items?page=2>; rel=\"next\", </v3/a>; rel=first");
        [
            ("link", links),
            ("location", "https://other.example/v3/x".to_owned()),
        ]
    });
    let url = serve(Router::new().route("/v3/items", link)).await;
    let of = |rewrite| {
        at(&format!("{url}/v3"))
            .limit(9, HOUR)
            .set("rewrite_links", rewrite)
    };
    let (_tollgate, client) = governed(of(true)).await;
    let request = client.get("https://api.example.org/items");
    let response = request.send().await.expect("a response");
    assert_eq!(
        response.headers()["link"],
        "<https://api.example.org/items?page=2>; rel=\"next\", </a>; rel=first"
    );
    assert_eq!(response.headers()["location"], "https://other.example/v3/x");
    let (_tollgate, client) = governed(of(false)).await;
    let request = client.get("https://api.example.org/items");
    let response = request.send().await.expect("a response");
    assert!(
        response.headers()["link"]
            .to_str()
            .unwrap()
            .starts_with(&format!("<{url}/v3/"))
    );
}

/// All hops of a call have the time of the call, not each of them.
#[tokio::test]
async fn all_hops_together_have_the_time_of_the_call() {
    let hops = Arc::new(AtomicUsize::new(0));
    let counted = hops.clone();
    let again = get(async move || {
        counted.fetch_add(1, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(300)).await;
        Redirect::to("/again")
    });
    let url = serve(Router::new().route("/again", again)).await;
    let (_tollgate, client) = governed(at(&url).limit(100, HOUR)).await;
    let request = client.get("https://api.example.org/again");
    let error = request.timeout(Duration::from_millis(700)).send().await;
    let error = error.unwrap_err();
    assert!(matches!(error, Error::DeadlineExceeded { .. }), "{error:?}");
    assert!(hops.load(Ordering::Relaxed) <= 3, "{hops:?}");
}

/// The rest of a redirect is read, so that its slot is free for the next hop at once.
#[tokio::test]
async fn a_redirect_with_a_body_gives_its_slot_back() {
    let hop = async || {
        let (sender, receiver) = tokio::sync::mpsc::channel::<Bytes>(1);
        tokio::spawn(async move {
            for _ in 0..3 {
                tokio::time::sleep(Duration::from_millis(30)).await;
                let _gone = sender.send(Bytes::from_static(b"moved")).await;
            }
        });
        let mut response = Response::new(Body::new(Chunks(receiver)));
        *response.status_mut() = StatusCode::FOUND;
        let to = HeaderValue::from_static("/end");
        response.headers_mut().insert("location", to);
        response
    };
    let router = Router::new()
        .route("/hop", get(hop))
        .route("/end", get(async || "end"));
    let url = serve(router).await;
    let (_tollgate, client) = governed(at(&url).concurrency(1)).await;
    let request = client.get("https://api.example.org/hop");
    let end = request.timeout(Duration::from_secs(3)).send().await;
    assert_eq!(end.expect("the end").text().await.expect("a body"), "end");
}

struct Chunks(tokio::sync::mpsc::Receiver<Bytes>);

impl http_body::Body for Chunks {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let next = self.0.poll_recv(cx);
        next.map(|bytes| bytes.map(|bytes| Ok(Frame::data(bytes))))
    }
}

/// A `Location` in UTF-8 is followed, as reqwest does, and so is one with a user, without the user.
#[tokio::test]
async fn unusual_locations_are_followed() {
    let unusual = get(async || {
        let to = HeaderValue::from_bytes("/münchen".as_bytes()).unwrap();
        (StatusCode::FOUND, [("location", to)]).into_response()
    });
    let with_user = get(async |headers: HeaderMap| {
        let host = headers["host"].to_str().unwrap().to_owned();
        Redirect::to(&format!("http://me:secret@{host}/end"))
    });
    let router = Router::new()
        .route("/unusual", unusual)
        .route("/m%C3%BCnchen", get(async || "servus"))
        .route("/user", with_user)
        .route("/end", get(echo));
    let url = serve(router.fallback(async || "another path")).await;
    let (_tollgate, client) = governed(at(&url).limit(9, HOUR)).await;
    let request = client.get("https://api.example.org/unusual");
    let end = request.send().await.expect("the end");
    assert_eq!(end.url().path(), "/m%C3%BCnchen");
    let request = client.get("https://api.example.org/user");
    let end = request.send().await.expect("the end");
    assert_eq!(end.url().as_str(), "https://api.example.org/end");
    assert_eq!(end.text().await.expect("a body"), "");
}

/// What the program itself has ruled out is no failure of the provider, and costs nothing.
#[tokio::test]
async fn a_setting_of_the_client_is_not_the_providers_fault() {
    let url = serve(Router::new().route("/a", get(async || "a"))).await;
    let tollgate = tollgate(at(&url).limit(3, HOUR)).await;
    let builder = reqwest::Client::builder().https_only(true);
    let client = Governed::new(&tollgate, builder).expect("a client");
    for _ in 0..30 {
        let request = client.get("https://api.example.org/a");
        let error = request.send().await.unwrap_err();
        assert!(matches!(error, Error::NotBuilt(_)), "{error:?}");
    }
    let left = tollgate.capacity(Call::provider("x")).await.expect("known");
    assert!(left.denied.is_none(), "{left:?}");
    assert_eq!(left.remaining, Some(3));
    let plain = Governed::new(&tollgate, reqwest::Client::builder()).expect("a client");
    let response = plain.get("https://api.example.org/a").send().await;
    assert_eq!(response.expect("a response").status(), StatusCode::OK);

    let result = reqwest::Client::builder().https_only(true).build().unwrap();
    let result = result.get(format!("{url}/a")).send().await;
    let permit = tollgate.acquire("x").await.expect("a permit");
    assert_eq!(permit.report(&result).class, tollgate::Class::Other);
}

/// A key of a call means a limit per key of a permit; a call that is sent carries its own.
#[tokio::test]
async fn a_key_of_a_call_that_is_sent_is_an_error() {
    let url = serve(Router::new().route("/a", get(async || "a"))).await;
    let (_tollgate, client) = governed(at(&url).limit(9, HOUR)).await;
    let request = client.get("https://api.example.org/a");
    let error = request.call(|call| call.key("k-1")).send().await; // tidy:canary
    assert!(matches!(error, Err(Error::Malformed(_))), "{error:?}");
}
