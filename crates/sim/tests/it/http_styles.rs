//! Each style of limited response has the status, headers and body of its model.
//!
//! Time is paused, so waits are exact: a window of 10 s that was filled 3 s ago opens in 7.

use serde_json::{Value, json};
use tollgate_sim::http::{Settings, SimProvider, Style};

use crate::client::{FullResponse, advance, get};

const RULE: &str = "sliding 2/10s";

/// The response to the first request, and the limited response to the third, 3 s later.
async fn success_and_limited(style: Style) -> (FullResponse, FullResponse) {
    let settings = Settings::with_rules(RULE).expect("a rule").style(style);
    let provider = SimProvider::start(settings).await.expect("a free port");
    let first = get(provider.address(), "/fixtures/1")
        .await
        .expect("a response");
    get(provider.address(), "/fixtures/2")
        .await
        .expect("a response");
    advance(3).await;
    let third = get(provider.address(), "/fixtures/3")
        .await
        .expect("a response");
    assert_eq!(first.status, 200, "{style}");
    assert_eq!(third.status, style.status(), "{style}");
    provider.stop().await;
    (first, third)
}

/// Names of all headers about limits.
fn limit_headers(response: &FullResponse) -> Vec<String> {
    let about_limits = |name: &str| name.contains("rate") || name.contains("retry");
    let names = response.headers.keys().map(|name| name.as_str().to_owned());
    names.filter(|name| about_limits(name)).collect()
}

fn number(response: &FullResponse, header: &str) -> u64 {
    response
        .header(header)
        .and_then(|text| text.parse().ok())
        .unwrap_or_else(|| panic!("{header}: {response:?}"))
}

/// Seconds between the response's own `Date` and an epoch in it.
fn ahead_of_date(response: &FullResponse, epoch_secs: u64) -> u64 {
    let date = httpdate::parse_http_date(response.header("date").expect("a Date")).expect("a date");
    let date = date
        .duration_since(std::time::UNIX_EPOCH)
        .expect("after 1970")
        .as_secs();
    epoch_secs - date
}

