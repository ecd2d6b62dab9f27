//! The JSON of a provider and of the whole configuration, for `status` and the API.
//!
//! Promises: instants are epoch seconds, durations are seconds, both with three decimals; unknown
//! is `null`. Every effective value says where it was set.
//!
//! Never: shows a key: values that contain one have no text here.

use serde::Serialize;
use std::collections::BTreeMap;

use tollgate::Error;
use tollgate::providers::{
    ActiveProvider, CooldownStatus, EstimatedLimit, LimitStatus, PartStatus,
};
use tollgate_config::config::Store;
use tollgate_config::overlay::canonical_key;
use tollgate_config::{EffectiveValue, LoadedProvider};
use tollgate_core::ask::Priority;
use tollgate_core::health::{Breaker, HealthStatus, OperatorHold, PathStatus};
use tollgate_core::time::{Now, Span};

use super::budgets::{Key, budgets, keys};
use super::list::damaged_rows;
use super::{Daemon, DaemonState};

/// A provider with all its details.
#[derive(Clone, Debug, Serialize)]
pub struct ProviderDetails {
    name: String,
    source: String,
    domains: Vec<String>,
    enabled: bool,
    health: Health,
    limits: Vec<Limit>,
    entities: BTreeMap<String, Entity>,
    queue: Queue,
    saved: Saved,
    permits: HeldPermits,
    cooldown_until: Option<f64>,
    cooldowns: Vec<Cooldown>,
    /// Of a pool; empty if there is but one.
    keys: Vec<Key>,
    /// The limits `per: caller` of each caller.
    budgets: BTreeMap<String, Vec<Limit>>,
    estimated_limits: Vec<Estimate>,
    degraded: bool,
    store: StoreState,
    settings: Vec<Setting>,
    problems: Vec<String>,
}

/// Calls that needed no permit of their own, since the start.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Saved {
    hits: u64,
    stale: u64,
    shared: u64,
    merged: u64,
}

/// Permits that other processes hold.
#[derive(Clone, Copy, Debug, Serialize)]
struct HeldPermits {
    /// Neither reported nor released yet.
    open: usize,
    /// Expired without a report since the start: they counted as sent.
    unreported: u64,
}

#[derive(Clone, Debug, Serialize)]
struct Health {
    state: &'static str,
    breaker: &'static str,
    since: f64,
    /// An operator set this state. Not set for `cache-only` without an end: its origin is not
    /// stored.
    by_operator: bool,
    /// The operator's command: `paused` (calls wait), `offline` (calls are rejected), `cache_only`.
    hold: Option<&'static str>,
    sleep_until: Option<f64>,
    /// Seconds until calls are sent again; 0 if unknown.
    reset_in: f64,
    consec429: u32,
    err_rate_30s: f64,
    rate: Option<f64>,
    sem: Option<u32>,
    failure_count: u32,
    count_2xx: u64,
    count_429: u64,
    count_5xx: u64,
    count_other: u64,
    net_errors: u64,
    total: u64,
    /// Paths that fail; `sleep` and `half_open` ones are closed on their own.
    paths: Vec<FailingPath>,
}

#[derive(Clone, Debug, Serialize)]
struct FailingPath {
    /// Ids are `*`; `null` = all paths that have no entry of their own.
    path: Option<String>,
    state: &'static str,
    failure_count: u32,
    sleep_until: Option<f64>,
}

/// A limit that Tollgate estimates from 429s.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Estimate {
    /// `provider`, an entity, or `key 2`.
    of: String,
    /// Calls per second; `null` = not known yet.
    rate: Option<f64>,
}

/// What cools down, until when and why.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Cooldown {
    /// `provider`, an entity, or `key 2`.
    of: String,
    until: f64,
    reason: String,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Limit {
    name: String,
    algorithm: &'static str,
    limit: u64,
    /// What remains when nothing is used: the burst of a bucket, `limit` of everything else.
    depth: u64,
    period: f64,
    per: &'static str,
    unit: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<usize>,
    used: Option<u64>,
    in_flight: Option<u64>,
    remaining: Option<u64>,
    /// By our count alone; `remaining` is less where the provider reports less.
    own_remaining: Option<u64>,
    reserve: u64,
    waiting: usize,
    window_start: Option<f64>,
    reset_at: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    learned: Option<Learned>,
}

