//! Rare events as people read them: a sentence, a level, a provider.
//!
//! Promises: at most [`EVENTS_MAX`] are remembered, each with a number that grows, also across a restart; a reader
//! that missed some learns which. Some 300 bytes each: 150 KiB.
//!
//! Never: contains a key, a query or a body; events have none.

use std::collections::VecDeque;
use std::sync::Arc;

use serde::Serialize;
use tokio::sync::watch;
use tollgate::event::{Event, Notification};
use tollgate_core::alert::{Alert, AlertKind, Level as AlertLevel};
use tollgate_core::health::{HealthState, HealthStatus, Reason};

/// The most events that are remembered: days of a quiet daemon, and what a screen can show of a busy
/// one.
pub(crate) const EVENTS_MAX: usize = 500;

/// An event on the page.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct PageEvent {
    /// Its number. The first one of a process is the time of its start in milliseconds, so that a page that has seen
    /// an earlier process shows those of the next.
    pub(crate) id: u64,
    pub(crate) ts: f64,
    /// What is folded together: `transition`, `cooldown`, `operator`, `reload`, `store`…
    pub(crate) kind: &'static str,
    /// `info`, `warning` or `error`.
    pub(crate) level: &'static str,
    pub(crate) provider: Option<Box<str>>,
    pub(crate) text: String,
    /// The state after a transition.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) to: Option<&'static str>,
    #[serde(flatten)]
    pub(crate) alert: Option<AlertFields>,
}

/// What an alert has in addition.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct AlertFields {
    /// `firing` or `resolved`.
    status: &'static str,
    /// Which alert: firing and resolved ones have the same.
    alert: String,
    entity: Option<Box<str>>,
}

impl PageEvent {
    /// The name of its server-sent event.
    pub(crate) fn stream_name(&self) -> &'static str {
        match self.kind {
            "transition" | "cooldown" | "path" | "degrade" => "transition",
            "alert" => "alert",
            _ => "notice",
        }
    }
}

/// The remembered events.
#[derive(Debug)]
pub(crate) struct EventLog {
    events: VecDeque<Arc<PageEvent>>,
    /// The number of the newest one, for those who wait for the next.
    newest: watch::Sender<u64>,
}

impl EventLog {
    /// Numbers follow this one.
    pub(crate) fn starting_at(id: u64) -> EventLog {
        EventLog {
            events: VecDeque::new(),
            newest: watch::Sender::new(id),
        }
    }

    /// Something happened at this time.
    pub(crate) fn on(&mut self, next: &Notification, ts: f64) {
        let sentence = match next {
            Notification::Event(event) => sentence(event),
            Notification::Lost(count) => {
                let text = format!("{count} events came too fast and are not listed");
                Some(Sentence::new("lost", "warning", None, text))
            }
        };
        let Some(sentence) = sentence else { return };
        let id = *self.newest.borrow() + 1;
        if self.events.len() >= EVENTS_MAX {
            self.events.pop_front();
        }
        self.events.push_back(Arc::new(PageEvent {
            id,
            ts,
            kind: sentence.kind,
            level: sentence.level,
            provider: sentence.provider.as_deref().map(Into::into),
            text: sentence.text,
            to: sentence.to,
            alert: sentence.alert,
        }));
        self.newest.send_replace(id);
    }

    /// Those after this number, oldest first.
    pub(crate) fn after(&self, id: u64) -> Vec<Arc<PageEvent>> {
        let newer = self.events.iter().filter(|event| event.id > id);
        newer.cloned().collect()
    }

    /// Wakes when there is a new one.
    pub(crate) fn watch(&self) -> watch::Receiver<u64> {
        self.newest.subscribe()
    }
}

/// An event without its number and time.
struct Sentence {
    kind: &'static str,
    level: &'static str,
    provider: Option<Arc<str>>,
    text: String,
    to: Option<&'static str>,
    alert: Option<AlertFields>,
}

