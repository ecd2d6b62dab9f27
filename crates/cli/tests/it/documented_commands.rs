//! The commands of the pages that are not a story of their own: README, recipes, presets, admin, configuration, many hosts.
//!
//! Promises: every line of every `sh` block of these pages runs, in its order, with other ports, against an upstream of the test.
//! Lines that cannot run here are named below, with the reason, and must stand on their page.

use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use tollgate_sim::test_servers::{PostgresServer, RedisServer};

use crate::folder::Folder;
use crate::operating::upstream_with;
use crate::python::{python, root};
use crate::running_daemon::RunningDaemon;

const README: &str = include_str!("../../../../README.md");
const RECIPES: &str = include_str!("../../../../docs/recipes.md");
const PRESETS: &str = include_str!("../../../../docs/presets.md");
const ADMIN: &str = include_str!("../../../../docs/admin.md");
const CONFIGURATION: &str = include_str!("../../../../docs/configuration.md");
const MANY_HOSTS: &str = include_str!("../../../../docs/many-hosts.md");

/// Lines that are not run here.
const NOT_RUN_HERE: [&str; 4] = [
    // `demo_ends_with_no_429_behind_tollgate` runs it for 10 s.
    "cargo run --release -- demo",
    // This test is a part of it.
    "make test",
    // Minutes of release build; `the_package_that_is_installed_has_the_program` is what is cheap of it.
    "cargo install --locked --path crates/cli",
    // `documented_clients.rs`, with a WebSocket server.
    "python3 -m websockets",
];

/// The blocks of a page in one language.
pub(crate) fn blocks<'a>(page: &'a str, language: &str) -> Vec<&'a str> {
    let start = format!("```{language}\n");
    let parts = page.split(start.as_str()).skip(1);
    parts
        .map(|part| part.split("```").next().unwrap_or_default())
        .collect()
}

/// The commands of a page: a line each, without comments, joined where a line ends with a backslash.
pub(crate) fn commands(page: &str) -> Vec<String> {
    let text = blocks(page, "sh").concat().replace("\\\n", " ");
    let lines = text.lines().map(|line| line.split("  #").next());
    let lines = lines.flatten().map(|line| line.trim().to_owned());
    lines.filter(|line| !line.is_empty()).collect()
}

fn is_elsewhere(line: &str) -> bool {
    NOT_RUN_HERE.iter().any(|start| line.starts_with(start))
}

/// An upstream that is also a token endpoint.
fn upstream() -> SocketAddr {
    let body = "{\"access_token\":\"t\",\"token_type\":\"bearer\",\"expires_in\":3600}";
    let head = "200 OK\r\nContent-Type: application/json\r\nContent-Length";
    upstream_with(format!("{head}: {}", body.len()), body)
}

/// A folder with the built programs in its PATH and a state of its own.
pub(crate) fn folder(name: &str) -> Folder {
    let program = Path::new(env!("CARGO_BIN_EXE_tollgate"));
    let own = program.parent().expect("a folder").display();
    let path = std::env::var("PATH").unwrap_or_default();
    let folder = Folder::new(name).env("PATH", &format!("{own}:{path}"));
    let state = folder.path().join("state").display().to_string();
    folder.env("TOLLGATE_STATE_DIR", &state).env("HOME", "/")
}

/// Runs a line of a page; it must succeed, and no call may be rejected.
pub(crate) fn run(folder: &Folder, admin: Option<&str>, line: &str) -> String {
    let mut command = Command::new("timeout");
    command.args(["60", "bash", "-euc", line]);
    if let Some(admin) = admin {
        command.env("TOLLGATE_ADMIN", admin);
    }
    let output = folder.prepare(&mut command).output().expect("bash runs");
    let (out, err) = (crate::text(&output.stdout), crate::text(&output.stderr));
    assert!(output.status.success(), "{line}:\n{out}{err}");
    let is_call = line.starts_with("curl");
    assert!(!is_call || out.contains("access_token"), "{line}:\n{out}");
    out.to_owned()
}

