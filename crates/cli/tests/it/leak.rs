//! H3, R-F1: a running gateway never shows a secret, whatever fails around it.
//!
//! Every secret contains the word that the test searches for. The provider echoes every request
//! wherever it can. The operator makes mistakes: reloads broken files with keys in them, sets keys
//! by hand, and types keys into other fields.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use crate::folder::Folder;

const WORD: &str = "CANARY";

/// The id and the secret of OAuth 2 as encoded in `Basic`: `me:CANARY`.
const CODED: &str = "bWU6Q0FOQVJZ";

/// Every secret by its variable; the value is `CANARY-` and the name.
const SECRETS: [&str; 9] = [
    "QUERY", "SECOND", "EXTRA", "PASSWORD", "CLIENT", "REFRESH", "POOL1", "POOL2", "CALLER",
];

/// What an operator, a scraper and the page read.
const PAGES: [&str; 12] = [
    "/metrics",
    "/v1/config",
    "/v1/decisions?limit=1000",
    "/v1/history",
    "/v1/callers",
    "/v1/guards",
    "/v1/tasks",
    "/v1/sources",
    "/v1/cache",
    "/api/rate-limit/metrics",
    "/openapi.json",
    "/",
];

/// Serves until the test ends; reports every request.
fn echoing_provider() -> (SocketAddr, Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (sender, requests) = sync_channel(1_000);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            serve(stream, &sender);
        }
    });
    (address, requests)
}

/// One request on one connection.
fn serve(mut stream: TcpStream, sender: &SyncSender<String>) -> Option<()> {
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
    sender.try_send(sent.clone()).ok();
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
        "/for-good" => (308, format!("Location: {target}\r\n"), String::new()),
        "/echo" => (200, String::new(), sent),
        "/garbage" => {
            stream.write_all(sent.as_bytes()).ok()?;
            return None;
        }
        // A caller's own input comes back to it.
        _ if target.contains("MINE") => (200, String::new(), "fine".to_owned()),
        _ => {
            let link = format!("Link: <{target}>; rel=\"next\"\r\n");
            (200, link, "fine".to_owned())
        }
    };
    let length = body.len();
    let response = format!(
        "HTTP/1.1 {status} X\r\n{more}Content-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    );
    stream.write_all(response.as_bytes()).ok()
}

/// Every way in which a secret can be configured.
fn config(upstream: SocketAddr) -> String {
    let rest = format!(
        "upstream: \"http://{upstream}\", limits: [100/1s], cache: {{ ttl: 1h }}, health: off, retry: {{ retries: {{ high: 0, normal: 0, low: 0 }} }}"
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
    admin: String,
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
        .env("TOLLGATE_ADMIN_TOKEN", "CANARY-ADMIN")
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
    let mut address = |what: &str| loop {
        let mut line = String::new();
        assert!(out.read_line(&mut line).unwrap() > 0, "no line with {what}");
        if line.contains(what) {
            return line.trim().rsplit("http://").next().unwrap().to_owned();
        }
    };
    let (gateway, admin) = (address("listens on"), address("(admin)"));
    Running {
        child,
        address: gateway,
        admin,
        out,
        err,
    }
}

/// Head and body of one response.
fn call(address: &str, method: &str, path: &str, headers: &str) -> (String, String) {
    call_with(address, method, path, headers, "")
}

fn call_with(
    address: &str,
    method: &str,
    path: &str,
    headers: &str,
    body: &str,
) -> (String, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    let length = match body.len() {
        0 => String::new(),
        length => format!("Content-Length: {length}\r\n"),
    };
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nX-Tollgate-Timeout: 2s\r\n{length}{headers}\r\n{body}"
    );
    stream.write_all(request.as_bytes()).unwrap();
    let mut response = Vec::new();
    stream.read_to_end(&mut response).unwrap();
    let response = String::from_utf8_lossy(&response).into_owned();
    let (head, body) = response.split_once("\r\n\r\n").unwrap_or((&response, ""));
    (head.to_owned(), body.to_owned())
}

/// Every file of a folder.
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

