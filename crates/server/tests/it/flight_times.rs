//! Shared calls and time: who waits how long, and who comes just too late to join.

use tollgate::cache::Cache;
use tollgate::path::{self, Source, Trail};
use tollgate::shop::Options;

use crate::cache::{Folder, counting};
use crate::client::{TIMES, pause, soon, until};
use crate::flight_bodies::{call, polled, text};
use crate::flights::{Line, ask, ask_with, gated, plain};
use crate::stand::{Stand, file};

/// S7: who has set no time stands in line for the queue's time, however patient those are who have
/// joined; they go on.
#[tokio::test]
async fn s7_a_first_caller_without_a_time_is_refused_at_the_queues_and_the_others_go_on() {
    let line = Line::with("queue: {timeout: 600ms}").await;
    let first = line.waiting("/x/a", &[]).await;
    let patient = line.joins("/x/a", &[("x-tollgate-timeout", "30s")]).await;
    let refused = soon(first).await.unwrap();
    assert_eq!(
        (refused.status, &refused.json()["reason"]),
        (504, &"deadline".into())
    );
    assert!(!patient.is_finished());
    assert_eq!(line.ends(vec![patient]).await, [200]);
    assert_eq!(line.upstream.count(), 2);
}

/// The same for those who have joined: each has its own time in line.
#[tokio::test]
async fn s7_a_joiner_without_a_time_stands_in_line_no_longer_than_the_queues() {
    let line = Line::with("queue: {timeout: 600ms}").await;
    let long = [("x-tollgate-timeout", "30s")];
    let first = line.waiting("/x/a", &long).await;
    let short = line.joins("/x/a", &[]).await;
    assert_eq!(soon(short).await.unwrap().status, 504);
    assert!(!first.is_finished());
    assert_eq!(line.ends(vec![first]).await, [200]);
    assert_eq!(line.upstream.count(), 2);
}

/// The queue's time is for the line: an answer that is on its way is waited for.
#[tokio::test]
async fn s7_the_queues_time_does_not_cut_an_answer_that_is_on_its_way() {
    let (upstream, word) = gated(plain).await;
    let rest = "limits: [1/1h]\nqueue: {timeout: 50ms}";
    let stand = Stand::open(&[file(upstream.address, rest)]).await;
    let live = stand.shop.named("x").unwrap();
    let first = ask(&stand, "/x/a");
    until(|| upstream.count() == 1).await;
    let second = ask(&stand, "/x/a");
    until(|| live.joined() == 1).await;
    pause(120).await;
    word.notify_one();
    for call in [first, second] {
        assert_eq!(soon(call).await.unwrap().status, 200);
    }
}

/// S7: a time that is longer than the queue's is not shortened by somebody who has set none.
#[tokio::test]
async fn s7_a_patient_first_caller_keeps_its_time_when_one_without_joins() {
    let line = Line::with("queue: {timeout: 50ms}").await;
    let first = line.waiting("/x/a", &[("x-tollgate-timeout", "30s")]).await;
    let urgent = [("x-tollgate-priority", "high")];
    let second = line.joins("/x/a", &urgent).await;
    assert_eq!(soon(second).await.unwrap().status, 504);
    pause(60).await;
    assert!(!first.is_finished());
    assert_eq!(line.ends(vec![first]).await, [200]);
}

/// S7: a joiner with more time that has left leaves nothing of it behind: whoever asked first is
/// answered when its own time is up.
#[tokio::test]
async fn s7_a_patient_joiner_that_leaves_takes_its_time_along() {
    for time in TIMES {
        let (upstream, _word) = gated(plain).await;
        let stand = Stand::open(&[file(upstream.address, "limits: [1/1h]")]).await;
        let live = stand.shop.named("x").unwrap();
        let first = ask_with(&stand, "/x/a", &[("x-tollgate-timeout", time)]);
        until(|| upstream.count() == 1 || first.is_finished()).await;
        let patient = ask_with(&stand, "/x/a", &[("x-tollgate-timeout", "10m")]);
        until(|| live.joined() == 1 || first.is_finished() || patient.is_finished()).await;
        patient.abort();
        assert!(patient.await.is_err());
        // The gateway hears of it, or the first one's time is up before that: a longer one.
        pause(20).await;
        if live.joined() == 0 || first.is_finished() {
            continue;
        }
        assert_eq!(soon(first).await.unwrap().status, 504);
        return;
    }
    panic!("the two never met");
}

/// S3, S7: a call that found nothing in the cache looks again before it asks for everybody: the
/// answer may have come in between.
#[tokio::test]
async fn s7_an_answer_that_lands_between_look_and_flight_is_not_asked_for_twice() {
    let upstream = counting().await;
    let folder = Folder::new();
    let open = async |ttl: &str| {
        let options = Options {
            cache: Cache::open(&folder.0),
            ..Options::default()
        };
        let rest = format!("limits: [100/1s]\ncache: {{ttl: {ttl}}}");
        Stand::with(&[file(upstream.address, &rest)], options).await
    };
    // What lies on disk is too old, but nobody knows before it was read.
    let before = open("1ms").await;
    let old = path::call(&before.shop, call(), &mut Trail::default()).await;
    assert_eq!(text(old.unwrap()).await, "0");
    before.shop.cache().close().await;
    let stand = open("1h").await;
    let mut trail = Trail::default();
    let mut late = Box::pin(path::call(&stand.shop, call(), &mut trail));
    // It has found nothing in memory and waits for the disk.
    assert!(polled(late.as_mut(), 1).await.is_none());
    let first = path::call(&stand.shop, call(), &mut Trail::default()).await;
    assert_eq!(text(first.unwrap()).await, "1");
    let late = soon(late).await.unwrap();
    assert_eq!(late.source, Source::Cache);
    assert_eq!(text(late).await, "1");
    assert_eq!((upstream.count(), trail.attempts), (2, 0));
}

/// Who asks for a new answer gets one, also just after another has come.
#[tokio::test]
async fn s11_a_refresh_is_not_answered_by_what_has_just_been_kept() {
    let upstream = counting().await;
    let rest = "limits: [100/1s]\ncache: {ttl: 1h}";
    let stand = Stand::open(&[file(upstream.address, rest)]).await;
    for expected in ["0", "1"] {
        let refresh = ask_with(&stand, "/x/a", &[("x-tollgate-cache", "refresh")]);
        assert_eq!(soon(refresh).await.unwrap().body, expected);
    }
}
