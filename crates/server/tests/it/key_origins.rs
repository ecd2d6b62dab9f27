//! A key belongs to the host that it was configured for (H3).

use std::sync::Arc;

use serde_json::json;
use tokio::sync::Notify;

use crate::client::{get, within_timeout};
use crate::test_daemon::{TestDaemon, from_file, set_variable, write_file};
use crate::test_gateway::file;
use crate::upstream::{Upstream, ok, reply};

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

/// The same for the host that gets the credentials of a login or of OAuth 2.
#[tokio::test]
async fn h3_a_login_host_set_at_run_time_does_not_get_the_credentials() {
    for (setting, method, rest) in [
        (
            "auth.login.url",
            "login: {url",
            "body: {password: KEY}, token: access_token",
        ),
        (
            "auth.oauth2.token_url",
            "oauth2: {token_url",
            "client_id: id, client_secret: KEY",
        ),
    ] {
        let token = |_, _| async { reply(200, &[], "{\"access_token\":\"t1\"}") };
        let (own, other) = (Upstream::start(token).await, Upstream::start(token).await);
        let rest = rest.replace("KEY", KEY);
        let auth = format!(
            "auth: {{{method}: \"http://{}/token\", {rest}}}}}",
            own.address
        );
        let path = format!("{setting}.yaml");
        write_file(
            &path,
            &file(own.address, &format!("limits: [99/1s]\n{auth}")),
        );
        let daemon = TestDaemon::start(from_file(&path)).await;
        let change = json!({ setting: format!("http://{}/token", other.address) }).to_string();
        let path = "/v1/providers/x/settings";
        let changed = daemon.request("PATCH", path, &change).await;
        assert_eq!(changed.status, 200, "{setting}: {}", changed.body);
        assert_eq!(get(daemon.gateway, "/x/a").await.status, 200, "{setting}");
        assert_eq!(other.count(), 0, "{setting}: {}", received(&other));
        assert!(!received(&own).contains(KEY), "{setting}");
        // The host of the file gets them.
        let back = json!({ setting: null }).to_string();
        assert_eq!(daemon.request("PATCH", path, &back).await.status, 200);
        assert_eq!(get(daemon.gateway, "/x/b").await.status, 200, "{setting}");
        let seen = received(&own);
        assert!(seen.contains("Bearer t1"), "{setting}: {seen}");
    }
}

/// A reload that moved the provider to another host, with another key, sent the new key to the old
/// host with the next attempt of every call that was under way.
#[tokio::test]
async fn h3_a_key_of_a_reload_is_not_sent_to_the_upstream_before_it() {
    let (asked, reloaded) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (ask, wait) = (asked.clone(), reloaded.clone());
    let old = Upstream::start(move |_, _| {
        let (ask, wait) = (ask.clone(), wait.clone());
        async move {
            ask.notify_one();
            wait.notified().await;
            reply(503, &[], "try again")
        }
    })
    .await;
    let new = upstream().await;
    let files = |upstream: &Upstream, key: &str| {
        let rest = format!(
            "limits: [99/1s]\nretry: {{base: 1ms}}\napi_key: {key}\nauth: {{header: X-Key}}\n\
             headers: {{X-Third: {key}-3}}"
        );
        file(upstream.address, &rest)
    };
    write_file("key-moved.yaml", &files(&old, KEY));
    let daemon = TestDaemon::start(from_file("key-moved.yaml")).await;
    let gateway = daemon.gateway;
    let waiting = tokio::spawn(async move { get(gateway, "/x/a").await });
    within_timeout(asked.notified()).await;
    let other = "the-key-of-the-second-host"; // tidy:canary
    write_file("key-moved.yaml", &files(&new, other));
    assert_eq!(daemon.reload().await.status, 200);
    reloaded.notify_one();
    let response = within_timeout(waiting).await.unwrap();
    assert_eq!(response.status, 502, "{}", response.body);
    assert_eq!(response.json()["error"], "UpstreamError");
    assert!(response.body.contains("was changed"), "{}", response.body);
    assert_eq!((old.count(), new.count()), (1, 0));
    assert!(!received(&old).contains(other), "{}", received(&old));
    assert_eq!(get(gateway, "/x/b").await.status, 200);
    let seen = received(&new);
    assert!(seen.contains(other) && !seen.contains(KEY), "{seen}");
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
