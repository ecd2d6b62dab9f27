//! Tracks active alerts, so that each is reported once.
//!
//! Promises: one notice when an alert begins, one when its level changes, one when it ends; none in
//! between. An alert ends after its condition has been gone for [`QUIET_FOR`].
//!
//! Never: grows beyond [`ALERTS_MAX`], whatever names callers invent.

use std::collections::BTreeMap;

use super::{Alert, AlertKind};
use crate::time::{Micros, Span};

/// How long a condition must be gone before its alert ends.
pub const QUIET_FOR: Span = Span::from_secs(60);

/// The most active alerts: three kinds for some 300 entities, at about 150 bytes each. Further
/// names come from callers, not from a provider, and are not reported.
pub const ALERTS_MAX: usize = 1_000;

/// Whether an alert begins or ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AlertStage {
    /// It has begun, or its level has changed.
    Firing,
    /// It has ended.
    Resolved,
}

/// A change of an alert, to be reported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// Whether it begins or ends.
    pub stage: AlertStage,
    /// The alert with its last values.
    pub alert: Alert,
}

/// The active alerts: reported and not ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AlertTracker {
    active: BTreeMap<(String, AlertKind), Entry>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    alert: Alert,
    quiet_since: Option<Micros>,
}

impl AlertTracker {
    /// Compares the current alerts of `name` with its active ones.
    pub fn update(&mut self, name: &str, alerts: Vec<Alert>, now: Micros) -> Vec<Notice> {
        let mut notices = self.resolve_quiet(name, &alerts, now);
        for alert in alerts {
            let key = (name.to_owned(), alert.kind);
            let known = self.active.get(&key);
            let is_news = known.is_none_or(|entry| entry.alert.level != alert.level);
            if known.is_none() && self.active.len() >= ALERTS_MAX {
                continue;
            }
            if is_news {
                notices.push(Notice {
                    stage: AlertStage::Firing,
                    alert: alert.clone(),
                });
            }
            let entry = Entry {
                alert,
                quiet_since: None,
            };
            self.active.insert(key, entry);
        }
        notices
    }

    /// When an alert may end: update every name then. `None` = every condition still holds.
    #[must_use]
    pub fn next_tick(&self) -> Option<Micros> {
        let quiet = self.active.values().filter_map(|entry| entry.quiet_since);
        quiet.min().map(|since| since + QUIET_FOR)
    }

    /// The active alerts.
    pub fn firing(&self) -> impl Iterator<Item = &Alert> {
        self.active.values().map(|entry| &entry.alert)
    }

    /// Notes since when a condition is gone, and ends the alerts whose condition has been gone long
    /// enough.
    fn resolve_quiet(&mut self, name: &str, seen: &[Alert], now: Micros) -> Vec<Notice> {
        let mut over = Vec::new();
        for kind in [
            AlertKind::Remaining,
            AlertKind::Rate429,
            AlertKind::CacheHitRate,
            AlertKind::StoreLost,
        ] {
            let key = (name.to_owned(), kind);
            let Some(entry) = self.active.get_mut(&key) else {
                continue;
            };
            if seen.iter().any(|alert| alert.kind == kind) {
                continue;
            }
            let since = *entry.quiet_since.get_or_insert(now);
            if now.since(since) >= QUIET_FOR {
                over.push(Notice {
                    stage: AlertStage::Resolved,
                    alert: entry.alert.clone(),
                });
                self.active.remove(&key);
            }
        }
        over
    }
}
