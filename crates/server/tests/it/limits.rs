//! Limits hold at the provider, verified by its own log: no excess, no lost call, no duplicate.

use std::sync::Arc;

use tokio::sync::{Notify, watch};
use tollgate_core::time::Span;
use tollgate_sim::http::{Settings, SimProvider};
use tollgate_sim::latency::Latency;

use crate::client::{Session, get, get_with, pause, wait_until, within_timeout};
use crate::test_gateway::{TestGateway, file};
use crate::upstream::{Upstream, ok};

/// Greedy clients: each calls again as soon as it has its response.
async fn greedy(gateway: &TestGateway, clients: usize, each: usize) -> Vec<u16> {
    let asks = (0..clients).map(|client| {
        let address = gateway.address;
        tokio::spawn(async move {
            let mut session = Session::open(address).await;
            let mut seen = Vec::new();
            for call in 0..each {
                let id = format!("{client}-{call}");
                let response = session.get("/x/items", &[("x-call-id", &id)]).await;
                seen.push(response.status);
            }
            seen
        })
    });
    let mut statuses = Vec::new();
    for received in asks.collect::<Vec<_>>() {
        statuses.extend(received.await.expect("no panic"));
    }
    statuses
}

async fn provider(rules: &str) -> SimProvider {
    let ms = Span::from_millis;
    let latency = Latency::constant(ms(1), ms(1), ms(1));
    let settings = Settings::with_rules(rules).expect("rules").latency(latency);
    SimProvider::start(settings).await.expect("a free port")
}

async fn assert_no_excess_and_no_loss(rules: &str, limits: &str) {
    let provider = provider(rules).await;
    let gateway = TestGateway::start(&[file(provider.address(), limits)]).await;
    let statuses = greedy(&gateway, 8, 5).await;
    let report = provider.stop().await;
    assert_eq!(statuses, [200; 40]);
    assert_eq!(
        (report.violations, report.accepted, report.duplicates),
        (0, 40, 0)
    );
}

/// M1: a sliding window holds at the provider.
#[tokio::test]
async fn m1_a_sliding_window_holds_under_load_and_no_call_is_lost() {
    assert_no_excess_and_no_loss("sliding 10/200ms", "limits: [10/200ms]").await;
}

/// A12: a token bucket and a concurrency limit both hold.
#[tokio::test]
async fn a12_a_token_bucket_and_a_concurrency_limit_hold_under_load() {
    let limits =
        "limits: [{limit: 20, period: 200ms, algorithm: token-bucket, burst: 5}]\nconcurrency: 2";
    assert_no_excess_and_no_loss("bucket 20/200ms burst 5, in-flight 2", limits).await;
}

#[tokio::test]
async fn several_limits_are_decided_together() {
    let limits = "limits: [6/100ms, {limit: 20, period: 500ms}]";
    assert_no_excess_and_no_loss("sliding 6/100ms, sliding 20/500ms", limits).await;
}

/// An upstream that holds all responses until it is released.
async fn held(rest: &str) -> (Upstream, TestGateway, watch::Sender<bool>) {
    let (go, gone) = watch::channel(false);
    let upstream = Upstream::start(move |_, _| {
        let mut gone = gone.clone();
        async move {
            gone.wait_for(|go| *go).await.ok();
            ok()
        }
    })
    .await;
    let gateway = TestGateway::start(&[file(upstream.address, rest)]).await;
    (upstream, gateway, go)
}

/// C13: upstream connections are pooled and capped, and calls wait for one in the queue. Two slow
/// calls and six behind them use two connections, by the upstream's own count.
#[tokio::test]
async fn c13_connections_are_capped_and_shared() {
    let (upstream, gateway, go) = held("connections: 2\nlimits: [1000/1s]").await;
    let active = gateway.registry.named("x").unwrap();
    let mut calls = Vec::new();
    for (number, waiting) in [0, 0, 1, 2, 3, 4, 5, 6].into_iter().enumerate() {
        let path = format!("/x/{number}");
        calls.push(tokio::spawn(async move {
            get(gateway.address, &path).await.status
        }));
        wait_until(|| upstream.count() == (number + 1).min(2) && active.waiting() == waiting).await;
    }
    go.send_replace(true);
    for call in calls {
        assert_eq!(within_timeout(call).await.unwrap(), 200);
    }
    assert_eq!((upstream.count(), upstream.accepted()), (8, 2));
}

/// C13: a concurrency limit for some calls only does not lift the cap for the others.
#[tokio::test]
async fn c13_a_lower_concurrency_for_low_priority_keeps_the_connection_cap() {
    let rest = "concurrency: {normal: 100, low: 1}\nconnections: 2\nlimits: [1000/1s]";
    let (upstream, gateway, go) = held(rest).await;
    let active = gateway.registry.named("x").unwrap();
    let ask =
        |number: usize| async move { get(gateway.address, &format!("/x/{number}")).await.status };
    let calls: Vec<_> = (0..4).map(|number| tokio::spawn(ask(number))).collect();
    wait_until(|| upstream.count() + active.waiting() == 4).await;
    assert_eq!(upstream.count(), 2);
    go.send_replace(true);
    for call in calls {
        assert_eq!(within_timeout(call).await.unwrap(), 200);
    }
}

