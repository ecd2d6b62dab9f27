//! M6: logins and their tokens.

use tollgate::providers::Options;
use tollgate_core::time::Span;

use crate::cache::NO_RETRY;
use crate::client::{
    Session, get, get_until_late, get_with, post, request, wait_until, within_timeout,
};
use crate::issuer::{Issuer, PASSWORD, bearer, clock, minutes};
use crate::test_gateway::{TestGateway, file, providers};
use crate::upstream::{Upstream, ok, reply};

/// M6, M5: the unmodified preset logs in and sends its token with every call.
#[tokio::test]
async fn m6_the_tvdb_preset_logs_in_and_calls_with_the_token() {
    let issuer = Issuer::start().await;
    let gateway = TestGateway::start(&[issuer.tvdb("auth: { also: { pin: \"1234\" } }")]).await;
    // Three different paths: the preset caches responses for a day.
    for series in ["/x/v4/series/1", "/x/v4/series/2", "/x/v4/series/3"] {
        let response = get_with(gateway.address, series, &[("authorization", "mine")]).await;
        assert_eq!((response.status, response.body.as_str()), (200, "fine"));
        assert_eq!(response.header("x-tollgate-attempts"), "1");
    }
    let posted = issuer.login_requests();
    assert_eq!(posted.len(), 1);
    assert_eq!(posted[0].target, "/v4/login");
    assert_eq!(posted[0].headers["content-type"], "application/json");
    let body: serde_json::Value = serde_json::from_slice(&posted[0].body).unwrap();
    assert_eq!(body, serde_json::json!({"apikey": PASSWORD, "pin": "1234"}));
    assert_eq!(issuer.tokens(), ["token-1"; 3]);
}

/// M6: calls that come together share one login.
#[tokio::test]
async fn m6_concurrent_calls_share_one_login() {
    let issuer = Issuer::start().await;
    issuer.hold_logins();
    let gateway = TestGateway::start(&[issuer.tvdb("limits: [1000/1s]")]).await;
    let calls: Vec<_> = (0..20)
        .map(|n| tokio::spawn(async move { get(gateway.address, &format!("/x/v4/{n}")).await }))
        .collect();
    wait_until(|| issuer.logins() == 1).await;
    issuer.release_logins();
    for call in calls {
        assert_eq!(within_timeout(call).await.unwrap().status, 200);
    }
    assert_eq!(issuer.logins(), 1);
}

/// M6: a token is renewed five minutes before it expires, while the old one is in use.
#[tokio::test]
async fn m6_a_token_is_renewed_before_it_expires_while_it_is_in_use() {
    let issuer = Issuer::start().await;
    let (clock, at) = clock();
    let gateway = TestGateway::start_on_clock(at, &[issuer.tvdb("")], Options::default()).await;
    get(gateway.address, "/x/v4/a").await;
    clock.pass(minutes(24 * 60 - 6));
    get(gateway.address, "/x/v4/b").await;
    assert_eq!(issuer.logins(), 1);
    issuer.hold_logins();
    clock.pass(minutes(1));
    get(gateway.address, "/x/v4/c").await;
    wait_until(|| issuer.logins() == 2).await;
    get(gateway.address, "/x/v4/d").await;
    assert_eq!(issuer.tokens(), ["token-1"; 4], "the old one serves");
    issuer.release_logins();
    // Until the new token is stored, calls are sent with the old one; each has a URL of its own,
    // because responses are cached.
    let mut number = 0;
    while issuer.tokens().last().unwrap() != "token-2" {
        get(gateway.address, &format!("/x/v4/e{number}")).await;
        number += 1;
    }
    assert_eq!(issuer.logins(), 2);
}

/// M6: an expired token is not used; the call waits for the next.
#[tokio::test]
async fn m6_an_expired_token_is_replaced_before_the_call() {
    let issuer = Issuer::start().await;
    let (clock, at) = clock();
    let gateway = TestGateway::start_on_clock(at, &[issuer.tvdb("")], Options::default()).await;
    get(gateway.address, "/x/v4/a").await;
    clock.pass(minutes(24 * 60));
    assert_eq!(get(gateway.address, "/x/v4/b").await.status, 200);
    assert_eq!(issuer.tokens(), ["token-1", "token-2"]);
}

