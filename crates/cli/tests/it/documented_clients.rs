//! Commands of pages that need another program: a WebSocket client, uvicorn and Celery, the commands of language models; and
//! the pages' examples of output.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;

use serde_json::Value;
use tollgate_sim::llm::account::Tier;
use tollgate_sim::llm::wire::LlmDialect;
use tollgate_sim::llm::{LlmProvider, LlmSettings};
use tollgate_sim::test_host::free_address;
use tollgate_sim::test_servers::RedisServer;

use crate::documented_commands::{blocks, commands, folder, run, serve, with_ports};
use crate::folder::Folder;
use crate::python::{python, root};
use crate::running_daemon::RunningDaemon;

const RECIPES: &str = include_str!("../../../../docs/recipes.md");
const LLM: &str = include_str!("../../../../docs/llm.md");
const DIALECTS: &str = include_str!("../../../../docs/dialects.md");
const HTTP: &str = include_str!("../../../../docs/http.md");
const INTEGRATIONS: &str = include_str!("../../../../docs/integrations.md");
const INBOUND: &str = include_str!("../../../../examples/inbound/README.md");
const RESILIENT_CLI: &str = include_str!("../../../../examples/resilient-cli/README.md");

/// Far beyond the need of a busy machine: turns a test that would hang into one that fails.
const PATIENCE: Duration = Duration::from_secs(60);

/// A process and everything that it starts, ended with the test.
struct ProcessGroup(Child);

impl ProcessGroup {
    fn start(command: &mut Command) -> ProcessGroup {
        ProcessGroup(command.process_group(0).spawn().expect("the program runs"))
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        let group = format!("-{}", self.0.id());
        drop(Command::new("kill").args(["-KILL", "--", &group]).status());
        drop(self.0.wait());
    }
}

/// PATH with the programs that `make tools` installs first.
fn path_with_clients() -> String {
    let clients = python();
    let clients = clients.parent().expect("a folder").display();
    let path = std::env::var("PATH").unwrap_or_default();
    format!("{clients}:{path}")
}

/// A WebSocket server that repeats what it gets, and its port.
fn echo_server() -> (ProcessGroup, u16) {
    const SERVER: &str = "
import asyncio, websockets
async def echo(socket):
    async for message in socket:
        await socket.send('echo of ' + message)
async def main():
    async with websockets.serve(echo, '127.0.0.1', 0) as server:
        print(server.sockets[0].getsockname()[1], flush=True)
        await asyncio.get_running_loop().create_future()
asyncio.run(main())
";
    let mut command = Command::new(python());
    command.args(["-c", SERVER]).stdout(Stdio::piped());
    let mut server = ProcessGroup::start(&mut command);
    let mut line = String::new();
    let out = server.0.stdout.take().expect("a pipe");
    BufReader::new(out).read_line(&mut line).expect("a line");
    (server, line.trim().parse().expect("a port"))
}

/// The client of the page says a word and gets it back through the gateway.
#[test]
fn the_websocket_client_of_the_recipes_works() {
    let (_server, port) = echo_server();
    let config = blocks(RECIPES, "yaml")[0].replace("127.0.0.1:4301", &free_address().to_string());
    let folder = folder("recipes-websocket")
        .file("tollgate.yaml", &config)
        .env("TMDB_API_KEY", "key")
        .env("ACME_KEY", "key");
    let more = [
        "--set".to_owned(),
        format!("feed.upstream=http://127.0.0.1:{port}"),
    ];
    let daemon = serve(folder, "tollgate serve", &more);
    let lines = commands(RECIPES);
    let mut lines = lines.iter().filter(|line| line.contains("websockets"));
    let line = lines.next().expect("the page has a client");
    let mut command = Command::new("timeout");
    command
        .args(["60", "bash", "-euc", &with_ports(line, &daemon)])
        .env("PATH", path_with_clients())
        .env("NO_PROXY", "127.0.0.1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut client = ProcessGroup::start(&mut command);
    let mut input = client.0.stdin.take().expect("a pipe");
    input.write_all(b"hello\n").expect("a reader");
    let mut output = client.0.stdout.take().expect("a pipe");
    let (mut seen, mut part) = (String::new(), [0; 256]);
    while !seen.contains("echo of hello") {
        let read = output.read(&mut part).expect("output");
        assert!(read > 0, "it has ended:\n{seen}");
        seen.push_str(&String::from_utf8_lossy(&part[..read]));
    }
    drop(input); // the end of its input is the end of the client
    assert!(client.0.wait().expect("a child").success(), "{seen}");
    let status = daemon.tollgate(&["status", "feed"]);
    assert!(status.out.contains("1 used, 4 remaining"), "{}", status.out);
}

/// An API that records the paths of its calls.
fn recording_upstream() -> (SocketAddr, Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("an address");
    let (sender, paths) = sync_channel(100);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.expect("a connection");
            let mut first = String::new();
            let mut reader = BufReader::new(stream.try_clone().expect("a socket"));
            // A connection that was opened ahead and closed has no request.
            if reader.read_line(&mut first).unwrap_or(0) == 0 {
                continue;
            }
            let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 13";
            let response = format!("{head}\r\nConnection: close\r\n\r\n{{\"text\":\"ok\"}}");
            stream.write_all(response.as_bytes()).ok();
            let path = first.split(' ').nth(1).unwrap_or_default().to_owned();
            if sender.send(path).is_err() {
                return;
            }
        }
    });
    (address, paths)
}

