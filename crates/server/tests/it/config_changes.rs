//! Configuration changes while calls run: reloads, settings, and preserved usage (A14, R-A13).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use serde_json::{Value, json};
use tollgate_config::overlay::keys;
use tollgate_config::{ProviderSetting, Sources};
use tollgate_core::time::Span;
use tollgate_sim::http::{Settings, SimProvider};
use tollgate_sim::latency::Latency;

use crate::client::{Session, get_with, wait_until, within_timeout};
use crate::test_daemon::{TestDaemon, from_file, set_variable, write_file};
use crate::test_gateway::file;

/// Reloads in a storm, a second's worth; for more: TOLLGATE_TEST_RELOADS=10000.
fn reloads() -> usize {
    let wanted = std::env::var("TOLLGATE_TEST_RELOADS").ok();
    wanted.and_then(|text| text.parse().ok()).unwrap_or(1_000)
}

async fn provider(rules: &str) -> SimProvider {
    let ms = Span::from_millis;
    let latency = Latency::constant(ms(1), ms(1), ms(1));
    let settings = Settings::with_rules(rules).unwrap().latency(latency);
    SimProvider::start(settings).await.unwrap()
}

/// Clients that call without a pause until stopped; how often they did not get a response well.
struct Load {
    stop: Arc<AtomicBool>,
    failed: Arc<AtomicUsize>,
    clients: Vec<tokio::task::JoinHandle<()>>,
}

impl Load {
    fn on(daemon: &TestDaemon, clients: usize) -> Load {
        let (stop, failed) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicUsize::new(0)),
        );
        let client = |number| {
            let (stop, failed, to) = (stop.clone(), failed.clone(), daemon.gateway);
            tokio::spawn(async move {
                let mut session = Session::open(to).await;
                let path = format!("/x/{number}"); // its own: the same at once would be one call
                while !stop.load(Ordering::Relaxed) {
                    let response = session.get(&path, &[]).await;
                    if response.status != 200 {
                        failed.fetch_add(1, Ordering::Relaxed);
                    }
                }
            })
        };
        let clients = (0..clients).map(client).collect();
        Load {
            stop,
            failed,
            clients,
        }
    }

    async fn end(self) -> usize {
        self.stop.store(true, Ordering::Relaxed);
        for client in self.clients {
            within_timeout(client).await.unwrap();
        }
        self.failed.load(Ordering::Relaxed)
    }
}

/// R-A13: hundreds of reloads under load, half of them invalid: no call fails, and the provider
/// never gets too many.
#[tokio::test]
async fn repeated_reloads_lose_no_call_and_break_no_limit() {
    let provider = provider("sliding 20/200ms").await;
    let good = |limit: usize| file(provider.address(), &format!("limits: [{limit}/200ms]"));
    write_file("storm.yaml", &good(20));
    let daemon = TestDaemon::start(from_file("storm.yaml")).await;
    let load = Load::on(&daemon, 8);
    let wrong = [
        String::new(),
        "name: x\nlimits: [".to_owned(),
        good(20).replace("limits", "limts"),
        file(provider.address(), "limits: [many/200ms]"),
        file(provider.address(), "limits: [5/1s]\nhealth: {p_sleep: 7}"),
    ];
    let mut rejected = 0;
    for round in 0..reloads() {
        let text = match round % 2 {
            0 => good([20, 7, 13, 20, 1][round / 2 % 5]),
            _ => wrong[round / 2 % wrong.len()].clone(),
        };
        write_file("storm.yaml", &text);
        let response = daemon.reload().await;
        rejected += usize::from(response.status == 422);
        assert_eq!(
            response.status == 422,
            round % 2 == 1,
            "{round}: {response:?}"
        );
    }
    write_file("storm.yaml", &good(20));
    assert_eq!(daemon.reload().await.status, 200);
    assert_eq!((load.end().await, rejected), (0, reloads() / 2));
    let report = provider.stop().await;
    assert_eq!((report.violations, report.duplicates), (0, 0), "{report:?}");
    assert!(report.accepted > 0);
}

