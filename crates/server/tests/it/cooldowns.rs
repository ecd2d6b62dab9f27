//! Providers that limit or fail: cool-downs hold, calls wait through outages, and then continue.

use serde_json::json;
use tollgate::providers::Options;
use tollgate_core::health::HealthState;
use tollgate_core::time::Span;
use tollgate_ledger::{Clock, Ledger};
use tollgate_sim::http::{Settings, SimProvider};

use crate::cache::NO_RETRY;
use crate::client::{get, get_with, wait_until, within_timeout};
use crate::test_daemon::{TestDaemon, from_file, write_file};
use crate::test_gateway::{TestGateway, file};
use crate::upstream::{Upstream, ok, reply};

/// M8, S5, A9: the cool-down applies to all calls, and the call is retried after it.
#[tokio::test]
async fn m8_nothing_is_sent_during_retry_after_and_the_call_succeeds_after_it() {
    let upstream = Upstream::start(|number, _| async move {
        match number {
            0 => reply(429, &[("retry-after", "1")], "slow down"),
            _ => ok(),
        }
    })
    .await;
    let gateway = TestGateway::start(&[file(upstream.address, "limits: [100/1s]")]).await;
    let first = tokio::spawn(get(gateway.address, "/x/a"));
    wait_until(|| upstream.count() == 1).await;
    let others: Vec<_> = (0..20)
        .map(|n| tokio::spawn(async move { get(gateway.address, &format!("/x/{n}")).await }))
        .collect();
    assert_eq!(
        within_timeout(first)
            .await
            .unwrap()
            .header("x-tollgate-attempts"),
        "2"
    );
    for other in others {
        let other = within_timeout(other).await.unwrap();
        assert_eq!(
            (other.status, other.header("x-tollgate-attempts")),
            (200, "1")
        );
    }
    let received = upstream.requests();
    let rest = received[1].at.since(received[0].at);
    assert!(rest >= Span::from_secs(1), "{rest}");
    assert_eq!(received.len(), 22);
}

/// S5: during the cool-down a call that cannot wait is rejected, with the reason and the time.
#[tokio::test]
async fn s5_a_call_that_cannot_wait_for_the_end_of_a_cooldown_is_rejected() {
    let upstream = Upstream::start(|_, received| async move {
        match received.target.as_str() {
            "/odds" => reply(429, &[("retry-after", "30")], ""),
            _ => ok(),
        }
    })
    .await;
    let rest = "limits: [{limit: 100, period: 1s, per: entity}]\nretry: {retries: {high: 0, normal: 0, low: 0}}";
    let gateway = TestGateway::start(&[file(upstream.address, rest)]).await;
    assert_eq!(get(gateway.address, "/x/odds").await.status, 429);
    let rejected = get_with(gateway.address, "/x/odds", &[("x-tollgate-timeout", "5s")]).await;
    let body = rejected.json();
    assert_eq!(
        (rejected.status, &body["reason"], &body["entity"]),
        (429, &json!("cooldown"), &json!("odds"))
    );
    assert!(
        (20..=30).contains(&rejected.header("retry-after").parse::<u64>().unwrap()),
        "{rejected:?}"
    );
    assert_eq!(
        get(gateway.address, "/x/fixtures").await.status,
        200,
        "other entities go on"
    );
    assert_eq!(upstream.count(), 2);
}

/// A5, A6 over sockets: an outage puts the provider to sleep, a probe detects its end, and no call
/// with enough time is lost.
#[tokio::test]
async fn a5_calls_wait_through_an_outage_and_none_is_lost() {
    let settings = Settings::with_rules("sliding 1000/1s").unwrap();
    let provider = SimProvider::start(settings).await.unwrap();
    provider.fault("outage next 3 503").unwrap();
    let rest = "limits: [1000/1s]\nretry: {base: 5ms, max: 10ms, jitter: none}\n\
        health: {failure_threshold: 2, sleep_first: 200ms, sleep_min: 200ms, probe_success: 2, probe_rate: 50, p_probe: 100%}";
    let gateway = TestGateway::start(&[file(provider.address(), rest)]).await;
    let calls: Vec<_> = (0..12)
        .map(|n| tokio::spawn(async move { get(gateway.address, &format!("/x/{n}")).await }))
        .collect();
    for call in calls {
        assert_eq!(within_timeout(call).await.unwrap().status, 200);
    }
    let active = gateway.registry.named("x").unwrap();
    wait_until(|| active.status().state == HealthState::Normal).await;
    let report = provider.stop().await;
    assert_eq!((report.violations, report.struck), (0, 3), "{report:?}");
}