impl Limit {
    /// Is it learned from responses?
    pub(super) fn is_learned(&self) -> bool {
        self.learned.is_some()
    }
}

/// A limit that responses state.
#[derive(Clone, Copy, Debug, Serialize)]
struct Learned {
    limit: Option<u64>,
    period: f64,
    /// Since when it is what it is.
    since: f64,
    /// When a response last stated it.
    seen: f64,
}

#[derive(Clone, Debug, Serialize)]
struct Entity {
    limits: Vec<Limit>,
    cooldown_until: Option<f64>,
    degraded: bool,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct Queue {
    high: usize,
    normal: usize,
    low: usize,
    /// Seconds until the last of them is sent that is sent; `null` = until an operator says otherwise, or as long as
    /// more urgent calls take everything.
    eta: Option<f64>,
    /// Calls that are not sent while more urgent ones take everything.
    starved: u64,
    /// Waiting calls of each caller.
    callers: BTreeMap<String, CallerInQueue>,
    /// What the calls wait for, and how many.
    waiting_for: BTreeMap<&'static str, usize>,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct CallerInQueue {
    waiting: u64,
    starved: u64,
    eta: Option<f64>,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct StoreState {
    kind: &'static str,
    state: &'static str,
    trouble: Option<String>,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Setting {
    key: String,
    /// `null` for a value that contains a key.
    value: Option<String>,
    by: String,
}

impl Daemon {
    /// One provider with all its details, those of its called entities, and those of `entity`.
    pub async fn describe(
        &self,
        name: &str,
        entity: Option<&str>,
    ) -> Result<ProviderDetails, Error> {
        let active = self.shared.registry.named_or_unknown(name)?;
        let state = self.snapshot();
        let loaded = &state.loaded;
        let configured = loaded.provider(name);
        active.sync_health().await;
        let now = active.now();
        let status = active.status();
        let named = entity.map(str::to_owned);
        let names: Vec<String> = active.entities().into_iter().chain(named).collect();
        let asked: Vec<Option<&str>> = std::iter::once(None)
            .chain(names.iter().map(|name| Some(&**name)))
            .collect();
        let (parts, learned) = active.parts_and_429s(&asked).await;
        let queue = queue(&active).await;
        let mut parts = parts.into_iter();
        let part = |part: PartStatus| Entity {
            limits: limits(part.limits, now),
            cooldown_until: part
                .cooldown_remaining
                .map(|remaining| epoch_after(now, remaining)),
            degraded: part.is_degraded,
        };
        let whole = parts.next().map(part);
        let (own, cooldown_until, degraded) = whole.map_or((Vec::new(), None, false), |whole| {
            (whole.limits, whole.cooldown_until, whole.degraded)
        });
        let entities: BTreeMap<String, Entity> = names.into_iter().zip(parts.map(part)).collect();
        Ok(ProviderDetails {
            name: active.name().to_owned(),
            source: configured
                .as_ref()
                .map_or(String::new(), |one| one.source.clone()),
            domains: configured.map(domains).unwrap_or_default(),
            enabled: configured.is_none_or(|one| one.provider.enabled),
            health: health(&status, failing_paths(&active, now), now),
            limits: own,
            entities,
            queue,
            saved: saved(&active),
            permits: self.held_permits(name),
            cooldown_until,
            cooldowns: learned
                .cooldowns
                .into_iter()
                .map(|one| cooldown(one, now))
                .collect(),
            keys: keys(&active),
            budgets: budgets(&active, &loaded.config.callers).await,
            estimated_limits: learned.limits.into_iter().map(estimate).collect(),
            degraded,
            store: self.store_state(),
            settings: configured
                .iter()
                .flat_map(|one| &one.values)
                .map(setting)
                .collect(),
            problems: configured
                .map_or_else(Vec::new, |one| state.problems_of(one))
                .into_iter()
                .chain(connections_exhausted(&active))
                .chain(damaged_rows(self.shared.registry.ledger()))
                .collect(),
        })
    }
}

/// Calls wait, and only for a connection.
fn connections_exhausted(active: &ActiveProvider) -> Option<String> {
    let (waiting, connections) = active.waiting_for_connections();
    (waiting > 0).then(|| {
        format!(
            "{waiting} calls wait longest for one of {connections} connections; raise `connections` in the provider's file"
        )
    })
}

impl Daemon {
    /// The store of the ledger.
    pub(crate) fn store_state(&self) -> StoreState {
        let kind = match self.loaded().config.store {
            Store::Memory => "memory",
            Store::Sqlite(_) => "sqlite",
            Store::Postgres(_) => "postgres",
            Store::Redis(_) => "redis",
        };
        let trouble = self.shared.registry.ledger().loss_reason();
        StoreState {
            kind,
            state: store_word(trouble.as_ref()),
            trouble,
        }
    }

    /// `up` or `lost`.
    pub(crate) fn store_word(&self) -> &'static str {
        store_word(self.shared.registry.ledger().loss_reason().as_ref())
    }

    fn held_permits(&self, provider: &str) -> HeldPermits {
        let held = self.shared.decisions.permits_of(provider);
        HeldPermits {
            open: held.open,
            unreported: held.unreported,
        }
    }

    /// The effective values of these settings of a provider; keys have no text.
    pub(crate) fn settings(&self, provider: &str, keys: &[String]) -> Vec<Setting> {
        let state = self.snapshot();
        let fields = keys.iter().filter_map(|key| canonical_key(key).ok());
        // Two thresholds are parts of the limits, and have no field of their own.
        let fields: Vec<String> = fields
            .map(|field| match field.as_str() {
                "rate_base" | "bucket_cap" => "limits".to_owned(),
                _ => field,
            })
            .collect();
        let is_of = |value: &EffectiveValue, field: &String| {
            let rest = value.path.strip_prefix(field.as_str());
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
        };
        let values = state.loaded.provider(provider).into_iter();
        let values = values.flat_map(|loaded| &loaded.values);
        values
            .filter(|value| fields.iter().any(|field| is_of(value, field)))
            .map(setting)
            .collect()
    }
}

pub(super) fn store_word(trouble: Option<&String>) -> &'static str {
    if trouble.is_some() { "lost" } else { "up" }
}

fn health(status: &HealthStatus, paths: Vec<FailingPath>, now: Now) -> Health {
    let counts = &status.counts;
    Health {
        state: status.state.as_str(),
        breaker: Breaker::as_str(status.breaker),
        since: epoch_before(now, status.since),
        by_operator: status.by_operator,
        hold: status.hold.map(OperatorHold::as_str),
        sleep_until: status
            .sleep_remaining
            .map(|remaining| epoch_after(now, remaining)),
        reset_in: seconds(status.reset_in),
        consec429: status.consec429,
        err_rate_30s: decimals(u64::from(status.err_rate.0)),
        rate: status.rate.map(|rate| decimals(rate.millionths())),
        sem: status.sem,
        failure_count: status.failure_count,
        count_2xx: counts.count_2xx,
        count_429: counts.count_429,
        count_5xx: counts.count_5xx,
        count_other: counts.count_other,
        net_errors: counts.net_errors,
        total: counts.total,
        paths,
    }
}

fn failing_paths(active: &ActiveProvider, now: Now) -> Vec<FailingPath> {
    let view = |one: PathStatus| FailingPath {
        path: one.path,
        state: one.state.as_str(),
        failure_count: one.failures,
        sleep_until: one
            .sleep_remaining
            .map(|remaining| epoch_after(now, remaining)),
    };
    active.failing_paths().into_iter().map(view).collect()
}

fn part_name(of: Option<String>) -> String {
    of.unwrap_or_else(|| "provider".to_owned())
}

pub(super) fn estimate(one: EstimatedLimit) -> Estimate {
    Estimate {
        of: part_name(one.of),
        rate: one.rate.map(|rate| decimals(rate.millionths())),
    }
}

pub(super) fn cooldown(one: CooldownStatus, now: Now) -> Cooldown {
    Cooldown {
        of: part_name(one.of),
        until: epoch_after(now, one.remaining),
        reason: match one.retry_after {
            Some(wait) => format!("429, Retry-After {}", wait.in_words()),
            None => "429".to_owned(),
        },
    }
}

pub(super) fn limits(statuses: Vec<LimitStatus>, now: Now) -> Vec<Limit> {
    statuses
        .into_iter()
        .map(|limit| {
            let view = limit.view;
            Limit {
                name: limit.name,
                algorithm: limit.algorithm,
                limit: view.map_or(limit.limit, |view| view.limit),
                depth: limit.depth,
                period: seconds(limit.period),
                per: limit.per.word(),
                unit: limit.unit,
                key: limit.key,
                used: view.map(|view| view.used),
                in_flight: view.map(|view| view.in_flight),
                remaining: view.map(|view| view.remaining),
                own_remaining: view.map(|view| view.own_remaining),
                reserve: limit.reserve,
                waiting: limit.waiting,
                window_start: view.and_then(|view| Some(epoch_before(now, view.window_age?))),
                reset_at: view.and_then(|view| Some(epoch_after(now, view.reset_after?))),
                learned: view.and_then(|view| view.learned).map(|learned| Learned {
                    limit: learned.limit,
                    period: seconds(learned.period),
                    since: epoch_before(now, learned.age),
                    seen: epoch_before(now, learned.seen),
                }),
            }
        })
        .collect()
}

/// The calls that cached, shared and merged responses saved.
pub(super) fn saved(active: &ActiveProvider) -> Saved {
    let savings = active.savings();
    Saved {
        hits: savings.hits,
        stale: savings.stale,
        shared: savings.shared,
        merged: savings.merged,
    }
}

/// Waiting calls, and when they are served.
pub(super) async fn queue(active: &ActiveProvider) -> Queue {
    let estimate = active.queue_estimate().await;
    let callers = estimate.callers.into_iter().map(|(caller, one)| {
        let queue = CallerInQueue {
            waiting: one.waiting,
            starved: one.starved,
            eta: one.eta.map(seconds),
        };
        (caller, queue)
    });
    Queue {
        high: active.waiting_at(Priority::High),
        normal: active.waiting_at(Priority::Normal),
        low: active.waiting_at(Priority::Low),
        eta: estimate.eta.map(seconds),
        starved: estimate.starved,
        callers: callers.collect(),
        waiting_for: active.waiting_for().await,
    }
}

pub(super) fn setting(value: &EffectiveValue) -> Setting {
    Setting {
        key: value.path.clone(),
        value: value.text.clone(),
        by: value.origin.to_string(),
    }
}

pub(super) fn domains(one: &LoadedProvider) -> Vec<String> {
    let domains = one.provider.domains.iter();
    domains.map(ToString::to_string).collect()
}

impl DaemonState {
    /// Errors of a newer version come first, then addresses that cannot be opened.
    pub(super) fn problems_of(&self, one: &LoadedProvider) -> Vec<String> {
        let mut problems: Vec<_> = one.problems.iter().collect();
        problems.sort_by_key(|problem| problem.level);
        let errors = self.listen_errors.iter();
        let errors = errors.filter(|error| error.provider == one.provider.name);
        let problems = problems.iter().map(ToString::to_string);
        problems
            .chain(errors.map(|error| error.message.clone()))
            .collect()
    }
}

/// A future instant, as epoch seconds.
pub(super) fn epoch_after(now: Now, remaining: Span) -> f64 {
    seconds(Span(now.wall.0.saturating_add(remaining.0)))
}

/// A past instant, as epoch seconds.
pub(super) fn epoch_before(now: Now, age: Span) -> f64 {
    seconds(Span(now.wall.0.saturating_sub(age.0)))
}

/// Seconds with three decimals. Exact below 2⁵³ milliseconds.
#[expect(
    clippy::cast_precision_loss,
    reason = "milliseconds of 285 000 years are exact"
)]
fn seconds(span: Span) -> f64 {
    (span.0 / 1_000) as f64 / 1_000.0
}

#[expect(clippy::cast_precision_loss, reason = "a number that is only shown")]
pub(super) fn decimals(millionths: u64) -> f64 {
    millionths as f64 / 1_000_000.0
}
