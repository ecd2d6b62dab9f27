//! The end of a call, reported once: whoever responded, and also if its caller did not wait.
//!
//! Promises: every call has one end, also one that is rejected before it is routed, or whose caller
//! leaves in the middle: then with what it has cost so far. Nothing is built while nobody listens; a
//! rejection is built for the log, which writes it at `info`.
//!
//! Never: decides anything.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use http::Method;
use tollgate_core::ask::Priority;
use tollgate_core::health::Fault;
use tollgate_core::time::{Span, Wall};

use super::call::CallOptions;
use super::outcome::CallTrace;
use super::progress::{CallProgress, CallSpending};
use super::route::Route;
use super::subject::Subject;
use crate::Error;
use crate::event::{CallDecision, CallEnd, CallResult, Events, Step, StepKind, Steps};
use crate::metrics::EntityCounters;
use crate::providers::CountedCall;
use crate::reply::{Reply, Source};

/// A call that runs. Dropped before the end, its caller has gone.
#[derive(Debug)]
pub(crate) struct RunningCall<'a> {
    events: &'a Events,
    pub(crate) trace: &'a mut CallTrace,
    id: Arc<str>,
    labels: CallLabels,
    /// Once it is routed.
    counted: Option<CountedCall>,
}

/// Who called, and what: known while somebody wants the end.
#[derive(Clone, Debug, Default)]
struct CallLabels {
    provider: Option<Arc<str>>,
    entity: Option<Arc<str>>,
    caller: Option<Arc<str>>,
    priority: Option<Priority>,
    request: Option<(Method, Arc<str>)>,
}

impl<'a> RunningCall<'a> {
    pub(crate) fn new(events: &'a Events, id: Arc<str>, trace: &'a mut CallTrace) -> Self {
        (trace.has_ended, trace.progress) = (false, None);
        RunningCall {
            events,
            trace,
            id,
            labels: CallLabels::default(),
            counted: None,
        }
    }

    /// The call has been routed.
    pub(crate) fn on_routed(&mut self, route: &mut Route) {
        let subject = &mut route.subject;
        self.trace
            .on_routed(&subject.provider, &route.request.origin);
        subject.count_entity(EntityCounters::on_call);
        self.counted = Some(subject.counted());
        if self.events.wants_end(subject.started) {
            self.labels = CallLabels::of(subject);
            self.trace.progress = Some(subject.start_progress());
            self.labels.request = Some(route.request_line());
        }
    }

    /// The call is over, and its caller gets this.
    pub(crate) fn finish(mut self, result: &Result<Reply, Error>) {
        self.trace.has_ended = true;
        if let Some(counted) = &self.counted {
            let (waited, attempts) = (self.trace.waited, self.trace.attempts);
            match result {
                Ok(_) => counted.on_response(waited, attempts),
                Err(_) => counted.on_rejected(waited, attempts),
            }
        }
        let labels = std::mem::take(&mut self.labels);
        match result {
            Ok(_) if self.trace.progress.is_none() && !self.events.has_listeners() => {}
            Ok(reply) => self.events.emit_end({
                let spent = self.trace.spent();
                let cause = spent.cause();
                let result = CallResult::Response {
                    status: reply.head.status.as_u16(),
                    waited_for: cause.map(|cause| cause.reason),
                };
                CallEnd {
                    source: reply.source.as_str(),
                    result,
                    steps: self.take_steps(),
                    at: self.events.wall(),
                    ..without_response(self.id.clone(), labels, &spent)
                }
            }),
            Err(error) => self.events.emit_rejection_with(|| {
                let spent = (self.trace.waited, self.trace.attempts);
                let mut end = rejected(self.id.clone(), labels, spent, error);
                (end.at, end.steps) = (self.events.wall(), self.take_steps());
                end
            }),
        }
    }
}

impl RunningCall<'_> {
    fn take_steps(&self) -> Steps {
        let progress = self.trace.progress.as_ref();
        progress
            .map(|progress| progress.take_steps())
            .unwrap_or_default()
    }
}

