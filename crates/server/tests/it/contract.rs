//! The contract of rejections: every error and reason, with its status, JSON and headers.

use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tollgate::providers::{Options, Unknown};
use tollgate_core::health::Command;
use tollgate_core::time::Span;
use tollgate_ledger::{Clock, Ledger};

use crate::client::{ClientResponse, get, get_until_late, get_with, wait_until, within_timeout};
use crate::test_gateway::{TestGateway, file};
use crate::upstream::{Upstream, ok, reply};
use tollgate_sim::test_host::free_address;

const NO_RETRY: &str = "retry: {retries: {high: 0, normal: 0, low: 0}}";

/// The expected rejection.
struct Expected {
    status: u16,
    error: &'static str,
    reason: Option<&'static str>,
    /// The time to come back is known.
    is_timed: bool,
}

fn expected(
    status: u16,
    error: &'static str,
    reason: Option<&'static str>,
    is_timed: bool,
) -> Expected {
    Expected {
        status,
        error,
        reason,
        is_timed,
    }
}

/// The checks for every rejection except M10's.
fn check(rejected: &ClientResponse, expected: &Expected) {
    let body = rejected.json();
    let what = format!("{rejected:?}");
    assert_eq!(rejected.status, expected.status, "{what}");
    assert_eq!(body["error"], expected.error, "{what}");
    assert_eq!(
        body.get("reason").and_then(Value::as_str),
        expected.reason,
        "{what}"
    );
    for field in ["message", "hint", "id"] {
        let text = body[field].as_str().unwrap_or_default();
        assert!(!text.is_empty(), "{field}: {what}");
    }
    assert_eq!(body["id"], rejected.header("x-tollgate-id"), "{what}");
    assert_eq!(
        rejected.header("content-type"),
        "application/json",
        "{what}"
    );
    assert_eq!(rejected.header("x-tollgate-source"), "tollgate", "{what}");
    assert_eq!(rejected.header("x-tollgate-decision"), "reject", "{what}");
    rejected
        .header("x-tollgate-attempts")
        .parse::<u32>()
        .unwrap();
    let waited = rejected.header("x-tollgate-wait");
    assert!(
        waited.parse::<f64>().is_ok() && waited.split('.').nth(1).unwrap().len() == 3,
        "{what}"
    );
    let is_known = |field: &String| {
        [
            "error", "message", "hint", "id", "provider", "entity", "limit", "reason", "retryIn",
        ]
        .contains(&field.as_str())
    };
    assert!(body.as_object().unwrap().keys().all(is_known), "{what}");
    let retry_in = body.get("retryIn").and_then(Value::as_u64);
    assert_eq!(retry_in.is_some(), expected.is_timed, "{what}");
    times_agree(rejected, retry_in);
}

fn times_agree(rejected: &ClientResponse, millis: Option<u64>) {
    let after = rejected.header("retry-after").parse().ok();
    let after_ms = rejected.header("retry-after-ms").parse().ok();
    assert_eq!(
        (after, after_ms),
        (millis.map(|ms| ms.div_ceil(1_000)), millis),
        "{rejected:?}"
    );
    let is_long = millis.is_some_and(|ms| ms > 60_000);
    assert_eq!(
        rejected.header("x-should-retry") == "false",
        is_long,
        "{rejected:?}"
    );
}

async fn fine() -> Upstream {
    Upstream::start(|_, _| async { ok() }).await
}

/// Never responds.
async fn silent() -> Upstream {
    Upstream::start(|_, _| async { std::future::pending().await }).await
}

async fn get_with_short_timeout(gateway: &TestGateway, headers: &[(&str, &str)]) -> ClientResponse {
    // Shorter than every wait here, so that the call is rejected at once.
    let mut all = vec![("x-tollgate-timeout", "10s")];
    all.extend_from_slice(headers);
    within_timeout(get_with(gateway.address, "/x/a", &all)).await
}

#[tokio::test]
async fn a_limit_is_429_with_its_name_and_time() {
    let upstream = fine().await;
    for (limits, is_long) in [("limits: [1/30s]", false), ("limits: [1/1h]", true)] {
        let gateway = TestGateway::start(&[file(upstream.address, limits)]).await;
        get(gateway.address, "/x/a").await;
        let rejected = get_with_short_timeout(&gateway, &[]).await;
        check(
            &rejected,
            &expected(429, "RateLimitExceeded", Some("limit"), true),
        );
        let body = rejected.json();
        assert_eq!(
            (&body["provider"], &body["entity"]),
            (&json!("x"), &json!("a"))
        );
        assert_eq!(rejected.header("x-should-retry") == "false", is_long);
    }
}

