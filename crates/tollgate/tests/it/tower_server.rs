//! `GuardLayer` around an axum server (C4), without a socket and in virtual time.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "helpers of tests"
)]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::routing::get;
use http::{Request, Response};
use http_body_util::BodyExt;
use tollgate::tower::{GuardLayer, GuardLayerBuilder, Limiting};
use tollgate::{Clock, ManualClock, Micros, Now, Span, Wall};

use crate::fake_client::send;

const MINUTE: Duration = Duration::from_secs(60);
const NOW: u64 = 1_772_323_200;

fn clock() -> Arc<ManualClock> {
    ManualClock::new(Now {
        at: Micros(1_000_000_000),
        wall: Wall(NOW * 1_000_000),
    })
}

/// An axum server behind these guards.
fn server(guards: GuardLayerBuilder, clock: &Arc<ManualClock>) -> Router {
    let guards = guards
        .exempt("/health")
        .peer(|head| {
            let peer = head.extensions.get::<ConnectInfo<SocketAddr>>();
            peer.map(|peer| peer.0.ip())
        })
        .clock(Clock::Manual(clock.clone()));
    Router::new()
        .route("/items", get(async || "items"))
        .route("/health/live", get(async || "well"))
        .layer(guards.build().expect("valid guards"))
}

fn request(path: &str, ip: &str, user: Option<&str>) -> Request<Body> {
    let peer: SocketAddr = format!("{ip}:4711").parse().unwrap();
    let mut request = Request::get(path).extension(ConnectInfo(peer));
    if let Some(user) = user {
        request = request.header("x-user-id", user);
    }
    request.body(Body::empty()).unwrap()
}

async fn ask(server: &Router, path: &str, ip: &str, user: Option<&str>) -> Response<Body> {
    send(server, request(path, ip, user))
        .await
        .expect("infallible")
}

fn header<'a>(response: &'a Response<Body>, name: &str) -> &'a str {
    let value = response.headers().get(name);
    value
        .unwrap_or_else(|| panic!("no {name}"))
        .to_str()
        .unwrap()
}

/// `limiting: on | off | shadow` at run time, for every clone of the layer.
#[tokio::test]
async fn limiting_is_switched_on_the_layer() {
    let clock = clock();
    let guards = GuardLayer::builder().global(10, MINUTE, 1);
    let guards = guards
        .clock(Clock::Manual(clock.clone()))
        .build()
        .expect("valid");
    let server = Router::new().route("/items", get(async || "items"));
    let server = server.layer(guards.clone());
    let status = async || ask(&server, "/items", "192.0.2.1", None).await;
    assert_eq!(guards.limiting(), Limiting::On);
    assert_eq!(status().await.status(), 200);
    assert_eq!(status().await.status(), 429);
    guards.set_limiting(Limiting::Shadow);
    let shadow = status().await;
    assert_eq!(
        (
            shadow.status().as_u16(),
            header(&shadow, "x-tollgate-decision")
        ),
        (200, "allow")
    );
    guards.set_limiting(Limiting::Off);
    let off = status().await;
    assert_eq!(off.status(), 200);
    assert!(
        !off.headers().contains_key("x-ratelimit-limit"),
        "it does not count"
    );
    guards.set_limiting(None);
    assert_eq!(
        (guards.limiting(), status().await.status().as_u16()),
        (Limiting::On, 429)
    );
}

/// C4, C10: per address; 429 with the rate headers and the time to come back, the same on success.
#[tokio::test]
async fn c4_an_axum_server_limits_each_address() {
    let clock = clock();
    let server = server(GuardLayer::builder().ip(10, MINUTE, 2), &clock);
    for remaining in ["1", "0"] {
        let passed = ask(&server, "/items", "192.0.2.1", None).await;
        assert_eq!(passed.status(), 200);
        assert_eq!(header(&passed, "x-ratelimit-limit"), "10");
        assert_eq!(header(&passed, "x-ratelimit-remaining"), remaining);
        assert_eq!(header(&passed, "x-tollgate-decision"), "allow");
    }
    let denied = ask(&server, "/items", "192.0.2.1", None).await;
    assert_eq!(denied.status(), 429);
    assert_eq!(header(&denied, "x-tollgate-decision"), "reject");
    assert_eq!(header(&denied, "retry-after"), "6");
    assert_eq!(header(&denied, "x-ratelimit-limit"), "10");
    assert_eq!(header(&denied, "x-ratelimit-remaining"), "0");
    assert_eq!(header(&denied, "x-ratelimit-reset"), (NOW + 12).to_string());
    assert!(header(&denied, "ratelimit-policy").contains("\"ip\";q=10;w=60"));
    let body = denied.into_body().collect().await.unwrap().to_bytes();
    let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(body["error"], "RateLimitExceeded");
    assert_eq!(
        body["message"],
        "Rate limit exceeded. Please try again later."
    );
    assert_eq!(
        (&body["guard"], &body["limit"]),
        (&"ip".into(), &"10/1m".into())
    );
    assert_eq!(body["retryIn"], 6_000);
    assert_eq!(
        (&body["reason"], body["hint"].is_string()),
        (&"limit".into(), true)
    );
    assert_eq!(
        ask(&server, "/items", "192.0.2.2", None).await.status(),
        200,
        "another address"
    );
    clock.pass(Span::from_secs(6));
    assert_eq!(
        ask(&server, "/items", "192.0.2.1", None).await.status(),
        200,
        "in time"
    );
}

