//! The requirements of the documents end to end: real sockets, verified by the provider's own log.
//!
//! Asserts safety, queue order and counts; never speed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use tollgate::providers::Options;
use tollgate_core::health::HealthState;
use tollgate_core::time::{Micros, Now, Span, Wall};
use tollgate_ledger::{Clock, ManualClock};
use tollgate_sim::http::{Settings, SimProvider};

use crate::client::{ClientResponse, get, get_with, post, wait_until, within_timeout};
use crate::test_gateway::{TestGateway, file};
use crate::upstream::{Upstream, ok, reply};

const NO_RETRY: &str = "retry: {retries: {high: 0, normal: 0, low: 0}}";

async fn sim(rules: &str) -> SimProvider {
    let settings = Settings::with_rules(rules).expect("rules");
    SimProvider::start(settings).await.expect("a free port")
}

fn with_priority(priority: &'static str) -> [(&'static str, &'static str); 2] {
    [
        ("x-tollgate-priority", priority),
        // Shorter than every wait here, so that the call is rejected at once.
        ("x-tollgate-timeout", "30s"),
    ]
}

/// M2: the reserve is for high-priority calls; the whole limit is never exceeded.
#[tokio::test]
async fn m2_high_priority_calls_use_the_reserve_over_sockets() {
    let provider = sim("sliding 5/1h").await;
    let rest = "limits: [{limit: 5, period: 1h, reserve: 3}]";
    let gateway = TestGateway::start(&[file(provider.address(), rest)]).await;
    let mut statuses = Vec::new();
    for priority in [
        "normal", "low", "normal", "low", "user", "high", "webhook", "high",
    ] {
        statuses.push(
            get_with(gateway.address, "/x/a", &with_priority(priority))
                .await
                .status,
        );
    }
    assert_eq!(statuses, [200, 200, 429, 429, 200, 200, 200, 429]);
    let report = provider.stop().await;
    assert_eq!((report.violations, report.accepted), (0, 5));
}

/// Starts calls one after the other, each only once the last one waits.
async fn enqueue(
    gateway: &TestGateway,
    calls: &[(&'static str, &'static str)],
) -> Vec<tokio::task::JoinHandle<ClientResponse>> {
    let active = gateway.registry.named("x").unwrap();
    let mut waiting = Vec::new();
    for &(path, priority) in calls {
        let address = gateway.address;
        waiting.push(tokio::spawn(async move {
            get_with(address, path, &[("x-tollgate-priority", priority)]).await
        }));
        wait_until(|| active.waiting() == waiting.len()).await;
    }
    waiting
}

/// Sends a first call that takes the only slot, queues others behind it, and returns their order.
async fn order(rest: &str, calls: &[(&'static str, &'static str)]) -> Vec<String> {
    let word = Arc::new(tokio::sync::Notify::new());
    let heard = word.clone();
    let upstream = Upstream::start(move |number, _| {
        let heard = heard.clone();
        async move {
            if number == 0 {
                heard.notified().await;
            }
            ok()
        }
    })
    .await;
    let gateway = TestGateway::start(&[file(upstream.address, rest)]).await;
    let first = tokio::spawn(get(gateway.address, "/x/first"));
    wait_until(|| upstream.count() == 1).await;
    let waiting = enqueue(&gateway, calls).await;
    word.notify_one();
    within_timeout(first).await.unwrap();
    for call in waiting {
        assert_eq!(within_timeout(call).await.unwrap().status, 200);
    }
    let received = upstream.requests();
    received
        .iter()
        .skip(1)
        .map(|received| received.target.clone())
        .collect()
}

/// M3, S13 (priority queue): high-priority calls overtake, and calls of one priority keep their
/// order.
#[tokio::test]
async fn m3_s13_the_order_over_sockets_is_by_priority_and_arrival() {
    let calls = [
        ("/x/low-1", "low"),
        ("/x/normal-1", "normal"),
        ("/x/low-2", "background"),
        ("/x/high-1", "ui"),
        ("/x/normal-2", "normal"),
        ("/x/high-2", "manual"),
    ];
    let order = order("concurrency: 1\nlimits: [1000/1s]", &calls).await;
    assert_eq!(
        order,
        [
            "/high-1",
            "/high-2",
            "/normal-1",
            "/normal-2",
            "/low-1",
            "/low-2"
        ]
    );
}

/// M13: in strict order no call overtakes, whatever its priority.
#[tokio::test]
async fn m13_strict_order_holds_over_sockets() {
    let calls = [("/x/1", "low"), ("/x/2", "high"), ("/x/3", "normal")];
    let rest = "concurrency: 1\nlimits: [1000/1s]\nqueue: {order: fifo}";
    assert_eq!(order(rest, &calls).await, ["/1", "/2", "/3"]);
}

