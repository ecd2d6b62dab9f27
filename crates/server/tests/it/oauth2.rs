//! M6: tokens of OAuth 2 (RFC 6749), as forms.

use std::sync::Arc;

use parking_lot::Mutex;
use tollgate::providers::Options;
use tollgate_core::time::Span;

use crate::client::get;
use crate::issuer::{bearer, clock};
use crate::test_gateway::{TestGateway, file};
use crate::upstream::{ReceivedRequest, Upstream, ok, reply};

/// `id:s/1` as RFC 6749 wants it: each part form-encoded, then base64.
const BASIC: &str = "Basic aWQ6cyUyRjE=";

/// What the token endpoint was sent.
#[derive(Clone, Default)]
struct Forms(Arc<Mutex<Vec<String>>>);

impl Forms {
    fn all(&self) -> Vec<String> {
        self.0.lock().clone()
    }
}

/// A token endpoint at `/token/`, and an API that accepts every token.
async fn server(accepts_basic: bool, response: &'static str) -> (Upstream, Forms) {
    let forms = Forms::default();
    let kept = forms.clone();
    let upstream = Upstream::start(move |_, received: ReceivedRequest| {
        let forms = kept.clone();
        async move {
            if received.target != "/token/" {
                return ok();
            }
            let is_basic = received
                .headers
                .get("authorization")
                .is_some_and(|is| is == BASIC);
            assert_eq!(
                received.headers["content-type"],
                "application/x-www-form-urlencoded"
            );
            let form = String::from_utf8(received.body.to_vec()).unwrap();
            let number = {
                let mut all = forms.0.lock();
                all.push(form);
                all.len()
            };
            if is_basic != accepts_basic {
                return reply(401, &[], "{\"error\":\"invalid_client\"}");
            }
            reply(200, &[], &response.replace('N', &number.to_string()))
        }
    })
    .await;
    (upstream, forms)
}

fn provider(upstream: &Upstream, more: &str) -> String {
    let rest = format!(
        "auth: {{oauth2: {{token_url: \"http://{}/token/\", client_id: id, client_secret: s/1, {more}}}}}\nlimits: [100/1s]",
        upstream.address
    );
    file(upstream.address, &rest)
}

fn tokens(upstream: &Upstream) -> Vec<String> {
    let calls = upstream.requests().into_iter();
    let calls = calls.filter(|received| received.target == "/a");
    calls.map(|received| bearer(&received)).collect()
}

/// M6: client credentials, sent as `Authorization: Basic`, with a scope.
#[tokio::test]
async fn m6_client_credentials_give_a_token() {
    let (upstream, forms) = server(true, "{\"access_token\":\"tN\",\"expires_in\":3600}").await;
    let gateway = TestGateway::start(&[provider(&upstream, "scope: a b")]).await;
    assert_eq!(get(gateway.address, "/x/a").await.status, 200);
    assert_eq!(get(gateway.address, "/x/a").await.status, 200);
    assert_eq!(tokens(&upstream), ["t1", "t1"]);
    assert_eq!(forms.all(), ["grant_type=client_credentials&scope=a%20b"]);
}

/// M6: if `Basic` is rejected, id and secret are sent in the form, from then on.
#[tokio::test]
async fn m6_id_and_secret_are_sent_in_the_form_if_basic_is_rejected() {
    let (upstream, forms) = server(false, "{\"access_token\":\"tN\",\"expires_in\":\"60\"}").await;
    let (clock, at) = clock();
    let gateway =
        TestGateway::start_on_clock(at, &[provider(&upstream, "")], Options::default()).await;
    get(gateway.address, "/x/a").await;
    clock.pass(Span::from_secs(60));
    get(gateway.address, "/x/a").await;
    assert_eq!(tokens(&upstream), ["t2", "t3"]);
    let in_form = "grant_type=client_credentials&client_id=id&client_secret=s%2F1";
    assert_eq!(
        forms.all(),
        ["grant_type=client_credentials", in_form, in_form]
    );
}

/// M6: a refresh token gives access tokens, and a rotated refresh token replaces it.
#[tokio::test]
async fn m6_a_rotated_refresh_token_is_used() {
    let response = "{\"access_token\":\"tN\",\"expires_in\":60,\"refresh_token\":\"rN\"}";
    let (upstream, forms) = server(true, response).await;
    let (clock, at) = clock();
    let gateway = TestGateway::start_on_clock(
        at,
        &[provider(&upstream, "refresh_token: r0")],
        Options::default(),
    )
    .await;
    for _ in 0..3 {
        assert_eq!(get(gateway.address, "/x/a").await.status, 200);
        clock.pass(Span::from_secs(60));
    }
    assert_eq!(
        forms.all(),
        [
            "grant_type=refresh_token&refresh_token=r0",
            "grant_type=refresh_token&refresh_token=r1",
            "grant_type=refresh_token&refresh_token=r2"
        ]
    );
    assert_eq!(tokens(&upstream), ["t1", "t2", "t3"]);
}

/// M6: a token without expiry lives for an hour.
#[tokio::test]
async fn m6_a_token_without_expiry_lives_for_an_hour() {
    let (upstream, forms) = server(true, "{\"access_token\":\"tN\"}").await;
    let (clock, at) = clock();
    let gateway =
        TestGateway::start_on_clock(at, &[provider(&upstream, "")], Options::default()).await;
    for pass in [0, 54 * 60, 6 * 60] {
        clock.pass(Span::from_secs(pass));
        get(gateway.address, "/x/a").await;
    }
    assert_eq!(
        (tokens(&upstream), forms.all().len()),
        (vec!["t1".to_owned(), "t1".to_owned(), "t2".to_owned()], 2)
    );
}

/// Rejected in both ways: the error names the provider, and neither id nor secret.
#[tokio::test]
async fn m6_rejected_client_credentials_are_reported() {
    let refuses = Upstream::start(|_, received| async move {
        let body = String::from_utf8_lossy(&received.body).into_owned();
        reply(
            400,
            &[],
            &format!("{{\"error\":\"invalid_client\",\"you_sent\":\"{body}\"}}"),
        )
    });
    let upstream = refuses.await;
    let secret = provider(&upstream, "").replace("s/1", "canary-secret-0c");
    let gateway = TestGateway::start(&[secret]).await;
    let response = get(gateway.address, "/x/a").await;
    assert_eq!((response.status, upstream.count()), (502, 2));
    assert!(
        response.body.contains("rejected the credentials"),
        "{}",
        response.body
    );
    let reported = response.everything() + &crate::log::captured();
    assert!(!reported.contains("canary-secret-0c"));
}
