//! What the documents ask for and only sockets can show: cool-downs by entity, both counts of an
//! entity, lifetimes by entity, the counts of the health window, the health scenarios.
//!
//! Asserts safety, order and counts; lower bounds of time, never upper ones.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tollgate::providers::Options;
use tollgate_core::health::HealthState;
use tollgate_core::time::{Micros, Now, Span, Wall};
use tollgate_ledger::{Clock, Ledger, ManualClock};

use crate::cache::{ManualClockGateway, NO_RETRY, counting};
use crate::client::{get, get_with, wait_until, within_timeout};
use crate::raw_upstream::{RawUpstream, read_head, reset};
use crate::test_daemon::{TestDaemon, from_file, write_file};
use crate::test_gateway::{TestGateway, file};
use crate::upstream::{Upstream, ok, reply};

/// Shorter than every wait here, so that the call is rejected at once.
const SOON: [(&str, &str); 1] = [("x-tollgate-timeout", "900ms")];

/// A wall clock that stands at noon.
fn noon() -> Arc<ManualClock> {
    ManualClock::new(Now {
        at: Micros(1_000_000_000),
        wall: Wall(1_794_744_000_000_000),
    })
}

/// S5: `Retry-After`, else the reset, else a backoff that doubles with each 429 in a row and has up
/// to 30 % of jitter. The entity's calls are rejected with that time; other entities go on.
#[tokio::test]
async fn s5_an_entity_cools_down_as_the_provider_says_and_others_go_on() {
    let reset = (Clock::System.now().wall.0 / 1_000_000 + 40).to_string();
    let reset = ("x-ratelimit-reset", reset.as_str());
    type Case<'a> = (Vec<(&'a str, &'a str)>, [(u64, u64); 2]);
    let cases: [Case<'_>; 3] = [
        (
            vec![("retry-after", "300"), reset],
            [(299, 300), (299, 300)],
        ),
        // A date: what is left of it depends on when it is read.
        (
            vec![("x-ratelimit-remaining", "0"), reset],
            [(10, 41), (1, 41)],
        ),
        (vec![], [(1, 2), (2, 3)]),
    ];
    for (headers, bounds) in cases {
        let lines: Vec<(String, String)> = headers
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        let upstream = Upstream::start(move |_, received| {
            let lines = lines.clone();
            async move {
                if !received.target.starts_with("/odds") {
                    return ok();
                }
                let lines: Vec<(&str, &str)> = lines
                    .iter()
                    .map(|(name, value)| (name.as_str(), value.as_str()))
                    .collect();
                reply(429, &lines, "")
            }
        })
        .await;
        let rest = format!(
            "limits: [{{limit: 100, period: 1s, per: entity}}]\n{NO_RETRY}\nhealth: off\ncooldown: {{jitter: 0.3}}"
        );
        // A manual clock: the shortest of these cool-downs is a second.
        let clock = ManualClock::new(Clock::System.now());
        let files = [file(upstream.address, &rest)];
        let on = Clock::Manual(clock.clone());
        let gateway = TestGateway::start_on_clock(on, &files, Options::default()).await;
        for (round, (low, high)) in bounds.into_iter().enumerate() {
            assert_eq!(get(gateway.address, "/x/odds/1").await.status, 429);
            let rejected = get_with(gateway.address, "/x/odds/2", &SOON).await;
            let body = rejected.json();
            assert_eq!(
                (&body["error"], &body["reason"], &body["entity"]),
                (
                    &json!("RateLimitExceeded"),
                    &json!("cooldown"),
                    &json!("odds")
                )
            );
            let after: u64 = rejected.header("retry-after").parse().unwrap();
            assert!(
                (low..=high).contains(&after),
                "{headers:?}, {round}: {after}"
            );
            assert_eq!(upstream.count(), 2 * round + 1, "nothing was sent");
            assert_eq!(get(gateway.address, "/x/fixtures").await.status, 200);
            // The next round follows the end of the cool-down, within its own second.
            clock.pass(Span::from_secs(after));
        }
    }
}

