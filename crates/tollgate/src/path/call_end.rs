//! The end of a call, told once: whoever responded, and also if its caller did not wait.
//!
//! Promises: every call that is routed or rejected has one end. Nothing is built while nobody
//! listens; a rejection is built for the log, which writes it at `info`.
//!
//! Never: decides anything.

use std::sync::Arc;

use tollgate_core::ask::Priority;
use tollgate_core::time::Span;

use super::outcome::CallTrace;
use super::permit::PermitHistory;
use super::subject::Subject;
use crate::Error;
use crate::event::{CallDecision, CallEnd, Event, Events};
use crate::pool::Origin;
use crate::reply::{Reply, Source};

/// A call that runs. Dropped before the end, its caller has gone.
#[derive(Debug)]
pub(crate) struct RunningCall<'a> {
    events: &'a Events,
    pub(crate) trace: &'a mut CallTrace,
    id: Arc<str>,
    labels: CallLabels,
}

/// Who called, and what: known while somebody listens.
#[derive(Clone, Debug, Default)]
struct CallLabels {
    provider: Option<Arc<str>>,
    entity: Option<Arc<str>>,
    caller: Option<Arc<str>>,
    priority: Option<Priority>,
}

impl<'a> RunningCall<'a> {
    pub(crate) fn new(events: &'a Events, id: Arc<str>, trace: &'a mut CallTrace) -> Self {
        trace.has_ended = false;
        RunningCall {
            events,
            trace,
            id,
            labels: CallLabels::default(),
        }
    }

    /// The call has been routed.
    pub(crate) fn on_routed(&mut self, subject: &Subject, origin: &Origin) {
        self.trace.on_routed(&subject.provider, origin);
        if self.events.is_heard() {
            self.labels = CallLabels::of(subject);
        }
    }

    /// The call is over, and its caller gets this.
    pub(crate) fn finish(mut self, result: &Result<Reply, Error>) {
        self.trace.has_ended = true;
        match result {
            Ok(reply) => self.events.emit_with(|| {
                let status = reply.head.status.as_u16();
                self.end(reply.source.as_str(), Some(status))
            }),
            Err(error) => self.events.emit_info_with(|| {
                let labels = std::mem::take(&mut self.labels);
                let spent = (self.trace.waited, self.trace.attempts);
                rejected(self.id.clone(), labels, spent, error)
            }),
        }
    }

    /// The end of a call that Tollgate has not rejected.
    fn end(&self, source: &'static str, status: Option<u16>) -> Event {
        let CallLabels {
            provider,
            entity,
            caller,
            priority,
        } = self.labels.clone();
        let cause = self.trace.was_queued.then(|| self.trace.queue_cause());
        Event::CallEnded(Box::new(CallEnd {
            id: self.id.clone(),
            provider,
            entity,
            caller,
            priority,
            decision: self.trace.decision(),
            source,
            reason: cause.as_ref().map(|cause| cause.reason),
            limit: cause.and_then(|cause| cause.limit),
            waited: self.trace.waited,
            attempts: self.trace.attempts,
            status,
            error: None,
        }))
    }
}

impl Drop for RunningCall<'_> {
    /// Its caller has gone. What it has sent is in the facts of its attempts.
    fn drop(&mut self) {
        if self.trace.has_ended {
            return;
        }
        self.trace.has_ended = true;
        self.events.emit_with(|| {
            let mut event = self.end("tollgate", None);
            if let Event::CallEnded(end) = &mut event {
                end.reason = Some("client_gone");
            }
            event
        });
    }
}

impl CallLabels {
    fn of(subject: &Subject) -> CallLabels {
        let (_, provider, entity) = subject.labels();
        CallLabels {
            provider: Some(provider),
            entity,
            caller: subject.caller.as_deref().map(Arc::from),
            priority: Some(subject.priority),
        }
    }
}

