//! What an operator meets with the program itself: tokens that are changed, addresses that are taken,
//! readers that leave, files that are broken.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};

use crate::folder::{CommandOutput, Folder};
use crate::running_daemon::{RunningDaemon, X};

/// An upstream that answers everything with this status, until the test is over.
pub(crate) fn upstream(status: u16) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let mut read = [0; 4096];
            let answer =
                format!("HTTP/1.1 {status} Word\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
            let heard = stream.read(&mut read);
            heard.and_then(|_| stream.write_all(answer.as_bytes())).ok();
        }
    });
    address
}

/// The status of a call with these headers.
fn call(address: &str, path: &str, headers: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("a listener");
    let request = format!("GET {path} HTTP/1.1\r\nHost: g\r\n{headers}Connection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("a connection");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer.split(' ').nth(1).unwrap_or_default().to_owned()
}

pub(crate) fn free_address() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("an address")
}

/// H3: a token that was changed holds from the reload on, and the old one no longer.
#[test]
fn h3_a_running_daemon_applies_a_changed_caller_token() {
    let x = X.replace("127.0.0.1:9", &upstream(200).to_string());
    let folder = Folder::new("token-changed")
        .file("x.yaml", &x)
        .file("v.env", "WEB_TOKEN=old-token\n")
        .file("tollgate.yaml", "callers: {web: {token: '${WEB_TOKEN}'}}\n");
    let served = RunningDaemon::start(folder, &["--env-file", "v.env"]);
    let says = |token: &str| {
        let header = format!("X-Tollgate-Token: {token}\r\n");
        call(&served.gateway, "/x@web/a", &header)
    };
    assert_eq!(
        (says("old-token").as_str(), says("new-token").as_str()),
        ("200", "403")
    );
    served.folder.rewrite("v.env", "WEB_TOKEN=new-token\n");
    // The watch may be quicker than the command; either way it holds afterwards.
    let said = served.tollgate(&["reload"]);
    assert_eq!(said.code, Some(0), "{}", said.err);
    assert_eq!(
        (says("old-token").as_str(), says("new-token").as_str()),
        ("403", "200")
    );
    assert!(
        !said.to_snapshot().contains("token: "),
        "{}",
        said.to_snapshot()
    );
}

/// A built-in provider's own address is announced, and stays.
#[test]
fn a_built_in_providers_own_address_is_served() {
    let own = free_address();
    let folder = Folder::new("own-listen").file("x.yaml", X);
    let set = format!("tmdb.listen={own}");
    let served = RunningDaemon::start(folder, &["--set", &set]);
    served.tollgate(&["reload"]);
    assert!(TcpStream::connect(own).is_ok());
}

/// One that is taken is refused with what can be done about it: not with the gateway's own flag.
#[test]
fn a_provider_address_in_use_is_reported_with_its_own_fix() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address");
    let folder = Folder::new("own-taken").file("x.yaml", &format!("{X}listen: {address}\n"));
    let args = ["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"];
    let rest = ["--store", "memory:", "--provider", "x.yaml"];
    let said = folder.run(&[&args[..], &rest].concat());
    assert_eq!(said.code, Some(1));
    assert!(
        said.err.contains("`listen` for the provider x") && !said.err.contains("--listen"),
        "{}",
        said.err
    );
}

/// A broken provider file does not send commands to another daemon: the address, the token and the
/// variables of tollgate.yaml still hold.
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
    let served = RunningDaemon::run(folder, command);
    served.folder.rewrite("x.yaml", &X.replace("5/1s", "many"));
    served.wait_for_log("reload_refused");
    let said = served.folder.run(&["status", "--env-file", "v.env"]);
    assert_eq!(said.code, Some(0), "{}", said.err);
    assert!(said.out.contains("x.yaml:3"), "{}", said.to_snapshot());
}

/// Its exit code, with a standard output and a standard error that nobody reads.
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

/// Whoever stops reading does not change what came of it.
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

/// What is planned and not there is refused by name, not as a mistake.
#[test]
fn unsupported_protocols_are_rejected_by_name() {
    let folder = Folder::new("not-yet").file("x.yaml", X);
    for flag in ["--resp", "--grpc"] {
        let said = folder.run(&["serve", "--provider", "x.yaml", flag, "127.0.0.1:0"]);
        assert_eq!(said.code, Some(1), "{}", said.err);
        let told = format!("{flag} is not supported yet");
        assert!(said.err.contains(&told), "{}", said.err);
    }
}

/// Variants, local services and providers of one's own have a dialect too.
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
        let said = explained(name);
        assert_eq!(said.code, Some(0), "{name}: {}", said.err);
        assert!(
            said.out.contains(&format!("\"{dialect}\"")),
            "{name}: {}",
            said.out
        );
    }
    let wrong = explained("mien");
    assert_eq!(wrong.code, Some(2));
    assert!(wrong.err.contains("did you mean `mine`?"), "{}", wrong.err);
}

/// Providers of many hosts: `init` says how to name one's own, `check` that nobody has.
#[test]
fn init_and_check_ask_for_the_host_of_a_multi_host_provider() {
    let folder = Folder::new("tenants").env("ZENDESK_API_KEY", "CANARY");
    let said = folder.run(&["init", "zendesk"]);
    assert_eq!(said.code, Some(0), "{}", said.err);
    assert!(
        said.out.contains("/https://YOURS.zendesk.com") && !said.out.contains("https://*."),
        "{}",
        said.out
    );
    let written = folder.read("tollgate.yaml");
    assert!(
        written.contains("# upstream: https://YOURS.zendesk.com"),
        "{written}"
    );
    let said = folder.run(&["check"]);
    assert_eq!(said.code, Some(0), "{}", said.to_snapshot());
    assert!(
        said.err.contains("upstream: https://YOURS.zendesk.com"),
        "{}",
        said.err
    );
    let named = written.replace("# upstream: https://YOURS", "upstream: https://acme");
    folder.rewrite("tollgate.yaml", &named);
    let said = folder.run(&["check"]);
    assert!(!said.err.contains("YOURS"), "{}", said.err);
}

/// `check --live` beside the daemon that it is about: its ports are taken, by itself. A key that is not
/// there is not refused.
#[test]
fn check_live_beside_a_running_daemon_finds_nothing_wrong() {
    let (gateway, admin, own) = (free_address(), free_address(), free_address());
    let upstream = upstream(401);
    let config = format!(
        "listen: {gateway}\nadmin: {{listen: '{admin}'}}\nstore: 'sqlite:state'\nproviders:\n  \
         x: {{upstream: 'http://{upstream}', limits: [9/1s], auth: {{header: x-key}}, listen: '{own}'}}\n"
    );
    let folder = Folder::new("live-beside").file("tollgate.yaml", &config);
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.arg("serve").stdin(Stdio::null());
    let served = RunningDaemon::run(folder, command);
    let said = served.folder.run(&["check", "--live"]);
    assert_eq!(said.code, Some(0), "{}", said.to_snapshot());
    for line in [
        format!("port: tollgate answers on {gateway}"),
        format!("port: tollgate answers on {admin}"),
        format!("port: tollgate answers on {own}"),
        "x: answers (401); there is no key".to_owned(),
    ] {
        assert!(said.out.contains(&line), "{line}: {}", said.to_snapshot());
    }
}
