//! The snippets of docs/integrations.md, except those for Traefik and Caddy, run against a real daemon; nginx and the clients of Redis are real ones.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::folder::Folder;
use crate::operating::upstream;
use crate::running_daemon::RunningDaemon;

const PAGE: &str = include_str!("../../../../docs/integrations.md");

const CONFIG: &str = "guards:
  ip:  { limit: 10,  period: 1m, burst: 5,  by: ip }
  api: { limit: 100, period: 1m, burst: 20, by: global }
  task: { limit: 50, period: 1m, burst: 15, by: name, max_pending: 50, retry_delay: 60s }
trusted_proxies: [127.0.0.1]
callers: { app: { token: canary-app-token } }
"; // tidy:canary

pub(crate) fn daemon(name: &str) -> RunningDaemon {
    daemon_with(name, CONFIG)
}

/// Where no token of an address comes back while a busy machine makes a few requests: one a minute does.
pub(crate) fn slow_daemon(name: &str) -> RunningDaemon {
    let (minute, slow) = ("limit: 10,  period: 1m", "limit: 10,  period: 10m");
    assert!(CONFIG.contains(minute));
    daemon_with(name, &CONFIG.replace(minute, slow))
}

fn daemon_with(name: &str, config: &str) -> RunningDaemon {
    let shop = blocks("provider").concat();
    let shop = shop.replace("127.0.0.1:8000", &upstream(204).to_string());
    let folder = Folder::new(name)
        .file(
            "x.yaml",
            "name: tmdb\ndomain: api.example.org\nlimits: [100/1h]\n",
        )
        .file("shop.yaml", &shop)
        .file("tollgate.yaml", config);
    let args = ["--resp", "127.0.0.1:0", "--provider", "shop.yaml"];
    RunningDaemon::start(folder, &args)
}

/// The port of the Redis protocol.
fn port(daemon: &RunningDaemon) -> &str {
    let address = daemon.resp.as_deref().unwrap_or_default();
    address.rsplit(':').next().unwrap_or_default()
}

/// What `make tools` installs for other languages.
fn clients() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/clients")
}

/// Runs a program that must succeed within a minute; its output.
fn output(program: &Path, args: &[&str], variables: &[(&str, &Path)]) -> String {
    let output = Command::new("timeout")
        .arg("60")
        .arg(program)
        .args(args)
        .envs(variables.iter().copied())
        .output()
        .expect("timeout runs");
    let (out, err) = (crate::text(&output.stdout), crate::text(&output.stderr));
    assert!(
        output.status.success(),
        "{} (is it installed? run `make tools`)\n{out}\n{err}",
        program.display()
    );
    out.to_owned()
}

/// The blocks of the page in this language.
pub(crate) fn blocks(language: &str) -> Vec<&'static str> {
    let fence = format!("```{language}\n");
    let parts = PAGE.split(fence.as_str()).skip(1);
    parts
        .map(|part| part.split("```").next().unwrap_or_default())
        .collect()
}

/// Runs a block as a user would, with the daemon's addresses; its output.
fn run(daemon: &RunningDaemon, block: &str, permit: &str) -> String {
    let block = block
        .replace("127.0.0.1:4291", &daemon.admin)
        .replace("127.0.0.1:4290", &daemon.gateway)
        .replace("6380", port(daemon))
        .replace("PERMIT", permit);
    let script = format!("set -e\ntollgate() {{ \"$BIN\" \"$@\"; }}\n{block}");
    let mut command = Command::new("/bin/sh");
    command
        .args(["-c", &script])
        .env("BIN", env!("CARGO_BIN_EXE_tollgate"))
        .env("TOLLGATE_ADMIN", &daemon.admin)
        .env("APP_TOKEN", "canary-app-token"); // tidy:canary
    let output = daemon
        .folder
        .prepare(&mut command)
        .output()
        .expect("a shell");
    let (out, err) = (crate::text(&output.stdout), crate::text(&output.stderr));
    assert!(output.status.success(), "{block}\n{out}\n{err}");
    out.to_owned()
}