/// C4: then per user if its header is there, then all together; whoever rejects is shown, and what
/// is rejected costs no other guard anything.
#[tokio::test]
async fn c4_users_and_all_requests_are_limited_after_addresses() {
    let clock = clock();
    let guards = GuardLayer::builder().ip(60, MINUTE, 9);
    let guards = guards
        .user("x-user-id", 60, MINUTE, 1)
        .global(60, MINUTE, 3);
    let server = server(guards, &clock);
    let status = async |ip: &str, user| ask(&server, "/items", ip, user).await.status().as_u16();
    assert_eq!(status("192.0.2.1", Some("ada")).await, 200);
    assert_eq!(
        status("192.0.2.2", Some("ada")).await,
        429,
        "the user, from another address"
    );
    assert_eq!(status("192.0.2.2", Some("bob")).await, 200);
    assert_eq!(status("192.0.2.2", None).await, 200, "no header, no user");
    let denied = ask(&server, "/items", "192.0.2.3", None).await;
    assert_eq!(denied.status(), 429, "all together");
    let body = denied.into_body().collect().await.unwrap().to_bytes();
    let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(body["guard"], "api");
    assert_eq!(
        body["message"],
        "API rate limit exceeded. Please try again later."
    );
}

/// C4: paths under an exempt prefix are not counted and have no rate headers.
#[tokio::test]
async fn c4_exempt_paths_are_not_counted() {
    let clock = clock();
    let server = server(GuardLayer::builder().ip(1, MINUTE, 1), &clock);
    for _ in 0..5 {
        let well = ask(&server, "/health/live", "192.0.2.1", None).await;
        assert_eq!(well.status(), 200);
        assert!(!well.headers().contains_key("x-ratelimit-limit"));
    }
    assert_eq!(
        ask(&server, "/items", "192.0.2.1", None).await.status(),
        200
    );
    assert_eq!(
        ask(&server, "/items", "192.0.2.1", None).await.status(),
        429
    );
}

/// Statuses of the paths, asked one after the other by one address.
async fn statuses(guards: GuardLayer, paths: &[&str]) -> Vec<u16> {
    let server = Router::new().fallback(async || "it").layer(guards);
    let mut statuses = Vec::new();
    for path in paths {
        let response = ask(&server, path, "192.0.2.1", None).await;
        statuses.push(response.status().as_u16());
    }
    statuses
}

/// C4: as for the daemon, `/health` is exempt unless the program says otherwise.
#[tokio::test]
async fn c4_health_is_exempt_by_default() {
    let guards = || GuardLayer::builder().ip(1, MINUTE, 1);
    let paths = ["/a", "/health", "/health/live", "/metrics", "/b"];
    for (guards, expected) in [
        (guards(), [200, 200, 200, 429, 429]),
        (guards().exempt("/metrics"), [200, 200, 200, 200, 429]),
        (
            guards().exempt_paths(["/metrics"]),
            [200, 429, 429, 200, 429],
        ),
        (guards().exempt_paths([""; 0]), [200, 429, 429, 429, 429]),
    ] {
        let layer = guards.clock(Clock::Manual(clock())).build();
        let found = statuses(layer.expect("valid"), &paths).await;
        assert_eq!(found, expected);
    }
}

