//! Every command of docs/operating.md, run against a daemon in the situation that the page describes.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use tollgate_sim::test_servers::RedisServer;

use crate::documented_commands::commands;
use crate::folder::Folder;
use crate::operating::upstream_with;
use crate::running_daemon::RunningDaemon;

const PAGE: &str = include_str!("../../../../docs/operating.md");

/// A provider that reports how little remains.
fn provider() -> SocketAddr {
    let head = "200 OK\r\nX-RateLimit-Limit: 3000\r\nX-RateLimit-Remaining: 5\r\nX-RateLimit-Reset: 3000\r\nContent-Length: 2";
    upstream_with(head.to_owned(), "ok")
}

fn start(name: &str, state: &Folder, provider: SocketAddr) -> RunningDaemon {
    let file = format!(
        "name: sportmonks\nupstream: http://{provider}\nlimits: [{{limit: 3000, period: 1h, per: entity}}]\ndegrade: {{below: 200, recover: 400}}\ncache: {{mode: ttl, ttl: 5m}}\n"
    );
    let program = Path::new(env!("CARGO_BIN_EXE_tollgate"));
    let own = program.parent().expect("a folder").display();
    let path = std::env::var("PATH").unwrap_or_default();
    let state = state.path().display().to_string();
    let folder = Folder::new(name)
        .file("sportmonks.yaml", &file)
        .env("PATH", &format!("{own}:{path}"))
        .env("TOLLGATE_STATE_DIR", &state);
    let mut command = Command::new(program);
    command.args(["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
    command.args(["--provider", "sportmonks.yaml", "--store"]);
    command.arg(format!("sqlite:{state}"));
    RunningDaemon::run(folder, command)
}

fn is_degraded(daemon: &RunningDaemon) -> bool {
    let args = ["status", "sportmonks", "--entity", "fixtures", "--json"];
    let status = daemon.tollgate(&args);
    let status: Value = serde_json::from_str(&status.out).expect(&status.err);
    let degraded = &status["entities"]["fixtures"]["degraded"];
    degraded.as_bool().expect("a boolean")
}

/// The status of a call as the page makes it: what curl sends is a part of what is cached.
fn call(daemon: &RunningDaemon) -> String {
    let url = format!("http://{}/sportmonks/fixtures", daemon.gateway);
    let mut command = Command::new("curl");
    command.args([
        "-s",
        "-m",
        "30",
        "-o",
        "/dev/null",
        "-w",
        "%{http_code}",
        &url,
    ]);
    let output = command.output().expect("curl runs");
    crate::text(&output.stdout).to_owned()
}

/// S15: the page has the document's three sections, each with commands, and every command does its work. Degrade mode survives a
/// restart, and the reset of the page ends it.
#[test]
fn s15_every_command_of_the_operating_page_works() {
    for section in ["High 429 rate", "Low cache hit rate", "Degrade mode stuck"] {
        let part = PAGE
            .split(&format!("## {section}\n"))
            .nth(1)
            .expect(section);
        let part = part.split("\n## ").next().unwrap_or_default();
        assert!(part.contains("```sh\n"), "{section} has no command");
    }
    let (provider, state) = (provider(), Folder::new("page-state"));
    let first = start("page-first", &state, provider);
    assert_eq!(call(&first), "200");
    assert!(is_degraded(&first), "5 remain");
    first.signal("-TERM");
    assert_eq!(first.wait(), Some(0));
    let daemon = start("page-next", &state, provider);
    assert!(is_degraded(&daemon), "a restart does not end it");
    assert_eq!(call(&daemon), "200", "from the cache");
    let all = commands(PAGE);
    assert!(all.len() > 15, "{all:?}");
    assert!(
        all.iter()
            .any(|line| line == "tollgate reset sportmonks --entity fixtures")
    );
    for name in ["cache_store_lost", "cache_store_back"] {
        assert!(PAGE.contains(&format!("`event={name}`")), "{name}");
    }
    let redis = RedisServer::start(&[]);
    let redis_url = redis.url();
    for line in all {
        let is_ping = line.starts_with("redis-cli");
        let line = line
            .replace("redis://127.0.0.1:6379", &redis_url)
            .replace("127.0.0.1:4291", &daemon.admin)
            .replace("127.0.0.1:4290", &daemon.gateway);
        let mut command = Command::new("sh");
        command
            .args(["-c", &line])
            .env("TOLLGATE_ADMIN", &daemon.admin);
        let output = daemon
            .folder
            .prepare(&mut command)
            .output()
            .expect("sh runs");
        let (out, err) = (crate::text(&output.stdout), crate::text(&output.stderr));
        assert!(output.status.success(), "{line}:\n{out}{err}");
        assert!(!out.contains("\"error\""), "{line}:\n{out}");
        assert!(!is_ping || out.trim() == "PONG", "{line}:\n{out}{err}");
    }
    assert!(!is_degraded(&daemon), "the reset has ended it");
}
