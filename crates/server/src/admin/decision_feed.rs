//! Decisions as they are shown: one item per call, put together from its events.
//!
//! ```json
//! {"id":"…","ts":1706954400.123,"provider":"tmdb","entity":null,"caller":"web","priority":"high","method":"GET",
//!  "path":"/3/movie/550","source":"upstream","decision":"queue","reason":"limit","limit":"40/10s","wait":0.12,
//!  "attempts":1,"status":200,"steps":[{"at":0.0,"kind":"queue","text":"waited 0.12 s for 40/10s"},…]}
//! ```
//!
//! `at` are seconds since the call was first seen. `kind` is one of `queue`, `permit`, `sent`, `response`, `limited`,
//! `failed`, `cache`, `rejected`, `end`. The fixture is `tests/it/decision_item.json`.
//!
//! Promises: bounded: at most [`PENDING_MAX`] calls in progress, of at most [`STEPS_MAX`] steps, and
//! [`DONE_MAX`] that ended since the last time; of more the oldest are left out.
//!
//! Never: has a query value, a header or a key; the events have none.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use serde::Serialize;
use tollgate::event::{CallEnd, CallResult, DecisionVerdict, Event, Notification};
use tollgate_core::ask::Priority;
use tollgate_core::health::Class;
use tollgate_core::time::Span;

/// As many as one provider may have waiting, a few times. Some 500 bytes each: 2 MB.
const PENDING_MAX: usize = 4_096;

/// The retries of a call, with the steps of each; the end always has its place.
const STEPS_MAX: usize = 32;

/// A fifth of a second at 5,000 calls a second.
const DONE_MAX: usize = 1_000;

/// Calls in progress, and those that ended.
#[derive(Debug, Default)]
pub(super) struct DecisionFeed {
    pending: HashMap<Arc<str>, PendingCall>,
    /// The ids of those, oldest first; some may have ended.
    order: VecDeque<Arc<str>>,
    done: VecDeque<DecisionItem>,
}

#[derive(Debug)]
struct PendingCall {
    began: f64,
    method: Option<String>,
    path: Option<Arc<str>>,
    steps: Vec<Step>,
}

/// A call and what became of it.
#[derive(Clone, Debug, Serialize)]
pub(super) struct DecisionItem {
    id: Box<str>,
    ts: f64,
    provider: Option<Box<str>>,
    entity: Option<Box<str>>,
    caller: Option<Box<str>>,
    priority: Option<&'static str>,
    method: Option<String>,
    path: Option<Box<str>>,
    source: &'static str,
    decision: &'static str,
    reason: Option<&'static str>,
    limit: Option<Box<str>>,
    wait: f64,
    attempts: u32,
    status: Option<u16>,
    steps: Vec<Step>,
}

/// One thing that happened to a call.
#[derive(Clone, Debug, Serialize)]
struct Step {
    at: f64,
    kind: &'static str,
    text: String,
}

impl DecisionFeed {
    /// Something happened at this time.
    pub(super) fn on(&mut self, next: &Notification, now: f64) {
        let Notification::Event(event) = next else {
            return;
        };
        match &**event {
            Event::Request {
                id, method, path, ..
            } => {
                if let Some(call) = self.call(id, now) {
                    call.method = Some(method.as_str().to_owned());
                    call.path = Some(path.clone());
                }
            }
            Event::CallEnded(end) => self.end(end, now),
            other => {
                if let Some((id, kind, text)) = step(other)
                    && let Some(call) = self.call(id, now)
                    && call.steps.len() < STEPS_MAX
                {
                    let at = rounded(now - call.began);
                    call.steps.push(Step { at, kind, text });
                }
            }
        }
    }

    /// The calls that ended since the last time.
    pub(super) fn take(&mut self) -> Vec<DecisionItem> {
        self.done.drain(..).collect()
    }

    fn call(&mut self, id: &Arc<str>, now: f64) -> Option<&mut PendingCall> {
        if !self.pending.contains_key(id) {
            while self.order.len() >= PENDING_MAX {
                let oldest = self.order.pop_front()?;
                self.pending.remove(&oldest);
            }
            self.order.push_back(id.clone());
            let call = PendingCall {
                began: now,
                method: None,
                path: None,
                steps: Vec::new(),
            };
            self.pending.insert(id.clone(), call);
        }
        self.pending.get_mut(id)
    }

    fn end(&mut self, end: &CallEnd, now: f64) {
        let pending = self.pending.remove(&end.id);
        if self.order.front().is_some_and(|oldest| *oldest == end.id) {
            self.order.pop_front();
        }
        let (began, method, path, mut steps) = pending
            .map_or((now, None, None, Vec::new()), |call| {
                (call.began, call.method, call.path, call.steps)
            });
        let (kind, text) = end_words(end);
        let at = rounded(now - began);
        steps.push(Step { at, kind, text });
        if self.done.len() >= DONE_MAX {
            self.done.pop_front();
        }
        self.done.push_back(DecisionItem {
            id: (&*end.id).into(),
            ts: now,
            provider: end.provider.as_deref().map(Into::into),
            entity: end.entity.as_deref().map(Into::into),
            caller: end.caller.as_deref().map(Into::into),
            priority: end.priority.map(priority_word),
            method,
            path: path.as_deref().map(Into::into),
            source: end.source,
            decision: end.decision.as_str(),
            reason: end.result.reason(),
            limit: end.limit.as_deref().map(Into::into),
            wait: seconds(end.waited),
            attempts: end.attempts,
            status: end.result.status(),
            steps,
        });
    }
}

