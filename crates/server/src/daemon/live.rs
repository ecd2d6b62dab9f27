//! The JSON of a provider for the live view: what changes while people watch.
//!
//! Promises: one peek of the store for all limits of a provider, its entities included.
//!
//! Never: starts a provider, or shows a key.

use serde::Serialize;
use tollgate::providers::{ActiveProvider, PartStatus};
use tollgate_config::{Level, Problem};
use tollgate_core::health::{HealthState, OperatorHold};

use super::Daemon;
use super::list::ProviderSummary;
use super::view::{self, Cooldown, Estimate, Limit, Queue, Saved};

/// The most entities whose limits are shown live: more lanes than a screen has.
const ENTITIES_MAX: usize = 24;

/// A provider as the live view shows it.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct LiveProvider {
    pub(crate) name: String,
    state: &'static str,
    hold: Option<&'static str>,
    since: Option<f64>,
    sleep_until: Option<f64>,
    failure_count: u32,
    consec429: u32,
    err_rate_30s: f64,
    /// Calls per second that may be sent at present.
    rate: Option<f64>,
    degraded: bool,
    /// Degrade mode begins below this and ends at the second number.
    #[serde(skip_serializing_if = "Option::is_none")]
    degrade: Option<[u64; 2]>,
    cooldowns: Vec<Cooldown>,
    /// What is sent at a pace learned from 429s.
    estimated_limits: Vec<Estimate>,
    limits: Vec<LiveLimit>,
    queue: Option<Queue>,
    saved: Option<Saved>,
    /// Calls have come; a look at it is none.
    started: bool,
    /// Its limits apply; `enabled: false` counts and sends.
    enabled: bool,
    /// How many errors its file has.
    problems: usize,
}

/// A limit, and the entity that it counts.
#[derive(Clone, Debug, Serialize)]
struct LiveLimit {
    #[serde(skip_serializing_if = "Option::is_none")]
    entity: Option<String>,
    #[serde(flatten)]
    limit: Limit,
}

impl Daemon {
    /// A provider that has been called.
    pub(crate) async fn live(&self, active: &ActiveProvider) -> LiveProvider {
        let entities = active.entities();
        let entities: Vec<&str> = entities
            .iter()
            .map(String::as_str)
            .take(ENTITIES_MAX)
            .collect();
        let asked: Vec<Option<&str>> = std::iter::once(None)
            .chain(entities.iter().map(|name| Some(*name)))
            .collect();
        let (parts, learned) = active.parts_and_429s(&asked).await;
        let (now, status) = (active.now(), active.status());
        let queue = view::queue(active).await;
        let degraded = parts.iter().any(|part| part.is_degraded);
        let of_part = |(entity, part): (Option<&str>, PartStatus)| {
            let entity = entity.map(str::to_owned);
            let limits = view::limits(part.limits, now).into_iter();
            limits.map(move |limit| LiveLimit {
                entity: entity.clone(),
                limit,
            })
        };
        let state = self.snapshot();
        let configured = state.loaded.provider(active.name());
        LiveProvider {
            name: active.name().to_owned(),
            state: status.state.as_str(),
            hold: status.hold.map(OperatorHold::as_str),
            since: Some(view::epoch_before(now, status.since)),
            sleep_until: status
                .sleep_remaining
                .map(|remaining| view::epoch_after(now, remaining)),
            failure_count: status.failure_count,
            consec429: status.consec429,
            err_rate_30s: view::decimals(u64::from(status.err_rate.0)),
            rate: status.rate.map(|rate| view::decimals(rate.millionths())),
            degraded,
            degrade: configured
                .and_then(|one| one.provider.degrade)
                .map(|degrade| [degrade.below, degrade.recover]),
            cooldowns: learned
                .cooldowns
                .into_iter()
                .map(|one| view::cooldown(one, now))
                .collect(),
            estimated_limits: learned.limits.into_iter().map(view::estimate).collect(),
            limits: asked.into_iter().zip(parts).flat_map(of_part).collect(),
            queue: Some(queue),
            saved: Some(view::saved(active)),
            started: was_called(active),
            enabled: configured.is_none_or(|one| one.provider.enabled),
            problems: configured.map_or(0, |one| {
                let is_error = |problem: &&Problem| problem.level == Level::Error;
                one.problems.iter().filter(is_error).count()
            }),
        }
    }
}

/// A provider starts when somebody looks at it too.
pub(super) fn was_called(active: &ActiveProvider) -> bool {
    let counts = active.calls_by_caller();
    counts.iter().any(|(_, counts)| counts.calls > 0) || active.waiting() > 0
}

impl LiveProvider {
    /// Nothing about it changes by itself.
    pub(crate) fn is_flowing(&self) -> bool {
        let is_normal = self.state == HealthState::Normal.as_str() && self.hold.is_none();
        is_normal && self.cooldowns.is_empty()
    }

    /// It has been called.
    pub(crate) fn is_started(&self) -> bool {
        self.started
    }
}

impl From<ProviderSummary> for LiveProvider {
    /// A provider that has not been called.
    fn from(summary: ProviderSummary) -> LiveProvider {
        LiveProvider {
            name: summary.name,
            state: summary.state,
            hold: summary.hold,
            since: None,
            sleep_until: None,
            failure_count: 0,
            consec429: 0,
            err_rate_30s: 0.0,
            rate: None,
            degraded: false,
            degrade: None,
            estimated_limits: Vec::new(),
            cooldowns: summary.cooldowns,
            limits: Vec::new(),
            queue: None,
            saved: None,
            started: summary.started,
            enabled: true,
            problems: 0,
        }
    }
}
