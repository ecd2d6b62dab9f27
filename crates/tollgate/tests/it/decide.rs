//! Permits for attempts that callers make themselves: no request, no connection, only the decision.

use http::{HeaderMap, HeaderValue};
use tollgate::error::Reason;
use tollgate::path::{CallOptions, Target};
use tollgate::{Error, Options, ProviderRegistry, decide};
use tollgate_config::{Environment, ProviderFile};
use tollgate_core::ask::{CellId, OwnerId, ScopeId};
use tollgate_core::batch::{self, Batch};
use tollgate_core::health::Class;
use tollgate_core::table::Table;
use tollgate_core::time::{Span, Wall};
use tollgate_ledger::{Clock, Ledger, Liveness, PeekQuery, PeekReply, Store, StoreError};

fn registry(limits: &str) -> ProviderRegistry {
    registry_on(
        Ledger::memory(Clock::tokio(Wall(1_772_323_200_000_000))),
        limits,
    )
}

fn registry_on(ledger: Ledger, limits: &str) -> ProviderRegistry {
    let file = format!("name: x\ndomain: api.example.org\n{limits}\n");
    let draft = ProviderFile::read("x.yaml", &file).expect("the file can be read");
    let checked = draft.check(&Environment::empty());
    let provider = checked.provider.expect("the file is valid");
    ProviderRegistry::build(vec![provider], ledger, Options::default()).expect("valid")
}

fn within(seconds: u64) -> CallOptions {
    CallOptions {
        timeout: Some(Span::from_secs(seconds)),
        ..CallOptions::default()
    }
}

#[tokio::test(start_paused = true)]
async fn a_permit_is_acquired_and_reported_without_a_request() {
    let registry = registry("limits: [1/10s]");
    let mut first = decide::acquire(&registry, "x", None, within(1))
        .await
        .unwrap();
    assert_eq!(first.waited(), Span::ZERO);
    assert_eq!(first.rates().each(Wall(0)).count(), 1);
    first.sent().unwrap();
    let learned = first.report(200, &HeaderMap::new(), b"", &[]);
    assert_eq!((learned.class, learned.retry_after), (Class::Success, None));
    let refused = decide::acquire(&registry, "x", None, within(1))
        .await
        .unwrap_err();
    let Error::NoPermit {
        limit,
        reason,
        retry_in,
        ..
    } = refused
    else {
        panic!("{refused:?}");
    };
    assert_eq!((limit.as_deref(), reason), (Some("1/10s"), Reason::Limit));
    assert!(retry_in.is_some_and(|wait| wait > Span::from_secs(8)));
    let second = decide::acquire(&registry, "x", None, within(20))
        .await
        .unwrap();
    assert!(second.waited() > Span::from_secs(9), "{}", second.waited());
}

#[tokio::test(start_paused = true)]
async fn a_reported_429_cools_the_provider_down_for_everybody() {
    let registry = registry("limits: [100/1s]");
    let mut first = decide::acquire(&registry, "x", None, within(1))
        .await
        .unwrap();
    first.sent().unwrap();
    let mut headers = HeaderMap::new();
    headers.insert("retry-after", HeaderValue::from_static("30"));
    let learned = first.report(429, &headers, b"", &[]);
    assert_eq!(learned.class, Class::Limited);
    assert_eq!(learned.retry_after, Some(Span::from_secs(30)));
    let refused = decide::acquire(&registry, "x", None, within(1))
        .await
        .unwrap_err();
    let is_cooling = matches!(
        refused,
        Error::NoPermit {
            reason: Reason::Cooldown,
            ..
        }
    );
    assert!(is_cooling, "{refused:?}");
}

#[tokio::test(start_paused = true)]
async fn a_decision_that_is_dropped_unsent_returns_its_permit() {
    let registry = registry("limits: [1/10s]");
    drop(
        decide::acquire(&registry, "x", None, within(1))
            .await
            .unwrap(),
    );
    let mut second = decide::acquire(&registry, "x", None, within(1))
        .await
        .unwrap();
    second.sent().unwrap();
    drop(second);
    assert!(
        decide::acquire(&registry, "x", None, within(1))
            .await
            .is_err(),
        "it may have arrived"
    );
}

#[tokio::test(start_paused = true)]
async fn nothing_is_sent_under_an_old_permit_and_the_next_caller_gets_it() {
    let registry = registry("limits: [1/10s]");
    let mut first = decide::acquire(&registry, "x", None, within(1))
        .await
        .unwrap();
    assert_eq!(first.expires_in(), Span::from_millis(500));
    tokio::time::advance(std::time::Duration::from_millis(501)).await;
    assert_eq!(first.expires_in(), Span::ZERO);
    let expired = first.sent().unwrap_err();
    assert_eq!(expired.age, Span::from_millis(501));
    let mut second = decide::acquire(&registry, "x", None, within(1))
        .await
        .unwrap();
    second.sent().unwrap();
    assert!(first.sent().is_err(), "it stays expired");
}

