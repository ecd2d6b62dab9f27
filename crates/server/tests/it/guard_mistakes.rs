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
