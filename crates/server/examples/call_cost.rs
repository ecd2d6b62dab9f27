//! What a call costs the gateway: instructions, allocations and clock readings of the program itself.
//!
//! `cargo build --profile symbols --locked -p tollgate-cli`
//! `cargo run -p tollgate-server --example call_cost -- target/symbols/tollgate [CALLS] [PROFILE]`
//!
//! Promises: the program runs under callgrind as it is shipped, with both sides of HTTP, one key, two limits and
//! the ledger in memory. Clients and upstream are here, uncounted. A count is the difference of two runs, divided
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

/// The kinds of calls that are counted: the lines of the provider's file, and whether every call is for the same path.
const ROWS: [(&str, &str, bool); 3] = [
    ("proxied, no cache", "", false),
    (
        "proxied, rfc9111, not cacheable",
        "cache: { mode: rfc9111 }\n",
        false,
    ),
    ("cache hit", "cache: { ttl: 1h }\n", true),
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
    for (row, (name, lines, same)) in ROWS.into_iter().enumerate() {
        let profile = words.get(2).map(|path| format!("{path}.{row}"));
        let file = format!(
            "name: up\nupstream: http://{upstream}\napi_key: secret\nauth: {{ bearer: true }}\n\
             limits: [1000000/1s, 100000000/1m]\n{lines}"
        );
        let few = run(program, &file, WARM, same, None);
        let many = run(program, &file, WARM + calls, same, profile.as_deref());
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
fn run(program: &str, file: &str, calls: u64, same: bool, keep: Option<&str>) -> Counts {
    let folder = std::env::temp_dir().join(format!("tollgate-call-cost-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let provider = folder.join("up.yaml");
    std::fs::write(&provider, file).unwrap();
    let kept = folder.join("callgrind.out");
    let kept = keep.map_or(kept.as_path(), Path::new);
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = free.local_addr().unwrap();
    drop(free);
    let mut child = Command::new("valgrind")
        .arg("--tool=callgrind")
        .arg(format!("--callgrind-out-file={}", kept.display()))
        .args([program, "serve", "--store", "memory:", "--provider"])
        .arg(&provider)
        .args(["--listen", &address.to_string()])
        // One worker, as in the table of proxies.
        .env("TOKIO_WORKER_THREADS", "1")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("valgrind is missing; install it (Debian: `apt-get install valgrind`)");
    let mut stream = connect(address);
    for call in 0..calls {
        let item = if same { 0 } else { call };
        get(&mut stream, item);
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

fn get(stream: &mut TcpStream, item: u64) {
    let request = format!(
        "GET /up/item/{item}?page=1 HTTP/1.1\r\nhost: localhost\r\nuser-agent: call-cost\r\n\
         accept: application/json\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).unwrap();
    let mut response = Vec::new();
    let mut buffer = [0; 4_096];
    // The body is a kibibyte of `x`, and nothing else ends with one.
    loop {
        let read = stream.read(&mut buffer).unwrap();
        assert!(read > 0, "the program has closed the connection");
        response.extend_from_slice(&buffer[..read]);
        let head = response.windows(4).position(|four| four == b"\r\n\r\n");
        if head.is_some_and(|head| response.len() >= head + 4 + BODY) {
            break;
        }
    }
    assert!(
        response.starts_with(b"HTTP/1.1 200 "),
        "{}",
        String::from_utf8_lossy(&response)
    );
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
