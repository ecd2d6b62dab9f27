//! What a call costs the gateway, and a decision the decision service: instructions, allocations and clock readings of the program itself.
//!
//! `cargo build --profile symbols --locked -p tollgate-cli`
//! `cargo run -p tollgate-server --example call_cost -- target/symbols/tollgate [CALLS] [PROFILE]`
//!
//! Promises: the program runs under callgrind as it is shipped, with both sides of HTTP, one key, two limits and
//! the ledger in memory; a decision is a token of a guard over HTTP. Clients and upstream are here, uncounted. A count is the difference of two runs, divided
//! by the calls between them, so starting up is no part of it. `PROFILE` keeps the longer run for
//! `callgrind_annotate`.
//!
//! Never: decides whether a test passes; `crates/tollgate/tests/path_cost.txt` does.
#![expect(clippy::print_stdout, reason = "its output is its purpose")]
#![expect(clippy::unwrap_used, reason = "a benchmark that cannot go on stops")]
#![expect(
    clippy::disallowed_methods,
    reason = "it waits for a process to listen"
)]

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Calls of the shorter run: every buffer has grown, every connection is open.
const WARM: u64 = 300;

/// How long a program may take to listen. Valgrind makes it fifty times slower.
const START_POLLS: u32 = 1_200;

/// One kind of call that is counted.
#[derive(Clone, Copy)]
struct Row {
    name: &'static str,
    /// More lines of the provider's file.
    lines: &'static str,
    door: Door,
}

/// Where a call goes.
#[derive(Clone, Copy, PartialEq)]
enum Door {
    /// Through the gateway, each to a path of its own.
    EachPath,
    /// Through the gateway, all to the same path.
    SamePath,
    /// To the decision service: a token of a guard.
    Decision,
}

const ROWS: [Row; 4] = [
    Row {
        name: "proxied, no cache",
        lines: "",
        door: Door::EachPath,
    },
    Row {
        name: "proxied, rfc9111, not cacheable",
        lines: "cache: { mode: rfc9111 }\n",
        door: Door::EachPath,
    },
    Row {
        name: "cache hit",
        lines: "cache: { ttl: 1h }\n",
        door: Door::SamePath,
    },
    Row {
        name: "decision (HTTP, a guard)",
        lines: "",
        door: Door::Decision,
    },
];

/// Functions that take memory, by their names in the program and in the C library.
const ALLOCATING: [&str; 10] = [
    "mi_malloc",
    "mi_malloc_aligned",
    "mi_zalloc",
    "mi_zalloc_aligned",
    "mi_realloc",
    "mi_realloc_aligned",
    "malloc",
    "calloc",
    "realloc",
    "posix_memalign",
];
/// What every function that reads a clock has in its name: that of the C library, and rustix' own.
const CLOCK: &str = "clock_gettime";

/// What a run has cost in all.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    instructions: u64,
    allocations: u64,
    copies: u64,
    clocks: u64,
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let Some(program) = words.first() else {
        println!("usage: call_cost PROGRAM [CALLS] [PROFILE]");
        return;
    };
    let calls: u64 = words.get(1).map_or(500, |calls| calls.parse().unwrap());
    let upstream = upstream();
    println!("| a call | instructions | allocations | copies (memcpy) | clock readings |");
    println!("|---|---|---|---|---|");
    for (number, row) in ROWS.into_iter().enumerate() {
        let profile = words.get(2).map(|path| format!("{path}.{number}"));
        let (name, lines) = (row.name, row.lines);
        let file = format!(
            "name: up\nupstream: http://{upstream}\napi_key: secret\nauth: {{ bearer: true }}\n\
             limits: [1000000/1s, 100000000/1m]\n{lines}"
        );
        let few = run(program, &file, WARM, row.door, None);
        let many = run(program, &file, WARM + calls, row.door, profile.as_deref());
        let each = |more: u64, less: u64| {
            let tenths = more.saturating_sub(less) * 10 / calls;
            format!("{}.{}", tenths / 10, tenths % 10)
        };
        println!(
            "| {name} | {} | {} | {} | {} |",
            (many.instructions.saturating_sub(few.instructions)) / calls,
            each(many.allocations, few.allocations),
            each(many.copies, few.copies),
            each(many.clocks, few.clocks),
        );
    }
}

