//! Mistakes of those who ask guards: each is a 4xx with its remedy, and nothing is counted.

use serde_json::{Value, json};

use crate::guards::{CLASSES, OTHER, acquire, daemon};

/// What is asked, and words of the response.
fn mistakes() -> Vec<(Value, &'static str)> {
    vec![
        (
            json!({"guard": "ipp", "identifier": "a"}),
            "did you mean `ip`",
        ),
        (json!({"guard": "ip"}), "identifier"),
        (
            json!({"guard": "ip", "identifier": "a", "entity": "b"}),
            "`entity`",
        ),
        (
            json!({"guard": "ip", "identifier": "a", "cost": {"tokens": 2}}),
            "no unit",
        ),
        (
            json!({"asks": [{"guard": "api"}, {"provider": "x"}]}),
            "one provider",
        ),
        (
            json!({"asks": vec![json!({"guard": "api"}); 9]}),
            "fewer guards",
        ),
        (
            json!({"guard": "ip", "identifier": "203.0.113.7", "cost": -1}),
            "cost",
        ),
        (
            json!({"guard": "ip", "identifier": "203.0.113.7", "cost": 9_007_199_254_740_993_u64}),
            "cost",
        ),
        (
            json!({"guard": "ip", "identifier": "203.0.113.7", "wait": "no"}),
            "wait",
        ),
    ]
}

#[tokio::test]
async fn c11_mistakes_at_guards_have_their_remedy_and_count_nothing() {
    let daemon = daemon("guards-mistakes", CLASSES, OTHER).await;
    let path = "/v1/guards/ip?identifier=203.0.113.7";
    let before = daemon.request("GET", path, "").await.json();
    for (path, status) in [
        ("/v1/guards/ipp?identifier=a", 404),
        ("/v1/guards/ip", 400),
        ("/v1/guards/api", 200),
        ("/v1/guards/ip?identfier=a", 400),
    ] {
        let response = daemon.request("GET", path, "").await;
        assert_eq!(response.status, status, "{path}: {response:?}");
    }
    for (body, words) in mistakes() {
        let response = acquire(&daemon, &body).await;
        assert!(
            (400..=404).contains(&response.status),
            "{body}: {response:?}"
        );
        assert!(response.body.contains(words), "{body}: {response:?}");
    }
    let after = daemon.request("GET", path, "").await.json();
    assert_eq!(after, before, "no mistake counted");
}

/// An address as a proxy writes it, with its port, was counted as another caller. A query that is no UTF-8
/// became another name.
#[tokio::test]
async fn an_identifier_is_the_address_that_it_names() {
    let daemon = daemon("guards-ports", CLASSES, OTHER).await;
    for identifier in ["203.0.113.9", "203.0.113.9:4711", "[203.0.113.9]:80"] {
        let body = json!({"guard": "ip", "identifier": identifier, "wait": false});
        acquire(&daemon, &body).await;
    }
    let left = |text: &str| format!("/v1/guards/ip?identifier={text}");
    let shown = daemon.request("GET", &left("203.0.113.9"), "").await.json();
    let fresh = daemon.request("GET", &left("203.0.113.8"), "").await.json();
    let tokens = |shown: &Value| shown["tokens_available"].as_f64().unwrap();
    assert!(tokens(&fresh) - tokens(&shown) > 2.5, "{shown} {fresh}");
    let unreadable = daemon.request("GET", "/v1/capacity?provider=%ff", "").await;
    let hint = unreadable.json()["hint"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    assert!(
        unreadable.status == 400 && hint.contains("UTF-8"),
        "{unreadable:?}"
    );
}
