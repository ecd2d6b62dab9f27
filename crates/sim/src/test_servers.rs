//! Real servers for tests: Redis and Postgres, each in a folder and on a port of its own.
//!
//! Promises: a server ends with its value, and can be killed and started again before. If its
//! program is missing, the test fails and names it.
//!
//! Never: in the product.

#[cfg(feature = "http")]
mod certificate;
mod postgres;
mod redis;

#[cfg(feature = "http")]
pub use certificate::Certificate;
pub use postgres::PostgresServer;
pub use redis::RedisServer;

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::sync_channel;
use std::time::Duration;

/// A server that is not ready by then does not start. Beside a compiler and on a busy disk it takes some ten
/// seconds, and as many again to read its log after a kill.
const READY_WITHIN: Duration = Duration::from_secs(120);

/// How often a start is tried: another program may take the port.
const STARTS: u32 = 3;

/// A library that fakes the clocks of a process.
///
/// # Panics
///
/// If it is not installed.
fn libfaketime(name: &str) -> PathBuf {
    let folders = std::fs::read_dir("/usr/lib").into_iter();
    let folders = folders.flatten().flatten();
    let library = |folder: std::fs::DirEntry| folder.path().join("faketime").join(name);
    let found = folders.map(library).find(|path| path.exists());
    found.unwrap_or_else(|| panic!("libfaketime is missing; `make tools` installs it"))
}

/// What a program with several threads needs in its environment to read its wall clock from this file
/// whenever it looks at it. Its boot time is real, as on a host whose clock is set; so are the times of
/// its files.
///
/// # Panics
///
/// If libfaketime is not installed.
#[must_use]
pub fn faked_clock(file: &Path) -> [(&'static str, String); 5] {
    // The plain library reads the file through buffers that all threads share: now and then a thread would
    // get the real time, or the program would end.
    let library = libfaketime("libfaketimeMT.so.1");
    variables_of_clock(library.display().to_string(), file)
}

fn variables_of_clock(preload: String, file: &Path) -> [(&'static str, String); 5] {
    [
        ("LD_PRELOAD", preload),
        ("FAKETIME_TIMESTAMP_FILE", file.display().to_string()),
        ("FAKETIME_NO_CACHE", "1".to_owned()),
        ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
        ("NO_FAKE_STAT", "1".to_owned()),
    ]
}

/// The clock of a server's host, by a file that libfaketime reads whenever the server reads its clock.
#[derive(Debug)]
struct HostClock {
    file: PathBuf,
}

impl HostClock {
    /// A clock that differs from the machine's by this, such as `+30s`; its file is in this folder.
    fn new(folder: &Path, offset: &str) -> HostClock {
        let clock = HostClock {
            file: folder.join("clock"),
        };
        clock.set(offset);
        clock
    }

    /// Steps it. The file is replaced at once: a server never reads half of it.
    fn set(&self, offset: &str) {
        let next = self.file.with_extension("next");
        std::fs::write(&next, format!("{offset}\n")).unwrap_or_else(|error| panic!("{error}"));
        std::fs::rename(&next, &self.file).unwrap_or_else(|error| panic!("{error}"));
    }

    /// What the process needs in its environment.
    fn variables(&self) -> [(&'static str, String); 5] {
        // Servers that allocate with jemalloc hang in libfaketime's start, which allocates: with the C
        // library's allocator they do not.
        let library = libfaketime("libfaketime.so.1");
        variables_of_clock(format!("{}:libc.so.6", library.display()), &self.file)
    }
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

    /// Runs it still? Once it has ended, its number may be another program's.
    fn is_running(&mut self) -> bool {
        self.child.try_wait().is_ok_and(|ended| ended.is_none())
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
