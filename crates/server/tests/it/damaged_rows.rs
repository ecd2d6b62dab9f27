//! A damaged row of the ledger: it is reported loudly, and its callers learn when to come back.

use rusqlite::Connection;
use tollgate::providers::Options;
use tollgate_ledger::{Clock, Ledger};

use crate::client::{get, wait_until};
use crate::store_loss::LedgerFolder;
use crate::test_daemon::{TestDaemon, from_file, write_file};
use crate::test_gateway::file;
use crate::upstream::{Upstream, ok};

/// R-A5: 429 with the time at once, a problem in `status`, and an error in the log.
#[tokio::test]
async fn a_damaged_row_is_reported_and_its_calls_are_rejected_at_once() {
    let upstream = Upstream::start(|_, _| async { ok() }).await;
    let folder = LedgerFolder::new();
    let ledger = Ledger::sqlite(folder.path(), Clock::System).expect("a folder");
    write_file("damaged.yaml", &file(upstream.address, "limits: [5/1h]"));
    let sources = from_file("damaged.yaml");
    let daemon = TestDaemon::start_on(ledger, sources, Options::default(), None).await;
    assert_eq!(get(daemon.gateway, "/x/a").await.status, 200);
    assert_eq!(daemon.daemon.problems(), [""; 0]);
    let conn = Connection::open(folder.path().join("ledger.db")).expect("a database");
    conn.execute("UPDATE cells SET state = zeroblob(30)", [])
        .expect("rows");
    drop(conn);
    let response = get(daemon.gateway, "/x/a").await;
    assert_eq!(response.status, 429, "{response:?}");
    let seconds: u64 = response.header("retry-after").parse().expect("seconds");
    assert!((3_590..3_610).contains(&seconds), "{response:?}");
    let problems = daemon.daemon.problems();
    assert!(
        problems.len() == 1 && problems[0].contains("damaged"),
        "{problems:?}"
    );
    let status = daemon.request("GET", "/v1/providers/x", "").await.json();
    assert_eq!(status["problems"][0], problems[0].as_str(), "{status}");
    wait_until(|| crate::log::captured().contains("ledger_damaged")).await;
    assert_eq!(upstream.count(), 1);
}
