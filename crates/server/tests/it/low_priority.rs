//! M12 over sockets: background calls run with lower concurrency, and in their hours only.

use tokio::sync::Notify;
use tollgate_ledger::Clock;

use crate::client::{get_with, wait_until, within_timeout};
use crate::test_gateway::{TestGateway, file};
use crate::upstream::{Upstream, ok};

const LOW: (&str, &str) = ("x-tollgate-priority", "background");

/// M12: background calls have a lower concurrency and leave the other slots to other calls.
#[tokio::test]
async fn m12_background_calls_run_with_lower_concurrency() {
    static WORD: Notify = Notify::const_new();
    let upstream = Upstream::start(|_, _| async {
        WORD.notified().await;
        ok()
    })
    .await;
    let rest = "concurrency: {normal: 4, low: 2}\nlimits: [100/1s]";
    let gateway = TestGateway::start(&[file(upstream.address, rest)]).await;
    let active = gateway.registry.named("x").unwrap();
    let address = gateway.address;
    let ask = |path: String, headers: &'static [(&str, &str)]| {
        tokio::spawn(async move { get_with(address, &path, headers).await })
    };
    let mut calls: Vec<_> = (0..6).map(|n| ask(format!("/x/low/{n}"), &[LOW])).collect();
    wait_until(|| upstream.count() == 2 && active.waiting() == 4).await;
    calls.extend((0..3).map(|n| ask(format!("/x/normal/{n}"), &[])));
    wait_until(|| upstream.count() == 4 && active.waiting() == 5).await;
    let is_low = |target: &str| target.starts_with("/low");
    let low = || {
        upstream
            .requests()
            .iter()
            .filter(|received| is_low(&received.target))
            .count()
    };
    assert_eq!(low(), 2, "two places of four");
    for call in calls {
        wait_until(|| {
            WORD.notify_one();
            call.is_finished()
        })
        .await;
        assert_eq!(within_timeout(call).await.unwrap().status, 200);
    }
    assert_eq!(upstream.count(), 9);
}

/// A window of the day from now, in minutes; over midnight if it must be.
fn hours(from: u64, to: u64) -> String {
    let minute = Clock::System.now().wall.0 / 60_000_000;
    let at = |minutes: u64| {
        let minute = (minute + minutes) % 1_440;
        format!("{:02}:{:02}", minute / 60, minute % 60)
    };
    format!("{}-{}", at(from), at(to))
}

/// M12: outside the hours a background call waits or gets their start as its retry time; other
/// calls are sent.
#[tokio::test]
async fn m12_background_calls_are_sent_in_off_peak_hours_only() {
    let upstream = Upstream::start(|_, _| async { ok() }).await;
    for (from, to, applies_to, low, normal) in [
        (120, 180, "low", 429, 200),
        (120, 180, "normal", 429, 429),
        (1_380, 60, "low", 200, 200),
        (1_380, 60, "high", 200, 200),
    ] {
        let hours = hours(from, to);
        let rest = format!(
            "off_peak: {{hours: \"{hours}\", timezone: UTC, applies_to: {applies_to}}}\nlimits: [100/1s]"
        );
        let gateway = TestGateway::start(&[file(upstream.address, &rest)]).await;
        let background = get_with(gateway.address, "/x/a", &[LOW]).await;
        assert_eq!(background.status, low, "{rest}");
        if low == 429 {
            assert_eq!(background.json()["reason"], "off_peak");
            let wait: u64 = background.header("retry-after").parse().unwrap();
            assert!((7_000..=7_200).contains(&wait), "{wait}");
        }
        let other = get_with(gateway.address, "/x/b", &[]).await;
        assert_eq!(other.status, normal, "{rest}");
    }
}