/// The call of a fact, its kind and its sentence.
fn step(event: &Event) -> Option<(&Arc<str>, &'static str, String)> {
    match event {
        Event::Decision {
            id,
            verdict,
            waited,
            ..
        } => {
            let (kind, text) = verdict_words(verdict, *waited);
            Some((id, kind, text))
        }
        Event::Attempt { id, number, .. } => Some((id, "sent", format!("attempt {number} sent"))),
        Event::Response {
            id,
            status,
            class,
            took,
            ..
        } => {
            let kind = match class {
                Class::Limited => "limited",
                Class::ServerError | Class::Network => "failed",
                Class::Success | Class::Other => "response",
            };
            Some((id, kind, format!("{status} after {}", took.in_words())))
        }
        Event::AttemptFailed { id, fault, .. } => {
            Some((id, "failed", format!("no response: {}", fault.as_str())))
        }
        Event::FromCache {
            id,
            source,
            age,
            why,
            ..
        } => {
            let text = format!("from the {source}, {} old ({why})", age.in_words());
            Some((id, "cache", text))
        }
        _ => None,
    }
}

fn verdict_words(verdict: &DecisionVerdict, waited: Span) -> (&'static str, String) {
    match verdict {
        DecisionVerdict::Allowed => ("permit", "permit at once".to_owned()),
        DecisionVerdict::Queued { limit, reason } => {
            let what = limit.as_deref().unwrap_or(reason.as_str());
            ("queue", format!("waited {} for {what}", waited.in_words()))
        }
        DecisionVerdict::Rejected { limit, reason } => {
            let reason = reason.map_or("no permit", |reason| reason.as_str());
            let what = limit.as_deref().unwrap_or(reason);
            ("rejected", format!("no permit: {what}"))
        }
    }
}

fn end_words(end: &CallEnd) -> (&'static str, String) {
    match &end.result {
        CallResult::Response { status, .. } => ("end", format!("{status} from {}", end.source)),
        CallResult::Rejected(error) => ("rejected", error.to_string()),
        CallResult::NoResponse(fault) => ("failed", format!("no response: {}", fault.as_str())),
        CallResult::ClientGone => ("end", "the caller left".to_owned()),
        CallResult::Panicked => ("failed", "a stage of Tollgate panicked".to_owned()),
        CallResult::Unused => ("end", "the permit was not used".to_owned()),
        CallResult::Unreported => ("end", "not reported; counted as sent".to_owned()),
    }
}

fn priority_word(priority: Priority) -> &'static str {
    match priority {
        Priority::High => "high",
        Priority::Normal => "normal",
        Priority::Low => "low",
    }
}

fn rounded(seconds: f64) -> f64 {
    (seconds.max(0.0) * 1_000.0).round() / 1_000.0
}

#[expect(clippy::cast_precision_loss, reason = "a wait that is only shown")]
fn seconds(span: Span) -> f64 {
    (span.0 / 1_000) as f64 / 1_000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn happened(event: Event) -> Notification {
        Notification::Event(Arc::new(event))
    }

    fn request(id: &str) -> Notification {
        happened(Event::Request {
            id: id.into(),
            provider: "x".into(),
            method: "GET".parse().unwrap(),
            path: "/a".into(),
        })
    }

    fn end(id: &str) -> Notification {
        happened(Event::CallEnded(Box::new(CallEnd {
            id: id.into(),
            provider: Some("x".into()),
            entity: None,
            caller: Some("web".into()),
            priority: Some(Priority::High),
            decision: tollgate::event::CallDecision::Queue,
            source: "upstream",
            result: CallResult::Response {
                status: 200,
                waited_for: None,
            },
            limit: Some("5/1s".into()),
            waited: Span::from_millis(120),
            attempts: 2,
        })))
    }

    /// The page, `GET /v1/decisions` and `tollgate why` read the same items.
    #[test]
    fn an_item_has_the_fields_of_the_fixture() {
        let mut feed = DecisionFeed::default();
        feed.on(&request("1"), 10.0);
        feed.on(
            &happened(Event::Decision {
                id: "1".into(),
                provider: "x".into(),
                entity: None,
                caller: None,
                priority: Priority::High,
                verdict: DecisionVerdict::Allowed,
                waited: Span::ZERO,
            }),
            10.1,
        );
        feed.on(&end("1"), 10.25);
        let item = serde_json::to_value(&feed.take()[0]).unwrap();
        let fixture = include_str!("../../tests/it/decision_item.json");
        let fixture: serde_json::Value = serde_json::from_str(fixture).unwrap();
        let names = |value: &serde_json::Value| -> Vec<String> {
            value.as_object().unwrap().keys().cloned().collect()
        };
        assert_eq!(names(&item), names(&fixture));
        assert_eq!(names(&item["steps"][0]), names(&fixture["steps"][0]));
        assert_eq!(item["steps"][1]["at"], 0.25);
        assert_eq!(
            (&item["method"], &item["wait"]),
            (&"GET".into(), &0.12.into())
        );
        assert!(feed.pending.is_empty() && feed.order.is_empty());
    }

    #[test]
    fn calls_in_progress_and_ended_ones_are_bounded() {
        let mut feed = DecisionFeed::default();
        for number in 0..PENDING_MAX + 10 {
            feed.on(&request(&number.to_string()), 1.0);
        }
        assert_eq!(
            (feed.pending.len(), feed.order.len()),
            (PENDING_MAX, PENDING_MAX)
        );
        for number in 0..DONE_MAX + 10 {
            feed.on(&end(&format!("e{number}")), 1.0);
        }
        assert_eq!(feed.take().len(), DONE_MAX);
    }
}