/// S2: a bucket that refills in proportion, and the calls really made in the window beside it; both
/// must allow, both are per entity, and both are shown.
#[tokio::test]
async fn s2_both_counts_of_an_entity_must_allow_and_are_shown() {
    let upstream = Upstream::start(|_, _| async { ok() }).await;
    let rest = "dedup: off\nhealth: off\nlimits:\n\
        - {name: tokens, limit: 6, period: 1h, algorithm: token-bucket, burst: 6, per: entity}\n\
        - {name: window, limit: 6, period: 1h, per: entity}";
    write_file("s2.yaml", &file(upstream.address, rest));
    let clock = noon();
    let ledger = Ledger::memory(Clock::Manual(clock.clone()));
    let daemon = TestDaemon::start_on(ledger, from_file("s2.yaml"), Options::default(), None).await;
    let shown = async || {
        let path = "/v1/providers/x?entity=fixtures";
        let status = daemon.request("GET", path, "").await.json();
        let limits = status["entities"]["fixtures"]["limits"].clone();
        let of = |index: usize| {
            let limit = &limits[index];
            (
                limit["used"].as_u64().unwrap(),
                limit["remaining"].as_u64().unwrap(),
            )
        };
        [of(0), of(1)]
    };
    for _ in 0..6 {
        assert_eq!(get(daemon.gateway, "/x/fixtures/1").await.status, 200);
        clock.pass(Span::from_millis(1));
    }
    assert_eq!(shown().await, [(6, 0), (6, 0)]);
    assert_eq!(get(daemon.gateway, "/x/odds").await.status, 200, "its own");
    // A third of the hour refills a third of the bucket, and the window still holds all six.
    clock.pass(Span::from_secs(1_210));
    assert_eq!(shown().await, [(4, 2), (6, 0)]);
    let rejected = get_with(daemon.gateway, "/x/fixtures/1", &SOON).await;
    assert_eq!(
        (rejected.status, &rejected.json()["limit"]),
        (429, &json!("window"))
    );
    assert_eq!(shown().await, [(4, 2), (6, 0)], "nothing was charged");
    clock.pass(Span::from_secs(2_450));
    assert_eq!(get(daemon.gateway, "/x/fixtures/1").await.status, 200);
    assert_eq!(shown().await, [(1, 5), (1, 5)]);
}

/// S8: the document's lifetimes, one by one: a response is cached for as long as its entity says
/// and not longer. Where a range is given, at least its beginning and at most its end.
#[tokio::test]
async fn s8_every_entity_of_the_document_has_its_lifetime() {
    let upstream = counting().await;
    let rest = "preset: sportmonks\napi_key: k\nlimits: [1000/1s]";
    for (entity, least, most) in [
        ("teams", 86_400, 86_400),
        ("leagues", 86_400, 86_400),
        ("markets", 86_400, 86_400),
        ("standings", 300, 600),
        ("sidelined", 300, 600),
        ("fixtures", 180, 180),
        ("livescores", 4, 4),
        ("odds", 4, 4),
        ("events", 4, 4),
    ] {
        let manual = ManualClockGateway::start(&upstream, rest).await;
        let path = format!("/x/v3/football/{entity}/7");
        let source = async || manual.get(&path, &[]).await.1;
        assert_eq!(source().await, "upstream", "{entity}");
        manual.advance(least - 1);
        assert_eq!(source().await, "cache", "{entity}");
        manual.advance(most - least + 2);
        assert_eq!(source().await, "upstream", "{entity}");
    }
}

/// M7: after 429s the waits double from the base up to the maximum, and the number of retries is
/// that of the priority.
#[tokio::test]
async fn m7_the_waits_after_429s_double_up_to_the_maximum() {
    let upstream = Upstream::start(|_, _| async { reply(429, &[], "") }).await;
    let rest = "limits: [1000/1s]\nhealth: off\ncooldown: {base: 1ms, max: 1ms, jitter: none}\n\
        retry: {base: 50ms, factor: 2, max: 150ms, jitter: none}";
    let gateway = TestGateway::start(&[file(upstream.address, rest)]).await;
    let failed = get_with(
        gateway.address,
        "/x/a",
        &[("x-tollgate-priority", "background")],
    )
    .await;
    assert_eq!(
        (failed.status, failed.header("x-tollgate-attempts")),
        (429, "6")
    );
    let at: Vec<Micros> = upstream
        .requests()
        .iter()
        .map(|received| received.at)
        .collect();
    let gaps: Vec<Span> = at.windows(2).map(|two| two[1].since(two[0])).collect();
    let least = [50, 100, 150, 150, 150].map(Span::from_millis);
    assert!(
        gaps.iter().zip(least).all(|(gap, least)| *gap >= least),
        "{gaps:?}"
    );
}

