//! Mistakes of those who ask for decisions: each is a 4xx with its remedy, and nothing is counted.

use crate::decisions::frozen;
use crate::test_daemon::raw_request;

/// Path, body, status, and words of the response.
const MISTAKES: &[(&str, &str, u16, &str)] = &[
    ("/v1/acquire", "", 400, "JSON"),
    ("/v1/acquire", "[1]", 400, "JSON"),
    ("/v1/acquire", "{\"provider\": \"x\"", 400, "JSON"),
    ("/v1/acquire", "{}", 400, "`provider` or `url`"),
    (
        "/v1/acquire",
        r#"{"provider": "y", "provider": "x"}"#,
        400,
        "stands twice",
    ),
    (
        "/v1/acquire",
        r#"{"provider": "nope"}"#,
        404,
        "`tollgate provider list` shows the names",
    ),
    (
        "/v1/acquire",
        r#"{"provider": "x", "entity": "a b"}"#,
        400,
        "without spaces",
    ),
    (
        "/v1/acquire",
        r#"{"provider": "x", "cost": "apples=3"}"#,
        400,
        "the unit `apples`",
    ),
    (
        "/v1/acquire",
        r#"{"guard": "ipp", "identifier": "1.2.3.4"}"#,
        404,
        "there is no guard `ipp`",
    ),
    (
        "/v1/acquire",
        r#"{"provider": "xx"}"#,
        404,
        "did you mean `x`",
    ),
    ("/v1/acquire", r#"{"provider": 7}"#, 400, "`provider`"),
    (
        "/v1/acquire",
        r#"{"provider": "x", "url": "https://a.example/"}"#,
        400,
        "`url`",
    ),
    (
        "/v1/acquire",
        r#"{"url": "api.example.org/a"}"#,
        400,
        "absolute URL",
    ),
    (
        "/v1/acquire",
        r#"{"url": "ftp://api.example.org/a"}"#,
        400,
        "absolute URL",
    ),
    (
        "/v1/acquire",
        r#"{"providr": "x"}"#,
        400,
        "did you mean `provider`",
    ),
    (
        "/v1/acquire",
        r#"{"provider": "x", "cost": -1}"#,
        400,
        "`cost`",
    ),
    (
        "/v1/acquire",
        r#"{"provider": "x", "cost": 0}"#,
        400,
        "`cost`",
    ),
    (
        "/v1/acquire",
        r#"{"provider": "x", "cost": 1.5}"#,
        400,
        "`cost`",
    ),
    (
        "/v1/acquire",
        r#"{"provider": "x", "cost": 1e30}"#,
        400,
        "`cost`",
    ),
    (
        "/v1/acquire",
        r#"{"provider": "x", "cost": 18446744073709551615}"#,
        400,
        "`cost`",
    ),
    (
        "/v1/acquire",
        r#"{"provider": "x", "cost": {"tokenz": 1}}"#,
        400,
        "input_tokens",
    ),
    (
        "/v1/acquire",
        r#"{"provider": "x", "cost": 1, "tokens": 1}"#,
        400,
        "one of them",
    ),
    (
        "/v1/acquire",
        r#"{"provider": "x", "priority": "urgent"}"#,
        400,
        "high, normal or low",
    ),
    (
        "/v1/acquire",
        r#"{"provider": "x", "wait": "yes"}"#,
        400,
        "true or false",
    ),
    (
        "/v1/acquire",
        r#"{"provider": "x", "timeout": "soon"}"#,
        400,
        "seconds",
    ),
    (
        "/v1/acquire",
        r#"{"provider": "x", "timeout": -3}"#,
        400,
        "seconds",
    ),
    (
        "/v1/acquire",
        r#"{"provider": "x", "identifier": "1.2.3.4"}"#,
        400,
        "`guard`",
    ),
    (
        "/v1/acquire",
        r#"{"guard": "ip", "identifier": "1.2.3.4"}"#,
        404,
        "guards:",
    ),
    (
        "/v1/acquire",
        r#"{"provider": "x", "asks": []}"#,
        400,
        "`asks`",
    ),
    ("/v1/acquire", r#"{"asks": []}"#, 400, "a list"),
    (
        "/v1/acquire",
        r#"{"asks": [{"provider": "x"}, {"provider": "x"}]}"#,
        400,
        "one provider",
    ),
    (
        "/v1/acquire",
        r#"{"asks": [{"provider": "x", "wait": true}]}"#,
        400,
        "`wait`",
    ),
    ("/v1/report", r#"{"status": 200}"#, 400, "permit"),
    (
        "/v1/report",
        r#"{"permit": "nope", "status": 200}"#,
        404,
        "expired",
    ),
    (
        "/v1/report",
        r#"{"permit": "nope", "status": 99}"#,
        400,
        "`status`",
    ),
    (
        "/v1/report",
        r#"{"permit": "nope", "status": 200, "error": "timeout"}"#,
        400,
        "`error`",
    ),
    (
        "/v1/report",
        r#"{"permit": "nope", "error": "tired"}"#,
        400,
        "timeout, dns",
    ),
    (
        "/v1/report",
        r#"{"permit": "nope", "status": 200, "headers": [1]}"#,
        400,
        "`headers`",
    ),
    (
        "/v1/report",
        r#"{"permit": "nope", "body": "x"}"#,
        400,
        "`status`",
    ),
    ("/v1/release", r#"{"permit": "nope"}"#, 404, "expired"),
    (
        "/v1/release",
        r#"{"permits": "nope"}"#,
        400,
        "did you mean `permit`",
    ),
];

/// Every mistake gets a 4xx that names the thing and the remedy, and nothing is counted.
#[tokio::test]
async fn a_mistake_is_rejected_with_its_remedy_and_counts_nothing() {
    let (daemon, _) = frozen("decide-mistakes.yaml", "limits: [100/1h]").await;
    let huge = format!("{{\"provider\": \"{}\"}}", "x".repeat(70_000));
    let large = ("/v1/acquire", huge.as_str(), 413, "64 KiB");
    for (path, body, status, words) in MISTAKES.iter().copied().chain([large]) {
        let response = daemon.request("POST", path, body).await;
        assert_eq!(response.status, status, "{body}: {response:?}");
        let fault = response.json();
        let is_told = |name: &str| fault[name].as_str().is_some_and(|text| !text.is_empty());
        assert!(
            is_told("error") && is_told("message") && is_told("hint"),
            "{body}: {fault}"
        );
        assert!(response.body.contains(words), "{body}: {fault}");
    }
    for path in [
        "/v1/capacity",
        "/v1/capacity?provider=x&provider=x",
        "/v1/capacity?provider=x&entty=a",
        "/v1/capacity?provider=x&cost=-1",
    ] {
        let response = daemon.request("GET", path, "").await;
        assert_eq!(response.status, 400, "{path}: {response:?}");
    }
    assert_eq!(daemon.request("GET", "/v1/acquire", "").await.status, 405);
    let unknown = daemon
        .request("GET", "/v1/decisions?provider=nope", "")
        .await;
    assert_eq!(unknown.status, 404, "{unknown:?}");
    let rest = daemon.request("GET", "/v1/providers/x/rest", "").await;
    assert!(rest.body.contains("/openapi.json"), "{rest:?}");
    let lost = crate::client::get(daemon.gateway, "/v1/acquire").await;
    assert_eq!(lost.status, 404, "{lost:?}");
    assert!(lost.body.contains("/-/v1/"), "{lost:?}");
    let own = daemon.admin.to_string();
    let body = r#"{"provider": "x"}"#;
    let open = raw_request(daemon.admin, "POST", "/v1/acquire", &[("host", &own)], body).await;
    assert_eq!(open.status, 403, "{open:?}");
    let shown = daemon.request("GET", "/v1/providers/x", "").await.json();
    assert_eq!(
        (&shown["limits"][0]["used"], &shown["permits"]["open"]),
        (&0.into(), &0.into())
    );
}