impl Sentence {
    fn new(
        kind: &'static str,
        level: &'static str,
        provider: Option<&Arc<str>>,
        text: String,
    ) -> Sentence {
        Sentence {
            kind,
            level,
            provider: provider.cloned(),
            text,
            to: None,
            alert: None,
        }
    }
}

fn sentence(event: &Event) -> Option<Sentence> {
    health_sentence(event)
        .or_else(|| operation_sentence(event))
        .or_else(|| alert_sentence(event))
        .or_else(|| trouble_sentence(event))
}

/// States, cool-downs and paths of a provider.
fn health_sentence(event: &Event) -> Option<Sentence> {
    Some(match event {
        Event::Transition {
            provider,
            to,
            reason,
            status,
            ..
        } => {
            let text = transition(*to, *reason, status);
            Sentence {
                to: Some(to.as_str()),
                ..Sentence::new("transition", level_of(*to), Some(provider), text)
            }
        }
        Event::Cooldown {
            provider,
            entity,
            duration,
            retry_after,
            ..
        } => {
            let on = entity.as_deref().map(|entity| format!(" on {entity}"));
            let why = match retry_after {
                Some(wait) => format!("429, Retry-After {}", wait.in_words()),
                None => "429".to_owned(),
            };
            let (on, lasts) = (on.unwrap_or_default(), duration.in_words());
            let text = format!("{why}{on}: cools down for {lasts}");
            Sentence::new("cooldown", "warning", Some(provider), text)
        }
        Event::Degrade {
            provider,
            entity,
            is_on,
            remaining,
            below,
            recover,
        } => {
            let on = entity.as_deref().map(|entity| format!(" of {entity}"));
            let on = on.unwrap_or_default();
            let text = match is_on {
                true => format!(
                    "Saving quota: {remaining} calls{on} remain, below {below}; only the cache responds until {recover} remain"
                ),
                false => format!("Sends again: {remaining} calls{on} remain"),
            };
            let level = if *is_on { "warning" } else { "info" };
            Sentence::new("degrade", level, Some(provider), text)
        }
        Event::PathClosed {
            provider,
            path,
            failures,
            ..
        } => {
            let path = path.as_deref().unwrap_or("other paths");
            let failures = if *failures == 1 {
                "1 failure".to_owned()
            } else {
                format!("{failures} failures")
            };
            let text = format!("{path} is closed after {failures}");
            Sentence::new("path", "warning", Some(provider), text)
        }
        Event::PathOpened { provider, path } => {
            let path = path.as_deref().unwrap_or("other paths");
            let text = format!("{path} is open again");
            Sentence::new("path", "info", Some(provider), text)
        }
        _ => return None,
    })
}

/// What operators and files did, and what the process does.
fn operation_sentence(event: &Event) -> Option<Sentence> {
    Some(match event {
        Event::OperatorCommand {
            provider,
            command,
            settings,
        } => {
            let keys = settings.as_deref().map(|keys| format!(" {keys}"));
            let text = format!("operator: {command}{}", keys.unwrap_or_default());
            Sentence::new("operator", "info", Some(provider), text)
        }
        Event::LimitsLoosened { provider, change } => {
            let text = format!("looser limits: {change}");
            Sentence::new("operator", "warning", Some(provider), text)
        }
        // The number of it counts built-in providers, which nobody sees.
        Event::Reloaded { .. } => {
            Sentence::new("reload", "info", None, "configuration loaded".to_owned())
        }
        Event::ReloadRejected { problem } => {
            let text = format!("configuration rejected: {problem}");
            Sentence::new("reload", "error", None, text)
        }
        Event::StoreBack { away, .. } => {
            let text = format!("the store is back after {}", away.in_words());
            Sentence::new("store", "info", None, text)
        }
        Event::CacheStoreBack { away } => {
            let text = format!("the store of the cache is back after {}", away.in_words());
            Sentence::new("cache", "info", None, text)
        }
        Event::GuardStoreBack { away } => {
            let text = format!("the store of guards is back after {}", away.in_words());
            Sentence::new("store", "info", None, text)
        }
        Event::Draining => Sentence::new("process", "warning", None, "shutting down".to_owned()),
        _ => return None,
    })
}

