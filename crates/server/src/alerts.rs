//! Alerts at run time (S10): evaluated from the metrics of every entity, logged, emitted, and sent to webhooks.
//!
//! Promises: one message when an alert begins or changes its level, one when it ends, to each webhook, also across a
//! restart. An alert from before a restart ends only when its provider is called again and the condition is gone, or
//! when no file names it any more. Alerts belong to the daemons of one store: others with the same state folder do not
//! see them.
//!
//! Never: holds up a call. Nothing is logged about a webhook but its number: its address may be a key.

mod delivery;
mod webhook;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};
use tollgate::event::Event;
use tollgate::providers::EntityMetrics;
use tollgate_config::Config;
use tollgate_core::alert::{Alert, AlertKind, AlertStage, AlertTracker, Notice};
use tollgate_core::time::{Span, Wall};
use tollgate_ledger::lock_order::{RankedMutex, rank};

use crate::daemon::{Daemon, OpenAlert};
use crate::desk::{ActiveAlert, OutboxMessage};
use crate::history::resolved;
use crate::json::epoch;

/// How often conditions are looked at: an alert is for people.
const EVALUATE_EVERY: Duration = Duration::from_secs(5);

/// How alerts are sent.
#[derive(Clone, Copy, Debug)]
pub struct AlertOptions {
    /// The first distance between two attempts; each further one doubles it.
    pub retry_base: Span,
    /// The longest one.
    pub retry_max: Span,
    /// Attempts before a message is given up: with the defaults, after 24 hours.
    pub attempts_max: u32,
}

impl Default for AlertOptions {
    fn default() -> AlertOptions {
        AlertOptions {
            retry_base: Span::from_secs(1),
            retry_max: Span::from_secs(300),
            attempts_max: 300,
        }
    }
}

/// Evaluates and delivers until it is dropped.
#[derive(Debug)]
pub struct Alerts {
    shared: Arc<AlertState>,
    _tasks: JoinSet<()>,
}

#[derive(Debug)]
struct AlertState {
    daemon: Daemon,
    options: AlertOptions,
    tracker: RankedMutex<{ rank::ALERTS }, AlertTracker>,
    /// Whose alert a name is, from its first message to its last.
    owners: RankedMutex<{ rank::ALERT_OWNERS }, BTreeMap<String, (String, Option<String>)>>,
    /// Alerts from before a restart about which nothing is known yet.
    restored: RankedMutex<{ rank::RESTORED_ALERTS }, BTreeSet<String>>,
    /// Whose alerts these are in the desk: those of this store.
    identity: String,
    added: Notify,
}

impl Alerts {
    /// Starts, with the alerts that were active before a restart. Must be called inside a tokio runtime.
    pub async fn start(daemon: &Daemon, options: AlertOptions) -> Alerts {
        let store = daemon.loaded().config.store.redacted();
        let shared = Arc::new(AlertState {
            daemon: daemon.clone(),
            options,
            tracker: RankedMutex::default(),
            owners: RankedMutex::default(),
            restored: RankedMutex::default(),
            identity: webhook::digest(&store),
            added: Notify::new(),
        });
        shared.restore().await;
        let mut tasks = JoinSet::new();
        let evaluating = shared.clone();
        tasks.spawn(async move {
            let mut ticks = interval(EVALUATE_EVERY);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                ticks.tick().await;
                evaluating.evaluate().await;
            }
        });
        tasks.spawn(shared.clone().deliver());
        Alerts {
            shared,
            _tasks: tasks,
        }
    }

    /// Looks at all conditions now.
    pub async fn evaluate(&self) {
        self.shared.evaluate().await;
    }
}

impl AlertState {
    /// Alerts that were active are not reported again.
    async fn restore(&self) {
        let identity = self.identity.clone();
        let stored = self
            .daemon
            .on_desk(move |desk| desk.active_alerts(&identity))
            .await
            .unwrap_or_default();
        let now = self.daemon.registry().ledger().at();
        let mut by_name: BTreeMap<String, Vec<_>> = BTreeMap::new();
        for one in stored {
            let name = one.alert.name.clone();
            let owner = (one.provider, one.entity);
            self.owners.lock().insert(name.clone(), owner);
            self.restored.lock().insert(name.clone());
            by_name.entry(name).or_default().push(one.alert);
        }
        {
            let mut tracker = self.tracker.lock();
            for (name, alerts) in by_name {
                let _reported_before = tracker.update(&name, alerts, now);
            }
        }
        self.publish(None);
    }

    /// Shows what fires now, to those who did not see it begin.
    fn publish(&self, began: Option<f64>) {
        let firing: Vec<Alert> = self.tracker.lock().firing().cloned().collect();
        let owners = self.owners.lock().clone();
        let open = firing.iter().map(|alert| {
            let known = owners.get(&alert.name).cloned();
            let (provider, entity) = known.unwrap_or_else(|| (alert.name.clone(), None));
            OpenAlert::new(alert, provider, entity)
        });
        self.daemon.set_open_alerts(open.collect(), began);
    }

