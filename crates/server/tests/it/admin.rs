//! The admin address: access rules and error responses (R-E8).

use crate::client::{get, raw};
use crate::test_daemon::{TestDaemon, from_file, raw_request, write_file};
use crate::test_gateway::file;
use crate::upstream::Upstream;

const FILE: &str = "name: x\nupstream: http://127.0.0.1:9\nlimits: [5/1s]\n";

type Headers<'a> = Vec<(&'a str, &'a str)>;

async fn start(path: &str, token: Option<&str>) -> TestDaemon {
    write_file(path, FILE);
    TestDaemon::start_with(from_file(path), Default::default(), token).await
}

/// R-E8: without a token. A page of another site has no access: it cannot set our header, its host
/// name is rejected even if it resolves to us, and a GET changes nothing.
#[tokio::test]
async fn without_a_token_only_local_programs_are_allowed() {
    let daemon = start("admin-open.yaml", None).await;
    let port = daemon.admin.port();
    let own = daemon.admin.to_string();
    let local = format!("localhost:{port}");
    let (page, evil) = (
        format!("http://{own}"),
        format!("http://evil.example:{port}"),
    );
    let rebound = format!("evil.example:{port}");
    let ours = ("x-tollgate-admin", "1");
    fn host(name: &str) -> (&'static str, &str) {
        ("host", name)
    }
    let (read, change) = (("GET", "/v1/providers/x"), ("POST", "/v1/reload"));
    let table: [((&str, &str), Headers<'_>, u16); 21] = [
        (read, vec![host(&own)], 200),
        (read, vec![host(&local)], 200),
        (read, vec![host("LOCALHOST")], 403),
        (read, vec![host(&rebound)], 403),
        (read, vec![host(&rebound), ours], 403),
        (read, vec![], 403),
        (read, vec![host("127.0.0.1:1")], 403),
        (read, vec![host(&own), ("origin", &page)], 200),
        (read, vec![host(&own), ("origin", &evil)], 403),
        (read, vec![host(&own), ("origin", "null")], 403),
        (
            read,
            vec![host(&own), ("sec-fetch-site", "cross-site")],
            403,
        ),
        // A page of another port of this host.
        (read, vec![host(&own), ("sec-fetch-site", "same-site")], 403),
        (
            read,
            vec![host(&own), ("sec-fetch-site", "same-origin")],
            200,
        ),
        (change, vec![host(&own)], 403),
        (change, vec![host(&own), ours], 200),
        (change, vec![host(&own), ("x-tollgate-admin", "0")], 403),
        (change, vec![host(&own), ours, ("origin", &evil)], 403),
        (change, vec![host(&own), ours, ("origin", &page)], 200),
        (change, vec![host(&rebound), ours], 403),
        (("GET", "/v1/reload"), vec![host(&own), ours], 405),
        (("GET", "/health"), vec![host(&rebound)], 200),
    ];
    for ((method, path), headers, expected) in table {
        let response = raw_request(daemon.admin, method, path, &headers, "").await;
        assert_eq!(
            response.status, expected,
            "{method} {path} {headers:?}: {response:?}"
        );
        assert_eq!(response.header("content-type"), "application/json");
        if expected >= 400 {
            assert!(response.json()["hint"].is_string(), "{response:?}");
        }
    }
}

/// R-E8: with a token only the probes work without it, and no response contains it.
#[tokio::test]
async fn with_a_token_every_path_but_health_and_ready_requires_it() {
    let daemon = start("admin-token.yaml", Some("s3cret-canary")).await;
    let own = daemon.admin.to_string();
    let evil = "http://evil.example";
    let bearer = ("authorization", "Bearer s3cret-canary");
    let host = ("host", own.as_str());
    let table: [(&str, &str, Headers<'_>, u16); 12] = [
        ("GET", "/health", vec![host], 200),
        ("GET", "/ready", vec![host], 200),
        ("GET", "/v1/providers", vec![host], 401),
        (
            "GET",
            "/v1/providers",
            vec![host, ("x-tollgate-admin", "1")],
            401,
        ),
        (
            "GET",
            "/v1/providers",
            vec![host, ("authorization", "Bearer s3cret-canarY")],
            401,
        ),
        (
            "GET",
            "/v1/providers",
            vec![host, ("authorization", "Bearer s3cret-canary2")],
            401,
        ),
        (
            "GET",
            "/v1/providers",
            vec![host, ("authorization", "Basic s3cret-canary")],
            401,
        ),
        ("GET", "/v1/providers", vec![host, bearer, bearer], 401),
        ("GET", "/v1/providers", vec![host, bearer], 200),
        ("POST", "/v1/reload", vec![host], 401),
        (
            "POST",
            "/v1/reload",
            vec![("host", "gate.example"), bearer],
            200,
        ),
        (
            "POST",
            "/v1/reload",
            vec![host, bearer, ("origin", evil)],
            403,
        ),
    ];
    for (method, path, headers, expected) in table {
        let response = raw_request(daemon.admin, method, path, &headers, "").await;
        assert_eq!(response.status, expected, "{method} {path} {headers:?}");
        assert!(!response.everything().contains("s3cret"), "{response:?}");
    }
}

#[tokio::test]
async fn a_non_loopback_admin_address_requires_a_token() {
    let daemon = start("admin-wide.yaml", None).await;
    let wide = tokio::net::TcpListener::bind("0.0.0.0:0").await.unwrap();
    let rejected = tollgate_server::Admin::serve(&daemon.daemon, wide, Default::default());
    assert!(rejected.unwrap_err().to_string().contains("token"));
}

/// Every invalid request gets JSON with the next step, and nothing changes.
#[tokio::test]
async fn an_invalid_request_is_rejected_in_json() {
    let daemon = start("admin-odd.yaml", None).await;
    let large = format!("{{\"sleep_max\": \"{}\"}}", "9".repeat(70_000));
    let settings = "/v1/providers/x/settings";
    let table = [
        ("GET", "/nothing", "", 404),
        ("GET", "/v1/providers/y", "", 404),
        ("GET", "/v1/providers/%ff", "", 400),
        ("GET", "/v1/providers/x?entity=a&entity=b", "", 400),
        ("DELETE", "/v1/providers/x", "", 405),
        ("PATCH", settings, "", 400),
        ("PATCH", settings, "[1]", 400),
        ("PATCH", settings, "{}", 400),
        ("PATCH", settings, large.as_str(), 413),
        ("PATCH", "/v1/providers/y/settings", "{\"a\":1}", 404),
        ("POST", "/v1/providers/x/cache-only?for=soon", "", 400),
        ("POST", "/v1/providers/x/offline?entity=odds", "", 400),
        ("POST", "/v1/providers/y/resume", "", 404),
        ("GET", "/v1/tasks?foo=1", "", 400),
        ("POST", "/v1/reload?force=1", "", 400),
        ("POST", "/v1/reload", "{\"a\":", 400),
        ("POST", "/v1/reload", "{\"a\": 1}", 400),
    ];
    for (method, path, body, expected) in table {
        let response = daemon.request(method, path, body).await;
        assert_eq!(response.status, expected, "{method} {path}: {response:?}");
        let fault = response.json();
        assert!(
            fault["error"].is_string() && fault["hint"].is_string(),
            "{response:?}"
        );
    }
    let close = raw(daemon.admin, "GET / HTTP/1.1\r\nHost: a\r\nbad\r\n\r\n").await;
    assert!(close.starts_with("HTTP/1.1 400"), "{close}");
}

/// All fields are shown, also for a provider without calls.
#[tokio::test]
async fn a_provider_is_shown_with_all_its_fields() {
    write_file(
        "admin-show.yaml",
        "name: x\ndomain: api.example.org\nlimits: [5/1s, {limit: 9, period: 1h, per: entity}]\n",
    );
    let daemon = TestDaemon::start(from_file("admin-show.yaml")).await;
    let list = daemon.request("GET", "/v1/providers", "").await.json();
    assert_eq!(list["providers"][0]["name"], "x");
    assert_eq!(list["providers"][0]["started"], false);
    let one = daemon
        .request("GET", "/v1/providers/x?entity=odds", "")
        .await
        .json();
    assert_eq!(one["domains"][0], "api.example.org");
    assert_eq!(one["health"]["state"], "normal");
    assert_eq!(one["health"]["breaker"], "closed");
    assert_eq!(
        (&one["limits"][0]["used"], &one["limits"][0]["remaining"]),
        (&0.into(), &5.into())
    );
    assert_eq!(one["entities"]["odds"]["limits"][0]["remaining"], 9);
    assert_eq!(one["queue"]["normal"], 0);
    assert_eq!(
        (&one["store"]["kind"], &one["store"]["state"]),
        (&"memory".into(), &"up".into())
    );
    assert_eq!(one["problems"].as_array().unwrap().len(), 0);
}

/// The called entities are listed with their remaining quota, up to a bound.
#[tokio::test]
async fn a_provider_is_shown_with_its_called_entities() {
    let upstream = crate::upstream::Upstream::start(|_, _| async { crate::upstream::ok() }).await;
    write_file(
        "admin-entities.yaml",
        &crate::test_gateway::file(
            upstream.address,
            "limits: [{limit: 9, period: 1h, per: entity}]",
        ),
    );
    let daemon = TestDaemon::start(from_file("admin-entities.yaml")).await;
    for path in ["/x/odds/1", "/x/odds/2", "/x/teams/1"] {
        assert_eq!(crate::client::get(daemon.gateway, path).await.status, 200);
    }
    let one = daemon.request("GET", "/v1/providers/x", "").await.json();
    let left = |entity: &str| one["entities"][entity]["limits"][0]["remaining"].clone();
    assert_eq!((left("odds"), left("teams")), (7.into(), 8.into()));
    for n in 0..300 {
        let entity = [("x-tollgate-entity", format!("e{n}"))];
        let entity = entity
            .each_ref()
            .map(|(name, value)| (*name, value.as_str()));
        crate::client::get_with(daemon.gateway, &format!("/x/{n}"), &entity).await;
    }
    let one = daemon.request("GET", "/v1/providers/x", "").await.json();
    assert_eq!(one["entities"].as_object().unwrap().len(), 256);
}

/// A5: offline is a sleep without an end: nothing is sent, there is no retry time, and only
/// `resume` ends it.
#[tokio::test]
async fn a5_offline_sleeps_until_resumed() {
    let upstream = crate::upstream::Upstream::start(|_, _| async { crate::upstream::ok() }).await;
    write_file(
        "admin-off.yaml",
        &crate::test_gateway::file(upstream.address, "limits: [100/1s]"),
    );
    let options = tollgate::providers::Options {
        offline: true,
        ..Default::default()
    };
    let daemon = TestDaemon::start_with(from_file("admin-off.yaml"), options, None).await;
    let rejected = get(daemon.gateway, "/x/a").await;
    let body = rejected.json();
    assert_eq!(
        (rejected.status, &body["health"], &body["resetIn"]),
        (503, &"sleep".into(), &0.into())
    );
    daemon.request("POST", "/v1/providers/x/reset", "").await;
    assert_eq!(
        get(daemon.gateway, "/x/a").await.status,
        503,
        "reset does not end it"
    );
    let shown = daemon.request("GET", "/v1/providers/x", "").await.json();
    assert_eq!(shown["health"]["sleep_until"], serde_json::Value::Null);
    let resumed = daemon.request("POST", "/v1/providers/x/resume", "").await;
    assert_eq!(resumed.json()["state"], "normal");
    assert_eq!(get(daemon.gateway, "/x/a").await.status, 200);
    assert_eq!(upstream.count(), 1);
}

/// A5: `--offline` also blocks domains without a provider, until `unknown` is resumed.
#[tokio::test]
async fn a5_offline_blocks_unknown_domains_too() {
    let upstream = crate::upstream::Upstream::start(|_, _| async { crate::upstream::ok() }).await;
    write_file("admin-dark.yaml", FILE);
    let options = tollgate::providers::Options {
        offline: true,
        private: true,
        ..Default::default()
    };
    let daemon = TestDaemon::start_with(from_file("admin-dark.yaml"), options, None).await;
    let url = format!("/http://{}/a", upstream.address);
    let rejected = get(daemon.gateway, &url).await;
    let body = rejected.json();
    assert_eq!(
        (rejected.status, &body["provider"], &body["health"]),
        (503, &"unknown".into(), &"sleep".into())
    );
    assert_eq!(upstream.count(), 0);
    let resumed = daemon
        .request("POST", "/v1/providers/unknown/resume", "")
        .await;
    assert_eq!(resumed.json()["state"], "normal");
    assert_eq!(get(daemon.gateway, &url).await.status, 200);
}

/// A7: cache-only by an operator, for a while or until resumed, survives a restart.
#[tokio::test]
async fn a7_cache_only_by_an_operator_survives_a_restart() {
    write_file("admin-cache.yaml", FILE);
    let ledger = tollgate_ledger::Ledger::memory(tollgate_ledger::Clock::System);
    let open = || {
        TestDaemon::start_on(
            ledger.clone(),
            from_file("admin-cache.yaml"),
            Default::default(),
            None,
        )
    };
    let first = open().await;
    let state = first
        .request("POST", "/v1/providers/x/cache-only", "")
        .await;
    assert_eq!(state.json()["state"], "cache_only");
    let rejected = get(first.gateway, "/x/a").await;
    assert_eq!(
        (rejected.status, &rejected.json()["reason"]),
        (504, &"cache_only".into())
    );
    drop(first);
    let second = open().await;
    let shown = second.request("GET", "/v1/providers/x", "").await.json();
    assert_eq!(shown["health"]["state"], "cache_only");
    let ends = second
        .request("POST", "/v1/providers/x/cache-only?for=30m", "")
        .await;
    assert_eq!(ends.json()["state"], "cache_only");
    let shown = second.request("GET", "/v1/providers/x", "").await.json();
    let left = shown["health"]["reset_in"].as_f64().unwrap();
    assert!((1_790.0..=1_800.0).contains(&left), "{left}");
    drop(second);
    let second = open().await;
    let shown = second.request("GET", "/v1/providers/x", "").await.json();
    assert_eq!(shown["health"]["state"], "cache_only", "with its end");
    let left = shown["health"]["reset_in"].as_f64().unwrap();
    assert!((1_780.0..=1_800.0).contains(&left), "{left}");
    let resumed = second.request("POST", "/v1/providers/x/resume", "").await;
    assert_eq!(resumed.json()["state"], "normal");
}

/// While the gateway finishes its calls, load balancers must hear that it takes no more. A former
/// bug: it was ready until the admin address itself shut down.
#[tokio::test]
async fn a_gateway_that_drains_is_not_ready() {
    let upstream = Upstream::start(|_, _| std::future::pending()).await;
    write_file(
        "admin-drain.yaml",
        &file(upstream.address, "limits: [9/1s]"),
    );
    let daemon = TestDaemon::start(from_file("admin-drain.yaml")).await;
    let (admin, address) = (daemon.admin, daemon.gateway);
    let held = tokio::spawn(async move { get(address, "/x/held").await });
    crate::client::wait_until(|| upstream.count() == 1).await;
    assert_eq!(get(admin, "/ready").await.status, 200);
    let (gateway, _admin) = daemon.servers;
    let draining = tokio::spawn(gateway.drain());
    let mut response = get(admin, "/ready").await;
    while response.status == 200 {
        response = get(admin, "/ready").await;
    }
    assert_eq!(response.status, 503, "{response:?}");
    assert!(!draining.is_finished() && !held.is_finished());
}

/// Shutdown finishes running requests and accepts no new ones.
#[tokio::test]
async fn the_admin_address_shuts_down_gracefully() {
    let daemon = start("admin-end.yaml", None).await;
    let mut kept = crate::client::Session::open(daemon.admin).await;
    assert_eq!(kept.get("/ready", &[]).await.status, 200);
    let admin = daemon.admin;
    crate::client::within_timeout(daemon.servers.1.drain()).await;
    assert!(tokio::net::TcpStream::connect(admin).await.is_err());
}

/// On shutdown a call that still waits after the grace period is dropped and releases its permit:
/// calls that were not sent are not counted.
#[tokio::test]
async fn a_call_waiting_past_the_grace_period_is_not_counted() {
    let upstream = crate::upstream::Upstream::start(|_, _| async { crate::upstream::ok() }).await;
    let file = crate::test_gateway::file(upstream.address, "limits: [1/30s]");
    let ledger = tollgate_ledger::Ledger::memory(tollgate_ledger::Clock::System);
    let providers = crate::test_gateway::providers(&[file]);
    let registry =
        tollgate::ProviderRegistry::build(providers, ledger, Default::default()).unwrap();
    let options = tollgate_server::GatewayOptions {
        grace: tollgate_core::time::Span::from_millis(50),
        ..Default::default()
    };
    let mut gateway = tollgate_server::Gateway::new(registry.clone(), options);
    let free = "127.0.0.1:0".parse().unwrap();
    let all = tollgate_server::ListenerKind::All;
    let address = gateway.listen(free, all).await.unwrap().address;
    assert_eq!(get(address, "/x/a").await.status, 200);
    let mut waiting = crate::client::Session::open(address).await;
    let call = crate::client::request("GET", "/x/b", &[], "");
    let call = tokio::spawn(async move { waiting.send(call).await.status() });
    let active = registry.named("x").unwrap();
    crate::client::wait_until(|| active.waiting() == 1).await;
    crate::client::within_timeout(gateway.drain()).await;
    assert_eq!(call.await.unwrap(), 503, "its time was over");
    crate::client::wait_until(|| active.waiting() == 0).await;
    assert_eq!(
        (
            active.limits(None).await[0].view.unwrap().used,
            upstream.count()
        ),
        (1, 1)
    );
}

/// Clients that open connections and send nothing cannot keep a health check away: 256 of them did
/// for ten seconds.
#[tokio::test]
async fn the_admin_address_responds_despite_many_idle_connections() {
    write_file(
        "idle-admin.yaml",
        "name: x\ndomain: api.example.org\nlimits: [5/1s]\n",
    );
    let daemon = TestDaemon::start(from_file("idle-admin.yaml")).await;
    let mut idle = Vec::new();
    for _ in 0..300 {
        idle.push(tokio::net::TcpStream::connect(daemon.admin).await.unwrap());
    }
    let soon = std::time::Duration::from_secs(5);
    let health = tokio::time::timeout(soon, daemon.request("GET", "/health", "")).await;
    assert_eq!(health.expect("at once").status, 200);
}

/// `POST /v1/acquire?wait=false` waited: nobody read the query. Every route rejects what it does not read, with the
/// nearest name; probes may send anything.
#[tokio::test]
async fn input_that_a_route_does_not_read_is_rejected() {
    let daemon = start("admin-unread.yaml", None).await;
    for (method, path, body, hint) in [
        (
            "POST",
            "/v1/acquire?wait=false",
            "{}",
            "send `wait` as a field",
        ),
        (
            "POST",
            "/v1/report?stats=200",
            "{}",
            "send `status` as a field",
        ),
        (
            "POST",
            "/v1/release?permit=a",
            "{}",
            "send `permit` as a field",
        ),
        (
            "POST",
            "/v1/renew?permit=a",
            "{}",
            "send `permit` as a field",
        ),
        (
            "POST",
            "/v1/tasks/can-submit?queu=a",
            "{}",
            "send `queue` as a field",
        ),
        (
            "POST",
            "/v1/limiting?mode=off",
            "{}",
            "send `mode` as a field",
        ),
        ("GET", "/v1/guards?class=ip", "", "leave the query out"),
        ("DELETE", "/v1/tasks/a?now=1", "", "leave the query out"),
        (
            "GET",
            "/v1/capacity?provder=x",
            "",
            "did you mean `provider`",
        ),
        (
            "POST",
            "/v1/providers/x/pause",
            "{\"for\": \"1m\"}",
            "send none",
        ),
    ] {
        let response = daemon.request(method, path, body).await;
        assert_eq!(response.status, 400, "{method} {path}: {response:?}");
        let shown = response.json()["hint"].as_str().unwrap().to_owned();
        assert!(shown.contains(hint), "{method} {path}: {shown}");
    }
    for path in ["/health?t=1", "/ready?t=1", "/v1/tasks?", "/v1/tasks"] {
        assert_eq!(daemon.request("GET", path, "").await.status, 200, "{path}");
    }
    assert_eq!(daemon.request("POST", "/v1/reload", "{}").await.status, 200);
}
