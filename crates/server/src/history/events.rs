//! Rare events as people read them: a sentence, a level, a provider.
//!
//! Promises: at most [`EVENTS_MAX`] are remembered, each with a number that grows; a reader that
//! missed some learns which. Some 300 bytes each: 150 KiB.
//!
//! Never: contains a key, a query or a body; events have none.

use std::collections::VecDeque;
use std::sync::Arc;

use serde::Serialize;
use tokio::sync::watch;
use tollgate::event::{Event, Notification};
use tollgate_core::health::{HealthState, HealthStatus, Reason};

/// The most events that are remembered: days of a quiet daemon, and what a screen can show of a busy
/// one.
pub(crate) const EVENTS_MAX: usize = 500;

/// An event on the page.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct PageEvent {
    /// Its number, from 1.
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
}

impl PageEvent {
    /// The name of its server-sent event.
    pub(crate) fn stream_name(&self) -> &'static str {
        match self.kind {
            "transition" | "cooldown" | "path" => "transition",
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

impl Default for EventLog {
    fn default() -> EventLog {
        EventLog {
            events: VecDeque::new(),
            newest: watch::Sender::new(0),
        }
    }
}

impl EventLog {
    /// Something happened at this time.
    pub(crate) fn on(&mut self, next: &Notification, ts: f64) {
        let sentence = match next {
            Notification::Event(event) => sentence(event),
            Notification::Lost(count) => Some(Sentence {
                kind: "lost",
                level: "warning",
                provider: None,
                text: format!("{count} events came too fast and are not listed"),
                to: None,
            }),
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
}

fn sentence(event: &Event) -> Option<Sentence> {
    let of = |kind, level, provider: Option<&Arc<str>>, text: String| {
        Some(Sentence {
            kind,
            level,
            provider: provider.cloned(),
            text,
            to: None,
        })
    };
    match event {
        Event::Transition {
            provider,
            to,
            reason,
            status,
            ..
        } => Some(Sentence {
            to: Some(to.as_str()),
            ..of(
                "transition",
                level_of(*to),
                Some(provider),
                transition(*to, *reason, status),
            )?
        }),
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
            let text = format!(
                "{why}{}: cools down for {}",
                on.unwrap_or_default(),
                duration.in_words()
            );
            of("cooldown", "warning", Some(provider), text)
        }
        Event::PathClosed {
            provider,
            path,
            failures,
            ..
        } => {
            let path = path.as_deref().unwrap_or("other paths");
            of(
                "path",
                "warning",
                Some(provider),
                format!("{path} is closed after {failures} failures"),
            )
        }
        Event::PathOpened { provider, path } => {
            let path = path.as_deref().unwrap_or("other paths");
            of(
                "path",
                "info",
                Some(provider),
                format!("{path} is open again"),
            )
        }
        Event::OperatorCommand {
            provider,
            command,
            settings,
        } => {
            let what = settings
                .as_deref()
                .map_or_else(String::new, |keys| format!(" {keys}"));
            of(
                "operator",
                "info",
                Some(provider),
                format!("operator: {command}{what}"),
            )
        }
        other => process_sentence(other),
    }
}

/// Events of the process, its store, its configuration and its keys.
fn process_sentence(event: &Event) -> Option<Sentence> {
    let (kind, level, provider, text) = match event {
        Event::StoreLost { why } => ("store", "error", None, format!("the store is lost: {why}")),
        Event::StoreBack { away, .. } => (
            "store",
            "info",
            None,
            format!("the store is back after {}", away.in_words()),
        ),
        Event::Reloaded { providers } => (
            "reload",
            "info",
            None,
            format!("configuration loaded: {providers} providers"),
        ),
        Event::ReloadRejected { problem } => (
            "reload",
            "error",
            None,
            format!("configuration rejected: {problem}"),
        ),
        Event::LimitsLoosened { provider, change } => (
            "operator",
            "warning",
            Some(provider),
            format!("looser limits: {change}"),
        ),
        Event::TokenNotRenewed { provider, error } => (
            "token",
            "error",
            Some(provider),
            format!("login failed: {error}"),
        ),
        Event::KeySuspended { provider, status } => (
            "key",
            "error",
            Some(provider),
            format!("a key was rejected with {status} and is suspended"),
        ),
        Event::TlsFailed { host, why } => (
            "tls",
            "error",
            None,
            format!("TLS with {host} failed: {why}"),
        ),
        Event::LedgerDamaged { rows } => (
            "store",
            "error",
            None,
            format!(
                "{rows} stored rows were damaged; their limits count as used up for one period"
            ),
        ),
        Event::LedgerLogHeld { bytes } => (
            "store",
            "error",
            None,
            format!("the store's log grows ({bytes} bytes): another program holds it open"),
        ),
        Event::CacheOnlyInMemory { why } => (
            "cache",
            "warning",
            None,
            format!("the cache is in memory only: {why}"),
        ),
        Event::ConnectionsExhausted {
            provider,
            connections,
            why,
        } => (
            "connections",
            "warning",
            Some(provider),
            format!("all {connections} connections are in use: {why}"),
        ),
        Event::GuardDenied {
            guard,
            shadow: false,
            count,
        } => (
            "guard",
            "warning",
            None,
            format!("guard {guard} denied {count} requests"),
        ),
        Event::TaskQueueFull { queue, pending, .. } => (
            "guard",
            "warning",
            None,
            format!("queue {queue} is full: {pending} tasks"),
        ),
        Event::DeskFailed { why } => ("desk", "error", None, why.to_string()),
        Event::OutOfDescriptors { .. } => (
            "connections",
            "error",
            None,
            "no file descriptor is left; raise `ulimit -n`".to_owned(),
        ),
        Event::Draining => ("process", "warning", None, "shutting down".to_owned()),
        // Normal operation, or a fact of one call.
        _ => return None,
    };
    Some(Sentence {
        kind,
        level,
        provider: provider.cloned(),
        text,
        to: None,
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
            Some(rate) => format!("Slowed to {rate}/s"),
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
        let mut log = EventLog::default();
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
        let mut log = EventLog::default();
        log.on(&Notification::Lost(3), 1.0);
        let address = "127.0.0.1:1".parse().unwrap();
        log.on(
            &Notification::Event(Arc::new(Event::Listening { address })),
            1.0,
        );
        assert_eq!(log.after(0).len(), 1);
    }
}