/// A2: every count of the window, over HTTP: responses by class, connections that broke, and the
/// ratio of the failures.
#[tokio::test]
async fn a2_the_counts_of_the_window_are_shown_over_http() {
    const STATUSES: [u16; 8] = [200, 200, 404, 500, 0, 201, 503, 429];
    let upstream = RawUpstream::start(|number, mut stream| async move {
        read_head(&mut stream).await;
        match STATUSES.get(number).copied().unwrap_or(200) {
            0 => reset(stream),
            status => {
                let head = format!(
                    "HTTP/1.1 {status} Word\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
                );
                stream.write_all(head.as_bytes()).await.ok();
                stream.shutdown().await.ok();
            }
        }
    })
    .await;
    let rest = format!(
        "limits: [1000/1s]\n{NO_RETRY}\nhealth: {{scope: provider, count: attempt, min_results: 7, failure_threshold: off, p_throttle: 0.9, p_sleep: 0.95}}"
    );
    write_file("a2.yaml", &file(upstream.address, &rest));
    let daemon = TestDaemon::start(from_file("a2.yaml")).await;
    let health = async || -> Value {
        let status = daemon.request("GET", "/v1/providers/x", "").await.json();
        status["health"].clone()
    };
    for (number, status) in STATUSES.into_iter().enumerate() {
        if number == 7 {
            assert_eq!(health().await["err_rate_30s"], 0.0, "too few results");
        }
        let expected = if status == 0 { 502 } else { status };
        let path = format!("/x/{number}");
        assert_eq!(get(daemon.gateway, &path).await.status, expected);
    }
    let shown = health().await;
    let counts: BTreeMap<&str, &Value> = [
        "count_2xx",
        "count_429",
        "count_5xx",
        "count_other",
        "net_errors",
        "total",
    ]
    .map(|name| (name, &shown[name]))
    .into();
    let expected = json!({
        "count_2xx": 3, "count_429": 1, "count_5xx": 2, "count_other": 1, "net_errors": 1, "total": 7,
    });
    assert_eq!(json!(counts), expected);
    let ratio = shown["err_rate_30s"].as_f64().unwrap();
    assert!((ratio - 4.0 / 7.0).abs() < 0.001, "{ratio}");
}

/// A18, scenario 2: full jitter spreads the retries over the whole wait. Of forty, some come in its
/// first half and some in its second.
#[tokio::test]
async fn a18_2_retries_are_spread_by_full_jitter() {
    let upstream = Upstream::start(|_, received| async move {
        static SEEN: parking_lot::Mutex<Vec<String>> = parking_lot::Mutex::new(Vec::new());
        let mut seen = SEEN.lock();
        if seen.contains(&received.target) {
            return ok();
        }
        seen.push(received.target);
        reply(503, &[], "")
    })
    .await;
    let rest = "limits: [1000/1s]\nhealth: off\n\
        retry: {base: 2s, max: 2s, jitter: full, budget: {min_per_second: 100}}";
    let gateway = TestGateway::start(&[file(upstream.address, rest)]).await;
    let address = gateway.address;
    let calls: Vec<_> = (0..40)
        .map(|number| tokio::spawn(async move { get(address, &format!("/x/{number}")).await }))
        .collect();
    for call in calls {
        assert_eq!(within_timeout(call).await.unwrap().status, 200);
    }
    let mut at: BTreeMap<String, Vec<Micros>> = BTreeMap::new();
    for received in upstream.requests() {
        at.entry(received.target).or_default().push(received.at);
    }
    let gaps: Vec<Span> = at.values().map(|two| two[1].since(two[0])).collect();
    let half = Span::from_secs(1);
    assert_eq!(gaps.len(), 40);
    assert!(gaps.iter().any(|gap| *gap < half), "{gaps:?}");
    assert!(gaps.iter().any(|gap| *gap >= half), "{gaps:?}");
}