/// M4: calls wait for their permits; none is rejected and none is early.
#[tokio::test]
async fn m4_calls_wait_over_sockets_until_a_permit_is_free() {
    let word = Arc::new(tokio::sync::Semaphore::new(0));
    let heard = word.clone();
    let upstream = Upstream::start(move |_, _| {
        let heard = heard.clone();
        async move {
            drop(heard.acquire().await.unwrap());
            ok()
        }
    })
    .await;
    let rest = "dedup: off\nlimits: [2/300ms]";
    let gateway = TestGateway::start(&[file(upstream.address, rest)]).await;
    let calls: Vec<_> = (0..6)
        .map(|_| tokio::spawn(get(gateway.address, "/x/a")))
        .collect();
    let active = gateway.registry.named("x").unwrap();
    // No call gets a response before all have arrived, however long that takes.
    wait_until(|| active.waiting() == 4).await;
    word.add_permits(1);
    let mut waits = Vec::new();
    for call in calls {
        let response = within_timeout(call).await.unwrap();
        assert_eq!(response.status, 200);
        waits.push(response.header("x-tollgate-wait").parse::<f64>().unwrap());
    }
    let waited = waits.iter().filter(|wait| **wait >= 0.3);
    assert_eq!(waited.count(), 4, "{waits:?}");
    let arrivals: Vec<_> = upstream
        .requests()
        .iter()
        .map(|received| received.at)
        .collect();
    for three in arrivals.windows(3) {
        let within = three[2].since(three[0]);
        assert!(within >= Span::from_millis(300), "{arrivals:?}");
    }
    assert_eq!(arrivals.len(), 6);
}

/// M7: retries by priority: high 2, normal 3, low 5.
#[tokio::test]
async fn m7_the_number_of_retries_depends_on_the_priority() {
    let upstream = Upstream::start(|_, _| async { reply(503, &[], "down") }).await;
    let rest = "limits: [1000/1s]\nhealth: off\nretry: {base: 1ms, max: 2ms, budget: {min_per_second: 100}}";
    let gateway = TestGateway::start(&[file(upstream.address, rest)]).await;
    for (priority, attempts) in [("high", "3"), ("normal", "4"), ("low", "6")] {
        let headers = [("x-tollgate-priority", priority)];
        let failed = get_with(gateway.address, "/x/a", &headers).await;
        let seen = (failed.status, failed.header("x-tollgate-attempts"));
        assert_eq!(seen, (503, attempts), "{priority}");
    }
    assert_eq!(upstream.count(), 3 + 4 + 6);
}

/// M7: a call that fails and then succeeds is a success for its caller.
#[tokio::test]
async fn m7_a_transient_failure_is_hidden_from_the_caller() {
    let upstream = Upstream::start(|number, _| async move {
        if number < 2 {
            reply(502, &[], "")
        } else {
            ok()
        }
    })
    .await;
    let rest = "limits: [1000/1s]\nretry: {base: 1ms, max: 2ms}";
    let gateway = TestGateway::start(&[file(upstream.address, rest)]).await;
    let response = get(gateway.address, "/x/a").await;
    assert_eq!(
        (response.status, response.header("x-tollgate-attempts")),
        (200, "3")
    );
}

/// M9: five failures open the breaker; after its timeout a probe and two successes close it; a
/// failure in between opens it again.
#[tokio::test]
async fn m9_the_breaker_opens_half_opens_and_closes_over_sockets() {
    let responses = Arc::new(AtomicU16::new(503));
    let now = responses.clone();
    let upstream = Upstream::start(move |_, _| {
        let status = now.load(Ordering::SeqCst);
        async move { reply(status, &[], "") }
    })
    .await;
    let rest =
        format!("limits: [1000/1s]\n{NO_RETRY}\nhealth: {{mode: breaker, reset_timeout: 1s}}");
    let gateway = TestGateway::start(&[file(upstream.address, &rest)]).await;
    let active = gateway.registry.named("x").unwrap();
    let breaker = || active.status().breaker.as_str();
    for _ in 0..5 {
        assert_eq!(breaker(), "closed");
        get(gateway.address, "/x/a").await;
    }
    assert_eq!((breaker(), upstream.count()), ("open", 5));
    let rejected = get(gateway.address, "/x/a").await;
    assert_eq!((rejected.status, upstream.count()), (503, 5), "at once");
    assert_eq!(rejected.json()["error"], "ProviderUnavailableError");
    wait_until(|| breaker() == "half_open").await;
    // What may have acted is not sent twice; anything else would be the next test too.
    post(gateway.address, "/x/a", &[], "{}").await;
    assert_eq!(
        (breaker(), upstream.count()),
        ("open", 6),
        "one failure opens it again"
    );
    responses.store(200, Ordering::SeqCst);
    wait_until(|| breaker() == "half_open").await;
    assert_eq!(get(gateway.address, "/x/a").await.status, 200);
    assert_eq!(breaker(), "half_open");
    assert_eq!(get(gateway.address, "/x/a").await.status, 200);
    assert_eq!(breaker(), "closed");
}

