//! Cookies of several providers behind one address.

use std::net::SocketAddr;

use crate::client::{get, get_with};
use crate::test_gateway::TestGateway;
use crate::upstream::{Upstream, reply};

/// An upstream that sets a cookie, and the cookies that it has received.
async fn upstream() -> Upstream {
    let cookie = "sid=secret; Path=/v1/login; Domain=api.example.org; Secure; HttpOnly";
    Upstream::start(move |_, _| async move { reply(200, &[("set-cookie", cookie)], "fine") }).await
}

fn provider(name: &str, upstream: SocketAddr, rest: &str) -> String {
    format!("name: {name}\nupstream: http://{upstream}/v1\nlimits: [99/1s]\n{rest}\n")
}

fn last_cookies(upstream: &Upstream) -> String {
    let received = upstream.requests();
    let cookies = received.last().unwrap().headers.get_all("cookie");
    let cookies = cookies.iter().map(|line| line.to_str().unwrap().to_owned());
    cookies.collect::<Vec<_>>().join(" | ")
}

/// A client keeps cookies by host and path. Without their own names and paths, the session of one
/// provider would be sent to every other one, and to every program on this host.
#[tokio::test]
async fn a_cookie_comes_back_to_the_provider_that_set_it_only() {
    let (one, other) = (upstream().await, upstream().await);
    let files = [
        provider("x", one.address, ""),
        provider("y", other.address, ""),
    ];
    let gateway = TestGateway::start(&files).await;
    let response = get(gateway.address, "/x/a").await;
    let set = "tollgate~x~sid=secret; Path=/x/login; HttpOnly";
    assert_eq!(response.header("set-cookie"), set);
    let jar = [("cookie", "tollgate~x~sid=secret; tollgate~y~a=b; own=1")];
    get_with(gateway.address, "/x/a", &jar).await;
    assert_eq!(last_cookies(&one), "sid=secret; own=1");
    get_with(gateway.address, "/y/a", &jar).await;
    assert_eq!(last_cookies(&other), "a=b; own=1");
    let foreign = [("cookie", "tollgate~y~a=b")];
    get_with(gateway.address, "/x/a", &foreign).await;
    assert_eq!(last_cookies(&one), "");
}

#[tokio::test]
async fn cookies_are_passed_or_dropped_where_the_file_says_so() {
    let (one, other) = (upstream().await, upstream().await);
    let files = [
        provider("x", one.address, "cookies: pass"),
        provider("y", other.address, "cookies: drop"),
    ];
    let gateway = TestGateway::start(&files).await;
    let jar = [("cookie", "sid=secret; tollgate~y~a=b")];
    let passed = get_with(gateway.address, "/x/a", &jar).await;
    let set = "sid=secret; Path=/v1/login; Domain=api.example.org; Secure; HttpOnly";
    assert_eq!(passed.header("set-cookie"), set);
    assert_eq!(last_cookies(&one), "sid=secret");
    let dropped = get_with(gateway.address, "/y/a", &jar).await;
    assert_eq!(dropped.header("set-cookie"), "");
    assert_eq!(last_cookies(&other), "");
}

/// A provider with `cookies: pass` received the sessions of all others, and could replace them.
#[tokio::test]
async fn a_provider_with_passed_cookies_neither_sees_nor_sets_those_of_others() {
    let own = "own=1; Path=/";
    let foreign = ["tollgate~y~sid=evil", "=tollgate~y~sid=evil; Path=/", own];
    let upstream = Upstream::start(move |_, _| async move {
        let lines = foreign.map(|cookie| ("set-cookie", cookie));
        reply(200, &lines, "fine")
    })
    .await;
    let gateway = TestGateway::start(&[provider("x", upstream.address, "cookies: pass")]).await;
    let jar = [("cookie", "a=1; tollgate~y~sid=secret;b=2; tollgate~x~c=3")];
    let response = get_with(gateway.address, "/x/a", &jar).await;
    assert_eq!(last_cookies(&upstream), "a=1; b=2");
    assert_eq!(response.header("set-cookie"), own);
    let plain = [("cookie", "a=1;b=2")];
    get_with(gateway.address, "/x/a", &plain).await;
    assert_eq!(last_cookies(&upstream), "a=1;b=2", "unchanged");
}