/// R-A13: lowered from 10 to 2 while calls wait: in the provider's log no window after the change
/// has more than two, earlier usage counts, and no call is lost.
#[tokio::test]
async fn a_limit_lowered_under_load_applies_at_once() {
    let upstream = crate::upstream::Upstream::start(|_, _| async { crate::upstream::ok() }).await;
    let limit = |limit: usize| file(upstream.address, &format!("limits: [{limit}/300ms]"));
    write_file("lower.yaml", &limit(10));
    let daemon = TestDaemon::start(from_file("lower.yaml")).await;
    let load = Load::on(&daemon, 16);
    let active = daemon.daemon.registry().named("x").unwrap();
    wait_until(|| upstream.count() >= 20 && active.waiting() >= 10).await;
    write_file("lower.yaml", &limit(2));
    assert_eq!(daemon.reload().await.status, 200);
    // A call granted before the change may take half a second and a little more to arrive.
    let after = active.now().at + Span::from_secs(1);
    let late = || -> Vec<_> {
        let arrivals = upstream.requests().into_iter().map(|received| received.at);
        arrivals.filter(|at| *at > after).collect()
    };
    wait_until(|| {
        upstream
            .requests()
            .last()
            .is_some_and(|last| last.at > after)
    })
    .await;
    wait_until(|| late().len() >= 8).await;
    assert_eq!(load.end().await, 0);
    let late = late();
    for (index, begin) in late.iter().enumerate() {
        let window = late
            .iter()
            .skip(index)
            .filter(|at| at.since(*begin) < Span::from_millis(300));
        assert!(window.count() <= 2, "{late:?}");
    }
}

/// R-A13: a limit with a new period or algorithm keeps its usage, in total and per key, and
/// changing it back loses nothing.
#[tokio::test]
async fn a_limit_with_a_new_period_or_algorithm_keeps_its_usage() {
    let upstream = crate::upstream::Upstream::start(|_, _| async { crate::upstream::ok() }).await;
    let limit = |limit: &str| file(upstream.address, &format!("limits: [{limit}]"));
    let shapes = [
        "5/1h",
        "5/2h",
        "{limit: 5, period: 1h, algorithm: token-bucket}",
        "{limit: 5, period: 1h, algorithm: fixed-window}",
        "{limit: 5, period: 1h, per: entity}",
        "{limit: 5, period: 2h, per: entity}",
    ];
    write_file("shape.yaml", &limit(shapes[0]));
    let daemon = TestDaemon::start(from_file("shape.yaml")).await;
    let calls = async |paths: &[&str]| {
        let mut sent = Vec::new();
        for path in paths {
            // Rejected at once all the same: an hour is known to be longer.
            let now = [("x-tollgate-timeout", "30s")];
            sent.push(get_with(daemon.gateway, path, &now).await.status);
        }
        sent
    };
    assert_eq!(calls(&["/x/a/1", "/x/a/2"]).await, [200, 200]);
    for shape in &shapes[1..] {
        write_file("shape.yaml", &limit(shape));
        let response = daemon.reload().await;
        assert_eq!(response.status, 200, "{response:?}");
        let (paths, before) = (["/x/a/3", "/x/a/4", "/x/a/5", "/x/a/6"], upstream.count());
        let sent = match *shape {
            // One more under each shape, until all five are used.
            "5/2h" => calls(&paths[..1]).await,
            _ if upstream.count() < 5 => calls(&paths[..1]).await,
            _ => calls(&paths).await,
        };
        let went = upstream.count() - before;
        assert!(before + went <= 5, "{shape}: {sent:?}");
    }
    assert_eq!(upstream.count(), 5, "and all five could be used");
    write_file("shape.yaml", &limit(shapes[0]));
    assert_eq!(daemon.reload().await.status, 200);
    assert_eq!(calls(&["/x/a/9"]).await, [429]);
}

