//! The page in a real browser: Chromium, driven by `tests/page/*.mjs` with playwright-core.
//!
//! The scripts start their own upstream, so that they decide when it refuses; the daemon is the real one.

use std::path::{Path, PathBuf};
use std::process::Command;

use tollgate_sim::test_host::free_address;

use crate::folder::Folder;
use crate::running_daemon::RunningDaemon;

const TOKEN: &str = "canary-browser-token"; // tidy:canary

/// Chromium of the system; Debian's package is `chromium`.
fn chromium() -> PathBuf {
    let found = ["/usr/bin/chromium", "/usr/bin/chromium-browser"].map(PathBuf::from);
    let found = found.into_iter().find(|path| path.exists());
    found.expect("chromium is not installed; run `make tools`")
}

/// Runs a script with node; it must succeed within ten minutes. Its output has the figures.
fn run(script: &str, variables: &[(&str, &str)]) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let clients = root.join("../../target/clients/node/node_modules/playwright-core");
    assert!(
        clients.exists(),
        "playwright-core is not installed; run `make tools`"
    );
    let output = Command::new("timeout")
        .args(["600", "node"])
        .arg(root.join("tests/page").join(script))
        .env("PLAYWRIGHT", clients)
        .env("CHROMIUM", chromium())
        .envs(variables.iter().copied())
        .output()
        .expect("node runs");
    let (out, err) = (crate::text(&output.stdout), crate::text(&output.stderr));
    assert!(output.status.success(), "{script}\n{out}\n{err}");
    out.to_owned()
}

/// The port of the script's upstream, which it opens itself.
fn free_port() -> String {
    free_address().port().to_string()
}

fn daemon(name: &str, port: &str, args: &[&str]) -> RunningDaemon {
    let file = format!(
        "name: x\nupstream: http://127.0.0.1:{port}\nlimits: [200/1s, 5000/1h]\ncooldown: {{base: 1s, max: 1s, jitter: 0}}\n\
         retry: {{retries: {{high: 9, normal: 9, low: 9}}, base: 100ms, max: 500ms}}\n\
         health: {{sleep_first: 2s, sleep_min: 2s, sleep_max: 3s, n_cacheonly: 2, failure_threshold: 2, probe_success: 4, probe_rate: 1}}\n"
    );
    let folder = Folder::new(name).file("x.yaml", &file);
    RunningDaemon::start(folder, args)
}

/// No console error under the policy, a live 429 is seen from its pause to its end, actions work and
/// can be undone, everything has a name, all text has contrast.
#[test]
fn the_page_shows_a_429_live_and_its_actions_work() {
    let port = free_port();
    let daemon = daemon("page-browser", &port, &[]);
    let (admin, gateway) = (
        format!("http://{}", daemon.admin),
        format!("http://{}", daemon.gateway),
    );
    run(
        "live.mjs",
        &[
            ("ADMIN", &admin),
            ("GATEWAY", &gateway),
            ("UPSTREAM_PORT", &port),
        ],
    );
}

#[test]
fn with_a_token_the_page_asks_for_it_and_no_script_can_read_the_session() {
    let port = free_port();
    let daemon = daemon("page-token", &port, &["--token", TOKEN]);
    let admin = format!("http://{}", daemon.admin);
    run("token.mjs", &[("ADMIN", &admin), ("TOKEN", TOKEN)]);
}

/// The page's own code with 200 providers, 1,000 calls a second, all six views: no task takes more than 50 ms of the
/// processor's time. The clock also counts the work of others on a busy machine; it is printed only.
#[test]
fn two_hundred_providers_and_a_thousand_calls_a_second_do_not_stall_the_page() {
    let port = free_port();
    let daemon = daemon("page-load", &port, &[]);
    let admin = format!("http://{}", daemon.admin);
    let out = run("load.mjs", &[("ADMIN", &admin), ("UPSTREAM_PORT", &port)]);
    assert!(out.contains("longest task"), "{out}");
}

/// The same with a real daemon: 200 providers that are called through its gateway. A few calls a second by default, so that
/// the page and not the machine is judged; `TOLLGATE_PAGE_CALLS=1000` is what docs/admin.md promises.
#[test]
#[expect(
    clippy::print_stdout,
    reason = "the long version is run for its figures"
)]
fn a_real_daemon_with_two_hundred_providers_does_not_stall_the_page() {
    let port = free_port();
    let wanted = std::env::var("TOLLGATE_PAGE_CALLS").ok();
    let (calls, seconds) = match &wanted {
        Some(calls) => (calls.as_str(), "10"),
        None => ("100", "2"),
    };
    let provider = |at: usize| {
        format!(
            "  provider-{at:03}: {{ upstream: 'http://127.0.0.1:{port}', limits: [1000/1s, 100000/1h] }}\n"
        )
    };
    let providers: String = (0..200).map(provider).collect();
    let folder = Folder::new("page-real")
        .file("x.yaml", crate::running_daemon::X)
        .file("tollgate.yaml", &format!("providers:\n{providers}"));
    let daemon = RunningDaemon::start(folder, &[]);
    let (admin, gateway) = (
        format!("http://{}", daemon.admin),
        format!("http://{}", daemon.gateway),
    );
    let out = run(
        "load.mjs",
        &[
            ("ADMIN", &admin),
            ("GATEWAY", &gateway),
            ("UPSTREAM_PORT", &port),
            ("CALLS", calls),
            ("SECONDS", seconds),
        ],
    );
    println!("{out}");
    assert!(out.contains("longest task"), "{out}");
}

/// The sentences of the page, in node: the reason of a wait is what holds the calls.
#[test]
fn the_page_says_what_holds_the_calls() {
    assert!(run("words.mjs", &[]).contains("ok"));
}

/// The page said "live" while the daemon hung, and nothing opened the stream again.
#[test]
fn a_daemon_that_hangs_is_noticed_and_the_stream_is_opened_again() {
    let port = free_port();
    let daemon = daemon("page-watchdog", &port, &[]);
    let admin = format!("http://{}", daemon.admin);
    run(
        "watchdog.mjs",
        &[("ADMIN", &admin), ("UPSTREAM_PORT", &port)],
    );
}

/// H5, H6: the sources of the daemon's own scheduler: next run, last result, a failure; seen while the page is open.
#[test]
fn h5_h6_the_page_shows_sources_with_their_next_run_last_result_and_failure() {
    let port = free_port();
    let file = format!(
        "name: x\ndomain: 127.0.0.1\nupstream: http://127.0.0.1:{port}\nlimits: [100/1s]\nhealth: off\n\
         retry: {{retries: {{high: 0, normal: 0, low: 0}}}}\n"
    );
    let folder = Folder::new("page-sources").file("x.yaml", &file);
    let state = folder.path().join("state").display().to_string();
    let folder = folder.env("TOLLGATE_STATE_DIR", &state);
    let daemon = RunningDaemon::start(folder, &[]);
    let admin = format!("http://{}", daemon.admin);
    run(
        "sources.mjs",
        &[("ADMIN", &admin), ("UPSTREAM_PORT", &port)],
    );
}
