//! Limits that change between the fast path and the queue.

use tollgate_core::ask::{Evidence, Priority, Scopes, Terms};
use tollgate_core::gate::{CallerId, GateSettings};
use tollgate_core::time::{Span, Wall};
use tollgate_ledger::{Clock, Ledger};

use super::{Denied, PermitRequest, Permits};

/// R-A13: the fast path leaves a call to the queue, the limits change, and the call enters the
/// queue: it asks again, because its limits are the old ones.
#[tokio::test(start_paused = true)]
async fn a_change_on_the_way_into_the_queue_recalls_the_call() {
    let ledger = Ledger::memory(Clock::tokio(Wall(1_772_323_200_000_000))).provider("p");
    let permits = Permits::new(ledger, GateSettings::default());
    let request = PermitRequest {
        terms: Terms::new(),
        scopes: Scopes::new(),
        priority: Priority::Normal,
        caller: CallerId(0),
        patience: Span::from_secs(60),
        evidence: Evidence::Report {
            timeout: Span::from_secs(30),
            late: Span::from_secs(5),
        },
        seniority: None,
        edition: permits.edition(),
    };
    permits.replace(GateSettings::default());
    assert_eq!(
        permits.wait(request.clone()).await.unwrap_err(),
        Denied::Recalled
    );
    let again = PermitRequest {
        edition: permits.edition(),
        ..request
    };
    assert!(permits.wait(again).await.is_ok());
}
