//! `/v1/acquire` without a socket: who takes a place of those who wait, and bodies that do not come.

use std::net::{IpAddr, Ipv4Addr};
use std::pin::Pin;
use std::task::Context;

use axum::body::Bytes;
use axum::http::{HeaderMap, Uri};
use tollgate_core::time::Wall;
use tollgate_ledger::{Clock, Ledger};

use super::*;
use crate::test_config;

/// A service with a guard that grants one token an hour.
fn decisions() -> Decisions {
    let guard = "guards: { task: { limit: 1, period: 1h, burst: 1, by: name } }\n";
    let ledger = Ledger::memory(Clock::tokio(Wall(1_772_323_200_000_000)));
    test_config::daemon(ledger, guard).decisions().clone()
}

async fn ask(decisions: &Decisions, body: Body, places: &Semaphore) -> (u16, Value) {
    let (uri, headers) = (Uri::from_static("/v1/acquire"), HeaderMap::new());
    let call = DecisionCall {
        asker: Asker {
            peer: IpAddr::V4(Ipv4Addr::LOCALHOST),
            caller: None,
        },
        uri: &uri,
        headers: &headers,
    };
    let method = axum::http::Method::POST;
    let response = super::super::acquire(decisions, call, &method, body, places).await;
    super::super::into_json(response).await
}

fn task(rest: &str) -> Body {
    Body::from(format!(
        "{{\"guard\": \"task\", \"identifier\": \"a\"{rest}}}"
    ))
}

/// Tasks that waited used up the places, and every other request was an error.
#[tokio::test(start_paused = true)]
async fn only_a_request_that_waits_takes_a_place() {
    let (decisions, none) = (decisions(), Semaphore::new(0));
    let (status, granted) = ask(&decisions, task(""), &none).await;
    assert_eq!(status, 200, "it does not wait: {granted}");
    let (status, denied) = ask(&decisions, task(", \"wait\": false"), &none).await;
    assert_eq!(status, 429, "it says that it does not wait: {denied}");
    let waits = ", \"timeout\": \"2h\"";
    let (status, full) = ask(&decisions, task(waits), &none).await;
    assert_eq!((status, &full["error"]), (503, &"QueueFull".into()));
    let (status, granted) = ask(&decisions, task(waits), &Semaphore::new(1)).await;
    assert_eq!((status, &granted["decision"]), (200, &"queue".into()));
}

/// A body of which nothing comes.
struct SilentBody;

impl http_body::Body for SilentBody {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _cx: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, Self::Error>>> {
        Poll::Pending
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_that_does_not_come_is_given_up() {
    let (decisions, places) = (decisions(), Semaphore::new(1));
    let (status, error) = ask(&decisions, Body::new(SilentBody), &places).await;
    assert_eq!((status, &error["error"]), (408, &"TooSlow".into()));
    assert_eq!(places.available_permits(), 1);
}
