//! `tollgate serve` with a state folder that cannot be used: it reports the reason, calls follow
//! `on_store_loss`, and it recovers by itself once the folder is fixed.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread::JoinHandle;

/// An upstream that returns "hello" to everybody.
fn upstream() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || greet(stream));
        }
    });
    address
}

fn greet(mut stream: TcpStream) {
    let mut lines = BufReader::new(stream.try_clone().unwrap());
    let mut line = String::new();
    while lines.read_line(&mut line).is_ok_and(|length| length > 0) {
        if line == "\r\n" {
            let response = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";
            if stream.write_all(response).is_err() {
                return;
            }
        }
        line.clear();
    }
}

/// A gateway process with two providers: `shut` is closed without the store, `wide` is open.
struct Gateway {
    child: Child,
    address: String,
    /// Held open: it continues to print where its providers are.
    _stdout: BufReader<ChildStdout>,
    /// Read to its end by a separate thread: a full pipe would stop the gateway.
    stderr: JoinHandle<String>,
}

impl Gateway {
    fn start(name: &str, state: &Path) -> Gateway {
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
        fs::create_dir_all(&folder).unwrap();
        let upstream = upstream();
        for (name, rest) in [("shut", ""), ("wide", "on_store_loss: open\n")] {
            let yaml = format!("name: {name}\nupstream: http://{upstream}\nlimits: [9/1s]\n{rest}");
            fs::write(folder.join(format!("{name}.yaml")), yaml).unwrap();
        }
        let mut child = Command::new(env!("CARGO_BIN_EXE_tollgate"))
            .args(["serve", "--listen", "127.0.0.1:0", "--provider-dir"])
            .arg(&folder)
            .arg("--store")
            .arg(format!("sqlite:{}", state.display()))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut first = String::new();
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        lines.read_line(&mut first).unwrap();
        let address = first.trim().rsplit("http://").next().unwrap().to_owned();
        let mut stderr = child.stderr.take().unwrap();
        let log = std::thread::spawn(move || {
            let mut log = String::new();
            stderr.read_to_string(&mut log).unwrap();
            log
        });
        Gateway {
            child,
            address,
            _stdout: lines,
            stderr: log,
        }
    }

    fn get(&self, path: &str) -> String {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: g\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).unwrap();
        response
    }

    /// Kills it and returns its log.
    fn end(mut self) -> String {
        drop(self.child.kill());
        drop(self.child.wait());
        self.stderr.join().unwrap()
    }
}

/// Starts on this folder; the log must contain `why`.
fn assert_starts_without_store(name: &str, state: &Path, why: &str) {
    let gateway = Gateway::start(name, state);
    let shut = gateway.get("/shut/a");
    assert!(shut.starts_with("HTTP/1.1 503"), "{shut}");
    assert!(shut.contains("\"error\":\"StoreLost\"") && shut.contains("\"store_lost\""));
    let wide = gateway.get("/wide/a");
    assert!(wide.starts_with("HTTP/1.1 200"), "{wide}");
    let log = gateway.end();
    assert!(log.contains(why), "{log}");
    assert!(log.contains("store_lost"), "{log}");
}

fn state(name: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    drop(fs::remove_dir_all(&folder));
    fs::create_dir_all(&folder).unwrap();
    folder
}

#[test]
fn a_damaged_state_folder_is_reported_and_can_be_fixed_while_running() {
    let state = state("state_damaged");
    let database = state.join("ledger.db");
    fs::write(&database, b"no database, but long enough".repeat(99)).unwrap();
    assert_starts_without_store("store_damaged", &state, "is damaged");
    let gateway = Gateway::start("store_damaged", &state);
    assert!(gateway.get("/shut/a").starts_with("HTTP/1.1 503"));
    fs::remove_file(&database).unwrap();
    // It checks once a second; each rejected call takes about a millisecond.
    let mut response = String::new();
    for _ in 0..60_000 {
        response = gateway.get("/shut/a");
        if response.starts_with("HTTP/1.1 200") {
            break;
        }
    }
    assert!(response.starts_with("HTTP/1.1 200"), "{response}");
    let log = gateway.end();
    assert_eq!(log.matches("store_back").count(), 1, "{log}");
}

#[test]
fn a_read_only_state_folder_is_reported() {
    // The kernel's own tree: nobody creates folders there, not even root.
    let state = PathBuf::from("/sys/kernel/tollgate");
    assert_starts_without_store("store_read_only", &state, "is read-only");
}

#[test]
fn a_missing_database_is_reported() {
    let state = state("state_wiped");
    fs::write(state.join("ledger.lock"), b"tollgate ledger\n").unwrap();
    assert_starts_without_store("store_wiped", &state, "is gone or empty");
}
