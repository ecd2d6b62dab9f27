//! Rate headers: the remaining quota, in every response and every rejection.

use tollgate::providers::Options;
use tollgate_ledger::Clock;

use crate::client::{get, get_with, wait_until, within_timeout};
use crate::flights::{gated, plain, spawn_get_with};
use crate::test_gateway::{TestGateway, file};
use crate::upstream::{Upstream, ok, reply};

fn epoch() -> u64 {
    Clock::System.now().wall.0 / 1_000_000
}

#[tokio::test]
async fn a_response_reports_the_remaining_quota_of_every_limit() {
    let upstream = Upstream::start(|_, _| async { ok() }).await;
    let rest = "limits: [50/10s, {name: daily, limit: 5, period: 1h}, \
        {name: tpm, limit: 1000, period: 1m, unit: tokens}]\nconcurrency: 4";
    let gateway = TestGateway::start(&[file(upstream.address, rest)]).await;
    let began = epoch();
    let first = get_with(gateway.address, "/x/a", &[("x-tollgate-cost", "tokens=10")]).await;
    assert_eq!(
        first.header("ratelimit-policy"),
        "\"50/10s\";q=50;w=10, \"daily\";q=5;w=3600, \"tpm\";q=1000;qu=\"tokens\";w=60, \
         \"concurrency\";q=4;qu=\"concurrent-requests\""
    );
    assert_eq!(
        first.header("ratelimit"),
        "\"50/10s\";r=49;t=10, \"daily\";r=4;t=3600, \"tpm\";r=990;t=60, \"concurrency\";r=3"
    );
    let plain = ["x-ratelimit-limit", "x-ratelimit-remaining"].map(|name| first.header(name));
    assert_eq!(plain, ["5", "4"], "the tightest");
    let reset: u64 = first.header("x-ratelimit-reset").parse().unwrap();
    assert!(
        (began + 3_600..=epoch() + 3_601).contains(&reset),
        "{reset}"
    );
    let second = get(gateway.address, "/x/a").await;
    assert_eq!(second.header("x-ratelimit-remaining"), "3");
}

#[tokio::test]
async fn a_rejection_names_the_limit_and_its_reset_time() {
    let upstream = Upstream::start(|_, _| async { ok() }).await;
    let gateway = TestGateway::start(&[file(upstream.address, "limits: [100/1s, 1/30s]")]).await;
    get(gateway.address, "/x/a").await;
    let rejected = get_with(gateway.address, "/x/a", &[("x-tollgate-timeout", "5s")]).await;
    let after: u64 = rejected.header("retry-after").parse().unwrap();
    assert_eq!(
        rejected.header("ratelimit"),
        format!("\"1/30s\";r=0;t={after}")
    );
    assert_eq!(
        rejected.header("ratelimit-policy"),
        "\"100/1s\";q=100;w=1, \"1/30s\";q=1;w=30"
    );
    let plain = ["x-ratelimit-limit", "x-ratelimit-remaining"].map(|name| rejected.header(name));
    assert_eq!(plain, ["1", "0"]);
    let reset: u64 = rejected.header("x-ratelimit-reset").parse().unwrap();
    assert!((epoch() + 15..=epoch() + 32).contains(&reset), "{reset}");
}

/// SDKs of the provider read its headers: if it sends its own, ours are omitted.
#[tokio::test]
async fn rate_headers_of_the_upstream_are_not_changed() {
    let theirs = [
        ("x-ratelimit-remaining", "7"),
        ("ratelimit", "\"theirs\";r=7;t=9"),
    ];
    let upstream =
        Upstream::start(move |number, _| async move { reply(200, &[theirs[number % 2]], "") })
            .await;
    let gateway = TestGateway::start(&[file(upstream.address, "limits: [100/1h]")]).await;
    let plain = get(gateway.address, "/x/a").await;
    assert_eq!(plain.header("x-ratelimit-remaining"), "7");
    assert_eq!(
        (
            plain.header("x-ratelimit-limit"),
            plain.header("x-ratelimit-reset")
        ),
        ("", "")
    );
    assert_eq!(plain.header("ratelimit"), "\"100/1h\";r=99;t=3600");
    let fields = get(gateway.address, "/x/a").await;
    assert_eq!(
        (
            fields.header("ratelimit"),
            fields.header("ratelimit-policy")
        ),
        ("\"theirs\";r=7;t=9", "")
    );
    assert_eq!(fields.header("x-ratelimit-limit"), "100");
    assert_eq!(
        fields.header("x-ratelimit-remaining"),
        "6",
        "what it said is believed"
    );
}

#[tokio::test]
async fn calls_without_limits_have_no_rate_headers() {
    let upstream = Upstream::start(|_, _| async { ok() }).await;
    let options = Options {
        private: true,
        ..Options::default()
    };
    let gateway = TestGateway::start_with(&[], options).await;
    for path in [
        format!("/http://{}/a", upstream.address),
        "/health".to_owned(),
        "/nobody/a".to_owned(),
    ] {
        let response = get(gateway.address, &path).await;
        let has_rates = response
            .headers
            .keys()
            .any(|name| name.as_str().contains("ratelimit"));
        assert!(!has_rates, "{response:?}");
    }
}

/// A background call that a higher-priority follower joins is decided under other limits: its
/// response reports those, with their remaining quota.
#[tokio::test]
async fn a_promoted_call_reports_the_limits_of_its_new_priority() {
    let (upstream, word) = gated(plain).await;
    let rest = "concurrency: {normal: 2, low: 1}\nlimits: [100/1s]";
    let gateway = TestGateway::start(&[file(upstream.address, rest)]).await;
    let active = gateway.registry.named("x").unwrap();
    let low = ("x-tollgate-priority", "low");
    let busy = spawn_get_with(&gateway, "/x/busy", &[low]);
    wait_until(|| upstream.count() == 1).await;
    let raised = spawn_get_with(&gateway, "/x/a", &[low]);
    wait_until(|| active.waiting() == 1).await;
    let joiner = spawn_get_with(&gateway, "/x/a", &[("x-tollgate-priority", "high")]);
    wait_until(|| upstream.count() == 2).await;
    let mut policies = Vec::new();
    for call in [busy, raised, joiner] {
        wait_until(|| {
            word.notify_one();
            call.is_finished()
        })
        .await;
        let response = within_timeout(call).await.unwrap();
        let policy = response.header("ratelimit-policy").to_owned();
        policies.push(policy.matches("concurrent-requests").count());
    }
    assert_eq!(policies[..2], [2, 1]);
}