/// M6: a 401 renews the token once, and the call is retried with it, whatever its method.
#[tokio::test]
async fn m6_a_401_renews_the_token_and_the_call_is_retried() {
    let issuer = Issuer::start().await;
    let gateway = TestGateway::start(&[issuer.tvdb("")]).await;
    get(gateway.address, "/x/v4/a").await;
    issuer.revoke();
    let response = get(gateway.address, "/x/v4/b").await;
    assert_eq!(response.status, 200);
    assert_eq!(response.header("x-tollgate-attempts"), "2");
    issuer.revoke();
    let response = post(gateway.address, "/x/v4/c", &[], "a body").await;
    assert_eq!(response.status, 200);
    let bodies = issuer.login_requests();
    let bodies = bodies.iter().filter(|received| received.target == "/v4/c");
    assert_eq!(
        bodies
            .map(|received| &received.body[..])
            .collect::<Vec<_>>(),
        [b"a body"; 2]
    );
    assert_eq!(issuer.tokens(), ["token-1", "token-1", "token-2"]);
}

/// M6: a burst of 401s on one token causes one login.
#[tokio::test]
async fn m6_a_burst_of_401s_causes_one_login() {
    let issuer = Issuer::start().await;
    let gateway = TestGateway::start(&[issuer.tvdb("limits: [1000/1s]")]).await;
    get(gateway.address, "/x/v4/a").await;
    issuer.revoke();
    let calls: Vec<_> = (0..20)
        .map(|n| tokio::spawn(async move { get(gateway.address, &format!("/x/v4/{n}")).await }))
        .collect();
    for call in calls {
        assert_eq!(within_timeout(call).await.unwrap().status, 200);
    }
    assert_eq!(issuer.logins(), 2);
}

/// M6: a second 401 is forwarded to the caller, and a provider that rejects every token does not
/// get a login for every call.
#[tokio::test]
async fn m6_a_second_401_is_forwarded() {
    let issuer = Issuer::start().await;
    let (_clock, at) = clock();
    let gateway = TestGateway::start_on_clock(at, &[issuer.tvdb("")], Options::default()).await;
    issuer.reject_all();
    let response = get(gateway.address, "/x/v4/a").await;
    assert_eq!(response.status, 401);
    assert_eq!(response.header("x-tollgate-source"), "upstream");
    assert_eq!(response.header("x-tollgate-attempts"), "2");
    assert_eq!(issuer.tokens(), ["token-1", "token-2"]);
    for _ in 0..5 {
        assert_eq!(get(gateway.address, "/x/v4/a").await.status, 401);
    }
    assert_eq!(issuer.logins(), 2, "the new token did not help");
}

/// M6: a login costs a permit at high priority: it may use the reserve.
#[tokio::test]
async fn m6_a_login_costs_a_permit_at_high_priority() {
    let issuer = Issuer::start().await;
    let limits = "limits: [{limit: 2, period: 1h, reserve: 1}]\nauth: {replace: false}";
    let gateway = TestGateway::start(&[issuer.tvdb(limits)]).await;
    let own = ("authorization", "Bearer token-0");
    assert_eq!(
        get_with(gateway.address, "/x/v4/a", &[own]).await.status,
        200
    );
    let soon = ("x-tollgate-timeout", "5s");
    let rejected = get_with(gateway.address, "/x/v4/b", &[soon]).await;
    assert_eq!((rejected.status, issuer.logins()), (429, 1));
    let high = ("x-tollgate-priority", "high");
    let rejected = get_with(gateway.address, "/x/v4/b", &[soon, high]).await;
    assert_eq!(rejected.status, 429, "the login was counted");
}

/// M6: the caller that started a login may disconnect; waiting calls still get the token.
#[tokio::test]
async fn m6_a_caller_that_leaves_does_not_end_the_login() {
    let issuer = Issuer::start().await;
    issuer.hold_logins();
    let gateway = TestGateway::start(&[issuer.tvdb("")]).await;
    let leaver = tokio::spawn(async move { get(gateway.address, "/x/v4/a").await });
    wait_until(|| issuer.logins() == 1).await;
    leaver.abort();
    assert!(leaver.await.unwrap_err().is_cancelled());
    let late = get_until_late(gateway.address, "/x/v4/b").await;
    assert_eq!(late.status, 504, "{}", late.body);
    let waiter = tokio::spawn(async move { get(gateway.address, "/x/v4/c").await });
    issuer.release_logins();
    assert_eq!(within_timeout(waiter).await.unwrap().status, 200);
    assert_eq!(issuer.logins(), 1);
}

