//! The facts. Fields are bounded and hold no secrets.
//!
//! Promises: every event names its provider and numbers.
//!
//! Never: contains a key, a query, a header or a body.

use std::sync::Arc;

use tollgate_core::ask::Priority;
use tollgate_core::health::{Class, Fault, HealthState, HealthStatus, Reason};
use tollgate_core::time::{Span, Wall};

use super::client_errors::ClientErrors;
use super::cost_doubt::CostDoubt;
use super::key_suspension::KeySuspension;
use super::steps::Steps;
use crate::error::Reason as BlockReason;

/// What the permit stage decided about an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DecisionVerdict {
    /// It may go at once.
    Allowed,
    /// It may go after it has waited.
    Queued {
        /// The limit that it waited for, if it was a limit.
        limit: Option<Arc<str>>,
        /// The reason of a rejection for the same cause.
        reason: BlockReason,
    },
    /// It may not go.
    Rejected {
        /// The exhausted limit, if it was a limit.
        limit: Option<Arc<str>>,
        /// As in the rejection; `None`: what does not pass by itself.
        reason: Option<BlockReason>,
    },
}

/// What Tollgate decided about a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CallDecision {
    /// It went at once, or needed no permit.
    Allow,
    /// It went after it had waited.
    Queue,
    /// Tollgate responded itself.
    Reject,
}

impl CallDecision {
    /// The value of `X-Tollgate-Decision`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            CallDecision::Allow => "allow",
            CallDecision::Queue => "queue",
            CallDecision::Reject => "reject",
        }
    }
}

/// What came of a call.
#[derive(Clone, Debug)]
pub enum CallResult {
    /// Its caller has a response, or has reported one.
    Response {
        /// Its status.
        status: u16,
        /// What the call waited for; `None`: it went at once.
        waited_for: Option<BlockReason>,
    },
    /// Tollgate responded itself. The error says why.
    Rejected(Box<crate::Error>),
    /// Its caller, who made it, reports that there was no response.
    NoResponse(Fault),
    /// Its caller did not wait for the response.
    ClientGone,
    /// A stage of Tollgate panicked.
    Panicked,
    /// Its caller did not use the permit.
    Unused,
    /// Its caller did not report what came of it.
    Unreported,
}

impl CallResult {
    /// What it waited for, or why its caller has no response of the provider. A closed set of words.
    #[must_use]
    pub fn reason(&self) -> Option<&'static str> {
        match self {
            CallResult::Response { waited_for, .. } => waited_for.map(BlockReason::as_str),
            CallResult::Rejected(error) => Some(error.reason_str()),
            CallResult::NoResponse(fault) => Some(fault.as_str()),
            CallResult::ClientGone => Some("client_gone"),
            CallResult::Panicked => Some("panic"),
            CallResult::Unused => Some("unused"),
            CallResult::Unreported => Some("unreported"),
        }
    }

    /// The status of the response; `None`: its caller has not got one.
    #[must_use]
    pub fn status(&self) -> Option<u16> {
        match self {
            CallResult::Response { status, .. } => Some(*status),
            CallResult::Rejected(error) => Some(error.status().as_u16()),
            CallResult::NoResponse(_)
            | CallResult::ClientGone
            | CallResult::Panicked
            | CallResult::Unused
            | CallResult::Unreported => None,
        }
    }
}