/// C10: every response reports the decision.
#[tokio::test]
async fn c10_a_response_reports_the_decision() {
    let word = Arc::new(Notify::new());
    let heard = word.clone();
    let upstream = Upstream::start(move |number, _| {
        let heard = heard.clone();
        async move {
            if number == 0 {
                heard.notified().await;
                pause(5).await; // so that the second has waited for longer than nothing
            }
            ok()
        }
    })
    .await;
    let rest = "concurrency: 1\nlimits: [2/1h]";
    let gateway = TestGateway::start(&[file(upstream.address, rest)]).await;
    let active = gateway.registry.named("x").unwrap();
    let first = tokio::spawn(get(gateway.address, "/x/a"));
    wait_until(|| upstream.count() == 1).await;
    let second = tokio::spawn(get(gateway.address, "/x/b"));
    wait_until(|| active.waiting() == 1).await;
    word.notify_one();
    let (first, second) = (
        within_timeout(first).await.unwrap(),
        within_timeout(second).await.unwrap(),
    );
    let third = get_with(gateway.address, "/x/c", &[("x-tollgate-timeout", "30s")]).await;
    let decisions =
        [&first, &second, &third].map(|response| response.header("x-tollgate-decision"));
    assert_eq!(decisions, ["allow", "queue", "reject"]);
    assert_eq!(
        (
            first.header("x-tollgate-source"),
            third.header("x-tollgate-source")
        ),
        ("upstream", "tollgate")
    );
    assert_eq!(
        (
            first.header("x-tollgate-attempts"),
            third.header("x-tollgate-attempts")
        ),
        ("1", "0")
    );
    assert!(second.header("x-tollgate-wait") > "0.000", "{second:?}");
    assert_ne!(
        first.header("x-tollgate-id"),
        second.header("x-tollgate-id")
    );
}

/// S1, R-E3: no spelling of an entity bypasses its limit.
#[tokio::test]
async fn s1_no_spelling_of_an_entity_bypasses_its_limit() {
    let upstream = Upstream::start(|_, _| async { ok() }).await;
    let limits = "limits: [{limit: 1, period: 1h, per: entity}]";
    let gateway = TestGateway::start(&[file(upstream.address, limits)]).await;
    assert_eq!(get(gateway.address, "/x/odds/1").await.status, 200);
    for path in [
        "/x/odds",
        "/x/ODDS/2",
        "/x//odds/2",
        "/x/%6fdds/2",
        "/x/%6Fdds/2",
        "/x/./odds/2",
        "/x/a/../odds/2",
        "/x/%2e/odds/2",
        "/x/odds;v=1/2",
        "/x/odds%2f2",
        "/x/v3/odds/2",
        "/x/odds./2",
    ] {
        let response = get_with(gateway.address, path, &[("x-tollgate-timeout", "30s")]).await;
        assert!(
            [400, 429].contains(&response.status),
            "{path}: {response:?}"
        );
    }
    assert_eq!(upstream.count(), 1);
    assert_eq!(
        get(gateway.address, "/x/fixtures").await.status,
        200,
        "others go on"
    );
}

/// A13: two nodes that count in memory keep one limit together, and a limit of which a node has no
/// share lets nothing through.
#[tokio::test]
async fn a13_nodes_that_count_separately_keep_to_their_share() {
    let provider = provider("sliding 10/200ms").await;
    let options = || tollgate::providers::Options {
        nodes: 2,
        ..tollgate::providers::Options::default()
    };
    let files = [file(provider.address(), "limits: [10/200ms]")];
    let one = TestGateway::start_with(&files, options()).await;
    let two = TestGateway::start_with(&files, options()).await;
    let (first, second) = tokio::join!(greedy(&one, 8, 3), greedy(&two, 8, 3));
    assert_eq!((first, second), (vec![200; 24], vec![200; 24]));
    let small = [file(provider.address(), "limits: [1/1s]")];
    let rejected = get(
        TestGateway::start_with(&small, options()).await.address,
        "/x/a",
    )
    .await;
    assert_eq!(
        (rejected.status, rejected.json()["limit"].as_str()),
        (429, Some("1/1s"))
    );
    let report = provider.stop().await;
    assert_eq!((report.violations, report.accepted), (0, 48));
}

/// H4: unknown domains have no limits, but share 256 connections. The next call is neither rejected
/// nor lost; it waits for a slot.
#[tokio::test]
async fn h4_the_257th_concurrent_call_to_unknown_domains_waits_for_a_slot() {
    const SLOTS: usize = 256;
    let go = Arc::new(Notify::new());
    let held = go.clone();
    let upstream = Upstream::start(move |number, _| {
        let held = held.clone();
        async move {
            if number < SLOTS {
                held.notified().await;
            }
            ok()
        }
    })
    .await;
    let options = tollgate::providers::Options {
        private: true,
        ..tollgate::providers::Options::default()
    };
    let gateway = TestGateway::start_with(&[], options).await;
    let unknown = gateway.registry.named_or_unknown("unknown").unwrap();
    let (address, to) = (gateway.address, upstream.address);
    let call = |number: usize| {
        let path = format!("/http://{to}/{number}");
        tokio::spawn(async move { get(address, &path).await.status })
    };
    let mut calls: Vec<_> = (0..SLOTS).map(call).collect();
    wait_until(|| upstream.count() == SLOTS).await;
    calls.push(call(SLOTS));
    wait_until(|| unknown.waiting() == 1).await;
    assert_eq!(upstream.count(), SLOTS);
    go.notify_one();
    wait_until(|| upstream.count() == SLOTS + 1).await;
    go.notify_waiters();
    for call in calls {
        assert_eq!(within_timeout(call).await.unwrap(), 200);
    }
}