#[tokio::test(start_paused = true)]
async fn retry_after_sends_seconds_and_nothing_on_success() {
    let (ok, limited) = success_and_limited(Style::RetryAfter).await;
    assert_eq!(limited.status, 429);
    assert_eq!(limited.header("retry-after"), Some("7"));
    assert_eq!(limit_headers(&ok), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn retry_after_date_sends_an_http_date_that_is_not_early() {
    let (_, limited) = success_and_limited(Style::RetryAfterDate).await;
    let advertised = httpdate::parse_http_date(limited.header("retry-after").expect("a wait"));
    let advertised = advertised
        .expect("a date")
        .duration_since(std::time::UNIX_EPOCH)
        .expect("after 1970");
    // Date is rounded down, the wait is rounded up.
    assert!(
        (7..=8).contains(&ahead_of_date(&limited, advertised.as_secs())),
        "{limited:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn bare_sends_nothing_but_429() {
    let (_, limited) = success_and_limited(Style::Bare).await;
    assert_eq!((limited.status, limit_headers(&limited).len()), (429, 0));
}

#[tokio::test(start_paused = true)]
async fn x_ratelimit_sends_limit_remaining_and_an_epoch_on_every_response() {
    let (ok, limited) = success_and_limited(Style::XRateLimit).await;
    assert_eq!(
        (
            number(&ok, "x-ratelimit-limit"),
            number(&ok, "x-ratelimit-remaining")
        ),
        (2, 1)
    );
    assert_eq!(number(&limited, "x-ratelimit-remaining"), 0);
    let reset = number(&limited, "x-ratelimit-reset");
    assert!(
        (7..=8).contains(&ahead_of_date(&limited, reset)),
        "{limited:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn ietf_sends_policy_and_service_limit_as_structured_fields() {
    let (ok, limited) = success_and_limited(Style::Ietf).await;
    assert_eq!(ok.header("ratelimit-policy"), Some("\"rule0\";q=2;w=10"));
    assert_eq!(ok.header("ratelimit"), Some("\"rule0\";r=1;t=10"));
    assert_eq!(limited.header("ratelimit"), Some("\"rule0\";r=0;t=7"));
    assert_eq!(
        limited.header("content-type"),
        Some("application/problem+json")
    );
    assert_eq!(limited.json()["violated-policies"], json!(["rule0"]));
}

#[tokio::test(start_paused = true)]
async fn retry_after_ms_sends_milliseconds_and_seconds() {
    let (_, limited) = success_and_limited(Style::RetryAfterMs).await;
    // Paused time moves in whole milliseconds, so the first request may lie up to a few before the third.
    assert!(
        (6_990..=7_000).contains(&number(&limited, "retry-after-ms")),
        "{limited:?}"
    );
    assert_eq!(number(&limited, "retry-after"), 7);
}

#[tokio::test(start_paused = true)]
async fn sportmonks_reports_limits_only_in_the_body() {
    let (ok, limited) = success_and_limited(Style::SportMonks).await;
    let advertised = |resets: u64, remaining: u64| json!({"resets_in_seconds": resets, "remaining": remaining, "requested_entity": "fixtures"});
    assert_eq!(ok.json()["rate_limit"], advertised(10, 1));
    assert_eq!(limited.json()["rate_limit"], advertised(7, 0));
    assert_eq!(limited.json()["message"], "Too Many Attempts.");
    assert_eq!(limit_headers(&limited), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn discord_sends_a_fraction_in_the_body_and_its_bucket_in_headers() {
    let (ok, limited) = success_and_limited(Style::Discord).await;
    let wait = limited.json()["retry_after"].as_f64().expect("a number");
    assert!((6.99..=7.0).contains(&wait), "{wait}");
    assert_eq!(limited.json()["global"], Value::Bool(false));
    assert_eq!(limited.header("x-ratelimit-scope"), Some("user"));
    assert_eq!(number(&ok, "x-ratelimit-remaining"), 1);
    let after = ok.header("x-ratelimit-reset-after").expect("a time");
    assert!(
        after
            .parse::<f64>()
            .is_ok_and(|secs| (9.99..=10.0).contains(&secs)),
        "{after}"
    );
}

#[tokio::test(start_paused = true)]
async fn musicbrainz_returns_503_with_its_text_and_zone() {
    let (ok, limited) = success_and_limited(Style::MusicBrainz).await;
    assert_eq!(limited.status, 503);
    assert_eq!(
        (
            limited.header("retry-after"),
            limited.header("x-ratelimit-zone")
        ),
        (Some("7"), Some("ip"))
    );
    let text = limited.json()["error"].as_str().expect("a text").to_owned();
    assert!(
        text.starts_with("Your requests are exceeding the allowable rate limit."),
        "{text}"
    );
    assert_eq!(number(&ok, "x-ratelimit-remaining"), 1);
}

#[tokio::test(start_paused = true)]
async fn github_returns_403_with_nothing_remaining() {
    let (ok, limited) = success_and_limited(Style::GitHub).await;
    assert_eq!(limited.status, 403);
    assert_eq!(
        (
            number(&ok, "x-ratelimit-used"),
            number(&limited, "x-ratelimit-remaining")
        ),
        (1, 0)
    );
    let message = limited.json()["message"]
        .as_str()
        .expect("a text")
        .to_owned();
    assert!(message.starts_with("API rate limit exceeded"), "{message}");
}

#[tokio::test(start_paused = true)]
async fn alpha_vantage_returns_200_with_a_note_instead_of_data() {
    let (ok, limited) = success_and_limited(Style::AlphaVantage).await;
    assert_eq!(limited.status, 200);
    assert!(
        limited.json()["Note"]
            .as_str()
            .expect("a note")
            .contains("5 calls per minute")
    );
    assert!(ok.json().get("Note").is_none() && limited.json().get("path").is_none());
}

#[tokio::test(start_paused = true)]
async fn omdb_returns_401_with_limit_reached() {
    let (_, limited) = success_and_limited(Style::Omdb).await;
    assert_eq!(limited.status, 401);
    assert_eq!(
        limited.json(),
        json!({"Response": "False", "Error": "Request limit reached!"})
    );
}

#[tokio::test(start_paused = true)]
async fn several_rules_are_all_advertised_and_the_limiting_one_is_named() {
    let rules = "sliding 5/1s, fixed 1/1h, in-flight 9";
    let settings = Settings::with_rules(rules)
        .expect("rules")
        .style(Style::Ietf);
    let provider = SimProvider::start(settings).await.expect("a free port");
    get(provider.address(), "/").await.expect("a response");
    let limited = get(provider.address(), "/").await.expect("a response");
    let policy =
        "\"rule0\";q=5;w=1, \"rule1\";q=1;w=3600, \"rule2\";q=9;qu=\"concurrent-requests\"";
    assert_eq!(limited.header("ratelimit-policy"), Some(policy));
    assert_eq!(limited.json()["violated-policies"], json!(["rule1"]));
}
