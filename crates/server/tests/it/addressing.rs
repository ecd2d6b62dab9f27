//! Addressing: by name, by URL, as a proxy, on a provider's own listener.

use std::net::SocketAddr;

use tollgate::providers::Options;
use tollgate_server::ListenerKind;

use crate::client::{get, get_with, raw};
use crate::test_gateway::{TestGateway, file};
use crate::upstream::{Upstream, ok, reply};

fn known(upstream: SocketAddr) -> String {
    file(upstream, "domain: api.example.org\nlimits: [100/1s]")
}

/// H4: a URL is routed by its host, in any spelling, to the upstream of its provider.
#[tokio::test]
async fn h4_a_url_finds_its_provider_by_its_host() {
    let upstream = Upstream::start(|_, _| async { ok() }).await;
    let gateway = TestGateway::start(&[known(upstream.address)]).await;
    for url in [
        "/https://api.example.org/a?b=1",
        "/https:/api.example.org/a?b=1",
        "/http://API.Example.org./a?b=1",
        "/https://eu.api.example.org:8443/a?b=1",
    ] {
        assert_eq!(get(gateway.address, url).await.status, 200, "{url}");
    }
    let targets: Vec<_> = upstream
        .requests()
        .iter()
        .map(|received| received.target.clone())
        .collect();
    assert_eq!(targets, ["/a?b=1"; 4]);
}

/// H4: an unknown domain has no limits.
#[tokio::test]
async fn an_unknown_domain_is_forwarded_unchanged_without_limits() {
    let upstream = Upstream::start(|_, _| async { ok() }).await;
    let gateway = TestGateway::start_with(
        &[],
        Options {
            private: true,
            ..Options::default()
        },
    )
    .await;
    let response = get_with(
        gateway.address,
        &format!("/http://{}/a", upstream.address),
        &[("x-mine", "1")],
    )
    .await;
    assert_eq!(response.status, 200);
    let received = &upstream.requests()[0];
    assert_eq!(received.headers["host"], upstream.address.to_string());
    assert_eq!(received.headers["x-mine"], "1");
}

#[tokio::test]
async fn a_proxy_request_is_governed_too() {
    let upstream = Upstream::start(|_, _| async { ok() }).await;
    let gateway = TestGateway::start(&[known(upstream.address)]).await;
    let line = "GET http://api.example.org/a HTTP/1.1\r\nHost: api.example.org\r\nProxy-Connection: keep-alive\r\nConnection: close\r\n\r\n";
    let response = raw(gateway.address, line).await;
    assert!(response.starts_with("HTTP/1.1 200"), "{response}");
    assert!(
        !upstream.requests()[0]
            .headers
            .contains_key("proxy-connection")
    );
}

#[tokio::test]
async fn a_provider_can_have_its_own_listener() {
    let upstream = Upstream::start(|_, _| async { ok() }).await;
    let mut gateway = TestGateway::start(&[known(upstream.address)]).await;
    let kind = ListenerKind::Provider("x".to_owned());
    let own = gateway
        .gateway
        .listen("127.0.0.1:0".parse().unwrap(), kind)
        .await
        .unwrap();
    assert_eq!(get(own.address, "/health?x=1").await.body, "fine");
    assert_eq!(upstream.requests()[0].target, "/health?x=1");
}

