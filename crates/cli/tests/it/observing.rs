//! What a real daemon tells about its calls: to Prometheus, to Grafana's panels, in files, and to `tollgate why`.

#![expect(
    clippy::disallowed_methods,
    reason = "real processes are scraped and awaited in real time"
)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tollgate_sim::test_host::free_address;

use crate::folder::Folder;
use crate::operating::upstream;
use crate::running_daemon::RunningDaemon;

const DASHBOARD: &str = include_str!("../../../../grafana/tollgate.json");

const CONFIG: &str = "guards:
  ip:  { limit: 10,  period: 1m, burst: 1,  by: ip }
  api: { limit: 100, period: 1m, burst: 20, by: global }
";

/// Far beyond the need of a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A daemon that has served calls, and denied one.
fn daemon(name: &str, config: &str) -> RunningDaemon {
    let address = upstream(204);
    let provider = format!("name: x\nupstream: http://{address}\nlimits: [100/1s]\n");
    let folder = Folder::new(name)
        .file("x.yaml", &provider)
        .file("tollgate.yaml", config);
    let daemon = RunningDaemon::start(folder, &[]);
    for _ in 0..3 {
        daemon.get("/x/a?q=secret");
    }
    daemon
}

/// The body of a response to GET.
fn get(address: &str, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    let request = format!("GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).ok()?;
    let mut response = String::new();
    stream.read_to_string(&mut response).ok()?;
    let (head, body) = response.split_once("\r\n\r\n")?;
    head.starts_with("HTTP/1.1 200").then(|| body.to_owned())
}

/// Asks for tokens of a guard.
fn deny_one(daemon: &RunningDaemon) {
    for _ in 0..2 {
        let mut stream = TcpStream::connect(&daemon.admin).unwrap();
        let body = r#"{"guard":"ip","identifier":"203.0.113.7","wait":false}"#;
        let head = format!(
            "POST /v1/acquire HTTP/1.1\r\nhost: {}\r\nx-tollgate-admin: 1\r\ncontent-type: application/json\r\n\
             content-length: {}\r\nconnection: close\r\n\r\n{body}",
            daemon.admin,
            body.len()
        );
        stream.write_all(head.as_bytes()).unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).unwrap();
    }
}

/// The two names that the documents give, and that promtool would spell otherwise, are its only complaints.
#[test]
fn c7_promtool_accepts_the_metrics() {
    let daemon = daemon("promtool", CONFIG);
    deny_one(&daemon);
    let metrics = get(&daemon.admin, "/metrics").expect("metrics");
    assert!(
        metrics.contains("rate_limit_hits_total{type=\"ip\",identifier=\"203.0.113.7\"} 1"),
        "{metrics}"
    );
    let mut promtool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool is missing; run `make tools` (Debian: prometheus)");
    promtool
        .stdin
        .take()
        .unwrap()
        .write_all(metrics.as_bytes())
        .unwrap();
    let output = promtool.wait_with_output().unwrap();
    let text = format!(
        "{}{}",
        crate::text(&output.stdout),
        crate::text(&output.stderr)
    );
    let allowed = ["tollgate_latency_ms", "tollgate_sleep_ms"];
    let complaints: Vec<&str> = text
        .lines()
        .filter(|line| {
            !line.trim().is_empty() && !allowed.iter().any(|name| line.starts_with(name))
        })
        .collect();
    assert!(complaints.is_empty(), "{complaints:#?}");
}