/// A4, A11: a result that is neither success nor failure does not reset consecutive failures,
/// neither in one process nor across a shared ledger: 3 + 2 of two gateways are five, with 404s in
/// between.
#[tokio::test]
async fn a11_a_404_does_not_reset_consecutive_failures_across_processes() {
    let upstream = Upstream::start(|_, received| async move {
        match received.target.as_str() {
            "/down" => reply(503, &[], ""),
            _ => reply(404, &[], ""),
        }
    })
    .await;
    let rest = format!("limits: [1000/1s]\n{NO_RETRY}\nhealth: {{sleep_first: 2m}}");
    let files = [file(upstream.address, &rest)];
    let ledger = Ledger::memory(Clock::System);
    let one = TestGateway::start_on_ledger(ledger.clone(), &files, Options::default()).await;
    let two = TestGateway::start_on_ledger(ledger, &files, Options::default()).await;
    for (gateway, path) in [
        (&one, "/x/down"),
        (&two, "/x/none"),
        (&one, "/x/down"),
        (&two, "/x/none"),
        (&one, "/x/down"),
        (&two, "/x/down"),
        (&one, "/x/none"),
        (&two, "/x/down"),
    ] {
        let status = if path == "/x/down" { 503 } else { 404 };
        assert_eq!(get(gateway.address, path).await.status, status);
    }
    let soon = [("x-tollgate-timeout", "30s")];
    let rejected = get_with(one.address, "/x/down", &soon).await;
    assert_eq!(rejected.json()["error"], "ProviderUnavailableError");
    assert_eq!(upstream.count(), 8);
}

/// A refused connection is a failure too: the provider sleeps and gets no connection attempts.
#[tokio::test]
async fn an_unreachable_provider_gets_no_connection_attempts() {
    let rest = "limits: [1000/1s]\nretry: {retries: {high: 0, normal: 0, low: 0}}\nhealth: {failure_threshold: 3, sleep_first: 10m}";
    let gateway = TestGateway::start(&[file("127.0.0.1:9".parse().unwrap(), rest)]).await;
    let soon = [("x-tollgate-timeout", "30s")];
    let mut errors = Vec::new();
    for _ in 0..4 {
        errors.push(get_with(gateway.address, "/x/a", &soon).await.json()["error"].clone());
    }
    assert_eq!(
        errors,
        [
            "UpstreamError",
            "UpstreamError",
            "UpstreamError",
            "ProviderUnavailableError"
        ]
    );
}

/// A rate-limit response in the provider's own dialect counts as a 429 (A11).
#[tokio::test]
async fn a11_a_provider_dialect_defines_a_rate_limit_response() {
    let upstream = Upstream::start(|number, _| async move {
        match number {
            0 => reply(
                401,
                &[("content-type", "application/json")],
                "{\"Response\":\"False\",\"Error\":\"Request limit reached!\"}",
            ),
            _ => ok(),
        }
    })
    .await;
    let rest = "dialect: omdb\nlimits: [100/1s]\ncooldown: {base: 20ms, jitter: none}\nretry: {base: 20ms, max: 20ms, jitter: none}";
    let gateway = TestGateway::start(&[file(upstream.address, rest)]).await;
    let response = get(gateway.address, "/x/a").await;
    assert_eq!(
        (response.status, response.header("x-tollgate-attempts")),
        (200, "2")
    );
}

/// A5: offline sends nothing, and cached responses are still served, fresh and stale. A miss is
/// rejected without a retry time.
#[tokio::test]
async fn a5_fresh_and_stale_responses_are_served_while_offline() {
    let upstream = Upstream::start(|_, _| async { ok() }).await;
    let rest = "limits: [100/1s]\ncache: {ttl: 10s, stale: 1h}";
    let manual = crate::cache::ManualClockGateway::start(&upstream, rest).await;
    let is = crate::cache::assert_response;
    is(&manual.get("/x/a", &[]).await, 200, "upstream", "fine");
    let active = manual.gateway.registry.named("x").unwrap();
    active.apply_command(tollgate_core::health::Command::Offline);
    is(&manual.get("/x/a", &[]).await, 200, "cache", "fine");
    manual.advance(60);
    is(&manual.get("/x/a", &[]).await, 200, "stale", "fine");
    let rejected = crate::client::get(manual.gateway.address, "/x/b").await;
    assert_eq!(
        (rejected.status, &rejected.json()["resetIn"]),
        (503, &0.into())
    );
    assert_eq!(upstream.count(), 1);
}

