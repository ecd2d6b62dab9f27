//! S6 by our own count: when degrade mode begins and ends for calls that others make. Paused time.

use http::HeaderMap;
use tollgate::Error;
use tollgate::error::Reason;
use tollgate::permit_table::{PermitTable, Report, Reported};
use tollgate_core::time::Span;

use crate::permit_table::{table, within};

const REST: &str = "limits: [30/1m]\ndegrade: {below: 20, recover: 25}\ntimeout: 1s";

async fn call(table: &PermitTable) -> bool {
    let permit = match table.acquire("x", None, within(0)).await {
        Ok(permit) => permit,
        Err(Error::NotInCache { reason, .. }) => {
            assert_eq!(reason, Reason::Degraded);
            return false;
        }
        Err(other) => panic!("{other:?}"),
    };
    let headers = HeaderMap::new();
    let report = Report::Response {
        status: 200,
        headers: &headers,
        body: b"",
        costs: &[],
    };
    assert!(matches!(table.report(&permit.id, report), Reported::Now(_)));
    true
}

async fn pass(seconds: u64) {
    // In steps, as time passes: timers that are set anew have their turn.
    for _ in 0..seconds * 10 {
        tokio::time::advance(Span::from_millis(100).into()).await;
        tokio::task::yield_now().await;
    }
}

/// On a sliding window it ended after a guessed time, while nothing had left the window; then every call passed.
#[tokio::test(start_paused = true)]
async fn s6_degrade_mode_of_a_window_ends_when_enough_has_left_it() {
    let table = table(REST);
    for _ in 0..5 {
        assert!(call(&table).await);
    }
    pass(20).await;
    for _ in 0..6 {
        assert!(call(&table).await);
    }
    assert!(!call(&table).await, "19 remain");
    pass(35).await;
    assert!(!call(&table).await, "nothing has left the window: 55 s");
    // Five leave it after 60 s, with what the window is longer by for clocks that drift: 24 remain.
    pass(8).await;
    assert!(!call(&table).await, "24 remain, which is fewer than 25");
    pass(20).await;
    assert!(
        call(&table).await,
        "all has left it, and no response came since"
    );
}

/// Permits that nobody reports never began it: only responses were looked at.
#[tokio::test(start_paused = true)]
async fn s6_permits_that_nobody_reports_begin_degrade_mode() {
    let table = table(REST);
    let mut granted = 0;
    while granted < 11 {
        table.acquire("x", None, within(0)).await.unwrap();
        granted += 1;
    }
    pass(40).await;
    assert_eq!(table.open_permits(), 0, "they have expired");
    assert!(!call(&table).await, "19 remain");
}
