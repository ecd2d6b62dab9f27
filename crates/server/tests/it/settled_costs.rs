//! What a report settles: the cost that it states, else the one that its body states.

use serde_json::{Value, json};

use crate::decisions::frozen;
use crate::test_daemon::TestDaemon;

async fn used(daemon: &TestDaemon) -> Value {
    let shown = daemon.request("GET", "/v1/providers/x", "").await.json();
    shown["limits"][0]["used"].clone()
}

/// A report with the body of the response left the estimated cost counted, where the same response through the
/// gateway settles it.
#[tokio::test]
async fn the_body_of_a_report_settles_the_cost() {
    let rest = "limits: [{name: tpm, limit: 10000, period: 1h, unit: tokens}]\ncost: {tokens: {else: 100, after: usage.total_tokens}}";
    let (daemon, _) = frozen("settled-body.yaml", rest).await;
    let usage = json!({"usage": {"total_tokens": 500}});
    let stream = "data: {\"usage\": {\"total_tokens\": 30}}\n\ndata: [DONE]\n\n";
    let mut expected = 0;
    for (report, cost) in [
        (json!({"status": 200, "body": usage}), 500),
        (json!({"status": 200, "body": usage.to_string()}), 500),
        (json!({"status": 200, "body": stream}), 30),
        // The beginning of a stream says less than its end.
        (
            json!({"status": 200, "body": stream.replace("[DONE]", "")}),
            100,
        ),
        (json!({"status": 200, "body": {"text": "no usage"}}), 100),
        (json!({"status": 500, "body": usage}), 100),
        (json!({"status": 200}), 100),
        // What the report states wins.
        (
            json!({"status": 200, "body": usage, "cost": {"tokens": 7}}),
            7,
        ),
        (json!({"status": 200, "cost": "tokens=0"}), 0),
    ] {
        let ask = json!({"provider": "x", "wait": false}).to_string();
        let granted = daemon.request("POST", "/v1/acquire", &ask).await.json();
        let mut body = report.clone();
        body["permit"] = granted["permit"].clone();
        let reported = daemon
            .request("POST", "/v1/report", &body.to_string())
            .await;
        assert_eq!(reported.status, 200, "{reported:?}");
        expected += cost;
        assert_eq!(used(&daemon).await, expected, "{report}");
    }
}

/// The hint of a report said that a cost begins at 1.
#[tokio::test]
async fn the_cost_of_a_report_begins_at_0() {
    let (daemon, _) = frozen("settled-hint.yaml", "limits: [100/1h]").await;
    for (path, body, hint) in [
        (
            "/v1/report",
            json!({"permit": "a", "cost": -1}),
            "from 0 to",
        ),
        (
            "/v1/acquire",
            json!({"provider": "x", "cost": 0}),
            "from 1 to",
        ),
    ] {
        let wrong = daemon.request("POST", path, &body.to_string()).await;
        let said = wrong.json()["hint"].as_str().unwrap_or_default().to_owned();
        assert!(wrong.status == 400 && said.contains(hint), "{wrong:?}");
    }
}
