//! Keys reach their provider only.

use tollgate::providers::Options;

use crate::client::{get, get_with, raw};
use crate::log;
use crate::test_gateway::{TestGateway, file};
use crate::upstream::{Upstream, ok, reply};

const CANARY: &str = "canary-5f1c9a";

async fn echo() -> Upstream {
    Upstream::start(|_, _| async { ok() }).await
}

#[tokio::test]
async fn a_configured_key_replaces_the_clients_query_key() {
    let upstream = echo().await;
    let rest = format!(
        "api_key: {CANARY}\nauth: {{query: api_key, also: {{client_key: second}}}}\nlimits: [100/1s]"
    );
    let gateway = TestGateway::start(&[file(upstream.address, &rest)]).await;
    get(gateway.address, "/x/a?b=1&api_key=mine&c=%2F").await;
    let target = &upstream.requests()[0].target;
    assert_eq!(
        target,
        &format!("/a?b=1&c=%2F&api_key={CANARY}&client_key=second")
    );
}

#[tokio::test]
async fn a_key_is_sent_in_the_configured_header_style() {
    for (auth, name, value) in [
        ("{header: X-Api-Key}", "x-api-key", CANARY.to_owned()),
        (
            "{bearer: true}",
            "authorization",
            format!("Bearer {CANARY}"),
        ),
    ] {
        let upstream = echo().await;
        let rest = format!(
            "api_key: {CANARY}\nauth: {auth}\nheaders: {{user-agent: mine/1}}\nlimits: [100/1s]"
        );
        let gateway = TestGateway::start(&[file(upstream.address, &rest)]).await;
        get_with(gateway.address, "/x/a", &[(name, "theirs")]).await;
        get_with(gateway.address, "/x/a", &[("user-agent", "theirs/2")]).await;
        let received = upstream.requests();
        assert_eq!(received[0].headers[name], value);
        assert_eq!(received[0].headers["user-agent"], "mine/1", "a default");
        assert_eq!(
            received[1].headers["user-agent"], "theirs/2",
            "the caller's wins"
        );
    }
}

#[tokio::test]
async fn a_clients_own_key_wins_if_configured_and_is_counted_separately() {
    let upstream = echo().await;
    let rest = format!(
        "api_key: {CANARY}\nauth: {{bearer: true, replace: false}}\nlimits: [{{limit: 1, period: 1h, per: api_key}}]"
    );
    let gateway = TestGateway::start(&[file(upstream.address, &rest)]).await;
    let soon = ("x-tollgate-timeout", "30s");
    let mut statuses = Vec::new();
    for key in ["Bearer a", "Bearer a", "Bearer b"] {
        statuses.push(
            get_with(gateway.address, "/x/a", &[("authorization", key), soon])
                .await
                .status,
        );
    }
    statuses.push(get_with(gateway.address, "/x/a", &[soon]).await.status);
    assert_eq!(statuses, [200, 429, 200, 200]);
    let keys: Vec<_> = upstream
        .requests()
        .iter()
        .map(|received| received.headers["authorization"].clone())
        .collect();
    assert_eq!(keys, ["Bearer a", "Bearer b", &format!("Bearer {CANARY}")]);
}

/// M14 (keys): each key of a pool has its own count, and a free one is used.
#[tokio::test]
async fn a_pool_uses_each_key_within_its_own_limit() {
    let upstream = echo().await;
    let rest = "api_keys: [k1, k2, k3]\nauth: {header: x-key}\nlimits: [{limit: 2, period: 1h, per: api_key}]";
    let gateway = TestGateway::start(&[file(upstream.address, rest)]).await;
    for _ in 0..6 {
        assert_eq!(get(gateway.address, "/x/a").await.status, 200);
    }
    let rejected = get_with(gateway.address, "/x/a", &[("x-tollgate-timeout", "30s")]).await;
    assert_eq!(rejected.status, 429);
    let mut keys: Vec<_> = upstream
        .requests()
        .iter()
        .map(|received| received.headers["x-key"].to_str().unwrap().to_owned())
        .collect();
    keys.sort_unstable();
    assert_eq!(keys, ["k1", "k1", "k2", "k2", "k3", "k3"]);
}

/// R-F4: a key stays with its provider's own origin.
#[tokio::test]
async fn a_key_is_not_sent_to_another_port_or_without_tls() {
    let upstream = echo().await;
    let file = format!(
        "name: x\ndomain: localhost\napi_key: {CANARY}\nauth: {{bearer: true}}\nlimits: [100/1s]\n"
    );
    let gateway = TestGateway::start_with(
        &[file],
        Options {
            private: true,
            ..Options::default()
        },
    )
    .await;
    get(
        gateway.address,
        &format!("/http://localhost:{}/a", upstream.address.port()),
    )
    .await;
    let received = upstream.requests();
    assert_eq!(received.len(), 1);
    assert!(!received[0].headers.contains_key("authorization"));
}

/// An upstream that redirects, rejects and fails, and echoes the request.
async fn troubled() -> Upstream {
    Upstream::start(|_, received| async move {
        match received.target.split('?').next().unwrap() {
            "/moved" => reply(
                302,
                &[
                    ("location", received.target.as_str()),
                    ("link", &format!("<{}>; rel=next", received.target)),
                ],
                "",
            ),
            "/busy" => reply(429, &[("retry-after", "600")], "busy"),
            "/down" => reply(503, &[], "down"),
            _ => ok(),
        }
    })
    .await
}

/// H3: no response and no log line contains a key, whatever fails.
#[tokio::test]
async fn h3_a_key_is_in_no_response_and_no_log() {
    let upstream = troubled().await;
    let rest = format!(
        "api_key: {CANARY}\nauth: {{query: api_key}}\nlimits: [100/1s]\nretry: {{retries: {{high: 0, normal: 0, low: 0}}}}\nhealth: {{failure_threshold: 2, sleep_first: 10m}}"
    );
    let dead = file("127.0.0.1:9".parse().unwrap(), &rest).replace("name: x", "name: dead");
    let busy = file(upstream.address, &rest).replace("name: x", "name: busy");
    let gateway = TestGateway::start(&[file(upstream.address, &rest), dead, busy]).await;
    let mut seen = String::new();
    for path in [
        "/x/a",
        "/x/moved",
        "/x/%zz",
        "/dead/a",
        "/nobody/a",
        "/busy/busy",
        "/busy/a",
        "/x/down",
        "/x/down",
        "/x/a",
    ] {
        let response = get_with(gateway.address, path, &[("x-tollgate-timeout", "30s")]).await;
        seen.push_str(&response.everything());
    }
    seen.push_str(&raw(gateway.address, "BROKEN\r\n\r\n").await);
    let sent: Vec<String> = upstream
        .requests()
        .iter()
        .map(|received| received.target.clone())
        .collect();
    assert!(
        sent.iter().all(|target| target.contains(CANARY)),
        "{sent:?}"
    );
    let log = log::captured();
    assert!(
        log.contains("event=\"rejected\"") && log.contains("state_transition"),
        "a test must be able to fail: {log}"
    );
    assert!(!seen.contains(CANARY), "{seen}");
    assert!(!log.contains(CANARY), "{log}");
    assert!(!format!("{:?}", gateway.registry).contains(CANARY));
}