/// A provider's own listener gives no access to other hosts.
#[tokio::test]
async fn h4_a_provider_listener_does_not_proxy_to_other_hosts() {
    let upstream = Upstream::start(|_, _| async { ok() }).await;
    let other = Upstream::start(|_, _| async { ok() }).await;
    let second = format!(
        "name: y\nupstream: http://{}\ndomain: other.example.org\n",
        other.address
    );
    let options = Options {
        private: true,
        ..Options::default()
    };
    let mut gateway = TestGateway::start_with(&[known(upstream.address), second], options).await;
    let kind = ListenerKind::Provider("x".to_owned());
    let free = "127.0.0.1:0".parse().unwrap();
    let own = gateway.gateway.listen(free, kind).await.unwrap().address;
    let ask = async |url: &str| {
        let line = format!("GET {url} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        raw(own, &line).await
    };
    for url in [
        "http://other.example.org/a",
        &format!("http://{}/a", other.address),
    ] {
        let response = ask(url).await;
        assert!(response.starts_with("HTTP/1.1 403"), "{url}: {response}");
        assert!(
            response.contains("\"error\":\"DomainNotAllowed\""),
            "{response}"
        );
        assert!(response.contains("serves one provider only"), "{response}");
    }
    assert_eq!(other.count(), 0);
    let response = ask("http://api.example.org/a").await;
    assert!(response.starts_with("HTTP/1.1 200"), "its own: {response}");
    // A URL in a path is a path of the provider's.
    let target = format!("/http://{}/a", other.address);
    assert_eq!(get(own, &target).await.status, 200);
    assert_eq!((upstream.count(), other.count()), (2, 0));
}

#[tokio::test]
async fn tollgate_headers_are_removed_from_requests_and_from_upstream_responses() {
    let upstream = Upstream::start(|_, _| async {
        reply(
            200,
            &[
                ("x-tollgate-source", "cache"),
                ("x-ratelimit-remaining", "7"),
                ("keep-alive", "timeout=5"),
            ],
            "",
        )
    })
    .await;
    let gateway = TestGateway::start(&[known(upstream.address)]).await;
    let headers = [
        ("x-tollgate-priority", "user"),
        ("x-tollgate-caller", "scanner"),
        ("x-tollgate-timeout", "5s"),
        ("connection", "x-hop"),
        ("x-hop", "1"),
    ];
    let response = get_with(gateway.address, "/x/a", &headers).await;
    let received = upstream.requests();
    let names: Vec<&str> = received[0]
        .headers
        .keys()
        .map(http::HeaderName::as_str)
        .collect();
    assert_eq!(names, ["host", "via"]);
    assert_eq!(received[0].headers["host"], upstream.address.to_string());
    assert_eq!(response.header("x-tollgate-source"), "upstream");
    assert_eq!(
        (
            response.header("x-ratelimit-remaining"),
            response.header("keep-alive")
        ),
        ("7", "")
    );
}

#[tokio::test]
async fn links_are_rewritten_to_the_gateway() {
    let upstream = Upstream::start(|_, received| async move {
        let host = received.headers["host"].to_str().unwrap().to_owned();
        reply(
            302,
            &[
                ("location", &format!("http://{host}/b?p=2")),
                ("link", "</c>; rel=next"),
            ],
            "",
        )
    })
    .await;
    let gateway = TestGateway::start(&[known(upstream.address)]).await;
    let response = get(gateway.address, "/x@web/a").await;
    assert_eq!(
        (response.status, response.header("location")),
        (302, "http://gateway/x@web/b?p=2")
    );
    assert_eq!(response.header("link"), "</x@web/c>; rel=next");
    assert_eq!(upstream.count(), 1, "redirects are the caller's to follow");
}

#[tokio::test]
async fn the_gateway_serves_its_own_health_and_ready() {
    let gateway = TestGateway::start(&[]).await;
    let health = get(gateway.address, "/health").await;
    assert_eq!(
        (health.status, health.body.as_str()),
        (200, "{\"status\":\"ok\"}")
    );
    assert_eq!(
        get(gateway.address, "/ready").await.body,
        "{\"status\":\"ready\"}"
    );
}

/// H4: `*.example.org` is many hosts, and the provider's name does not select one.
#[tokio::test]
async fn h4_a_wildcard_provider_explains_how_to_name_a_host() {
    let text = "name: x\ndomain: '*.example.org'\nlimits: [100/1s]\n".to_owned();
    let gateway = TestGateway::start(&[text]).await;
    let response = get(gateway.address, "/x/a").await;
    assert_eq!(response.status, 400);
    assert!(response.body.contains("`*.example.org`"), "{response:?}");
    let hint = response.json()["hint"].to_string();
    assert!(hint.contains("/https://YOURS.example.org/path"), "{hint}");
}

/// A page of another site may not make the user's browser call with configured keys. Programs,
/// local pages and reverse proxies may call.
#[tokio::test]
async fn a_cross_site_page_is_rejected_on_loopback() {
    let upstream = Upstream::start(|_, _| async { ok() }).await;
    let rest = "limits: [100/1s]\ncache: {mode: ttl, ttl: 1h}";
    let gateway = TestGateway::start(&[file(upstream.address, rest)]).await;
    let cross = ("sec-fetch-site", "cross-site");
    let (evil, local) = ("https://evil.example", "http://localhost:3000");
    for (headers, expected) in [
        (vec![], 200),
        (vec![("origin", evil)], 200), // said by no browser alone: a proxy in front of us, or a program
        (vec![cross], 403),
        (vec![cross, ("origin", evil)], 403),
        (vec![cross, ("origin", "null")], 403),
        (
            vec![cross, ("referer", "https://evil.example/localhost")],
            403,
        ),
        (
            vec![cross, ("origin", "https://localhost.evil.example")],
            403,
        ),
        (vec![cross, ("origin", evil), ("referer", local)], 403),
        (vec![cross, ("origin", local)], 200),
        (vec![cross, ("origin", "http://[::1]:8080")], 200),
        (vec![cross, ("referer", "http://127.0.0.1:5173/page")], 200),
        (
            vec![cross, ("origin", evil), ("x-forwarded-for", "203.0.113.9")],
            200,
        ),
        (
            vec![("sec-fetch-site", "same-origin"), ("origin", evil)],
            200,
        ),
        (vec![("sec-fetch-site", "none")], 200),
        (vec![("sec-fetch-site", "same-site"), ("origin", evil)], 403),
        (
            vec![("sec-fetch-site", "same-site"), ("origin", local)],
            200,
        ),
    ] {
        let response = get_with(gateway.address, "/x/a", &headers).await;
        assert_eq!(response.status, expected, "{headers:?} {response:?}");
    }
}