    async fn evaluate(&self) {
        let registry = self.daemon.registry();
        let found = registry.metrics(None, None).await.unwrap_or_default();
        let now = registry.ledger().at();
        let loaded = self.daemon.loaded();
        let mut news: Vec<Notice> = Vec::new();
        {
            let (mut tracker, mut owners) = (self.tracker.lock(), self.owners.lock());
            let stores = self.lost_stores();
            let mut restored = self.restored.lock();
            restored.retain(|name| is_unknown(&loaded.config, owners.get(name), &found));
            let is_there = |name: &str| {
                let is_known = stores.contains(&name) || restored.contains(name);
                is_known || found.iter().any(|one| one.key == name)
            };
            let gone: Vec<String> = tracker.firing().map(|alert| alert.name.clone()).collect();
            for name in gone.iter().filter(|name| !is_there(name)) {
                news.extend(tracker.update(name, Vec::new(), now));
            }
            for store in stores {
                news.extend(tracker.update(store, vec![Alert::store_lost(store)], now));
            }
            for EntityMetrics {
                key,
                provider,
                entity,
                alerts,
                ..
            } in found
            {
                if !alerts.is_empty() {
                    owners.insert(key.clone(), (provider, entity));
                }
                news.extend(tracker.update(&key, alerts, now));
            }
            let active: Vec<&str> = tracker.firing().map(|alert| &*alert.name).collect();
            let has_news = |name: &str| news.iter().any(|notice| notice.alert.name == name);
            owners.retain(|name, _| active.contains(&&**name) || has_news(name));
        }
        self.publish(Some(epoch(registry.ledger().wall())));
        for notice in news {
            self.report(notice).await;
        }
    }

    /// The stores that cannot be reached. No provider has a name with a space.
    fn lost_stores(&self) -> Vec<&'static str> {
        let ledger = self.daemon.registry().ledger().loss();
        let guards = self.daemon.decisions().guards().store_loss();
        let lost = [
            ledger.map(|_| "the store"),
            guards.map(|_| "the store of guards"),
        ];
        lost.into_iter().flatten().collect()
    }

    /// Logs a change of an alert, emits it, and puts it into the outbox.
    async fn report(&self, notice: Notice) {
        let Notice { stage, alert } = notice;
        let known = self.owners.lock().get(&alert.name).cloned();
        let (provider, entity) = known.unwrap_or_else(|| (alert.name.clone(), None));
        let is_firing = stage == AlertStage::Firing;
        let registry = self.daemon.registry();
        registry.events().emit(Event::Alert {
            provider: provider.as_str().into(),
            entity: entity.as_deref().map(Into::into),
            alert: Box::new(alert.clone()),
            is_firing,
        });
        let wall = registry.ledger().wall();
        let event = event_id(&self.identity, &alert, is_firing, wall);
        let body = json!({
            "id": event,
            "ts": epoch(wall),
            "level": alert.level.as_str(),
            "provider": provider,
            "entity": entity,
            "kind": alert.kind.as_str(),
            "message": if is_firing { alert.to_string() } else { resolved(&alert) },
            "value": shown(alert.kind, alert.value),
            "threshold": shown(alert.kind, alert.threshold),
            "status": if is_firing { "firing" } else { "resolved" },
        });
        let body = body.to_string();
        let webhooks = self.daemon.loaded().config.webhooks.clone();
        let messages: Vec<OutboxMessage> = webhooks
            .iter()
            .map(|hook| OutboxMessage {
                event: event.clone(),
                webhook: webhook::fingerprint(hook),
                body: body.clone(),
                attempts: 0,
                next_at: micros(wall),
            })
            .collect();
        if webhooks.is_empty() && !self.daemon.has_desk() {
            return; // no file for nothing
        }
        let identity = self.identity.clone();
        let active = ActiveAlert {
            alert,
            provider,
            entity,
        };
        let added = self
            .daemon
            .on_desk(move |desk| desk.add_messages(&identity, &active, is_firing, &messages));
        if added.await.is_some() {
            self.added.notify_one();
        }
    }
}

/// The same for every webhook, and different for every change of an alert and for every daemon.
fn event_id(identity: &str, alert: &Alert, is_firing: bool, wall: Wall) -> String {
    let stage = if is_firing { "firing" } else { "resolved" };
    let (name, kind) = (&alert.name, alert.kind.as_str());
    webhook::digest(&format!("{identity}\n{name}\n{kind}\n{stage}\n{}", wall.0))
}

/// A hit rate is a number from 0 to 1.
#[expect(clippy::cast_precision_loss, reason = "a number that is only shown")]
fn shown(kind: AlertKind, value: u64) -> serde_json::Value {
    match kind {
        AlertKind::Remaining | AlertKind::Rate429 | AlertKind::StoreLost => json!(value),
        AlertKind::CacheHitRate => json!(value as f64 / 1_000_000.0),
    }
}

fn micros(wall: Wall) -> i64 {
    i64::try_from(wall.0).unwrap_or(i64::MAX)
}

/// Is nothing known yet about an alert from before a restart? Its provider is still configured, and neither it
/// nor its entity has been called since.
fn is_unknown(
    config: &Config,
    owner: Option<&(String, Option<String>)>,
    found: &[EntityMetrics],
) -> bool {
    let Some((provider, entity)) = owner else {
        return false;
    };
    let is_configured = config.all_providers().any(|one| one.name == *provider);
    let mut own = found.iter().filter(|one| one.provider == *provider);
    let is_called = match entity {
        Some(_) => own.any(|one| one.entity == *entity),
        None => own.next().is_some(),
    };
    is_configured && !is_called
}
