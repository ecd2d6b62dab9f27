//! docs/guide.md, run as its reader runs it: all commands, in order, in one shell.

use std::path::Path;
use std::process::Command;

use tollgate_sim::test_host::free_address;

use crate::documented_commands::blocks;
use crate::folder::Folder;

const PAGE: &str = include_str!("../../../../docs/guide.md");

/// Ports that no other socket gets by chance.
fn ports() -> [u16; 4] {
    [(); 4].map(|()| free_address().port())
}

/// All commands after the one that builds, with ports of our own.
fn script() -> String {
    let commands = blocks(PAGE, "sh")[1..].concat();
    let [provider, gateway, admin, resp] = ports();
    commands
        .replace("127.0.0.1:8700", &format!("127.0.0.1:{provider}"))
        .replace("127.0.0.1:4290", &format!("127.0.0.1:{gateway}"))
        .replace("127.0.0.1:4291", &format!("127.0.0.1:{admin}"))
        .replace("127.0.0.1:6380", &format!("127.0.0.1:{resp}"))
        .replace("-p 6380", &format!("-p {resp}"))
        .replace(
            "tollgate serve --provider acme.yaml",
            &format!("tollgate serve --provider acme.yaml --listen 127.0.0.1:{gateway} --admin 127.0.0.1:{admin}"),
        )
}

#[test]
fn every_command_of_the_guide_works() {
    let script = script();
    assert!(
        script.lines().count() > 20,
        "the page has commands:\n{script}"
    );
    let tollgate = Path::new(env!("CARGO_BIN_EXE_tollgate"));
    let programs = tollgate.parent().expect("a folder");
    assert!(
        programs.join("tollgate-sim").exists(),
        "build it: cargo build -p tollgate-sim"
    );
    let path = std::env::var("PATH").unwrap_or_default();
    // The reader's folder at this point of the page.
    let folder = Folder::new("guide").file("repository/README.md", "");
    // `timeout` ends the whole group, so nothing that the page starts outlives the test.
    let output = Command::new("timeout")
        .args(["--signal=KILL", "240", "bash", "-euc"])
        .arg(format!("trap 'kill $(jobs -p) 2>/dev/null' EXIT\n{script}"))
        .env_remove("TOLLGATE_STATE_DIR")
        .env("PATH", format!("{}:{path}", programs.display()))
        .env("TOLLGATE_ADMIN", admin_of(&script))
        .current_dir(folder.path().join("repository"))
        .output()
        .expect("bash runs");
    let (out, err) = (crate::text(&output.stdout), crate::text(&output.stderr));
    assert!(output.status.success(), "{script}\n{out}\n{err}");
    for shown in [
        "20/2s: exact",
        "x-tollgate-decision: allow",
        "\"violations\":0",
        "\"most_arrived\":20",
        "acme responded with 503",
        "The caller got 200.",
        "acme: Flowing",
        // The doors, and the source.
        "\"granted\":true",
        "granted\n1\n",
        "every 5m; limited by acme",
        "last: 200",
        "tollgate_requests_total{provider=\"acme\",code=\"200\"}",
    ] {
        assert!(out.contains(shown), "no `{shown}` in\n{out}\n{err}");
    }
    // Before and after `kill -9` the same count, which the page says too; then two more.
    let counts = used(out);
    assert_eq!(counts, [66, 66, 66, 68], "{out}\n{err}");
    assert!(
        PAGE.contains("# 500/1h: 66 used, 434 remaining"),
        "the page shows it"
    );
}

/// How many of the hour's calls are used, each time that the page looks.
fn used(out: &str) -> Vec<u32> {
    let lines = out
        .lines()
        .filter_map(|line| line.trim().strip_prefix("500/1h "));
    let counts = lines.filter_map(|line| line.trim().split(' ').next()?.parse().ok());
    counts.collect()
}

fn admin_of(script: &str) -> &str {
    let rest = script.split("--admin ").nth(1).unwrap_or_default();
    rest.split_whitespace().next().unwrap_or_default()
}