/// An upstream whose next responses have this status.
async fn switched() -> (Upstream, Arc<AtomicU16>) {
    let status = Arc::new(AtomicU16::new(200));
    let now = status.clone();
    let upstream = Upstream::start(move |_, _| {
        let status = now.load(Ordering::SeqCst);
        async move { reply(status, &[], "") }
    })
    .await;
    (upstream, status)
}

/// A18, scenario 3: 11 failures among 50 results (22 %) slow the provider down, and not before.
#[tokio::test]
async fn a18_3_eleven_failures_of_fifty_throttle_over_sockets() {
    let (upstream, status) = switched().await;
    let rest = format!(
        "limits: [1000/1s]\n{NO_RETRY}\nhealth: {{scope: provider, count: attempt, failure_threshold: off, window: 5m}}"
    );
    let gateway = TestGateway::start(&[file(upstream.address, &rest)]).await;
    let active = gateway.registry.named("x").unwrap();
    let call = async |code: u16, times: usize| {
        for _ in 0..times {
            status.store(code, Ordering::SeqCst);
            assert_eq!(get(gateway.address, "/x/a").await.status, code);
        }
    };
    call(200, 15).await;
    for _ in 0..8 {
        call(500, 1).await;
        call(200, 3).await;
    }
    call(502, 2).await;
    assert_eq!(
        active.status().state,
        HealthState::Normal,
        "once, not confirmed"
    );
    call(503, 1).await;
    let counts = active.status().counts;
    assert_eq!((counts.failures(), counts.total), (11, 50));
    assert_eq!(active.status().state, HealthState::Throttle);
}

/// A18, scenario 4: one failure among three probes → Sleep again; five of five → Normal.
#[tokio::test]
async fn a18_4_probes_decide_over_sockets() {
    let (upstream, status) = switched().await;
    let rest = format!(
        "limits: [1000/1s]\n{NO_RETRY}\nhealth: {{scope: provider, count: attempt, failure_threshold: 2, sleep_first: 1s, sleep_min: 1s, probe_rate: 100, when_blocked: reject}}"
    );
    let gateway = TestGateway::start(&[file(upstream.address, &rest)]).await;
    let active = gateway.registry.named("x").unwrap();
    let call = async |code: u16| {
        status.store(code, Ordering::SeqCst);
        assert_eq!(get(gateway.address, "/x/a").await.status, code);
    };
    let state = || active.status().state;
    call(503).await;
    call(503).await;
    assert_eq!(state(), HealthState::Sleep);
    wait_until(|| state() == HealthState::HalfOpen).await;
    call(200).await;
    call(200).await;
    assert_eq!(state(), HealthState::HalfOpen);
    call(503).await;
    assert_eq!(state(), HealthState::Sleep, "one of three failed");
    wait_until(|| state() == HealthState::HalfOpen).await;
    for _ in 0..5 {
        assert_eq!(state(), HealthState::HalfOpen);
        call(200).await;
    }
    assert_eq!(state(), HealthState::Normal, "five of five");
}

/// A18, scenario 5: connections that break slow the provider down; 404s do not.
#[tokio::test]
async fn a18_5_network_errors_throttle_and_404s_do_not_over_sockets() {
    for (breaks, expected) in [(true, HealthState::Throttle), (false, HealthState::Normal)] {
        let upstream = RawUpstream::start(move |number, mut stream| async move {
            read_head(&mut stream).await;
            let status = match number % 4 {
                3 if breaks => return reset(stream),
                3 => 404,
                _ => 200,
            };
            let head =
                format!("HTTP/1.1 {status} Word\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
            stream.write_all(head.as_bytes()).await.ok();
            stream.shutdown().await.ok();
        })
        .await;
        let rest = format!(
            "limits: [1000/1s]\n{NO_RETRY}\nhealth: {{scope: provider, count: attempt, failure_threshold: off, window: 5m, s_recover: 1000}}"
        );
        let gateway = TestGateway::start(&[file(upstream.address, &rest)]).await;
        for number in 0..40 {
            get(gateway.address, &format!("/x/{number}")).await;
        }
        let status = gateway.registry.named("x").unwrap().status();
        assert_eq!(status.state, expected, "{status:?}");
    }
}
