//! Events against what really happened: the provider's own log and the responses of the callers.

use std::collections::BTreeMap;
use std::sync::Arc;

use tollgate::event::{CallEnd, DecisionVerdict, Event, Notification, Subscription};
use tollgate_core::time::Span;
use tollgate_sim::http::{Report, Settings, SimProvider};
use tollgate_sim::latency::Latency;

use crate::client::{ClientResponse, get_with, post, request, wait_until, within_timeout};
use crate::client::{Session, read_response};
use crate::test_gateway::{TestGateway, file};

/// Slow enough for identical calls to meet, with a limit that some calls must wait for.
const RULES: &str = "sliding 6/400ms";
const FILE: &str = "limits: [6/400ms]\ncache: {ttl: 1h}\nlate_arrival: 10ms";

async fn provider() -> SimProvider {
    let ms = Span::from_millis;
    let latency = Latency::constant(ms(1), ms(30), ms(1));
    let settings = Settings::with_rules(RULES).expect("rules").latency(latency);
    SimProvider::start(settings).await.expect("a free port")
}

pub(crate) fn all(heard: &mut Subscription) -> Vec<Arc<Event>> {
    let mut events = Vec::new();
    while let Some(next) = heard.try_next() {
        match next {
            Notification::Event(event) => events.push(event),
            Notification::Lost(count) => panic!("{count} events are lost"),
        }
    }
    events
}

fn ends(events: &[Arc<Event>]) -> Vec<&CallEnd> {
    let ends = events.iter().filter_map(|event| match &**event {
        Event::CallEnded(end) => Some(&**end),
        _ => None,
    });
    ends.collect()
}

fn count(events: &[Arc<Event>], is_counted: impl Fn(&Event) -> bool) -> usize {
    events.iter().filter(|event| is_counted(event)).count()
}

/// Everything that can happen to a call, several of them at the same time.
async fn mixed_workload(gateway: &TestGateway) -> Vec<ClientResponse> {
    let address = gateway.address;
    let mut calls = Vec::new();
    // Identical ones become one attempt; the others wait for the limit.
    for number in 0..24 {
        let path = format!("/x/items/{}", number % 12);
        let caller = ("x-tollgate-caller", "batch");
        calls.push(tokio::spawn(async move {
            get_with(address, &path, &[caller]).await
        }));
    }
    for number in 0..4 {
        calls.push(tokio::spawn(async move {
            post(address, "/x/write", &[], &number.to_string()).await
        }));
    }
    let mut responses = Vec::new();
    for call in calls {
        responses.push(within_timeout(call).await.expect("no panic"));
    }
    // Hits in memory, plain ones on the fast path and one with a condition; a call that is too
    // costly; the cache only; one that is wrong; one to nobody.
    let mut session = Session::open(address).await;
    for _ in 0..3 {
        responses.push(session.get("/x/items/1", &[]).await);
    }
    for (path, headers) in [
        ("/x/items/2", [("if-none-match", "\"nothing\"")]),
        ("/x/items/2", [("x-tollgate-cost", "1000")]),
        ("/x/unknown", [("x-tollgate-cache", "only")]),
        ("/x/items/3", [("x-tollgate-priority", "urgent")]),
        ("/nobody/items", [("accept", "*/*")]),
    ] {
        responses.push(get_with(address, path, &headers).await);
    }
    responses.push(post(address, "/x/items/2", &[("x-tollgate-cost", "1000")], "").await);
    responses
}

/// What a response says of its call.
fn of_response(response: &ClientResponse) -> (u16, String, String, u32) {
    let header = |name| response.header(name).to_owned();
    (
        response.status,
        header("x-tollgate-source"),
        header("x-tollgate-decision"),
        header("x-tollgate-attempts").parse().expect("a number"),
    )
}

/// The same, as its end event says it.
fn of_end(end: &CallEnd) -> (u16, String, String, u32) {
    (
        end.result.status().expect("its caller has got a response"),
        end.source.to_owned(),
        end.decision.as_str().to_owned(),
        end.attempts,
    )
}

