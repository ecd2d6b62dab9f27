//! A server under measurement: a process of its own on a core of its own.
//!
//! Promises: it is stopped by its id when this is dropped. CPU time is what the scheduler counted for
//! all its threads, in nanoseconds; memory is resident.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use crate::load::HttpRequest;

/// The core of servers, and the core of callers.
const SERVER_CORE: &str = "1";
const CALLER_CORE: &str = "0";

/// How long a server may take to listen.
const START_MAX: Duration = Duration::from_secs(10);

pub struct Server {
    pub name: &'static str,
    /// Where it speaks the protocol under measurement.
    pub port: u16,
    /// Where it speaks HTTP, if that is another port.
    pub http_port: u16,
    /// Where it speaks gRPC.
    pub grpc_port: u16,
    /// How it is asked over HTTP.
    pub http_request: HttpRequest,
    /// The words before the key, and those behind it.
    pub command: (Vec<String>, Vec<String>),
    child: Child,
}

impl Server {
    /// Starts a program on the servers' core and waits until it listens.
    pub fn start(
        name: &'static str,
        program: &Path,
        words: &[String],
        port: u16,
    ) -> anyhow::Result<Server> {
        let child = Command::new("taskset")
            .args(["-c", SERVER_CORE])
            .arg(program)
            .args(words)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("{name} could not be started"))?;
        // A token takes 100 s, so that keys stay, and there are more of them than requests.
        let limits = ["10000000", "6", "600"].map(str::to_owned).to_vec();
        let mut server = Server {
            name,
            port,
            http_port: port,
            grpc_port: port,
            http_request: HttpRequest {
                path: "/v1/acquire",
                body: r#"{"guard":"api","identifier":"KEY","wait":false}"#,
            },
            command: (vec!["CL.THROTTLE".to_owned()], limits),
            child,
        };
        server.wait()?;
        Ok(server)
    }

    /// This program as a server that always replies the same.
    pub fn floor(kind: &str) -> anyhow::Result<Server> {
        let port = free_port()?;
        let words = ["--floor".to_owned(), kind.to_owned(), port.to_string()];
        let name = match kind {
            "grpc" => "floor (tonic)",
            "http2" => "bare HTTP/2, no gRPC library",
            _ => "floor",
        };
        Server::start(name, &std::env::current_exe()?, &words, port)
    }

    fn wait(&mut self) -> anyhow::Result<()> {
        let began = Instant::now();
        while TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            if let Some(status) = self.child.try_wait()? {
                bail!("{} ended at its start: {status}", self.name);
            }
            if began.elapsed() > START_MAX {
                bail!("{} does not listen", self.name);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// CPU time of all its threads.
    pub fn cpu_nanos(&self) -> anyhow::Result<u64> {
        let mut sum = 0;
        for thread in fs::read_dir(format!("/proc/{}/task", self.child.id()))? {
            // A thread may have ended meanwhile.
            let Ok(text) = fs::read_to_string(thread?.path().join("schedstat")) else {
                continue;
            };
            let nanos = text.split_whitespace().next().unwrap_or_default();
            sum += nanos.parse::<u64>()?;
        }
        Ok(sum)
    }

    /// Resident bytes.
    pub fn memory(&self) -> anyhow::Result<u64> {
        let text = fs::read_to_string(format!("/proc/{}/statm", self.child.id()))?;
        let pages = text.split_whitespace().nth(1).context("statm")?;
        Ok(pages.parse::<u64>()? * 4_096)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Keeps this process off the servers' core.
pub fn pin_callers() -> anyhow::Result<()> {
    let own = std::process::id().to_string();
    let pinned = Command::new("taskset")
        .args(["-pc", CALLER_CORE, &own])
        .stdout(Stdio::null())
        .status()?;
    anyhow::ensure!(pinned.success(), "taskset failed; install util-linux");
    Ok(())
}

pub fn free_port() -> anyhow::Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}