/// A5: during sleep nothing is sent; a call that cannot wait is rejected at once, with the retry
/// time.
#[tokio::test]
async fn a5_a_sleeping_provider_gets_no_calls() {
    let upstream = Upstream::start(|_, _| async { reply(503, &[], "") }).await;
    let rest = format!(
        "limits: [1000/1s]\n{NO_RETRY}\nhealth: {{failure_threshold: 2, sleep_first: 10m, sleep_max: 1h}}"
    );
    let gateway = TestGateway::start(&[file(upstream.address, &rest)]).await;
    for _ in 0..2 {
        get(gateway.address, "/x/a").await;
    }
    for priority in ["high", "normal", "low"] {
        let rejected = get_with(gateway.address, "/x/a", &with_priority(priority)).await;
        let body = rejected.json();
        assert_eq!(
            (rejected.status, &body["health"]),
            (503, &"sleep".into()),
            "{body}"
        );
        let reset_in = body["resetIn"].as_u64().unwrap();
        assert!((500_000..=600_000).contains(&reset_in), "{reset_in}");
        assert_eq!(
            rejected.header("retry-after"),
            reset_in.div_ceil(1_000).to_string()
        );
    }
    assert_eq!(upstream.count(), 2);
}

/// A9: `Retry-After` as a date, in the past, and invalid.
#[tokio::test]
async fn a9_retry_after_is_applied_in_every_form() {
    // The provider's clock is an hour ahead; its own `Date` says so.
    let now = Clock::System.now().wall.0 / 1_000_000 + 3_600;
    let http_date = |seconds| {
        let since = std::time::Duration::from_secs(now + seconds);
        httpdate::fmt_http_date(std::time::UNIX_EPOCH + since)
    };
    let (sent, later, past) = (http_date(0), http_date(45), http_date(0));
    for (value, low, high) in [
        (later.as_str(), 44, 45),
        (past.as_str(), 1, 1),
        ("0", 1, 1),
        ("90", 89, 90),
        ("-5", 1, 2),
        ("soon", 1, 2),
    ] {
        let headers = [
            ("retry-after".to_owned(), value.to_owned()),
            ("date".to_owned(), sent.clone()),
        ];
        let upstream = Upstream::start(move |_, _| {
            let headers = headers.clone();
            async move {
                let lines = headers
                    .each_ref()
                    .map(|(name, value)| (name.as_str(), value.as_str()));
                reply(429, &lines, "")
            }
        })
        .await;
        let rest = format!("limits: [100/1s]\n{NO_RETRY}\ncooldown: {{base: 1s, jitter: none}}");
        // A manual clock: the shortest of these cool-downs is a second.
        let clock = Clock::Manual(ManualClock::new(Clock::System.now()));
        let files = [file(upstream.address, &rest)];
        let gateway = TestGateway::start_on_clock(clock, &files, Options::default()).await;
        assert_eq!(get(gateway.address, "/x/a").await.status, 429);
        let soon = [("x-tollgate-timeout", "900ms")];
        let rejected = get_with(gateway.address, "/x/a", &soon).await;
        assert_eq!(rejected.json()["reason"], "cooldown", "{value}");
        let after: u64 = rejected.header("retry-after").parse().unwrap();
        assert!((low..=high).contains(&after), "{value}: {after}");
        assert_eq!(upstream.count(), 1, "{value}");
    }
}

/// A12: the document's token bucket and concurrency limit, verified by the provider's own log.
#[tokio::test]
async fn a12_the_token_bucket_of_the_documents_holds_over_sockets() {
    let provider = sim("bucket 35/1s burst 35, in-flight 4").await;
    let rest = "dedup: off\nlimits: [{limit: 35, period: 1s, algorithm: token-bucket, burst: 35}]\nconcurrency: 4";
    let gateway = TestGateway::start(&[file(provider.address(), rest)]).await;
    let calls: Vec<_> = (0..60)
        .map(|_| tokio::spawn(get(gateway.address, "/x/a")))
        .collect();
    for call in calls {
        assert_eq!(within_timeout(call).await.unwrap().status, 200);
    }
    let report = provider.stop().await;
    assert_eq!((report.violations, report.accepted), (0, 60));
}