/// What needs an operator, and whether an operator learns of it.
fn alert_sentence(event: &Event) -> Option<Sentence> {
    Some(match event {
        Event::Alert {
            provider,
            entity,
            alert,
            is_firing,
        } => {
            let (status, level, text) = match is_firing {
                true => ("firing", alert.level, alert.to_string()),
                false => ("resolved", alert.level, resolved(alert)),
            };
            let level = match (is_firing, level) {
                (false, _) => "info",
                (true, AlertLevel::Critical) => "error",
                (true, AlertLevel::Warning) => "warning",
            };
            let fields = AlertFields {
                status,
                alert: format!("{} {}", alert.name, alert.kind.as_str()),
                entity: entity.as_deref().map(Into::into),
            };
            Sentence {
                alert: Some(fields),
                ..Sentence::new("alert", level, Some(provider), text)
            }
        }
        Event::WebhookFailed {
            number,
            attempts,
            gives_up,
            why,
        } => {
            let tries = if *attempts == 1 {
                "1 attempt".to_owned()
            } else {
                format!("{attempts} attempts")
            };
            let then = if *gives_up { "given up" } else { "tried again" };
            let text = format!("webhook {number}: {why} ({tries}, {then})");
            Sentence::new("webhook", "warning", None, text)
        }
        _ => return None,
    })
}

/// That an alert is over, without the number that raised it.
pub(crate) fn resolved(alert: &Alert) -> String {
    let what = match alert.kind {
        AlertKind::Remaining => "has enough requests remaining again",
        AlertKind::Rate429 => "gets no more 429s than usual",
        AlertKind::CacheHitRate => "cache hit rate is normal again",
        AlertKind::StoreLost => "can be reached again",
    };
    format!("Resolved: {} {what}", alert.name)
}

/// What does not work. Everything else is normal operation, or a fact of one call.
fn trouble_sentence(event: &Event) -> Option<Sentence> {
    let error = |kind, provider, text| Sentence::new(kind, "error", provider, text);
    let warning = |kind, provider, text| Sentence::new(kind, "warning", provider, text);
    Some(match event {
        Event::StoreLost { why } => error("store", None, format!("the store is lost: {why}")),
        Event::GuardStoreLost { why } => {
            error("store", None, format!("the store of guards is lost: {why}"))
        }
        Event::LedgerDamaged { rows } => {
            let text = format!(
                "{rows} stored rows were damaged; their limits count as used up for one period"
            );
            error("store", None, text)
        }
        Event::LedgerLogHeld { bytes } => {
            let text =
                format!("the store's log grows ({bytes} bytes): another program holds it open");
            error("store", None, text)
        }
        Event::StoreNotRemembered { why } => error("store", None, why.to_string()),
        Event::TokenNotRenewed {
            provider,
            error: why,
        } => error("token", Some(provider), format!("login failed: {why}")),
        Event::KeySuspended(one) => {
            let lasts = one.lasts.in_words();
            let text = format!("key {} is set aside for {lasts}: {}", one.key, one.why);
            error("key", Some(&one.provider), text)
        }
        Event::TlsFailed { host, why } => {
            error("tls", None, format!("TLS with {host} failed: {why}"))
        }
        Event::CacheStoreLost { why } => warning(
            "cache",
            None,
            format!("the store of the cache is lost, so it is in memory: {why}"),
        ),
        Event::CacheOnlyInMemory { why } => {
            warning("cache", None, format!("the cache is in memory only: {why}"))
        }
        Event::ConnectionsExhausted {
            provider,
            connections,
            why,
        } => {
            let text = format!("all {connections} connections are in use: {why}");
            warning("connections", Some(provider), text)
        }
        Event::GuardDenied {
            guard,
            shadow: false,
            count,
        } => {
            let plural = if *count == 1 { "" } else { "s" };
            let text = format!("guard {guard} denied {count} request{plural}");
            warning("guard", None, text)
        }
        Event::TaskQueueFull { queue, pending, .. } => {
            let plural = if *pending == 1 { "" } else { "s" };
            let text = format!("queue {queue} is full: {pending} task{plural}");
            warning("guard", None, text)
        }
        Event::DeskFailed { why } => error("desk", None, why.to_string()),
        Event::SourceFailed { source, why, .. } => {
            warning("source", None, format!("source {source} failed: {why}"))
        }
        Event::OutOfDescriptors { .. } => {
            let text = "no file descriptor is left; raise `ulimit -n`".to_owned();
            error("connections", None, text)
        }
        _ => return None,
    })
}