#[test]
fn every_shell_snippet_does_what_the_page_says() {
    let daemon = daemon("integrations");
    let expected: [&[&str]; 9] = [
        &[
            "one call to tmdb may be made",
            "made under a permit",
            "available, ",
        ],
        &["\"granted\":true", "\"decision\":\"allow\""],
        &["\"reported\":true", "\"class\":\"limited\"", "\"state\":"],
        &["\"granted\":true"],
        &["\"granted\":true", "\"tokens_available\":4"],
        &[
            "HTTP/1.1 204",
            "x-ratelimit-limit: 10",
            "x-ratelimit-remaining: 4",
        ],
        &[
            "\"can_submit\":true",
            "\"reserved\":1",
            "\"active\":1",
            "\"retry_in\":1.0",
            "\"pending\":0",
        ],
        &["limited by tmdb", "\"available\":true"],
        &["16\n15\n-1\n2\n", "granted\n1\n", "burst_size"],
    ];
    let blocks = blocks("sh");
    assert_eq!(blocks.len(), expected.len());
    for (block, expected) in blocks.into_iter().zip(expected) {
        let permit = daemon.tollgate(&["acquire", "tmdb"]);
        let out = run(&daemon, block, permit.out.trim());
        for part in expected {
            assert!(out.contains(part), "{part} is not in:\n{out}");
        }
        let reset = daemon.tollgate(&["reset", "tmdb"]); // the report caused a cool-down
        assert_eq!(reset.code, Some(0), "{}", reset.err);
    }
}

#[test]
fn the_python_snippet_does_what_the_page_says() {
    let daemon = daemon("integrations-python");
    let scripts = blocks("python").into_iter();
    let script: String = scripts
        .filter(|block| block.contains("import redis"))
        .collect();
    let script = script.replace("6380", port(&daemon));
    let python = clients().join("venv/bin/python");
    let out = output(&python, &["-c", &script], &[]);
    let expected = "15 of 16 remain\n[15, 15, 15]\nsuccess\n";
    assert_eq!(out, expected);
}

#[test]
fn the_javascript_snippet_does_what_the_page_says() {
    let daemon = daemon("integrations-javascript");
    let script = blocks("js").concat().replace("6380", port(&daemon));
    let modules = clients().join("node/node_modules");
    let node = Path::new("node");
    let out = output(node, &["-e", &script], &[("NODE_PATH", &modules)]);
    assert_eq!(out, "15 of 16 remain\n[ 16, 1 ]\n");
}

/// Redis's own load generator: plain, in pipelines, and over many connections.
#[test]
fn redis_benchmark_runs_against_it() {
    let daemon = daemon("integrations-benchmark");
    let benchmark = Path::new("redis-benchmark");
    for pipeline in ["1", "16"] {
        let request = ["CL.THROTTLE", "key:__rand_int__", "15", "30", "60"];
        let options = [
            "-p",
            port(&daemon),
            "-n",
            "2000",
            "-c",
            "20",
            "-r",
            "1000",
            "-q",
        ];
        let args = [&options[..], &["-P", pipeline], &request[..]].concat();
        let out = output(benchmark, &args, &[]);
        assert!(out.contains("requests per second"), "{out}");
        assert!(!out.to_ascii_lowercase().contains("error"), "{out}");
    }
    let args = ["-p", port(&daemon), "INFO"];
    let info = output(Path::new("redis-cli"), &args, &[]);
    let keys = info.split("throttle_keys:").nth(1).unwrap_or_default();
    let keys = keys.lines().next().unwrap_or_default();
    let keys: u32 = keys.trim().parse().expect("a number");
    assert!((500..=1_000).contains(&keys), "{info}");
}

/// A Unix socket, a token, and the end of the daemon.
#[test]
fn redis_cli_talks_to_a_socket_with_a_token() {
    let folder = Folder::new("integrations-socket")
        .file(
            "x.yaml",
            "name: tmdb\ndomain: api.example.org\nlimits: [100/1h]\n",
        )
        .file("tollgate.yaml", CONFIG);
    let socket = folder.path().join("resp.sock");
    let listen = format!("unix:{}", socket.display());
    let args = ["--resp", &listen, "--token", "canary-admin-token"]; // tidy:canary
    let mut daemon = RunningDaemon::start(folder, &args);
    let at = socket.display().to_string();
    let cli = |token: &str| {
        let args = [
            "-s",
            &at,
            "-a",
            token,
            "--no-auth-warning",
            "TG.ACQUIRE",
            "tmdb",
            "NOWAIT",
        ];
        output(Path::new("redis-cli"), &args, &[])
    };
    assert!(cli("canary-admin-token").starts_with("granted\n1\n")); // tidy:canary
    assert!(cli("canary-app-token").starts_with("granted\n1\n")); // tidy:canary
    let rejected = output(Path::new("redis-cli"), &["-s", &at, "PING"], &[]);
    assert!(rejected.starts_with("NOAUTH"), "{rejected}");
    daemon.signal("-TERM");
    let ended = daemon.ended_within(std::time::Duration::from_secs(30));
    assert_eq!(ended, Some(0));
    assert!(!socket.exists());
}

/// nginx with the snippet of the page; stopped when the test ends.
struct Nginx {
    program: PathBuf,
    folder: Folder,
}

