//! `tollgate serve` with a state folder that cannot be used: the reason is told, calls follow
//! `on_store_loss`, and it goes on by itself once the folder is mended.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread::JoinHandle;

/// An upstream that says "hello" to everybody.
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
            let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";
            if stream.write_all(answer).is_err() {
                return;
            }
        }
        line.clear();
    }
}

/// A gateway of its own with two providers: `shut` is closed without the store, `wide` is open.
struct Gateway {
    child: Child,
    address: String,
    /// Kept open: it goes on to say where its providers are.
    _stdout: BufReader<ChildStdout>,
    /// Read to its end beside the test: a full pipe would stop the gateway.
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
        let told = std::thread::spawn(move || {
            let mut told = String::new();
            stderr.read_to_string(&mut told).unwrap();
            told
        });
        Gateway {
            child,
            address,
            _stdout: lines,
            stderr: told,
        }
    }

    fn get(&self, path: &str) -> String {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: g\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    /// Ends it and returns what it had to say.
    fn end(mut self) -> String {
        drop(self.child.kill());
        drop(self.child.wait());
        self.stderr.join().unwrap()
    }
}

/// Starts on this folder; what is told must contain `why`.
fn assert_starts_without_store(name: &str, state: &Path, why: &str) {
    let gateway = Gateway::start(name, state);
    let shut = gateway.get("/shut/a");
    assert!(shut.starts_with("HTTP/1.1 503"), "{shut}");
    assert!(shut.contains("\"error\":\"StoreLost\"") && shut.contains("\"store_lost\""));
    let wide = gateway.get("/wide/a");
    assert!(wide.starts_with("HTTP/1.1 200"), "{wide}");
    let told = gateway.end();
    assert!(told.contains(why), "{told}");
    assert!(told.contains("store_lost"), "{told}");
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
    // It looks once a second; each refusal takes about a millisecond.
    let mut answer = String::new();
    for _ in 0..60_000 {
        answer = gateway.get("/shut/a");
        if answer.starts_with("HTTP/1.1 200") {
            break;
        }
    }
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let told = gateway.end();
    assert_eq!(told.matches("store_back").count(), 1, "{told}");
}

#[test]
fn a_read_only_state_folder_is_reported() {
    // The kernel's own tree: nobody makes folders there, not even root.
    let state = PathBuf::from("/sys/kernel/tollgate");
    assert_starts_without_store("store_read_only", &state, "is read-only");
}

#[test]
fn a_missing_database_is_reported() {
    let state = state("state_wiped");
    fs::write(state.join("ledger.lock"), b"tollgate ledger\n").unwrap();
    assert_starts_without_store("store_wiped", &state, "is gone or empty");
}
