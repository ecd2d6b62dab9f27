//! What the charts and the callers' view show: `GET /v1/history`, `GET /v1/callers`, `GET /v1/config`.
//!
//! Promises: reading changes nothing and starts no provider. The store is asked only about waiting calls
//! and budgets.
//!
//! Never: shows a key.

use std::collections::BTreeMap;

use axum::extract::State;
use axum::http::Uri;
use axum::response::Response;
use serde_json::{Value, json};
use tollgate::providers::{ActiveProvider, CallCounts, LimitStatus, QueueEstimate, WaitCounts};
use tollgate_config::config::Caller;
use tollgate_core::ask::Priority;
use tollgate_core::time::Span;

use super::routes::ApiState;
use crate::api::{ApiError, json};
use crate::daemon::{Limit, budgets};
use crate::decision_api::RequestFields;
use crate::history::{self, CallerHistory, STATES, Slot, WindowStart};

/// What is shown if the query does not say: an hour.
const SPAN: Span = Span::from_secs(3_600);

/// The longest time that is remembered.
const SPAN_MAX: Span = Span::from_secs(86_400);

/// `GET /v1/history[?provider=][&span=24h]`: of one provider, or of all together.
pub(super) async fn history(State(api): State<ApiState>, uri: Uri) -> Result<Response, ApiError> {
    let fields = RequestFields::of_query(&uri, &["provider", "span"])?;
    let provider = fields.name("provider")?;
    let span = fields.span("span")?.unwrap_or(SPAN);
    if span == Span::ZERO || span > SPAN_MAX {
        return Err(ApiError::bad_request(
            "`span` is not within a day",
            "write for example span=5m, span=1h or span=24h",
        ));
    }
    let seconds = span.0.div_ceil(1_000_000);
    let (resolution, slots) = match &provider {
        None => api.history.total(seconds),
        Some(name) => match api.history.slots(name, seconds) {
            Some(found) => found,
            None => {
                // Known and not called yet is no mistake.
                api.daemon.knows(name)?;
                (history::Resolution::of(seconds), Vec::new())
            }
        },
    };
    let column = |of: fn(&Slot) -> u32| -> Vec<u32> { slots.iter().map(of).collect() };
    Ok(json(&json!({
        "provider": provider,
        "every": resolution.every,
        "until": history::epoch(&api.daemon),
        "states": STATES,
        "state": column(|slot| u32::from(slot.state)),
        "calls": column(|slot| slot.calls),
        "sent_high": column(|slot| slot.sent[0]),
        "sent_normal": column(|slot| slot.sent[1]),
        "sent_low": column(|slot| slot.sent[2]),
        "success": column(|slot| slot.responses[0]),
        "limited": column(|slot| slot.responses[1]),
        "failed": column(|slot| slot.responses[2]),
        "other": column(|slot| slot.responses[3]),
        "saved": column(|slot| slot.saved),
        "misses": column(|slot| slot.misses),
        "rejected": column(|slot| slot.rejected),
        "waiting": column(|slot| slot.waiting),
        "wait_p50_ms": column(|slot| slot.waits[0]),
        "wait_p99_ms": column(|slot| slot.waits[1]),
    })))
}

/// `GET /v1/callers`.
pub(super) async fn callers(State(api): State<ApiState>) -> Response {
    let config = api.daemon.loaded();
    let configured = &config.config.callers;
    let mut estimates = Vec::new();
    for active in api.daemon.registry().started() {
        let estimate = active.queue_estimate().await;
        let budgets = budgets(&active, configured).await;
        let window = caller_window(&active.limits(None).await);
        estimates.push((active, estimate, budgets, window));
    }
    let recent = api.history.callers();
    let providers: Vec<Value> = estimates
        .iter()
        .map(|(active, estimate, budgets, window)| {
            let start = recent.start_of(window.age);
            let mut value = callers_of(active, (estimate, budgets), configured, (&recent, start));
            value["window"] = json!(start.age);
            value["window_of"] = json!(window.limit);
            value
        })
        .collect();
    drop(recent);
    json(&json!({ "providers": providers }))
}

