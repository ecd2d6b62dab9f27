//! Memory after a burst of bodies: the process returns it to the system.

use std::fs;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use crate::folder::Folder;
use crate::running_daemon::RunningDaemon;

/// Uploads at a time, and the size of each: 50 MB, all of it in memory.
const UPLOADS: usize = 200;
const LENGTH: usize = 250_000;

/// Of 50 MB, so much may stay: allocators keep pages, and buffers of connections come and go.
const SLACK_KIB: u64 = 16 * 1024;

/// How often the memory is looked at, and for how long: the daemon looks for the end of a burst every
/// five seconds, and a busy machine needs longer.
const LOOKS: usize = 300;
const LOOK_EVERY: Duration = Duration::from_millis(200);

fn memory_kib(daemon: &RunningDaemon) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", daemon.pid())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let number = line.and_then(|line| line.split_whitespace().nth(1));
    number.unwrap().parse().unwrap()
}

/// Waits until the memory is as it should be; returns what it was last.
#[expect(clippy::disallowed_methods, reason = "another process needs its time")]
fn memory_when(daemon: &RunningDaemon, is_fine: impl Fn(u64) -> bool) -> u64 {
    let mut memory = memory_kib(daemon);
    for _ in 0..LOOKS {
        if is_fine(memory) {
            break;
        }
        std::thread::sleep(LOOK_EVERY);
        memory = memory_kib(daemon);
    }
    memory
}

/// Uploads that wait for a permit take memory; when their clients have gone, the process has
/// about as much as before.
#[test]
fn memory_is_returned_after_a_burst_of_bodies() {
    // It accepts a connection and never responds, so one call runs and all others wait.
    let upstream = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = upstream.local_addr().unwrap();
    let file = format!(
        "name: x\nupstream: http://{address}\nconcurrency: 1\ntimeout: {{first_byte: 600s}}\nqueue: {{timeout: 600s}}\n"
    );
    let daemon = RunningDaemon::start(Folder::new("b9").file("x.yaml", &file), &[]);
    let before = memory_kib(&daemon);
    let body = vec![b'x'; LENGTH];
    let uploads: Vec<TcpStream> = (0..UPLOADS)
        .map(|_| {
            let mut stream = TcpStream::connect(&daemon.gateway).unwrap();
            let head = format!("POST /x/a HTTP/1.1\r\nHost: g\r\nContent-Length: {LENGTH}\r\n\r\n");
            stream.write_all(head.as_bytes()).unwrap();
            stream.write_all(&body).unwrap();
            stream
        })
        .collect();
    let all_kib = u64::try_from(UPLOADS * LENGTH / 1_024).unwrap();
    let during = memory_when(&daemon, |kib| kib >= before + all_kib * 3 / 4);
    assert!(during >= before + all_kib * 3 / 4, "{before} {during}");
    drop(uploads);
    let after = memory_when(&daemon, |kib| kib <= before + SLACK_KIB);
    assert!(after <= before + SLACK_KIB, "{before} {during} {after}");
}
