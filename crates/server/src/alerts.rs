//! Alerts at run time (S10): evaluated from the metrics of every entity, logged, emitted, and sent to webhooks.
//!
//! Promises: one message when an alert begins or changes its level, one when it ends, to each webhook, also across a
//! restart. A message is tried until the receiver responds with 2xx, at growing distances, for about a day.
//!
//! Never: holds up a call. Nothing is logged about a webhook but its number: its address may be a key.

mod webhook;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tollgate::event::Event;
use tollgate::providers::EntityMetrics;
use tollgate_core::alert::{Alert, AlertKind, AlertStage, AlertTracker, Notice};
use tollgate_core::time::{Span, Wall};

use crate::daemon::Daemon;
use crate::desk::OutboxMessage;
use crate::history::resolved;
use crate::json::epoch;

/// How often conditions are looked at: an alert is for people.
const EVALUATE_EVERY: Duration = Duration::from_secs(5);

/// The longest time between two looks at the outbox: another daemon with the same state folder may have added to it.
const LOOK_EVERY: Span = Span::from_secs(60);

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
    tracker: Mutex<AlertTracker>,
    /// Whose alert a name is, from its first message to its last.
    owners: Mutex<BTreeMap<String, (String, Option<String>)>>,
    added: Notify,
}

impl Alerts {
    /// Starts, with the alerts that were active before a restart. Must be called inside a tokio runtime.
    pub async fn start(daemon: &Daemon, options: AlertOptions) -> Alerts {
        let shared = Arc::new(AlertState {
            daemon: daemon.clone(),
            options,
            tracker: Mutex::default(),
            owners: Mutex::default(),
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
        let delivering = shared.clone();
        tasks.spawn(async move {
            loop {
                let next = delivering.deliver_due().await;
                // Woken, or time for the next attempt: both mean to look again.
                timeout(next.into(), delivering.added.notified()).await.ok();
            }
        });
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
        let alerts = self
            .daemon
            .on_desk(|desk| desk.active_alerts())
            .await
            .unwrap_or_default();
        let now = self.daemon.registry().ledger().at();
        let mut by_name: BTreeMap<String, Vec<_>> = BTreeMap::new();
        for alert in alerts {
            by_name.entry(alert.name.clone()).or_default().push(alert);
        }
        let mut tracker = self.tracker.lock();
        for (name, alerts) in by_name {
            let _reported_before = tracker.update(&name, alerts, now);
        }
    }

    async fn evaluate(&self) {
        let registry = self.daemon.registry();
        let found = registry.metrics(None, None).await.unwrap_or_default();
        let now = registry.ledger().at();
        let mut news: Vec<Notice> = Vec::new();
        {
            let (mut tracker, mut owners) = (self.tracker.lock(), self.owners.lock());
            let stores = self.lost_stores();
            let is_there = |name: &str| {
                let is_store = stores.contains(&name);
                is_store || found.iter().any(|one| one.key == name)
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
        let event = event_id(&alert.name, alert.kind, is_firing, wall);
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
        let added = self
            .daemon
            .on_desk(move |desk| desk.add_messages(&alert, is_firing, &messages));
        if added.await.is_some() {
            self.added.notify_one();
        }
    }

    /// Sends what is due. Returns how long to wait for the next.
    async fn deliver_due(&self) -> Span {
        if self.daemon.loaded().config.webhooks.is_empty() {
            return LOOK_EVERY;
        }
        let messages = self
            .daemon
            .on_desk(|desk| desk.messages())
            .await
            .unwrap_or_default();
        let mut wait = LOOK_EVERY;
        for message in messages {
            let now = micros(self.daemon.registry().ledger().wall());
            // A clock that was set back must not hold a message for longer than a pause.
            let early = message.next_at.saturating_sub(now);
            let is_early =
                early > 0 && early <= i64::try_from(self.options.retry_max.0).unwrap_or(i64::MAX);
            let next = if is_early {
                Span(early.unsigned_abs())
            } else {
                self.deliver(message).await
            };
            wait = wait.min(next);
        }
        wait
    }

    /// Sends one message. Returns when to look again.
    async fn deliver(&self, mut message: OutboxMessage) -> Span {
        let webhooks = self.daemon.loaded().config.webhooks.clone();
        let known = webhooks
            .iter()
            .position(|hook| webhook::fingerprint(hook) == message.webhook);
        let Some(number) = known else {
            self.daemon
                .on_desk(move |desk| desk.remove_message(&message))
                .await;
            return LOOK_EVERY; // the webhook was removed
        };
        let sent = webhook::send(self.daemon.registry(), &webhooks[number], &message).await;
        let Err(why) = sent else {
            self.daemon
                .on_desk(move |desk| desk.remove_message(&message))
                .await;
            return LOOK_EVERY;
        };
        message.attempts += 1;
        let gives_up = message.attempts >= self.options.attempts_max;
        let attempts = message.attempts;
        // Only the first failure and the end: a receiver that is away for a day would fill the log.
        if attempts == 1 || gives_up {
            self.daemon.registry().events().emit(Event::WebhookFailed {
                number: number + 1,
                attempts,
                gives_up,
                why: why.into(),
            });
        }
        if gives_up {
            self.daemon
                .on_desk(move |desk| desk.remove_message(&message))
                .await;
            return LOOK_EVERY;
        }
        let doubled = self
            .options
            .retry_base
            .0
            .saturating_mul(1_u64 << attempts.min(20).saturating_sub(1));
        let pause = Span(doubled).min(self.options.retry_max);
        let now = self.daemon.registry().ledger().wall();
        message.next_at = micros(now).saturating_add(i64::try_from(pause.0).unwrap_or(i64::MAX));
        self.daemon
            .on_desk(move |desk| desk.postpone_message(&message))
            .await;
        pause
    }
}

/// The same for every webhook, and different for every change of an alert.
fn event_id(name: &str, kind: AlertKind, is_firing: bool, wall: Wall) -> String {
    let stage = if is_firing { "firing" } else { "resolved" };
    webhook::digest(&format!("{name}\n{}\n{stage}\n{}", kind.as_str(), wall.0))
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