/// The guards, exempt paths and trusted proxies of a `tollgate.yaml`, in place of those of the builder.
#[tokio::test]
async fn c4_guards_come_from_a_file() {
    let name = format!("tollgate-guards-{}.yaml", std::process::id());
    let file = std::env::temp_dir().join(name);
    let text = concat!(
        "guards:\n",
        "  user: { limit: 60, period: 1m, burst: 1, by: \"header:x-user-id\" }\n",
        "  ip: { limit: 60, period: 1m, burst: 2, by: ip }\n",
        "exempt_paths: [/ready]\n",
        "trusted_proxies: [192.0.2.0/24]\n",
    );
    std::fs::write(&file, text).expect("a file");
    let clock = clock();
    let built = GuardLayer::builder()
        .ip(1, MINUTE, 1)
        .exempt("/items")
        .peer(|head| {
            let peer = head.extensions.get::<ConnectInfo<SocketAddr>>();
            peer.map(|peer| peer.0.ip())
        })
        .clock(Clock::Manual(clock))
        .build_from_file(file.to_str().expect("a path"));
    std::fs::remove_file(&file).expect("it was there");
    let server = Router::new()
        .fallback(async || "it")
        .layer(built.expect("valid"));
    let status = async |path: &str, client: &str, user| {
        let mut request = request(path, "192.0.2.1", user);
        let client = client.parse().unwrap();
        request.headers_mut().insert("x-forwarded-for", client);
        let response = send(&server, request).await.expect("infallible");
        response.status().as_u16()
    };
    assert_eq!(status("/items", "198.51.100.1", Some("ada")).await, 200);
    assert_eq!(
        status("/items", "198.51.100.2", Some("ada")).await,
        429,
        "her second"
    );
    assert_eq!(status("/items", "198.51.100.1", None).await, 200);
    assert_eq!(
        status("/items", "198.51.100.1", None).await,
        429,
        "its third"
    );
    assert_eq!(
        status("/items", "198.51.100.2", None).await,
        200,
        "the proxy is believed"
    );
    assert_eq!(status("/ready", "198.51.100.1", None).await, 200);
    assert_eq!(
        status("/health", "198.51.100.1", None).await,
        429,
        "the file exempts others"
    );
    let missing = GuardLayer::builder().build_from_file("no-such-folder/tollgate.yaml");
    let words = missing.unwrap_err().to_string();
    assert!(words.contains("no-such-folder/tollgate.yaml"), "{words}");
}

/// `X-Forwarded-For` is believed from a trusted proxy only; callers without an address share one
/// bucket.
#[tokio::test]
async fn addresses_come_from_trusted_proxies_only() {
    let clock = clock();
    let guards = GuardLayer::builder()
        .ip(1, MINUTE, 1)
        .trusted_proxy("10.0.0.0/8");
    let server = server(guards, &clock);
    let via = async |peer: &str, client: &str| {
        let mut request = request("/items", peer, None);
        request
            .headers_mut()
            .insert("x-forwarded-for", client.parse().unwrap());
        send(&server, request)
            .await
            .expect("infallible")
            .status()
            .as_u16()
    };
    assert_eq!(via("10.0.0.1", "192.0.2.1").await, 200);
    assert_eq!(via("10.0.0.1", "192.0.2.2").await, 200);
    assert_eq!(via("10.0.0.2", "192.0.2.1").await, 429, "the same client");
    assert_eq!(via("198.51.100.1", "192.0.2.3").await, 200);
    assert_eq!(via("198.51.100.1", "192.0.2.4").await, 429, "a lie");
    let nameless = || Request::get("/items").body(Body::empty()).unwrap();
    let first = send(&server, nameless()).await.expect("infallible");
    let second = send(&server, nameless()).await.expect("infallible");
    assert_eq!(
        (first.status().as_u16(), second.status().as_u16()),
        (200, 429)
    );
}

#[test]
fn a_wrong_guard_is_named_with_a_remedy() {
    let wrong = GuardLayer::builder().guard("ip", serde_json::json!({ "limit": 0, "bust": 1 }));
    let problems = wrong.build().unwrap_err().to_string();
    assert!(problems.contains("guards.ip"), "{problems}");
    assert!(problems.contains("burst"), "{problems}");
}

/// More guards than are decided as one: rejected when the layer is built, not at each request.
#[test]
fn more_guards_than_apply_to_one_request_are_rejected() {
    let mut guards = GuardLayer::builder();
    for number in 0..9 {
        let fields = serde_json::json!({ "limit": 1, "period": "1h", "by": "global" });
        guards = guards.guard(&format!("g{number}"), fields);
    }
    let problems = guards.build().unwrap_err().to_string();
    assert!(problems.contains("more than 8 guards"), "{problems}");
}
