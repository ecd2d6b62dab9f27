//! A server under measurement: a process of its own on a core of its own.
//!
//! Promises: it is stopped by its id when this is dropped. CPU time is what the kernel counted for
//! all its threads and children; memory is resident, less what is shared between them.

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

/// The core of servers, and the core of callers and upstream.
pub const SERVER_CORE: &str = "1";
pub const CALLER_CORE: &str = "0";

/// How long a server may take to listen.
const START_MAX: Duration = Duration::from_secs(10);

pub struct Server {
    pub name: &'static str,
    pub address: SocketAddr,
    /// The path that reaches the upstream through it.
    pub path: &'static str,
    child: Child,
}

impl Server {
    /// Starts a program on the servers' core and waits until it listens.
    pub fn start(
        name: &'static str,
        address: SocketAddr,
        path: &'static str,
        program: &[&str],
        log: &std::path::Path,
    ) -> anyhow::Result<Server> {
        let log = fs::File::create(log)?;
        let child = Command::new("taskset")
            .args(["-c", SERVER_CORE])
            .args(program)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("{name} could not be started"))?;
        let mut server = Server {
            name,
            address,
            path,
            child,
        };
        server.wait()?;
        Ok(server)
    }

    fn wait(&mut self) -> anyhow::Result<()> {
        let began = Instant::now();
        while TcpStream::connect(self.address).is_err() {
            if let Some(status) = self.child.try_wait()? {
                bail!("{} ended at its start: {status}", self.name);
            }
            if began.elapsed() > START_MAX {
                bail!("{} does not listen on {}", self.name, self.address);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Its process and its children, which is what nginx serves with.
    fn processes(&self) -> Vec<u32> {
        let own = self.child.id();
        let children = format!("/proc/{own}/task/{own}/children");
        let children = fs::read_to_string(children).unwrap_or_default();
        let children = children.split_whitespace().filter_map(|id| id.parse().ok());
        std::iter::once(own).chain(children).collect()
    }

    /// CPU time used, user and kernel, of all threads.
    pub fn cpu(&self) -> Duration {
        let mut nanos = 0;
        for process in self.processes() {
            let Ok(threads) = fs::read_dir(format!("/proc/{process}/task")) else {
                continue;
            };
            for thread in threads.flatten() {
                let stat = fs::read_to_string(thread.path().join("schedstat"));
                let stat = stat.unwrap_or_default();
                let ran = stat.split_whitespace().next();
                nanos += ran.and_then(|ran| ran.parse::<u64>().ok()).unwrap_or(0);
            }
        }
        Duration::from_nanos(nanos)
    }

    /// Resident memory in MB, pages that its processes share counted once.
    pub fn memory(&self) -> f64 {
        let pss = |process: &u32| {
            let rollup = fs::read_to_string(format!("/proc/{process}/smaps_rollup"));
            let rollup = rollup.unwrap_or_default();
            let line = rollup.lines().find(|line| line.starts_with("Pss:"));
            let kib = line.and_then(|line| line.split_whitespace().nth(1)?.parse::<f64>().ok());
            kib.unwrap_or(0.0) * 1_024.0 / 1e6
        };
        self.processes().iter().map(pss).sum()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // SIGTERM first, so that nginx ends its workers.
        let id = self.child.id().to_string();
        let _asked = Command::new("kill").args(["-TERM", &id]).status();
        for _ in 0..50 {
            if matches!(self.child.try_wait(), Ok(Some(_))) {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let _killed = self.child.kill();
        let _ended = self.child.wait();
    }
}
