//! Loops and private hosts: calls that return, base paths of upstreams, links, own host names.

use std::net::SocketAddr;

use crate::client::get;
use crate::test_gateway::{TestGateway, file, providers};
use crate::upstream::{Upstream, ok, reply};

/// A provider `x` at the gateway's own `x`.
fn pointing_to(gateway: SocketAddr) -> String {
    let once = "limits: [100/1s]\nretry: {retries: {high: 0, normal: 0, low: 0}}";
    format!("name: x\nupstream: http://{gateway}/x\n{once}\n")
}

/// Two gateways that forward to each other detect the loop at the first return.
#[tokio::test]
async fn two_gateways_in_a_loop_are_508() {
    let upstream = Upstream::start(|_, _| async { ok() }).await;
    let one = TestGateway::start(&[file(upstream.address, "limits: [100/1s]")]).await;
    let two = TestGateway::start(&[pointing_to(one.address)]).await;
    // In a row they are none of each other's business.
    assert_eq!(get(two.address, "/x/a").await.status, 200);
    let received = &upstream.requests()[0];
    assert_eq!(received.headers.get_all("via").iter().count(), 2);
    one.registry
        .replace(providers(&[pointing_to(two.address)]))
        .unwrap();
    let response = get(one.address, "/x/b").await;
    let json = response.json();
    assert_eq!(
        (response.status, json["error"].as_str()),
        (508, Some("LoopDetected"))
    );
    let used = async |test_gateway: &TestGateway| {
        let look = test_gateway.registry.named("x").unwrap().limits(None).await;
        100 - look[0].view.unwrap().remaining
    };
    assert!(
        used(&one).await <= 2 && used(&two).await <= 2,
        "it goes round once"
    );
    assert_eq!(upstream.count(), 1);
}

/// H4: a configured host may be private; any other may not.
#[tokio::test]
async fn h4_a_configured_domain_can_be_a_private_host() {
    let upstream = Upstream::start(|_, _| async { ok() }).await;
    let port = upstream.address.port();
    let text = "name: x\ndomain: localhost\nlimits: [100/1s]\n".to_owned();
    let test_gateway = TestGateway::start(&[text]).await;
    let named = get(test_gateway.address, &format!("/http://localhost:{port}/a")).await;
    assert_eq!(named.status, 200, "{named:?}");
    let unnamed = get(test_gateway.address, &format!("/http://127.0.0.1:{port}/a")).await;
    assert_eq!(
        (unnamed.status, unnamed.json()["error"].as_str()),
        (403, Some("DomainNotAllowed"))
    );
    assert_eq!(upstream.count(), 1);
}

/// H4: a URL on the upstream's own host already contains its base path; links get the host that the
/// caller used.
#[tokio::test]
async fn h4_a_url_below_the_upstream_base_path_does_not_repeat_it() {
    let upstream = Upstream::start(|_, received| async move {
        let own = format!("http://{}/v3/b", received.headers["host"].to_str().unwrap());
        reply(
            200,
            &[("location", &own), ("link", "</v3/c>; rel=next")],
            "",
        )
    })
    .await;
    let port = upstream.address.port();
    let text = format!(
        "name: x\ndomains: [localhost, api.example.org]\nupstream: http://localhost:{port}/v3\n\
         limits: [100/1s]\nentities: {{from: path}}\n"
    );
    let test_gateway = TestGateway::start(&[text]).await;
    for (url, target) in [
        (format!("/http://localhost:{port}/v3/a?p=1"), "/v3/a?p=1"),
        ("/https://api.example.org/a".to_owned(), "/v3/a"),
        // Another host has paths of its own.
        ("/https://api.example.org/v3/a".to_owned(), "/v3/v3/a"),
        ("/x/a".to_owned(), "/v3/a"),
    ] {
        assert_eq!(get(test_gateway.address, &url).await.status, 200, "{url}");
        let received = upstream.requests();
        assert_eq!(received.last().unwrap().target, target, "{url}");
    }
    let response = get(test_gateway.address, "/https://api.example.org/a").await;
    assert_eq!(
        (response.header("location"), response.header("link")),
        (
            "http://gateway/https://api.example.org/b",
            "</https://api.example.org/c>; rel=next"
        )
    );
}
