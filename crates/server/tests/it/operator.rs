//! What an operator sees and does: providers without calls, settings by every name, addresses in
//! use, cool-downs that are reset.

use serde_json::Value;
use tollgate::providers::Options;
use tollgate_config::Sources;
use tollgate_config::load::ProviderSetting;
use tollgate_ledger::{Clock, Ledger};

use crate::cache::NO_RETRY;
use crate::client::{ClientResponse, get, get_with, within_timeout};
use crate::test_daemon::{TestDaemon, from_file, write_file};
use crate::test_gateway::file;
use crate::upstream::{Upstream, ok, reply};
use tollgate_sim::test_host::free_address;

const FILE: &str = "name: x\nupstream: http://127.0.0.1:9\nlimits: [5/1s]\n";

/// The providers of the list, by name.
async fn listed(daemon: &TestDaemon) -> Vec<(String, String, bool)> {
    let all = daemon.request("GET", "/v1/providers", "").await.json();
    let all = all["providers"].as_array().unwrap().clone();
    let text = |one: &Value, name: &str| one[name].as_str().unwrap().to_owned();
    let each = all.iter();
    each.map(|one| {
        (
            text(one, "name"),
            text(one, "state"),
            one["started"] == true,
        )
    })
    .collect()
}

fn entry(name: &str, state: &str, started: bool) -> (String, String, bool) {
    (name.to_owned(), state.to_owned(), started)
}

/// A5: after a start with `--offline` every provider is shown asleep before its first call, domains
/// without a provider included.
#[tokio::test]
async fn a5_a_sleeping_provider_is_shown_before_its_first_call() {
    write_file("op-offline.yaml", FILE);
    let options = Options {
        offline: true,
        ..Options::default()
    };
    let daemon = TestDaemon::start_with(from_file("op-offline.yaml"), options, None).await;
    let expected = [entry("x", "sleep", false), entry("unknown", "sleep", true)];
    assert_eq!(listed(&daemon).await, expected);
    let unknown = daemon
        .request("GET", "/v1/providers/unknown", "")
        .await
        .json();
    assert_eq!(unknown["health"]["state"], "sleep");
    daemon
        .request("POST", "/v1/providers/unknown/resume", "")
        .await;
    assert_eq!(listed(&daemon).await, [entry("x", "sleep", false)]);
}

/// M14: a process shows the state in the ledger before it has called the provider.
#[tokio::test]
async fn m14_sleep_and_cache_only_are_shown_after_a_restart() {
    write_file("op-kept.yaml", FILE);
    let ledger = Ledger::memory(Clock::System);
    for (order, state) in [
        ("offline", "sleep"),
        ("pause?for=30m", "sleep"),
        ("cache-only", "cache_only"),
    ] {
        let sources = || from_file("op-kept.yaml");
        let first = TestDaemon::start_on(ledger.clone(), sources(), Options::default(), None).await;
        first
            .request("POST", &format!("/v1/providers/x/{order}"), "")
            .await;
        let second =
            TestDaemon::start_on(ledger.clone(), sources(), Options::default(), None).await;
        within_timeout(async { while listed(&second).await != [entry("x", state, false)] {} })
            .await;
    }
}

async fn patch(daemon: &TestDaemon, provider: &str, body: &str) -> ClientResponse {
    let path = format!("/v1/providers/{provider}/settings");
    daemon.request("PATCH", &path, body).await
}

