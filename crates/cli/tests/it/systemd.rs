//! The service manager's protocols, and graceful and immediate shutdown.

use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::folder::Folder;
use crate::running_daemon::{RunningDaemon, X};

/// The notification socket of a service manager.
struct Manager(UnixDatagram);

impl Manager {
    fn listen(folder: &Folder) -> Manager {
        let socket = UnixDatagram::bind(folder.path().join("notify")).expect("a socket");
        let patience = Some(Duration::from_secs(30));
        socket.set_read_timeout(patience).expect("a time");
        Manager(socket)
    }

    fn recv(&self) -> String {
        let mut bytes = [0; 512];
        let length = self.0.recv(&mut bytes).expect("a message");
        String::from_utf8_lossy(&bytes[..length]).into_owned()
    }
}

fn program(folder: &Folder) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.args(["serve", "--listen", "127.0.0.1:0", "--store", "memory:"]);
    command.args(["--admin", "127.0.0.1:0", "--provider", "x.yaml"]);
    command.env("NOTIFY_SOCKET", folder.path().join("notify"));
    command
}

#[test]
fn the_service_manager_is_notified_of_start_reload_and_stop() {
    let folder = Folder::new("notify").file("x.yaml", X);
    let manager = Manager::listen(&folder);
    let command = program(&folder);
    let daemon = RunningDaemon::run(folder, command);
    assert!(manager.recv().starts_with("READY=1"));
    daemon.signal("-HUP");
    let reloading = manager.recv();
    assert!(
        reloading.starts_with("RELOADING=1\nMONOTONIC_USEC="),
        "{reloading}"
    );
    assert!(manager.recv().starts_with("READY=1"));
    daemon.signal("-TERM");
    assert_eq!(manager.recv(), "STOPPING=1");
    assert_eq!(daemon.wait(), Some(0));
}

#[test]
fn watchdog_messages_are_sent_when_requested() {
    let folder = Folder::new("watchdog").file("x.yaml", X);
    let manager = Manager::listen(&folder);
    let mut command = program(&folder);
    command.env("WATCHDOG_USEC", "20000");
    let _served = RunningDaemon::run(folder, command);
    assert!(manager.recv().starts_with("READY=1"));
    assert_eq!(
        (manager.recv(), manager.recv()),
        ("WATCHDOG=1".into(), "WATCHDOG=1".into())
    );
}

/// The service manager's command: the shell moves the socket from 0 to 3, where the protocol
/// expects it, and its process becomes ours.
fn activated(listener: TcpListener) -> Command {
    let mut command = Command::new("sh");
    let script = "export LISTEN_PID=$$ LISTEN_FDS=1 LISTEN_FDNAMES=gateway; \
                  exec \"$0\" serve --listen 127.0.0.1:1 --store memory: --admin 127.0.0.1:0 \
                  --provider x.yaml 3<&0 </dev/null";
    command.args(["-c", script, env!("CARGO_BIN_EXE_tollgate")]);
    command.stdin(Stdio::from(OwnedFd::from(listener)));
    command
}

/// A socket that other hosts reach must not become an open proxy because a file says loopback.
#[test]
fn a_public_socket_of_the_service_manager_rejects_unknown_domains() {
    let folder = Folder::new("wide").file("x.yaml", X);
    let listener = TcpListener::bind("0.0.0.0:0").expect("a port");
    let mut daemon = RunningDaemon::run(folder, activated(listener));
    daemon.gateway = daemon.gateway.replace("0.0.0.0", "127.0.0.1");
    let response = daemon.get("/http://unknown.example/");
    assert!(response.starts_with("HTTP/1.1 403"), "{response}");
}

/// A socket that the manager holds: connections made before the start get their response after it.
#[test]
fn a_socket_of_the_service_manager_is_served() {
    let folder = Folder::new("socket").file("x.yaml", X);
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let mut early = TcpStream::connect(address).expect("the kernel's queue");
    std::io::Write::write_all(
        &mut early,
        b"GET /health HTTP/1.1\r\nHost: g\r\nConnection: close\r\n\r\n",
    )
    .expect("a connection");
    let daemon = RunningDaemon::run(folder, activated(listener));
    assert_eq!(daemon.gateway, address.to_string());
    let mut response = String::new();
    early.read_to_string(&mut response).expect("a response");
    assert!(response.starts_with("HTTP/1.1 200"), "{response}");
}