impl Drop for RunningCall<'_> {
    /// Its caller has gone, or a stage has panicked.
    fn drop(&mut self) {
        let is_over = self.trace.is_over.as_ref();
        if self.trace.has_ended || is_over.is_some_and(|is_over| is_over.load(Ordering::Acquire)) {
            return;
        }
        self.trace.has_ended = true;
        if let Some(counted) = &self.counted {
            counted.on_left(self.trace.attempts);
        }
        if self.trace.progress.is_none() && !self.events.has_listeners() {
            return;
        }
        self.events.emit_end({
            let spent = match &self.trace.progress {
                Some(progress) => progress.spent(),
                None => self.trace.spent(),
            };
            let labels = std::mem::take(&mut self.labels);
            let mut end = without_response(self.id.clone(), labels, &spent);
            (end.at, end.steps) = (self.events.wall(), self.take_steps());
            if std::thread::panicking() {
                end.result = CallResult::Panicked;
            }
            end
        });
    }
}

/// The end of a call that Tollgate has not rejected and whose caller has got no response.
fn without_response(id: Arc<str>, labels: CallLabels, spent: &CallSpending) -> CallEnd {
    let cause = spent.cause();
    CallEnd {
        id,
        at: Wall(0), // its caller knows
        request: labels.request,
        provider: labels.provider,
        entity: labels.entity,
        caller: labels.caller,
        priority: labels.priority,
        decision: spent.decision(),
        source: "tollgate",
        result: CallResult::ClientGone,
        limit: cause.and_then(|cause| cause.limit),
        waited: spent.waited,
        attempts: spent.attempts,
        steps: Steps::default(),
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
            request: None,
        }
    }
}

impl CallTrace {
    /// A call that was rejected before it could be made: reports its end, unless it is reported.
    pub fn reject(&mut self, events: &Events, id: &Arc<str>, error: &Error) {
        if !self.has_ended {
            self.has_ended = true;
            let (labels, spent) = (CallLabels::default(), (self.waited, self.attempts));
            events.emit_rejection_with(|| {
                let mut end = rejected(id.clone(), labels, spent, error);
                end.at = events.wall();
                end
            });
        }
    }
}

/// The end of a call that Tollgate responds to itself.
fn rejected(
    id: Arc<str>,
    labels: CallLabels,
    (waited, attempts): (Span, u32),
    error: &Error,
) -> CallEnd {
    CallEnd {
        id,
        at: Wall(0), // its caller knows
        request: labels.request,
        provider: labels.provider.or(error.provider().map(Arc::from)),
        entity: labels.entity,
        caller: labels.caller,
        priority: labels.priority,
        decision: CallDecision::Reject,
        source: "tollgate",
        result: CallResult::Rejected(Box::new(error.clone())),
        limit: error.limit().map(Arc::from),
        waited,
        attempts,
        steps: Steps::default(),
    }
}

/// A call that its caller makes itself. Dropped, it is over; what was not reported by then is not
/// known.
#[derive(Debug)]
pub(crate) struct ExternalCall {
    events: Events,
    id: Arc<str>,
    /// While somebody listens, and until its end is reported.
    end: Option<Box<ExternalCallEnd>>,
    /// From its routing to its end.
    counted: Option<CountedCall>,
    /// How long it waited for its permit.
    waited: Span,
    was_sent: bool,
}

#[derive(Debug)]
struct ExternalCallEnd {
    labels: CallLabels,
    progress: Option<Arc<CallProgress>>,
    source: &'static str,
    result: CallResult,
    attempts: u32,
}

impl ExternalCall {
    /// The call begins. Dropped before it has its permit, its caller has gone.
    pub(crate) fn begin(events: &Events, options: &CallOptions) -> ExternalCall {
        let end = events.wants_end(events.at()).then(|| {
            Box::new(ExternalCallEnd {
                labels: CallLabels {
                    caller: options.caller.as_deref().map(Arc::from),
                    ..CallLabels::default()
                },
                progress: None,
                source: "tollgate",
                result: CallResult::ClientGone,
                attempts: 0,
            })
        });
        ExternalCall {
            events: events.clone(),
            id: options.id.clone(),
            end,
            counted: None,
            waited: Span::ZERO,
            was_sent: false,
        }
    }

