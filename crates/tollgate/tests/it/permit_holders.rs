//! Permits that other processes hold: whose they are, and what those who get none learn. No socket, paused
//! time.

use tollgate::Error;
use tollgate::error::Reason;
use tollgate::path::CallOptions;
use tollgate::permit_table::{PermitTable, Released, USE_WITHIN};
use tollgate_core::time::Span;

use crate::permit_table::{limit_of, registry, table, within};

fn of_caller(name: &str) -> CallOptions {
    CallOptions {
        caller: Some(name.to_owned()),
        ..within(1)
    }
}

/// One caller took every place of the table, and all others and the operator got "too many calls already
/// wait", although nobody waited, and a second as the time to come back.
#[tokio::test(start_paused = true)]
async fn no_caller_takes_the_places_of_others() {
    let table = table("limits: [1000000/1s]\ntimeout: {first_byte: 5s}");
    let quarter = tollgate::permit_table::PERMITS_MAX / 4;
    for _ in 0..quarter {
        table.acquire("x", None, of_caller("a")).await.unwrap();
    }
    tokio::time::advance(std::time::Duration::from_secs(3)).await;
    let full = table.acquire("x", None, of_caller("a")).await.unwrap_err();
    let text = full.to_string();
    assert!(text.contains("permits") && !text.contains("wait"), "{text}");
    assert_eq!(full.retry_in(), Some(Span::from_secs(30 + 5 - 3)));
    assert!(table.full_for("x", &of_caller("a")).is_some());
    assert!(table.full_for("x", &of_caller("b")).is_none());
    for name in ["b", "c"] {
        for _ in 0..quarter {
            table.acquire("x", None, of_caller(name)).await.unwrap();
        }
    }
    let (_, reason) = limit_of(table.acquire("x", None, of_caller("d")).await);
    assert_eq!(reason, Reason::PermitsOpen, "the rest is the operator's");
    let operator = CallOptions {
        is_operator: true,
        ..of_caller("a")
    };
    assert!(table.acquire("x", None, operator).await.is_ok());
    tokio::time::advance(std::time::Duration::from_secs(40)).await;
    assert!(table.acquire("x", None, of_caller("a")).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn the_table_knows_who_holds_a_permit() {
    let table = table("limits: [10/1s]");
    let permit = table.acquire("x", None, of_caller("a")).await.unwrap();
    let is_held = |id: &str| (table.is_held_by(id, "a"), table.is_held_by(id, "b"));
    assert_eq!(is_held(&permit.id), (true, false));
    assert_eq!(table.release(&permit.id), Released::Now);
    assert_eq!(is_held(&permit.id), (true, false), "it may ask again");
    let operators = table.acquire("x", None, within(1)).await.unwrap();
    assert_eq!(is_held(&operators.id), (false, false));
}

/// A denial after a wait had no time to come back.
#[tokio::test(start_paused = true)]
async fn a_call_whose_time_ran_out_in_the_queue_learns_when_to_come_back() {
    let table = table("limits: [1/10s]\ntimeout: {first_byte: 5s}\nlate_arrival: 5s");
    let first = table.acquire("x", None, within(1)).await.unwrap();
    // It is open, so that its report might free the slot at any time.
    let denied = table.acquire("x", None, within(2)).await.unwrap_err();
    assert!(
        matches!(denied, Error::DeadlineExceeded { .. }),
        "{denied:?}"
    );
    let back = denied.retry_in().expect("a time to come back");
    assert!(back > Span::from_secs(10), "{back:?}");
    drop(first);
}

/// A permit that nobody reported held up calls until their own deadline, because a report might have
/// freed its slot. When it has expired, none comes any more.
#[tokio::test(start_paused = true)]
async fn a_wait_for_an_unreported_permit_that_passes_the_deadline_is_refused_at_once() {
    let registry = registry("limits: [1/1h]\ntimeout: {first_byte: 5s}\nlate_arrival: 5s");
    let table = PermitTable::new(registry.clone(), USE_WITHIN);
    table.acquire("x", None, within(1)).await.unwrap();
    tokio::time::advance(std::time::Duration::from_secs(36)).await;
    assert_eq!(table.open_permits(), 0);
    let before = registry.ledger().at();
    let (limit, reason) = limit_of(table.acquire("x", None, within(2)).await);
    assert_eq!((limit.as_deref(), reason), (Some("1/1h"), Reason::Limit));
    assert_eq!(registry.ledger().at().since(before), Span::ZERO, "at once");
}