/// How a call ended.
#[derive(Clone, Debug)]
pub struct CallEnd {
    /// The call.
    pub id: Arc<str>,
    /// When it ended.
    pub at: Wall,
    /// Its method and its path without the query, once it had a provider.
    pub request: Option<(http::Method, Arc<str>)>,
    /// Whose; `None`: no provider was found for it.
    pub provider: Option<Arc<str>>,
    /// The part of the provider.
    pub entity: Option<Arc<str>>,
    /// Who called.
    pub caller: Option<Arc<str>>,
    /// How urgent it was; `None`: it was rejected before that was known.
    pub priority: Option<Priority>,
    /// What Tollgate decided.
    pub decision: CallDecision,
    /// The value of `X-Tollgate-Source`; `tollgate` for a rejection.
    pub source: &'static str,
    /// What came of it.
    pub result: CallResult,
    /// The limit, if it was a limit.
    pub limit: Option<Arc<str>>,
    /// Time spent waiting for permits.
    pub waited: Span,
    /// Attempts whose bytes may have left.
    pub attempts: u32,
    /// What happened to it, in order. Callers that share one flight share its steps.
    pub steps: Steps,
}

/// Something that happened.
#[derive(Clone, Debug)]
pub enum Event {
    /// A call is over: one for each call of a caller, whoever responded.
    CallEnded(Box<CallEnd>),
    /// A call has found its provider.
    Request {
        /// The call.
        id: Arc<str>,
        /// Whose.
        provider: Arc<str>,
        /// Its method.
        method: http::Method,
        /// Its path at the provider, without the query, shortened; never with one of our keys.
        path: Arc<str>,
    },
    /// The permit stage has decided about an attempt.
    Decision {
        /// The call.
        id: Arc<str>,
        /// Whose permit.
        provider: Arc<str>,
        /// The part of the provider.
        entity: Option<Arc<str>>,
        /// Who calls.
        caller: Option<Arc<str>>,
        /// How urgent it was.
        priority: Priority,
        /// What was decided.
        verdict: DecisionVerdict,
        /// How long the attempt waited for the decision.
        waited: Span,
    },
    /// The bytes of an attempt leave.
    Attempt {
        /// The call.
        id: Arc<str>,
        /// Whose.
        provider: Arc<str>,
        /// The part of the provider.
        entity: Option<Arc<str>>,
        /// Its number, from 1.
        number: u32,
    },
    /// The head of a response has arrived, or was reported.
    Response {
        /// The call.
        id: Arc<str>,
        /// Whose.
        provider: Arc<str>,
        /// The part of the provider.
        entity: Option<Arc<str>>,
        /// The status.
        status: u16,
        /// What it means for limits and health.
        class: Class,
        /// From the permit to the head.
        took: Span,
    },
    /// The cache had no usable response, and the provider has sent one.
    CacheMiss {
        /// The call.
        id: Arc<str>,
        /// Whose.
        provider: Arc<str>,
    },
    /// A provider's health changed.
    Transition {
        /// Whose.
        provider: Arc<str>,
        /// Before.
        from: HealthState,
        /// After.
        to: HealthState,
        /// Why.
        reason: Reason,
        /// Its current status.
        status: Box<HealthStatus>,
    },
    /// A path of a provider was closed, because calls to it failed; calls to other paths go on.
    PathClosed {
        /// Whose.
        provider: Arc<str>,
        /// Ids are `*`; `None` = all paths that have no entry of their own.
        path: Option<Arc<str>>,
        /// Failures in a row.
        failures: u32,
        /// For how long; a probe follows.
        sleep: Option<Span>,
    },
    /// A path that was closed is open again.
    PathOpened {
        /// Whose.
        provider: Arc<str>,
        /// Ids are `*`; `None` = all paths that have no entry of their own.
        path: Option<Arc<str>>,
    },
    /// Little of a quota remains, so only the cache responds; or that is over.
    Degrade {
        /// Whose.
        provider: Arc<str>,
        /// The part of it, if not all.
        entity: Option<Arc<str>>,
        /// It begins.
        is_on: bool,
        /// What remains.
        remaining: u64,
        /// It begins below this and ends at `recover`.
        below: u64,
        /// From so many on calls are sent again.
        recover: u64,
    },
    /// A provider limited a call: its scope cools down.
    Cooldown {
        /// Whose.
        provider: Arc<str>,
        /// The part of it, if not all.
        entity: Option<Arc<str>>,
        /// For how long.
        duration: Span,
        /// What the provider asked for, as it was read.
        retry_after: Option<Span>,
        /// The provider's current status.
        status: Box<HealthStatus>,
    },
    /// An attempt got no response.
    AttemptFailed {
        /// The call.
        id: Arc<str>,
        /// Whose.
        provider: Arc<str>,
        /// Why.
        fault: Fault,
    },
    /// The TLS handshake with an upstream failed: a bad certificate, or the connection broke.
    TlsFailed {
        /// Which.
        host: Arc<str>,
        /// Why, in words.
        why: Arc<str>,
    },
    /// A permit was too old when the bytes should have left, and was returned.
    StalePermit {
        /// Whose.
        provider: Arc<str>,
        /// How old.
        age: Span,
    },
    /// The ledger's store cannot be reached; each provider's `on_store_loss` says what follows.
    StoreLost {
        /// Why, in words.
        why: Arc<str>,
    },
    /// The ledger's store is reachable again.
    StoreBack {
        /// How long it was unreachable.
        away: Span,
        /// How many uncounted calls were made since the start.
        uncounted: u64,
    },
    /// Redis, in which guards count, cannot be reached; each guard's `on_store_loss` says what follows.
    GuardStoreLost {
        /// Why, in words.
        why: Arc<str>,
    },
    /// Redis, in which guards count, is reachable again.
    GuardStoreBack {
        /// How long it was unreachable.
        away: Span,
    },
    /// Stored rows of the ledger could not be believed: their limits count as used up for one period.
    LedgerDamaged {
        /// How many.
        rows: u64,
    },
    /// The log of the ledger's store grows: a reader of another program keeps it from being shortened.
    LedgerLogHeld {
        /// How long it is.
        bytes: u64,
    },
    /// This host could not write down that it uses a provider with a store of many hosts.
    StoreNotRemembered {
        /// Why, what it means and what to do.
        why: Arc<str>,
    },
    /// A cached response was served.
    FromCache {
        /// The call.
        id: Arc<str>,
        /// Whose.
        provider: Arc<str>,
        /// `cache` or `stale`.
        source: &'static str,
        /// How old it is.
        age: Span,
        /// Why it may be stale; `fresh` if it is not.
        why: &'static str,
    },
    /// A response is not stored.
    NotStored {
        /// The call.
        id: Arc<str>,
        /// Whose.
        provider: Arc<str>,
        /// Why not.
        why: &'static str,
    },
    /// Responses are cached in memory only.
    CacheOnlyInMemory {
        /// Why.
        why: Arc<str>,
    },
    /// Redis, in which responses are cached, cannot be reached: they are cached in memory meanwhile.
    CacheStoreLost {
        /// Why, in words.
        why: Arc<str>,
    },
    /// Redis, in which responses are cached, is reachable again.
    CacheStoreBack {
        /// How long it was unreachable.
        away: Span,
    },
    /// The cache file was damaged, and a new one was created.
    CacheRecreated {
        /// Where the old one is.
        file: Arc<str>,
    },
    /// A login returned a new token.
    TokenRenewed {
        /// Whose.
        provider: Arc<str>,
        /// The token's lifetime.
        lives: Span,
    },
    /// A login returned no token.
    TokenNotRenewed {
        /// Whose.
        provider: Arc<str>,
        /// Why.
        error: Box<crate::Error>,
    },
    /// A provider rejected calls because of what they asked for.
    ClientErrors(Box<ClientErrors>),
    /// The cost of a call of this provider is not certain.
    CostInDoubt(Arc<str>, CostDoubt),
    /// A key was rejected and is set aside for a while.
    KeySuspended(Box<KeySuspension>),
    /// A reload has replaced the providers.
    Reloaded {
        /// How many.
        providers: usize,
    },
    /// A part of the configuration was rejected; its old version stays.
    ReloadRejected {
        /// Place, error and remedy, in one line.
        problem: Arc<str>,
    },
    /// An operator has sent a command for a provider.
    OperatorCommand {
        /// Whose.
        provider: Arc<str>,
        /// `offline`, `pause`, `cache-only`, `resume`, `reset` or `set`.
        command: &'static str,
        /// The keys of the settings that `set` changes, not their values.
        settings: Option<Arc<str>>,
    },
    /// A setting changed at run time lets more calls through than before.
    LimitsLoosened {
        /// Whose.
        provider: Arc<str>,
        /// What changed.
        change: Arc<str>,
    },
    /// Calls waited for nothing but a connection, so the provider gets more of them.
    ConnectionsRaised {
        /// Whose.
        provider: Arc<str>,
        /// How many it may have now.
        connections: usize,
    },
    /// Calls wait for nothing but a connection, and the provider gets no more. At most one a minute.
    ConnectionsExhausted {
        /// Whose.
        provider: Arc<str>,
        /// How many it may have.
        connections: usize,
        /// Why there are no more.
        why: &'static str,
    },
    /// A queue of tasks has more pending ones than its guard allows.
    TaskQueueFull {
        /// Which.
        queue: Arc<str>,
        /// How many.
        pending: u64,
        /// Guards do not reject at present: it may be submitted.
        shadow: bool,
    },
    /// A guard has denied requests, or would have outside of shadow; one a second per guard and kind.
    GuardDenied {
        /// Which.
        guard: Arc<str>,
        /// It is in shadow: the requests went on.
        shadow: bool,
        /// How many since the last event.
        count: u64,
    },
    /// An alert begins, changes its level, or ends.
    Alert {
        /// Whose.
        provider: Arc<str>,
        /// Of which part.
        entity: Option<Arc<str>>,
        /// What it says.
        alert: Box<tollgate_core::alert::Alert>,
        /// It begins or changes its level; `false` = it ends.
        is_firing: bool,
    },
    /// A webhook did not take an alert: the first attempt failed, or the last.
    WebhookFailed {
        /// Its number in the configuration, from 1; its address may be a key.
        number: usize,
        /// Attempts so far.
        attempts: u32,
        /// It is not tried again.
        gives_up: bool,
        /// Why, in words.
        why: Arc<str>,
    },
    /// A source was fetched, and its result delivered.
    SourceFetched {
        /// Which.
        source: Arc<str>,
        /// The status of the response.
        status: u16,
        /// The size of its body.
        bytes: usize,
        /// Where it came from, as `X-Tollgate-Source` says it.
        from: &'static str,
    },
    /// A source got no permit and is put back. That is no failure.
    SourcePutBack {
        /// Which.
        source: Arc<str>,
        /// What stands in its way, as in JSON.
        reason: &'static str,
        /// When it may get one, if that is known.
        retry_in: Option<Span>,
    },
    /// A source could not be fetched, or its result not delivered.
    SourceFailed {
        /// Which.
        source: Arc<str>,
        /// Why, in words.
        why: Arc<str>,
        /// It is tried again in this time; `None` = it waits for its next time.
        retry_in: Option<Span>,
    },
    /// The file of sources and tasks cannot be used; the request was rejected.
    DeskFailed {
        /// Why, in words.
        why: Arc<str>,
    },
    /// The gateway accepts calls.
    Listening {
        /// Where.
        address: std::net::SocketAddr,
    },
    /// The file descriptor limit of this process: the soft limit at the start, and now.
    Descriptors {
        /// At the start.
        before: u64,
        /// Now, raised to the hard limit if that was allowed.
        now: u64,
    },
    /// Connections that did not end within the grace period of a shutdown were dropped.
    ConnectionsDropped {
        /// How many.
        connections: usize,
    },
    /// A connection could not be accepted: this process has no descriptor left. One each second.
    OutOfDescriptors {
        /// Where.
        address: Option<std::net::SocketAddr>,
    },
    /// The gateway is shutting down: it finishes running calls first.
    Draining,
}