fn assert_counts(events: &[Arc<Event>], responses: &[ClientResponse], report: &Report) {
    let ends = ends(events);
    let by_id: BTreeMap<&str, &CallEnd> = ends.iter().map(|end| (&*end.id, *end)).collect();
    assert_eq!(by_id.len(), ends.len(), "one end per call");
    assert_eq!(ends.len(), responses.len(), "every response has its end");
    for response in responses {
        let end = by_id[response.header("x-tollgate-id")];
        assert_eq!(of_end(end), of_response(response), "{end:?}");
        let waited = format!(
            "{}.{:03}",
            end.waited.0 / 1_000_000,
            end.waited.0 / 1_000 % 1_000
        );
        assert_eq!(waited, response.header("x-tollgate-wait"));
        if end.decision.as_str() != "allow" {
            assert!(end.result.reason().is_some(), "{end:?}");
        }
        if end.decision.as_str() == "queue" {
            assert_eq!(end.limit.as_deref(), Some("6/400ms"), "{end:?}");
        }
    }
    let attempts: u32 = ends.iter().map(|end| end.attempts).sum();
    let told = count(events, |event| matches!(event, Event::Attempt { .. }));
    let answered = count(events, |event| matches!(event, Event::Response { .. }));
    let granted = count(events, |event| {
        let Event::Decision { verdict, .. } = event else {
            return false;
        };
        !matches!(verdict, DecisionVerdict::Rejected { .. })
    });
    assert_eq!(
        (told, answered, granted),
        (report.arrivals, report.arrivals, report.arrivals)
    );
    assert_eq!(attempts as usize, report.arrivals);
    assert_eq!(report.violations, 0);
}

/// A mixed workload: each call has one end that agrees with its response, and attempts, grants and
/// responses are as many as the provider has counted.
#[tokio::test]
async fn events_agree_with_the_log_of_the_provider_and_with_the_responses() {
    let provider = provider().await;
    let gateway = TestGateway::start(&[file(provider.address(), FILE)]).await;
    let mut heard = gateway.registry.events().subscribe();
    let responses = mixed_workload(&gateway).await;
    let events = all(&mut heard);
    let report = provider.stop().await;
    assert_counts(&events, &responses, &report);
    let ends = ends(&events);
    let sources: Vec<&str> = ends.iter().map(|end| end.source).collect();
    for source in ["upstream", "cache", "shared", "tollgate"] {
        assert!(sources.contains(&source), "{source} of {sources:?}");
    }
    let queued = ends.iter().any(|end| end.decision.as_str() == "queue");
    assert!(queued, "some of 16 have waited for a limit of 6");
    let callers = ends
        .iter()
        .filter(|end| end.caller.as_deref() == Some("batch"));
    assert_eq!(callers.count(), 24);
}

/// A caller that leaves has an end too, without a status.
#[tokio::test]
async fn a_caller_that_leaves_has_an_end() {
    let provider = provider().await;
    provider.fault("hang next 1").expect("a fault");
    let gateway = TestGateway::start(&[file(provider.address(), FILE)]).await;
    let mut heard = gateway.registry.events().subscribe();
    let mut session = Session::open(gateway.address).await;
    let call = tokio::spawn(async move {
        let response = session.send(request("GET", "/x/items", &[], "")).await;
        read_response(response).await
    });
    wait_until(|| provider.report().arrivals == 1).await;
    call.abort();
    let mut events = Vec::new();
    while ends(&events).is_empty() {
        match within_timeout(heard.next()).await {
            Some(Notification::Event(event)) => events.push(event),
            other => panic!("{other:?}"),
        }
    }
    let ends = ends(&events);
    assert_eq!(ends.len(), 1);
    assert_eq!(
        (ends[0].result.reason(), ends[0].result.status()),
        (Some("client_gone"), None)
    );
    assert_eq!(ends[0].provider.as_deref(), Some("x"));
    assert_eq!(ends[0].attempts, 1, "its bytes have left");
}
