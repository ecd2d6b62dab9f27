//! Real servers for tests: Redis and Postgres, each in a folder and on a port of its own.
//!
//! Promises: a server ends with its value, and can be killed and started again before. If its
//! program is missing, the test fails and names it.
//!
//! Never: in the product.

mod postgres;
mod redis;

pub use postgres::PostgresServer;
pub use redis::RedisServer;

use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::sync_channel;
use std::time::Duration;

/// A server that is not ready by then does not start.
const READY_WITHIN: Duration = Duration::from_secs(30);

/// The library that fakes the clocks of a process.
///
/// # Panics
///
/// If it is not installed.
#[must_use]
pub fn libfaketime() -> PathBuf {
    let folders = std::fs::read_dir("/usr/lib").into_iter();
    let folders = folders.flatten().flatten();
    let library = |folder: std::fs::DirEntry| folder.path().join("faketime/libfaketime.so.1");
    let found = folders.map(library).find(|path| path.exists());
    found.unwrap_or_else(|| panic!("libfaketime is missing; `make tools` installs it"))
}

/// A process that is killed with its value.
#[derive(Debug)]
struct Server {
    child: Child,
}

impl Server {
    /// Starts it and waits for a line with this text on its output; `Err` has its output.
    fn start(command: &mut Command, ready: &'static str) -> Result<Server, String> {
        let program = command.get_program().to_string_lossy().into_owned();
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| {
                format!("{program} could not be started: {error}; `make tools` installs it")
            })?;
        let (sender, receiver) = sync_channel(1);
        for output in [
            child
                .stdout
                .take()
                .map(|out| Box::new(out) as Box<dyn Read + Send>),
            child
                .stderr
                .take()
                .map(|err| Box::new(err) as Box<dyn Read + Send>),
        ] {
            let sender = sender.clone();
            std::thread::spawn(move || {
                let lines = BufReader::new(output?).lines().map_while(Result::ok);
                let mut text = String::new();
                // Read to its end, so that the server never waits for its reader.
                for line in lines {
                    if line.contains(ready) {
                        drop(sender.try_send(Ok(())));
                    }
                    if text.len() < 100_000 {
                        text.extend([line.as_str(), "\n"]);
                    }
                }
                sender.try_send(Err(text)).ok()
            });
        }
        drop(sender);
        let server = Server { child };
        match receiver.recv_timeout(READY_WITHIN) {
            Ok(Ok(())) => Ok(server),
            Ok(Err(output)) => Err(format!("{program} ended: {output}")),
            Err(error) => Err(format!("{program} is not ready: {error}")),
        }
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    /// kill -9.
    fn kill(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}
