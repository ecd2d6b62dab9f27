//! The last calls and why: what `GET /v1/decisions` and `tollgate why` show.
//!
//! It is a subscriber to the ends of calls, and its backlog is where they wait: nothing runs until somebody asks.
//!
//! Promises: at most [`KEPT_MAX`] calls. It gets every rejection and, of other calls, at most a thousand a second
//! and a hundred cache hits; those that it lost it counts.
//!
//! Never: holds a query, a header, a body or a key; ends of calls have none.

mod words;

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::{Value, json};
use tollgate::event::{CallEnd, Event, Events, Notification, Subscription};
use tollgate_core::time::{Span, Wall};

/// How many calls are kept: what a person scrolls through, at about 1 KB each. As many again may wait to be read.
pub(crate) const KEPT_MAX: usize = 1_024;

/// The last calls.
#[derive(Debug)]
pub(crate) struct DecisionLog {
    state: Mutex<LogState>,
}

#[derive(Debug)]
struct LogState {
    subscription: Subscription,
    /// Oldest first.
    ends: VecDeque<Arc<Event>>,
    /// Ends that came faster than somebody read them, and are gone.
    lost: u64,
}

/// Which calls.
#[derive(Clone, Debug, Default)]
pub(crate) struct DecisionFilter {
    pub(crate) provider: Option<String>,
    pub(crate) id: Option<String>,
    pub(crate) limit: usize,
}

impl DecisionLog {
    /// From now on.
    pub(crate) fn new(events: &Events) -> DecisionLog {
        DecisionLog {
            state: Mutex::new(LogState {
                subscription: events.subscribe_to_ends(),
                ends: VecDeque::new(),
                lost: 0,
            }),
        }
    }

    /// The last calls, newest first, and how many others were lost so far.
    pub(crate) fn last(&self, filter: &DecisionFilter) -> Value {
        let mut state = self.state.lock();
        state.read();
        let ends = state.ends.iter().rev().filter_map(|event| end_of(event));
        let ends = ends.filter(|end| filter.matches(end));
        let decisions: Vec<Value> = ends.take(filter.limit).map(decision).collect();
        json!({ "decisions": decisions, "lost": state.lost, "kept_max": KEPT_MAX })
    }
}

impl LogState {
    /// Takes what has happened since the last time; at most a backlog of it.
    fn read(&mut self) {
        while let Some(next) = self.subscription.try_next() {
            match next {
                Notification::Event(event) => self.ends.push_back(event),
                Notification::Lost(lost) => self.lost += lost,
            }
            if self.ends.len() > KEPT_MAX {
                self.ends.pop_front();
            }
        }
    }
}

impl DecisionFilter {
    fn matches(&self, end: &CallEnd) -> bool {
        let provider = self.provider.as_deref();
        let id = self.id.as_deref();
        provider.is_none_or(|name| end.provider.as_deref() == Some(name))
            && id.is_none_or(|id| &*end.id == id)
    }
}

fn end_of(event: &Event) -> Option<&CallEnd> {
    match event {
        Event::CallEnded(end) => Some(end),
        _ => None,
    }
}

/// The end of a call as the API shows it.
pub(crate) fn decision(end: &CallEnd) -> Value {
    let steps = words::steps(end).into_iter();
    let steps: Vec<Value> = steps
        .map(|(at, kind, text)| json!({ "at": epoch(at), "kind": kind, "text": text }))
        .collect();
    json!({
        "id": &*end.id,
        "ts": epoch(end.at),
        "provider": end.provider.as_deref(),
        "entity": end.entity.as_deref(),
        "caller": end.caller.as_deref(),
        "priority": end.priority.map(words::priority),
        "method": end.request.as_ref().map(|(method, _)| method.as_str()),
        "path": end.request.as_ref().map(|(_, path)| &**path),
        "source": end.source,
        "decision": end.decision.as_str(),
        "reason": end.result.reason(),
        "limit": end.limit.as_deref(),
        "wait": seconds(end.waited),
        "attempts": end.attempts,
        "status": end.result.status(),
        "steps": steps,
    })
}

fn epoch(at: Wall) -> f64 {
    seconds(Span(at.0))
}

/// With three decimals.
#[expect(
    clippy::cast_precision_loss,
    reason = "milliseconds of 285 000 years are exact"
)]
fn seconds(span: Span) -> f64 {
    (span.0 / 1_000) as f64 / 1_000.0
}
