//! `tollgate serve` as processes: several on one folder, and one with few descriptors.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use tollgate_core::time::Span;
use tollgate_sim::http::{Settings, SimProvider};
use tollgate_sim::latency::Latency;

use crate::folder::Folder;

/// A gateway process; killed when it is dropped.
struct Process {
    child: Child,
    address: String,
    /// Held open: a program whose reader is closed ends.
    _lines: BufReader<ChildStdout>,
}

impl Process {
    /// Starts it after `before`, a shell command, and waits until it prints its address.
    fn start(before: &str, folder: &Folder) -> Process {
        let (folder, file) = (folder.path(), folder.path().join("x.yaml"));
        let script = format!(
            "{before} exec \"$0\" serve --listen 127.0.0.1:0 --admin 127.0.0.1:0 --store \"sqlite:$1\" --provider \"$2\""
        );
        let mut child = Command::new("sh")
            .args(["-c", &script, env!("CARGO_BIN_EXE_tollgate")])
            .arg(folder)
            .arg(file)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        lines.read_line(&mut line).unwrap();
        let address = line.trim().rsplit("http://").next().unwrap().to_owned();
        Process {
            child,
            address,
            _lines: lines,
        }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.address).unwrap();
        let patience = Some(Duration::from_secs(30));
        stream.set_read_timeout(patience).unwrap();
        stream
    }

    fn get(&self, path: &str) -> String {
        let mut stream = self.connect();
        let request = format!("GET {path} HTTP/1.1\r\nHost: g\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).ok();
        let mut response = Vec::new();
        stream.read_to_end(&mut response).ok();
        String::from_utf8_lossy(&response).into_owned()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

fn file(upstream: SocketAddr, rest: &str) -> String {
    format!("name: x\nupstream: http://{upstream}\n{rest}\n")
}

async fn sim(rules: &str) -> SimProvider {
    let millisecond = Span::from_millis(1);
    let latency = Latency::constant(millisecond, millisecond, millisecond);
    let settings = Settings::with_rules(rules).unwrap().latency(latency);
    SimProvider::start(settings).await.unwrap()
}

/// M13: one call a second, by two gateways on one folder: never two within a second, by the
/// provider's own log, and none is lost.
#[test]
fn m13_two_gateways_on_one_folder_never_send_two_calls_inside_a_second() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let provider = runtime.block_on(sim("sliding 1/1s"));
    let yaml = file(
        provider.address(),
        "dedup: off\nlimits: [1/1s]\nqueue: {order: fifo}",
    );
    let folder = Folder::new("gateway-m13").file("x.yaml", &yaml);
    let gateways = [(); 2].map(|()| Process::start("", &folder));
    std::thread::scope(|scope| {
        for number in 0..4 {
            let gateway = &gateways[number % 2];
            scope.spawn(move || {
                let response = gateway.get("/x/a");
                assert!(response.starts_with("HTTP/1.1 200"), "{response}");
            });
        }
    });
    let report = runtime.block_on(provider.stop());
    let seen = (report.violations, report.accepted, report.duplicates);
    assert_eq!(seen, (0, 4, 0), "{report:?}");
}

/// R-C10: with 64 descriptors and three times as many callers the gateway keeps running, rejects
/// the excess with `QueueFull`, and serves again when they disconnect.
#[test]
fn a_gateway_without_free_descriptors_says_so_and_recovers() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let provider = runtime.block_on(sim("sliding 1000/1s"));
    let yaml = file(provider.address(), "limits: [1000/1s]");
    let folder = Folder::new("gateway-descriptors").file("x.yaml", &yaml);
    let gateway = Process::start("ulimit -n 64;", &folder);
    assert!(gateway.get("/x/a").starts_with("HTTP/1.1 200"));
    // Sixteen callers are served; the other descriptors are for upstreams and the store.
    let mut idle: Vec<TcpStream> = (0..17).map(|_| gateway.connect()).collect();
    let rejected = gateway.get("/x/a");
    assert!(rejected.contains("\"QueueFull\""), "{rejected}");
    idle.extend((0..200).map(|_| gateway.connect()));
    drop(idle);
    let is_served = (0..200).any(|_| {
        std::thread::yield_now();
        gateway.get("/x/a").starts_with("HTTP/1.1 200")
    });
    assert!(is_served, "it serves again");
    runtime.block_on(provider.stop());
}

/// R-C10: the soft limit of descriptors is for programs that use `select`; the gateway raises its
/// own to the hard limit, so that more callers fit than the shell's default allows.
#[test]
fn a_low_soft_limit_of_descriptors_is_raised() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let provider = runtime.block_on(sim("sliding 100/1s"));
    let yaml = file(provider.address(), "limits: [100/1s]");
    let folder = Folder::new("gateway-soft").file("x.yaml", &yaml);
    let gateway = Process::start("ulimit -Sn 64;", &folder);
    let mut callers: Vec<TcpStream> = (0..150).map(|_| gateway.connect()).collect();
    for caller in &mut callers {
        let request = b"GET /health HTTP/1.1\r\nHost: g\r\n\r\n";
        caller.write_all(request).unwrap();
        let mut begin = [0; 12];
        caller.read_exact(&mut begin).unwrap();
        assert_eq!(&begin, b"HTTP/1.1 200");
    }
}
