//! Requests that wait for tokens of guards while the rules change.

use serde_json::{Value, json};

use crate::client::{ClientResponse, within_timeout};
use crate::test_daemon::{TestDaemon, from_config, write_file};

fn config(limit: &str) -> String {
    format!("guards: {{ ip: {{ limit: {limit}, by: ip }} }}\n")
}

/// A daemon whose guard has no token, and a request that waits for one for most of a minute.
async fn with_one_waiting(name: &str) -> (TestDaemon, tokio::task::JoinHandle<ClientResponse>) {
    write_file(name, &config("1, period: 1m, burst: 1"));
    let daemon = TestDaemon::start(from_config(name)).await;
    let ask = json!({"guard": "ip", "identifier": "203.0.113.7", "timeout": 100}).to_string();
    let first = daemon.request("POST", "/v1/acquire", &ask).await;
    assert_eq!(first.status, 200, "{first:?}");
    let admin = daemon.admin;
    let waiting = tokio::spawn(async move {
        let host = admin.to_string();
        let headers = [("host", host.as_str()), ("x-tollgate-admin", "1")];
        crate::test_daemon::raw_request(admin, "POST", "/v1/acquire", &headers, &ask).await
    });
    // It asks and then waits; whether it does so before or after the change, it is decided by the new rules
    // at the latest when they come.
    for _ in 0..50 {
        let health = daemon.request("GET", "/health", "").await;
        assert_eq!(health.status, 200);
    }
    assert!(!waiting.is_finished());
    (daemon, waiting)
}

async fn reply(waiting: tokio::task::JoinHandle<ClientResponse>) -> (u16, Value) {
    let response = within_timeout(waiting).await.unwrap();
    (response.status, response.json())
}

/// A guard waiter slept until its token came under the former limit, whatever the new one said: 30 s for a
/// token that the new limit had at once.
#[tokio::test]
async fn a_reload_decides_those_who_wait_for_a_guard_again() {
    let name = "guard-waits-raised.yaml";
    let (daemon, waiting) = with_one_waiting(name).await;
    write_file(name, &config("60000, period: 1m, burst: 10"));
    assert_eq!(daemon.reload().await.status, 200);
    let (status, body) = reply(waiting).await;
    assert_eq!(
        (status, &body["decision"]),
        (200, &"queue".into()),
        "{body}"
    );
}

/// The same where the new limit is lower: the request was granted when the former limit would have had a
/// token, and now it learns at once that its time does not suffice.
#[tokio::test]
async fn a_lower_limit_rejects_those_for_whom_the_wait_is_too_long() {
    let name = "guard-waits-lowered.yaml";
    let (daemon, waiting) = with_one_waiting(name).await;
    write_file(name, &config("1, period: 1h, burst: 1"));
    assert_eq!(daemon.reload().await.status, 200);
    let (status, body) = reply(waiting).await;
    assert_eq!(
        (status, &body["limit"]["period"]),
        (429, &"1h".into()),
        "{body}"
    );
}

/// A guard that is gone is unknown to those who wait, as to newcomers.
#[tokio::test]
async fn a_guard_that_is_removed_ends_the_wait() {
    let name = "guard-waits-removed.yaml";
    let (daemon, waiting) = with_one_waiting(name).await;
    write_file(
        name,
        "guards: { other: { limit: 1, period: 1m, burst: 1, by: ip } }\n",
    );
    assert_eq!(daemon.reload().await.status, 200);
    let (status, body) = reply(waiting).await;
    assert_eq!(
        (status, &body["error"]),
        (404, &"UnknownGuard".into()),
        "{body}"
    );
}

/// An operator who turns limiting off waits for nobody's token.
#[tokio::test]
async fn limiting_off_ends_the_wait_for_a_guard() {
    let (daemon, waiting) = with_one_waiting("guard-waits-off.yaml").await;
    let off = daemon
        .request("POST", "/v1/limiting", r#"{"mode": "off"}"#)
        .await;
    assert_eq!(off.status, 200, "{off:?}");
    let (status, body) = reply(waiting).await;
    assert_eq!((status, &body["granted"]), (200, &true.into()), "{body}");
}
