//! H3, R-F1: a running gateway keeps every secret to itself, whatever goes wrong around it.
//!
//! Every secret contains the word that is searched for. The provider is careless: it repeats what it
//! was sent wherever it can.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use crate::folder::Folder;

const WORD: &str = "CANARY";

/// The id and the secret of OAuth 2 as `Basic` writes them: `me:CANARY`.
const CODED: &str = "bWU6Q0FOQVJZ";

/// Every secret by its variable; the value is `CANARY-` and the name.
const SECRETS: [&str; 9] = [
    "QUERY", "SECOND", "EXTRA", "PASSWORD", "CLIENT", "REFRESH", "POOL1", "POOL2", "CALLER",
];

/// Serves until the test ends; tells what it was sent.
fn careless() -> (SocketAddr, Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (told, heard) = sync_channel(1_000);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            serve(stream, &told);
        }
    });
    (address, heard)
}

/// One request on one connection.
fn serve(mut stream: TcpStream, told: &SyncSender<String>) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    let (mut head, mut length) = (String::new(), 0);
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let (name, value) = line.split_once(':').unwrap_or_default();
        if name.eq_ignore_ascii_case("content-length") {
            length = value.trim().parse().ok()?;
        }
        head.push_str(&line);
        if line.trim().is_empty() {
            break;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let sent = format!("{head}{}", String::from_utf8_lossy(&body));
    told.try_send(sent.clone()).ok();
    let target = head.split(' ').nth(1).unwrap_or_default().to_owned();
    let (status, more, body) = match target.split('?').next().unwrap_or_default() {
        "/v4/login" => (
            200,
            String::new(),
            "{\"data\":{\"token\":\"CANARY-TOKEN\"}}".to_owned(),
        ),
        "/token" | "/401" => (401, String::new(), sent),
        "/403" => (403, String::new(), sent),
        "/500" => (500, String::new(), sent),
        "/429" => (429, "Retry-After: 1\r\n".to_owned(), sent),
        "/moved" => (302, format!("Location: {target}\r\n"), String::new()),
        "/garbage" => {
            stream.write_all(sent.as_bytes()).ok()?;
            return None;
        }
        _ => (200, String::new(), "fine".to_owned()),
    };
    let length = body.len();
    let answer = format!(
        "HTTP/1.1 {status} X\r\n{more}Content-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    );
    stream.write_all(answer.as_bytes()).ok()
}

/// Every way in which a secret can be configured.
fn config(upstream: SocketAddr) -> String {
    let rest = format!(
        "upstream: \"http://{upstream}\", limits: [100/1s], health: off, retry: {{ retries: {{ high: 0, normal: 0, low: 0 }} }}"
    );
    format!(
        "listen: 127.0.0.1:0
callers: {{ job: {{ token: \"${{CALLER}}\" }} }}
providers:
  query: {{ {rest}, api_key: \"${{QUERY}}\", headers: {{ x-extra: \"${{EXTRA}}\" }}, auth: {{ query: api_key, also: {{ second: \"${{SECOND}}\" }} }} }}
  tvdb: {{ {rest}, preset: tvdb, api_key: \"${{PASSWORD}}\" }}
  oauth: {{ {rest}, auth: {{ oauth2: {{ token_url: \"http://{upstream}/token\", client_id: me, client_secret: \"${{CLIENT}}\", refresh_token: \"${{REFRESH}}\" }} }} }}
  pool: {{ {rest}, api_keys: [\"${{POOL1}}\", \"${{POOL2}}\"], auth: {{ bearer: true }} }}
  dead: {{ {dead}, api_key: \"${{QUERY}}\", auth: {{ header: x-key }} }}
",
        dead = rest.replace(&upstream.to_string(), "127.0.0.1:9")
    )
}

/// A running gateway.
struct Running {
    child: Child,
    address: String,
    out: BufReader<std::process::ChildStdout>,
    err: std::thread::JoinHandle<String>,
}

fn start(folder: &Path) -> Running {
    let mut child = Command::new(env!("CARGO_BIN_EXE_tollgate"))
        .args(["serve", "--env-file", "my.env", "--store", "sqlite:state"])
        .current_dir(folder)
        .env("TOLLGATE_LOG", "trace")
        .env("TOLLGATE_STATE_DIR", folder.join("desk"))
        .env("TOLLGATE_ADMIN", "127.0.0.1:0")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stderr = child.stderr.take().unwrap();
    let err = std::thread::spawn(move || {
        let mut text = String::new();
        stderr.read_to_string(&mut text).ok();
        text
    });
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut first = String::new();
    out.read_line(&mut first).unwrap();
    let address = first.trim().rsplit("http://").next().unwrap().to_owned();
    Running {
        child,
        address,
        out,
        err,
    }
}

/// Head and body of one answer.
fn call(address: &str, method: &str, path: &str, headers: &str) -> (String, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: g\r\nConnection: close\r\nX-Tollgate-Timeout: 2s\r\n{headers}\r\n"
    );
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    (head.to_owned(), body.to_owned())
}

/// Everything that lies in a folder, whatever it is.
fn every_file(folder: &Path, found: &mut Vec<(String, Vec<u8>)>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            every_file(&path, found);
        } else if let Ok(bytes) = fs::read(&path) {
            found.push((path.display().to_string(), bytes));
        }
    }
}

/// Makes every kind of call; returns what callers saw that the provider did not say.
fn exercise(address: &str) -> String {
    let mut seen = String::new();
    let own = "Authorization: Bearer CANARY-OWN\r\n";
    let job = "X-Tollgate-Caller: job\r\nX-Tollgate-Token: CANARY-CALLER\r\n";
    let wrong = "X-Tollgate-Caller: job\r\nX-Tollgate-Token: CANARY-WRONG\r\n";
    for provider in ["query", "tvdb", "oauth", "pool", "dead", "nobody"] {
        for path in [
            "a",
            "401",
            "403",
            "429",
            "500",
            "moved",
            "garbage",
            "a?api_key=CANARY-MINE",
            "%zz",
        ] {
            for (method, headers) in [("GET", own), ("POST", job), ("GET", wrong)] {
                let (head, body) = call(address, method, &format!("/{provider}/{path}"), headers);
                seen.push_str(&head);
                seen.push('\n');
                // What a provider says is its own affair; what we say is ours.
                if head
                    .to_ascii_lowercase()
                    .contains("x-tollgate-source: tollgate")
                {
                    seen.push_str(&body);
                }
            }
        }
    }
    seen
}

/// H3, R-F1, R-F2: secrets of nine kinds, and none of them in any output, file or argument.
#[test]
fn h3_a_running_gateway_keeps_every_secret_to_itself() {
    let (upstream, heard) = careless();
    let env: String = SECRETS
        .map(|name| format!("{name}={WORD}-{name}\n"))
        .concat();
    let folder = Folder::new("leak")
        .file("my.env", &env)
        .file("tollgate.yaml", &config(upstream));
    let mut running = start(folder.path());
    let pid = running.child.id();
    let seen = exercise(&running.address);
    let arguments = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let killed = Command::new("kill").arg(pid.to_string()).status().unwrap();
    assert!(killed.success());
    assert_eq!(running.child.wait().unwrap().code(), Some(0));
    let mut out = String::new();
    running.out.read_to_string(&mut out).unwrap();
    let log = running.err.join().unwrap();

    let sent: BTreeSet<String> = heard.try_iter().collect();
    for name in SECRETS.iter().filter(|name| **name != "CALLER") {
        let secret = format!("{WORD}-{name}");
        let is_used = sent.iter().any(|sent| sent.contains(&secret));
        assert!(is_used, "{name} is never used");
    }
    for used in ["Bearer CANARY-TOKEN", CODED] {
        let is_used = sent.iter().any(|sent| sent.contains(used));
        assert!(is_used, "{used} is never used");
    }
    assert!(
        !sent.iter().any(|sent| sent.contains("CANARY-CALLER")),
        "not the provider's"
    );
    assert!(
        log.contains("token_renewed") && log.contains("token_not_renewed"),
        "{log}"
    );
    assert!(seen.contains("CallerNotAllowed") && seen.contains("refused the credentials"));
    for (what, text) in [
        ("an answer", &seen),
        ("the output", &out),
        ("the log", &log),
    ] {
        let shows = |line: &&str| line.contains(WORD) || line.contains(CODED);
        let line = text.lines().find(shows);
        assert!(line.is_none(), "{what}: {line:?}");
    }
    kept_nothing(folder.path(), arguments);
}

/// Neither the arguments nor any file of the state holds a secret.
fn kept_nothing(folder: &Path, arguments: Vec<u8>) {
    let mut files = vec![("the arguments".to_owned(), arguments)];
    every_file(&folder.join("state"), &mut files);
    every_file(&folder.join("desk"), &mut files);
    assert!(files.len() > 1, "a ledger was written");
    for (name, bytes) in files {
        let found = bytes
            .windows(WORD.len())
            .any(|part| part == WORD.as_bytes());
        assert!(!found, "{name}");
    }
}
