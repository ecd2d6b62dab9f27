//! Facts are told on the registry's bus, once each, and never under a lock.

use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use http::{HeaderMap, HeaderValue};
use tollgate::error::Reason;
use tollgate::event::{DecisionVerdict, Event, Notification, Subscription};
use tollgate::path::CallOptions;
use tollgate::{Options, ProviderRegistry, decide};
use tollgate_config::{Environment, Provider, ProviderFile};
use tollgate_core::health::{Class, Command, HealthState};
use tollgate_core::time::{Span, Wall};
use tollgate_ledger::{Clock, Ledger};

fn provider(rest: &str) -> Provider {
    let file = format!("name: x\ndomain: api.example.org\n{rest}\n");
    let draft = ProviderFile::read("x.yaml", &file).expect("the file can be read");
    let checked = draft.check(&Environment::empty());
    checked.provider.expect("the file is valid")
}

fn registry(rest: &str) -> ProviderRegistry {
    let ledger = Ledger::memory(Clock::tokio(Wall(1_772_323_200_000_000)));
    ProviderRegistry::build(vec![provider(rest)], ledger, Options::default()).expect("valid")
}

fn options(seconds: u64) -> CallOptions {
    CallOptions {
        id: "call-1".into(),
        caller: Some("batch".to_owned()),
        timeout: Some(Span::from_secs(seconds)),
        ..CallOptions::default()
    }
}

fn all(subscription: &mut Subscription) -> Vec<Arc<Event>> {
    let mut events = Vec::new();
    while let Some(Notification::Event(event)) = subscription.try_next() {
        events.push(event);
    }
    events
}

fn verdicts(events: &[Arc<Event>]) -> Vec<DecisionVerdict> {
    let decisions = events.iter().filter_map(|event| match &**event {
        Event::Decision {
            id,
            caller,
            verdict,
            ..
        } => {
            assert_eq!((&**id, caller.as_deref()), ("call-1", Some("batch")));
            Some(verdict.clone())
        }
        _ => None,
    });
    decisions.collect()
}

#[tokio::test(start_paused = true)]
async fn a_decision_event_has_limit_reason_and_wait() {
    let registry = registry("limits: [1/10s]");
    let mut subscription = registry.events().subscribe();
    let mut first = decide::acquire(&registry, "x", None, options(1))
        .await
        .unwrap();
    first.sent().unwrap();
    first.report(200, &HeaderMap::new(), b"", &[]);
    assert!(
        decide::acquire(&registry, "x", None, options(1))
            .await
            .is_err()
    );
    drop(
        decide::acquire(&registry, "x", None, options(20))
            .await
            .unwrap(),
    );
    let events = all(&mut subscription);
    let rejected = DecisionVerdict::Rejected {
        limit: Some("1/10s".into()),
        reason: Some(Reason::Limit),
    };
    let queued = DecisionVerdict::Queued {
        limit: Some("1/10s".into()),
        reason: Reason::Limit,
    };
    let expected = [DecisionVerdict::Allowed, rejected, queued];
    assert_eq!(verdicts(&events), expected);
    let answered = events.iter().any(|event| {
        matches!(
            **event,
            Event::Response {
                status: 200,
                class: Class::Success,
                ..
            }
        )
    });
    assert!(answered, "{events:?}");
}

#[tokio::test(start_paused = true)]
async fn cool_down_transition_and_reload_are_emitted() {
    let registry = registry("limits: [100/1s]");
    let mut subscription = registry.events().subscribe();
    let mut first = decide::acquire(&registry, "x", None, options(1))
        .await
        .unwrap();
    first.sent().unwrap();
    let mut headers = HeaderMap::new();
    headers.insert("retry-after", HeaderValue::from_static("30"));
    first.report(429, &headers, b"", &[]);
    registry.named("x").unwrap().apply_command(Command::Offline);
    registry.replace(vec![provider("limits: [50/1s]")]).unwrap();
    let events = all(&mut subscription);
    let has = |wanted: fn(&Event) -> bool| events.iter().any(|event| wanted(event));
    assert!(has(
        |event| matches!(event, Event::Cooldown { retry_after: Some(after), .. }
        if *after == Span::from_secs(30))
    ));
    assert!(has(|event| matches!(
        event,
        Event::Transition {
            to: HealthState::Sleep,
            ..
        }
    )));
    assert!(has(|event| matches!(
        event,
        Event::Reloaded { providers: 1 }
    )));
}

/// Calls back into the provider from inside a log line. Under the provider's lock that would wait
/// for ever, so it happens on another thread, with a bound.
struct CallsBack(ProviderRegistry);