/// A14: a setting has several spellings, and any of them removes it.
#[tokio::test]
async fn a14_a_setting_can_be_removed_by_any_of_its_names() {
    write_file("op-names.yaml", FILE);
    let daemon = TestDaemon::start(from_file("op-names.yaml")).await;
    let before = daemon.setting("x", "health.sleep_max").await;
    for (set, back) in [
        ("sleep_max", "health.sleep_max"),
        ("health.sleep_max", "SLEEP-MAX"),
    ] {
        patch(&daemon, "x", &format!("{{\"{set}\": \"30s\"}}")).await;
        let (value, by) = daemon.setting("x", "health.sleep_max").await;
        assert_eq!((value.as_str(), by.as_str()), ("30s", "set"));
        let response = patch(&daemon, "x", &format!("{{\"{back}\": null}}")).await;
        assert_eq!(response.status, 200, "{response:?}");
        assert_eq!(daemon.setting("x", "health.sleep_max").await, before);
    }
    // What is set by two names is set once.
    patch(&daemon, "x", "{\"sleep_max\": \"30s\"}").await;
    patch(&daemon, "x", "{\"health.sleep_max\": \"40s\"}").await;
    patch(&daemon, "x", "{\"sleep_max\": null}").await;
    assert_eq!(daemon.setting("x", "health.sleep_max").await, before);
    let wrong = patch(&daemon, "x", "{\"sleep_mx\": null}").await;
    assert_eq!(wrong.status, 400, "{wrong:?}");
    assert!(
        wrong.body.contains("did you mean `sleep_max`?"),
        "{wrong:?}"
    );
}

fn with_presets(path: &str) -> Sources {
    Sources {
        only_named: false,
        config: None,
        ..from_file(path)
    }
}

/// A built-in provider can have its own listener, by `--set` and by PATCH, and a reload keeps it.
#[tokio::test]
async fn a_built_in_provider_gets_its_configured_address() {
    write_file("op-built-in.yaml", FILE);
    let (one, two) = (free_address(), free_address());
    let mut sources = with_presets("op-built-in.yaml");
    sources
        .set
        .push(ProviderSetting::parse(&format!("tmdb.listen={one}")));
    let daemon = TestDaemon::start(sources).await;
    assert_eq!(daemon.reload().await.status, 200);
    let opens = |at| async move { tokio::net::TcpStream::connect(at).await.is_ok() };
    assert!(opens(one).await, "by --set");
    let response = patch(&daemon, "omdb", &format!("{{\"listen\": \"{two}\"}}")).await;
    assert_eq!(response.status, 200, "{response:?}");
    assert!(opens(two).await, "by PATCH");
    assert_eq!(daemon.reload().await.status, 200);
    assert!(opens(one).await && opens(two).await, "after a reload");
}

/// Port 0 is a free port, chosen once.
#[tokio::test]
async fn a_reload_keeps_the_port_chosen_for_port_0() {
    let text = |more: &str| format!("{FILE}listen: 127.0.0.1:0\n{more}");
    write_file("op-any.yaml", &text(""));
    let daemon = TestDaemon::start(from_file("op-any.yaml")).await;
    daemon.reload().await;
    let listeners = daemon.servers.0.listeners();
    let before = listeners.addresses();
    assert_eq!(before.len(), 2);
    daemon.reload().await;
    write_file("op-any.yaml", &text("queue: {max: 7}\n"));
    daemon.reload().await;
    assert_eq!(listeners.addresses(), before);
}

/// An address that cannot be opened is shown until it can; by PATCH it is rejected.
#[tokio::test]
async fn an_address_in_use_is_shown_and_cannot_be_set() {
    let squatter = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = squatter.local_addr().unwrap();
    write_file("op-taken.yaml", FILE);
    let daemon = TestDaemon::start(from_file("op-taken.yaml")).await;
    let response = patch(&daemon, "x", &format!("{{\"listen\": \"{taken}\"}}")).await;
    assert_eq!(response.status, 400, "{response:?}");
    assert!(response.body.contains(&taken.to_string()), "{response:?}");
    write_file("op-taken.yaml", &format!("{FILE}listen: {taken}\n"));
    assert_eq!(daemon.reload().await.status, 422);
    let said = async || {
        let all = daemon.request("GET", "/v1/providers", "").await.json();
        let one = daemon.request("GET", "/v1/providers/x", "").await.json();
        let lists = [
            &all["problems"],
            &all["providers"][0]["problems"],
            &one["problems"],
        ];
        lists.map(|list| list.to_string().contains(&taken.to_string()))
    };
    assert_eq!(said().await, [true; 3]);
    drop(squatter);
    assert_eq!(daemon.reload().await.status, 200);
    assert_eq!(said().await, [false; 3]);
}

