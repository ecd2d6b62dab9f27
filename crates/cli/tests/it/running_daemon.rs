//! A running daemon, and the ways in which tests use it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;

use crate::folder::{CommandOutput, Folder};

/// Far beyond the need of a busy machine: turns a test that would hang into one that fails.
const PATIENCE: Duration = Duration::from_secs(120);

/// A provider file whose upstream does not respond.
pub(crate) const X: &str = "name: x\nupstream: http://127.0.0.1:9\nlimits: [5/1s]\n";

/// `tollgate serve` on free ports. Killed when the test ends, if it still runs.
pub(crate) struct RunningDaemon {
    child: Child,
    pub(crate) folder: Folder,
    pub(crate) gateway: String,
    pub(crate) admin: String,
    /// The address of the Redis protocol, with `--resp`.
    pub(crate) resp: Option<String>,
    /// Its address for gRPC, with `--grpc`.
    pub(crate) grpc: Option<String>,
    log: Receiver<String>,
}

impl RunningDaemon {
    /// Starts it in a folder that holds `x.yaml`.
    pub(crate) fn start(folder: Folder, args: &[&str]) -> RunningDaemon {
        let daemon = RunningDaemon::start_with_own_log(folder, args);
        // The first configuration is logged like every other.
        daemon.wait_for_log("event=reloaded");
        daemon
    }

    /// The same for a daemon that logs elsewhere.
    pub(crate) fn start_with_own_log(folder: Folder, args: &[&str]) -> RunningDaemon {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
        command.args(["serve", "--listen", "127.0.0.1:0", "--store", "memory:"]);
        command.args(["--admin", "127.0.0.1:0", "--provider", "x.yaml"]);
        command.args(args);
        RunningDaemon::spawn(folder, command)
    }

    /// Runs a command that becomes `tollgate serve`, and reads its addresses.
    pub(crate) fn run(folder: Folder, command: Command) -> RunningDaemon {
        let daemon = RunningDaemon::spawn(folder, command);
        daemon.wait_for_log("event=reloaded");
        daemon
    }

    pub(crate) fn spawn(folder: Folder, mut command: Command) -> RunningDaemon {
        let has = |flag: &str| command.get_args().any(|arg| arg == flag);
        let (has_resp, has_grpc) = (has("--resp"), has("--grpc"));
        let mut child = folder
            .prepare(&mut command)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program runs");
        let (sender, log) = sync_channel(10_000);
        let stderr = BufReader::new(child.stderr.take().expect("a pipe"));
        std::thread::spawn(move || {
            // Ends with the program; a test that no longer listens is no error.
            stderr
                .lines()
                .map_while(Result::ok)
                .all(|line| sender.send(line).is_ok())
        });
        let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        let mut address = |what: &str| {
            let mut found = lines.by_ref().map_while(Result::ok);
            let line = found
                .find(|line| line.contains(what))
                .unwrap_or_else(|| panic!("{what}"));
            line.trim()
                .rsplit("//")
                .next()
                .unwrap_or_default()
                .to_owned()
        };
        let gateway = address("listens on");
        let grpc = has_grpc.then(|| address("(grpc)"));
        let resp = has_resp.then(|| address("(resp)"));
        let admin = address("(admin)");
        RunningDaemon {
            child,
            folder,
            gateway,
            admin,
            resp,
            grpc,
            log,
        }
    }

    /// Runs another command against it.
    pub(crate) fn tollgate(&self, args: &[&str]) -> CommandOutput {
        let mut all = args.to_vec();
        all.extend(["--admin", &self.admin]);
        self.folder.run(&all)
    }

    /// Waits for a line of its log.
    pub(crate) fn wait_for_log(&self, what: &str) -> String {
        let mut seen = String::new();
        while let Ok(line) = self.log.recv_timeout(PATIENCE) {
            if line.contains(what) {
                return line;
            }
            seen.push_str(&line);
        }
        panic!("no line with {what} in:\n{seen}")
    }

    /// Its standard error up to its end.
    pub(crate) fn stderr_text(&self) -> String {
        let mut text = String::new();
        while let Ok(line) = self.log.recv_timeout(PATIENCE) {
            text.push_str(&line);
        }
        text
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        let sent = Command::new("kill").args([name, &pid]).status();
        assert!(sent.expect("kill runs").success());
    }

    /// Its exit code, if it ends within this time.
    pub(crate) fn ended_within(&mut self, time: Duration) -> Option<i32> {
        for _ in 0..20 {
            if let Some(status) = self.child.try_wait().expect("a child") {
                return status.code();
            }
            std::thread::park_timeout(time / 20);
        }
        None
    }

    /// Its exit code, once it has ended.
    pub(crate) fn wait(mut self) -> Option<i32> {
        self.child.wait().expect("a child").code()
    }

    /// A connection on which a request was sent and no response was read.
    pub(crate) fn send(&self, path: &str) -> TcpStream {
        let mut stream = TcpStream::connect(&self.gateway).expect("a listener");
        let request = format!("GET {path} HTTP/1.1\r\nHost: g\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).expect("a connection");
        stream
    }

    pub(crate) fn get(&self, path: &str) -> String {
        let mut response = String::new();
        let mut stream = self.send(path);
        stream.read_to_string(&mut response).expect("a response");
        response
    }
}

impl RunningDaemon {
    /// A request to the admin address that changes something.
    pub(crate) fn post(&self, path: &str, body: &str) -> String {
        let mut stream = TcpStream::connect(&self.admin).expect("a listener");
        let (host, length) = (&self.admin, body.len());
        let request = format!(
            "POST {path} HTTP/1.1\r\nHost: {host}\r\nX-Tollgate-Admin: 1\r\nConnection: close\r\n\
             Content-Length: {length}\r\n\r\n{body}"
        );
        stream.write_all(request.as_bytes()).expect("a connection");
        let mut response = String::new();
        stream.read_to_string(&mut response).expect("a response");
        response
    }
}

impl Drop for RunningDaemon {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
