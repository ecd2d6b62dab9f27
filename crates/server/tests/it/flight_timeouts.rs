//! Flights and deadlines: how long each caller waits, and calls that are just too late to join.

use tollgate::cache::Cache;
use tollgate::event::{Event, Notification};
use tollgate::path::{self, CallTrace, Source};
use tollgate::providers::Options;
use tollgate_core::time::Span;
use tollgate_sim::test_host::TempFolder;

use crate::cache::counting;
use crate::client::{TIMEOUTS, pause, wait_until, within_timeout};
use crate::flight_bodies::{call, polled, text};
use crate::flights::{BusyProvider, gated, plain, spawn_get, spawn_get_with};
use crate::test_gateway::{TestGateway, file};

/// S7: a leader without a deadline waits for the queue timeout, even if its followers have longer
/// deadlines; they continue.
#[tokio::test]
async fn s7_a_leader_without_a_deadline_times_out_with_the_queue_and_followers_continue() {
    let busy = BusyProvider::start("queue: {timeout: 2s}").await;
    let mut heard = busy.gateway.registry.events().subscribe();
    let first = busy.enqueue("/x/a", &[]).await;
    let patient = busy.join("/x/a", &[("x-tollgate-timeout", "30s")]).await;
    let rejected = within_timeout(first).await.unwrap();
    assert_eq!(
        (rejected.status, &rejected.json()["reason"]),
        (504, &"concurrency".into())
    );
    // Its end says how long it has waited, although its call goes on.
    let ended = async {
        loop {
            if let Notification::Event(event) = heard.next().await.unwrap()
                && let Event::CallEnded(end) = &*event
            {
                return end.waited;
            }
        }
    };
    let waited = within_timeout(ended).await;
    assert!(waited >= Span::from_millis(500), "{waited}");
    assert!(!patient.is_finished());
    assert_eq!(busy.finish_all(vec![patient]).await, [200]);
    assert_eq!(busy.upstream.count(), 2);
}

/// The same for followers: each has its own time in the queue.
#[tokio::test]
async fn s7_a_follower_without_a_deadline_waits_no_longer_than_the_queue_timeout() {
    let busy = BusyProvider::start("queue: {timeout: 2s}").await;
    let long = [("x-tollgate-timeout", "30s")];
    let first = busy.enqueue("/x/a", &long).await;
    let short = busy.join("/x/a", &[]).await;
    assert_eq!(within_timeout(short).await.unwrap().status, 504);
    assert!(!first.is_finished());
    assert_eq!(busy.finish_all(vec![first]).await, [200]);
    assert_eq!(busy.upstream.count(), 2);
}

/// The queue timeout applies to the queue only: a call that was sent is waited for.
#[tokio::test]
async fn s7_the_queue_timeout_does_not_end_a_call_that_was_sent() {
    let (upstream, word) = gated(plain).await;
    let rest = "limits: [1/1h]\nqueue: {timeout: 50ms}";
    let gateway = TestGateway::start(&[file(upstream.address, rest)]).await;
    let active = gateway.registry.named("x").unwrap();
    let first = spawn_get(&gateway, "/x/a");
    wait_until(|| upstream.count() == 1).await;
    let second = spawn_get(&gateway, "/x/a");
    wait_until(|| active.joined() == 1).await;
    pause(120).await;
    word.notify_one();
    for call in [first, second] {
        assert_eq!(within_timeout(call).await.unwrap().status, 200);
    }
}

/// S7: a follower without a deadline does not shorten a deadline beyond the queue timeout.
#[tokio::test]
async fn s7_a_leader_keeps_its_deadline_when_a_follower_has_none() {
    let busy = BusyProvider::start("queue: {timeout: 50ms}").await;
    let first = busy.enqueue("/x/a", &[("x-tollgate-timeout", "30s")]).await;
    let urgent = [("x-tollgate-priority", "high")];
    let second = busy.join("/x/a", &urgent).await;
    assert_eq!(within_timeout(second).await.unwrap().status, 504);
    pause(60).await;
    assert!(!first.is_finished());
    assert_eq!(busy.finish_all(vec![first]).await, [200]);
}

