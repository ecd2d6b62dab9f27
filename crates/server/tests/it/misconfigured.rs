//! A value of the configuration that cannot be sent is the operator's fault, not the caller's.

use tollgate_config::Secret;
use tollgate_config::provider::{AuthStyle, Provider};

use crate::client::{get, get_with};
use crate::issuer::Issuer;
use crate::log;
use crate::test_gateway::{TestGateway, file, providers};
use crate::upstream::{Upstream, ok, reply};

/// No header can hold the line break.
const BROKEN: &str = "canary-71c0\nx-other: 1";

fn broken() -> Secret {
    Secret::new(BROKEN.to_owned())
}

/// A provider as a program may build it: the checks of a file would reject it.
fn built(upstream: &Upstream, rest: &str, change: impl FnOnce(&mut Provider)) -> Provider {
    let mut provider = providers(&[file(upstream.address, rest)]).remove(0);
    change(&mut provider);
    provider
}

/// The call is rejected with 500, names provider and setting, and nothing is sent or charged.
async fn assert_misconfigured(upstream: &Upstream, provider: Provider, path: &str, setting: &str) {
    let stand = TestGateway::start_providers(vec![provider]).await;
    for _ in 0..2 {
        let response = get(stand.address, path).await;
        assert_eq!(response.status, 500, "{setting}: {}", response.body);
        let json = response.json();
        assert_eq!(json["error"], "Misconfigured");
        assert_eq!(
            (&json["provider"], &json["setting"]),
            (&"x".into(), &setting.into())
        );
        let message = json["message"].as_str().unwrap();
        assert!(
            message.contains(setting) && message.contains("`x`"),
            "{message}"
        );
        assert!(json["hint"].as_str().unwrap().contains(setting), "{json}");
        assert!(!json["id"].as_str().unwrap().is_empty());
        assert_eq!(response.header("x-tollgate-attempts"), "0");
        assert_eq!(response.header("x-tollgate-source"), "tollgate");
        assert!(!response.everything().contains("canary-71c0"), "{json}");
    }
    assert_eq!(upstream.requests().len(), 0, "nothing is sent");
    assert!(!log::captured().contains("canary-71c0"));
}

async fn echo() -> Upstream {
    Upstream::start(|_, _| async { ok() }).await
}

#[tokio::test]
async fn a_key_that_no_header_can_hold_is_our_fault() {
    for auth in ["{header: X-Key}", "{bearer: true}"] {
        let upstream = echo().await;
        let rest = format!("api_key: k\nauth: {auth}\nlimits: [1/1h]");
        let provider = built(&upstream, &rest, |provider| provider.keys = vec![broken()]);
        assert_misconfigured(&upstream, provider, "/x/a", "api_key").await;
    }
}

/// Base64 and percent-encoding hold any character, so these are sent.
#[tokio::test]
async fn a_key_that_is_encoded_may_have_any_character() {
    for auth in ["{basic: true}", "{query: key}"] {
        let upstream = echo().await;
        let rest = format!("api_key: k\nauth: {auth}\nlimits: [9/1h]");
        let provider = built(&upstream, &rest, |provider| provider.keys = vec![broken()]);
        let stand = TestGateway::start_providers(vec![provider]).await;
        assert_eq!(get(stand.address, "/x/a").await.status, 200, "{auth}");
    }
}

/// Only the broken key of a pool is named; the others serve.
#[tokio::test]
async fn a_broken_key_of_a_pool_is_named_by_its_index() {
    let upstream = echo().await;
    let rest = "api_keys: [k1, k2]\nauth: {header: x-key}\nlimits: [9/1h]";
    let provider = built(&upstream, rest, |provider| provider.keys[1] = broken());
    let stand = TestGateway::start_providers(vec![provider]).await;
    let mut seen = Vec::new();
    for _ in 0..4 {
        let response = get(stand.address, "/x/a").await;
        seen.push(response.status);
        if response.status == 500 {
            assert_eq!(response.json()["setting"], "api_keys[1]");
        }
    }
    seen.sort_unstable();
    assert_eq!(seen, [200, 200, 500, 500]);
    assert_eq!(upstream.requests().len(), 2);
}

#[tokio::test]
async fn a_key_too_long_for_a_query_is_our_fault() {
    let upstream = echo().await;
    let rest = "api_key: k\nauth: {query: key}\nlimits: [9/1h]";
    let long = Secret::new("k".repeat(70_000));
    let provider = built(&upstream, rest, |provider| provider.keys = vec![long]);
    assert_misconfigured(&upstream, provider, "/x/a", "api_key").await;
}

#[tokio::test]
async fn a_companion_key_that_no_header_can_hold_is_our_fault() {
    let upstream = echo().await;
    let rest = "api_key: k\nauth: {header: x-key, also: {x-secret: s}}\nlimits: [9/1h]";
    let provider = built(&upstream, rest, |provider| {
        provider.auth.also[0].1 = broken();
    });
    assert_misconfigured(&upstream, provider, "/x/a", "auth.also.x-secret").await;
}