async fn used(daemon: &TestDaemon) -> Vec<Value> {
    let shown = daemon.request("GET", "/v1/providers/x", "").await.json();
    let limits = shown["limits"].as_array().unwrap().clone();
    limits.iter().map(|limit| limit["used"].clone()).collect()
}

/// A limit per key is shown per key; for keys of clients there is nothing to show.
#[tokio::test]
async fn a_limit_per_key_is_shown_only_for_configured_keys() {
    let upstream = Upstream::start(|_, received| async move {
        match received.target.as_str() {
            "/token" => reply(200, &[], "{\"access_token\": \"t\", \"expires_in\": 3600}"),
            _ => ok(),
        }
    })
    .await;
    let limit = "limits: [{limit: 5, period: 1h, per: api_key}]";
    let token = format!("token_url: \"http://{}/token\"", upstream.address);
    for (path, auth, expected) in [
        (
            "op-theirs.yaml",
            "auth: {header: x-key}".to_owned(),
            Value::Null,
        ),
        (
            "op-ours.yaml",
            "api_key: ours\nauth: {header: x-key}".to_owned(),
            1.into(),
        ),
        (
            "op-oauth2.yaml",
            format!("auth: {{oauth2: {{{token}, client_id: i, client_secret: s}}}}"),
            2.into(), // the token is asked for under the same limit
        ),
    ] {
        write_file(path, &file(upstream.address, &format!("{limit}\n{auth}")));
        let daemon = TestDaemon::start(from_file(path)).await;
        let response = get_with(daemon.gateway, "/x/a", &[("x-key", "theirs")]).await;
        assert_eq!(response.status, 200, "{response:?}");
        assert_eq!(used(&daemon).await, [expected], "{path}");
    }
}

/// `reset` of an entity whose calls are blocked by the cool-down of a key.
#[tokio::test]
async fn a_reset_of_an_entity_ends_the_cooldown_that_blocks_it() {
    let upstream = Upstream::start(|number, _| async move {
        match number {
            0 => reply(429, &[("retry-after", "3600")], ""),
            _ => ok(),
        }
    })
    .await;
    let rest = format!(
        "api_key: ours\nauth: {{header: x-key}}\n{NO_RETRY}\n\
         limits: [{{limit: 5, period: 1h, per: api_key}}]"
    );
    write_file("op-reset.yaml", &file(upstream.address, &rest));
    let daemon = TestDaemon::start(from_file("op-reset.yaml")).await;
    assert_eq!(get(daemon.gateway, "/x/a").await.status, 429);
    let soon = [("x-tollgate-timeout", "30s")];
    assert_eq!(get_with(daemon.gateway, "/x/b", &soon).await.status, 429);
    let response = daemon
        .request("POST", "/v1/providers/x/reset?entity=b", "")
        .await;
    assert_eq!(response.status, 200, "{response:?}");
    let response = get_with(daemon.gateway, "/x/c", &soon).await;
    assert_eq!(response.status, 200, "{response:?}");
}

/// A5: `pause` holds calls until `resume`, `offline` rejects them; the status says what holds them.
#[tokio::test]
async fn a5_a_paused_provider_holds_calls_and_an_offline_one_rejects_them() {
    let upstream = Upstream::start(|_, _| async { ok() }).await;
    write_file("op-pause.yaml", &file(upstream.address, "limits: [50/1s]"));
    let daemon = TestDaemon::start(from_file("op-pause.yaml")).await;
    daemon.request("POST", "/v1/providers/x/pause", "").await;
    let gateway = daemon.gateway;
    let held = tokio::spawn(async move { get(gateway, "/x/a").await });
    let status = daemon.status_with_one_waiting("x").await;
    assert_eq!(status["queue"]["waiting_for"]["paused"], 1, "{status}");
    assert_eq!(status["health"]["hold"], "paused");
    let list = daemon.request("GET", "/v1/providers", "").await.json();
    assert_eq!(list["providers"][0]["hold"], "paused", "{list}");
    daemon.request("POST", "/v1/providers/x/resume", "").await;
    assert_eq!(within_timeout(held).await.unwrap().status, 200);
    daemon.request("POST", "/v1/providers/x/offline", "").await;
    let rejected = within_timeout(get(gateway, "/x/a")).await;
    assert_eq!(rejected.status, 503);
    let message = rejected.json()["message"].as_str().unwrap().to_owned();
    assert!(message.ends_with("set offline by an operator"), "{message}");
    let wrong = daemon.request("POST", "/v1/providers/x/pause?for=x", "");
    assert_eq!(wrong.await.status, 400);
    for command in ["offline", "resume", "reset"] {
        let path = format!("/v1/providers/x/{command}?for=5m");
        let wrong = daemon.request("POST", &path, "").await;
        let hint = wrong.json()["hint"].as_str().unwrap_or_default().to_owned();
        let names = hint.contains("only `pause` and `cache-only`");
        assert!(wrong.status == 400 && names, "{path}: {wrong:?}");
    }
    assert_eq!(upstream.count(), 1);
}

