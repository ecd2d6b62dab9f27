//! What Tollgate says about a wait is true: a limit is named only if it held the call.

use tollgate::providers::Options;
use tollgate_ledger::{Clock, Ledger};

use crate::client::get;
use crate::test_daemon::{TestDaemon, from_file, write_file};
use crate::upstream::{Upstream, ok};

fn sample(metrics: &str, name: &str) -> String {
    let found = metrics.lines().filter(|line| line.starts_with(name));
    found.collect::<Vec<_>>().join("\n")
}

/// 50 calls at once wait for SQLite, not for a limit of 60 a day. Each was told that the limit was used up, because
/// whoever did not get its permit in the same instant counted as queued behind a limit.
#[tokio::test]
async fn a_wait_for_the_store_is_not_called_a_wait_for_a_limit() {
    let folder = std::env::temp_dir().join(format!("tollgate-why-{}", std::process::id()));
    drop(std::fs::remove_dir_all(&folder));
    let upstream = Upstream::start(|_, _| async { ok() }).await;
    let file = format!(
        "name: x\nupstream: http://{}\nlimits: [60/1d]\n",
        upstream.address
    );
    write_file("why-store.yaml", &file);
    let ledger = Ledger::sqlite(&folder, Clock::System).unwrap();
    let sources = from_file("why-store.yaml");
    let daemon = TestDaemon::start_on(ledger, sources, Options::default(), None).await;
    let gateway = daemon.gateway;
    let calls = (0..50).map(|number| {
        tokio::spawn(async move { get(gateway, &format!("/x/{number}")).await.status })
    });
    for call in calls.collect::<Vec<_>>() {
        assert_eq!(call.await.unwrap(), 200);
    }
    let decisions = daemon.request("GET", "/v1/decisions?limit=100", "").await;
    assert_eq!(decisions.json()["decisions"].as_array().unwrap().len(), 50);
    for untrue in ["used up", "No permit was free", "\"decision\":\"queue\""] {
        assert!(!decisions.body.contains(untrue), "{}", decisions.body);
    }
    let metrics = daemon.request("GET", "/metrics", "").await.body;
    let waits = sample(&metrics, "rate_limit_waits_total");
    assert!(waits.lines().all(|line| line.ends_with(" 0")), "{waits}");
    let permits = sample(&metrics, "tollgate_permits_total");
    let queued = permits
        .lines()
        .filter(|line| line.contains("decision=\"queue\""));
    assert!(queued.clone().all(|line| line.ends_with(" 0")), "{permits}");
    drop(daemon);
    drop(std::fs::remove_dir_all(folder));
}