#[tokio::test(start_paused = true)]
async fn real_costs_settle_an_estimate_after_head_and_end() {
    let registry = registry(
        "limits: [{ name: t, limit: 100, period: 1h, unit: tokens }]\ncost: { tokens: { else: 90, after: usage.total } }",
    );
    let mut first = decide::acquire(&registry, "x", None, within(1))
        .await
        .unwrap();
    first.sent().unwrap();
    first.keep_alive(Span::from_secs(60));
    assert_eq!(first.head(200, &HeaderMap::new()).class, Class::Success);
    assert!(
        decide::acquire(&registry, "x", None, within(1))
            .await
            .is_err(),
        "the estimate counts"
    );
    first.finish(&[("tokens".to_owned(), 5)]);
    let second = decide::acquire(&registry, "x", None, within(1)).await;
    assert!(second.is_ok(), "5 of 100 are used: {second:?}");
}

/// A store that can be written and not read.
#[derive(Debug)]
struct Unreadable {
    clock: Clock,
    table: parking_lot::Mutex<Table>,
}

impl Store for Unreadable {
    fn commit(&self, batch: &Batch<'_>) -> Result<batch::BatchResult, StoreError> {
        Ok(batch::decide(
            &mut *self.table.lock(),
            self.clock.now(),
            batch,
        ))
    }

    fn peek(&self, _: &PeekQuery) -> Result<PeekReply, StoreError> {
        Err(StoreError {
            message: "it cannot be read".into(),
            is_final: false,
        })
    }

    fn owner(&self) -> OwnerId {
        OwnerId(1)
    }

    fn wake(&self, _: OwnerId, _: CellId) -> Liveness {
        Liveness::Alive
    }

    fn liveness(&self, _: OwnerId) -> Liveness {
        Liveness::Alive
    }

    fn notify_scopes(&self, _: &[ScopeId]) {}
}

/// A degrade scope of which nothing is known looked closed: calls were rejected as degraded, whatever
/// `on_store_loss` says.
#[tokio::test(start_paused = true)]
async fn on_store_loss_decides_if_the_degrade_scope_cannot_be_read() {
    let acquire = async |policy: &str| {
        let clock = Clock::tokio(Wall(1_772_323_200_000_000));
        let store = Unreadable {
            clock: clock.clone(),
            table: parking_lot::Mutex::default(),
        };
        let ledger = Ledger::inline(clock, |_| store);
        let rest = "limits: [100/1h]\ndegrade: {below: 2, recover: 4}";
        let registry = registry_on(ledger, &format!("{rest}\non_store_loss: {policy}"));
        decide::acquire(&registry, "x", None, within(1)).await
    };
    assert!(acquire("open").await.is_ok());
    let rejected = acquire("closed").await;
    assert!(
        matches!(
            rejected,
            Err(Error::NoPermit {
                reason: Reason::StoreLost,
                ..
            })
        ),
        "{rejected:?}"
    );
}

/// A4: failures of attempts that callers make themselves close their path, not the provider.
#[tokio::test(start_paused = true)]
async fn a4_failures_of_reported_attempts_close_their_path() {
    let registry = registry("limits: [100/1s]\nhealth: {sleep_first: 2m}");
    let report = async |path: String, status: u16| {
        let target = Target::Provider {
            name: "x".to_owned(),
            path,
            query: None,
        };
        let mut decision = decide::acquire(&registry, target, None, within(1)).await?;
        decision.sent().unwrap();
        decision.report(status, &HeaderMap::new(), b"", &[]);
        Ok::<(), Error>(())
    };
    for number in 0..5 {
        report("/ok".to_owned(), 200).await.unwrap();
        report(format!("/broken/{number}"), 500).await.unwrap();
    }
    let refused = report("/broken/7".to_owned(), 500).await.unwrap_err();
    assert!(
        matches!(&refused, Error::ProviderUnavailable { path: Some(path), .. } if path == "/broken/*"),
        "{refused:?}"
    );
    report("/ok".to_owned(), 200).await.unwrap();
}

/// S5: a response that the provider does not count proves that its limit accepts calls. Before, such a
/// call seemed not to have been sent, and calls went strictly one at a time.
#[tokio::test(start_paused = true)]
async fn s5_a_free_response_to_the_first_call_after_a_cooldown_lets_the_others_go() {
    let registry = registry("free_status: [304]");
    let acquire = || decide::acquire(&registry, "x", None, within(60));
    let mut limited = acquire().await.unwrap();
    limited.sent().unwrap();
    let mut headers = HeaderMap::new();
    headers.insert("retry-after", HeaderValue::from_static("1"));
    limited.report(429, &headers, b"", &[]);
    let mut first = acquire().await.unwrap();
    first.sent().unwrap();
    first.report(304, &HeaderMap::new(), b"", &[]);
    // Two follow at once, while neither has a response.
    let mut second = acquire().await.unwrap();
    let mut third = acquire().await.unwrap();
    second.sent().unwrap();
    third.sent().unwrap();
    assert_eq!((second.waited(), third.waited()), (Span::ZERO, Span::ZERO));
}