/// S7: a leader whose time is up while its call goes on for others is told how many attempts were made, also
/// if nobody listens to events. Before, it was told 0.
#[tokio::test]
async fn s7_a_leader_that_leaves_learns_its_attempts() {
    for time in TIMEOUTS {
        let (upstream, word) = gated(plain).await;
        let gateway = TestGateway::start(&[file(upstream.address, "limits: [1/1h]")]).await;
        let active = gateway.registry.named("x").unwrap();
        let first = spawn_get_with(&gateway, "/x/a", &[("x-tollgate-timeout", time)]);
        wait_until(|| upstream.count() == 1 || first.is_finished()).await;
        let patient = spawn_get_with(&gateway, "/x/a", &[("x-tollgate-timeout", "10m")]);
        wait_until(|| active.joined() == 1 || first.is_finished() || patient.is_finished()).await;
        let have_met = active.joined() == 1 && !first.is_finished();
        let left = within_timeout(first).await.unwrap();
        word.notify_one();
        if !have_met {
            patient.abort();
            continue; // a longer time
        }
        assert_eq!(
            (left.status, left.header("x-tollgate-attempts")),
            (504, "1")
        );
        assert_eq!(within_timeout(patient).await.unwrap().status, 200);
        return;
    }
    panic!("the two never met");
}

/// S7: a follower that leaves takes its longer deadline with it: the leader gets its response at
/// its own deadline.
#[tokio::test]
async fn s7_a_follower_that_leaves_takes_its_longer_deadline_with_it() {
    for time in TIMEOUTS {
        let (upstream, _word) = gated(plain).await;
        let gateway = TestGateway::start(&[file(upstream.address, "limits: [1/1h]")]).await;
        let active = gateway.registry.named("x").unwrap();
        let first = spawn_get_with(&gateway, "/x/a", &[("x-tollgate-timeout", time)]);
        wait_until(|| upstream.count() == 1 || first.is_finished()).await;
        let patient = spawn_get_with(&gateway, "/x/a", &[("x-tollgate-timeout", "10m")]);
        wait_until(|| active.joined() == 1 || first.is_finished() || patient.is_finished()).await;
        patient.abort();
        assert!(patient.await.is_err());
        // The gateway hears of it, or the first one's time is up before that: a longer one.
        pause(20).await;
        if active.joined() == 0 || first.is_finished() {
            continue;
        }
        assert_eq!(within_timeout(first).await.unwrap().status, 504);
        return;
    }
    panic!("the two never met");
}

/// S3, S7: a call that missed the cache checks it again before it leads a flight: a response may
/// have been stored in between. Where the disk is so quick that the call leads before the other one
/// comes, there was no time in between, and the test tries again.
#[tokio::test]
async fn s7_a_response_stored_between_lookup_and_flight_is_not_fetched_twice() {
    for _ in 0..20 {
        if is_stored_between_lookup_and_flight().await {
            return;
        }
    }
    panic!("the first call led its flight each time");
}

/// `false`: the call that was to come late leads the flight, so the other one waits for it.
async fn is_stored_between_lookup_and_flight() -> bool {
    let upstream = counting().await;
    let folder = TempFolder::unmade("gateway-cache");
    let open = async |ttl: &str| {
        let options = Options {
            cache: Cache::open(folder.path(), &tollgate::event::Events::new()),
            ..Options::default()
        };
        let rest = format!("limits: [100/1s]\ncache: {{ttl: {ttl}}}");
        TestGateway::start_with(&[file(upstream.address, &rest)], options).await
    };
    // The response on disk is too old, which only reading it shows.
    let before = open("1ms").await;
    let old = path::call(&before.registry, call(), &mut CallTrace::default()).await;
    assert_eq!(text(old.unwrap()).await, "0");
    before.registry.cache().close().await;
    let gateway = open("1h").await;
    let mut trail = CallTrace::default();
    let mut late = Box::pin(path::call(&gateway.registry, call(), &mut trail));
    // It has found nothing in memory and waits for the disk.
    assert!(polled(late.as_mut(), 1).await.is_none());
    let mut trace = CallTrace::default();
    let first = path::call(&gateway.registry, call(), &mut trace);
    let Ok(first) = tokio::time::timeout(std::time::Duration::from_secs(2), first).await else {
        return false;
    };
    assert_eq!(text(first.unwrap()).await, "1");
    let late = within_timeout(late).await.unwrap();
    assert_eq!(late.source, Source::Cache);
    assert_eq!(text(late).await, "1");
    assert_eq!((upstream.count(), trail.attempts), (2, 0));
    true
}

/// A refresh fetches a new response, even just after another was cached.
#[tokio::test]
async fn s11_a_refresh_ignores_a_response_that_was_just_cached() {
    let upstream = counting().await;
    let rest = "limits: [100/1s]\ncache: {ttl: 1h}";
    let gateway = TestGateway::start(&[file(upstream.address, rest)]).await;
    for expected in ["0", "1"] {
        let refresh = spawn_get_with(&gateway, "/x/a", &[("x-tollgate-cache", "refresh")]);
        assert_eq!(within_timeout(refresh).await.unwrap().body, expected);
    }
}
