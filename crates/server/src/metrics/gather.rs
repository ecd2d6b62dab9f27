//! Gathers the families: counters of every provider and guard, and what is measured now.
//!
//! Promises: providers of the configuration are listed from the start, built-in ones once they were called; the
//! provider of unknown domains always, so that every name has a sample.
//!
//! Never: starts a provider, or opens `desk.db` where there is none.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use tollgate::metrics::{PRIORITIES, ProviderMetrics};
use tollgate::providers::{ActiveProvider, UNKNOWN};
use tollgate_core::ask::Priority;
use tollgate_core::health::HealthState;

use super::{Family, SampleValue};
use crate::daemon::Daemon;

const MICROS_PER_MILLI: u64 = 1_000;
const MICROS_PER_SECOND: u64 = 1_000_000;

/// The `type` of C7's metrics for providers; guards have their names.
const PROVIDER: &str = "provider";

/// A provider as it is listed.
struct Listed {
    name: String,
    metrics: Arc<ProviderMetrics>,
    active: Option<Arc<ActiveProvider>>,
}

impl Daemon {
    /// All metrics.
    pub async fn metrics(&self) -> Vec<Family> {
        let providers = self.listed_providers();
        let mut families = counters(&providers);
        families.extend(histograms(&providers));
        families.extend(self.gauges(&providers).await);
        families.push(self.queue_depths(&providers).await);
        families.extend(self.limits(&providers).await);
        families.extend(self.rate_limit_families(&providers));
        families
    }

    fn listed_providers(&self) -> Vec<Listed> {
        let registry = self.registry();
        let mut all: BTreeMap<String, Option<Arc<ActiveProvider>>> = BTreeMap::new();
        let loaded = self.loaded();
        let configured = loaded.config.providers.iter();
        all.extend(configured.map(|one| (one.name.clone(), None)));
        let started = registry.started().into_iter();
        all.extend(started.map(|active| (active.name().to_owned(), Some(active))));
        let unknown = registry.named_or_unknown(UNKNOWN).ok();
        all.insert(UNKNOWN.to_owned(), unknown);
        let listed = all.into_iter().map(|(name, active)| Listed {
            metrics: registry.events().metrics().provider(&name),
            name,
            active,
        });
        listed.collect()
    }

    /// What health, store and waiting calls are like now.
    async fn gauges(&self, providers: &[Listed]) -> Vec<Family> {
        let registry = self.registry();
        let mut rate = Family::gauge(
            "rate_current",
            "Calls per second that health allows now; +Inf = no limit.",
        );
        let mut concurrency = Family::gauge(
            "concurrency_current",
            "Concurrent calls that health allows now; +Inf = no limit.",
        );
        let mut errors = Family::gauge(
            "err_rate_30s",
            "Share of failed calls in the last 30 s, 0 to 1.",
        );
        let mut states = Family::gauge(
            "health_state",
            "1 for the current state of the provider, 0 for the others.",
        );
        for one in providers {
            let labels = [(PROVIDER, &*one.name)];
            let state = match &one.active {
                Some(active) => {
                    let status = active.status();
                    let per_second = status
                        .rate
                        .map_or(f64::INFINITY, |rate| ratio(rate.millionths()));
                    rate.push(labels, SampleValue::Number(per_second));
                    let sem = status.sem.map_or(f64::INFINITY, f64::from);
                    concurrency.push(labels, SampleValue::Number(sem));
                    errors.push(
                        labels,
                        SampleValue::Number(ratio(u64::from(status.err_rate.0))),
                    );
                    status.state
                }
                None => registry.overview_of(&one.name).await.state,
            };
            for known in HealthState::ALL {
                let labels = [(PROVIDER, &*one.name), ("state", known.as_str())];
                states.add(labels, u64::from(known == state));
            }
        }
        let guards = self.decisions().guards();
        let mut store = Family::gauge(
            "store_up",
            "1 while the ledger's store, and Redis if guards count there, can be reached.",
        );
        let is_up = registry.ledger().loss().is_none() && guards.store_loss().is_none();
        store.add([], u64::from(is_up));
        let mut open = Family::counter(
            "fail_open_total",
            "Calls that ran uncounted because a store was lost (on_store_loss: open).",
        );
        open.add([], registry.uncounted() + guards.uncounted());
        vec![rate, concurrency, errors, states, store, open]
    }