#[tokio::test]
async fn a_cooldown_is_429() {
    let upstream = Upstream::start(|_, _| async { reply(429, &[("retry-after", "70")], "") }).await;
    let rest = format!("limits: [100/1s]\n{NO_RETRY}");
    let gateway = TestGateway::start(&[file(upstream.address, &rest)]).await;
    assert_eq!(
        get(gateway.address, "/x/a")
            .await
            .header("x-tollgate-source"),
        "upstream"
    );
    let rejected = get_with_short_timeout(&gateway, &[]).await;
    check(
        &rejected,
        &expected(429, "RateLimitExceeded", Some("cooldown"), true),
    );
    assert_eq!(rejected.json()["limit"], json!(null));
}

/// The concurrency limit is reached: a call without time to wait is rejected at once; a call with
/// time waits until its deadline, and is told what held it.
#[tokio::test]
async fn a_concurrency_limit_is_429_without_a_time_and_504_after_the_deadline() {
    let upstream = silent().await;
    let rest = "dedup: off\nconcurrency: 1\nlimits: [100/1s]";
    let gateway = TestGateway::start(&[file(upstream.address, rest)]).await;
    let _first = tokio::spawn(get(gateway.address, "/x/a"));
    wait_until(|| upstream.count() == 1).await;
    let late = get_until_late(gateway.address, "/x/a").await;
    check(
        &late,
        &expected(504, "DeadlineExceeded", Some("concurrency"), true),
    );
    assert_eq!(late.json()["limit"], "concurrency");
    let rejected = get_with(gateway.address, "/x/a", &[("x-tollgate-timeout", "0s")]).await;
    check(
        &rejected,
        &expected(429, "RateLimitExceeded", Some("concurrency"), true),
    );
    assert_eq!(rejected.json()["limit"], "concurrency");
}

/// A call whose time runs out while it waits for nothing but a connection was told only that its time
/// was over.
#[tokio::test]
async fn a_call_that_waits_too_long_for_a_connection_learns_so() {
    let upstream = silent().await;
    let rest = "dedup: off\nconnections: 1\nlimits: [100/1s]";
    let gateway = TestGateway::start(&[file(upstream.address, rest)]).await;
    let _first = tokio::spawn(get(gateway.address, "/x/a"));
    wait_until(|| upstream.count() == 1).await;
    let late = get_until_late(gateway.address, "/x/a").await;
    check(
        &late,
        &expected(504, "DeadlineExceeded", Some("concurrency"), true),
    );
    let json = late.json();
    assert_eq!(json["limit"], "connections");
    let names = |field: &str, part: &str| json[field].as_str().unwrap().contains(part);
    assert!(
        names("message", "all connections to the provider are in use"),
        "{json}"
    );
    assert!(names("hint", "raise `connections`"), "{json}");
    assert_eq!(late.header("x-tollgate-decision"), "reject");
}

/// The hint of a pause without an end was to raise the call's own time.
#[tokio::test]
async fn a_call_that_waits_for_an_operator_learns_so() {
    let upstream = fine().await;
    let gateway = TestGateway::start(&[file(upstream.address, "limits: [100/1s]")]).await;
    let active = gateway.registry.named("x").unwrap();
    active.apply_command(Command::Pause { lasts: None });
    let late = get_until_late(gateway.address, "/x/a").await;
    check(
        &late,
        &expected(504, "DeadlineExceeded", Some("sleep"), false),
    );
    let json = late.json();
    let names = |field: &str, part: &str| json[field].as_str().unwrap().contains(part);
    assert!(
        names("message", "an operator has paused the provider"),
        "{json}"
    );
    assert!(names("hint", "tollgate resume x"), "{json}");
    assert_eq!(upstream.count(), 0);
}

/// Hours that begin two hours from now.
fn later() -> String {
    let hour = Clock::System.now().wall.0 / 3_600_000_000 % 24;
    format!("\"{:02}:00-{:02}:00\"", (hour + 2) % 24, (hour + 3) % 24)
}

#[tokio::test]
async fn off_peak_hours_are_429_for_background_calls_only() {
    let upstream = fine().await;
    let rest = format!("limits: [100/1s]\noff_peak: {{hours: {}}}", later());
    let gateway = TestGateway::start(&[file(upstream.address, &rest)]).await;
    let rejected = get_with_short_timeout(&gateway, &[("x-tollgate-priority", "background")]).await;
    check(
        &rejected,
        &expected(429, "RateLimitExceeded", Some("off_peak"), true),
    );
    assert_eq!(get(gateway.address, "/x/a").await.status, 200);
}