/// The program under callgrind, asked so often.
fn run(program: &str, file: &str, calls: u64, door: Door, keep: Option<&str>) -> Counts {
    let folder = std::env::temp_dir().join(format!("tollgate-call-cost-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let provider = folder.join("up.yaml");
    std::fs::write(&provider, file).unwrap();
    let config = folder.join("tollgate.yaml");
    std::fs::write(&config, GUARD).unwrap();
    let kept = folder.join("callgrind.out");
    let kept = keep.map_or(kept.as_path(), Path::new);
    let [gateway, admin] = free_addresses();
    let mut child = Command::new("valgrind")
        .arg("--tool=callgrind")
        .arg(format!("--callgrind-out-file={}", kept.display()))
        .args([program, "serve", "--store", "memory:", "--provider"])
        .arg(&provider)
        .arg("--config")
        .arg(&config)
        .args(["--listen", &gateway.to_string()])
        .args(["--admin", &admin.to_string()])
        // One worker, as in the table of proxies.
        .env("TOKIO_WORKER_THREADS", "1")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("valgrind is missing; install it (Debian: `apt-get install valgrind`)");
    let address = if door == Door::Decision {
        admin
    } else {
        gateway
    };
    let mut stream = connect(address);
    for call in 0..calls {
        let request = match door {
            Door::EachPath => get(call),
            Door::SamePath => get(0),
            Door::Decision => acquire(admin, call),
        };
        ask(&mut stream, &request);
    }
    drop(stream);
    let id = child.id().to_string();
    let asked = Command::new("kill").args(["-TERM", &id]).status();
    assert!(
        asked.unwrap().success(),
        "the program runs until it is told"
    );
    child.wait().unwrap();
    let counts = read(&std::fs::read_to_string(kept).unwrap());
    std::fs::remove_dir_all(&folder).unwrap();
    counts
}

fn connect(address: SocketAddr) -> TcpStream {
    for _ in 0..START_POLLS {
        if let Ok(stream) = TcpStream::connect(address) {
            stream.set_nodelay(true).unwrap();
            return stream;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    panic!("the program does not listen on {address}");
}

/// Two addresses that nothing listens on.
fn free_addresses() -> [SocketAddr; 2] {
    let sockets = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    sockets.map(|socket| socket.local_addr().unwrap())
}

/// A token takes 20 s: a bucket that is full again would be forgotten.
const GUARD: &str = "guards: { api: { limit: 3, period: 1m, burst: 1500000, by: name } }\n";

fn get(item: u64) -> String {
    format!(
        "GET /up/item/{item}?page=1 HTTP/1.1\r\nhost: localhost\r\nuser-agent: call-cost\r\n\
         accept: application/json\r\n\r\n"
    )
}

fn acquire(admin: SocketAddr, call: u64) -> String {
    let key = call % 1_000;
    let body = format!(r#"{{"guard":"api","identifier":"key:{key:08}","wait":false}}"#);
    format!(
        "POST /v1/acquire HTTP/1.1\r\nhost: {admin}\r\nx-tollgate-admin: 1\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// Sends a request and reads its whole response.
fn ask(stream: &mut TcpStream, request: &str) {
    stream.write_all(request.as_bytes()).unwrap();
    let mut response = String::new();
    let mut buffer = [0; 4_096];
    loop {
        let read = stream.read(&mut buffer).unwrap();
        assert!(read > 0, "the program has closed the connection");
        response.push_str(std::str::from_utf8(&buffer[..read]).unwrap());
        if is_whole(&response) {
            break;
        }
    }
    assert!(response.starts_with("HTTP/1.1 200 "), "{response}");
}

fn is_whole(response: &str) -> bool {
    let Some((head, body)) = response.split_once("\r\n\r\n") else {
        return false;
    };
    let head = head.to_ascii_lowercase();
    let length = head
        .lines()
        .find_map(|line| line.strip_prefix("content-length: "));
    body.len() >= length.expect("a length").parse().unwrap()
}

/// Bytes of a response's body.
const BODY: usize = 1_024;

/// A provider that says the same to everybody, and does not say for how long it holds.
fn upstream() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let date = httpdate::fmt_http_date(std::time::SystemTime::now());
    let body = "x".repeat(BODY);
    let response = format!(
        "HTTP/1.1 200 OK\r\nserver: upstream\r\ncontent-type: text/plain\r\ndate: {date}\r\n\
         content-length: {BODY}\r\n\r\n{body}"
    );
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, response) = (stream.unwrap(), response.clone());
            std::thread::spawn(move || {
                stream.set_nodelay(true).unwrap();
                let mut read = [0; 4_096];
                // A request without a body arrives in one piece on loopback.
                while stream.read(&mut read).is_ok_and(|read| read > 0) {
                    if stream.write_all(response.as_bytes()).is_err() {
                        return;
                    }
                }
            });
        }
    });
    address
}

/// The totals of a profile of callgrind. A function has its name at its first mention and a number from then on, and
/// `calls=` lines tell how often the function before them called the one named last. A function that calls another of
/// the same list is counted once.
fn read(profile: &str) -> Counts {
    let mut counts = Counts::default();
    let mut names: HashMap<&str, &str> = HashMap::new();
    let (mut caller, mut called) = ("", "");
    for line in profile.lines() {
        if let Some(name) = line.strip_prefix("fn=") {
            caller = named(&mut names, name);
        } else if let Some(name) = line.strip_prefix("cfn=") {
            called = named(&mut names, name);
        } else if let Some(total) = line.strip_prefix("totals: ") {
            counts.instructions = total.trim().parse().unwrap();
        } else if let Some(times) = line.strip_prefix("calls=") {
            let times: u64 = times.split(' ').next().unwrap().parse().unwrap();
            let enters = |functions: &[&str]| {
                functions.contains(&plain(called)) && !functions.contains(&plain(caller))
            };
            if enters(&ALLOCATING) && !caller.starts_with("mi_") && !caller.starts_with("_mi_") {
                counts.allocations += times;
            }
            if called.contains(CLOCK) && !caller.contains(CLOCK) {
                counts.clocks += times;
            }
            if called.starts_with("memcpy") || called.starts_with("__memcpy") {
                counts.copies += times;
            }
        }
    }
    counts
}

/// A recursive function has its depth behind its name.
fn plain(name: &str) -> &str {
    name.split('\'').next().unwrap_or_default()
}

fn named<'a>(names: &mut HashMap<&'a str, &'a str>, written: &'a str) -> &'a str {
    let (number, name) = written.split_once(' ').unwrap_or((written, ""));
    if name.is_empty() {
        return names.get(number).copied().unwrap_or_default();
    }
    names.insert(number, name);
    name
}
