//! Every snippet of docs/integrations.md runs against a real daemon; nginx is a real one.

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

fn daemon(name: &str) -> RunningDaemon {
    let shop = blocks("provider").concat();
    let shop = shop.replace("127.0.0.1:8000", &upstream(204).to_string());
    let folder = Folder::new(name)
        .file(
            "x.yaml",
            "name: tmdb\ndomain: api.example.org\nlimits: [100/1h]\n",
        )
        .file("shop.yaml", &shop)
        .file("tollgate.yaml", CONFIG);
    RunningDaemon::start(folder, &["--provider", "shop.yaml"])
}

/// The blocks of the page in this language.
fn blocks(language: &str) -> Vec<&'static str> {
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
    let expected: [&[&str]; 8] = [
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

/// The snippet of httpx makes a call of its own, and its report is counted.
#[test]
fn the_python_snippet_makes_a_call_under_a_permit() {
    let daemon = daemon("integrations-httpx");
    let script = blocks("python").concat();
    let script = script
        .replace("127.0.0.1:4291", &daemon.admin)
        .replace("127.0.0.1:8000", &upstream(204).to_string());
    crate::openapi_client::client("httpx"); // or it says what to install
    let mut command = Command::new(crate::openapi_client::client("python"));
    command.args(["-c", &script]);
    let output = daemon
        .folder
        .prepare(&mut command)
        .output()
        .expect("it runs");
    let (out, err) = (crate::text(&output.stdout), crate::text(&output.stderr));
    assert_eq!(out.trim(), "204", "{err}");
    let shown = daemon.tollgate(&["status", "tmdb", "--json"]);
    let shown: serde_json::Value = serde_json::from_str(&shown.out).expect("JSON");
    assert_eq!(shown["health"]["count_2xx"], 1);
    assert_eq!(shown["permits"]["open"], 0);
}

/// Caddy with the snippet of the page, on a port that is free.
struct Caddy {
    child: std::process::Child,
    address: String,
    _folder: Folder,
}

impl Caddy {
    fn start(snippet: &str) -> Caddy {
        // Another program may take the port in between: then the next one.
        for attempt in 0..5 {
            let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
            let address = free.local_addr().expect("an address").to_string();
            drop(free);
            let site = snippet.replace("example.org {", &format!("http://{address} {{"));
            let config = format!("{{\n\tadmin off\n\tauto_https off\n}}\n{site}");
            let folder = Folder::new(&format!("caddy-{attempt}")).file("Caddyfile", &config);
            let mut command = Command::new("caddy");
            command.args(["run", "--config", "Caddyfile"]);
            command.env("XDG_DATA_HOME", folder.path());
            command.env("XDG_CONFIG_HOME", folder.path());
            command.env("HOME", folder.path());
            command.stderr(std::process::Stdio::null());
            let child = folder.prepare(&mut command).spawn();
            let caddy = Caddy {
                child: child.expect("caddy is not installed; run `make tools`"),
                address,
                _folder: folder,
            };
            if let Some(caddy) = caddy.listening() {
                return caddy;
            }
        }
        panic!("caddy does not listen");
    }

    /// Waits until it listens; `None` = it has ended.
    fn listening(mut self) -> Option<Caddy> {
        for _ in 0..600 {
            if std::net::TcpStream::connect(&self.address).is_ok() {
                return Some(self);
            }
            if self.child.try_wait().ok()?.is_some() {
                return None;
            }
            std::thread::park_timeout(std::time::Duration::from_millis(50));
        }
        None
    }

    fn get(&self, path: &str) -> String {
        let mut stream = std::net::TcpStream::connect(&self.address).expect("caddy listens");
        let head = format!("GET {path} HTTP/1.1\r\nHost: {}", self.address);
        let request = format!("{head}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).expect("a connection");
        let mut response = String::new();
        stream.read_to_string(&mut response).expect("a response");
        response
    }
}

impl Drop for Caddy {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// C4: Caddy passes on what the guards say: 429 with the time and the rate headers; exempt paths pass.
#[test]
fn caddy_asks_before_it_forwards() {
    let daemon = daemon("integrations-caddy");
    let snippet = blocks("caddy").concat();
    let snippet = snippet
        .replace("127.0.0.1:4291", &daemon.admin)
        .replace("127.0.0.1:8000", &upstream(204).to_string());
    asks_before_it_forwards(&Caddy::start(&snippet));
}

/// Without the `?`, Caddy passes the query of its client on, who chose its own guard with it.
#[test]
fn a_client_of_caddy_does_not_choose_its_guard() {
    let daemon = daemon("integrations-caddy-query");
    let snippet = blocks("caddy").concat();
    let snippet = snippet
        .replace("/v1/check?", "/v1/check")
        .replace("127.0.0.1:4291", &daemon.admin)
        .replace("127.0.0.1:8000", &upstream(204).to_string());
    let caddy = Caddy::start(&snippet);
    asks_before_it_forwards(&caddy);
    for query in ["guard=user&identifier=a", "deny_status=500", "a=1&b"] {
        let limited = caddy.get(&format!("/a?{query}"));
        assert!(limited.starts_with("HTTP/1.1 429"), "{query}: {limited}");
    }
}

fn asks_before_it_forwards(caddy: &Caddy) {
    for _ in 0..5 {
        let passed = caddy.get("/a");
        assert!(passed.starts_with("HTTP/1.1 204"), "{passed}");
    }
    let limited = caddy.get("/a?health");
    assert!(limited.starts_with("HTTP/1.1 429"), "{limited}");
    for header in [
        "Retry-After: ",
        "X-Ratelimit-Limit: 10",
        "RateLimitExceeded",
    ] {
        assert!(limited.contains(header), "{header}: {limited}");
    }
    let exempt = caddy.get("/health");
    assert!(exempt.starts_with("HTTP/1.1 204"), "{exempt}");
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
    let mut stream = UnixStream::connect(socket).expect("nginx listens");
    let head = format!("GET {path} HTTP/1.1\r\nHost: h\r\nX-Real-IP: {client}");
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
    let daemon = daemon("integrations-nginx");
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
    }
    let limited = get(&socket, "203.0.113.7", "/a?health");
    assert!(limited.starts_with("HTTP/1.1 429"), "{limited}");
    let seconds = limited
        .lines()
        .find_map(|line| line.strip_prefix("Retry-After: "));
    let seconds: u32 = seconds.expect("a time").trim().parse().expect("a number");
    assert!((1..=6).contains(&seconds), "{limited}");
    for (client, path) in [("203.0.113.7", "/health"), ("203.0.113.8", "/a")] {
        let passed = get(&socket, client, path);
        assert!(
            passed.starts_with("HTTP/1.1 204"),
            "{client} {path}: {passed}"
        );
    }
    drop(nginx);
}