/// A socket with the name of a provider is that provider's own address; an unknown name is
/// reported.
#[test]
fn a_socket_named_as_a_provider_is_its_own_address() {
    let folder = Folder::new("named").file("x.yaml", X);
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let mut command = Command::new("sh");
    // The same socket twice: one of them has an unknown name.
    let script = "export LISTEN_PID=$$ LISTEN_FDS=2 LISTEN_FDNAMES=x:typo; \
                  exec \"$0\" serve --listen 127.0.0.1:0 --store memory: --admin 127.0.0.1:0 \
                  --provider x.yaml 3<&0 4<&0 </dev/null";
    command.args(["-c", script, env!("CARGO_BIN_EXE_tollgate")]);
    command.stdin(Stdio::from(OwnedFd::from(listener)));
    let daemon = RunningDaemon::spawn(folder, command);
    daemon.wait_for_log("socket `typo` matches no provider");
    assert_ne!(daemon.gateway, address.to_string());
    let mut call = TcpStream::connect(address).expect("a listener");
    let request = b"GET /a HTTP/1.1\r\nHost: g\r\nConnection: close\r\n\r\n";
    std::io::Write::write_all(&mut call, request).expect("a connection");
    let mut response = String::new();
    call.read_to_string(&mut response).expect("a response");
    assert!(response.contains("\"provider\":\"x\""), "{response}");
}

/// H3: a crash leaves no core dump, and other processes cannot read the gateway's memory.
#[test]
fn h3_a_crash_of_the_gateway_leaves_no_core_dump() {
    let folder = Folder::new("sealed").file("x.yaml", X);
    let mut command = Command::new("sh");
    // As large as allowed, so that the program has a limit to lower.
    let script = "ulimit -S -c $(ulimit -H -c); exec \"$0\" serve --listen 127.0.0.1:0 \
                  --store memory: --admin 127.0.0.1:0 --provider x.yaml";
    command.args(["-c", script, env!("CARGO_BIN_EXE_tollgate")]);
    let daemon = RunningDaemon::run(folder, command);
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", daemon.pid())).expect("limits");
    let core = limits
        .lines()
        .find(|line| line.starts_with("Max core file size"));
    let words: Vec<&str> = core.unwrap_or_default().split_whitespace().collect();
    assert_eq!(words[4..6], ["0", "0"], "{limits}");
    // A process that is not dumpable belongs to root, whoever runs it.
    let about = std::fs::metadata(format!("/proc/{}/environ", daemon.pid())).expect("a process");
    assert_eq!(std::os::unix::fs::MetadataExt::uid(&about), 0);
}

/// The first signal lets running calls finish; the second does not.
#[test]
fn a_second_signal_ends_it_at_once() {
    let upstream = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = upstream.local_addr().expect("an address");
    let text = X.replace("127.0.0.1:9", &address.to_string());
    let folder = Folder::new("twice").file("x.yaml", &text);
    let manager = Manager::listen(&folder);
    let command = program(&folder);
    let mut daemon = RunningDaemon::run(folder, command);
    assert!(manager.recv().starts_with("READY=1"));
    let mut call = daemon.send("/x/a");
    // It has reached its upstream, which never responds.
    let (_reached, _) = upstream.accept().expect("a connection");
    daemon.signal("-TERM");
    assert_eq!(manager.recv(), "STOPPING=1");
    // Within a second of the first it would be the same signal, sent twice. Another process counts
    // that second, so the time is real, and on a busy machine it takes more than one try.
    let mut code = None;
    while code.is_none() {
        let (tick, clock) = std::sync::mpsc::sync_channel::<()>(0);
        let pause = std::time::Duration::from_millis(1_500);
        clock.recv_timeout(pause).expect_err("nobody sends");
        drop(tick);
        daemon.signal("-TERM");
        code = daemon.ended_within(pause / 3);
    }
    assert_eq!(code, Some(1));
    let mut response = String::new();
    let ended = call.read_to_string(&mut response);
    assert!(ended.is_err() || response.is_empty(), "{response}");
}