#[tokio::test]
async fn a_cost_above_the_limit_is_429_without_a_time() {
    let upstream = fine().await;
    let rest = "limits: [{name: tpm, limit: 100, period: 1m, unit: tokens}]";
    let gateway = TestGateway::start(&[file(upstream.address, rest)]).await;
    let rejected = get_with_short_timeout(&gateway, &[("x-tollgate-cost", "tokens=101")]).await;
    check(
        &rejected,
        &expected(429, "RateLimitExceeded", Some("too_costly"), false),
    );
    assert_eq!(rejected.json()["limit"], "tpm");
}

#[tokio::test]
async fn a_full_queue_is_503() {
    let upstream = fine().await;
    let rest = "dedup: off\nlimits: [1/1h]\nqueue: {max: 1, timeout: 2h}";
    let gateway = TestGateway::start(&[file(upstream.address, rest)]).await;
    get(gateway.address, "/x/a").await;
    let _waits: JoinHandle<ClientResponse> = tokio::spawn(get(gateway.address, "/x/a"));
    let active = gateway.registry.named("x").unwrap();
    wait_until(|| active.waiting() == 1).await;
    let rejected = get_with(gateway.address, "/x/a", &[("x-tollgate-timeout", "2h")]).await;
    check(
        &rejected,
        &expected(503, "QueueFull", Some("queue_full"), true),
    );
}

/// S6 over sockets: in degrade mode only the cache is used, and the response says so.
#[tokio::test]
async fn s6_degrade_mode_is_504_with_the_degraded_header() {
    let upstream = fine().await;
    let rest = "limits: [10/1h]\ndegrade: {below: 9, recover: 10}";
    let gateway = TestGateway::start(&[file(upstream.address, rest)]).await;
    while get(gateway.address, "/x/a").await.status == 200 {
        assert!(upstream.count() < 5, "it degrades at two calls");
    }
    let rejected = get(gateway.address, "/x/a").await;
    check(
        &rejected,
        &expected(504, "NotInCache", Some("degraded"), true),
    );
    assert_eq!(rejected.header("x-tollgate-degraded"), "true");
    assert_eq!(upstream.count(), 2);
}

#[tokio::test]
async fn a_miss_in_cache_only_mode_is_504() {
    let upstream = fine().await;
    let gateway = TestGateway::start(&[file(upstream.address, "limits: [100/1s]")]).await;
    let rejected = get_with_short_timeout(&gateway, &[("x-tollgate-cache", "only")]).await;
    check(
        &rejected,
        &expected(504, "NotInCache", Some("cache_only"), false),
    );
    assert_eq!(upstream.count(), 0);
}

/// Every deadline header is applied, and a deadline that passes upstream is 504.
#[tokio::test]
async fn each_of_four_headers_sets_a_deadline() {
    let upstream = silent().await;
    let rest = format!("limits: [100/1s]\n{NO_RETRY}");
    let gateway = TestGateway::start(&[file(upstream.address, &rest)]).await;
    let calls = [
        ("x-tollgate-timeout", "80ms", 80),
        ("x-stainless-read-timeout", "1", 1_000),
        ("x-envoy-expected-rq-timeout-ms", "80", 80),
        ("grpc-timeout", "80m", 80),
    ]
    .map(|(name, value, millis)| {
        tokio::spawn(async move {
            let began = Clock::System.now().at;
            let late = within_timeout(get_with(gateway.address, "/x/a", &[(name, value)])).await;
            check(
                &late,
                &expected(504, "DeadlineExceeded", Some("deadline"), false),
            );
            let took = Clock::System.now().at.since(began);
            assert!(took >= Span::from_millis(millis), "{name}: {took}");
            assert!(took < Span::from_millis(millis + 20_000), "{name}: {took}");
        })
    });
    for call in calls {
        call.await.unwrap();
    }
}

/// A longer time than Tollgate waits was cut to a day in silence.
#[tokio::test]
async fn a_timeout_above_a_day_is_400() {
    let upstream = fine().await;
    let gateway = TestGateway::start(&[file(upstream.address, "limits: [100/1s]")]).await;
    for (time, status) in [("24h", 200), ("1d", 200), ("25h", 400), ("2d", 400)] {
        let response = get_with(gateway.address, "/x/a", &[("x-tollgate-timeout", time)]).await;
        assert_eq!(response.status, status, "{time}: {response:?}");
    }
}

