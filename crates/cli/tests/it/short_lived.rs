//! Scripts that run `tollgate acquire` once per call, without a daemon and without waiting, on stores of
//! many hosts, judged by the provider's own log.

use std::time::{Duration, Instant};

use tollgate_sim::http::{Settings, SimProvider};
use tollgate_sim::test_servers::{PostgresServer, RedisServer};

use crate::folder::Folder;

/// Four full windows: the fifth permit is the last one that a script ever got.
const CALLS: usize = 20;

/// Two windows are enough to begin with; the rest is for a busy machine.
const WITHIN: Duration = Duration::from_secs(120);

#[test]
fn a_script_gets_a_permit_per_process_from_a_short_limit_in_redis() {
    let server = RedisServer::start(&[]);
    one_permit_per_process("short-lived-redis", &server.url(), "limits: [5/2s]");
}

#[test]
fn a_script_gets_a_permit_per_process_from_a_short_limit_in_postgres() {
    let server = PostgresServer::start(&["fsync=off"]);
    let url = server.url("postgres");
    one_permit_per_process("short-lived-postgres", &url, "limits: [5/2s]");
}

/// Slots of `concurrency` were never free again either.
#[test]
fn a_script_gets_a_permit_per_process_from_concurrency_in_redis() {
    let server = RedisServer::start(&[]);
    let limits = "limits: [5/2s]\nconcurrency: 1";
    one_permit_per_process("short-lived-concurrency", &server.url(), limits);
}

/// Process after process on one state folder, each with one call, until enough were made.
#[expect(clippy::disallowed_methods, reason = "real processes have a deadline")]
fn one_permit_per_process(name: &str, store: &str, limits: &str) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let settings = Settings::with_rules("sliding 5/2s").expect("rules");
    let provider = runtime.block_on(SimProvider::start(settings)).unwrap();
    let url = provider.url();
    let file = format!("name: x\nupstream: {url}\ndomain: api.example.org\n{limits}\n");
    let folder = Folder::new(name).file("x.yaml", &file);
    let started = Instant::now();
    let mut made = 0;
    while made < CALLS {
        let call = format!("exec curl -sf -o /dev/null {url}/item");
        let ran = folder.run(&[
            "acquire",
            "x",
            "--provider",
            "x.yaml",
            "--store",
            store,
            "--",
            "/bin/sh",
            "-c",
            &call,
        ]);
        match ran.code {
            Some(0) => made += 1,
            Some(75) => {}
            other => panic!("{other:?}: {}", ran.err),
        }
        assert!(
            started.elapsed() < WITHIN,
            "{made} of {CALLS} calls; the last process says: {}",
            ran.err
        );
    }
    let report = runtime.block_on(provider.stop());
    assert_eq!(report.violations, 0, "{report:?}");
    assert_eq!(report.accepted, CALLS);
}