/// `tollgate serve` of a page, with these options more.
pub(crate) fn serve(folder: Folder, line: &str, more: &[String]) -> RunningDaemon {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.args(line.split_whitespace().skip(1)).args(more);
    command.args(["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
    RunningDaemon::run(folder, command)
}

/// `--set NAME.upstream=…` for each.
fn upstreams(names: &[&str], address: SocketAddr) -> Vec<String> {
    let set = |name: &&str| {
        [
            "--set".to_owned(),
            format!("{name}.upstream=http://{address}"),
        ]
    };
    names.iter().flat_map(set).collect()
}

pub(crate) fn with_ports(line: &str, daemon: &RunningDaemon) -> String {
    line.replace("127.0.0.1:4291", &daemon.admin)
        .replace("127.0.0.1:4290", &daemon.gateway)
}

#[test]
fn lines_that_are_not_run_stand_on_a_page() {
    let all: Vec<String> = [README, RECIPES, ADMIN]
        .iter()
        .flat_map(|page| commands(page))
        .collect();
    for start in NOT_RUN_HERE {
        assert!(all.iter().any(|line| line.starts_with(start)), "{start}");
    }
}

/// cargo finds what `cargo install` would build: the lock file fits, and the package at the path of the page has the program.
#[test]
fn the_package_that_is_installed_has_the_program() {
    let lines = commands(README);
    let mut lines = lines.iter();
    let line = lines.find_map(|line| line.strip_prefix("cargo install --locked --path "));
    let path = line.expect("the page installs it").trim();
    let manifest = root().join(path).join("Cargo.toml");
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
    command.args(["metadata", "--locked", "--offline", "--format-version", "1"]);
    // What other systems need is not downloaded here.
    command.args(["--filter-platform", "x86_64-unknown-linux-gnu"]);
    command.arg("--manifest-path").arg(&manifest);
    let output = command.output().expect("cargo runs");
    assert!(output.status.success(), "{}", crate::text(&output.stderr));
    let all: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let packages = all["packages"].as_array().expect("a list").iter();
    let mut own = packages.filter(|one| one["manifest_path"] == manifest.display().to_string());
    let targets = own.next().expect("the package")["targets"].as_array();
    let is_program = |one: &&Value| one["name"] == "tollgate" && one["kind"][0] == "bin";
    let programs = targets.expect("a list").iter().filter(is_program).count();
    assert_eq!(programs, 1);
}

/// The Install table names files, a target of make and commands that exist.
#[test]
fn the_install_table_names_what_exists() {
    let table = ADMIN.split("## Install\n").nth(1).expect("a section");
    let table = table.split("\n## ").next().unwrap_or_default();
    let words = table.split([' ', '`', ';', ',', '\n']);
    let is_file = |word: &&str| {
        let folders = ["crates/", "deploy/", "grafana/"];
        folders.iter().any(|folder| word.starts_with(folder))
    };
    let files: Vec<&str> = words.filter(is_file).collect();
    assert!(files.len() >= 4, "{files:?}");
    for file in files {
        assert!(root().join(file).exists(), "{file}");
    }
    let makefile = std::fs::read_to_string(root().join("Makefile")).expect("a Makefile");
    let targets = table.split("`make ").skip(1);
    let targets: Vec<&str> = targets.filter_map(|rest| rest.split('`').next()).collect();
    assert!(!targets.is_empty());
    for target in targets {
        assert!(makefile.contains(&format!("\n{target}:")), "{target}");
    }
}

/// nginx itself reads its block of docs/migration.md; the blocks of the other tools are there to be recognized.
#[test]
fn nginx_accepts_its_block_of_the_migration_page() {
    let page = root().join("docs/migration.md");
    let page = std::fs::read_to_string(page).expect("the page");
    let snippet = blocks(&page, "nginx").concat();
    assert!(snippet.contains("limit_req zone="), "{snippet}");
    let folder = Folder::new("nginx-migration");
    let at = |name: &str| folder.path().join(name).display().to_string();
    let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"];
    let temporary = temporary.map(|of| format!("{of}_temp_path {};\n", at(of)));
    let config = format!(
        "pid {};\nerror_log stderr;\nevents {{}}\nhttp {{\naccess_log off;\n{}{snippet}}}\n",
        at("nginx.pid"),
        temporary.concat()
    );
    std::fs::write(at("nginx.conf"), config).expect("a file");
    let places = ["/usr/sbin/nginx", "/usr/bin/nginx", "/usr/local/sbin/nginx"];
    let program = places.into_iter().find(|place| Path::new(place).exists());
    let program = program.expect("nginx is not installed; run `make tools`");
    let checked = Command::new(program)
        .args(["-t", "-c", &at("nginx.conf")])
        .output();
    let checked = checked.expect("nginx runs");
    assert!(checked.status.success(), "{}", crate::text(&checked.stderr));
}

/// The README: first the commands without a daemon, then those with one.
#[test]
fn every_command_of_the_readme_works() {
    let upstream = upstream();
    let acme = blocks(README, "yaml")[0];
    let folder = folder("readme")
        .file("acme.yaml", acme)
        .env("TMDB_API_KEY", "key")
        .env("ACME_KEY", "key");
    let mut lines = commands(README);
    lines.retain(|line| !is_elsewhere(line));
    let serves = lines.iter().position(|line| line == "tollgate serve");
    let serves = serves.expect("the page starts the gateway");
    for line in &lines[..serves] {
        run(&folder, None, line);
    }
    let mut more = upstreams(&["tmdb", "acme"], upstream);
    more.extend(["--provider".to_owned(), "acme.yaml".to_owned()]);
    let daemon = serve(folder, &lines[serves], &more);
    let rest = &lines[serves + 1..];
    assert!(rest.len() >= 4, "{rest:?}");
    for line in rest {
        run(
            &daemon.folder,
            Some(&daemon.admin),
            &with_ports(line, &daemon),
        );
    }
}

#[test]
fn every_command_of_the_recipes_works() {
    let upstream = upstream();
    let port = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let feed = port.local_addr().expect("an address").to_string();
    drop(port);
    let config = blocks(RECIPES, "yaml")[0].replace("127.0.0.1:4301", &feed);
    let folder = folder("recipes")
        .file("tollgate.yaml", &config)
        .env("TMDB_API_KEY", "key")
        .env("ACME_KEY", "key");
    let more = upstreams(&["tmdb", "acme", "feed"], upstream);
    let daemon = serve(folder, "tollgate serve", &more);
    let mut lines = commands(RECIPES);
    lines.retain(|line| !is_elsewhere(line));
    assert!(lines.len() >= 10, "{lines:?}");
    for line in lines {
        let line = with_ports(&line, &daemon).replace("127.0.0.1:4301", &feed);
        run(&daemon.folder, Some(&daemon.admin), &line);
    }
}

/// Python's own limiters of docs/migration.md, in their current versions: a former page had a name that one no longer has.
#[test]
fn the_python_blocks_of_the_migration_page_run() {
    let page = std::fs::read_to_string(root().join("docs/migration.md")).expect("the page");
    let mut blocks = blocks(&page, "python");
    blocks.retain(|block| !block.contains("tollgate"));
    assert_eq!(blocks.len(), 2, "{blocks:?}");
    let (blocks, url) = (blocks.concat(), format!("http://{}/", upstream()));
    let program = format!(
        "from pyrate_limiter import Duration, Limiter, Rate\n\
         from requests_ratelimiter import LimiterSession\n{blocks}\n\
         print([session.get('{url}').status_code for _ in range(3)], limiter.try_acquire('acme'))"
    );
    let output = Command::new(python()).args(["-c", &program]).output();
    let output = output.expect("python runs");
    let err = crate::text(&output.stderr);
    let out = crate::text(&output.stdout).trim();
    assert_eq!(out, "[200, 200, 200] True", "{err}");
}

/// Their counterpart, with the file of the same section: the call is counted under both limits.
#[test]
fn the_counterpart_of_pythons_limiters_on_the_migration_page_runs() {
    let page = std::fs::read_to_string(root().join("docs/migration.md")).expect("the page");
    let section = page.split("\n## ").find(|part| part.contains("(Python)"));
    let section = section.expect("a section about Python");
    let mut ours = blocks(section, "python");
    ours.retain(|block| block.contains("tollgate.Client"));
    let called = format!("http://{}/item/1", upstream());
    let block = ours.concat();
    let block = block.replace("https://api.acme.example/item/1", &called);
    assert!(block.contains(&called), "{block}");
    let folder = folder("migration-python").file("acme.yaml", blocks(section, "yaml")[0]);
    let daemon = serve(folder, "tollgate serve --provider acme.yaml", &[]);
    let mut command = Command::new("timeout");
    command.arg("60").arg(python());
    command.args(["-c", &format!("import httpx, tollgate\n{block}")]);
    command
        .env("PYTHONPATH", root().join("clients/python/src"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("TOLLGATE_ADMIN", &daemon.admin)
        .env("NO_PROXY", "127.0.0.1");
    let output = command.output().expect("python runs");
    assert!(output.status.success(), "{}", crate::text(&output.stderr));
    let status = daemon.tollgate(&["status", "acme"]);
    for counted in ["1 used, 999 remaining", "5/1s"] {
        assert!(status.out.contains(counted), "{}", status.out);
    }
}

/// Each of the ten presets: its files, and a call to each.
#[test]
fn every_recipe_of_a_preset_works() {
    let upstream = upstream();
    let sections: Vec<&str> = PRESETS.split("\n## ").skip(1).collect();
    assert_eq!(sections.len(), 10);
    let (mut folder, mut names) = (folder("presets"), Vec::new());
    for section in &sections {
        let title = section.lines().next().expect("a name");
        for file in blocks(section, "yaml") {
            let own = file.lines().find_map(|line| line.strip_prefix("name: "));
            let name = own.unwrap_or(title);
            let login = format!("http://{upstream}");
            let file = file.replace("https://accounts.spotify.com", &login);
            folder = folder.file(&format!("files/{name}.yaml"), &file);
            names.push(name);
        }
    }
    for variable in PRESETS.split("${").skip(1) {
        let name = variable.split('}').next().expect("a name");
        folder = folder.env(name, "key");
    }
    let more = upstreams(&names, upstream);
    let daemon = serve(folder, "tollgate serve --provider-dir files", &more);
    for section in sections {
        let (lines, files) = (commands(section), blocks(section, "yaml"));
        assert_eq!(lines.len(), files.len(), "a call for each file: {section}");
        for line in lines {
            let line = with_ports(&line, &daemon);
            run(&daemon.folder, Some(&daemon.admin), &line);
        }
    }
}

/// Commands of an operator, each with its optional part.
#[test]
fn every_command_of_the_admin_page_works() {
    let upstream = upstream();
    let news = format!("name: news\nurl: http://{upstream}/news\ncron: \"0 6 * * *\"\n");
    let folder = folder("admin-page")
        .file("news.yaml", &news)
        .env("TMDB_API_KEY", "key");
    run(&folder, None, "tollgate init tmdb");
    let daemon = serve(folder, "tollgate serve", &upstreams(&["tmdb"], upstream));
    let call = format!("curl -si http://{}/tmdb/3/movie/550", daemon.gateway);
    let response = run(&daemon.folder, Some(&daemon.admin), &call);
    let id = response
        .lines()
        .find_map(|line| line.strip_prefix("x-tollgate-id: "));
    let id = id.expect("an id").trim();
    let lines = commands(ADMIN);
    assert!(lines.len() >= 14, "{lines:?}");
    for line in lines.iter().filter(|line| !is_elsewhere(line)) {
        let line = line.replace(['[', ']'], "").replace("4f1c2a", id);
        run(
            &daemon.folder,
            Some(&daemon.admin),
            &with_ports(&line, &daemon),
        );
    }
}

#[test]
fn every_command_of_the_configuration_page_works() {
    let folder = folder("configuration-page")
        .env("TMDB_API_KEY", "key")
        .env("OMDB_API_KEY", "key");
    let lines = commands(CONFIGURATION);
    assert!(lines.len() >= 4, "{lines:?}");
    for line in lines {
        run(&folder, None, &line);
    }
}

/// Each source file of the page is accepted as it stands, and fetched or scheduled as it says.
#[test]
fn every_source_file_of_the_configuration_page_is_accepted() {
    let files = blocks(CONFIGURATION, "yaml,source");
    assert_eq!(files.len(), 2, "{files:?}");
    let api = format!("upstream: http://{}\nlimits: [5/1m]\n", upstream());
    let api = format!("name: example\ndomain: api.example.org\n{api}");
    let mut folder = folder("configuration-sources").file("example.yaml", &api);
    for (number, file) in files.iter().enumerate() {
        folder = folder.file(&format!("source-{number}.yaml"), file);
    }
    let daemon = serve(folder, "tollgate serve --provider example.yaml", &[]);
    for (number, when) in ["every 5m", "at 0 6 * * mon-fri"].iter().enumerate() {
        let added = daemon.tollgate(&["source", "add", &format!("source-{number}.yaml")]);
        assert_eq!(added.code, Some(0), "{}", added.err);
        assert!(added.out.contains(when), "{}", added.out);
        assert!(added.out.contains("limited by example"), "{}", added.out);
    }
}

/// Both stores of many hosts, with real servers.
#[test]
fn every_command_of_the_page_about_many_hosts_works() {
    let redis = RedisServer::start(&[]);
    let postgres = PostgresServer::start(&["fsync=off"]);
    let lines = commands(MANY_HOSTS);
    let served: Vec<&String> = lines
        .iter()
        .filter(|line| line.starts_with("tollgate serve"))
        .collect();
    assert_eq!(served.len(), 2, "{lines:?}");
    for (line, url) in served.iter().zip([redis.url(), postgres.url("postgres")]) {
        let (start, _) = line.rsplit_once(' ').expect("an address");
        let folder = folder("many-hosts").file("x.yaml", crate::running_daemon::X);
        let more = ["--provider".to_owned(), "x.yaml".to_owned()];
        let daemon = serve(folder, &format!("{start} {url}"), &more);
        let granted = daemon.tollgate(&["acquire", "x"]);
        assert_eq!(granted.code, Some(0), "{}", granted.err);
    }
}