    /// Its provider is known.
    pub(crate) fn on_routed(&mut self, subject: &mut Subject) {
        self.counted = Some(subject.counted());
        subject.count_entity(EntityCounters::on_call);
        if let Some(end) = &mut self.end {
            end.labels = CallLabels::of(subject);
            end.progress = Some(subject.start_progress());
        }
    }

    /// The call has its permit, for which it waited so long.
    pub(crate) fn granted(&mut self, waited: Span) {
        self.waited = waited;
        if let Some(end) = &mut self.end {
            end.result = CallResult::Unused;
        }
    }

    /// An error is the end of the call.
    pub(crate) fn check<T>(&mut self, result: Result<T, Error>) -> Result<T, Error> {
        if let Err(error) = &result {
            let end = self.end.take();
            if let Some(counted) = self.counted.take() {
                counted.on_rejected(Span::ZERO, 0);
            }
            self.events.emit_rejection_with(|| {
                let progress = end.as_ref().and_then(|end| end.progress.clone());
                let progress = progress.as_ref();
                let spent = progress
                    .map(|progress| progress.spent())
                    .unwrap_or_default();
                let labels = end.map(|end| end.labels).unwrap_or_default();
                let mut end = rejected(self.id.clone(), labels, (spent.waited, 0), error);
                end.steps = progress
                    .map(|progress| progress.take_steps())
                    .unwrap_or_default();
                end.at = self.events.wall();
                end
            });
        }
        result
    }

    /// Its bytes may have left.
    pub(crate) fn sent(&mut self) {
        self.was_sent = true;
        if let Some(end) = &mut self.end {
            (end.attempts, end.result) = (1, CallResult::Unreported);
        }
    }

    /// It was reported: a status, or why there is none.
    pub(crate) fn reported(&mut self, result: Result<u16, Fault>) {
        if let Some(end) = &mut self.end {
            end.source = Source::Upstream.as_str();
            let waited_for = None; // its drop knows
            end.result = result.map_or_else(CallResult::NoResponse, |status| {
                CallResult::Response { status, waited_for }
            });
        }
    }
}

impl Drop for ExternalCall {
    fn drop(&mut self) {
        if let Some(counted) = self.counted.take() {
            counted.on_response(self.waited, u32::from(self.was_sent));
        }
        let Some(mut end) = self.end.take() else {
            return;
        };
        let progress = end.progress.as_ref();
        let spent = progress
            .map(|progress| progress.spent())
            .unwrap_or_default();
        let steps = progress
            .map(|progress| progress.take_steps())
            .unwrap_or_default();
        if let CallResult::Response { waited_for, .. } = &mut end.result {
            *waited_for = spent.cause().map(|cause| cause.reason);
        }
        self.events.emit_end(CallEnd {
            source: end.source,
            result: end.result,
            attempts: end.attempts,
            steps,
            at: self.events.wall(),
            ..without_response(self.id.clone(), end.labels, &spent)
        });
    }
}

/// The end of a call that a fresh response in memory has served.
pub(crate) fn hit(route: &Route, id: &str, status: u16, (now, age): (Wall, Span)) -> CallEnd {
    let CallLabels {
        provider,
        entity,
        caller,
        priority,
        ..
    } = CallLabels::of(&route.subject);
    CallEnd {
        id: id.into(),
        at: now,
        request: Some(route.request_line()),
        steps: Steps::from(Step {
            at: now,
            kind: StepKind::Cached {
                source: Source::Cache.as_str(),
                age,
                why: "fresh",
            },
        }),
        provider,
        entity,
        caller,
        priority,
        decision: CallDecision::Allow,
        source: Source::Cache.as_str(),
        result: CallResult::Response {
            status,
            waited_for: None,
        },
        limit: None,
        waited: Span::ZERO,
        attempts: 0,
    }
}