/// curl to the service; its status, or 000.
fn status_of(args: &[&str]) -> String {
    let mut command = Command::new("curl");
    command.args(["-s", "-m", "30", "--noproxy", "*", "-o", "/dev/null"]);
    let output = command.args(["-w", "%{http_code}"]).args(args).output();
    crate::text(&output.expect("curl runs").stdout).to_owned()
}

/// The service and the worker as the README starts them: a chunk that is uploaded reaches the API behind.
#[test]
fn the_commands_of_the_inbound_profile_start_its_service_and_its_worker() {
    let redis = RedisServer::start(&[]);
    let (upstream, paths) = recording_upstream();
    let config = root().join("examples/inbound/tollgate.yaml");
    let folder = folder("inbound-commands")
        .env("REDIS_URL", &format!("{}/0", redis.url()))
        .env("CLOUDRU_URL", &format!("http://{upstream}"));
    let line = format!("tollgate serve --config {}", config.display());
    assert!(INBOUND.contains("tollgate serve --config examples/inbound/tollgate.yaml"));
    let daemon = serve(folder, &line, &[]);
    let block = blocks(INBOUND, "sh")[1].replace("127.0.0.1:6379", &redis.address().to_string());
    assert!(block.contains("uvicorn app.main:app & celery"), "{block}");
    let port = free_address().port().to_string();
    let log = std::fs::File::create(daemon.folder.path().join("log")).expect("a file");
    let mut command = Command::new("bash");
    command
        .args(["-euc", &with_ports(&block, &daemon)])
        .current_dir(root())
        .env("PATH", path_with_clients())
        .env("PYTHONPATH", root().join("clients/python/src")) // in place of pip install
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("UVICORN_PORT", &port) // 8000 may be in use here
        .env("NO_PROXY", "127.0.0.1")
        .stdin(Stdio::null())
        .stdout(log.try_clone().expect("a file"))
        .stderr(log);
    let _service = ProcessGroup::start(&mut command);
    let at = |path: &str| format!("http://127.0.0.1:{port}{path}");
    for _ in 0..PATIENCE.as_millis() / 100 {
        if status_of(&[&at("/health/live")]) == "200" {
            break;
        }
        std::thread::park_timeout(Duration::from_millis(100));
    }
    let log = || daemon.folder.read("log");
    let taken = status_of(&["-X", "POST", &at("/transcribe/chunk-1")]);
    assert_eq!(taken, "202", "{}", log());
    let arrived = paths.recv_timeout(PATIENCE);
    assert_eq!(
        arrived.as_deref(),
        Ok("/v1/transcribe/chunk-1"),
        "{}",
        log()
    );
}

