//! `tollgate::reqwest::Governed` over sockets: a strict provider judges it.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "helpers of tests"
)]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::extract::Path;
use axum::response::Redirect;
use axum::routing::{any, get};
use http::{HeaderMap, Method, StatusCode};
use tokio::net::TcpListener;
use tollgate::reqwest::Governed;
use tollgate::{Call, Error, Provider, Reason, Source, Tollgate, UseCache};
use tollgate_sim::http::{Settings, SimProvider};

pub(crate) const HOUR: Duration = Duration::from_secs(3_600);

pub(crate) async fn governed(provider: Provider) -> (Tollgate, Governed) {
    let builder = Tollgate::builder().provider(provider).expect("valid");
    let tollgate = builder.build().await.expect("it starts");
    // What the program says about redirects would be calls that nobody counts.
    let policy = reqwest::redirect::Policy::limited(5);
    let client = Governed::new(&tollgate, reqwest::Client::builder().redirect(policy));
    (tollgate, client.expect("a client"))
}

/// A provider at this address.
pub(crate) fn at(url: &str) -> Provider {
    Provider::new("x").domain("api.example.org").upstream(url)
}

pub(crate) async fn serve(router: Router) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound");
    tokio::spawn(async move { axum::serve(listener, router).await });
    format!("http://{address}")
}

/// The provider's own log has no violation, and no call is lost.
#[tokio::test]
async fn a_strict_provider_finds_no_violation() {
    let settings = Settings::with_rules("sliding 10/200ms").expect("rules");
    let provider = SimProvider::start(settings).await.expect("it starts");
    let limited = at(&provider.url()).limit_with("10/200ms");
    let (_tollgate, client) = governed(limited).await;
    let mut calls = tokio::task::JoinSet::new();
    for number in 0..40 {
        let url = format!("https://api.example.org/items/{number}");
        let call = client.get(url).timeout(Duration::from_secs(60)).send();
        calls.spawn(async move { call.await.expect("a response").status().as_u16() });
    }
    while let Some(status) = calls.join_next().await {
        assert_eq!(status.expect("it ran"), 200);
    }
    let report = provider.stop().await;
    assert_eq!((report.violations, report.accepted), (0, 40));
}

/// Each hop of a redirect costs a permit, a credential does not follow to another origin, and the
/// policy of the builder does not apply.
#[tokio::test]
async fn each_hop_of_a_redirect_is_a_call() {
    let seen = Arc::new(AtomicUsize::new(0));
    let elsewhere = {
        let seen = seen.clone();
        serve(Router::new().route(
            "/end",
            get(async move |headers: HeaderMap| {
                seen.fetch_add(1, Ordering::Relaxed);
                format!("{}", headers.contains_key("authorization"))
            }),
        ))
        .await
    };
    let target = format!("{elsewhere}/end");
    let hops = Router::new().route(
        "/hop/{left}",
        get(async move |Path(left): Path<u32>| match left {
            0 => Redirect::to(&target),
            left => Redirect::to(&format!("/hop/{}", left - 1)),
        }),
    );
    let url = serve(hops).await;
    let (tollgate, client) = governed(at(&url).limit(3, HOUR)).await;
    let ask = |path: &str| {
        let request = client.get(format!("https://api.example.org{path}"));
        request
            .header("authorization", "Bearer mine")
            .timeout(Duration::from_secs(10))
    };
    let end = ask("/hop/1").send().await.expect("the end");
    assert_eq!(end.url().path(), "/end");
    assert_eq!(
        end.text().await.expect("a body"),
        "false",
        "the credential stays"
    );
    let left = tollgate.capacity(Call::provider("x")).await.expect("known");
    assert_eq!(
        left.remaining,
        Some(1),
        "two hops were calls to the provider"
    );
    let error = ask("/hop/2").send().await.unwrap_err();
    assert_eq!(
        error.reason(),
        Some(Reason::Limit),
        "the second hop has no permit"
    );
    assert_eq!(seen.load(Ordering::Relaxed), 1);
}

/// The timeout of reqwest's own request is that of the call.
#[tokio::test]
async fn a_timeout_of_the_request_ends_the_call() {
    let slow = get(async || tokio::time::sleep(Duration::from_secs(60)).await);
    let url = serve(Router::new().route("/slow", slow)).await;
    let (_tollgate, client) = governed(at(&url).limit(9, HOUR)).await;
    let request = client.get("https://api.example.org/slow");
    let error = request
        .with(|request| request.timeout(Duration::from_millis(200)))
        .send()
        .await
        .unwrap_err();
    let is_too_late = |error: &Error| {
        let Error::DeadlineExceeded { provider, at } = error else {
            return false;
        };
        provider == "x" && *at == tollgate::error::Stage::Upstream
    };
    assert!(is_too_late(&error), "{error:?}");
}