impl Nginx {
    /// Returns once it listens: the command ends when its sockets are open.
    fn start(config: &str) -> Nginx {
        let places = ["/usr/sbin/nginx", "/usr/bin/nginx", "/usr/local/sbin/nginx"];
        let program = places.iter().map(PathBuf::from).find(|path| path.exists());
        let nginx = Nginx {
            program: program.expect("nginx is not installed; run `make tools`"),
            folder: Folder::new("nginx").file("nginx.conf", config),
        };
        let started = nginx.command().output().expect("nginx runs");
        assert!(started.status.success(), "{}", crate::text(&started.stderr));
        nginx
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        let config = self.folder.path().join("nginx.conf");
        let log = self.folder.path().join("error.log");
        command
            .arg("-p")
            .arg(self.folder.path())
            .arg("-c")
            .arg(config)
            .arg("-e")
            .arg(log);
        command
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        self.command().args(["-s", "stop"]).output().ok();
    }
}

/// A request of this client.
fn get(socket: &Path, client: &str, path: &str) -> String {
    get_with(socket, client, path, "")
}

/// The same with lines of the head, each with its line end before it.
fn get_with(socket: &Path, client: &str, path: &str, lines: &str) -> String {
    let mut stream = UnixStream::connect(socket).expect("nginx listens");
    let head = format!("GET {path} HTTP/1.1\r\nHost: h\r\nX-Real-IP: {client}{lines}");
    let request = format!("{head}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("a connection");
    let mut response = String::new();
    stream.read_to_string(&mut response).expect("a response");
    response
}

/// A server on a socket in a folder: no port can be taken by another program. Whoever connects there
/// says its address.
fn nginx_config(folder: &Path, locations: &str) -> String {
    let at = |name: &str| folder.join(name).display().to_string();
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .iter()
        .map(|name| format!("{name}_temp_path {};\n", at(name)))
        .collect();
    let files = format!("pid {};\nerror_log {};\n", at("nginx.pid"), at("error.log"));
    let server = format!(
        "listen unix:{};\nset_real_ip_from unix:;\nreal_ip_header X-Real-IP;\n{locations}",
        at("nginx.sock")
    );
    format!(
        "{files}worker_processes 1;\nevents {{}}\nhttp {{\naccess_log off;\n{temporary}server {{\n{server}\n}}\n}}\n"
    )
}

/// C4: requests beyond the guard get 429 with the time from nginx, exempt ones pass, and the service
/// behind it is not called for them.
#[test]
fn nginx_asks_before_it_forwards() {
    let daemon = slow_daemon("integrations-nginx");
    let service = upstream(204).to_string();
    let snippet = blocks("nginx").concat();
    let snippet = snippet
        .replace("127.0.0.1:4291", &daemon.admin)
        .replace("127.0.0.1:8000", &service);
    let folder = Folder::new("nginx-run");
    let nginx = Nginx::start(&nginx_config(folder.path(), &snippet));
    let socket = folder.path().join("nginx.sock");
    for _ in 0..5 {
        let passed = get(&socket, "203.0.113.7", "/a");
        assert!(passed.starts_with("HTTP/1.1 204"), "{passed}");
        for name in ["Limit: 1\r", "Remaining: ", "Reset: 1"] {
            assert!(
                passed.contains(&format!("\nX-RateLimit-{name}")),
                "{passed}"
            );
        }
    }
    let limited = get(&socket, "203.0.113.7", "/a?health");
    assert!(limited.starts_with("HTTP/1.1 429"), "{limited}");
    for name in ["Limit: 1\r", "Remaining: 0", "Reset: 1"] {
        assert!(
            limited.contains(&format!("\nX-RateLimit-{name}")),
            "{limited}"
        );
    }
    let seconds = limited
        .lines()
        .find_map(|line| line.strip_prefix("Retry-After: "));
    let seconds: u32 = seconds.expect("a time").trim().parse().expect("a number");
    assert!((1..=60).contains(&seconds), "{limited}");
    for (client, path) in [("203.0.113.7", "/health"), ("203.0.113.8", "/a")] {
        let passed = get(&socket, client, path);
        assert!(
            passed.starts_with("HTTP/1.1 204"),
            "{client} {path}: {passed}"
        );
    }
    // Headers of a client that another proxy would set: the service saw 500.
    let lines =
        "\r\nX-Forwarded-Uri: /x\r\nX-Original-URI: /health\r\nX-Forwarded-For: 203.0.113.7";
    let passed = get_with(&socket, "203.0.113.9", "/a", lines);
    assert!(passed.starts_with("HTTP/1.1 204"), "{passed}");
    drop(nginx);
}