    /// Waiting calls of each provider, and pending tasks of each queue.
    async fn queue_depths(&self, providers: &[Listed]) -> Family {
        let mut depths: BTreeMap<String, u64> = BTreeMap::new();
        for one in providers {
            let waiting = one.active.as_ref().map_or(0, |active| active.waiting());
            depths.insert(one.name.clone(), waiting as u64);
        }
        let daemon = self.clone();
        let tasks = tokio::task::spawn_blocking(move || {
            let has_desk = daemon.has_desk()
                || Path::new(&daemon.config().state_dir)
                    .join("desk.db")
                    .exists();
            let desk = has_desk.then(|| daemon.desk().ok()).flatten();
            desk.and_then(|desk| desk.queues().ok()).unwrap_or_default()
        });
        for (queue, counts) in tasks.await.unwrap_or_default() {
            // A queue may have the name of a provider: a time series has one value.
            *depths.entry(queue).or_default() += counts.pending();
        }
        let mut family = Family::gauge(
            "queue_depth",
            "Calls that wait for a provider, or pending tasks of a queue.",
        );
        for (queue, depth) in depths {
            family.add([("queue", &*queue)], depth);
        }
        family
    }

    /// What remains of limits and of guards' buckets.
    async fn limits(&self, providers: &[Listed]) -> Vec<Family> {
        let mut tokens = Family::gauge(
            "tokens_available",
            "What remains: of a provider's tightest limit, or of a guard's bucket.",
        );
        let mut remaining = Family::gauge(
            "limit_remaining",
            "What remains of a limit of the provider; of a limit per entity, that of the entity with the least.",
        );
        let mut most = Family::gauge(
            "limit_max",
            "What remains of a limit when nothing is used: the limit, or the burst of a token bucket.",
        );
        for one in providers {
            let Some(active) = &one.active else { continue };
            let limits = active.limits(None).await;
            let is_concurrency = |name: &String| {
                let mut named = limits.iter().filter(|limit| limit.name == *name);
                named.any(|limit| limit.algorithm == "concurrency")
            };
            let mut seen: BTreeMap<String, (u64, u64)> = BTreeMap::new();
            for (name, counts) in tightest_of_entities(active).await {
                seen.insert(name, counts);
            }
            for limit in &limits {
                let Some(view) = limit.view else { continue };
                // Per key there are several of one name: those of all keys together.
                let entry = seen.entry(limit.name.clone()).or_default();
                *entry = (entry.0 + view.remaining, entry.1 + limit.depth);
            }
            for (limit, (left, all)) in &seen {
                remaining.add([(PROVIDER, &*one.name), ("limit", limit)], *left);
                most.add([(PROVIDER, &*one.name), ("limit", limit)], *all);
            }
            // Calls at a time are no quota: four free slots say nothing about what remains.
            let quotas = seen.iter().filter(|(name, _)| !is_concurrency(name));
            let tightest = quotas.map(|(_, (left, _))| *left).min();
            let value = match tightest {
                Some(left) => SampleValue::Integer(left),
                None => SampleValue::Number(f64::INFINITY),
            };
            tokens.push([("type", PROVIDER), ("identifier", &*one.name)], value);
        }
        let guards = self.decisions().guards();
        for class in guards.all() {
            let denied = class.metrics().hits.into_iter().map(|(who, _)| Some(who));
            let global = class.is_global().then_some(None);
            for who in global
                .into_iter()
                .chain(denied.filter(|who| who.as_deref() != Some("other")))
            {
                let Ok(status) = guards.status(class.name(), who.as_deref()).await else {
                    continue;
                };
                let identifier = who.as_deref().unwrap_or("global");
                if class.is_global() && who.is_some() {
                    continue; // the same bucket
                }
                let value = SampleValue::Number(ratio(status.micro_tokens));
                tokens.push([("type", class.name()), ("identifier", identifier)], value);
            }
        }
        vec![tokens, remaining, most]
    }

    /// The three metrics of C7: for each guard, and for all providers together with the type `provider`.
    fn rate_limit_families(&self, providers: &[Listed]) -> Vec<Family> {
        let mut hits = Family::counter(
            "rate_limit_hits_total",
            "Rejections by guards and by providers' limits.",
        )
        .without_prefix();
        let mut waits = Family::counter(
            "rate_limit_waits_total",
            "Requests that waited for a limit and got through.",
        )
        .without_prefix();
        let mut durations =
            Family::histogram("rate_limit_wait_duration_seconds", "How long they waited.")
                .without_prefix();
        for one in providers {
            hits.add(
                [("type", PROVIDER), ("identifier", &*one.name)],
                one.metrics.rejected(),
            );
        }
        let queued = providers.iter().map(|one| one.metrics.queued()).sum();
        waits.add([("type", PROVIDER)], queued);
        let each = providers.iter().map(|one| one.metrics.queue_waits());
        if let Some(all) = each.reduce(|mut all, more| {
            all.add(&more);
            all
        }) {
            durations.push(
                [("type", PROVIDER)],
                SampleValue::of_micros(&all, MICROS_PER_SECOND),
            );
        }
        for class in self.decisions().guards().all() {
            let metrics = class.metrics();
            for (identifier, count) in &metrics.hits {
                hits.add([("type", class.name()), ("identifier", identifier)], *count);
            }
            waits.add([("type", class.name())], metrics.waits.count());
            let value = SampleValue::of_micros(&metrics.waits, MICROS_PER_SECOND);
            durations.push([("type", class.name())], value);
        }
        vec![hits, waits, durations]
    }
}

