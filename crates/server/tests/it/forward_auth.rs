//! `GET /v1/check`: proxies ask about the requests that they hold.

use crate::guards::{CLASSES, OTHER, daemon};
use crate::test_daemon::raw_request;

/// A proxy asks about each request that it holds: 200 or `deny_status`, with rate headers.
#[tokio::test]
async fn forward_auth_counts_by_the_address_behind_the_proxy() {
    let daemon = daemon("guards-check", CLASSES, OTHER).await;
    let own = daemon.admin.to_string();
    let check = async |ip: &str, uri: &str, query: &str| {
        let headers = [
            ("host", own.as_str()),
            ("x-forwarded-for", ip),
            ("x-original-uri", uri),
        ];
        raw_request(
            daemon.admin,
            "GET",
            &format!("/v1/check{query}"),
            &headers,
            "",
        )
        .await
    };
    for left in [4, 3, 2, 1, 0] {
        let passed = check("203.0.113.7", "/a?b", "").await;
        assert_eq!(passed.status, 200, "{passed:?}");
        assert_eq!(passed.header("x-ratelimit-limit"), "10");
        assert_eq!(passed.header("x-ratelimit-remaining"), left.to_string());
    }
    let denied = check("203.0.113.7", "/a", "?deny_status=403").await;
    assert_eq!(
        (denied.status, denied.header("retry-after")),
        (403, "6"),
        "{denied:?}"
    );
    assert_eq!(denied.header("x-ratelimit-remaining"), "0");
    assert_eq!(denied.header("x-tollgate-decision"), "reject");
    assert!(
        denied
            .header("ratelimit-policy")
            .contains("\"ip\";q=10;w=60"),
        "{denied:?}"
    );
    let reset: u64 = denied.header("x-ratelimit-reset").parse().unwrap();
    assert!(reset > 1_700_000_000, "{denied:?}");
    assert_eq!(
        denied.json()["message"],
        "Rate limit exceeded. Please try again later."
    );
    assert_eq!(check("203.0.113.7", "/a", "").await.status, 429);
    assert_eq!(
        check("203.0.113.8", "/a", "").await.status,
        200,
        "another address"
    );
    assert_eq!(
        check("203.0.113.7", "/health", "").await.status,
        200,
        "exempt"
    );
    let named = check("203.0.113.7", "/a", "?guard=user&identifier=u1").await;
    assert_eq!(
        (named.status, named.header("x-ratelimit-limit")),
        (200, "20")
    );
    for query in [
        "?guard=nope",
        "?deny_status=200",
        "?identifier=a",
        "?deny=403",
    ] {
        let wrong = check("203.0.113.7", "/a", query).await;
        assert!((400..=404).contains(&wrong.status), "{query}: {wrong:?}");
    }
}

/// The request of Traefik's `forwardAuth` as its documentation describes it: GET, the method, host and URI
/// of the request in `X-Forwarded-*`, and the headers of its client, `Host` and `Origin` included.
#[tokio::test]
async fn forward_auth_as_traefik_asks() {
    let daemon = daemon("guards-traefik", CLASSES, OTHER).await;
    let ask = async |method: &str, uri: &str, user: &str| {
        let headers = [
            ("host", "shop.example"),
            ("origin", "https://shop.example"),
            ("user-agent", "Mozilla/5.0"),
            ("x-user-id", user),
            ("x-forwarded-method", method),
            ("x-forwarded-proto", "https"),
            ("x-forwarded-host", "shop.example"),
            ("x-forwarded-uri", uri),
            ("x-forwarded-for", "203.0.113.7"),
        ];
        raw_request(daemon.admin, "GET", "/v1/check", &headers, "").await
    };
    for left in ["4", "3", "2", "1", "0"] {
        let passed = ask("POST", "/cart?guard=none", "u1").await;
        assert_eq!(passed.status, 200, "{passed:?}");
        assert_eq!(passed.header("x-ratelimit-remaining"), left);
    }
    let denied = ask("POST", "/cart", "u2").await;
    assert_eq!(
        (denied.status, denied.header("retry-after")),
        (429, "6"),
        "{denied:?}"
    );
    assert_eq!(ask("GET", "/health", "u1").await.status, 200);
}

/// Headers of the proxy's client pass through the proxy, and decide nothing.
#[tokio::test]
async fn forward_auth_lets_browsers_pass_and_is_not_deceived() {
    let daemon = daemon("guards-browser", CLASSES, OTHER).await;
    let own = daemon.admin.to_string();
    let headers = [
        ("host", own.as_str()),
        ("x-original-uri", "/health"),
        ("x-forwarded-uri", "/a"),
    ];
    // What the client of the proxy sent: a click on another site, a form, its own Host (Caddy).
    let browser = [
        ("host", "shop.example"),
        ("origin", "https://shop.example"),
        ("sec-fetch-site", "cross-site"),
        ("x-forwarded-uri", "/a"),
        ("x-forwarded-for", "203.0.113.99"),
    ];
    let passed = raw_request(daemon.admin, "GET", "/v1/check", &browser, "").await;
    assert_eq!(passed.status, 200, "{passed:?}");
    let page = raw_request(daemon.admin, "GET", "/v1/check", &browser[..3], "").await;
    assert_eq!(
        page.status, 403,
        "a page cannot tell that it is a proxy: {page:?}"
    );
    let sly = raw_request(daemon.admin, "GET", "/v1/check", &headers, "").await;
    assert_eq!(
        sly.status, 400,
        "a client added a header to look exempt: {sly:?}"
    );
}
