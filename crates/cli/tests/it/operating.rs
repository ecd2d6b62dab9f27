//! Situations of an operator: changed tokens, addresses in use, closed outputs, broken files.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};

use tollgate_sim::test_host::free_address;

use crate::folder::{CommandOutput, Folder};
use crate::running_daemon::{RunningDaemon, X};

/// An upstream that responds to everything with this status, until the test ends.
pub(crate) fn upstream(status: u16) -> SocketAddr {
    upstream_with(format!("{status} Word\r\nContent-Length: 0"), "")
}

/// An upstream that responds to everything with this head and body, until the test ends.
pub(crate) fn upstream_with(head: String, body: &'static str) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let mut read = [0; 4096];
            let response = format!("HTTP/1.1 {head}\r\nConnection: close\r\n\r\n{body}");
            let received = stream.read(&mut read);
            received
                .and_then(|_| stream.write_all(response.as_bytes()))
                .ok();
        }
    });
    address
}

/// The status of a call with these headers.
fn call(address: &str, path: &str, headers: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("a listener");
    let request = format!("GET {path} HTTP/1.1\r\nHost: g\r\n{headers}Connection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("a connection");
    let mut response = String::new();
    stream.read_to_string(&mut response).expect("a response");
    response.split(' ').nth(1).unwrap_or_default().to_owned()
}

/// H3: after a reload a changed token is valid and the old one is not.
#[test]
fn h3_a_running_daemon_applies_a_changed_caller_token() {
    let x = X.replace("127.0.0.1:9", &upstream(200).to_string());
    let folder = Folder::new("token-changed")
        .file("x.yaml", &x)
        .file("v.env", "WEB_TOKEN=old-token\n")
        .file("tollgate.yaml", "callers: {web: {token: '${WEB_TOKEN}'}}\n");
    let daemon = RunningDaemon::start(folder, &["--env-file", "v.env"]);
    let status_with = |token: &str| {
        let header = format!("X-Tollgate-Token: {token}\r\n");
        call(&daemon.gateway, "/x@web/a", &header)
    };
    assert_eq!(
        (
            status_with("old-token").as_str(),
            status_with("new-token").as_str()
        ),
        ("200", "403")
    );
    daemon.folder.rewrite("v.env", "WEB_TOKEN=new-token\n");
    // The file watch may be faster than the command; the new token is valid either way.
    let output = daemon.tollgate(&["reload"]);
    assert_eq!(output.code, Some(0), "{}", output.err);
    assert_eq!(
        (
            status_with("old-token").as_str(),
            status_with("new-token").as_str()
        ),
        ("403", "200")
    );
    assert!(
        !output.to_snapshot().contains("token: "),
        "{}",
        output.to_snapshot()
    );
}

/// A built-in provider's own address is printed and stays open.
#[test]
fn a_built_in_providers_own_address_is_served() {
    let own = free_address();
    let folder = Folder::new("own-listen").file("x.yaml", X);
    let set = format!("tmdb.listen={own}");
    let daemon = RunningDaemon::start(folder, &["--set", &set]);
    daemon.tollgate(&["reload"]);
    assert!(TcpStream::connect(own).is_ok());
}

/// An address in use is reported with its own fix, not with the gateway's flag.
#[test]
fn a_provider_address_in_use_is_reported_with_its_own_fix() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address");
    let folder = Folder::new("own-taken").file("x.yaml", &format!("{X}listen: {address}\n"));
    let args = ["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"];
    let rest = ["--store", "memory:", "--provider", "x.yaml"];
    let output = folder.run(&[&args[..], &rest].concat());
    assert_eq!(output.code, Some(1));
    assert!(
        output.err.contains("`listen` for the provider x") && !output.err.contains("--listen"),
        "{}",
        output.err
    );
}

/// A broken provider file does not send commands to another daemon: the address, the token and the
/// variables of tollgate.yaml still apply.
#[test]
fn with_a_broken_provider_file_commands_find_the_same_daemon() {
    let admin = free_address();
    let config = format!(
        "listen: 127.0.0.1:0\nadmin: {{listen: '{admin}', token: '${{DESK_TOKEN}}'}}\n\
         store: 'memory:'\nproviders: [x.yaml]\n"
    );
    let folder = Folder::new("broken-file")
        .file("x.yaml", X)
        .file("v.env", "DESK_TOKEN=desk-token\n")
        .file("tollgate.yaml", &config);
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.args(["serve", "--env-file", "v.env"]);
    let daemon = RunningDaemon::run(folder, command);
    daemon.folder.rewrite("x.yaml", &X.replace("5/1s", "many"));
    daemon.wait_for_log("reload_rejected");
    let output = daemon.folder.run(&["status", "--env-file", "v.env"]);
    assert_eq!(output.code, Some(0), "{}", output.err);
    assert!(output.out.contains("x.yaml:3"), "{}", output.to_snapshot());
}