/// A login that needs a key and has none. The call was sent without any credential, cost a permit and got the
/// provider's 401, as if its caller had made the mistake. Whoever logs in itself may still do so.
#[tokio::test]
async fn a_login_without_its_key_is_our_fault() {
    let upstream = echo().await;
    let rest = format!(
        "api_key: k\nauth: {{login: {{url: \"http://{}/login\", body: {{apikey: \"{{api_key}}\"}}, \
         token: data.token}}}}\nlimits: [1/1h]",
        upstream.address
    );
    let provider = built(&upstream, &rest, |provider| provider.keys.clear());
    assert_misconfigured(&upstream, provider.clone(), "/x/a", "api_key").await;
    let stand = TestGateway::start_providers(vec![provider]).await;
    assert_eq!(get(stand.address, "/x/a").await.status, 500);
    let own = get(stand.address, "/x/login").await;
    assert_eq!(own.status, 200, "no permit was taken: {}", own.body);
}

/// A login that needs a key and has none: the caller may have a token of its own, so its call passes
/// as it is, and no login is attempted.
#[tokio::test]
async fn without_an_account_the_callers_own_token_passes() {
    let upstream = echo().await;
    let rest = format!(
        "api_key: k\nauth: {{login: {{url: \"http://{}/login\", body: {{apikey: \"{{api_key}}\"}}, \
         token: data.token}}}}\nlimits: [9/1h]",
        upstream.address
    );
    let provider = built(&upstream, &rest, |provider| provider.keys.clear());
    let stand = TestGateway::start_providers(vec![provider]).await;
    let own = [("authorization", "Bearer of-the-caller")];
    assert_eq!(get_with(stand.address, "/x/a", &own).await.status, 200);
    let requests = upstream.requests();
    assert_eq!(requests.len(), 1, "no login");
    assert_eq!(requests[0].headers["authorization"], "Bearer of-the-caller");
}

#[tokio::test]
async fn a_header_name_that_does_not_exist_is_our_fault() {
    let upstream = echo().await;
    let rest = "api_key: k\nauth: {header: x-key}\nlimits: [9/1h]";
    let provider = built(&upstream, rest, |provider| {
        provider.auth.style = AuthStyle::Header {
            name: "x key".to_owned(),
            prefix: String::new(),
        };
    });
    assert_misconfigured(&upstream, provider, "/x/a", "auth.header").await;
}

/// It was left out without a word, so the provider rejected calls for a reason nobody saw.
#[tokio::test]
async fn a_configured_header_that_cannot_be_sent_is_our_fault() {
    let upstream = echo().await;
    let rest = "headers: {x-version: v1}\nlimits: [9/1h]";
    let change = |provider: &mut Provider| provider.headers[0].1 = broken();
    let provider = built(&upstream, rest, change);
    assert_misconfigured(&upstream, provider, "/x/a", "headers.x-version").await;

    let stand = TestGateway::start_providers(vec![built(&upstream, rest, change)]).await;
    let own = get_with(stand.address, "/x/a", &[("x-version", "mine")]).await;
    assert_eq!(own.status, 200, "the caller's own is sent in its place");
}

/// A login cannot be sent to an address that is no request target.
#[tokio::test]
async fn a_login_address_that_cannot_be_sent_is_our_fault() {
    let issuer = Issuer::start().await;
    let mut provider = providers(&[issuer.tvdb("")]).remove(0);
    let AuthStyle::Login(login) = &mut provider.auth.style else {
        panic!("the preset logs in");
    };
    login.url.base = "/v4/lo gin".to_owned();
    let stand = TestGateway::start_providers(vec![provider]).await;
    let response = get(stand.address, "/x/v4/a").await;
    assert_eq!(response.status, 500, "{}", response.body);
    let json = response.json();
    assert_eq!(
        (&json["error"], &json["provider"], &json["setting"]),
        (
            &"Misconfigured".into(),
            &"x".into(),
            &"auth.login.url".into()
        )
    );
    assert_eq!(issuer.logins(), 0);
}

/// The provider judges a key; Tollgate only passes that on.
#[tokio::test]
async fn a_providers_401_passes_to_the_caller() {
    let upstream = Upstream::start(|_, _| async { reply(401, &[], "wrong key") }).await;
    let rest = "api_key: k\nauth: {header: x-key}\nlimits: [9/1h]";
    let stand = TestGateway::start(&[file(upstream.address, rest)]).await;
    let response = get(stand.address, "/x/a").await;
    assert_eq!(
        (response.status, response.body.as_str()),
        (401, "wrong key")
    );
    assert_eq!(response.header("x-tollgate-source"), "upstream");
}