/// The time for which callers are counted.
#[derive(Debug)]
struct CallerWindow {
    /// The name of the limit whose window it is; `None` = the last hour.
    limit: Option<String>,
    /// Seconds.
    age: u64,
}

/// The current window of the limit on calls with the longest period, of an hour or more and at most a day; without one,
/// the last hour.
fn caller_window(limits: &[LimitStatus]) -> CallerWindow {
    let long = limits
        .iter()
        .filter(|one| one.period >= SPAN && one.counts_calls && one.algorithm != "concurrency");
    let age = |one: &LimitStatus| {
        let window = one.view.and_then(|view| view.window_age);
        window.unwrap_or(one.period).min(SPAN_MAX)
    };
    let longest = long.max_by_key(|one| one.period);
    CallerWindow {
        limit: longest.map(|one| one.name.clone()),
        age: longest.map_or(SPAN, age).0 / 1_000_000,
    }
}

/// Callers that called or wait (one whose calls all wait has ended none), and configured ones that have a budget.
fn callers_of(
    active: &ActiveProvider,
    (estimate, budgets): (&QueueEstimate, &BTreeMap<String, Vec<Limit>>),
    configured: &[Caller],
    (recent, start): (&CallerHistory, WindowStart),
) -> Value {
    let mut counts = active.calls_by_caller();
    let has_budget = |name: &str| {
        configured.iter().any(|caller| caller.name == name) && budgets.contains_key(name)
    };
    for name in budgets.keys().filter(|name| has_budget(name)) {
        if !counts.iter().any(|(known, _)| known == name) {
            counts.push((name.clone(), CallCounts::default()));
        }
    }
    let queue_of = |name: &str| estimate.callers.get(name).cloned().unwrap_or_default();
    let shown = counts.iter().filter(|(name, counts)| {
        counts.calls > 0 || queue_of(name).waiting > 0 || has_budget(name)
    });
    let rows = shown.map(|(name, counts)| {
        let queue = queue_of(name);
        let known = configured.iter().find(|caller| caller.name == *name);
        let recent = recent.since(start, active.name(), name, counts);
        json!({
            "name": name,
            "calls": recent.calls,
            "sent": recent.sent,
            "rejected": recent.rejected,
            "left": recent.left,
            "total_calls": counts.calls,
            "waiting": queue.waiting,
            "starved": queue.starved,
            "eta": queue.eta.map(seconds),
            "wait_p50": wait(counts, 500),
            "wait_p99": wait(counts, 990),
            "priority": known.map(|caller| priority_word(caller.priority)),
            "limits": budgets.get(name).map_or(&[] as &[Limit], |budgets| budgets),
            "at_least": known.and_then(|caller| caller.at_least).map(|share| f64::from(share.0) / 1e6),
            "at_most": known.and_then(|caller| caller.at_most).map(|share| f64::from(share.0) / 1e6),
        })
    });
    let rows: Vec<Value> = rows.collect();
    json!({ "name": active.name(), "callers": rows })
}

/// Seconds; `null` if it has sent none.
fn wait(counts: &CallCounts, permille: u64) -> Option<f64> {
    let waits: &WaitCounts = &counts.waits;
    Some(seconds(waits.quantile(permille)?))
}

/// With three decimals.
fn seconds(span: Span) -> f64 {
    f64::from(u32::try_from(span.0 / 1_000).unwrap_or(u32::MAX)) / 1_000.0
}

fn priority_word(priority: Priority) -> &'static str {
    match priority {
        Priority::High => "high",
        Priority::Normal => "normal",
        Priority::Low => "low",
    }
}

/// `GET /v1/config`.
pub(super) async fn config(State(api): State<ApiState>) -> Response {
    json(&api.daemon.config_view().await)
}
