//! Metrics and alerts per entity (S9, S10): what remains, what was limited, what the cache served.
//!
//! Promises: reading takes no permit. Each entity that was called is listed, bounded as
//! `seen_entities.rs` bounds them; a provider without entities is listed under its own name. An
//! entity of two providers has the key `provider/entity`.
//!
//! Never: shows a key, and starts no provider that nobody named.

use std::collections::BTreeMap;
use std::sync::Arc;

use tollgate_core::alert::{Alert, AlertInput, QuotaLeft};
use tollgate_core::limit::CellView;
use tollgate_core::time::{Now, Span, Wall};

use super::limit_status::{PendingLimit, pending_limits};
use super::status::{LimitStatus, PartStatus};
use super::{ActiveProvider, ProviderRegistry, RegistryState};
use crate::metrics::{PartCounts, ReportedQuota};

/// The metrics of one entity, or of a provider without entities.
#[derive(Clone, Debug)]
pub struct EntityMetrics {
    /// Its name: the entity, `provider/entity`, or the provider.
    pub key: String,
    /// Whose.
    pub provider: String,
    /// `None` = the whole provider.
    pub entity: Option<String>,
    /// What remains of its tightest limit, of those of a minute or longer if it has any; `None` = no limit.
    pub tokens_remaining: Option<u64>,
    /// What that limit counts now.
    pub requests_in_window: u64,
    /// That limit.
    pub capacity: Option<u64>,
    /// What the provider reported about its own limit, until that starts anew.
    pub reported: Option<ReportedQuota>,
    /// When the tightest limit starts anew.
    pub reset_at: Option<Wall>,
    /// The same, from now.
    pub reset_in: Option<Span>,
    /// It cools down after a 429.
    pub is_in_cooldown: bool,
    /// Only the cache responds.
    pub is_degraded: bool,
    /// Its counters.
    pub counts: PartCounts,
    /// What needs an operator now.
    pub alerts: Vec<Alert>,
}

/// There is no such entity.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "no entity `{name}` has been called; without a name, the metrics list those that have been"
)]
pub struct UnknownEntity {
    /// The entity, or the provider that does not exist.
    pub name: String,
}

impl EntityMetrics {
    /// The part of the look-ups that the cache served, from 0 to 1 with four decimals; 0 without any.
    #[must_use]
    pub fn cache_hit_rate(&self) -> f64 {
        let lookups = self
            .counts
            .cache_hits
            .saturating_add(self.counts.cache_misses);
        share(self.counts.cache_hits, lookups)
    }
}

/// 0 to 1, with four decimals; 0 of nothing.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "a number that is only shown")]
pub fn share(part: u64, of: u64) -> f64 {
    if of == 0 {
        return 0.0;
    }
    (part as f64 / of as f64 * 10_000.0).round() / 10_000.0
}

impl ProviderRegistry {
    /// Starts these providers, so that their metrics are listed before their first call.
    pub fn start<'a>(&self, names: impl IntoIterator<Item = &'a str>) {
        for name in names {
            self.named(name).ok();
        }
    }

    /// What remains of the tightest limit on calls of a provider that nobody has called, and what would if nothing were
    /// used; starts nothing. `None`: it has started, or has no such limit.
    pub async fn idle_quota(&self, name: &str) -> Option<(u64, u64)> {
        let RegistryState { deps, catalog, .. } = &*self.shared;
        let lazy = catalog.load().names.get(name)?.clone();
        let policy = lazy.pending_policy(deps)?;
        let bindings = policy.limits.iter();
        let limits = bindings.flat_map(|binding| pending_limits(&policy, binding, None));
        let limits: Vec<PendingLimit> = limits.collect();
        let cells = limits.iter().filter_map(|limit| limit.cell.clone());
        let views = deps.ledger.provider(name).peek(cells.collect()).await;
        let mut views = views.into_iter();
        let seen = limits.into_iter().filter_map(|limit| {
            let view = limit.cell.as_ref().and_then(|_| views.next());
            limit.seen(view, 0)
        });
        let seen: Vec<LimitStatus> = seen.collect();
        let counted = || seen.iter().filter(|limit| counts_calls(limit));
        let known = tightest(counted()).map(|(view, depth)| (view.remaining, depth));
        // What is counted per entity, caller or key is unused for the next one of them.
        known.or_else(|| counted().map(|limit| (limit.depth, limit.depth)).min())
    }

    /// The metrics of every entity of the started providers, or of one provider, or of one entity
    /// (S9).
    pub async fn metrics(
        &self,
        entity: Option<&str>,
        provider: Option<&str>,
    ) -> Result<Vec<EntityMetrics>, UnknownEntity> {
        let unknown = |name: &str| UnknownEntity {
            name: name.to_owned(),
        };
        let providers = match provider {
            Some(name) => vec![self.named(name).map_err(|_| unknown(name))?],
            None => self.started(),
        };
        let mut all = Vec::new();
        for active in providers {
            all.extend(active.entity_metrics().await);
        }
        name_apart(&mut all);
        let Some(wanted) = entity else {
            return Ok(all);
        };
        let is_it = |one: &EntityMetrics| {
            let own = one.entity.as_deref().unwrap_or(&one.provider);
            one.key == wanted || own == wanted
        };
        all.retain(is_it);
        if all.is_empty() {
            return Err(unknown(wanted));
        }
        Ok(all)
    }

    /// What needs an operator now (S10).
    pub async fn alerts(&self) -> Vec<Alert> {
        let all = self.metrics(None, None).await.unwrap_or_default();
        all.into_iter().flat_map(|one| one.alerts).collect()
    }
}

