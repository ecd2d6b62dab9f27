//! The subject of a decision: who wants what from which provider, how urgently, and until when.
//!
//! Permit and learn need nothing else, so they serve callers that make their HTTP requests
//! themselves.
//!
//! Promises: priority and deadline include all callers that wait for the same response; no caller
//! waits in the queue longer than it would alone.
//!
//! Never: knows a request.

use std::net::IpAddr;
use std::sync::Arc;

use tollgate_core::ask::{PathTag, Priority};
use tollgate_core::domain::Host;
use tollgate_core::gate::CallerId;
use tollgate_core::time::{Micros, Span};

use super::progress::CallProgress;
use crate::Error;
use crate::error::Stage;
use crate::event::StepKind;
use crate::flights::{CallDemand, SharedDemand};
use crate::metrics::{EntityCounters, QuotaMetrics};
use crate::providers::{ActiveProvider, CallAttributes, CallCost, CompiledPolicy, CountedCall};
use crate::timer::{self, Elapsed};

/// How many failed leaders a follower accepts at most, whatever its retries: each of them makes
/// several attempts.
const FAILED_FLIGHTS_MAX: u32 = 3;

/// The subject of a decision.
#[derive(Clone, Debug)]
pub(crate) struct Subject {
    pub(crate) provider: Arc<ActiveProvider>,
    /// The call's id in logs.
    pub(crate) id: Arc<str>,
    pub(crate) entity: Option<Arc<str>>,
    /// The host that is called, for limits per host.
    pub(crate) host: Option<Host>,
    /// The path that is called, as health counts it; `None` = unknown.
    pub(crate) path: Option<PathTag>,
    /// Its text, for people, where no request has it.
    pub(crate) path_text: Option<Box<str>>,
    pub(crate) costs: Vec<CallCost>,
    /// Its stream reports usage that its client did not ask for.
    pub(crate) strips_usage: bool,
    /// Who calls.
    pub(crate) caller: Option<String>,
    pub(super) caller_id: CallerId,
    /// The caller's address.
    pub(crate) ip: Option<IpAddr>,
    /// The caller's own priority.
    pub(crate) priority: Priority,
    /// The share of every limit that its caller may use, in thousandths.
    pub(crate) at_most_permille: Option<u16>,
    pub(super) deadline: Option<Micros>,
    pub(super) started: Micros,
    /// How long after the grant its bytes may leave, where another process sends them; zero: this
    /// process does, at once.
    pub(super) use_within: Span,
    /// A stale response is available: the call neither waits nor retries.
    pub(crate) fallback: bool,
    /// It asks for a permit and does not wait for it, unless others wait for its response.
    pub(super) no_wait: bool,
    /// The demand of all callers that wait for the same response; `None` = nobody can join.
    pub(crate) shared_demand: Option<Arc<SharedDemand>>,
    /// How far the call has come, while somebody wants its end.
    pub(super) progress: Option<Arc<CallProgress>>,
    /// The counters of its entity, if that has its own.
    pub(super) entity_metrics: Option<Arc<EntityCounters>>,
}

impl Subject {
    /// A call of normal priority and cost, without caller, entity and deadline.
    pub(crate) fn new(provider: Arc<ActiveProvider>, started: Micros) -> Subject {
        Subject {
            provider,
            id: Arc::default(),
            entity: None,
            host: None,
            path: None,
            path_text: None,
            costs: Vec::new(),
            strips_usage: false,
            caller: None,
            caller_id: CallerId::default(),
            ip: None,
            priority: Priority::default(),
            at_most_permille: None,
            deadline: None,
            started,
            use_within: Span::ZERO,
            fallback: false,
            no_wait: false,
            shared_demand: None,
            progress: None,
            entity_metrics: None,
        }
    }

    /// Its entity is known: finds the counters of it.
    pub(super) fn with_entity_metrics(mut self, policy: &CompiledPolicy) -> Subject {
        let seen = &self.provider.seen_entities;
        self.entity_metrics = seen.record(policy, self.entity.as_deref());
        self
    }

    /// Counts what a response said, for the provider, and for the entity if that has its own counters.
    pub(crate) fn count_quota(&self, add: impl Fn(&QuotaMetrics)) {
        add(self.provider.metrics.quota());
        if let Some(entity) = &self.entity_metrics {
            add(entity.quota());
        }
    }

    /// Counts for the entity, if that has its own counters.
    pub(crate) fn count_entity(&self, add: impl Fn(&EntityCounters)) {
        if let Some(entity) = &self.entity_metrics {
            add(entity);
        }
    }

    /// Something happened to the call, for whoever wants its end.
    pub(crate) fn add_step(&self, kind: impl FnOnce() -> StepKind) {
        if let Some(progress) = &self.progress {
            progress.add_step(kind());
        }
    }

    /// Keeps its progress from now on, for its end event.
    pub(super) fn start_progress(&mut self) -> Arc<CallProgress> {
        let progress = Arc::new(CallProgress::new(self.provider.ledger.clone()));
        self.progress = Some(progress.clone());
        progress
    }

    /// Counts the calls that a response in memory serves.
    pub(super) fn remembered(&self) -> CountedCall {
        let caller = self.caller.as_deref();
        self.provider.calls.remember(caller, self.priority)
    }

    /// Counts it now, and when it ends.
    pub(super) fn counted(&self) -> CountedCall {
        let caller = self.caller.as_deref();
        self.provider.calls.begin(caller, self.priority)
    }

    /// The names of a call in its events: id, provider, entity.
    pub(crate) fn labels(&self) -> (Arc<str>, Arc<str>, Option<Arc<str>>) {
        (self.id.clone(), self.provider.label(), self.entity.clone())
    }

