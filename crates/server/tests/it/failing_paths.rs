//! A4 over sockets: one broken endpoint does not stop calls to the others.

use std::cell::RefCell;

use serde_json::json;
use tollgate::event::Event;
use tollgate::providers::Options;
use tollgate_core::health::{Command, HealthState};
use tollgate_ledger::{Clock, Ledger};

use crate::cache::NO_RETRY;
use crate::client::{get, get_with, post, wait_until, within_timeout};
use crate::events::all;
use crate::test_gateway::{TestGateway, file};
use crate::upstream::{Upstream, ok, reply};

async fn broken_endpoint() -> Upstream {
    Upstream::start(|_, received| async move {
        match received.target.as_str() {
            "/broken" => reply(500, &[], ""),
            "/gone" => reply(502, &[], ""),
            _ => ok(),
        }
    })
    .await
}

/// A4: before, the sixth call waited 30 s.
#[tokio::test]
async fn a4_five_failed_posts_to_one_url_do_not_delay_a_healthy_call() {
    let upstream = broken_endpoint().await;
    let rest = "limits: [1000/1s]\nhealth: {sleep_first: 2m}";
    let gateway = TestGateway::start(&[file(upstream.address, rest)]).await;
    for _ in 0..5 {
        let failed = post(gateway.address, "/x/broken", &[], "{}").await;
        assert_eq!(failed.status, 500);
    }
    let soon = [("x-tollgate-timeout", "5s")];
    let rejected = get_with(gateway.address, "/x/broken", &soon).await;
    let body = rejected.json();
    assert_eq!(
        (rejected.status, &body["error"], &body["failureCount"]),
        (503, &json!("ProviderUnavailableError"), &json!(5))
    );
    let hint = body["hint"].as_str().unwrap_or_default();
    assert!(hint.contains("`/broken`"), "it names the path: {body}");
    let healthy = within_timeout(get(gateway.address, "/x/ok")).await;
    assert_eq!(
        (healthy.status, healthy.header("x-tollgate-wait")),
        (200, "0.000")
    );
    let active = gateway.registry.named("x").unwrap();
    assert_eq!(active.status().state, HealthState::Normal);
    let failing = active.failing_paths();
    assert_eq!(failing.len(), 1);
    assert_eq!(failing[0].path.as_deref(), Some("/broken"));
    assert_eq!(failing[0].state, HealthState::Sleep);
    assert_eq!(upstream.count(), 6);
}

/// A4: two calls with their retries are two failures. Before, they were eight.
#[tokio::test]
async fn a4_the_retries_of_two_calls_do_not_put_a_provider_to_sleep() {
    let upstream = broken_endpoint().await;
    let rest = "limits: [1000/1s]\nretry: {base: 1ms, max: 1ms, jitter: none}\n\
        health: {sleep_first: 2m}";
    let gateway = TestGateway::start(&[file(upstream.address, rest)]).await;
    for _ in 0..2 {
        let failed = within_timeout(get(gateway.address, "/x/gone")).await;
        assert_eq!(failed.header("x-tollgate-attempts"), "4");
    }
    assert_eq!(
        within_timeout(get(gateway.address, "/x/ok")).await.status,
        200
    );
    let active = gateway.registry.named("x").unwrap();
    assert_eq!(active.status().state, HealthState::Normal);
    assert_eq!(active.failing_paths()[0].failures, 2);
}

/// M9, A4: the breaker and `scope: provider` close everything, attempt by attempt.
#[tokio::test]
async fn m9_a_breaker_counts_attempts_of_the_whole_provider() {
    for health in [
        "health: breaker",
        "health: {scope: provider, count: attempt, sleep_first: 2m}",
    ] {
        let upstream = broken_endpoint().await;
        let rest = format!("limits: [1000/1s]\n{NO_RETRY}\n{health}");
        let gateway = TestGateway::start(&[file(upstream.address, &rest)]).await;
        for _ in 0..5 {
            assert_eq!(get(gateway.address, "/x/broken").await.status, 500);
        }
        let soon = [("x-tollgate-timeout", "5s")];
        let rejected = get_with(gateway.address, "/x/ok", &soon).await;
        assert_eq!(rejected.status, 503, "{health}");
    }
}

fn is_about_paths(event: &Event) -> bool {
    matches!(event, Event::PathClosed { .. } | Event::PathOpened { .. })
}

/// A4: closing and opening a path are facts, in this process and in another one that shares the ledger; and
/// an operator's `resume` in one process opens the paths of all.
#[tokio::test]
async fn a4_closed_paths_are_reported_and_resume_opens_those_of_other_processes() {
    let upstream = broken_endpoint().await;
    let rest = format!("limits: [1000/1s]\nhealth: {{sleep_first: 2m}}\n{NO_RETRY}");
    let files = [file(upstream.address, &rest)];
    let ledger = Ledger::memory(Clock::System);
    let one = TestGateway::start_on_ledger(ledger.clone(), &files, Options::default()).await;
    let other = TestGateway::start_on_ledger(ledger, &files, Options::default()).await;
    let told = one.registry.events().subscribe();
    for _ in 0..5 {
        assert_eq!(get(one.address, "/x/ok").await.status, 200);
        assert_eq!(get(one.address, "/x/broken").await.status, 500);
    }
    let closed = one.registry.named("x").unwrap().failing_paths();
    assert_eq!(closed[0].state, HealthState::Sleep);
    // The other process has not called the path, and its operator resumes the provider.
    let resumed = other.registry.named("x").unwrap();
    resumed.apply_command(Command::Resume);
    wait_until(|| one.registry.named("x").unwrap().failing_paths().is_empty()).await;
    let (told, facts) = (RefCell::new(told), RefCell::new(Vec::new()));
    wait_until(|| {
        let new = all(&mut told.borrow_mut()).into_iter();
        let mut facts = facts.borrow_mut();
        facts.extend(new.filter(|fact| is_about_paths(fact)));
        facts.len() >= 2
    })
    .await;
    let facts = facts.into_inner();
    assert!(
        matches!(&*facts[0], Event::PathClosed { path: Some(path), failures: 5, .. } if &**path == "/broken"),
        "{facts:?}"
    );
    assert!(
        matches!(&*facts[1], Event::PathOpened { path: Some(path), .. } if &**path == "/broken"),
        "{facts:?}"
    );
}

/// A11: a 404 is no success: it does not end the series of failures that all processes share.
#[tokio::test]
async fn a11_a_404_in_one_process_does_not_end_the_failures_of_another() {
    let upstream = Upstream::start(|_, received| async move {
        let is_missing = received.target == "/missing";
        reply(if is_missing { 404 } else { 500 }, &[], "")
    })
    .await;
    let rest = format!(
        "limits: [1000/1s]\n{NO_RETRY}\nhealth: {{scope: provider, failure_threshold: 5, sleep_first: 2m}}"
    );
    let files = [file(upstream.address, &rest)];
    let ledger = Ledger::memory(Clock::System);
    let one = TestGateway::start_on_ledger(ledger.clone(), &files, Options::default()).await;
    let other = TestGateway::start_on_ledger(ledger, &files, Options::default()).await;
    for _ in 0..4 {
        assert_eq!(get(one.address, "/x/broken").await.status, 500);
    }
    assert_eq!(get(other.address, "/x/missing").await.status, 404);
    assert_eq!(get(other.address, "/x/broken").await.status, 500);
    let state = |gateway: &TestGateway| gateway.registry.named("x").unwrap().status().state;
    wait_until(|| state(&one) == HealthState::Sleep && state(&other) == HealthState::Sleep).await;
}