/// A Prometheus that ends with the test.
struct Prometheus {
    child: Child,
    address: String,
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

impl Prometheus {
    fn start(daemon: &RunningDaemon) -> Prometheus {
        let config = format!(
            "scrape_configs:\n- job_name: tollgate\n  scrape_interval: 1s\n  static_configs: [{{targets: ['{}']}}]\n",
            daemon.admin
        );
        daemon.folder.rewrite("prometheus.yml", &config);
        // Prometheus cannot choose a port itself.
        let free = free_address();
        let child = Command::new("prometheus")
            .current_dir(daemon.folder.path())
            .args(["--config.file=prometheus.yml", "--storage.tsdb.path=tsdb"])
            .arg(format!("--web.listen-address={free}"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("prometheus is missing; run `make tools`");
        Prometheus {
            child,
            address: free.to_string(),
        }
    }

    /// The result of a query; `None` = it does not respond, or calls the query wrong.
    fn query(&self, query: &str) -> Option<Vec<Value>> {
        let encoded: String = query.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let body = get(&self.address, &format!("/api/v1/query?query={encoded}"))?;
        let json = body
            .find('{')
            .and_then(|at| body.get(at..=body.rfind('}')?))?;
        let reply: Value = serde_json::from_str(json).ok()?;
        assert_eq!(reply["status"], "success", "{query}: {reply}");
        reply["data"]["result"].as_array().cloned()
    }
}

/// C8: the queries of the panels run on a real Prometheus that has scraped a real daemon.
#[test]
fn c8_the_panels_of_the_dashboard_show_what_prometheus_scraped() {
    let daemon = daemon("prometheus", CONFIG);
    let slow = daemon.folder.read("x.yaml").replace("100/1s", "2/1s");
    let slow = format!("{slow}cache: {{ttl: 1h}}\n");
    daemon.folder.rewrite("x.yaml", &slow);
    assert_eq!(daemon.tollgate(&["reload"]).code, Some(0));
    deny_one(&daemon);
    let prometheus = Prometheus::start(&daemon);
    let began = Instant::now();
    let scraped = |times: u32| {
        let query = format!("count_over_time(tollgate_store_up[1m]) >= {times}");
        while prometheus
            .query(&query)
            .is_none_or(|found| found.is_empty())
        {
            assert!(began.elapsed() < PATIENCE, "nothing was scraped");
            std::thread::park_timeout(Duration::from_millis(100));
        }
    };
    // Rates need two samples, and calls that waited between them.
    scraped(1);
    std::thread::scope(|scope| {
        for number in 0..5 {
            let gateway = &daemon.gateway;
            scope.spawn(move || get(gateway, &format!("/x/{number}")));
        }
    });
    // Two calls of one path: the second one is a hit.
    for _ in 0..2 {
        daemon.get("/x/cached");
    }
    scraped(9);
    let dashboard: Value = serde_json::from_str(DASHBOARD).expect("JSON");
    let panels = dashboard["panels"].as_array().unwrap();
    let titles: Vec<&str> = panels
        .iter()
        .filter_map(|panel| panel["title"].as_str())
        .collect();
    for title in [
        "Rate limit hits by type",
        "Average wait",
        "Queue depth",
        "Tokens available per bucket",
    ] {
        assert!(titles.contains(&title), "{titles:?}");
    }
    for panel in panels {
        for target in panel["targets"].as_array().unwrap() {
            let query = target["expr"].as_str().unwrap();
            let found = prometheus.query(query).expect(query);
            let is_number = |one: &Value| one["value"][1] != "NaN";
            assert!(found.iter().any(is_number), "{query}: {found:?}");
        }
    }
    let up = prometheus.query("up").unwrap();
    assert_eq!(up[0]["value"][1], "1");
    let denied = prometheus
        .query("rate_limit_hits_total{type=\"ip\",identifier=\"203.0.113.7\"}")
        .unwrap();
    assert_eq!(denied[0]["value"][1], "1");
}

/// A17: lines in a file that never grows beyond its bound.
#[test]
fn a17_metrics_are_written_as_ndjson_within_a_bound() {
    let config = "metrics: {ndjson: own.ndjson, every: 10ms}\nlog: {max_size: 8KiB, keep: 2}\n";
    let daemon = daemon("ndjson", config);
    let began = Instant::now();
    let has = |file: &str| daemon.folder.path().join(file).exists();
    // It may be stopped in the middle of a rotation: then it goes on.
    loop {
        daemon.signal("-STOP");
        if has("own.ndjson.1") && has("own.ndjson.2") {
            break;
        }
        daemon.signal("-CONT");
        assert!(began.elapsed() < PATIENCE, "the file was not rotated");
        std::thread::park_timeout(Duration::from_millis(20));
    }
    let mut names = Vec::new();
    for file in ["own.ndjson.1", "own.ndjson.2"] {
        let text = daemon.folder.read(file);
        assert!(text.len() <= 8 << 10, "{file}: {}", text.len());
        for line in text.lines() {
            let line: Value = serde_json::from_str(line).expect(line);
            assert!(line["ts"].as_str().unwrap().ends_with('Z'), "{line}");
            names.push(line["name"].as_str().unwrap().to_owned());
        }
    }
    for name in ["requests_total", "latency_ms", "rate_current"] {
        assert!(names.iter().any(|known| known == name), "{name}");
    }
    assert!(!daemon.folder.path().join("own.ndjson.3").exists());
    daemon.signal("-CONT");
}

/// A17: to standard output, a line of JSON per metric, after what the program says itself.
#[test]
fn a17_metrics_are_written_to_standard_output() {
    let folder = Folder::new("ndjson-stdout")
        .file("x.yaml", crate::running_daemon::X)
        .file("tollgate.yaml", "metrics: {ndjson: '-', every: 10ms}\n");
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.args(["serve", "--listen", "127.0.0.1:0", "--store", "memory:"]);
    command.args(["--admin", "127.0.0.1:0", "--provider", "x.yaml"]);
    let mut child = folder
        .prepare(&mut command)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("the program runs");
    let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    let json = lines
        .by_ref()
        .map_while(Result::ok)
        .filter(|line| line.starts_with('{'));
    let names: Vec<String> = json
        .take(200)
        .map(|line| {
            let line: Value = serde_json::from_str(&line).expect(&line);
            assert!(line["ts"].as_str().unwrap().ends_with('Z'), "{line}");
            line["name"].as_str().unwrap().to_owned()
        })
        .collect();
    child.kill().ok();
    child.wait().ok();
    for name in ["requests_total", "latency_ms", "rate_current"] {
        assert!(names.iter().any(|known| known == name), "{name}: {names:?}");
    }
}

/// One line for every call, without the query.
#[test]
fn a16_the_access_log_has_a_line_for_every_call() {
    let daemon = daemon("accesslog", "log: {access: true}\n");
    let line = daemon.wait_for_log("event=access");
    for part in [
        "method=GET path=/a ",
        "status=204",
        "source=upstream",
        "attempts=1",
        "provider=x",
        "decision=allow",
    ] {
        assert!(line.contains(part), "{part}: {line}");
    }
    let field = |name: &str| {
        let mut fields = line.split_whitespace();
        let found = fields.find_map(|field| field.strip_prefix(name)?.strip_prefix('='));
        found.unwrap_or_else(|| panic!("{name}: {line}")).to_owned()
    };
    let wait: f64 = field("wait").trim_end_matches('s').parse().unwrap();
    assert!((0.0..60.0).contains(&wait), "{line}");
    let why = daemon.tollgate(&["why", &field("id")]);
    assert!(
        why.out.contains("GET /a"),
        "the id of the call: {}",
        why.out
    );
    assert!(!line.contains("secret"), "{line}");
}

/// `tollgate why` tells the story of a call by its id, and of the last one.
#[test]
fn why_tells_what_happened_to_a_call() {
    let daemon = daemon("why", "log: {access: false}\n");
    let last = daemon.tollgate(&["why", "--last", "x"]);
    assert_eq!(last.code, Some(0), "{}", last.err);
    for part in [
        " GET /a to x",
        "It got a permit at once.",
        "Attempt 1 was sent to x.",
        "The caller got 204.",
    ] {
        assert!(last.out.contains(part), "{part}: {}", last.out);
    }
    let id = last.out.split_whitespace().next().unwrap();
    let same = daemon.tollgate(&["why", id]);
    assert_eq!((same.code, &same.out), (Some(0), &last.out));
    let unknown = daemon.tollgate(&["why", "nobody"]);
    assert_eq!(unknown.code, Some(1));
    assert!(
        unknown.err.contains("the last 1024 calls"),
        "{}",
        unknown.err
    );
}

/// H7: `status --json` has the count of a fixed window and when it began; and `top` prints one picture without a terminal.
#[test]
fn h7_status_and_top_show_the_count_of_a_window() {
    let address = upstream(204);
    let provider = format!(
        "name: x\nupstream: http://{address}\nlimits: [{{limit: 7, period: 1h, algorithm: fixed-window}}]\n"
    );
    let daemon = RunningDaemon::start(Folder::new("h7").file("x.yaml", &provider), &[]);
    daemon.get("/x/a");
    daemon.get("/x/b");
    let status = daemon.tollgate(&["status", "x", "--json"]);
    let status: Value = serde_json::from_str(&status.out).expect("JSON");
    let limit = &status["limits"][0];
    assert_eq!(
        (&limit["used"], &limit["remaining"]),
        (&Value::from(2), &Value::from(5))
    );
    let (start, reset) = (
        limit["window_start"].as_f64().unwrap(),
        limit["reset_at"].as_f64().unwrap(),
    );
    assert!((reset - start - 3_600.0).abs() < 5.0, "{limit}");
    let top = daemon.tollgate(&["top"]);
    assert_eq!(top.code, Some(0), "{}", top.err);
    for part in [
        "1 provider, 0 calls waiting, ",
        "7/1h: 5, resets ",
        "last calls",
        "GET /b",
    ] {
        assert!(top.out.contains(part), "{part}:\n{}", top.out);
    }
}

/// A request with headers and a body; the whole response.
fn send(address: &str, head: &str, body: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let request = format!(
        "{head}\r\nhost: {address}\r\nx-tollgate-admin: 1\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    response
}

/// "Why was this rejected?" had no response for guards: their denials had no id and were not among the last decisions.
#[test]
fn why_explains_the_denial_of_a_guard_by_the_id_of_its_reply() {
    let address = upstream(204);
    let provider =
        format!("name: x\nupstream: http://{address}\nlimits: [100/1s]\nguards: [user]\n");
    let config = "guards:\n  ip: { limit: 10, period: 1m, burst: 1, by: ip }\n  user: { limit: 20, period: 1h, burst: 1, by: 'header:x-user-id' }\n";
    let folder = Folder::new("whyguard")
        .file("x.yaml", &provider)
        .file("tollgate.yaml", config);
    let daemon = RunningDaemon::start(folder, &["--resp", "127.0.0.1:0"]);
    let acquire = "POST /v1/acquire HTTP/1.1\r\ncontent-type: application/json";
    let body = r#"{"guard":"user","identifier":"user-canary","wait":false}"#;
    assert!(send(&daemon.admin, acquire, body).contains("200 OK"));
    let denied = send(&daemon.admin, acquire, body);
    let header = |response: &str| {
        let line = response
            .lines()
            .find_map(|line| line.strip_prefix("x-tollgate-id: "));
        line.unwrap_or_else(|| panic!("{response}")).to_owned()
    };
    let id = header(&denied);
    assert!(denied.contains(&format!("\"id\":\"{id}\"")), "{denied}");
    let check = "GET /v1/check?guard=user&identifier=user-canary HTTP/1.1";
    let checked = header(&send(&daemon.admin, check, ""));
    let mut resp = TcpStream::connect(daemon.resp.as_ref().unwrap()).unwrap();
    resp.set_read_timeout(Some(PATIENCE)).unwrap();
    resp.write_all(b"TG.ACQUIRE GUARD user user-canary NOWAIT\r\nQUIT\r\n")
        .unwrap();
    let mut reply = String::new();
    resp.read_to_string(&mut reply).unwrap();
    let mut lines = reply.lines().skip_while(|line| *line != "id");
    let by_resp = lines.nth(2).unwrap_or_else(|| panic!("{reply}"));
    for id in [&id, &checked, by_resp] {
        let why = daemon.tollgate(&["why", id]);
        assert_eq!(why.code, Some(0), "{id}: {}", why.err);
        for part in [
            "It got no permit: the limit 20/1h of guard user was used up.",
            "The caller got 429 from Tollgate: Rate limit exceeded. Please try again later.\n",
            "decision reject, reason limit, limit 20/1h of guard user",
        ] {
            assert!(why.out.contains(part), "{part}: {}", why.out);
        }
        assert!(!why.out.contains("canary"), "{}", why.out);
    }
    // A call that a guard denies is one entry, with the id of the call.
    let call = "GET /x/a HTTP/1.1\r\nx-user-id: other";
    assert!(send(&daemon.gateway, call, "").contains("204"));
    let id = header(&send(&daemon.gateway, call, ""));
    let all = get(&daemon.admin, "/v1/decisions?limit=100").unwrap();
    let all: Value = serde_json::from_str(&all).unwrap();
    let all = all["decisions"].as_array().unwrap();
    let denied = all.iter().filter(|one| one["decision"] == "reject");
    assert_eq!(denied.count(), 4, "{all:?}");
    assert!(all.iter().any(|one| one["id"] == *id), "{all:?}");
    let events = get(&daemon.admin, "/v1/guards").unwrap();
    assert!(events.contains("\"denied\":4"), "{events}");
}

/// What a caller waits for is said as it is: calls of lower priority that wait are no reason to say that nobody does,
/// and `top` shows when the calls of each caller are done.
#[test]
fn calls_of_lower_priority_and_each_caller_are_told_of() {
    let address = upstream(204);
    let provider =
        format!("name: x\nupstream: http://{address}\nlimits: [{{limit: 1, period: 10s}}]\n");
    let daemon = RunningDaemon::start(Folder::new("lower").file("x.yaml", &provider), &[]);
    daemon.get("/x/first");
    let began = Instant::now();
    let waiting = |calls: u64| {
        loop {
            let status = get(&daemon.admin, "/v1/providers/x").unwrap();
            let status: Value = serde_json::from_str(&status).unwrap();
            let queue = &status["queue"];
            let all = ["high", "normal", "low"].map(|name| queue[name].as_u64().unwrap());
            if all.iter().sum::<u64>() == calls {
                return;
            }
            assert!(began.elapsed() < PATIENCE, "{queue}");
            std::thread::park_timeout(Duration::from_millis(5));
        }
    };
    std::thread::scope(|scope| {
        let gateway = &daemon.gateway;
        let call = |path: &'static str, priority: &'static str| {
            let head = format!("GET /x@{path} HTTP/1.1\r\nx-tollgate-priority: {priority}");
            scope.spawn(move || send(gateway, &head, ""))
        };
        call("batch/low", "low");
        waiting(1);
        call("web/normal", "normal");
        waiting(2);
        let top = daemon.tollgate(&["top"]);
        assert_eq!(top.code, Some(0), "{}", top.err);
        for caller in ["web", "batch"] {
            let line = top
                .out
                .lines()
                .find(|line| line.trim_start().starts_with(caller))
                .unwrap_or_else(|| panic!("{caller}:\n{}", top.out));
            let parts: Vec<&str> = line.split_whitespace().collect();
            assert_eq!(parts[1], "1", "{line}");
            // As long as web's calls come, those of low priority may have to wait.
            let is_time = || parts[2].parse::<f64>().is_ok() && parts[3].ends_with('s');
            assert!(caller == "batch" || is_time(), "{line}");
        }
    });
    let all = get(&daemon.admin, "/v1/decisions?limit=9").unwrap();
    let all: Value = serde_json::from_str(&all).unwrap();
    let all = all["decisions"].as_array().unwrap();
    let normal = all.iter().find(|one| one["path"] == "/normal").unwrap();
    let steps = normal["steps"].to_string();
    assert!(
        steps.contains("no call of the same or a higher priority waited for x."),
        "{steps}"
    );
}