/// A wait known to pass the deadline is rejected at once, not after it.
#[tokio::test]
async fn a_wait_known_to_pass_the_deadline_is_rejected_at_once() {
    let upstream = fine().await;
    let gateway = TestGateway::start(&[file(upstream.address, "limits: [1/1h]")]).await;
    get(gateway.address, "/x/a").await;
    let began = Clock::System.now().at;
    let rejected = get_with(gateway.address, "/x/a", &[("x-tollgate-timeout", "50s")]).await;
    assert_eq!(rejected.json()["reason"], "limit");
    assert!(Clock::System.now().at.since(began) < Span::from_secs(40));
}

#[tokio::test]
async fn errors_that_are_not_limits_have_their_own_codes() {
    let options = Options {
        unknown: Unknown::Refuse,
        private: true,
        ..Options::default()
    };
    let dead = file(
        "127.0.0.1:9".parse().unwrap(),
        &format!("{NO_RETRY}\nlimits: [100/1s]"),
    );
    let homeless = "name: homeless\nacquire_only: true\nlimits: [100/1s]\n".to_owned();
    let gateway = TestGateway::start_with(&[dead, homeless], options).await;
    for (path, headers, wanted) in [
        ("/x/a", vec![], expected(502, "UpstreamError", None, false)),
        (
            "/nobody/a",
            vec![],
            expected(404, "UnknownProvider", None, false),
        ),
        ("/x/%zz", vec![], expected(400, "BadRequest", None, false)),
        (
            "/homeless/a",
            vec![],
            expected(400, "BadRequest", None, false),
        ),
        (
            "/x/a",
            vec![("x-tollgate-timeout", "soon")],
            expected(400, "BadRequest", None, false),
        ),
        (
            "/x/a",
            vec![("x-tollgate-priority", "vip")],
            expected(400, "BadRequest", None, false),
        ),
        (
            "/x/a",
            vec![("x-tollgate-cost", "many")],
            expected(400, "BadRequest", None, false),
        ),
        (
            "/x/a",
            vec![("x-tollgate-caller", "a b")],
            expected(400, "BadRequest", None, false),
        ),
        (
            "/http://a..b/c",
            vec![],
            expected(400, "BadRequest", None, false),
        ),
        (
            "/https://elsewhere.example/a",
            vec![],
            expected(403, "DomainNotAllowed", None, false),
        ),
    ] {
        check(&get_with(gateway.address, path, &headers).await, &wanted);
    }
}

/// A call that would loop back, by any route.
#[tokio::test]
async fn a_loop_is_508() {
    let own = free_address();
    let options = Options {
        private: true,
        ..Options::default()
    };
    let files = [file(own, &format!("limits: [100/1s]\n{NO_RETRY}"))];
    let mut gateway = TestGateway::start_with(&files, options).await;
    gateway
        .gateway
        .listen(own, tollgate_server::ListenerKind::All)
        .await
        .unwrap();
    for path in [
        "/x/a".to_owned(),
        format!("/http://{own}/x/a"),
        format!("/http://localhost:{}/a", own.port()),
        format!("/http://{}/http://{own}/a", gateway.address),
    ] {
        check(
            &get(gateway.address, &path).await,
            &expected(508, "LoopDetected", None, false),
        );
    }
}

/// The store is lost: the rejection does not blame a limit.
#[tokio::test]
async fn a_lost_store_is_503() {
    let upstream = fine().await;
    let name = format!("lost_store-{}", std::process::id());
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let ledger = Ledger::sqlite(&folder, Clock::System).unwrap();
    let files = [file(upstream.address, "limits: [100/1s]")];
    let gateway = TestGateway::start_on_ledger(ledger.clone(), &files, Options::default()).await;
    assert_eq!(get(gateway.address, "/x/a").await.status, 200);
    let lock = std::fs::File::options()
        .write(true)
        .open(folder.join("ledger.lock"))
        .unwrap();
    lock.lock().unwrap();
    let short = [("x-tollgate-timeout", "30s")];
    let first = within_timeout(get_with(gateway.address, "/x/a", &short)).await;
    check(
        &first,
        &expected(503, "StoreLost", Some("store_lost"), true),
    );
    lock.unlock().unwrap();
    wait_until(|| ledger.loss_reason().is_none()).await;
    assert_eq!(
        get(gateway.address, "/x/a").await.status,
        200,
        "it is back by itself"
    );
}
