//! The alerts that fire now, for people who look later than they began.
//!
//! Promises: at most [`SHOWN_MAX`], critical ones first. An alert from before a restart is among them.
//!
//! Never: decides what fires: `alerts.rs` does.

use std::sync::Arc;

use serde::Serialize;
use tollgate_core::alert::{Alert, Level};

use super::Daemon;

/// The most alerts that are shown: more than a screen has.
const SHOWN_MAX: usize = 100;

/// An alert that fires, as the event of its beginning has it.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct OpenAlert {
    /// When it began; `null` = before the daemon started.
    ts: Option<f64>,
    /// `warning` or `error`.
    level: &'static str,
    provider: String,
    entity: Option<String>,
    /// Which alert: its events have the same.
    alert: String,
    text: String,
}

impl OpenAlert {
    pub(crate) fn new(alert: &Alert, provider: String, entity: Option<String>) -> OpenAlert {
        OpenAlert {
            ts: None,
            level: match alert.level {
                Level::Critical => "error",
                Level::Warning => "warning",
            },
            provider,
            entity,
            alert: format!("{} {}", alert.name, alert.kind.as_str()),
            text: alert.to_string(),
        }
    }
}

impl Daemon {
    /// These alerts fire; those that did not before began at this time.
    pub(crate) fn set_open_alerts(&self, mut firing: Vec<OpenAlert>, began: Option<f64>) {
        let mut open = self.shared.open_alerts.lock();
        for one in &mut firing {
            let known = open.iter().find(|known| known.alert == one.alert);
            one.ts = known.map_or(began, |known| known.ts);
        }
        firing.sort_by_key(|one| one.level != "error");
        firing.truncate(SHOWN_MAX);
        *open = firing.into();
    }

    /// The alerts that fire.
    pub(crate) fn open_alerts(&self) -> Arc<[OpenAlert]> {
        self.shared.open_alerts.lock().clone()
    }
}
