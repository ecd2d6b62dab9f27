//! How long the queue takes: the estimate beside what happens, in virtual time.

use std::sync::Arc;

use http::HeaderMap;
use parking_lot::Mutex;
use tollgate::path::CallOptions;
use tollgate::{Options, ProviderRegistry, decide};
use tollgate_config::{Environment, ProviderFile};
use tollgate_core::ask::Priority;
use tollgate_core::time::{Micros, Span, Wall};
use tollgate_ledger::{Clock, Ledger};

const NOON: Wall = Wall(1_772_366_400_000_000);

fn registry(limits: &str) -> ProviderRegistry {
    let file = format!(
        "name: x\ndomain: api.example.org\nhealth: off\nlimits: [{limits}]\nqueue: {{max: 10000, timeout: 1h}}\n"
    );
    let draft = ProviderFile::read("x.yaml", &file).expect("the file can be read");
    let provider = draft
        .check(&Environment::empty())
        .provider
        .expect("a valid file");
    let ledger = Ledger::memory(Clock::tokio(NOON));
    ProviderRegistry::build(vec![provider], ledger, Options::default()).expect("valid")
}

type Granted = Arc<Mutex<Option<Micros>>>;

/// Asks for a permit, and notes when it is granted.
fn call(registry: &ProviderRegistry, options: CallOptions, granted: &Granted) {
    let (registry, granted) = (registry.clone(), granted.clone());
    tokio::spawn(async move {
        let permit = decide::acquire(&registry, "x", None, options).await;
        let mut permit = permit.expect("it waits for an hour");
        *granted.lock() = Some(registry.ledger().at());
        permit.sent().expect("it is new");
        permit.report(200, &HeaderMap::new(), b"", &[]);
    });
}

/// Thirty calls a second against ten permits a second: every fifth second the last call's estimate is compared with
/// its wait.
async fn worst_error_percent(limits: &str) -> f64 {
    let registry = registry(limits);
    let active = registry.named("x").expect("it is there");
    let mut ticks = tokio::time::interval(std::time::Duration::from_micros(33_333));
    let mut asked: Vec<(Micros, Span, Granted)> = Vec::new();
    for number in 1..=900_u32 {
        ticks.tick().await;
        let granted = Arc::default();
        call(&registry, CallOptions::default(), &granted);
        tokio::task::yield_now().await;
        if number % 150 == 0 {
            let eta = active.eta().await.expect("nobody paused it");
            asked.push((registry.ledger().at(), eta, granted));
        }
    }
    while asked.iter().any(|(.., granted)| granted.lock().is_none()) {
        ticks.tick().await;
    }
    let errors = asked.iter().map(|(at, eta, granted)| {
        let waited = granted.lock().expect("it is granted").since(*at);
        let (waited, eta) = (micros(waited), micros(*eta));
        (eta - waited).abs() / waited * 100.0
    });
    errors.fold(0.0, f64::max)
}

#[expect(clippy::cast_precision_loss, reason = "a duration of minutes")]
fn micros(span: Span) -> f64 {
    span.0 as f64
}

#[tokio::test(start_paused = true)]
async fn the_estimate_is_within_five_percent_at_three_times_the_limit() {
    for limits in [
        "{limit: 10, period: 1s, algorithm: token-bucket, burst: 10}",
        "{limit: 10, period: 1s, algorithm: paced}",
        "{limit: 10, period: 1s, algorithm: sliding-window}",
        "{limit: 5, period: 500ms, algorithm: fixed-window}",
        "{limit: 5, period: 500ms, algorithm: sliding-window}, {limit: 100000, period: 1d, algorithm: calendar}",
    ] {
        let error = worst_error_percent(limits).await;
        assert!(error <= 5.0, "{limits}: {error:.1} % off");
    }
}

/// Steady demand: who, how urgent, for which entity, every so many milliseconds.
type Demand = (&'static str, Priority, &'static str, u64);

/// Runs the demand, and every fifth second compares the estimate of `asked` with how long its newest call waits. The
/// demand goes on until all of these are granted.
async fn worst_error_of(limits: &str, demand: &[Demand], asked: &str) -> f64 {
    let registry = registry(limits);
    let active = registry.named("x").expect("it is there");
    let mut ticks = tokio::time::interval(std::time::Duration::from_millis(1));
    let mut compared: Vec<(Micros, Span, Granted)> = Vec::new();
    let is_open =
        |all: &[(Micros, Span, Granted)]| all.iter().any(|(.., one)| one.lock().is_none());
    for milli in 1.. {
        ticks.tick().await;
        for &(caller, priority, entity, every) in
            demand.iter().filter(|(.., every)| milli % every == 0)
        {
            let granted = Granted::default();
            let options = CallOptions {
                caller: Some(caller.to_owned()),
                priority,
                entity: Some(entity.to_owned()),
                ..CallOptions::default()
            };
            call(&registry, options, &granted);
            tokio::task::yield_now().await;
            if caller == asked && milli % 5_000 < every && (15_000..=30_000).contains(&milli) {
                let estimate = active.queue_estimate().await;
                let queue = estimate.callers.get(asked).expect("it waits");
                let eta = queue.eta.expect("it is served");
                compared.push((registry.ledger().at(), eta, granted));
            }
        }
        if milli % 1_000 == 0 {
            active.observe_demand();
        }
        if milli > 30_000 && !is_open(&compared) {
            break;
        }
    }
    let errors = compared.iter().map(|(at, eta, granted)| {
        let waited = micros(granted.lock().expect("it is granted").since(*at));
        (micros(*eta) - waited).abs() / waited * 100.0
    });
    assert!(compared.len() >= 3, "{}", compared.len());
    errors.fold(0.0, f64::max)
}