/// A preset that was set at run time was shown as set, and nothing came of it.
#[tokio::test]
async fn settings_that_choose_a_provider_are_rejected_at_run_time() {
    let upstream = Upstream::start(|_, _| async { ok() }).await;
    write_file("op-preset.yaml", &file(upstream.address, "limits: [50/1s]"));
    let daemon = TestDaemon::start(from_file("op-preset.yaml")).await;
    for change in [
        r#"{"preset": "omdb"}"#,
        r#"{"tier": "free"}"#,
        r#"{"name": "y"}"#,
    ] {
        let path = "/v1/providers/x/settings";
        let rejected = daemon.request("PATCH", path, change).await;
        assert_eq!(rejected.status, 400, "{change}: {}", rejected.body);
        assert!(rejected.body.contains("at run time"), "{}", rejected.body);
    }
}

/// S5: a cool-down is shown with its end and its cause, a call that waits for it is counted, and
/// `resume` ends it.
#[tokio::test]
async fn s5_a_cooldown_is_shown_and_resume_ends_it() {
    let upstream = Upstream::start(|number, _| async move {
        match number {
            0 => reply(429, &[("retry-after", "50")], ""),
            _ => ok(),
        }
    })
    .await;
    let rest = format!("limits: [50/1s]\n{NO_RETRY}");
    write_file("op-cooling.yaml", &file(upstream.address, &rest));
    let daemon = TestDaemon::start(from_file("op-cooling.yaml")).await;
    let gateway = daemon.gateway;
    assert_eq!(get(gateway, "/x/a").await.status, 429);
    let held = tokio::spawn(async move { get(gateway, "/x/b").await });
    let status = daemon.status_with_one_waiting("x").await;
    assert_eq!(status["queue"]["waiting_for"]["cooldown"], 1, "{status}");
    let cooldown = &status["cooldowns"][0];
    assert_eq!(cooldown["of"], "provider");
    assert_eq!(cooldown["reason"], "429, Retry-After 50 s");
    assert!(cooldown["until"].as_f64() > Some(1e9), "{cooldown}");
    // The same in the list. One provider's status is two peeks: its health, and all the rest; two more while
    // calls wait: what holds them, and how long.
    let peeks_sent = || daemon.daemon.registry().ledger().peeks_sent();
    let list = daemon.request("GET", "/v1/providers", "").await.json();
    let listed = &list["providers"][0]["cooldowns"][0];
    assert_eq!(
        (&listed["of"], &listed["reason"]),
        (&cooldown["of"], &cooldown["reason"])
    );
    let before = peeks_sent();
    let named = daemon.request("GET", "/v1/providers/x?entity=e", "").await;
    assert_eq!((named.status, peeks_sent() - before), (200, 4));
    daemon.request("POST", "/v1/providers/x/resume", "").await;
    assert_eq!(within_timeout(held).await.unwrap().status, 200);
    let status = daemon.request("GET", "/v1/providers/x", "").await.json();
    assert_eq!(status["cooldowns"].as_array().map(Vec::len), Some(0));
}
