//! Counts that a snapshot takes out of one process and puts into the next (H8). Paused time.

use tollgate::permit_table::{PermitTable, Report, USE_WITHIN};
use tollgate::providers::UsageState;
use tollgate::{CallOptions, Options, ProviderRegistry};
use tollgate_config::{Environment, ProviderFile};
use tollgate_core::time::{Span, Wall};
use tollgate_ledger::{Clock, Ledger};

const START: Wall = Wall(1_772_323_200_000_000);

fn registry(limits: &str) -> ProviderRegistry {
    let file = format!("name: x\ndomain: api.example.org\nlimits: [{limits}]\n");
    let draft = ProviderFile::read("x.yaml", &file).expect("the file can be read");
    let checked = draft.check(&Environment::empty());
    let provider = checked.provider.expect("a valid file");
    let ledger = Ledger::memory(Clock::tokio(START));
    ProviderRegistry::build(vec![provider], ledger, Options::default()).expect("valid")
}

/// Calls that are granted at once, and answered.
async fn calls(registry: &ProviderRegistry, most: usize) -> usize {
    let table = PermitTable::new(registry.clone(), USE_WITHIN);
    let mut granted = 0;
    while granted < most {
        let options = CallOptions {
            timeout: Some(Span::ZERO),
            ..CallOptions::default()
        };
        let Ok(permit) = table.acquire("x", None, options).await else {
            return granted;
        };
        let report = Report::Response {
            status: 200,
            headers: &http::HeaderMap::new(),
            body: b"",
            costs: &[],
        };
        let _learned = table.report(&permit.id, report);
        granted += 1;
    }
    granted
}

/// H8: after a crash the count goes on, and is free again when the document's window is over.
#[tokio::test(start_paused = true)]
async fn h8_a_restored_count_goes_on_until_its_window_is_over() {
    for limit in ["10/1m", "{limit: 10, period: 1m, algorithm: fixed-window}"] {
        let before = registry(limit);
        assert_eq!(calls(&before, 7).await, 7);
        let states = before.usage_states().await;
        let [state] = states.as_slice() else {
            panic!("{states:?}")
        };
        assert_eq!((&*state.domain, state.used), ("api.example.org", 7));
        let after = registry(limit);
        assert_eq!(after.restore_usage(&states).await, 1);
        assert_eq!(calls(&after, 100).await, 3, "{limit}");
        assert_eq!(after.usage_states().await[0].used, 10);
        tokio::time::advance(std::time::Duration::from_secs(61)).await;
        assert_eq!(calls(&after, 100).await, 10, "{limit}");
    }
}

/// H8: a restored window began when it did before the crash, so a second crash does not prolong it.
#[tokio::test(start_paused = true)]
async fn h8_a_restored_window_keeps_its_beginning() {
    let limit = "{limit: 10, period: 1m, algorithm: fixed-window}";
    let before = registry(limit);
    assert_eq!(calls(&before, 7).await, 7);
    let states = before.usage_states().await;
    let after = registry(limit);
    tokio::time::advance(std::time::Duration::from_secs(20)).await;
    assert_eq!(after.restore_usage(&states).await, 1);
    tokio::time::advance(std::time::Duration::from_secs(1)).await;
    assert_eq!(after.usage_states().await, states);
    tokio::time::advance(std::time::Duration::from_secs(40)).await;
    assert_eq!(calls(&after, 100).await, 10);
}

/// H8: a window that is over, a domain without a provider and a count above the limit do no harm.
#[tokio::test(start_paused = true)]
async fn h8_old_and_foreign_rows_are_ignored() {
    let state = |domain: &str, used, age: u64| UsageState {
        domain: domain.to_owned(),
        used,
        window_start: Wall(START.0 + Span::from_secs(100 - age).0),
    };
    let registry = registry("10/1m");
    // The machine has run for longer than a window.
    tokio::time::advance(std::time::Duration::from_secs(100)).await;
    let rows = [
        state("api.example.org", 7, 61),
        state("gone.example", 7, 1),
        state("api.example.org", 0, 1),
    ];
    assert_eq!(registry.restore_usage(&rows).await, 0);
    assert_eq!(
        registry
            .restore_usage(&[state("api.example.org", 4_000, 59)])
            .await,
        1
    );
    assert_eq!(calls(&registry, 100).await, 0);
    tokio::time::advance(std::time::Duration::from_secs(2)).await;
    assert_eq!(calls(&registry, 100).await, 10);
}
