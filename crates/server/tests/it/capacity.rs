//! `GET /v1/capacity` agrees with `acquire`, and a denial says what is true.

use serde_json::{Value, json};
use tollgate_core::time::Span;

use crate::client::ClientResponse;
use crate::decisions::frozen;
use crate::test_daemon::TestDaemon;

async fn acquire(daemon: &TestDaemon, body: &Value) -> ClientResponse {
    daemon
        .request("POST", "/v1/acquire", &body.to_string())
        .await
}

/// Symptom: after an urgent call, capacity for low priority said yes and the ask was denied because the limit "has too
/// little remaining", with 99 of 100 free. Cause: capacity counted only what is free, and the denial knew no other reason.
#[tokio::test]
async fn h6_capacity_and_denials_know_the_spacing_of_low_priority() {
    let (daemon, clock) = frozen("decide-spread.yaml", "limits: [100/1m]").await;
    let urgent = json!({"provider": "x", "priority": "high"});
    assert_eq!(acquire(&daemon, &urgent).await.status, 200);
    let capacity = async || {
        let path = "/v1/capacity?provider=x&priority=low";
        daemon.request("GET", path, "").await.json()
    };
    let low = json!({"provider": "x", "priority": "low", "wait": false});
    let denied = acquire(&daemon, &low).await;
    let (seen, denied) = (capacity().await, (denied.status, denied.json()));
    assert_eq!(denied.0, 429, "{denied:?}");
    assert_eq!(
        (&seen["available"], &seen["remaining"]),
        (&false.into(), &99.into()),
        "{seen}"
    );
    assert_eq!(
        (&denied.1["reason"], &denied.1["remaining"]),
        (&"limit".into(), &99.into())
    );
    assert_eq!(seen["retry_in"], denied.1["retry_in"]);
    for said in [&seen, &denied.1] {
        let words = said["message"].as_str().unwrap();
        assert!(
            words.contains("calls of low priority are spread over it"),
            "{words}"
        );
    }
    clock.pass(Span::from_secs(2));
    assert_eq!(capacity().await["available"], true);
    assert_eq!(acquire(&daemon, &low).await.status, 200);
}

/// A call for ten waits for the first one's slot; what remains is saved up for it.
#[tokio::test]
async fn h6_capacity_and_denials_know_who_waits_ahead() {
    let (daemon, _) = frozen("decide-ahead.yaml", "limits: [10/10s]").await;
    let open = acquire(&daemon, &json!({"provider": "x"})).await;
    assert_eq!(open.status, 200, "{open:?}");
    let large = json!({"provider": "x", "cost": 10, "timeout": 20});
    let small = json!({"provider": "x", "wait": false});
    let check = async {
        while daemon.request("GET", "/v1/providers/x", "").await.json()["queue"]["normal"] == 0 {
            tokio::task::yield_now().await;
        }
        let seen = daemon
            .request("GET", "/v1/capacity?provider=x", "")
            .await
            .json();
        let denied = acquire(&daemon, &small).await;
        (seen, denied.status, denied.json())
    };
    let (seen, status, denied) = tokio::select! {
        early = acquire(&daemon, &large) => panic!("{early:?}"),
        checked = check => checked,
    };
    assert_eq!(
        (status, &seen["available"]),
        (429, &false.into()),
        "{seen} {denied}"
    );
    assert_eq!(
        (&seen["remaining"], &denied["remaining"]),
        (&9.into(), &9.into())
    );
    let words = denied["message"].as_str().unwrap();
    assert!(
        words.contains("is saved for calls that wait already"),
        "{words}"
    );
    assert!(denied["retry_in"].as_f64().unwrap() <= 20.0, "{denied}");
}
