//! The page, its session, its stream and its data.

use std::time::Duration;

use http_body_util::BodyExt;
use serde_json::Value;
use tollgate::providers::Options;
use tollgate_sim::http::{Settings, SimProvider};

use crate::client::{ClientResponse, Session, get_with, within_timeout};
use crate::test_daemon::{TestDaemon, from_file, raw_request, write_file};

const TOKEN: &str = "canary-page-token"; // tidy:canary

pub(crate) async fn daemon(name: &str, file: &str, token: Option<&str>) -> TestDaemon {
    write_file(name, file);
    TestDaemon::start_with(from_file(name), Options::default(), token).await
}

pub(crate) async fn with_provider(
    name: &str,
    rules: &str,
    file: &str,
) -> (SimProvider, TestDaemon) {
    let provider = Settings::with_rules(rules).unwrap();
    let provider = SimProvider::start(provider).await.unwrap();
    let file = format!("name: x\nupstream: {}\n{file}\n", provider.url());
    let daemon = daemon(name, &file, None).await;
    (provider, daemon)
}

async fn ask(
    daemon: &TestDaemon,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> ClientResponse {
    let host = daemon.admin.to_string();
    let own = [("host", host.as_str())];
    let all: Vec<(&str, &str)> = own.into_iter().chain(headers.iter().copied()).collect();
    raw_request(daemon.admin, method, path, &all, body).await
}

/// A stream of events, read until one is found.
pub(crate) struct Stream {
    response: hyper::Response<hyper::body::Incoming>,
    text: String,
    _session: Session,
}

impl Stream {
    pub(crate) async fn open(daemon: &TestDaemon, query: &str) -> Stream {
        let mut session = Session::open(daemon.admin).await;
        let request = hyper::Request::get(format!("/v1/events{query}"))
            .header("host", daemon.admin.to_string())
            .body(http_body_util::Full::default())
            .unwrap();
        let response = session.send(request).await;
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        Stream {
            response,
            text: String::new(),
            _session: session,
        }
    }

    /// The data of the next event of this kind that fits.
    pub(crate) async fn find(&mut self, kind: &str, fits: impl Fn(&Value) -> bool) -> Value {
        within_timeout(async {
            loop {
                while let Some((event, rest)) = self.text.split_once("\n\n") {
                    let (event, rest) = (event.to_owned(), rest.to_owned());
                    self.text = rest;
                    let is_it = event.lines().any(|line| line == format!("event: {kind}"));
                    let data = event.lines().find_map(|line| line.strip_prefix("data: "));
                    if let (true, Some(data)) = (is_it, data) {
                        let data: Value = serde_json::from_str(data).expect("JSON");
                        if fits(&data) {
                            return data;
                        }
                    }
                }
                let frame = self.response.body_mut().frame().await;
                let frame = frame.expect("the stream goes on").expect("no error");
                let bytes = frame.into_data().unwrap_or_default();
                self.text
                    .push_str(std::str::from_utf8(&bytes).expect("UTF-8"));
            }
        })
        .await
    }
}

/// R-E8: scripts and styles of the page come from the admin address only, and nobody may frame it.
#[tokio::test]
async fn the_page_is_served_under_a_strict_policy() {
    let daemon = daemon(
        "page-files.yaml",
        "name: x\ndomain: api.example.org\n",
        None,
    )
    .await;
    let page = ask(&daemon, "GET", "/", &[], "").await;
    assert_eq!(page.status, 200);
    let policy = page.header("content-security-policy");
    for part in [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "frame-ancestors 'none'",
    ] {
        assert!(policy.contains(part), "{policy}");
    }
    assert!(!policy.contains("unsafe"), "{policy}");
    let tag = page.header("etag").to_owned();
    let again = ask(&daemon, "GET", "/", &[("if-none-match", &tag)], "").await;
    assert_eq!(again.status, 304);
    assert_eq!(
        ask(&daemon, "GET", "/page/app.js", &[], "").await.status,
        200
    );
    assert_eq!(
        ask(&daemon, "GET", "/page/none.js", &[], "").await.status,
        404
    );
    let rebound = raw_request(daemon.admin, "GET", "/", &[("host", "evil.example")], "").await;
    assert_eq!(rebound.status, 403, "DNS rebinding");
}

#[tokio::test]
async fn a_token_is_exchanged_for_a_cookie_that_scripts_cannot_read() {
    let daemon = daemon(
        "page-session.yaml",
        "name: x\ndomain: api.example.org\n",
        Some(TOKEN),
    )
    .await;
    let admin = ("x-tollgate-admin", "1");
    let page = ask(&daemon, "GET", "/", &[], "").await;
    assert_eq!(page.status, 200, "the page itself has no data");
    for path in [
        "/v1/providers",
        "/v1/events",
        "/v1/history",
        "/v1/config",
        "/v1/callers",
    ] {
        assert_eq!(
            ask(&daemon, "GET", path, &[], "").await.status,
            401,
            "{path}"
        );
    }
    let wrong = ask(
        &daemon,
        "POST",
        "/v1/session",
        &[admin],
        r#"{"token":"wrong"}"#,
    )
    .await;
    assert_eq!((wrong.status, wrong.header("set-cookie")), (401, ""));
    let body = format!(r#"{{"token":"{TOKEN}"}}"#);
    let foreign = [admin, ("origin", "http://evil.example")];
    assert_eq!(
        ask(&daemon, "POST", "/v1/session", &foreign, &body)
            .await
            .status,
        403
    );
    let done = ask(&daemon, "POST", "/v1/session", &[admin], &body).await;
    assert_eq!(done.status, 200);
    let set = done.header("set-cookie").to_owned();
    assert!(
        set.contains("HttpOnly") && set.contains("SameSite=Strict"),
        "{set}"
    );
    assert!(!set.contains(TOKEN) && !done.everything().contains(TOKEN));
    let cookie = set.split(';').next().unwrap().to_owned();
    let cookie = ("cookie", cookie.as_str());
    assert_eq!(
        ask(&daemon, "GET", "/v1/providers", &[cookie], "")
            .await
            .status,
        200
    );
    let pause = "/v1/providers/x/pause";
    let cross = [cookie, admin, ("origin", "http://evil.example")];
    let session = "/v1/session";
    type Headers<'a> = &'a [(&'a str, &'a str)];
    let tries: [(&str, &str, Headers<'_>, u16, &str); 6] = [
        ("POST", pause, &[cookie], 403, "no header"),
        ("POST", pause, &cross, 403, "another site"),
        ("POST", pause, &[admin], 401, "no cookie"),
        ("POST", pause, &[cookie, admin], 200, "both"),
        ("DELETE", session, &[cookie, admin], 204, "signs out"),
        ("GET", "/v1/providers", &[cookie], 401, "signed out"),
    ];
    for (method, path, headers, status, why) in tries {
        let response = ask(&daemon, method, path, headers, "").await;
        assert_eq!(response.status, status, "{why}");
    }
}

#[tokio::test]
async fn a_stream_has_samples_transitions_and_decisions() {
    let (_provider, daemon) =
        with_provider("page-stream.yaml", "sliding 100/1s", "limits: [100/1s]").await;
    let mut stream = Stream::open(&daemon, "").await;
    let caller = ("x-tollgate-caller", "web");
    let response = get_with(daemon.gateway, "/x/items/7?secret=1", &[caller]).await;
    assert_eq!(response.status, 200);
    let call = stream.find("decision", |_| true).await;
    assert_eq!(
        (&call["provider"], &call["caller"], &call["status"]),
        (&"x".into(), &"web".into(), &200.into())
    );
    assert_eq!(
        (&call["path"], &call["source"]),
        (&"/items/7".into(), &"upstream".into())
    );
    assert_eq!(call["id"], response.header("x-tollgate-id"));
    assert!(!call.to_string().contains("secret"), "{call}");
    let kinds: Vec<&str> = call["steps"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|step| step["kind"].as_str())
        .collect();
    assert_eq!(kinds, ["allow", "sent", "response", "end"]);
    let sample = stream
        .find("sample", |sample| sample["providers"][0]["started"] == true)
        .await;
    let x = &sample["providers"][0];
    assert_eq!((&x["name"], &x["state"]), (&"x".into(), &"normal".into()));
    assert_eq!(
        (&x["limits"][0]["name"], &x["limits"][0]["limit"]),
        (&"100/1s".into(), &100.into())
    );
    let paused = daemon.request("POST", "/v1/providers/x/pause", "").await;
    assert_eq!(paused.status, 200);
    stream
        .find("notice", |event| event["text"] == "operator: pause")
        .await;
    let event = stream
        .find("transition", |event| event["to"] == "sleep")
        .await;
    assert_eq!(event["text"], "Paused: by an operator");
    // A page that opens later sees what happened before.
    let mut later = Stream::open(&daemon, "?kinds=transition").await;
    later
        .find("transition", |event| event["to"] == "sleep")
        .await;
}

#[tokio::test]
async fn too_many_streams_are_rejected_and_a_place_frees_when_one_closes() {
    let daemon = daemon("page-many.yaml", "name: x\ndomain: api.example.org\n", None).await;
    let mut open = Vec::new();
    for _ in 0..16 {
        open.push(Stream::open(&daemon, "?kinds=alert").await);
    }
    let refused = daemon.request("GET", "/v1/events", "").await;
    assert_eq!(
        (refused.status, refused.json()["error"].clone()),
        (429, "TooManyListeners".into())
    );
    let mistyped = daemon.request("GET", "/v1/events?kinds=samples", "").await;
    assert_eq!(mistyped.status, 400);
    open.pop();
    within_timeout(async {
        // The connection is closed in the background.
        loop {
            let mut session = Session::open(daemon.admin).await;
            let request =
                hyper::Request::get("/v1/events").header("host", daemon.admin.to_string());
            let request = request.body(http_body_util::Full::default()).unwrap();
            if session.send(request).await.status() == 200 {
                return;
            }
        }
    })
    .await;
}

/// A stream that a page holds open must not delay the end of the daemon.
#[tokio::test]
async fn a_shutdown_ends_the_streams_at_once() {
    let daemon = daemon(
        "page-drain.yaml",
        "name: x\ndomain: api.example.org\n",
        None,
    )
    .await;
    let mut stream = Stream::open(&daemon, "").await;
    let (_gateway, admin) = daemon.servers;
    let drained = tokio::time::timeout(Duration::from_secs(4), admin.drain());
    assert!(drained.await.is_ok(), "the grace period is 10 s");
    while let Some(frame) = stream.response.body_mut().frame().await {
        if frame.is_err() {
            break;
        }
    }
}

#[tokio::test]
async fn the_history_counts_what_was_sent_and_who_called() {
    let (_provider, daemon) = with_provider(
        "page-history.yaml",
        "sliding 100/1s",
        "limits: [100/1s]\ncache: {ttl: 1h}",
    )
    .await;
    for number in 0..5 {
        let caller = (
            "x-tollgate-caller",
            if number == 0 { "web" } else { "batch" },
        );
        get_with(
            daemon.gateway,
            &format!("/x/items/{number}"),
            &[caller, ("x-tollgate-priority", "high")],
        )
        .await;
    }
    let hit = get_with(daemon.gateway, "/x/items/1", &[]).await;
    assert_eq!(hit.header("x-tollgate-source"), "cache");
    let sum = |column: &Value| -> u64 {
        column
            .as_array()
            .unwrap()
            .iter()
            .filter_map(Value::as_u64)
            .sum()
    };
    let history = within_timeout(async {
        loop {
            let history = daemon
                .request("GET", "/v1/history?provider=x&span=5m", "")
                .await
                .json();
            if sum(&history["calls"]) >= 6 {
                return history;
            }
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!(
        (&history["every"], &history["provider"]),
        (&1.into(), &"x".into())
    );
    assert_eq!(
        (
            sum(&history["sent_high"]),
            sum(&history["success"]),
            sum(&history["saved"])
        ),
        (5, 5, 1)
    );
    let callers = daemon.request("GET", "/v1/callers", "").await.json();
    let callers = callers["providers"][0]["callers"].as_array().unwrap();
    let count = |one: &Value| (one["name"].clone(), one["calls"].clone());
    let calls: Vec<(Value, Value)> = callers.iter().map(count).collect();
    let expected = [("default", 1), ("batch", 4), ("web", 1)];
    assert_eq!(
        calls,
        expected.map(|(name, calls)| (name.into(), calls.into()))
    );
    for (query, status) in [("provider=y", 404), ("span=0s", 400)] {
        let path = format!("/v1/history?{query}");
        let response = daemon.request("GET", &path, "").await;
        assert_eq!(response.status, status, "{query}");
    }
}

#[tokio::test]
async fn h3_every_setting_says_who_set_it_and_keys_are_masked() {
    let file =
        "name: x\ndomain: api.example.org\napi_key: canary-page-key\nlimits: [5/1s]\nlimt: 3\n"; // tidy:canary
    write_file("page-config.yaml", &file.replace("limt: 3\n", ""));
    let daemon = TestDaemon::start(from_file("page-config.yaml")).await;
    let set = daemon
        .request("PATCH", "/v1/providers/x/settings", r#"{"queue.max": "7"}"#)
        .await;
    assert_eq!(set.status, 200);
    write_file("page-config.yaml", file);
    daemon.reload().await;
    let response = daemon.request("GET", "/v1/config", "").await;
    assert!(!response.everything().contains("canary-page-key")); // tidy:canary
    let config = response.json();
    let settings = config["providers"][0]["settings"]
        .as_array()
        .unwrap()
        .clone();
    let by = |key: &str| {
        let found = settings.iter().find(|one| one["key"] == key);
        found.map(|one| {
            (
                one["value"].clone(),
                one["by"].as_str().unwrap_or_default().to_owned(),
            )
        })
    };
    assert_eq!(by("queue.max"), Some(("7".into(), "set".to_owned())));
    assert_eq!(
        by("domain").map(|(_, by)| by),
        Some("page-config.yaml:2:9".to_owned())
    );
    assert_eq!(by("api_key").map(|(value, _)| value), Some(Value::Null));
    assert_eq!(
        by("queue.timeout").map(|(_, by)| by),
        Some("default".to_owned())
    );
    let problem = &config["problems"][0];
    assert_eq!(
        (&problem["level"], &problem["place"]),
        (&"error".into(), &"page-config.yaml:5:1".into())
    );
    assert_eq!(config["store"]["kind"], "memory");
    assert_eq!(config["gateway"], daemon.gateway.to_string());
}
