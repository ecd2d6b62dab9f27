//! Alerts that are not delivered yet, and alerts that are active: both survive a restart.
//!
//! Promises: a message stays until it is delivered or given up; at most [`OUTBOX_MAX`], the oldest go first. Alerts
//! and messages belong to a daemon: daemons with different stores may share the file, and none sees those of another.
//!
//! Never: holds the address or the secret of a webhook; both may be keys. A message knows the fingerprint of its
//! address only.

use rusqlite::{TransactionBehavior, params};
use tollgate_core::alert::{Alert, AlertKind, Level};

use super::{Desk, DeskError};

/// The most messages: at 500 bytes each half a megabyte. An alert sends two, so a receiver that is gone for a day
/// finds those of 500 alerts.
pub const OUTBOX_MAX: i64 = 1_000;

/// A message to one webhook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutboxMessage {
    /// The id of the event; the same for every webhook.
    pub event: String,
    /// The fingerprint of the webhook's address.
    pub webhook: String,
    /// The body as it is signed and sent.
    pub body: String,
    /// How often it was tried.
    pub attempts: u32,
    /// When to try next, in microseconds since the epoch.
    pub next_at: i64,
}

/// An active alert, and whose it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActiveAlert {
    /// The alert.
    pub alert: Alert,
    /// Its provider, or what stands for it.
    pub provider: String,
    /// Its entity.
    pub entity: Option<String>,
}

impl Desk {
    /// Adds messages of a daemon, and notes whether their alert is active.
    pub fn add_messages(
        &self,
        daemon: &str,
        active: &ActiveAlert,
        is_firing: bool,
        messages: &[OutboxMessage],
    ) -> Result<(), DeskError> {
        let alert = &active.alert;
        let mut database = self.database.lock();
        let change = database.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let key = params![daemon, alert.name, alert.kind.as_str()];
        change.execute(
            "DELETE FROM alerts WHERE daemon = ?1 AND name = ?2 AND kind = ?3",
            key,
        )?;
        if is_firing {
            let (value, threshold) = (stored(alert.value), stored(alert.threshold));
            change.execute(
                "INSERT INTO alerts VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
                params![
                    alert.name,
                    alert.kind.as_str(),
                    alert.level.as_str(),
                    value,
                    threshold,
                    active.provider,
                    active.entity,
                    daemon
                ],
            )?;
        }
        for message in messages {
            change.execute(
                "INSERT INTO outbox VALUES (?1, ?2, ?3, ?4, ?5, ?6) ON CONFLICT DO NOTHING",
                params![
                    message.event,
                    message.webhook,
                    message.body,
                    message.attempts,
                    message.next_at,
                    daemon
                ],
            )?;
        }
        change.execute(
            "DELETE FROM outbox WHERE rowid IN (SELECT rowid FROM outbox ORDER BY rowid DESC LIMIT -1 OFFSET ?1)",
            [OUTBOX_MAX],
        )?;
        change.commit()?;
        Ok(())
    }