/// Methods and bodies of a hop are those of reqwest: only a 303, and a POST after a 301 or 302, become a GET.
#[tokio::test]
async fn a_redirect_keeps_methods_and_bodies_as_reqwest_does() {
    let echo = any(async |method: Method, body: String| format!("{method} {body}"));
    let hop = async |Path(status): Path<u16>| {
        let status = StatusCode::from_u16(status).expect("a status");
        (status, [("location", "/end")])
    };
    let server = Router::new()
        .route("/hop/{status}", any(hop))
        .route("/end", echo);
    let url = serve(server).await;
    let (_tollgate, client) = governed(at(&url).limit(100, HOUR)).await;
    for (method, status, expected) in [
        (Method::PUT, 301, "PUT text"),
        (Method::PATCH, 302, "PATCH text"),
        (Method::DELETE, 303, "GET "),
        (Method::POST, 301, "GET "),
        (Method::POST, 302, "GET "),
        (Method::POST, 303, "GET "),
        (Method::POST, 307, "POST text"),
        (Method::HEAD, 303, ""),
    ] {
        let to = format!("https://api.example.org/hop/{status}");
        let request = client.request(method.clone(), to).body("text");
        let end = request.send().await.expect("the end");
        assert_eq!((end.status(), end.url().path()), (StatusCode::OK, "/end"));
        let body = end.text().await.expect("a body");
        assert_eq!(body, expected, "{method} {status}");
    }
    let bare = client.request(Method::DELETE, "https://api.example.org/hop/307");
    let end = bare.send().await.expect("the end");
    assert_eq!(end.text().await.expect("a body"), "DELETE ");
    let client = client.redirects(0);
    let unfollowed = client.get("https://api.example.org/hop/303").send().await;
    assert_eq!(
        unfollowed.expect("a response").status(),
        303,
        "the caller gets it"
    );
}

/// S11 through reqwest: the second response comes from the cache, unless the call says otherwise.
#[tokio::test]
async fn s11_a_reqwest_call_chooses_the_cache() {
    let url = serve(Router::new().route("/a", get(async || "a"))).await;
    let (_tollgate, client) = governed(at(&url).limit(9, HOUR).cache(HOUR)).await;
    let source = async |cache| {
        let request = client.get("https://api.example.org/a").cache(cache);
        let response = request.send().await.expect("a response");
        let source = *response.extensions().get::<Source>().expect("known");
        assert_eq!(response.text().await.expect("a body"), "a");
        source
    };
    assert_eq!(source(UseCache::Yes).await, Source::Upstream);
    assert_eq!(source(UseCache::Yes).await, Source::Cache);
    assert_eq!(source(UseCache::No).await, Source::Upstream);
}

/// The permit comes before reqwest connects; a refused connection gives it back.
#[tokio::test]
async fn a_refused_connection_of_reqwest_costs_no_permit() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("bound"));
    drop(listener);
    let (tollgate, client) = governed(at(&url).limit(1, HOUR)).await;
    let request = client
        .post("https://api.example.org/a")
        .timeout(Duration::from_millis(200));
    let error = request.send().await.unwrap_err();
    let is_expected = matches!(
        error,
        Error::NoResponse { .. } | Error::DeadlineExceeded { .. }
    );
    assert!(is_expected, "{error:?}");
    let left = tollgate.capacity(Call::provider("x")).await.expect("known");
    assert_eq!(left.remaining, Some(1));
}

/// The contract's own example: a permit, the program's own client, a report.
#[tokio::test]
async fn a_permit_is_reported_with_the_result_of_reqwest() {
    let url = serve(Router::new().route("/a", get(async || "a"))).await;
    let builder = Tollgate::builder()
        .provider(at(&url).limit(2, HOUR))
        .expect("valid");
    let tollgate = builder.build().await.expect("it starts");
    let client = reqwest::Client::new();
    let permit = tollgate
        .acquire(Call::url("https://api.example.org/a"))
        .await
        .expect("a permit");
    let response = client.get(format!("{url}/a")).send().await;
    assert_eq!(permit.report(&response).class, tollgate::Class::Success);
    let permit = tollgate
        .acquire(Call::url("https://api.example.org/a"))
        .await
        .expect("a permit");
    let response = client.get("http://127.0.0.1:1/a").send().await;
    permit.report(&response);
    let left = tollgate.capacity(Call::provider("x")).await.expect("known");
    assert_eq!(
        left.remaining,
        Some(1),
        "the refused connection cost nothing"
    );
}