/// M6: rejected credentials are reported with provider and hint, after one login, not one per call.
#[tokio::test]
async fn m6_rejected_credentials_are_reported_once_and_never_shown() {
    let issuer = Issuer::start().await;
    let wrong = issuer.tvdb("").replace(PASSWORD, "canary-wrong-1f");
    let (clock, at) = clock();
    let gateway = TestGateway::start_on_clock(at, &[wrong], Options::default()).await;
    for _ in 0..5 {
        let response = get(gateway.address, "/x/v4/a").await;
        assert_eq!(
            (response.status, response.json()["provider"].as_str()),
            (502, Some("x"))
        );
        assert_eq!(
            response.json()["message"],
            "No token for `x`: its login rejected the credentials (status 401)"
        );
        assert!(
            response.json()["hint"]
                .as_str()
                .unwrap()
                .contains("api_key")
        );
        assert!(!response.header("retry-after").is_empty());
        assert!(
            !response.everything().contains("canary"),
            "{}",
            response.body
        );
    }
    assert_eq!(issuer.logins(), 1);
    clock.pass(Span::from_secs(14));
    get(gateway.address, "/x/v4/a").await;
    assert_eq!(issuer.logins(), 2, "once more after a pause");
    gateway
        .registry
        .replace(providers(&[issuer.tvdb("")]))
        .unwrap();
    assert_eq!(
        get(gateway.address, "/x/v4/a").await.status,
        200,
        "a reload fixes it"
    );
    assert!(!crate::log::captured().contains("canary-wrong-1f"));
}

/// M6: a failed login is not repeated at once by every call that needs it.
#[tokio::test]
async fn m6_a_failed_login_is_not_repeated_by_every_call() {
    let issuer = Issuer::start().await;
    issuer.fail_logins(503);
    let (clock, at) = clock();
    let gateway = TestGateway::start_on_clock(
        at,
        &[issuer.tvdb(&format!("health: off\n{NO_RETRY}"))],
        Options::default(),
    )
    .await;
    let soon = [("x-tollgate-timeout", "30s")];
    for _ in 0..10 {
        let response = get_with(gateway.address, "/x/v4/a", &soon).await;
        assert_eq!(response.status, 502, "{}", response.body);
        assert_eq!(
            response.json()["message"],
            "No token for `x`: its login failed (status 503)"
        );
        assert!(response.json()["retryIn"].as_u64().unwrap() >= 1_000);
    }
    assert_eq!(issuer.logins(), 1);
    issuer.fail_logins(0);
    clock.pass(Span::from_secs(2));
    assert_eq!(get(gateway.address, "/x/v4/a").await.status, 200);
}

#[tokio::test]
async fn a_login_response_without_a_token_is_reported() {
    let upstream = Upstream::start(|_, _| async { reply(200, &[], "{\"data\":{\"token\":7}}") });
    let upstream = upstream.await;
    let login = format!(
        "auth: {{login: {{url: \"http://{}/l\", body: {{a: b}}, token: data.token}}}}\nlimits: [100/1s]\n{NO_RETRY}",
        upstream.address
    );
    let gateway = TestGateway::start(&[file(upstream.address, &login)]).await;
    let response = get(gateway.address, "/x/a").await;
    assert_eq!(
        response.json()["message"],
        "No token for `x`: its login responded without a token"
    );
    assert!(
        response.json()["hint"]
            .as_str()
            .unwrap()
            .contains("auth.login.token")
    );
}

