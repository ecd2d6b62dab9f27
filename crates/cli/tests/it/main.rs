//! The program, run as a user runs it.
#![expect(
    clippy::unwrap_used,
    reason = "a test that cannot run the program should fail loudly"
)]

mod acquire;
mod cache;
mod callers;
mod canary;
mod check;
mod daemon;
mod documented_clients;
mod documented_commands;
mod envoy;
mod explain;
mod import;
mod faults;
mod first_run;
mod serve;
mod store;
mod running_daemon;
mod systemd;
mod traefik;
mod folder;
mod gateway;
mod guide;
mod init;
mod integrations;
mod leak;
mod llm_clients;
mod llm_goals;
mod llm_guide;
mod log;
mod observing;
mod openapi_client;
mod operating;
mod packaging;
mod operating_page;
mod page;
mod processes;
mod profiles;
mod provider;
mod python;
mod restart;
mod schema;
mod shared_quota;
mod short_lived;
mod memory;
mod snapshot;
mod soak;
mod sources;

use std::io::Write;
use std::process::{Command, Output, Stdio};

/// Runs `tollgate` with `input` on standard input, to its end.
fn tollgate(args: &[&str], input: &str) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_tollgate"))
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_owned();
    // Written by a separate thread: a pipe holds less than a file of vectors and its output.
    let writer = std::thread::spawn(move || stdin.write_all(input.as_bytes()));
    let output = child.wait_with_output().unwrap();
    // A program that rejects its arguments does not read; the pipe is broken then.
    drop(writer.join().unwrap());
    output
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}
