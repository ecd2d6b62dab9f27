//! Providers whose responses are slow: their limits are used without waiting for responses.

use std::sync::Arc;

use socket2::{SockFilter, SockRef};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use crate::cache::NO_RETRY;
use crate::client::{get, wait_until, within_timeout};
use crate::test_daemon::{TestDaemon, from_file, write_file};
use crate::test_gateway::{TestGateway, file};
use crate::upstream::{Upstream, ok};

/// An upstream that responds to nobody until so many requests are there.
async fn responds_to_all_of(count: usize) -> Upstream {
    let responses = Arc::new(Semaphore::new(0));
    Upstream::start(move |number, _| {
        let responses = responses.clone();
        async move {
            if number + 1 == count {
                responses.add_permits(count);
            }
            responses.acquire().await.expect("open").forget();
            ok()
        }
    })
    .await
}

/// Calls at once; returns their statuses.
async fn get_all(gateway: &TestGateway, count: usize) -> Vec<u16> {
    let address = gateway.address;
    let calls = (0..count).map(|number| {
        tokio::spawn(async move { get(address, &format!("/x/{number}")).await.status })
    });
    let mut statuses = Vec::new();
    for call in calls.collect::<Vec<_>>() {
        statuses.push(within_timeout(call).await.expect("a response"));
    }
    statuses
}

/// W9: six calls arrive under a limit of two while not one of them has its response.
#[tokio::test]
async fn a_slot_frees_without_a_response_when_the_call_must_have_arrived() {
    for limit in [
        "{ limit: 2, period: 100ms }",
        "{ limit: 2, period: 100ms, algorithm: token-bucket, burst: 2 }",
        "{ limit: 2, period: 100ms, algorithm: fixed-window }",
    ] {
        let upstream = responds_to_all_of(6).await;
        let rest = format!("arrive_within: 100ms\nlimits: [{limit}]");
        let gateway = TestGateway::start(&[file(upstream.address, &rest)]).await;
        assert_eq!(get_all(&gateway, 6).await, [200; 6], "{limit}");
        let mut times: Vec<_> = upstream.requests().iter().map(|one| one.at).collect();
        times.sort_unstable();
        // Not before the call must have arrived; a bucket then refills at once.
        let first = times[2].since(times[0]);
        assert!(first.0 >= 100_000, "{limit}: the third after {first:?}");
    }
}

/// The strict rule is still there: nothing goes before a response.
#[tokio::test]
async fn hold_until_response_waits_for_the_response() {
    let upstream = responds_to_all_of(3).await;
    let rest = "arrive_within: 50ms\nhold_until: response\nqueue: {timeout: 1s}\n\
                timeout: 10s\nlimits: [2/100ms]";
    let gateway = TestGateway::start(&[file(upstream.address, rest)]).await;
    let statuses = get_all(&gateway, 3).await;
    assert!(!statuses.contains(&200), "{statuses:?}");
    assert_eq!(upstream.count(), 2);
}

/// More calls than 32 run at a time where the limits allow it.
#[tokio::test]
async fn connections_do_not_cap_a_slow_provider_in_silence() {
    let upstream = responds_to_all_of(40).await;
    let gateway = TestGateway::start(&[file(upstream.address, "limits: [40/10s]")]).await;
    assert_eq!(get_all(&gateway, 40).await, [200; 40]);
}

/// Drops every segment with data (more than a header of 60 bytes), so that the kernel acknowledges none.
fn drop_data(listener: &TcpListener) {
    let filter = [
        SockFilter::new(0x80, 0, 0, 0),
        SockFilter::new(0x25, 0, 1, 60),
        SockFilter::new(0x06, 0, 0, 0),
        SockFilter::new(0x06, 0, 0, u32::MAX),
    ];
    let socket = SockRef::from(listener);
    socket.attach_filter(&filter).expect("a classic filter");
}

/// W9: requests that the provider's kernel has not acknowledged may arrive at any time, so their slots stay
/// held.
#[tokio::test]
async fn a_request_that_is_not_acknowledged_does_not_count_as_arrived() {
    let upstream = TcpListener::bind("127.0.0.1:0").await.unwrap();
    drop_data(&upstream);
    let rest = format!(
        "arrive_within: 50ms\nqueue: {{timeout: 1s}}\ntimeout: 10s\nlimits: [2/100ms]\n{NO_RETRY}"
    );
    let address = upstream.local_addr().unwrap();
    let gateway = TestGateway::start(&[file(address, &rest)]).await;
    let calls = (0..3).map(|number| {
        let gateway = gateway.address;
        tokio::spawn(async move { get(gateway, &format!("/x/{number}")).await })
    });
    let mut attempts = Vec::new();
    for call in calls.collect::<Vec<_>>() {
        let response = within_timeout(call).await.expect("a response");
        attempts.push(response.header("x-tollgate-attempts").to_owned());
    }
    attempts.sort();
    assert_eq!(attempts, ["0", "1", "1"], "the third was never sent");
}

/// F: 32 connections capped a slow provider without limits in silence: the others waited for as long
/// as it took to respond. They get more as soon as a 429 would have come.
#[tokio::test]
async fn calls_that_wait_for_a_connection_only_get_more_of_them() {
    let upstream = responds_to_all_of(40).await;
    let gateway = TestGateway::start(&[file(upstream.address, "")]).await;
    assert_eq!(get_all(&gateway, 40).await, [200; 40]);
}

/// F: connections that the file limits are named where they are what calls wait for.
#[tokio::test]
async fn connections_that_the_file_limits_are_named_when_calls_wait_for_them() {
    let upstream = responds_to_all_of(3).await;
    let rest = "connections: 2\nlimits: [99/1s]";
    let text = file(upstream.address, rest).replacen("name: x\n", "name: capped\n", 1);
    write_file("capped.yaml", &text);
    let daemon = TestDaemon::start(from_file("capped.yaml")).await;
    let gateway = daemon.gateway;
    let held: Vec<_> = ["/capped/1", "/capped/2"]
        .map(|path| tokio::spawn(async move { get(gateway, path).await.status }))
        .into();
    wait_until(|| upstream.count() == 2).await;
    let waits = tokio::spawn(async move { get(gateway, "/capped/3").await.status });
    let status = daemon.status_with_one_waiting("capped").await;
    assert_eq!(status["queue"]["waiting_for"]["concurrency"], 1, "{status}");
    let problems = status["problems"].to_string();
    assert!(problems.contains("one of 2 connections"), "{problems}");
    let log = crate::log::captured();
    let is_named = |line: &str| line.contains("connections_exhausted") && line.contains("capped");
    assert!(log.lines().any(is_named));
    for call in held.iter().chain([&waits]) {
        call.abort();
    }
}