/// The same entity at two providers: both are named with their provider.
fn name_apart(all: &mut [EntityMetrics]) {
    let mut names: BTreeMap<String, usize> = BTreeMap::new();
    for one in all.iter() {
        *names.entry(one.key.clone()).or_default() += 1;
    }
    for one in all {
        if let Some(entity) = &one.entity
            && names.get(&one.key).is_some_and(|count| *count > 1)
        {
            one.key = format!("{}/{entity}", one.provider);
            for alert in &mut one.alerts {
                alert.name.clone_from(&one.key);
            }
        }
    }
}

impl ActiveProvider {
    /// The metrics of its entities, or of the whole provider if it has none.
    async fn entity_metrics(self: Arc<Self>) -> Vec<EntityMetrics> {
        self.sync_health().await;
        let names = self.entities();
        let asked: Vec<Option<&str>> = std::iter::once(None)
            .chain(names.iter().map(|name| Some(&**name)))
            .collect();
        let (parts, _) = self.parts_and_429s(&asked).await;
        let now = self.now();
        let mut parts = parts.into_iter();
        let whole = parts.next();
        if names.is_empty() {
            let counts = self.counts(now.at);
            let whole = whole.into_iter();
            return whole
                .map(|part| self.metrics_of(None, &part, None, counts, now))
                .collect();
        }
        let of_entity = |(name, part): (String, PartStatus)| {
            let counts = self.seen_entities.metrics(&name);
            let counts = counts.map(|metrics| metrics.counts(now.at));
            self.metrics_of(
                Some(name),
                &part,
                whole.as_ref(),
                counts.unwrap_or_default(),
                now,
            )
        };
        names.into_iter().zip(parts).map(of_entity).collect()
    }

    fn metrics_of(
        &self,
        entity: Option<String>,
        part: &PartStatus,
        whole: Option<&PartStatus>,
        counts: PartCounts,
        now: Now,
    ) -> EntityMetrics {
        let shared = whole.into_iter().flat_map(|whole| &whole.limits);
        let limits = part.limits.iter().chain(shared);
        let counted = || limits.clone().filter(|limit| counts_calls(limit));
        let tightest = tightest(counted());
        let reported = counts
            .reported
            .filter(|reported| reported.reset_at.is_none_or(|reset| reset > now.wall));
        let reset_at = reported.and_then(|reported| reported.reset_at).or_else(|| {
            let after = tightest.and_then(|(view, _)| view.reset_after)?;
            Some(Wall(now.wall.0.saturating_add(after.0)))
        });
        let key = entity.clone().unwrap_or_else(|| self.name.clone());
        let remaining = tightest.map(|(view, _)| view.remaining);
        let ours = counted()
            .filter_map(|limit| limit.view)
            .map(|view| QuotaLeft {
                remaining: view.remaining,
                limit: Some(view.limit),
            });
        // A number below all of ours is no limit that we know to be short: what remains of it matters.
        let is_known = |limit: &u64| {
            let mut views = counted().filter_map(|one| one.view);
            views.any(|view| view.limit <= *limit)
        };
        let theirs = reported.map(|reported| QuotaLeft {
            remaining: reported.remaining,
            limit: reported.limit.filter(is_known),
        });
        let quotas: Vec<QuotaLeft> = ours.chain(theirs).collect();
        let input = AlertInput {
            quotas: &quotas,
            limited_last_minute: counts.limited_last_minute,
            cache_hits: counts.cache_hits,
            cache_misses: counts.cache_misses,
        };
        EntityMetrics {
            provider: self.name.clone(),
            tokens_remaining: remaining,
            requests_in_window: tightest.map_or(0, |(view, _)| view.used),
            capacity: tightest.map(|(_, depth)| depth),
            reported,
            reset_at,
            reset_in: reset_at.map(|reset| reset.since(now.wall)),
            is_in_cooldown: part.cooldown_remaining.is_some(),
            is_degraded: part.is_degraded,
            alerts: self.policy().provider.alerts.evaluate(&key, &input),
            counts,
            entity,
            key,
        }
    }
}

/// The limit of which the least remains, among those of a minute or longer if there are any: a second's limit is
/// used up and free again all the time, and says nothing about the quota. With its depth.
fn tightest<'a>(limits: impl Iterator<Item = &'a LimitStatus> + Clone) -> Option<(CellView, u64)> {
    let is_long = |limit: &LimitStatus| limit.period >= Span::from_secs(60);
    let has_long = limits.clone().any(is_long);
    let meant = limits.filter(|limit| is_long(limit) || !has_long);
    let views = meant.filter_map(|limit| Some((limit.view?, limit.depth)));
    views.min_by_key(|(view, _)| view.remaining)
}

/// Does this limit count calls over time?
fn counts_calls(limit: &LimitStatus) -> bool {
    limit.algorithm != "concurrency" && limit.counts_calls
}