impl CallTrace {
    /// A call that was rejected before it could be made: tells its end, unless it is told.
    pub fn reject(&mut self, events: &Events, id: &Arc<str>, error: &Error) {
        if !self.has_ended {
            self.has_ended = true;
            let (labels, spent) = (CallLabels::default(), (self.waited, self.attempts));
            events.emit_info_with(|| rejected(id.clone(), labels, spent, error));
        }
    }
}

/// The end of a call that Tollgate responds to itself.
fn rejected(
    id: Arc<str>,
    labels: CallLabels,
    (waited, attempts): (Span, u32),
    error: &Error,
) -> Event {
    Event::CallEnded(Box::new(CallEnd {
        id,
        provider: labels.provider.or(error.provider().map(Arc::from)),
        entity: labels.entity,
        caller: labels.caller,
        priority: labels.priority,
        decision: CallDecision::Reject,
        source: "tollgate",
        reason: Some(error.reason_str()),
        limit: error.limit().map(Arc::from),
        waited,
        attempts,
        status: Some(error.status().as_u16()),
        error: Some(Box::new(error.clone())),
    }))
}

/// A call that its caller makes itself. Dropped, it is over; what was not reported by then is not
/// known.
#[derive(Debug)]
pub(crate) struct OwnCall {
    events: Events,
    /// While somebody listens.
    end: Option<Box<CallEnd>>,
}

impl OwnCall {
    /// The call has its permit.
    pub(crate) fn granted(subject: &Subject, history: &PermitHistory) -> OwnCall {
        let events = subject.provider.events.clone();
        let end = events.is_heard().then(|| {
            let labels = CallLabels::of(subject);
            let cause = history.queue_cause.clone();
            let cause = history.was_queued.then(|| cause.unwrap_or_default());
            let decision = match history.was_queued {
                true => CallDecision::Queue,
                false => CallDecision::Allow,
            };
            Box::new(CallEnd {
                id: subject.id.clone(),
                provider: labels.provider,
                entity: labels.entity,
                caller: labels.caller,
                priority: labels.priority,
                decision,
                source: "tollgate",
                reason: Some("unused"),
                limit: cause.and_then(|cause| cause.limit),
                waited: history.waited,
                attempts: 0,
                status: None,
                error: None,
            })
        });
        OwnCall { events, end }
    }

    /// The call was rejected.
    pub(crate) fn rejected(subject: &Subject, waited: Span, error: &Error) {
        let events = &subject.provider.events;
        events.emit_info_with(|| {
            let labels = CallLabels::of(subject);
            rejected(subject.id.clone(), labels, (waited, 0), error)
        });
    }

    /// Its bytes may have left.
    pub(crate) fn sent(&mut self) {
        if let Some(end) = &mut self.end {
            (end.attempts, end.reason) = (1, Some("unreported"));
        }
    }

    /// It was reported: a status, or why there is none.
    pub(crate) fn reported(&mut self, result: Result<u16, &'static str>) {
        if let Some(end) = &mut self.end {
            end.source = Source::Upstream.as_str();
            (end.status, end.reason) = (result.ok(), result.err());
        }
    }
}

impl Drop for OwnCall {
    fn drop(&mut self) {
        if let Some(end) = self.end.take() {
            self.events.emit(Event::CallEnded(end));
        }
    }
}

/// The end of a call that a fresh response in memory has served.
pub(crate) fn hit(subject: &Subject, id: &str, status: u16) -> Event {
    let CallLabels {
        provider,
        entity,
        caller,
        priority,
    } = CallLabels::of(subject);
    Event::CallEnded(Box::new(CallEnd {
        id: id.into(),
        provider,
        entity,
        caller,
        priority,
        decision: CallDecision::Allow,
        source: Source::Cache.as_str(),
        reason: None,
        limit: None,
        waited: Span::ZERO,
        attempts: 0,
        status: Some(status),
        error: None,
    }))
}
