//! The peers: throttlecrab-server and redis-cell from the crate registry, Redis with a script from
//! Debian. Installed below `target/peers`, only where they are missing.
//!
//! Promises: a peer that cannot be had is named on standard error and left out.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};

use crate::disk::Folder;
use crate::load::{HttpRequest, encode};
use crate::process::{Server, free_port};

const FOLDER: &str = "target/peers";

/// The same rule as a script: one bucket per key, time from the server.
const SCRIPT: &str = r"
local t = redis.call('TIME'); local now = t[1] * 1000000 + t[2]
local burst, count, period = tonumber(ARGV[1]) + 1, tonumber(ARGV[2]), tonumber(ARGV[3]) * 1000000
local step = period / count
local full = math.max(tonumber(redis.call('GET', KEYS[1]) or now), now)
local new = full + step
local room = burst * step - (new - now)
if room < 0 then return {1, burst, 0, math.ceil(-room / 1000000), math.ceil((full - now) / 1000000)} end
redis.call('SET', KEYS[1], string.format('%.0f', new), 'PX', math.ceil((new - now) / 1000) + 1)
return {0, burst, math.floor(room / step), -1, math.ceil((new - now) / 1000000)}
";

/// The one that speaks HTTP, if it can be had.
pub fn http() -> Vec<Server> {
    match throttlecrab() {
        Ok(server) => vec![server],
        Err(error) => {
            eprintln!("throttlecrab-server is left out: {error:#}");
            Vec::new()
        }
    }
}

/// Those that can be had.
pub fn resp() -> anyhow::Result<Vec<Server>> {
    let mut found = Vec::new();
    for (name, start) in [
        (
            "throttlecrab-server",
            throttlecrab as fn() -> anyhow::Result<Server>,
        ),
        ("Redis with a script", script),
        ("redis-cell", redis_cell),
    ] {
        match start() {
            Ok(server) => found.push(server),
            Err(error) => eprintln!("{name} is left out: {error:#}"),
        }
    }
    Ok(found)
}

fn throttlecrab() -> anyhow::Result<Server> {
    let program = Path::new(FOLDER).join("bin/throttlecrab-server");
    if !program.is_file() {
        let words = [
            "install",
            "--locked",
            "--root",
            FOLDER,
            "throttlecrab-server@0.4.40",
        ];
        run(Command::new("cargo").args(words))
            .context("its build needs protoc (Debian: protobuf-compiler)")?;
    }
    let port = free_port()?;
    let http_port = free_port()?;
    let words = format!(
        "--redis --redis-host 127.0.0.1 --redis-port {port} --http --http-host 127.0.0.1 \
         --http-port {http_port} --store-capacity 2000000 --log-level error"
    );
    let words: Vec<String> = words.split(' ').map(str::to_owned).collect();
    let mut server = Server::start("throttlecrab-server", &program, &words, port)?;
    server.command.0 = vec!["THROTTLE".to_owned()];
    server.http_port = http_port;
    server.http_request = HttpRequest {
        path: "/throttle",
        body: r#"{"key":"KEY","max_burst":10000000,"count_per_period":6,"period":600}"#,
    };
    Ok(server)
}

fn redis(name: &'static str, module: Option<&Path>) -> anyhow::Result<Server> {
    let port = free_port()?;
    let words = format!("--port {port} --bind 127.0.0.1 --appendonly no");
    let mut words: Vec<String> = words.split(' ').map(str::to_owned).collect();
    words.extend(["--save".to_owned(), String::new()]);
    if let Some(module) = module {
        words.extend(["--loadmodule".to_owned(), module.display().to_string()]);
    }
    Server::start(name, Path::new("redis-server"), &words, port)
}

/// One that syncs its log before it replies, in this folder.
pub fn syncing_redis(folder: &Folder) -> anyhow::Result<Server> {
    let folder = folder.join("redis");
    std::fs::create_dir_all(&folder)?;
    let port = free_port()?;
    let words = format!("--port {port} --bind 127.0.0.1 --appendonly yes --appendfsync always");
    let mut words: Vec<String> = words.split(' ').map(str::to_owned).collect();
    words.extend(["--save".to_owned(), String::new()]);
    words.extend(["--dir".to_owned(), folder.display().to_string()]);
    Server::start("Redis", Path::new("redis-server"), &words, port)
}

fn script() -> anyhow::Result<Server> {
    use std::io::{Read, Write};
    let mut server = redis("Redis with a script", None)?;
    let mut stream = std::net::TcpStream::connect(("127.0.0.1", server.port))?;
    stream.write_all(&encode(&["SCRIPT", "LOAD", SCRIPT]))?;
    let mut reply = [0; 47];
    stream.read_exact(&mut reply)?;
    let digest = std::str::from_utf8(&reply[5..45])?;
    server.command.0 = ["EVALSHA", digest, "1"].map(str::to_owned).to_vec();
    Ok(server)
}

fn redis_cell() -> anyhow::Result<Server> {
    let folder = Path::new(FOLDER).join("redis-cell");
    let module = folder.join("target/release/libredis_cell.so");
    if !module.is_file() {
        std::fs::create_dir_all(folder.join("src"))?;
        copy_source(&folder)?;
        run(Command::new("cargo")
            .args(["build", "--release"])
            .current_dir(&folder))?;
    }
    redis("redis-cell", Some(&module.canonicalize()?))
}

/// A module is not a program, so `cargo install` has no use for it: its source is built.
fn copy_source(folder: &Path) -> anyhow::Result<()> {
    let probe = folder.join("probe");
    std::fs::create_dir_all(probe.join("src"))?;
    std::fs::write(probe.join("src/lib.rs"), "")?;
    let manifest = "[package]\nname = \"probe\"\nversion = \"0.0.0\"\n[dependencies]\nredis-cell = \"=0.2.2\"\n[workspace]\n";
    std::fs::write(probe.join("Cargo.toml"), manifest)?;
    run(Command::new("cargo").arg("fetch").current_dir(&probe))?;
    let home = std::env::var("CARGO_HOME").map(PathBuf::from);
    let home =
        home.or_else(|_| std::env::var("HOME").map(|home| Path::new(&home).join(".cargo")))?;
    let registries = std::fs::read_dir(home.join("registry/src"))?;
    let mut found = registries.filter_map(|one| Some(one.ok()?.path().join("redis-cell-0.2.2")));
    let source = found
        .find(|path| path.is_dir())
        .context("no source of redis-cell")?;
    let inside = format!("{}/.", source.display());
    run(Command::new("cp").args(["-r", &inside]).arg(folder))?;
    let manifest = folder.join("Cargo.toml");
    let text = std::fs::read_to_string(&manifest)?;
    Ok(std::fs::write(manifest, text + "\n[workspace]\n")?)
}

fn run(command: &mut Command) -> anyhow::Result<()> {
    let status = command.status()?;
    ensure!(status.success(), "{command:?} ended with {status}");
    Ok(())
}