impl tracing::Subscriber for CallsBack {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, _: &tracing::Event<'_>) {
        let provider = self.0.named("x").expect("it is built with it");
        let (done, waits) = mpsc::sync_channel(1);
        std::thread::spawn(move || {
            let status = provider.status();
            done.send(status).ok();
        });
        let freed = waits.recv_timeout(Duration::from_secs(10));
        assert!(
            freed.is_ok(),
            "an event is emitted under the provider's lock"
        );
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

#[tokio::test(start_paused = true)]
async fn nothing_is_emitted_under_the_lock_of_a_provider() {
    let registry = registry("limits: [100/1s]");
    let active = registry.named("x").unwrap();
    let mut subscription = registry.events().subscribe();
    tracing::subscriber::with_default(CallsBack(registry.clone()), || {
        active.apply_command(Command::Offline);
        active.apply_command(Command::Resume);
        registry.replace(vec![provider("limits: [50/1s]")]).unwrap();
    });
    let events = all(&mut subscription);
    let transitions = events
        .iter()
        .filter(|event| matches!(***event, Event::Transition { .. }));
    assert!(transitions.count() >= 2, "{events:?}");
}

#[tokio::test]
async fn an_immediate_decision_on_a_real_clock_is_allowed_not_queued() {
    let ledger = Ledger::memory(Clock::System);
    let providers = vec![provider("limits: [1000/1s]")];
    let registry = ProviderRegistry::build(providers, ledger, Options::default()).expect("valid");
    let mut subscription = registry.events().subscribe();
    for _ in 0..50 {
        drop(
            decide::acquire(&registry, "x", None, options(1))
                .await
                .unwrap(),
        );
    }
    let verdicts = verdicts(&all(&mut subscription));
    assert_eq!(verdicts, vec![DecisionVerdict::Allowed; 50]);
}

/// They get nothing but ends, with the steps of the call. How many of them: `event.rs`.
#[tokio::test(start_paused = true)]
async fn whoever_wants_ends_gets_rejections_and_calls_with_their_steps() {
    let registry = registry("limits: [1/10s]");
    let mut ends = registry.events().subscribe_to_ends();
    let mut permit = decide::acquire(&registry, "x", None, options(1))
        .await
        .unwrap();
    permit.sent().unwrap();
    permit.report(200, &HeaderMap::new(), b"", &[]);
    for _ in 0..3 {
        let denied = decide::acquire(&registry, "x", None, options(1)).await;
        assert!(denied.is_err());
    }
    let (kept, lost) = ends.read();
    assert_eq!((kept.len(), lost), (4, 0));
    assert_eq!(kept[0].steps.len(), 3, "{:?}", kept[0].steps);
    assert!(kept[0].at >= Wall(1_772_323_200_000_000));
    assert_eq!(kept[3].result.reason(), Some("limit"));
}

/// Counters need no subscriber.
#[tokio::test(start_paused = true)]
async fn every_call_is_counted_although_nobody_listens() {
    let registry = registry("limits: [2/10s]");
    let mut permits = Vec::new();
    for _ in 0..2 {
        let mut permit = decide::acquire(&registry, "x", None, options(1))
            .await
            .unwrap();
        permit.sent().unwrap();
        permits.push(permit);
    }
    let denied = decide::acquire(&registry, "x", None, options(1)).await;
    assert!(denied.is_err());
    for permit in permits {
        permit.report(429, &HeaderMap::new(), b"", &[]);
    }
    let active = registry.named("x").unwrap();
    let metrics = active.metrics();
    assert_eq!(metrics.requests(), [("429".to_owned(), 2)]);
    assert_eq!((metrics.violations(), metrics.rejected()), (2, 1));
    let all = registry.metrics(None, None).await.unwrap();
    assert_eq!(
        (all[0].counts.calls, all[0].counts.limited_last_minute),
        (3, 2)
    );
    assert!(registry.alerts().await.is_empty());
}

#[tokio::test]
async fn a_subscription_ends_with_its_bus() {
    let events = tollgate::event::Events::new();
    let mut subscription = events.subscribe();
    events.emit(Event::Reloaded { providers: 1 });
    drop(events);
    assert!(matches!(
        subscription.next().await,
        Some(Notification::Event(_))
    ));
    let end = tokio::time::timeout(Duration::from_secs(5), subscription.next()).await;
    assert!(matches!(end, Ok(None)), "{end:?}");
}

#[tokio::test(start_paused = true)]
async fn attempt_events_have_the_id_of_their_call() {
    let registry = registry("limits: [10/1s]");
    let mut subscription = registry.events().subscribe();
    let mut first = decide::acquire(&registry, "x", None, options(1))
        .await
        .unwrap();
    first.sent().unwrap();
    first.failed(tollgate_core::health::Fault::Timeout);
    let events = all(&mut subscription);
    let is_told = |wanted: fn(&Event) -> bool| events.iter().filter(|event| wanted(event)).count();
    assert_eq!(
        is_told(|event| matches!(event, Event::Attempt { number: 1, .. })),
        1
    );
    assert_eq!(
        is_told(|event| matches!(event, Event::AttemptFailed { id, .. } if &**id == "call-1")),
        1
    );
}
