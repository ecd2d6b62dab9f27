//! Snippets of docs/integrations.md for programs that ask over HTTP: httpx and a real Caddy.

use std::io::{Read, Write};
use std::process::Command;

use tollgate_sim::test_host::free_address;

use crate::folder::Folder;
use crate::integrations::{blocks, daemon, slow_daemon};
use crate::operating::upstream;

/// The snippet of httpx makes a call of its own, and its report is counted.
#[test]
fn the_python_snippet_makes_a_call_under_a_permit() {
    let daemon = daemon("integrations-httpx");
    let scripts = blocks("python").into_iter();
    let script: String = scripts
        .filter(|block| block.contains("import httpx"))
        .collect();
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
    fn start(name: &str, snippet: &str) -> Caddy {
        // Another program may take the port in between: then the next one.
        for attempt in 0..5 {
            let address = free_address().to_string();
            let site = snippet.replace("example.org {", &format!("http://{address} {{"));
            let config = format!("{{\n\tadmin off\n\tauto_https off\n}}\n{site}");
            let folder = Folder::new(&format!("{name}-{attempt}")).file("Caddyfile", &config);
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
    let daemon = slow_daemon("integrations-caddy");
    let snippet = blocks("caddy").concat();
    let snippet = snippet
        .replace("127.0.0.1:4291", &daemon.admin)
        .replace("127.0.0.1:8000", &upstream(204).to_string());
    asks_before_it_forwards(&Caddy::start("caddy", &snippet));
}

/// Without the `?`, Caddy passes the query of its client on, who chose its own guard with it.
#[test]
fn a_client_of_caddy_does_not_choose_its_guard() {
    let daemon = slow_daemon("integrations-caddy-query");
    let snippet = blocks("caddy").concat();
    let snippet = snippet
        .replace("/v1/check?", "/v1/check")
        .replace("127.0.0.1:4291", &daemon.admin)
        .replace("127.0.0.1:8000", &upstream(204).to_string());
    let caddy = Caddy::start("caddy-query", &snippet);
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
        "X-Ratelimit-Limit: 1\r",
        "RateLimitExceeded",
    ] {
        assert!(limited.contains(header), "{header}: {limited}");
    }
    let exempt = caddy.get("/health");
    assert!(exempt.starts_with("HTTP/1.1 204"), "{exempt}");
}