/// An invalid new version is rejected and shown to operators, and the old one stays; once fixed,
/// the problem disappears.
#[tokio::test]
async fn an_invalid_file_is_rejected_and_shown_until_it_is_fixed() {
    let upstream = crate::upstream::Upstream::start(|_, _| async { crate::upstream::ok() }).await;
    let good = file(upstream.address, "limits: [50/1s]");
    write_file("refused.yaml", &good);
    let daemon = TestDaemon::start(from_file("refused.yaml")).await;
    write_file("refused.yaml", &good.replace("limits", "limts"));
    let response = daemon.reload().await;
    let reported = response.json()["rejected"][0].as_str().unwrap().to_owned();
    assert_eq!(response.status, 422);
    assert!(
        reported.contains("refused.yaml:3") && reported.contains("`limits`"),
        "{reported}"
    );
    let shown = daemon.request("GET", "/v1/providers/x", "").await.json();
    assert_eq!(
        shown["problems"][0],
        reported.as_str(),
        "what is wrong comes first"
    );
    assert_eq!(shown["limits"][0]["limit"], 50);
    assert!(crate::log::captured().contains("refused.yaml:3"));
    assert_eq!(get_with(daemon.gateway, "/x/a", &[]).await.status, 200);
    write_file("refused.yaml", &good);
    assert_eq!(daemon.reload().await.status, 200);
    let shown = daemon.request("GET", "/v1/providers/x", "").await.json();
    assert_eq!(shown["problems"].as_array().unwrap().len(), 0);
}

