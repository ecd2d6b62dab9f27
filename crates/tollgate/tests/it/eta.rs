//! How long the queue takes: the estimate beside what happens, in virtual time.

use std::sync::Arc;

use http::HeaderMap;
use parking_lot::Mutex;
use tollgate::path::CallOptions;
use tollgate::{Options, ProviderRegistry, decide};
use tollgate_config::{Environment, ProviderFile};
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

/// Asks for a permit, and notes when it is granted.
fn call(registry: &ProviderRegistry, granted: &Arc<Mutex<Option<Micros>>>) {
    let (registry, granted) = (registry.clone(), granted.clone());
    tokio::spawn(async move {
        let permit = decide::acquire(&registry, "x", None, CallOptions::default()).await;
        let mut permit = permit.expect("it waits for an hour");
        *granted.lock() = Some(registry.ledger().at());
        permit.sent().expect("it is new");
        permit.report(200, &HeaderMap::new(), b"", &[]);
    });
}

/// Thirty calls a second against ten permits a second: every fifth second the last call's estimate is compared with
/// its wait.
async fn worst_error_percent(limits: &str) -> f64 {
    type Granted = Arc<Mutex<Option<Micros>>>;
    let registry = registry(limits);
    let active = registry.named("x").expect("it is there");
    let mut ticks = tokio::time::interval(std::time::Duration::from_micros(33_333));
    let mut asked: Vec<(Micros, Span, Granted)> = Vec::new();
    for number in 1..=900_u32 {
        ticks.tick().await;
        let granted = Arc::default();
        call(&registry, &granted);
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