fn level_of(state: HealthState) -> &'static str {
    match state {
        HealthState::Normal | HealthState::HalfOpen => "info",
        HealthState::Throttle | HealthState::CacheOnly => "warning",
        HealthState::Sleep => "error",
    }
}

fn transition(to: HealthState, reason: Reason, status: &HealthStatus) -> String {
    let state = match to {
        HealthState::Normal => "Flowing".to_owned(),
        HealthState::Throttle => match status.rate {
            Some(rate) => {
                let tenths = rate.millionths().saturating_add(50_000) / 100_000;
                match tenths % 10 {
                    0 => format!("Slowed to {}/s", tenths / 10),
                    part => format!("Slowed to {}.{part}/s", tenths / 10),
                }
            }
            None => "Slowed".to_owned(),
        },
        HealthState::Sleep => match (status.hold, status.sleep_remaining) {
            (Some(hold), _) => match hold.as_str() {
                "offline" => "Offline".to_owned(),
                _ => "Paused".to_owned(),
            },
            (None, Some(remaining)) => format!("Sleeping {}", remaining.in_words()),
            (None, None) => "Sleeping".to_owned(),
        },
        HealthState::HalfOpen => "Testing".to_owned(),
        HealthState::CacheOnly => "Cache only".to_owned(),
    };
    format!("{state}: {}", reason_words(&reason.to_string()))
}

/// Why a state changed, in words.
fn reason_words(reason: &str) -> &str {
    match reason {
        "err_ratio" => "too many errors",
        "consec_429" => "429s in a row",
        "failures" => "failures in a row",
        "success_window_ok" => "calls succeed again",
        "probe_ok" => "test calls succeeded",
        "probe_failed" => "a test call failed",
        "sleep_over" => "the pause is over",
        "operator" => "by an operator",
        "auto_recover" => "tries to recover",
        "policy" => "the configuration changed",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reload(problem: &str) -> Notification {
        let problem = problem.into();
        Notification::Event(Arc::new(Event::ReloadRejected { problem }))
    }

    #[test]
    fn the_newest_events_stay_and_a_reader_gets_those_it_missed() {
        let mut log = EventLog::starting_at(0);
        for number in 0..EVENTS_MAX + 5 {
            log.on(&reload(&number.to_string()), 1.0);
        }
        assert_eq!(log.after(0).len(), EVENTS_MAX);
        let newest = log.after(EVENTS_MAX as u64 + 4);
        assert_eq!(newest.len(), 1);
        assert!(newest[0].text.ends_with("504"), "{}", newest[0].text);
        assert_eq!(*log.watch().borrow(), EVENTS_MAX as u64 + 5);
    }

    #[test]
    fn what_belongs_to_normal_operation_is_not_listed() {
        let mut log = EventLog::starting_at(0);
        log.on(&Notification::Lost(3), 1.0);
        let address = "127.0.0.1:1".parse().unwrap();
        log.on(
            &Notification::Event(Arc::new(Event::Listening { address })),
            1.0,
        );
        assert_eq!(log.after(0).len(), 1);
    }
}