/// A14: all settings of a request or none; an unknown name gets the nearest valid one as a hint; a
/// runtime setting wins over the file, survives a reload, and can be removed.
#[tokio::test]
async fn a14_a_runtime_setting_wins_until_it_is_removed() {
    write_file(
        "patch.yaml",
        "name: x\nupstream: http://127.0.0.1:9\nlimits: [5/1s]\nqueue: {max: 7}\n",
    );
    let daemon = TestDaemon::start(from_file("patch.yaml")).await;
    let path = "/v1/providers/x/settings";
    let mixed = daemon
        .request("PATCH", path, r#"{"queue.max": 9, "sleep_mx": "60s"}"#)
        .await;
    assert_eq!(mixed.status, 400);
    assert!(
        mixed.body.contains("did you mean `sleep_max`"),
        "{}",
        mixed.body
    );
    assert_eq!(daemon.setting("x", "queue.max").await.0, "7");
    for nonsense in [
        r#"{"p_throttle": 7}"#,
        r#"{"queue.max": "many"}"#,
        r#"{"rate_base": 5}"#,
    ] {
        let rejected = daemon.request("PATCH", path, nonsense).await;
        assert_eq!(rejected.status, 400, "{nonsense}: {rejected:?}");
    }
    let set = daemon
        .request("PATCH", path, r#"{"QUEUE_MAX": 9, "sleep-max": 60}"#)
        .await;
    assert_eq!(set.status, 200, "{set:?}");
    assert_eq!(daemon.reload().await.status, 200);
    assert_eq!(
        daemon.setting("x", "queue.max").await,
        ("9".to_owned(), "set".to_owned())
    );
    assert_eq!(daemon.setting("x", "health.sleep_max").await.0, "60s");
    let back = daemon
        .request("PATCH", path, r#"{"queue_max": null}"#)
        .await;
    assert_eq!(back.status, 200, "{back:?}");
    assert_eq!(daemon.setting("x", "queue.max").await.0, "7");
    let key = daemon
        .request("PATCH", path, r#"{"api_key": "s3cret-canary"}"#)
        .await;
    assert_eq!(key.status, 400);
    assert!(!key.everything().contains("s3cret"), "{key:?}");
}

/// A value of a setting that differs from its default.
fn value(name: &str) -> &'static str {
    match name {
        "MODE" => "breaker",
        "WHEN_BLOCKED" => "reject",
        "RAMP_AFTER" => "any",
        "RETRY_JITTER" | "COOLDOWN_JITTER" => "none",
        "COOLDOWN_ON" => "all",
        "QUEUE_ORDER" => "fifo",
        "P_THROTTLE"
        | "P_RECOVER"
        | "P_PROBE"
        | "THROTTLE_FACTOR"
        | "RETRY_BUDGET_RATIO"
        | "ALERTS_CACHE_HIT_RATE" => "0.15",
        "P_SLEEP" => "0.7",
        "COOLDOWN_FACTOR" | "RAMP_FACTOR" | "RETRY_FACTOR" => "1.5",
        "SCOPE" => "provider",
        "COUNT" => "attempt",
        "WINDOW_RESULTS" => "70",
        "DEGRADE_RECOVER" => "8",
        _ => "7",
    }
}

/// A provider file, in the JSON that YAML reads.
fn plain_file() -> Value {
    json!({
        "name": "every", "upstream": "http://127.0.0.1:9", "concurrency": { "normal": 3 },
        "degrade": { "below": 6 },
        "limits": [{ "limit": 30, "period": "1s", "algorithm": "token-bucket", "burst": 20 }],
    })
}

/// The file with a value at this way: `health.ramp.factor`, `limits[0].limit`.
fn file_with(way: &str, value: &str) -> String {
    let mut file = plain_file();
    let pointer = format!("/{}", way.replace("[0]", "/0").replace('.', "/"));
    let mut at = &mut file;
    for name in pointer.split('/').skip(1) {
        at = match name {
            "0" => &mut at[0],
            name => &mut at[name],
        };
    }
    *at = value.into();
    file.to_string()
}

/// One running server, and every way to set one of its settings.
struct SettingSources {
    daemon: TestDaemon,
}

impl SettingSources {
    async fn assert_value(&self, way: &str, value: &str, by: &str) {
        let (shown, who) = self.daemon.setting("every", way).await;
        assert_eq!(shown.trim_end_matches(['s', '%']), value, "{way} by {who}");
        assert!(who.starts_with(by), "{way}: {who}, not {by}");
    }

    async fn patch(&self, key: &str, way: &str, value: &str) {
        let path = "/v1/providers/every/settings";
        for (body, status) in [
            (format!("{{\"{key}\": \"{value}\"}}"), 200),
            (format!("{{\"{key}\": \"\\u0000\"}}"), 400),
        ] {
            let set = self.daemon.request("PATCH", path, &body).await;
            assert_eq!(set.status, status, "{key}: {set:?}");
            self.assert_value(way, value, "set").await;
        }
        let back = format!("{{\"{key}\": null}}");
        assert_eq!(self.daemon.request("PATCH", path, &back).await.status, 200);
    }

    async fn environment(&self, key: &str, way: &str, value: &str) {
        let name = format!("TOLLGATE_EVERY_{key}");
        set_variable(&name, Some(value));
        assert_eq!(self.daemon.reload().await.status, 200, "{name}");
        self.assert_value(way, value, &format!("environment {name}"))
            .await;
        set_variable(&name, None);
    }

    /// In a file a length of time has its unit.
    async fn file(&self, way: &str, value: &str) {
        write_file("every.yaml", &file_with(way, value));
        if self.daemon.reload().await.status != 200 {
            write_file("every.yaml", &file_with(way, &format!("{value}s")));
            assert_eq!(self.daemon.reload().await.status, 200, "{way}");
        }
        self.assert_value(way, value, "every.yaml").await;
        write_file("every.yaml", &plain_file().to_string());
    }
}

/// A14: a running server applies every setting of the table from file, environment, command line
/// and PATCH, and rejects invalid values.
#[tokio::test]
async fn a14_every_threshold_can_be_set_by_file_environment_flag_and_patch() {
    write_file("every.yaml", &plain_file().to_string());
    let sources = |set: Vec<ProviderSetting>| Sources {
        providers: vec!["every.yaml".to_owned()],
        set,
        ..Sources::default()
    };
    let daemon = TestDaemon::start(sources(Vec::new())).await;
    let ways = SettingSources { daemon };
    let mut flags = Vec::new();
    assert!(keys().len() > 50, "{}", keys().len());
    for key in keys() {
        let value = value(&key.name);
        let way = match key.name.as_str() {
            "RATE_BASE" => "limits[0].limit",
            "BUCKET_CAP" => "limits[0].burst",
            _ => key.path.as_str(),
        };
        ways.patch(&key.name, way, value).await;
        ways.environment(&key.name, way, value).await;
        ways.file(way, value).await;
        flags.push((
            ProviderSetting::parse(&format!("every.{}={value}", key.name)),
            way,
            value,
        ));
    }
    assert_eq!(ways.daemon.reload().await.status, 200);
    for (set, way, value) in flags {
        let daemon = TestDaemon::start(sources(vec![set])).await;
        SettingSources { daemon }
            .assert_value(way, value, "--set")
            .await;
    }
}