/// The two commands of the README: the daemon, and a call without one.
#[test]
fn the_commands_of_the_resilient_cli_profile_work() {
    let (upstream, paths) = recording_upstream();
    let url = format!("http://{upstream}");
    let examples = root().join("examples").display().to_string() + "/";
    let lines = commands(&RESILIENT_CLI.replace("   # or without a daemon:", ""));
    let [_, _, served, acquired] = lines.as_slice() else {
        panic!("{lines:?}");
    };
    let set_up = |name: &str| {
        folder(name)
            .env("TMDB_API_KEY", "key")
            .env("TMDB_URL", &url)
    };
    let line = served.replace("examples/", &examples);
    // Its log is in a file, so it is ready when it has printed its addresses.
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.args(line.split_whitespace().skip(1));
    command.args(["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
    let daemon = RunningDaemon::spawn(set_up("resilient-cli-serve"), command);
    let called = daemon.get("/tmdb/3/movie/550");
    assert!(called.starts_with("HTTP/1.1 200"), "{called}");
    drop(daemon);
    let alone = set_up("resilient-cli-acquire");
    run(
        &alone,
        None,
        &acquired
            .replace("examples/", &examples)
            .replace("https://api.themoviedb.org", &url),
    );
    // A former bug: the line named no configuration, so the permit was one of the default and not of this profile.
    assert!(acquired.contains("--config") && acquired.contains("--env-file"));
    let arrived: Vec<String> = paths.try_iter().collect();
    assert!(
        arrived.len() == 2 && arrived[1] == "/3/movie/550",
        "{arrived:?}"
    );
}

/// The page's two minutes: `init`, `serve`, the program, `status`. `pip install` is what `make tools` did.
#[test]
fn the_commands_of_the_page_about_language_models_work() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let tier = Tier {
        requests: Some(6_000),
        ..Tier::UNLIMITED
    };
    let settings = LlmSettings::new(LlmDialect::OpenAi, tier);
    let provider = runtime
        .block_on(LlmProvider::start(settings))
        .expect("a free port");
    let lines = commands(LLM);
    let [pip, export, init, served, status] = lines.as_slice() else {
        panic!("the page has other commands: {lines:?}");
    };
    assert_eq!(pip, "pip install openai");
    let folder = folder("llm-commands");
    run(&folder, None, &format!("{export}\n{init}"));
    let key = export.split('=').next_back().expect("a key");
    let folder = folder.env("OPENAI_API_KEY", key);
    let more = [
        "--set".to_owned(),
        format!("openai.upstream=http://{}", provider.address()),
    ];
    let daemon = serve(folder, served, &more);
    let program = with_ports(blocks(LLM, "python")[0], &daemon);
    let mut command = Command::new("timeout");
    command.args(["60"]).arg(python()).args(["-c", &program]);
    let output = command
        .env("NO_PROXY", "127.0.0.1")
        .output()
        .expect("python runs");
    assert!(output.status.success(), "{}", crate::text(&output.stderr));
    let shown = run(&daemon.folder, Some(&daemon.admin), status);
    assert!(shown.contains("learned "), "{shown}");
}

/// Both commands of the page about dialects; the file of the second has a response in each line.
#[test]
fn the_commands_of_the_page_about_dialects_work() {
    let response = "{\"status\":429,\"headers\":{\"retry-after\":\"30\"}}\n";
    let folder = folder("dialects-page").file("responses.jsonl", response);
    let lines: Vec<&str> = blocks(DIALECTS, "console")[0]
        .lines()
        .map(|line| line.strip_prefix("$ ").expect("a prompt"))
        .collect();
    let expected = ["60", "\"wait_seconds\":30"];
    assert_eq!(lines.len(), expected.len());
    for (line, part) in lines.iter().zip(expected) {
        let out = run(&folder, None, line);
        assert!(out.contains(part), "{line}:\n{out}");
    }
}

/// The names of the fields of an object, in order.
fn fields(object: &Value) -> Vec<&str> {
    let object = object.as_object().expect("an object");
    let mut names: Vec<&str> = object.keys().map(String::as_str).collect();
    names.sort_unstable();
    names
}

/// The page's error and the page's permit have the fields of real ones.
#[test]
fn the_examples_of_output_have_the_fields_of_real_output() {
    let (upstream, _paths) = recording_upstream();
    let day = format!("name: day\nupstream: http://{upstream}\nlimits: [1/1d]\n");
    let free = "name: free\ndomain: api.example.org\nlimits: [1000/1d]\n";
    let folder = Folder::new("output-examples").file("x.yaml", &day);
    let daemon = RunningDaemon::start(folder.file("y.yaml", free), &["--provider", "y.yaml"]);
    let get = |path: &str| {
        let mut command = Command::new("curl");
        command.args([
            "-s",
            "-m",
            "30",
            "--noproxy",
            "*",
            "-H",
            "X-Tollgate-Admin: 1",
        ]);
        let body = "{\"provider\": \"free\", \"wait\": false}";
        let args: &[&str] = if path.starts_with("/v1") {
            &["-d", body]
        } else {
            &[]
        };
        let at = if path.starts_with("/v1") {
            &daemon.admin
        } else {
            &daemon.gateway
        };
        let output = command
            .args(args)
            .arg(format!("http://{at}{path}"))
            .output();
        serde_json::from_slice::<Value>(&output.expect("curl runs").stdout).expect("JSON")
    };
    let permit = get("/v1/acquire");
    get("/day/1");
    let error = get("/day/2");
    for (page, real) in [(INTEGRATIONS, permit), (HTTP, error)] {
        let shown: Value = serde_json::from_str(blocks(page, "json")[0]).expect("JSON");
        assert_eq!(fields(&shown), fields(&real), "{real}");
        for (name, value) in shown.as_object().expect("an object") {
            let (is, shows) = (&real[name], value);
            let both_known = !is.is_null() && !shows.is_null();
            let alike = std::mem::discriminant(is) == std::mem::discriminant(shows);
            assert!(!both_known || alike, "{name}: {is}");
        }
    }
}
