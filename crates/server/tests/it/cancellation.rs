//! A call that is dropped at any await releases its connection, its slot, and its permit unless it
//! was sent.

use std::path::PathBuf;
use std::pin::pin;

use bytes::Bytes;
use http_body_util::Empty;
use hyper::Method;
use tollgate::path::{self, CallTrace, HttpCall};
use tollgate::providers::Options;
use tollgate_ledger::{Clock, Ledger};

use crate::cache::NO_RETRY;
use crate::client::get_with;
use crate::flight_bodies::{call, polled};
use crate::test_gateway::{TestGateway, file};
use crate::upstream::{Upstream, ok};

/// Permits of a round: the dropped call may use one up.
const PERMITS: usize = 2;

/// A call without dedup.
fn unshared_call() -> HttpCall<Empty<Bytes>> {
    HttpCall {
        method: Method::POST,
        ..call()
    }
}

/// What came of a call that was dropped after so many polls.
struct Round {
    /// It was over before that.
    is_over: bool,
    has_arrived: bool,
    /// A permit is gone although nothing arrived.
    is_wasted: bool,
}

async fn round(ledger: Ledger, polls: usize) -> Round {
    let upstream = Upstream::start(|_, _| async { ok() }).await;
    let rest = format!("limits: [2/1h]\nconnections: 1\n{NO_RETRY}");
    let gateway =
        TestGateway::start_on_ledger(ledger, &[file(upstream.address, &rest)], Options::default())
            .await;
    let mut trail = CallTrace::default();
    let is_over = {
        let mut dropped = pin!(path::call(&gateway.registry, unshared_call(), &mut trail));
        polled(dropped.as_mut(), polls).await.is_some()
    };
    // The connection and the slot are free again, or no call would get a response. A wait of an
    // hour is rejected at once.
    let mut went = 0;
    let patient = [("x-tollgate-timeout", "30s")];
    loop {
        let path = format!("/x/{went}");
        match get_with(gateway.address, &path, &patient).await.status {
            200 => went += 1,
            429 => break,
            other => panic!("{polls} polls: {other}"),
        }
        assert!(went <= PERMITS, "more than there are permits");
    }
    let arrived = upstream.count() - went;
    assert!(went + arrived <= PERMITS, "{polls}: {went} and {arrived}");
    assert!(went + 1 >= PERMITS, "more than its own permit is gone");
    Round {
        is_over,
        has_arrived: arrived == 1,
        is_wasted: went + arrived < PERMITS,
    }
}

/// How many polls it takes until the bytes leave differs a little from time to time. A permit that
/// is lost at an await is lost there every time.
async fn always_wastes(ledger: &impl Fn(usize) -> Ledger, polls: usize) -> bool {
    for again in 1..=8 {
        if !round(ledger(again * 1_000 + polls), polls).await.is_wasted {
            return false;
        }
    }
    true
}

/// R-A12: a permit is gone only with the call that was sent under it. The one await at which that
/// is not known is the one in which the bytes leave.
async fn dropped_at_every_await(ledger: impl Fn(usize) -> Ledger) {
    let mut rounds = Vec::new();
    loop {
        let polls = rounds.len() + 1;
        let round = round(ledger(polls), polls).await;
        let is_over = round.is_over;
        rounds.push(round);
        if is_over {
            break;
        }
        assert!(polls < 100, "it never ends");
    }
    let first = rounds.iter().position(|round| round.has_arrived);
    let first = first.expect("one that was not dropped arrives");
    let before = rounds.iter().take(first.saturating_sub(1)).enumerate();
    for (index, _) in before.filter(|(_, round)| round.is_wasted) {
        assert!(
            !always_wastes(&ledger, index + 1).await,
            "its permit is gone after {} polls",
            index + 1
        );
    }
    assert!(first > 0, "it is dropped before it is sent, too");
}

#[tokio::test]
async fn r_a12_a_call_dropped_at_any_await_releases_its_resources_in_memory() {
    dropped_at_every_await(|_| Ledger::memory(Clock::System)).await;
}

#[tokio::test]
async fn r_a12_a_call_dropped_at_any_await_releases_its_resources_in_sqlite() {
    let name = format!("tollgate-dropped-{}", std::process::id());
    let folder: PathBuf = std::env::temp_dir().join(name);
    let ledger =
        |polls: usize| Ledger::sqlite(folder.join(polls.to_string()), Clock::System).unwrap();
    dropped_at_every_await(ledger).await;
    std::fs::remove_dir_all(&folder).unwrap();
}