/// A4: 429s of concurrent calls count as one. Five of them neither throttle a healthy provider nor
/// put it to sleep; they count in the ratio.
#[tokio::test]
async fn a4_concurrent_429s_count_as_one_health_transition() {
    let together = std::sync::Arc::new(tokio::sync::Barrier::new(6));
    let upstream = Upstream::start(move |_, _| {
        let together = together.clone();
        async move {
            together.wait().await;
            reply(429, &[], "slow down")
        }
    })
    .await;
    let rest = "limits: [100/1s]\nretry: {retries: {high: 0, normal: 0, low: 0}}\n\
        cooldown: {base: 30s, jitter: none}\nhealth: {min_results: 10}";
    let gateway = TestGateway::start(&[file(upstream.address, rest)]).await;
    let calls: Vec<_> = (0..6)
        .map(|n| tokio::spawn(async move { get(gateway.address, &format!("/x/{n}")).await }))
        .collect();
    for call in calls {
        assert_eq!(within_timeout(call).await.unwrap().status, 429);
    }
    let status = gateway.registry.named("x").unwrap().status();
    assert_eq!(
        (status.state, status.consec429, status.failure_count),
        (HealthState::Normal, 1, 1)
    );
    assert_eq!(status.counts.count_429, 6, "they count in the ratio");
}

/// A wait that does not fit into the call's time ends the call now, with the time. Before, a call
/// without a deadline slept for as long as any `Retry-After` asked, once for each retry: an hour.
#[tokio::test]
async fn s5_a_retry_after_beyond_the_call_s_time_ends_the_call_at_once() {
    for (status, wait) in [(429, "3600"), (429, "100"), (503, "61")] {
        let upstream =
            Upstream::start(
                move |_, _| async move { reply(status, &[("retry-after", wait)], "later") },
            )
            .await;
        let gateway = TestGateway::start(&[file(upstream.address, "limits: [100/1s]")]).await;
        let response = within_timeout(get(gateway.address, "/x/a")).await;
        assert_eq!(
            (response.status, response.header("retry-after")),
            (status, wait)
        );
        assert_eq!(upstream.count(), 1);
    }
    // A provider that states no time: ours is known.
    let soon = [("x-tollgate-timeout", "2s")];
    for status in [429, 503] {
        let upstream =
            Upstream::start(move |_, _| async move { reply(status, &[], "later") }).await;
        let rest = "limits: [100/1s]\nretry: {base: 30s, max: 60s, jitter: none}";
        let gateway = TestGateway::start(&[file(upstream.address, rest)]).await;
        let response = within_timeout(get_with(gateway.address, "/x/a", &soon)).await;
        assert_eq!((response.status, upstream.count()), (status, 1));
        let times = ["retry-after", "retry-after-ms"].map(|name| response.header(name));
        assert_eq!(times, ["30", "30000"], "{response:?}");
    }
}

/// A call that waits for its retry is shown as waiting, like one that waits for a permit.
#[tokio::test]
async fn a_call_that_waits_for_its_retry_counts_as_waiting() {
    let upstream = Upstream::start(|_, _| async { reply(503, &[("retry-after", "50")], "") }).await;
    let gateway = TestGateway::start(&[file(upstream.address, "limits: [100/1s]")]).await;
    let active = gateway.registry.named("x").unwrap();
    let call = tokio::spawn(get(gateway.address, "/x/a"));
    wait_until(|| active.waiting() == 1).await;
    assert_eq!(active.waiting_at(tollgate_core::ask::Priority::Normal), 1);
    call.abort();
    wait_until(|| active.waiting() == 0).await;
    assert_eq!(upstream.count(), 1);
}