    /// Its entity, for an error or a stored response.
    pub(crate) fn entity_name(&self) -> Option<String> {
        self.entity.as_deref().map(str::to_owned)
    }

    /// The attributes that limits may depend on.
    pub(crate) fn attributes<'a>(&'a self, key: Option<&'a str>) -> CallAttributes<'a> {
        CallAttributes {
            entity: self.entity.as_deref(),
            key,
            caller: self.caller.as_deref().unwrap_or_default(),
            ip: self.ip,
            host: self.host.as_ref().map_or("", Host::as_str),
            priority: self.joint_priority(),
            costs: &self.costs,
        }
    }

    /// How long to wait for anything before the permit. A stale response now is better than a fresh
    /// one later.
    pub(crate) fn patience(&self, queue: Span) -> Span {
        self.patience_until(self.demand().queue_deadline(queue))
    }

    /// Waits until the priority is raised, while another call fetches the response.
    pub(crate) async fn until_raised(&self) {
        match &self.shared_demand {
            Some(shared) => shared.until_raised().await,
            None => std::future::pending().await,
        }
    }

    /// How long to wait for the permit itself. A call with a deadline leaves time for its response: sent later, it
    /// would cost quota, and its caller would be gone before the response.
    pub(crate) fn queue_patience(&self, queue: Span) -> Span {
        let until = self.queue_deadline(queue);
        let patience = self.patience_until(until);
        let is_sent_here = self.use_within == Span::ZERO;
        match self.deadline {
            Some(_) if is_sent_here => {
                let total = until.since(self.started);
                patience - self.provider.response_time.reserved_of(total)
            }
            Some(_) | None => patience,
        }
    }

    /// Until when to wait in the queue: this caller's own time first; once that is up and the
    /// leader has its error, the time of the most patient follower.
    pub(crate) fn queue_deadline(&self, queue: Span) -> Micros {
        match &self.shared_demand {
            Some(shared) if shared.leader_error().is_some() => {
                shared.demand().queue_deadline(queue)
            }
            Some(_) | None if self.no_wait => self.started,
            Some(_) | None => self.own_demand().queue_deadline(queue),
        }
    }

    fn patience_until(&self, until: Micros) -> Span {
        if self.fallback {
            return Span::ZERO;
        }
        until.since(self.provider.ledger.at())
    }

    /// Its priority, including all callers that wait for it.
    pub(crate) fn joint_priority(&self) -> Priority {
        self.demand().priority
    }

    /// Its demand, including all callers that wait for it.
    pub(crate) fn demand(&self) -> CallDemand {
        match &self.shared_demand {
            Some(demand) => demand.demand(),
            None => self.own_demand(),
        }
    }

    /// The demand of this call alone.
    pub(crate) fn own_demand(&self) -> CallDemand {
        CallDemand {
            priority: self.priority,
            caller: self.caller_id,
            deadline: self.deadline,
            untimed_since: self.deadline.is_none().then_some(self.started),
        }
    }

    /// Waits in the queue until its priority is raised.
    pub(crate) async fn queue_until_raised(&self) {
        match &self.shared_demand {
            Some(demand) => demand.queue_until_raised().await,
            None => std::future::pending().await,
        }
    }

    /// The remaining time of the caller, or of the most patient one; `None` = no deadline.
    pub(crate) fn remaining(&self) -> Option<Span> {
        let deadline = self.demand().overall_deadline();
        deadline.map(|deadline| deadline.since(self.provider.ledger.at()))
    }

    /// How long the call may still wait for anything, in the queue or for a retry: until its
    /// deadline or, without one, until the end of the queue timeout.
    pub(crate) fn wait_remaining(&self, queue: Span) -> Span {
        let until = self.demand().queue_deadline(queue);
        until.since(self.provider.ledger.at())
    }

    /// The remaining time of this caller.
    pub(crate) fn own_remaining(&self) -> Option<Span> {
        self.deadline
            .map(|deadline| deadline.since(self.provider.ledger.at()))
    }
}

/// Waits for the response of another call, but no longer than a call with this demand would have
/// waited alone: its own deadline or, without one, the queue timeout and then as long as it takes.
pub(crate) async fn wait_as_if_alone<T>(
    subject: &Subject,
    demand: CallDemand,
    shared: &SharedDemand,
    response: impl Future<Output = T>,
) -> Result<T, Error> {
    let deadline_exceeded = |at| Error::DeadlineExceeded {
        provider: subject.provider.name.clone(),
        at,
    };
    let now = subject.provider.ledger.at();
    if let Some(until) = demand.overall_deadline() {
        let response = timer::within(Some(until.since(now)), response).await;
        return response.map_err(|Elapsed| deadline_exceeded(Stage::Upstream));
    }
    let until = demand.queue_deadline(subject.provider.policy().provider.queue.timeout);
    let queue_timeout = async {
        timer::sleep(Some(until.since(now))).await;
        shared.until_queued().await;
    };
    tokio::select! {
        biased;
        response = response => Ok(response),
        () = queue_timeout => Err(deadline_exceeded(Stage::Waiting(None))),
    }
}

/// How many failed leaders a call accepts: as many as it has retries.
pub(crate) fn failed_flights_max(subject: &Subject) -> u32 {
    let retries = subject.provider.policy().retry.retries;
    let most = match subject.priority {
        Priority::High => retries.high,
        Priority::Normal => retries.normal,
        Priority::Low => retries.low,
    };
    most.min(FAILED_FLIGHTS_MAX)
}
