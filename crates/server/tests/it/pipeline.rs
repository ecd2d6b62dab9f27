//! The scenarios of the pipeline document (H10), with its files, over sockets and in virtual time.

use std::sync::Arc;

use serde_json::Value;
use tollgate::event::{Event, Notification, Subscription};
use tollgate::providers::Options;
use tollgate_core::time::{Micros, Now, Span, Wall};
use tollgate_ledger::{Clock, Ledger, ManualClock};
use tollgate_server::desk::Source;
use tollgate_server::{Scheduler, SchedulerOptions};

use crate::client::{get, within_timeout};
use crate::test_daemon::{TestDaemon, from_config, write_file};
use crate::upstream::{Upstream, ok};

/// 2025-01-15 10:00:00 UTC.
const TEN: u64 = 1_736_935_200;

/// A daemon with one file of the document, at ten o'clock.
async fn daemon(name: &str, upstream: &Upstream, file: &str) -> (TestDaemon, Arc<ManualClock>) {
    let provider = format!("{name}-p.yaml");
    let address = upstream.address;
    write_file(
        &provider,
        &format!("name: {name}\n{file}upstream: http://{address}\nhealth: off\nlate_arrival: 0s\n"),
    );
    write_file(
        &format!("{name}-config.yaml"),
        &format!("providers: [{provider}]\nscheduler: {{cycle: 100ms, workers: 4}}\n"),
    );
    let sources = from_config(&format!("{name}-config.yaml"));
    let clock = ManualClock::new(Now {
        at: Micros(1_000_000_000),
        wall: Wall(TEN * 1_000_000),
    });
    let options = Options {
        private: true,
        ..Options::default()
    };
    let ledger = Ledger::memory(Clock::Manual(clock.clone()));
    let daemon = TestDaemon::start_on(ledger, sources, options, None).await;
    (daemon, clock)
}

const FMP: &str = "domain: financialmodelingprep.com\nlimits: [{limit: 300, period: 1m, algorithm: fixed-window}]\n";
const YAHOO: &str =
    "domain: finance.yahoo.com\nlimits: [{limit: 2000, period: 1h, algorithm: fixed-window}]\n";

fn add(daemon: &TestDaemon, name: &str) {
    let source = Source {
        name: name.to_owned(),
        url: format!("http://financialmodelingprep.com/api/v3/{name}"),
        ..Source::default()
    };
    assert!(daemon.daemon.desk().unwrap().add_source(&source).unwrap());
}

/// The first limit of the provider, as `status --json` shows it.
async fn limit(daemon: &TestDaemon, provider: &str) -> Value {
    let path = format!("/v1/providers/{provider}");
    daemon.request("GET", &path, "").await.json()["limits"][0].clone()
}

/// Waits until so many sources were fetched; nothing else may happen to one.
async fn fetched(events: &mut Subscription, count: usize) {
    let all = async {
        let mut seen = 0;
        while seen < count {
            match events.next().await {
                Some(Notification::Event(event)) => match &*event {
                    Event::SourceFetched { .. } => seen += 1,
                    Event::SourceFailed { .. } | Event::SourcePutBack { .. } => panic!("{event:?}"),
                    _ => {}
                },
                other => assert!(other.is_some(), "the bus stays open"),
            }
        }
    };
    within_timeout(all).await;
}

/// H10, scenario 1: three sources of one domain are counted together.
#[tokio::test]
async fn h10_three_sources_of_one_domain_share_its_counter() {
    let upstream = Upstream::start(|_, _| async { ok() }).await;
    let (daemon, _) = daemon("fmp-shared", &upstream, FMP).await;
    for name in ["a", "b", "c"] {
        add(&daemon, name);
    }
    let mut events = daemon.daemon.registry().events().subscribe();
    let scheduler = Scheduler::start(&daemon.daemon, SchedulerOptions::default());
    fetched(&mut events, 3).await;
    let limit = limit(&daemon, "fmp-shared").await;
    assert_eq!(
        (&limit["used"], &limit["remaining"]),
        (&3.into(), &297.into())
    );
    scheduler.drain().await;
}

/// H10, scenario 2: 295 of 300 are used and ten sources are due: five are fetched, five are skipped, and fetched when the window
/// is over. No source fails and none is denied.
#[tokio::test]
async fn h10_near_the_limit_five_of_ten_sources_wait_for_the_next_window() {
    let upstream = Upstream::start(|_, _| async { ok() }).await;
    let (daemon, clock) = daemon("fmp-near", &upstream, FMP).await;
    for _ in 0..295 {
        assert_eq!(get(daemon.gateway, "/fmp-near/x").await.status, 200);
    }
    for number in 0..10 {
        add(&daemon, &format!("s{number}"));
    }
    let mut events = daemon.daemon.registry().events().subscribe();
    let scheduler = Scheduler::start(&daemon.daemon, SchedulerOptions::default());
    fetched(&mut events, 5).await;
    let full = limit(&daemon, "fmp-near").await;
    assert_eq!(
        (&full["used"], &full["remaining"]),
        (&300.into(), &0.into())
    );
    assert_eq!(upstream.count(), 300);
    // One more than the period: the window of a provider whose clock is slower lasts longer.
    clock.pass(Span::from_secs(61));
    fetched(&mut events, 5).await;
    assert_eq!(upstream.count(), 305);
    assert_eq!(limit(&daemon, "fmp-near").await["used"], 5);
    scheduler.drain().await;
}

/// H10, H7, scenario 3 and the hourly example: when the period has passed the next call opens a new window, which starts with it:
/// a call at 11:00:05 at 11:00:05.
#[tokio::test]
async fn h10_a_call_at_11_00_05_starts_a_window_at_11_00_05() {
    let upstream = Upstream::start(|_, _| async { ok() }).await;
    let (daemon, clock) = daemon("yahoo", &upstream, YAHOO).await;
    let seconds = |limit: &Value| limit["window_start"].as_f64().map(f64::round);
    #[expect(clippy::cast_precision_loss, reason = "a time of this century")]
    let at = |after: u64| Some((TEN + after) as f64);
    assert_eq!(get(daemon.gateway, "/yahoo/v8/chart").await.status, 200);
    clock.pass(Span::from_secs(1_800));
    assert_eq!(get(daemon.gateway, "/yahoo/v8/chart").await.status, 200);
    let first = limit(&daemon, "yahoo").await;
    assert_eq!((&first["used"], seconds(&first)), (&2.into(), at(0)));
    clock.pass(Span::from_secs(1_805));
    assert_eq!(get(daemon.gateway, "/yahoo/v8/chart").await.status, 200);
    let next = limit(&daemon, "yahoo").await;
    assert_eq!((&next["used"], seconds(&next)), (&1.into(), at(3_605)));
    // Idle for longer than a period: nothing is counted any more.
    clock.pass(Span::from_secs(7_200));
    assert_eq!(limit(&daemon, "yahoo").await["used"], 0);
}
