//! Methods that a provider's file allows, and those that it does not.

use crate::client::{Session, get_with, raw, read_response, request};
use crate::test_gateway::{TestGateway, file};
use crate::upstream::{Upstream, ok, reply};

async fn status_and_allow(gateway: &TestGateway, method: &str) -> (u16, String) {
    let request = request(method, "/x/a", &[], "");
    let response = Session::open(gateway.address).await.send(request).await;
    let response = read_response(response).await;
    (response.status, response.header("allow").to_owned())
}

/// TRACE repeats the request with its key, and nothing follows a CONNECT that could be governed.
#[tokio::test]
async fn trace_and_connect_are_405_unless_the_file_allows_them() {
    let upstream = Upstream::start(|_, _| async { ok() }).await;
    let gateway = TestGateway::start(&[file(upstream.address, "limits: [9/1s]")]).await;
    let allowed = "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS";
    let refused = (405, allowed.to_owned());
    assert_eq!(status_and_allow(&gateway, "TRACE").await, refused);
    let connect = "CONNECT api.example.org:443 HTTP/1.1\r\nHost: api.example.org:443\r\n\r\n";
    let answer = raw(gateway.address, connect).await;
    assert!(answer.starts_with("HTTP/1.1 405"), "{answer}");
    assert!(
        answer.contains(&format!("allow: {allowed}\r\n")),
        "{answer}"
    );
    assert_eq!(upstream.count(), 0);
    for other in ["OPTIONS", "PROPFIND"] {
        assert_eq!(status_and_allow(&gateway, other).await.0, 200, "{other}");
    }
    let tracing = file(upstream.address, "limits: [9/1s]\nmethods: [get, TRACE]");
    let gateway = TestGateway::start(&[tracing]).await;
    assert_eq!(status_and_allow(&gateway, "TRACE").await.0, 200);
    let refused = (405, "GET, TRACE".to_owned());
    assert_eq!(status_and_allow(&gateway, "POST").await, refused);
}

/// A cached response without a tag was sent again, although the client has some version of it.
#[tokio::test]
async fn if_none_match_of_any_on_a_hit_is_304() {
    for headers in [&[][..], &[("etag", "\"v1\"")]] {
        let upstream =
            Upstream::start(move |_, _| async move { reply(200, headers, "fine") }).await;
        let rest = "limits: [9/1s]\ncache: {ttl: 1h}";
        let gateway = TestGateway::start(&[file(upstream.address, rest)]).await;
        assert_eq!(get_with(gateway.address, "/x/a", &[]).await.status, 200);
        let any = get_with(gateway.address, "/x/a", &[("if-none-match", "*")]).await;
        assert_eq!((any.status, any.body.as_str()), (304, ""), "{headers:?}");
        assert_eq!(upstream.count(), 1);
    }
}
