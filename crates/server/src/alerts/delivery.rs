//! Messages of alerts, from the outbox to the webhooks.
//!
//! Promises: each webhook gets its messages in the order in which they were written: a message follows only when the
//! one before it is delivered or given up. A webhook that does not respond holds up no other. A message is tried until
//! the receiver responds with 2xx, at growing distances, for about a day.
//!
//! Never: logs the address of a webhook, only its number.

use std::collections::BTreeSet;
use std::sync::Arc;

use tokio::task::JoinSet;
use tokio::time::timeout;
use tollgate::event::Event;
use tollgate_core::time::Span;

use super::{AlertState, micros, webhook};
use crate::desk::OutboxMessage;

/// The longest time between two looks at the outbox: another daemon of the same store may have added to it.
const LOOK_EVERY: Span = Span::from_secs(60);

impl AlertState {
    /// Delivers until it is dropped. At most one message to a webhook is under way.
    pub(super) async fn deliver(self: Arc<Self>) {
        let mut busy: BTreeSet<String> = BTreeSet::new();
        let mut under_way: JoinSet<String> = JoinSet::new();
        loop {
            let (due, wait) = self.due(&busy).await;
            for message in due {
                busy.insert(message.webhook.clone());
                let this = self.clone();
                under_way.spawn(async move {
                    let webhook = message.webhook.clone();
                    this.deliver_one(message).await;
                    webhook
                });
            }
            // Added, delivered, or time for the next attempt: all mean to look again.
            tokio::select! {
                Some(done) = under_way.join_next() => match done {
                    Ok(webhook) => {
                        busy.remove(&webhook);
                    }
                    // A panic does not say whose: all that are still under way are found again.
                    Err(_) => busy.clear(),
                },
                _ = timeout(wait.into(), self.added.notified()) => {}
            }
        }
    }

    /// The oldest message of each webhook that is not busy, if its time has come; and how long to wait for the next.
    async fn due(&self, busy: &BTreeSet<String>) -> (Vec<OutboxMessage>, Span) {
        let mut wait = LOOK_EVERY;
        if self.daemon.loaded().config.webhooks.is_empty() {
            return (Vec::new(), wait);
        }
        let identity = self.identity.clone();
        let read = self.daemon.on_desk(move |desk| desk.messages(&identity));
        let mut seen = busy.clone();
        let mut due = Vec::new();
        for message in read.await.unwrap_or_default() {
            if !seen.insert(message.webhook.clone()) {
                continue; // it waits for one before it
            }
            let now = micros(self.daemon.registry().ledger().wall());
            // A clock that was set back must not hold a message for longer than a pause.
            let early = message.next_at.saturating_sub(now);
            let longest = i64::try_from(self.options.retry_max.0).unwrap_or(i64::MAX);
            if early > 0 && early <= longest {
                wait = wait.min(Span(early.unsigned_abs()));
            } else {
                due.push(message);
            }
        }
        (due, wait)
    }

    /// Sends one message: it is removed from the outbox, or postponed.
    async fn deliver_one(&self, mut message: OutboxMessage) {
        let webhooks = self.daemon.loaded().config.webhooks.clone();
        let known = webhooks
            .iter()
            .position(|hook| webhook::fingerprint(hook) == message.webhook);
        let Some(number) = known else {
            return self.remove(message).await; // the webhook was removed
        };
        let sent = webhook::send(self.daemon.registry(), &webhooks[number], &message).await;
        let Err(why) = sent else {
            return self.remove(message).await;
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
            return self.remove(message).await;
        }
        let doubled = self
            .options
            .retry_base
            .0
            .saturating_mul(1_u64 << attempts.min(20).saturating_sub(1));
        let pause = Span(doubled).min(self.options.retry_max);
        let now = self.daemon.registry().ledger().wall();
        message.next_at = micros(now).saturating_add(i64::try_from(pause.0).unwrap_or(i64::MAX));
        let postponed = self
            .daemon
            .on_desk(move |desk| desk.postpone_message(&message));
        if postponed.await.is_none() {
            pause_without_desk().await;
        }
    }

    async fn remove(&self, message: OutboxMessage) {
        let removed = self
            .daemon
            .on_desk(move |desk| desk.remove_message(&message));
        if removed.await.is_none() {
            pause_without_desk().await;
        }
    }
}

/// The desk could not be written, so the message is still due: without a pause the webhook would get it again at once, and
/// again.
#[expect(
    clippy::disallowed_methods,
    reason = "the desk cannot say when the message is due"
)]
async fn pause_without_desk() {
    tokio::time::sleep(LOOK_EVERY.into()).await;
}