/// A caller of low priority was promised 4.5 s for minutes, because the demand of urgent calls and the reserve were
/// not counted; and calls of an entity were promised nothing, because its own limit was not.
#[tokio::test(start_paused = true)]
async fn the_estimate_is_within_five_percent_with_priorities_a_reserve_and_entities() {
    let three: &[Demand] = &[
        ("web", Priority::High, "a", 500),
        ("scanner", Priority::Normal, "a", 250),
        ("backfill", Priority::Low, "a", 40),
    ];
    let two_normal: &[Demand] = &[
        ("web", Priority::High, "a", 500),
        ("one", Priority::Normal, "a", 60),
        ("two", Priority::Normal, "a", 400),
        ("backfill", Priority::Low, "a", 100),
    ];
    let entities: &[Demand] = &[
        ("web", Priority::High, "odds", 1_000),
        ("web", Priority::High, "teams", 1_000),
        ("scanner", Priority::Normal, "odds", 50),
        ("other", Priority::Normal, "teams", 500),
    ];
    let mut failed = Vec::new();
    for (limits, demand, asked) in [
        (
            "{limit: 10, period: 1s, algorithm: token-bucket, burst: 10}",
            three,
            "backfill",
        ),
        (
            "{limit: 12, period: 1s, algorithm: sliding-window, reserve: 2}",
            three,
            "backfill",
        ),
        (
            "{limit: 6, period: 500ms, algorithm: fixed-window, reserve: 1}",
            three,
            "backfill",
        ),
        (
            "{limit: 12, period: 1s, algorithm: paced, reserve: 2}",
            three,
            "backfill",
        ),
        (
            "{limit: 10, period: 1s, algorithm: token-bucket, burst: 10, reserve: 2}",
            two_normal,
            "one",
        ),
        (
            "{limit: 10, period: 1s, algorithm: sliding-window}",
            two_normal,
            "one",
        ),
        (
            "100/1s, {limit: 7, period: 1s, per: entity, algorithm: sliding-window}",
            entities,
            "scanner",
        ),
        (
            "{limit: 360, period: 1m, per: entity, algorithm: token-bucket, burst: 10, reserve: 1}",
            entities,
            "scanner",
        ),
    ] {
        let error = worst_error_of(limits, demand, asked).await;
        if error > 5.0 {
            failed.push(format!("{asked} at {limits}: {error:.1} %"));
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
}

/// Urgent calls take everything: no time is promised, and the calls are counted.
#[tokio::test(start_paused = true)]
async fn a_caller_that_gets_nothing_is_listed_without_a_time() {
    let registry = registry("{limit: 10, period: 1s, algorithm: token-bucket, burst: 10}");
    let active = registry.named("x").expect("it is there");
    let mut ticks = tokio::time::interval(std::time::Duration::from_millis(50));
    for number in 0..400_u32 {
        ticks.tick().await;
        let of = |caller: &str, priority| CallOptions {
            caller: Some(caller.to_owned()),
            priority,
            ..CallOptions::default()
        };
        call(
            &registry,
            of("scanner", Priority::Normal),
            &Granted::default(),
        );
        if number == 200 {
            for _ in 0..60 {
                call(
                    &registry,
                    of("backfill", Priority::Low),
                    &Granted::default(),
                );
            }
        }
        tokio::task::yield_now().await;
        active.observe_demand();
    }
    let estimate = active.queue_estimate().await;
    let backfill = estimate.callers.get("backfill").expect("it waits");
    assert_eq!(
        (backfill.waiting, backfill.starved, backfill.eta),
        (60, 60, None)
    );
    assert_eq!(estimate.starved, 60);
    let scanner = estimate.callers.get("scanner").expect("it waits");
    assert!(
        scanner.eta.is_some_and(|eta| eta > Span::from_secs(15)),
        "{scanner:?}"
    );
    assert_eq!(estimate.eta, scanner.eta);
    let late = CallOptions {
        caller: Some("backfill".to_owned()),
        priority: Priority::Low,
        timeout: Some(Span::from_millis(1)),
        ..CallOptions::default()
    };
    let granted = decide::acquire(&registry, "x", None, late).await;
    let denied = granted.map(|_| ()).expect_err("nothing is free");
    let retry_in = denied.retry_in().expect("known");
    assert!(retry_in > Span::from_secs(15), "{retry_in}");
}

/// A rejected call of high priority was told to come back when the whole queue would be done, although none of the
/// waiting calls goes before it.
#[tokio::test(start_paused = true)]
async fn a_rejection_waits_for_those_that_go_before_it() {
    let registry = registry("{limit: 1, period: 1s, algorithm: token-bucket, burst: 1}");
    let of = |caller: &str, priority, seconds| CallOptions {
        caller: Some(caller.to_owned()),
        priority,
        timeout: Some(Span::from_secs(seconds)),
        ..CallOptions::default()
    };
    for _ in 0..60 {
        call(
            &registry,
            of("backfill", Priority::Low, 3_600),
            &Granted::default(),
        );
    }
    tokio::task::yield_now().await;
    let mut told = Vec::new();
    for (caller, priority) in [("web", Priority::High), ("backfill", Priority::Low)] {
        let options = CallOptions {
            timeout: Some(Span::from_millis(1)),
            ..of(caller, priority, 60)
        };
        let granted = decide::acquire(&registry, "x", None, options).await;
        let denied = granted.map(|_| ()).expect_err("nothing is free");
        told.push(denied.retry_in().expect("known"));
    }
    assert!(told[0] <= Span::from_secs(3), "{told:?}");
    assert!(told[1] >= Span::from_secs(55), "{told:?}");
}