/// Makes every kind of call; returns the output that callers saw and the provider did not write.
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
            "for-good",
            "echo",
            "garbage",
            "a?api_key=CANARY-MINE",
            "%zz",
        ] {
            for (method, headers) in [("GET", own), ("POST", job), ("GET", wrong), ("GET", "")] {
                let (head, body) = call(address, method, &format!("/{provider}/{path}"), headers);
                seen.push_str(&head);
                seen.push('\n');
                // The provider's text is not ours; only Tollgate's own text counts.
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

/// The operator's actions while it runs: reads status, reloads valid and invalid files, sets keys
/// and mistypes them. Returns every response.
fn operate(running: &Running, folder: &Folder, upstream: SocketAddr) -> String {
    let token = "Authorization: Bearer CANARY-ADMIN\r\n";
    let admin_call = |method: &str, path: &str, headers: &str, body: &str| {
        let (head, body) = call_with(&running.admin, method, path, headers, body);
        format!("{head}\n{body}\n")
    };
    let mut seen = admin_call(
        "GET",
        "/v1/providers",
        "Authorization: Bearer CANARY-NOBODY\r\n",
        "",
    );
    assert!(seen.contains(" 401 "), "{seen}");
    seen.push_str(&reload(folder, upstream, &|method, path| {
        admin_call(method, path, token, "")
    }));
    for settings in [
        "{\"api_key\": \"CANARY-SET\"}",
        "{\"headers.x-extra\": \"CANARY-SET\"}",
        "{\"auth.also.second\": \"CANARY-SET\"}",
        "{\"sleep_max\": \"CANARY-TYPO\"}",
        "{\"limits\": \"CANARY-TYPO\"}",
        "{\"queue.max\": {\"a\": \"CANARY-DEEP\"}}",
        "CANARY-NO-JSON",
    ] {
        let path = "/v1/providers/query/settings";
        seen.push_str(&admin_call("PATCH", path, token, settings));
    }
    seen.push_str(&admin_call("GET", "/v1/providers?key=CANARY-Q", token, ""));
    for name in ["query", "tvdb", "oauth", "pool", "dead"] {
        seen.push_str(&admin_call(
            "GET",
            &format!("/v1/providers/{name}"),
            token,
            "",
        ));
    }
    for path in PAGES {
        let shown = admin_call("GET", path, token, "");
        assert!(shown.contains(" 200 "), "{path}: {shown}");
        seen.push_str(&shown);
    }
    seen.push_str(&stream(&running.admin, token));
    seen + &commands(running, folder)
}

/// The first frames of the live stream: what the page shows each second.
fn stream(admin: &str, token: &str) -> String {
    let mut stream = TcpStream::connect(admin).unwrap();
    let request = format!("GET /v1/events HTTP/1.1\r\nHost: {admin}\r\n{token}\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
    let mut seen = String::new();
    for line in lines.by_ref() {
        seen.push_str(&line);
        seen.push('\n');
        if line.contains("sample") {
            break;
        }
    }
    seen.extend(lines.next());
    assert!(seen.contains("providers"), "a sample was sent: {seen}");
    seen
}

/// Files with keys in them, invalid in every way and then valid with other keys.
fn reload(
    folder: &Folder,
    upstream: SocketAddr,
    admin_call: &dyn Fn(&str, &str) -> String,
) -> String {
    let mut seen = String::new();
    let good = config(upstream);
    let broken = [
        good.replace("limits: [100/1s]", "limits: [100/1s"),
        good.replace("api_key: \"${QUERY}\"", "api_key: [CANARY-LIST]"),
        good.replace("second: \"${SECOND}\"", "second: [CANARY-SECOND]"),
        format!("{good}  extra: {{ api_key: CANARY-LITERAL, limits: [x] }}\n"),
        format!("api_key: CANARY-TOP\n{good}"),
        good.replace("${SECOND}", "${MISSING}"),
    ];
    for text in &broken {
        folder.rewrite("tollgate.yaml", text);
        let response = admin_call("POST", "/v1/reload");
        assert!(response.contains(" 422 "), "{text}\n{response}");
        seen.push_str(&response);
        seen.push_str(&admin_call("GET", "/v1/providers"));
    }
    folder.rewrite("tollgate.yaml", &good);
    folder.rewrite("my.env", &variables("-NEW"));
    let response = admin_call("POST", "/v1/reload");
    assert!(response.contains(" 200 "), "{response}");
    seen.push_str(&response);
    seen
}

/// Commands against it, with keys in the right and in the wrong fields.
fn commands(running: &Running, folder: &Folder) -> String {
    let mut seen = String::new();
    for args in [
        &["status"][..],
        &["status", "query", "--json"],
        &["set", "query", "api_key=CANARY-SET"],
        &["set", "query", "sleep_max=CANARY-TYPO"],
        &["reload"],
        &["why", "--last"],
        &["why", "--last", "query"],
        &["provider", "show", "query"],
        &["check", "tollgate.yaml"],
    ] {
        let mut all = args.to_vec();
        all.extend(["--admin", &running.admin, "--env-file", "my.env"]);
        let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
        let output = command
            .args(&all)
            .current_dir(folder.path())
            .env("TOLLGATE_ADMIN_TOKEN", "CANARY-ADMIN")
            .env("TOLLGATE_STATE_DIR", folder.path().join("desk"))
            .output()
            .unwrap();
        for text in [output.stdout, output.stderr] {
            seen.push_str(&String::from_utf8_lossy(&text));
        }
    }
    seen
}

/// Every secret as a line of an env file.
fn variables(more: &str) -> String {
    SECRETS
        .map(|name| format!("{name}={WORD}-{name}{more}\n"))
        .concat()
}

/// H3, R-F1, R-F2: secrets of nine kinds, and none of them in any output, file or argument.
#[test]
fn h3_a_running_gateway_never_shows_a_secret() {
    let (upstream, requests) = echoing_provider();
    let folder = Folder::new("leak")
        .file("my.env", &variables(""))
        .file("tollgate.yaml", &config(upstream));
    let mut running = start(folder.path());
    let pid = running.child.id();
    let mut seen = exercise(&running.address);
    seen.push_str(&operate(&running, &folder, upstream));
    seen.push_str(&exercise(&running.address));
    let arguments = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let killed = Command::new("kill").arg(pid.to_string()).status().unwrap();
    assert!(killed.success());
    assert_eq!(running.child.wait().unwrap().code(), Some(0));
    let mut out = String::new();
    running.out.read_to_string(&mut out).unwrap();
    let log = running.err.join().unwrap();

    let sent: BTreeSet<String> = requests.try_iter().collect();
    for name in SECRETS.iter().filter(|name| **name != "CALLER") {
        let secret = format!("{WORD}-{name}");
        let is_used = sent.iter().any(|sent| sent.contains(&secret));
        assert!(is_used, "{name} is never used");
        let renewed = format!("{secret}-NEW");
        let is_used = sent.iter().any(|sent| sent.contains(&renewed));
        assert!(is_used, "{renewed} is never used");
    }
    for used in ["Bearer CANARY-TOKEN", CODED] {
        let is_used = sent.iter().any(|sent| sent.contains(used));
        assert!(is_used, "{used} is never used");
    }
    assert!(
        !sent.iter().any(|sent| sent.contains("CANARY-CALLER")),
        "the caller's token does not reach the provider"
    );
    assert!(
        log.contains("token_renewed") && log.contains("token_not_renewed"),
        "{log}"
    );
    assert!(seen.contains("CallerNotAllowed") && seen.contains("rejected the credentials"));
    for (what, text) in [
        ("a response", &seen),
        ("the output", &out),
        ("the log", &log),
    ] {
        let shows = |line: &&str| line.contains(WORD) || line.contains(CODED);
        let line = text.lines().find(shows);
        assert!(line.is_none(), "{what}: {line:?}");
    }
    assert_no_secret_stored(folder.path(), arguments);
}

/// Neither the arguments nor any file of the state holds a secret.
fn assert_no_secret_stored(folder: &Path, arguments: Vec<u8>) {
    let mut files = vec![("the arguments".to_owned(), arguments)];
    every_file(&folder.join("state"), &mut files);
    every_file(&folder.join("desk"), &mut files);
    assert!(files.len() > 1, "a ledger was written");
    let is_kept = files
        .iter()
        .any(|(name, bytes)| name.contains("cache.db") && contains(bytes, b"for-good"));
    assert!(is_kept, "links are cached, without keys");
    for (name, bytes) in files {
        assert!(!contains(&bytes, WORD.as_bytes()), "{name}");
    }
}

fn contains(bytes: &[u8], text: &[u8]) -> bool {
    bytes.windows(text.len()).any(|part| part == text)
}