/// The exit code with a standard output and a standard error that nobody reads.
fn exit_code_without_reader(folder: &Folder, args: &[&str]) -> Option<i32> {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command
        .args(args)
        .stderr(writer.try_clone().expect("a pipe"));
    command.stdout(writer);
    let status = folder.prepare(&mut command).status();
    status.expect("the program runs").code()
}

/// A closed output does not change the result.
#[test]
fn a_closed_output_does_not_change_the_exit_code() {
    let folder = Folder::new("pipe")
        .file("good.yaml", X)
        .file("bad.yaml", &X.replace("5/1s", "many"));
    assert_eq!(
        exit_code_without_reader(&folder, &["check", "good.yaml"]),
        Some(0)
    );
    assert_eq!(
        exit_code_without_reader(&folder, &["check", "bad.yaml"]),
        Some(1)
    );
}

/// Variants, local services and users' own providers have a dialect too.
#[test]
fn explain_accepts_every_providers_name() {
    let folder = Folder::new("explained")
        .file(
            "mine.yaml",
            &X.replace("name: x", "name: mine\ndialect: github"),
        )
        .file("tollgate.yaml", "providers: [mine.yaml]\n");
    let explained = |name: &str| -> CommandOutput {
        folder.run(&["explain", "--provider", name, "--status", "429"])
    };
    for (name, dialect) in [
        ("mine", "github"),
        ("tmdb-legacy", "tmdb"),
        ("omdb-paid", "omdb"),
        ("local", "generic"),
    ] {
        let output = explained(name);
        assert_eq!(output.code, Some(0), "{name}: {}", output.err);
        assert!(
            output.out.contains(&format!("\"{dialect}\"")),
            "{name}: {}",
            output.out
        );
    }
    let wrong = explained("mien");
    assert_eq!(wrong.code, Some(2));
    assert!(wrong.err.contains("did you mean `mine`?"), "{}", wrong.err);
}

/// Multi-host providers: `init` shows how to set the host, `check` warns if it is not set.
#[test]
fn init_and_check_ask_for_the_host_of_a_multi_host_provider() {
    let folder = Folder::new("tenants").env("ZENDESK_API_KEY", "CANARY");
    let output = folder.run(&["init", "zendesk"]);
    assert_eq!(output.code, Some(0), "{}", output.err);
    assert!(
        output.out.contains("/https://YOURS.zendesk.com") && !output.out.contains("https://*."),
        "{}",
        output.out
    );
    let written = folder.read("tollgate.yaml");
    assert!(
        written.contains("# upstream: https://YOURS.zendesk.com"),
        "{written}"
    );
    let output = folder.run(&["check"]);
    assert_eq!(output.code, Some(0), "{}", output.to_snapshot());
    assert!(
        output.err.contains("upstream: https://YOURS.zendesk.com"),
        "{}",
        output.err
    );
    let named = written.replace("# upstream: https://YOURS", "upstream: https://acme");
    folder.rewrite("tollgate.yaml", &named);
    let output = folder.run(&["check"]);
    assert!(!output.err.contains("YOURS"), "{}", output.err);
}

/// `check --live` while its daemon runs: the daemon itself uses its ports. A key that is missing is
/// not reported as rejected.
#[test]
fn check_live_while_a_daemon_runs_finds_no_problem() {
    let (gateway, admin, own) = (free_address(), free_address(), free_address());
    let upstream = upstream(401);
    let config = format!(
        "listen: {gateway}\nadmin: {{listen: '{admin}'}}\nstore: 'sqlite:state'\nproviders:\n  \
         x: {{upstream: 'http://{upstream}', limits: [9/1s], auth: {{header: x-key}}, listen: '{own}'}}\n"
    );
    let folder = Folder::new("live-beside").file("tollgate.yaml", &config);
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.arg("serve").stdin(Stdio::null());
    let daemon = RunningDaemon::run(folder, command);
    let output = daemon.folder.run(&["check", "--live"]);
    assert_eq!(output.code, Some(0), "{}", output.to_snapshot());
    for line in [
        format!("port: tollgate listens on {gateway}"),
        format!("port: tollgate listens on {admin}"),
        format!("port: tollgate listens on {own}"),
        "x: responds (401); there is no key".to_owned(),
    ] {
        assert!(
            output.out.contains(&line),
            "{line}: {}",
            output.to_snapshot()
        );
    }
}