    /// The alerts of a daemon that were active when they were last written. Those that nobody owns are its own from
    /// now on, with their messages.
    pub fn active_alerts(&self, daemon: &str) -> Result<Vec<ActiveAlert>, DeskError> {
        let database = self.database.lock();
        for table in ["alerts", "outbox"] {
            let adopt = format!("UPDATE OR REPLACE {table} SET daemon = ?1 WHERE daemon = ''");
            database.execute(&adopt, [daemon])?;
        }
        let mut query = database.prepare_cached(
            "SELECT name, kind, level, value, threshold, provider, entity FROM alerts WHERE daemon = ?1",
        )?;
        let rows = query.query_map([daemon], |row| {
            let (kind, level): (String, String) = (row.get(1)?, row.get(2)?);
            let number = |value: i64| u64::try_from(value).unwrap_or(0);
            let alert = Alert {
                name: row.get(0)?,
                kind: match kind.as_str() {
                    "remaining" => AlertKind::Remaining,
                    "rate_429" => AlertKind::Rate429,
                    "store_lost" => AlertKind::StoreLost,
                    _ => AlertKind::CacheHitRate,
                },
                level: match level.as_str() {
                    "critical" => Level::Critical,
                    _ => Level::Warning,
                },
                value: number(row.get(3)?),
                threshold: number(row.get(4)?),
            };
            Ok(ActiveAlert {
                alert,
                provider: row.get(5)?,
                entity: row.get(6)?,
            })
        })?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// The messages of a daemon, oldest first.
    pub fn messages(&self, daemon: &str) -> Result<Vec<OutboxMessage>, DeskError> {
        let database = self.database.lock();
        let columns = "SELECT event, webhook, body, attempts, next_at FROM outbox WHERE daemon = ?1 ORDER BY rowid";
        let mut query = database.prepare_cached(columns)?;
        let rows = query.query_map([daemon], |row| {
            Ok(OutboxMessage {
                event: row.get(0)?,
                webhook: row.get(1)?,
                body: row.get(2)?,
                attempts: row.get(3)?,
                next_at: row.get(4)?,
            })
        })?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// A message was delivered, or is given up.
    pub fn remove_message(&self, message: &OutboxMessage) -> Result<(), DeskError> {
        let database = self.database.lock();
        let key = params![message.event, message.webhook];
        database.execute("DELETE FROM outbox WHERE event = ?1 AND webhook = ?2", key)?;
        Ok(())
    }

    /// A message was not delivered: when to try again.
    pub fn postpone_message(&self, message: &OutboxMessage) -> Result<(), DeskError> {
        let database = self.database.lock();
        database.execute(
            "UPDATE outbox SET attempts = ?3, next_at = ?4 WHERE event = ?1 AND webhook = ?2",
            params![
                message.event,
                message.webhook,
                message.attempts,
                message.next_at
            ],
        )?;
        Ok(())
    }
}

fn stored(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alert() -> ActiveAlert {
        ActiveAlert {
            alert: Alert {
                level: Level::Critical,
                kind: AlertKind::Remaining,
                name: "fixtures".to_owned(),
                value: 7,
                threshold: 200,
            },
            provider: "football".to_owned(),
            entity: Some("fixtures".to_owned()),
        }
    }

    fn message(number: i64) -> OutboxMessage {
        OutboxMessage {
            event: format!("e{number}"),
            webhook: "w".to_owned(),
            body: "{}".to_owned(),
            attempts: 0,
            next_at: number,
        }
    }

    #[test]
    fn an_alert_is_active_until_it_is_resolved() {
        let desk = Desk::in_memory().unwrap();
        desk.add_messages("a", &alert(), true, &[message(1)])
            .unwrap();
        assert_eq!(desk.active_alerts("a").unwrap(), [alert()]);
        desk.add_messages("a", &alert(), false, &[message(2)])
            .unwrap();
        assert_eq!(desk.active_alerts("a").unwrap(), []);
        assert_eq!(desk.messages("a").unwrap(), [message(1), message(2)]);
    }

    #[test]
    fn a_daemon_sees_only_its_own_alerts_and_messages() {
        let desk = Desk::in_memory().unwrap();
        desk.add_messages("a", &alert(), true, &[message(1)])
            .unwrap();
        assert_eq!(desk.active_alerts("b").unwrap(), []);
        assert_eq!(desk.messages("b").unwrap(), []);
        desk.add_messages("b", &alert(), false, &[]).unwrap();
        assert_eq!(desk.active_alerts("a").unwrap(), [alert()]);
        desk.add_messages("", &alert(), true, &[message(2)])
            .unwrap();
        assert_eq!(desk.active_alerts("b").unwrap(), [alert()], "nobody's");
        assert_eq!(desk.messages("b").unwrap(), [message(2)]);
    }

    #[test]
    fn the_oldest_messages_go_first_when_the_outbox_is_full() {
        let desk = Desk::in_memory().unwrap();
        let all: Vec<OutboxMessage> = (0..OUTBOX_MAX + 2).map(message).collect();
        desk.add_messages("a", &alert(), true, &all).unwrap();
        let kept = desk.messages("a").unwrap();
        assert_eq!((kept.len(), &*kept[0].event), (1_000, "e2"));
        desk.postpone_message(&OutboxMessage {
            attempts: 3,
            next_at: 9_999,
            ..kept[0].clone()
        })
        .unwrap();
        let kept = desk.messages("a").unwrap();
        assert_eq!((kept[0].attempts, &*kept[0].event), (3, "e2"), "in order");
        desk.remove_message(&kept[0]).unwrap();
        assert_eq!(desk.messages("a").unwrap().len(), 999);
    }
}