/// C10, C13: a cost cap by `X-Tollgate-Cost`, decided with the other limits: a rejected call
/// charges no other limit.
#[tokio::test]
async fn c10_c13_costs_are_capped_per_day() {
    let upstream = Upstream::start(|_, _| async { ok() }).await;
    let rest =
        "limits: [3/1h, {name: spend, limit: 100, period: 1d, algorithm: calendar, unit: points}]";
    // Noon: a test that runs at midnight would have two days.
    let noon = ManualClock::new(Now {
        at: Micros(1_000_000_000),
        wall: Wall(1_794_744_000_000_000),
    });
    let files = [file(upstream.address, rest)];
    let gateway =
        TestGateway::start_on_clock(Clock::Manual(noon), &files, Options::default()).await;
    let mut seen = Vec::new();
    for cost in [
        "points=60",
        "points=60",
        "points=50",
        "points=40",
        "points=101",
    ] {
        let headers = [("x-tollgate-cost", cost), ("x-tollgate-timeout", "30s")];
        let response = get_with(gateway.address, "/x/a", &headers).await;
        seen.push((
            response.status,
            response.header("x-tollgate-decision").to_owned(),
        ));
    }
    let (allow, reject) = ("allow".to_owned(), "reject".to_owned());
    let [go, no] = [(200, allow), (429, reject)];
    assert_eq!(seen, [go.clone(), no.clone(), no.clone(), go, no]);
    assert_eq!(upstream.count(), 2);
    let left = get_with(
        gateway.address,
        "/x/a",
        &[
            ("x-tollgate-cost", "points=1"),
            ("x-tollgate-timeout", "30s"),
        ],
    )
    .await;
    assert_eq!(
        left.json()["limit"],
        "spend",
        "of three calls one remains, so it is not `3/1h`"
    );
}

/// H4: without `upstream` a URL goes to its own host, under the limits of its domain.
#[tokio::test]
async fn h4_a_url_goes_to_its_own_host_and_is_governed() {
    let upstream = Upstream::start(|_, _| async { ok() }).await;
    let options = Options {
        private: true,
        ..Options::default()
    };
    let local = "name: x\ndomain: localhost\nlimits: [1/1h]\n".to_owned();
    let gateway = TestGateway::start_with(&[local], options).await;
    let url = format!("/http://localhost:{}/a", upstream.address.port());
    assert_eq!(get(gateway.address, &url).await.status, 200);
    assert_eq!(
        get_with(gateway.address, &url, &with_priority("normal"))
            .await
            .status,
        429
    );
    let received = upstream.requests();
    let host = format!("localhost:{}", upstream.address.port());
    assert_eq!(
        (received.len(), &received[0].headers["host"]),
        (1, &host.parse().unwrap())
    );
}

/// A3: calls to a throttled provider are paced and continue.
#[tokio::test]
async fn a3_calls_to_a_throttled_provider_are_paced_over_sockets() {
    let upstream = Upstream::start(|number, _| async move {
        if number % 2 == 1 && number < 10 {
            reply(500, &[], "")
        } else {
            ok()
        }
    })
    .await;
    let rest = format!(
        "dedup: off\nlimits: [1000/1s]\n{NO_RETRY}\nhealth: {{min_results: 4, throttle_factor: 0.01, throttle_min_rate: 5, failure_threshold: off, s_recover: 1000, p_sleep_for: 1h}}"
    );
    let gateway = TestGateway::start(&[file(upstream.address, &rest)]).await;
    let active = gateway.registry.named("x").unwrap();
    while active.status().state == HealthState::Normal {
        get(gateway.address, "/x/a").await;
        assert!(upstream.count() < 20, "{:?}", active.status());
    }
    assert_eq!(active.status().state, HealthState::Throttle);
    let began = Clock::System.now().at;
    let calls: Vec<_> = (0..6)
        .map(|_| tokio::spawn(get(gateway.address, "/x/a")))
        .collect();
    for call in calls {
        within_timeout(call).await.unwrap();
    }
    // Ten a second: whenever the first of them goes, five gaps of 100 ms follow.
    let took = upstream.requests().last().unwrap().at.since(began);
    assert!(took >= Span::from_millis(490), "{took}");
}

/// `rewrite_links: false`: links are the provider's own.
#[tokio::test]
async fn rewrite_links_false_leaves_links_unchanged() {
    let upstream = Upstream::start(|_, _| async {
        reply(
            201,
            &[
                ("location", "/b?p=2"),
                ("link", "</c>; rel=next"),
                ("content-location", "/d"),
            ],
            "",
        )
    })
    .await;
    for (rewrite, expected) in [
        (
            "rewrite_links: true",
            ["/x/b?p=2", "</x/c>; rel=next", "/x/d"],
        ),
        ("rewrite_links: false", ["/b?p=2", "</c>; rel=next", "/d"]),
    ] {
        let rest = format!("limits: [100/1s]\n{rewrite}");
        let gateway = TestGateway::start(&[file(upstream.address, &rest)]).await;
        let response = get(gateway.address, "/x/a").await;
        let links = ["location", "link", "content-location"].map(|name| response.header(name));
        assert_eq!(links, expected);
    }
}