/// A reload keeps the token; a new credential logs in again.
#[tokio::test]
async fn m6_a_reload_keeps_the_token_of_the_same_credential() {
    let issuer = Issuer::start().await;
    let gateway = TestGateway::start(&[issuer.tvdb("")]).await;
    get(gateway.address, "/x/v4/a").await;
    gateway
        .registry
        .replace(providers(&[issuer.tvdb("limits: [40/10s]")]))
        .unwrap();
    get(gateway.address, "/x/v4/b").await;
    assert_eq!(issuer.logins(), 1);
    let pin = issuer.tvdb("auth: { also: { pin: \"9\" } }");
    gateway.registry.replace(providers(&[pin])).unwrap();
    get(gateway.address, "/x/v4/c").await;
    assert_eq!(issuer.tokens(), ["token-1", "token-1", "token-2"]);
}

/// R-F4: a login at another host gets its credentials, and no other tokens or keys.
#[tokio::test]
async fn a_login_at_another_host_gets_the_credentials_only() {
    let issuer = Issuer::start().await;
    let upstream = Upstream::start(|_, _| async { ok() }).await;
    let rest = format!(
        "api_key: {PASSWORD}\nheaders: {{x-key: secret-header, user-agent: mine/1}}\nauth: {{login: {{url: \"http://{}/a/login\", body: {{apikey: \"{{api_key}}\"}}, token: data.token}}}}\nlimits: [100/1s]",
        issuer.upstream.address
    );
    let gateway = TestGateway::start(&[file(upstream.address, &rest)]).await;
    let mine = ("authorization", "Bearer mine");
    assert_eq!(get_with(gateway.address, "/x/a", &[mine]).await.status, 200);
    let login = &issuer.login_requests()[0];
    assert_eq!(login.headers["user-agent"], "mine/1");
    assert!(!login.headers.contains_key("x-key") && !login.headers.contains_key("authorization"));
    let call = &upstream.requests()[0];
    assert_eq!((bearer(call).as_str(), upstream.count()), ("token-1", 1));
    assert_eq!(call.headers["x-key"], "secret-header");
}

/// R-F4: a token stays with its provider's own origin.
#[tokio::test]
async fn a_token_is_not_sent_to_another_port_or_without_tls() {
    let issuer = Issuer::start().await;
    let upstream = Upstream::start(|_, _| async { ok() }).await;
    let file = format!(
        "name: x\ndomain: localhost\nheaders: {{x-key: secret-header, user-agent: mine/1}}\nauth: {{login: {{url: \"http://{}/login\", body: {{apikey: {PASSWORD}}}, token: data.token}}}}\nlimits: [100/1s]\n",
        issuer.upstream.address
    );
    let options = Options {
        private: true,
        ..Options::default()
    };
    let gateway = TestGateway::start_with(&[file], options).await;
    let url = format!("/http://localhost:{}/a", upstream.address.port());
    assert_eq!(get(gateway.address, &url).await.status, 200);
    let received = &upstream.requests()[0];
    assert!(
        !received.headers.contains_key("authorization") && !received.headers.contains_key("x-key")
    );
    assert_eq!(received.headers["user-agent"], "mine/1");
    assert_eq!(issuer.logins(), 0);
}

/// Each key of a pool has its own token; one whose login is rejected is suspended.
#[tokio::test]
async fn a_pool_of_logins_uses_the_key_that_is_accepted() {
    let issuer = Issuer::start().await;
    let pool = issuer.tvdb("").replace(
        &format!("api_key: {PASSWORD}"),
        &format!("api_keys: [wrong, {PASSWORD}]"),
    );
    let gateway = TestGateway::start(&[pool]).await;
    for _ in 0..6 {
        assert_eq!(get(gateway.address, "/x/v4/a").await.status, 200);
    }
    assert_eq!(issuer.logins(), 2);
}

/// A body that is still being sent cannot be sent again: the 401 is forwarded, and the next call
/// has a new token.
#[tokio::test]
async fn a_consumed_request_body_is_not_sent_again() {
    let issuer = Issuer::start().await;
    let streamed = "upload: {spool: 256KiB}\n";
    let gateway = TestGateway::start(&[issuer.tvdb(streamed)]).await;
    get(gateway.address, "/x/v4/a").await;
    issuer.revoke();
    let large = "x".repeat(300 * 1024);
    let mut session = Session::open(gateway.address).await;
    let response = session.send(request("POST", "/x/v4/b", &[], &large)).await;
    assert_eq!(response.status(), 401);
    assert_eq!(get(gateway.address, "/x/v4/c").await.status, 200);
    assert_eq!(issuer.logins(), 2);
}
