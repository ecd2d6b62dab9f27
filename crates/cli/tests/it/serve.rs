//! `tollgate serve`: what it prints, what it rejects, and how it ends.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::folder::Folder;
use crate::{text, tollgate};

/// A provider file in its own folder.
fn file(name: &str, yaml: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::create_dir_all(&folder).unwrap();
    let path = folder.join("x.yaml");
    fs::write(&path, yaml).unwrap();
    path
}

/// Starts the program and waits until it prints its address.
fn start(args: &[&str]) -> (Child, String, BufReader<std::process::ChildStdout>) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_tollgate"))
        .args(args)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    let mut first = String::new();
    lines.read_line(&mut first).unwrap();
    let address = first.trim().rsplit("http://").next().unwrap().to_owned();
    (child, address, lines)
}

fn get(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: g\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    response
}

/// H2: files and folders mixed; `start` is `serve`; SIGTERM ends it gracefully.
#[test]
fn h2_serve_prints_its_addresses_responds_and_ends_on_sigterm() {
    let one = file(
        "serve_one",
        "name: one\nupstream: http://127.0.0.1:9\nlimits: [1/1s]\n",
    );
    let two = file(
        "serve_two",
        "name: two\nupstream: http://127.0.0.1:9\nlimits: [1/1s]\n",
    );
    let folder = two.parent().unwrap().to_str().unwrap();
    let (mut child, address, mut lines) = start(&[
        "start",
        "--listen",
        "127.0.0.1:0",
        "--admin",
        "127.0.0.1:0",
        "--store",
        "memory:",
        "--provider",
        one.to_str().unwrap(),
        "--provider-dir",
        folder,
        "--set",
        "one.queue.max=5",
    ]);
    let mut bases = String::new();
    for _ in 0..2 {
        lines.read_line(&mut bases).unwrap();
    }
    assert!(bases.contains(&format!("http://{address}/one")), "{bases}");
    assert!(bases.contains(&format!("http://{address}/two")), "{bases}");
    assert!(get(&address, "/health").starts_with("HTTP/1.1 200"));
    assert!(get(&address, "/three/a").starts_with("HTTP/1.1 404"));
    let killed = Command::new("kill")
        .arg(child.id().to_string())
        .status()
        .unwrap();
    assert!(killed.success());
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn every_problem_is_reported_before_anything_listens() {
    let wrong = file(
        "serve_wrong",
        "name: x\nlimit: many\nperiod: 1s\nqueu: {max: 1}\n",
    );
    let output = tollgate(&["serve", "--provider", wrong.to_str().unwrap()], "");
    let printed = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{printed}");
    assert!(
        printed.contains("x.yaml:2") && printed.contains("x.yaml:4"),
        "{printed}"
    );
    assert_eq!(text(&output.stdout), "");
}

#[test]
fn an_unsupported_store_is_rejected_with_the_supported_ones() {
    let fine = file(
        "serve_store",
        "name: x\nupstream: http://127.0.0.1:9\nlimits: [1/1s]\n",
    );
    let output = tollgate(
        &[
            "serve",
            "--store",
            "redis-cluster://h",
            "--provider",
            fine.to_str().unwrap(),
        ],
        "",
    );
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text(&output.stderr).contains("memory:"),
        "{}",
        text(&output.stderr)
    );
}

/// Both providers are listed, and both have calls.
fn shows_both_sides(page: &str) -> bool {
    let read = |path: &str| {
        let mut stream = TcpStream::connect(page).unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nhost: {page}\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).unwrap();
        let (_, body) = response.split_once("\r\n\r\n").unwrap();
        serde_json::from_str::<Value>(body).unwrap()
    };
    let listed = read("/v1/providers");
    let names = listed["providers"].as_array().unwrap().iter();
    let names: Vec<&str> = names.filter_map(|one| one["name"].as_str()).collect();
    assert!(names.contains(&"direct") && names.len() >= 2, "{names:?}");
    let calls = |name: &str| {
        let history = read(&format!("/v1/history?provider={name}&span=1m"));
        let calls = history["calls"].as_array().into_iter().flatten();
        calls.filter_map(Value::as_u64).sum::<u64>()
    };
    let governed = names.iter().filter(|name| **name != "direct");
    calls("direct") > 0 && governed.map(|name| calls(name)).sum::<u64>() > 0
}

/// People who start it by hand read where the page is; programs that read its output do not.
#[test]
fn serve_on_a_terminal_says_where_the_page_is() {
    let folder = Folder::new("terminal").file("x.yaml", crate::running_daemon::X);
    let program = env!("CARGO_BIN_EXE_tollgate");
    let serve = format!(
        "timeout --foreground 60 {program} serve --listen 127.0.0.1:0 --admin 127.0.0.1:0 --store memory: --provider x.yaml"
    );
    let mut command = Command::new("script");
    command.args(["-q", "-e", "-c", &serve, "/dev/null"]);
    let mut child = folder
        .prepare(&mut command)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("script is missing (Debian: bsdutils)");
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let found = lines
        .by_ref()
        .map_while(Result::ok)
        .find(|line| line.contains("look: "));
    // Ctrl-C, as a person would end it.
    let mut keys = child.stdin.take().unwrap();
    keys.write_all(&[3]).unwrap();
    let _rest = lines.count();
    child.wait().unwrap();
    let line = found.expect("a line about the page");
    assert!(line.contains("look: http://127.0.0.1:"), "{line}");
}

/// How much of the quota is used depends on the machine, so it fails nothing; that the provider
/// counted no violation does not depend on it.
#[test]
fn demo_ends_with_no_429_behind_tollgate() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_tollgate"))
        .args(["demo", "--seconds", "10"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let (mut printed, mut page, mut shows_both) = (String::new(), None, false);
    while let Some(Ok(line)) = lines.next() {
        let look = line.strip_prefix("look: http://");
        page = page.or_else(|| Some(look?.split(' ').next()?.to_owned()));
        // The page shows both sides while the demo runs.
        if let Some(page) = page.as_deref().filter(|_| !shows_both) {
            shows_both = shows_both_sides(page);
        }
        printed += &(line + "\n");
    }
    assert!(child.wait().unwrap().success(), "{printed}");
    assert!(shows_both, "the page had no calls of both sides: {printed}");
    assert!(
        printed.contains("✓ 0 violations") && printed.contains("✓ 0 calls lost"),
        "{printed}"
    );
    let widest = printed.lines().map(|line| line.chars().count()).max();
    assert!(widest <= Some(80), "{printed}");
}