fn counters(providers: &[Listed]) -> Vec<Family> {
    let mut requests = Family::counter(
        "requests_total",
        "Attempts by the status of their response, or why there was none.",
    );
    let mut hits = Family::counter("cache_hits_total", "Calls that a cached response served.");
    let mut misses = Family::counter(
        "cache_miss_total",
        "Calls that the cache had no usable response for.",
    );
    let mut permits = Family::counter("permits_total", "Decisions about attempts.");
    let mut violations = Family::counter(
        "violations_total",
        "429s that the provider sent although the ledger had room.",
    );
    for one in providers {
        let labels = [(PROVIDER, &*one.name)];
        let mut codes: BTreeMap<String, u64> = one.metrics.requests().into_iter().collect();
        codes.entry("200".to_owned()).or_default();
        for (code, count) in codes {
            requests.add([(PROVIDER, &*one.name), ("code", &code)], count);
        }
        let active = one.active.as_ref();
        let counts = active.map(|active| active.counts(tollgate_core::time::Micros(0)));
        let counts = counts.unwrap_or_default();
        hits.add(labels, counts.cache_hits);
        misses.add(labels, counts.cache_misses);
        for permit in one.metrics.permits() {
            let labels = [
                (PROVIDER, &*one.name),
                ("priority", priority_word(permit.priority)),
                ("decision", permit.decision),
                ("reason", permit.reason),
            ];
            permits.add(labels, permit.count);
        }
        violations.add(labels, one.metrics.violations());
    }
    vec![requests, hits, misses, permits, violations]
}

fn histograms(providers: &[Listed]) -> Vec<Family> {
    let mut latency = Family::histogram(
        "latency_ms",
        "From the permit to the head of the response, in milliseconds.",
    );
    let mut sleep = Family::histogram(
        "sleep_ms",
        "How long the provider slept each time, in milliseconds.",
    );
    let mut waits = Family::histogram(
        "permit_wait_seconds",
        "How long calls waited for their permits, most of them not at all.",
    );
    for one in providers {
        let labels = [(PROVIDER, &*one.name)];
        latency.push(
            labels,
            SampleValue::of_micros(&one.metrics.latency(), MICROS_PER_MILLI),
        );
        sleep.push(
            labels,
            SampleValue::of_micros(&one.metrics.sleeps(), MICROS_PER_MILLI),
        );
        for priority in PRIORITIES {
            let labels = [
                (PROVIDER, &*one.name),
                ("priority", priority_word(priority)),
            ];
            let value = SampleValue::of_micros(&one.metrics.waits(priority), MICROS_PER_SECOND);
            waits.push(labels, value);
        }
    }
    vec![latency, sleep, waits]
}

fn priority_word(priority: Priority) -> &'static str {
    match priority {
        Priority::High => "high",
        Priority::Normal => "normal",
        Priority::Low => "low",
    }
}

#[expect(clippy::cast_precision_loss, reason = "a number that is only shown")]
fn ratio(millionths: u64) -> f64 {
    millionths as f64 / 1_000_000.0
}

/// Of each limit per entity, what remains for the entity that has the least, and its depth.
async fn tightest_of_entities(active: &ActiveProvider) -> BTreeMap<String, (u64, u64)> {
    let names = active.entities();
    let asked: Vec<Option<&str>> = names.iter().map(|name| Some(&**name)).collect();
    if asked.is_empty() {
        return BTreeMap::new();
    }
    let mut tightest: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    let (parts, _) = active.parts_and_429s(&asked).await;
    for limit in parts.into_iter().flat_map(|part| part.limits) {
        let Some(view) = limit.view else { continue };
        let counts = (view.remaining, limit.depth);
        let known = tightest.entry(limit.name).or_insert(counts);
        if counts.0 < known.0 {
            *known = counts;
        }
    }
    tightest
}