/// The leader of a flight is not held for a retry beyond its own time because a follower has more.
#[tokio::test]
async fn s7_a_retry_for_a_patient_follower_does_not_hold_the_leader() {
    let upstream = Upstream::start(|number, _| async move {
        crate::client::pause(300).await;
        match number {
            0 => reply(429, &[("retry-after", "2")], ""),
            _ => ok(),
        }
    })
    .await;
    let rest = "limits: [100/1s]\ndedup: true\nqueue: {timeout: 1s}";
    let gateway = TestGateway::start(&[file(upstream.address, rest)]).await;
    let leader = tokio::spawn(get(gateway.address, "/x/a"));
    wait_until(|| upstream.count() == 1).await;
    let patient = [("x-tollgate-timeout", "30s")];
    let follower = get_with(gateway.address, "/x/a", &patient);
    let (leader, follower) = tokio::join!(leader, within_timeout(follower));
    let leader = leader.unwrap();
    assert_eq!(
        (leader.status, &leader.json()["reason"]),
        (429, &json!("cooldown"))
    );
    assert_eq!(follower.status, 200);
    assert_eq!(upstream.count(), 2);
}

/// A provider that is too slow gets the same work once more, not once for each retry.
#[tokio::test]
async fn a_slow_get_is_repeated_once() {
    let upstream = Upstream::start(|_, _| std::future::pending()).await;
    for (setting, attempts) in [("", 2), ("timeouts: 0, ", 1)] {
        let before = upstream.count();
        let rest = format!(
            "limits: [100/1s]\ntimeout: 1s\nretry: {{{setting}base: 5ms, max: 5ms, jitter: none}}"
        );
        let gateway = TestGateway::start(&[file(upstream.address, &rest)]).await;
        let response = within_timeout(get(gateway.address, "/x/a")).await;
        assert_eq!(
            (response.status, &response.json()["error"]),
            (502, &json!("UpstreamError"))
        );
        wait_until(|| upstream.count() - before >= attempts).await;
        assert_eq!(upstream.count() - before, attempts, "{setting}");
    }
}

/// S5: without a configured limit the end of a cool-down is not a starting gun, by the provider's own log.
#[tokio::test]
async fn s5_calls_to_a_provider_with_an_unknown_limit_follow_what_it_accepts_over_sockets() {
    let settings = Settings::with_rules("bucket 10/1s burst 10").unwrap();
    let provider = SimProvider::start(settings).await.unwrap();
    let rest = "queue: {timeout: 60s}";
    write_file("estimated.yaml", &file(provider.address(), rest));
    let daemon = TestDaemon::start(from_file("estimated.yaml")).await;
    let gateway = daemon.gateway;
    let calls: Vec<_> = (0..60)
        .map(|number| tokio::spawn(async move { get(gateway, &format!("/x/{number}")).await }))
        .collect();
    for call in calls {
        assert_eq!(within_timeout(call).await.unwrap().status, 200);
    }
    let status = daemon.request("GET", "/v1/providers/x", "").await.json();
    let [estimated] = &status["estimated_limits"].as_array().expect("a list")[..] else {
        panic!("it is not shown: {status}");
    };
    assert!(
        estimated["rate"].as_f64().is_some_and(|rate| rate > 0.0),
        "{estimated}"
    );
    let report = provider.stop().await;
    // The first 429 comes when up to 32 calls are on their way; after it they are few.
    assert!(report.violations <= 22 + 20, "{report:?}");
}

/// S5: a 404 says nothing about health, but the provider's limit accepted it: those who wait for the first call
/// after a 429 go on. Before, they waited until it could no longer have arrived.
#[tokio::test]
async fn s5_a_404_to_the_first_call_after_a_cooldown_lets_the_others_go() {
    let upstream = Upstream::start(|number, _| async move {
        match number {
            0 => reply(429, &[("retry-after", "1")], "slow down"),
            1 => reply(404, &[], "not here"),
            _ => ok(),
        }
    })
    .await;
    let gateway = TestGateway::start(&[file(upstream.address, NO_RETRY)]).await;
    assert_eq!(get(gateway.address, "/x/a").await.status, 429);
    let soon = [("x-tollgate-timeout", "20s")];
    let calls: Vec<_> = (0..6)
        .map(|n| {
            let (address, path) = (gateway.address, format!("/x/{n}"));
            tokio::spawn(async move { get_with(address, &path, &soon).await.status })
        })
        .collect();
    let mut statuses = Vec::new();
    for call in calls {
        statuses.push(within_timeout(call).await.unwrap());
    }
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 200, 200, 200, 200, 404]);
}
