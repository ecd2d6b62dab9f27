//! The last calls and why: what `GET /v1/decisions` and `tollgate why` show.
//!
//! It is a subscriber to the ends of calls, and its backlog is where they wait until somebody asks, or for a second.
//!
//! Promises: the last [`KEPT_MAX`] calls, and of each provider the last [`KEPT_OF_EACH`] and as many rejections, so
//! that a busy provider does not push out what a quiet one did; of at most [`PROVIDERS_MAX`] providers. It gets every rejection and, of other calls, at most a thousand a second
//! and a hundred cache hits; those that it lost it counts.
//!
//! Never: holds a query, a header, a body or a key; ends of calls have none.

mod words;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::{Value, json};
use tollgate::event::{CallEnd, CallResult, EndSubscription, Events};
use tollgate_core::time::Span;

use crate::json::epoch;

/// How many calls are kept: what a person scrolls through, at about 1 KB each. As many again may wait to be read.
pub(crate) const KEPT_MAX: usize = 1_024;

/// How many calls, and how many rejections, are kept of each provider in any case: what fits on a screen.
const KEPT_OF_EACH: usize = 32;

/// Of how many providers: 256 x 64 calls of 1 KB are 16 MB if all of them were called so often.
const PROVIDERS_MAX: usize = 256;

/// The last calls.
#[derive(Debug)]
pub(crate) struct DecisionLog {
    state: Mutex<LogState>,
}

#[derive(Debug)]
struct LogState {
    subscription: EndSubscription,
    /// Oldest first.
    ends: VecDeque<Arc<CallEnd>>,
    /// Of each provider: its last calls, and its last rejections.
    of_each: BTreeMap<Arc<str>, [VecDeque<Arc<CallEnd>>; 2]>,
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
                of_each: BTreeMap::new(),
                lost: 0,
            }),
        }
    }

    /// The last calls, newest first, and how many others were lost so far.
    pub(crate) fn last(&self, filter: &DecisionFilter) -> Value {
        let mut state = self.state.lock();
        state.read();
        let ends = state.all();
        let ends = ends.into_iter().filter(|end| filter.matches(end));
        let ends = ends.take(filter.limit);
        let decisions: Vec<Value> = ends.map(|end| decision(end)).collect();
        json!({ "decisions": decisions, "lost": state.lost, "kept_max": KEPT_MAX })
    }
}

impl DecisionLog {
    /// Takes what has happened: the backlog holds about a second of a busy daemon.
    pub(crate) fn read(&self) {
        self.state.lock().read();
    }
}

impl LogState {
    /// Everything that is kept, newest first, each once.
    fn all(&self) -> Vec<&Arc<CallEnd>> {
        let kept = self.of_each.values().flatten().flatten();
        let mut all: Vec<&Arc<CallEnd>> = self.ends.iter().chain(kept).collect();
        all.sort_by_key(|end| (std::cmp::Reverse(end.at), Arc::as_ptr(end).addr()));
        all.dedup_by(|one, other| Arc::ptr_eq(one, other));
        all
    }

    /// Keeps a call for its provider.
    fn keep(&mut self, end: &Arc<CallEnd>) {
        let Some(provider) = &end.provider else {
            return;
        };
        if !self.of_each.contains_key(provider) && self.of_each.len() >= PROVIDERS_MAX {
            return;
        }
        let [calls, rejections] = self.of_each.entry(provider.clone()).or_default();
        let is_rejection = matches!(end.result, CallResult::Rejected(_));
        for list in [Some(calls), is_rejection.then_some(rejections)]
            .into_iter()
            .flatten()
        {
            list.push_back(end.clone());
            if list.len() > KEPT_OF_EACH {
                list.pop_front();
            }
        }
    }

    /// Takes what has happened since the last time; at most a backlog of it.
    fn read(&mut self) {
        let (ends, lost) = self.subscription.read();
        self.lost += lost;
        for end in ends.into_iter().map(Arc::new) {
            self.keep(&end);
            self.ends.push_back(end);
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

/// With three decimals.
#[expect(
    clippy::cast_precision_loss,
    reason = "milliseconds of 285 000 years are exact"
)]
fn seconds(span: Span) -> f64 {
    (span.0 / 1_000) as f64 / 1_000.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate::event::{CallDecision, Event};
    use tollgate_core::time::Wall;

    fn no_permit() -> tollgate::Error {
        tollgate::Error::NoPermit {
            provider: "quiet".to_owned(),
            entity: None,
            limit: None,
            reason: tollgate::error::Reason::Limit,
            retry_in: None,
        }
    }

    fn end(provider: &str, number: u64, is_rejected: bool) -> Event {
        Event::CallEnded(Box::new(CallEnd {
            id: format!("{provider}-{number}").into(),
            at: Wall(number),
            request: None,
            provider: Some(provider.into()),
            entity: None,
            caller: None,
            priority: None,
            decision: if is_rejected {
                CallDecision::Reject
            } else {
                CallDecision::Allow
            },
            source: "upstream",
            result: match is_rejected {
                true => CallResult::Rejected(Box::new(no_permit())),
                false => CallResult::Unused,
            },
            limit: None,
            waited: Span::ZERO,
            attempts: 1,
            steps: tollgate::event::Steps::default(),
        }))
    }

    /// `why --last omdb` failed while omdb's calls waited: those of a busy provider had pushed its last ones out.
    #[test]
    fn a_busy_provider_does_not_push_out_the_calls_of_a_quiet_one() {
        let events = Events::new();
        let log = DecisionLog::new(&events);
        for number in 0..40 {
            events.emit(end("quiet", number, number < 3));
        }
        for number in 0..5_000 {
            events.emit(end("busy", 100 + number, false));
            if number % 100 == 0 {
                log.read();
            }
        }
        let of = |provider: Option<&str>| {
            let filter = DecisionFilter {
                provider: provider.map(str::to_owned),
                id: None,
                limit: KEPT_MAX,
            };
            log.last(&filter)["decisions"].as_array().unwrap().clone()
        };
        let quiet = of(Some("quiet"));
        assert_eq!(
            quiet.len(),
            KEPT_OF_EACH + 3,
            "the last calls, and rejections before them"
        );
        assert_eq!(
            (&quiet[0]["id"], &quiet[34]["id"]),
            (&"quiet-39".into(), &"quiet-0".into())
        );
        assert_eq!(of(Some("busy")).len(), KEPT_MAX);
        assert_eq!(of(None)[0]["id"], "busy-5099");
    }
}
