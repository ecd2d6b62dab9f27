//! A key belongs to the host that it was configured for (H3).

use serde_json::json;

use crate::client::get;
use crate::test_daemon::{TestDaemon, from_file, set_variable, write_file};
use crate::test_gateway::file;
use crate::upstream::{Upstream, ok};

const KEY: &str = "the-key-of-the-first-host"; // tidy:canary

async fn upstream() -> Upstream {
    Upstream::start(|_, _| async { ok() }).await
}

fn received(upstream: &Upstream) -> String {
    format!("{:?}", upstream.requests())
}

/// Whoever may change settings at run time could read every key by moving the provider to a host of
/// their own.
#[tokio::test]
async fn h3_a_host_set_at_run_time_does_not_get_the_keys() {
    let (old, new) = (upstream().await, upstream().await);
    let rest = format!(
        "limits: [99/1s]\napi_key: {KEY}\nauth: {{header: X-Key, also: {{X-Other: {KEY}-2}}}}\n\
         headers: {{X-Third: {KEY}-3, user-agent: ours}}"
    );
    let files = |upstream: &Upstream| file(upstream.address, &rest);
    write_file("key-origin.yaml", &files(&old));
    let daemon = TestDaemon::start(from_file("key-origin.yaml")).await;
    assert_eq!(get(daemon.gateway, "/x/a").await.status, 200);
    assert!(received(&old).contains(KEY));
    let target = format!("http://{}", new.address);
    let change = json!({ "upstream": target }).to_string();
    let path = "/v1/providers/x/settings";
    let changed = daemon.request("PATCH", path, &change).await;
    assert_eq!(changed.status, 200, "{}", changed.body);
    assert!(
        changed.body.contains("keys are not sent"),
        "{}",
        changed.body
    );
    assert_eq!(get(daemon.gateway, "/x/b").await.status, 200);
    assert_eq!(new.count(), 1);
    let seen = received(&new);
    assert!(!seen.contains(KEY) && seen.contains("ours"), "{seen}");
    // A change that names the key's variable too would be the same.
    set_variable("KEY_ORIGIN", Some(KEY));
    let both = json!({ "upstream": target, "api_key": "${KEY_ORIGIN}" }).to_string();
    assert_eq!(daemon.request("PATCH", path, &both).await.status, 200);
    assert_eq!(get(daemon.gateway, "/x/c").await.status, 200);
    assert!(!received(&new).contains(KEY));
    // The file names both.
    let back = json!({ "upstream": null, "api_key": null }).to_string();
    assert_eq!(daemon.request("PATCH", path, &back).await.status, 200);
    write_file("key-origin.yaml", &files(&new));
    assert_eq!(daemon.reload().await.status, 200);
    assert_eq!(get(daemon.gateway, "/x/d").await.status, 200);
    assert!(received(&new).contains(KEY));
}

#[tokio::test]
async fn a_limit_that_is_loosened_at_run_time_is_logged() {
    let upstream = upstream().await;
    write_file(
        "loosened.yaml",
        &file(upstream.address, "name: runtime-one\nlimits: [5/1s]").replacen("name: x\n", "", 1),
    );
    let daemon = TestDaemon::start(from_file("loosened.yaml")).await;
    let path = "/v1/providers/runtime-one/settings";
    let is_logged = || {
        let log = crate::log::captured();
        log.lines()
            .any(|line| line.contains("limits_loosened") && line.contains("runtime-one"))
    };
    let stricter = json!({ "concurrency": 2 }).to_string();
    assert_eq!(daemon.request("PATCH", path, &stricter).await.status, 200);
    assert!(!is_logged());
    let looser = json!({ "enabled": false }).to_string();
    assert_eq!(daemon.request("PATCH", path, &looser).await.status, 200);
    assert!(is_logged());
}
