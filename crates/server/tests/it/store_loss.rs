//! Store loss while the gateway runs: what callers get, and the automatic recovery.
//!
//! The loss is real: another process holds the ledger's lock, as if stopped in the middle of a
//! transaction.

use std::fs::File;
use std::path::Path;

use tollgate::event::{Event, Notification};
use tollgate::providers::Options;
use tollgate_core::time::Span;
use tollgate_ledger::{Clock, Ledger};
use tollgate_sim::http::{Settings, SimProvider};
use tollgate_sim::test_host::TempFolder;

use crate::client::{ClientResponse, get, get_with, wait_until, within_timeout};
use crate::test_gateway::{TestGateway, file};
use crate::upstream::{Upstream, ok};

/// A state folder whose lock a test can take.
pub(crate) struct LedgerFolder(TempFolder);

impl LedgerFolder {
    pub(crate) fn new() -> LedgerFolder {
        LedgerFolder(TempFolder::unmade("loss"))
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    async fn start(&self, files: &[String], options: Options) -> TestGateway {
        let ledger = Ledger::sqlite(self.path(), Clock::System).expect("a folder");
        TestGateway::start_on_ledger(ledger, files, options).await
    }

    pub(crate) fn lock(&self) -> File {
        let lock = File::open(self.path().join("ledger.lock")).expect("a lock file");
        lock.lock().expect("the lock");
        lock
    }
}

/// Calls until the response has this status.
async fn get_until(gateway: &TestGateway, status: u16) -> ClientResponse {
    within_timeout(async {
        loop {
            let response = get(gateway.address, "/x/a").await;
            if response.status == status {
                return response;
            }
        }
    })
    .await
}

fn assert_store_lost(response: &ClientResponse) {
    assert_eq!(response.status, 503, "{response:?}");
    let json = response.json();
    assert_eq!(
        (json["error"].as_str(), json["reason"].as_str()),
        (Some("StoreLost"), Some("store_lost")),
        "{response:?}"
    );
    assert_eq!(json["provider"].as_str(), Some("x"));
    assert_eq!(response.header("x-tollgate-source"), "tollgate");
}

#[tokio::test]
async fn closed_rejects_at_once_and_recovers_with_the_store() {
    let upstream = Upstream::start(|_, _| async { ok() }).await;
    let folder = LedgerFolder::new();
    let files = [file(upstream.address, "limits: [1000/1s]")];
    let gateway = folder.start(&files, Options::default()).await;
    assert_eq!(get(gateway.address, "/x/a").await.status, 200);
    let lock = folder.lock();
    // With an hour to wait, the loss causes the rejection, not the deadline.
    let patient = [("x-tollgate-timeout", "1h")];
    for _ in 0..3 {
        let response = get_with(gateway.address, "/x/a", &patient).await;
        assert_store_lost(&response);
        assert_eq!(response.header("retry-after"), "1");
    }
    assert_eq!((upstream.count(), gateway.registry.uncounted()), (1, 0));
    drop(lock);
    get_until(&gateway, 200).await;
}

/// Usage is unknown for one period of the provider's limits. Limits of this process, such as
/// connections, have no period and no other user.
#[tokio::test]
async fn a_removed_folder_blocks_calls_for_one_period_only() {
    let upstream = Upstream::start(|_, _| async { ok() }).await;
    let folder = LedgerFolder::new();
    let files = [file(upstream.address, "limits: [1000/1s]")];
    let gateway = folder.start(&files, Options::default()).await;
    assert_eq!(get(gateway.address, "/x/a").await.status, 200);
    std::fs::remove_dir_all(folder.path()).expect("a folder");
    get_until(&gateway, 503).await;
    get_until(&gateway, 200).await;
}

/// A load balancer sends callers elsewhere while calls are rejected, and back afterwards.
#[tokio::test]
async fn ready_is_503_while_calls_are_rejected() {
    let upstream = Upstream::start(|_, _| async { ok() }).await;
    for (policy, status) in [("closed", 503), ("open", 200)] {
        let folder = LedgerFolder::new();
        let rest = format!("limits: [1000/1s]\non_store_loss: {policy}");
        let files = [file(upstream.address, &rest)];
        let gateway = folder.start(&files, Options::default()).await;
        assert_eq!(get(gateway.address, "/ready").await.status, 200);
        let lock = folder.lock();
        // A call must fail before the loss is known.
        let received = get(gateway.address, "/x/a").await.status;
        assert_eq!(received, status, "{policy}");
        let response = get(gateway.address, "/ready").await;
        assert_eq!(response.status, status, "{policy}: {response:?}");
        if status == 503 {
            let json = response.json();
            assert_eq!(
                (json["error"].as_str(), json["reason"].as_str()),
                (Some("StoreLost"), Some("store_lost"))
            );
            assert!(
                json["message"]
                    .as_str()
                    .unwrap_or_default()
                    .contains("lock")
            );
        }
        assert_eq!(get(gateway.address, "/health").await.status, 200);
        drop(lock);
        get_until(&gateway, 200).await;
        assert_eq!(get(gateway.address, "/ready").await.status, 200);
    }
}

/// A queued call survives a loss that ends before its turn.
#[tokio::test]
async fn a_queued_call_survives_a_short_store_loss() {
    let upstream = Upstream::start(|_, _| async { ok() }).await;
    let folder = LedgerFolder::new();
    let other = format!(
        "name: y\nupstream: http://{}\nlimits: [9/1s]\n",
        upstream.address
    );
    // The store is lost for less than this window, also on a busy machine.
    let files = [file(upstream.address, "limits: [1/15s]"), other];
    let gateway = folder.start(&files, Options::default()).await;
    assert_eq!(get(gateway.address, "/x/a").await.status, 200);
    let address = gateway.address;
    let waiting = tokio::spawn(async move { get(address, "/x/a").await });
    let active = gateway.registry.named("x").expect("a provider");
    wait_until(|| active.waiting() == 1).await;
    // A later call has its response, so the queued one has been told to wait.
    assert_eq!(get(gateway.address, "/y/a").await.status, 200);
    let lock = folder.lock();
    assert_eq!(get(gateway.address, "/y/a").await.status, 503);
    assert_store_lost(&get(gateway.address, "/x/b").await);
    assert_eq!(active.waiting(), 1);
    drop(lock);
    assert_eq!(within_timeout(waiting).await.expect("no panic").status, 200);
}

#[tokio::test]
async fn open_forwards_and_counts_calls_and_logs_once() {
    let upstream = Upstream::start(|_, _| async { ok() }).await;
    let folder = LedgerFolder::new();
    let rest = "limits: [1/1h]\non_store_loss: open";
    let gateway = folder
        .start(&[file(upstream.address, rest)], Options::default())
        .await;
    assert_eq!(get(gateway.address, "/x/a").await.status, 200);
    let mut events = gateway.registry.events().subscribe_rare();
    let lock = folder.lock();
    for _ in 0..5 {
        assert_eq!(get(gateway.address, "/x/a").await.status, 200);
    }
    let active = gateway.registry.named("x").expect("a provider");
    assert_eq!((active.uncounted(), gateway.registry.uncounted()), (5, 5));
    drop(lock);
    // Back to normal: the one permit of the hour is used.
    get_until_rejected(&gateway).await;
    let uncounted = gateway.registry.uncounted();
    let reported = crate::log::captured();
    assert!(reported.contains("store_lost") && reported.contains("store_back"));
    let mut losses = 0;
    while let Some(heard) = events.try_next() {
        losses += u32::from(matches!(&heard, Notification::Event(event)
            if matches!(**event, Event::StoreLost { .. })));
    }
    assert!((1..5).contains(&losses), "{losses}: per loss, not per call");
    assert!(uncounted >= 5);
}

async fn get_until_rejected(gateway: &TestGateway) {
    within_timeout(async {
        loop {
            let quick = [("x-tollgate-timeout", "50ms")];
            if get_with(gateway.address, "/x/a", &quick).await.status == 429 {
                return;
            }
        }
    })
    .await;
}

/// Two nodes: each gets half of the limit after the common usage has left its window, with the same
/// pause once the store is back. The provider enforces the whole limit and never sees an excess.
#[tokio::test]
async fn local_share_pauses_then_keeps_to_its_share_and_pauses_again() {
    let settings = Settings::with_rules("sliding 4/400ms").expect("rules");
    let provider = SimProvider::start(settings).await.expect("a free port");
    let folder = LedgerFolder::new();
    let rest = "limits: [4/400ms]\non_store_loss: local-share\nlate_arrival: 100ms\nretry: {retries: {high: 0, normal: 0, low: 0}}";
    let options = Options {
        nodes: 2,
        node_lease: Span::from_secs(5),
        ..Options::default()
    };
    let files = [file(provider.address(), rest)];
    let gateway = folder.start(&files, options).await;
    for _ in 0..4 {
        assert_eq!(get(gateway.address, "/x/a").await.status, 200);
    }
    let lock = folder.lock();
    let quick = [("x-tollgate-timeout", "1ms")];
    let closed = get_with(gateway.address, "/x/a", &quick).await;
    assert_store_lost(&closed);
    let left = closed.json()["retryIn"].as_u64();
    assert!(left.is_some_and(|left| left <= 5_501), "{closed:?}");
    // Its share is two per window: of eight concurrent calls the limit rejects most.
    get_until(&gateway, 200).await;
    let address = gateway.address;
    let calls = (0..8).map(|number| {
        let path = format!("/x/{number}"); // its own: the same at once would be one call
        tokio::spawn(async move { get_with(address, &path, &quick).await.status })
    });
    let mut rejected = 0;
    for call in calls.collect::<Vec<_>>() {
        rejected += u32::from(call.await.expect("no panic") == 429);
    }
    assert!(rejected > 0);
    for _ in 0..6 {
        assert_eq!(get(gateway.address, "/x/a").await.status, 200);
    }
    drop(lock);
    let ledger = gateway.registry.ledger();
    wait_until(|| ledger.loss().is_none()).await;
    let paused = get_with(gateway.address, "/x/a", &quick).await;
    assert_store_lost(&paused);
    for _ in 0..8 {
        get_until(&gateway, 200).await;
    }
    let report = provider.stop().await;
    assert_eq!(report.violations, 0);
    assert_eq!(gateway.registry.uncounted(), 0);
}

/// A provider without limits needs no store.
#[tokio::test]
async fn a_provider_without_limits_works_without_the_store() {
    let upstream = Upstream::start(|_, _| async { ok() }).await;
    let folder = LedgerFolder::new();
    let files = [
        file(upstream.address, "enabled: false\nlimits: [1/1h]"),
        format!(
            "name: y\nupstream: http://{}\nlimits: [1/1h]\n",
            upstream.address
        ),
    ];
    let gateway = folder.start(&files, Options::default()).await;
    let _lock = folder.lock();
    assert_eq!(get(gateway.address, "/y/a").await.status, 503);
    for _ in 0..3 {
        assert_eq!(get(gateway.address, "/x/a").await.status, 200);
    }
    assert_eq!(
        gateway.registry.uncounted(),
        0,
        "there was nothing to count"
    );
}

/// A cool-down holds, although it cannot be written to the shared store.
#[tokio::test]
async fn a_provider_cooldown_holds_while_the_store_is_lost() {
    let upstream = Upstream::start(|number, _| async move {
        let mut response = ok();
        if number == 1 {
            *response.status_mut() = hyper::StatusCode::TOO_MANY_REQUESTS;
            let wait = hyper::header::HeaderValue::from_static("600");
            response.headers_mut().insert("retry-after", wait);
        }
        response
    })
    .await;
    let folder = LedgerFolder::new();
    let rest =
        "limits: [1000/1s]\non_store_loss: open\nretry: {retries: {high: 0, normal: 0, low: 0}}";
    let gateway = folder
        .start(&[file(upstream.address, rest)], Options::default())
        .await;
    assert_eq!(get(gateway.address, "/x/a").await.status, 200);
    let _lock = folder.lock();
    assert_eq!(get(gateway.address, "/x/a").await.status, 429);
    let paused = get(gateway.address, "/x/a").await;
    assert!(paused.status == 429 || paused.status == 503, "{paused:?}");
    assert_eq!(upstream.count(), 2, "nothing was sent into the pause");
}

/// Calls that wait during a store loss are counted by priority too.
#[tokio::test]
async fn calls_waiting_during_a_store_loss_are_counted_by_priority() {
    let (go, gone) = tokio::sync::watch::channel(false);
    let upstream = Upstream::start(move |_, _| {
        let mut gone = gone.clone();
        async move {
            gone.wait_for(|go| *go).await.ok();
            ok()
        }
    })
    .await;
    let folder = LedgerFolder::new();
    let rest = "limits: [1000/1s]\nconnections: 1\non_store_loss: open";
    let gateway = folder
        .start(&[file(upstream.address, rest)], Options::default())
        .await;
    let _lock = folder.lock();
    let address = gateway.address;
    let first = tokio::spawn(async move { get(address, "/x/a").await });
    wait_until(|| upstream.count() == 1).await;
    let second = tokio::spawn(async move { get(address, "/x/b").await });
    let active = gateway.registry.named("x").unwrap();
    wait_until(|| active.waiting() == 1).await;
    assert_eq!(active.waiting_at(tollgate_core::ask::Priority::Normal), 1);
    go.send_replace(true);
    assert_eq!(within_timeout(first).await.unwrap().status, 200);
    assert_eq!(within_timeout(second).await.unwrap().status, 200);
}

/// A stopped process holds the lock: calls that need the remaining quota wait for it, and no others
/// do. This test has one thread, so a stage that blocked it would block every call, every time; on
/// a slow machine the waiting calls are given up before the others have responses.
#[tokio::test]
async fn reading_a_locked_ledger_does_not_block_other_calls() {
    for _ in 0..5 {
        if other_calls_are_served().await {
            return;
        }
    }
    panic!("no other call got a response before the waiting ones");
}

async fn other_calls_are_served() -> bool {
    let upstream = Upstream::start(|_, _| async { ok() }).await;
    let folder = LedgerFolder::new();
    let named = |name: &str, rest: &str| file(upstream.address, rest).replacen('x', name, 1);
    let files = [
        named("plain", "limits: [100/1s]"),
        named(
            "pool",
            "api_keys: [k1, k2]\nauth: {header: x-key}\n\
             limits: [{limit: 100, period: 1h, per: api_key}]",
        ),
        named(
            "kept",
            "limits: [100/1h]\ndegrade: {below: 2, recover: 4}\ncache: {ttl: 1h}",
        ),
    ];
    let gateway = folder.start(&files, Options::default()).await;
    for started in ["/kept/a", "/plain/a"] {
        assert_eq!(get(gateway.address, started).await.status, 200);
    }
    let lock = folder.lock();
    let asks = tokio::spawn(get(gateway.address, "/plain/b"));
    let plain = gateway.registry.named("plain").expect("a provider");
    wait_until(|| plain.waiting() == 1 || asks.is_finished()).await;
    let looks = tokio::spawn(get(gateway.address, "/pool/a"));
    let is_started = |name: &str| {
        gateway
            .registry
            .started()
            .iter()
            .any(|active| active.name() == name)
    };
    wait_until(|| is_started("pool")).await;
    for _ in 0..10 {
        assert_eq!(get(gateway.address, "/health").await.status, 200);
        let hit = get(gateway.address, "/kept/a").await;
        assert_eq!(
            (hit.status, hit.header("x-tollgate-source")),
            (200, "cache")
        );
    }
    let still_wait = !looks.is_finished() && !asks.is_finished();
    drop(lock);
    for call in [looks, asks] {
        let status = within_timeout(call).await.expect("a response").status;
        // Given up: then that is what is said.
        assert!([200, 503].contains(&status), "{status}");
    }
    still_wait
}
