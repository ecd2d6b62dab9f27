//! The decision service: may this call be made now? For callers that make their calls themselves.
//!
//! One facade for every protocol (HTTP on two addresses, RESP, gRPC): [`Decisions`] has a
//! method for each request, takes and returns plain types, and knows no protocol. An endpoint parses,
//! asks and writes.
//!
//! Promises: a denial is no error: it names the limit or guard that said no, and when to come back.
//! An error is the caller's: it says what to change, and nothing was counted.
//!
//! Never: decides by itself. Permits are those of `tollgate::permit_table`, tokens those of guards.

mod denial;
mod error;
mod limit_summary;
mod request;
mod reply;
pub use error::DecisionError;
pub use limit_summary::LimitSummary;
pub use reply::{Acquired, CapacityReply, ReportReply, ReportedOutcome};
pub use request::{AcquireKind, AcquireRequest, CallRequest, GuardRequest, ReportRequest};

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use http::HeaderMap;
use parking_lot::RwLock;
use tollgate::ProviderRegistry;
use tollgate::capacity;
use tollgate::detached_permit::{DetachedPermit, StoredPermit};
use tollgate::path::{CallOptions, Target};
use tollgate::permit_table::{
    IssuedPermit, PermitTable, ProviderPermits, Released, Report, Reported, USE_WITHIN,
};
use tollgate_config::config::Caller;
use tollgate_config::{Config, Secret};
use tollgate_core::time::{Now, Span};

use crate::guards::{GuardAsk, GuardStatus, GuardVerdict, Guards, Throttle, UncountableGuard};

/// The status of a response that nobody told: of no class that health counts.
const NO_STATUS: u16 = 0;

/// The decision service. Clones share it.
#[derive(Clone, Debug)]
pub struct Decisions {
    shared: Arc<DecisionState>,
}

#[derive(Debug)]
struct DecisionState {
    registry: ProviderRegistry,
    permits: PermitTable,
    guards: Guards,
    throttle: Throttle,
    /// Callers with a token, who may ask on the gateway's address.
    callers: RwLock<Arc<[Caller]>>,
    /// Distinguishes the ids of two runs.
    run: u64,
    requests: AtomicU64,
}

impl Decisions {
    /// A service without open permits.
    #[must_use]
    pub fn new(registry: ProviderRegistry, config: &Config) -> Decisions {
        let guards = Guards::new(registry.ledger().clone(), registry.events().clone(), config);
        let throttle = Throttle::new(registry.ledger().clone(), &guards);
        let permits = PermitTable::new(registry.clone(), USE_WITHIN);
        let run = registry.ledger().wall().0 / 1_000;
        let decisions = Decisions {
            shared: Arc::new(DecisionState {
                registry,
                permits,
                guards,
                throttle,
                callers: RwLock::new(Arc::default()),
                run,
                requests: AtomicU64::new(0),
            }),
        };
        decisions.set_callers(config);
        decisions
    }

    /// A new configuration: guards keep their tokens, permits stay open.
    /// An error keeps everything as it was.
    pub fn replace(&self, config: &Config) -> Result<(), UncountableGuard> {
        self.shared.guards.replace(config)?;
        self.set_callers(config);
        Ok(())
    }

    /// The guards, for endpoints that see requests.
    #[must_use]
    pub fn guards(&self) -> &Guards {
        &self.shared.guards
    }

    /// Limits that come with the request.
    #[must_use]
    pub fn throttle(&self) -> &Throttle {
        &self.shared.throttle
    }

    /// The caller that this token authenticates.
    #[must_use]
    pub fn caller_of(&self, token: &Secret) -> Option<String> {
        let callers = self.shared.callers.read().clone();
        let is_its = |caller: &&Caller| caller.token.as_ref() == Some(token);
        callers
            .iter()
            .find(is_its)
            .map(|caller| caller.name.clone())
    }

    /// Whether this caller may take tokens of these guards; `None` is the operator. A caller that names
    /// its guards has those. One that does not has all while it is the only one with a token: then
    /// nobody else is behind that address. Otherwise a caller could empty the buckets of the users of
    /// others.
    pub(crate) fn allow_guards<'a>(
        &self,
        caller: Option<&str>,
        guards: impl IntoIterator<Item = &'a str>,
    ) -> Result<(), DecisionError> {
        let Some(name) = caller else {
            return Ok(());
        };
        let callers = self.shared.callers.read().clone();
        let caller = callers.iter().find(|caller| caller.name == name);
        let allowed = caller.and_then(|caller| caller.guards.as_deref());
        let is_allowed = |guard: &str| match allowed {
            Some(allowed) => allowed.iter().any(|name| name == guard),
            None => callers.len() == 1,
        };
        match guards.into_iter().find(|guard| !is_allowed(guard)) {
            None => Ok(()),
            Some(guard) => Err(DecisionError::GuardNotAllowed {
                caller: name.to_owned(),
                guard: guard.to_owned(),
            }),
        }
    }

    /// Whether any caller has a token.
    #[must_use]
    pub(crate) fn has_tokens(&self) -> bool {
        !self.shared.callers.read().is_empty()
    }

    /// Is there a provider of this name?
    pub(crate) fn find_provider(&self, name: &str) -> Result<(), DecisionError> {
        self.shared.registry.named(name)?;
        Ok(())
    }

    /// The time of the store.
    #[must_use]
    pub fn now(&self) -> Now {
        self.shared.registry.ledger().now()
    }

    /// An id for the log, different from those of calls through the gateway.
    #[must_use]
    pub fn next_id(&self) -> Arc<str> {
        let number = self.shared.requests.fetch_add(1, Ordering::Relaxed);
        format!("{:x}-d{number}", self.shared.run).into()
    }

    /// One permit for a call, or tokens of guards: all or none.
    pub async fn acquire(&self, request: AcquireRequest) -> Result<Acquired, DecisionError> {
        let patience = match (request.wait, request.timeout) {
            (false, _) => Some(Span::ZERO),
            (true, timeout) => timeout,
        };
        match request.of {
            AcquireKind::Call(call) => self.acquire_permit(call, patience).await,
            AcquireKind::Guards(guards) => {
                let asks = self.guard_asks(&guards)?;
                // As long as each of them would wait.
                let default = || asks.iter().map(GuardAsk::wait).min();
                let patience = patience.or_else(default).unwrap_or_default();
                let verdict = self.shared.guards.acquire(&asks, patience).await?;
                let task = asks.first().filter(|_| asks.len() == 1);
                Ok(Acquired {
                    task: task.and_then(GuardAsk::task),
                    ..Acquired::of_guards(verdict)
                })
            }
        }
    }

    /// What became of the call of a permit. Said twice, the first report counts. `caller`: who says so;
    /// `None` is the operator.
    pub fn report(
        &self,
        request: &ReportRequest,
        caller: Option<&str>,
    ) -> Result<ReportReply, DecisionError> {
        self.check_holder(&request.permit, caller)?;
        let headers = HeaderMap::new();
        let report = match &request.outcome {
            ReportedOutcome::Failed(fault) => Report::Failed(*fault),
            ReportedOutcome::Response {
                status,
                headers,
                body,
            } => Report::Response {
                status: *status,
                headers,
                body,
                costs: &request.costs,
            },
            // It was made, and nobody says how it went: no word about the provider's health.
            ReportedOutcome::Unsaid => Report::Response {
                status: NO_STATUS,
                headers: &headers,
                body: &[],
                costs: &request.costs,
            },
        };
        match self
            .shared
            .permits
            .report_timed(&request.permit, report, request.latency)
        {
            Reported::Now(learned) => Ok(ReportReply::new(learned, true)),
            Reported::Before(learned) => Ok(ReportReply::new(learned, false)),
            Reported::Released => Err(DecisionError::AlreadyReleased),
            Reported::Unknown => Err(DecisionError::UnknownPermit),
        }
    }

    /// Whoever holds a permit still works under it. Returns how long its call may still be made.
    pub fn renew(&self, permit: &str, caller: Option<&str>) -> Result<Span, DecisionError> {
        self.check_holder(permit, caller)?;
        let renewed = self.shared.permits.keep_alive(permit);
        renewed.ok_or_else(|| match self.shared.permits.closed(permit) {
            Released::Before => DecisionError::AlreadyReleased,
            Released::Used => DecisionError::AlreadyReported,
            Released::Now | Released::Unknown => DecisionError::UnknownPermit,
        })
    }

    /// The call of a permit is not made: others may have it.
    pub fn release(&self, permit: &str, caller: Option<&str>) -> Result<(), DecisionError> {
        self.check_holder(permit, caller)?;
        match self.shared.permits.release(permit) {
            Released::Now | Released::Before => Ok(()),
            Released::Used => Err(DecisionError::AlreadyReported),
            Released::Unknown => Err(DecisionError::UnknownPermit),
        }
    }

    /// Takes an open permit out of this process: another one settles it with [`Decisions::attach`].
    #[must_use]
    pub fn detach(&self, permit: &str) -> Option<DetachedPermit> {
        self.shared.permits.detach(permit)
    }

    /// Takes all open permits out of this process, which ends: the next one takes them up.
    #[must_use]
    pub fn detach_all(&self) -> Vec<StoredPermit> {
        self.shared.permits.detach_all()
    }

    /// Takes up the open permits of a process that ended. Returns how many are open: others have expired, or
    /// their provider is gone; they count as sent.
    pub async fn attach_all(&self, stored: &[StoredPermit]) -> usize {
        let mut open = 0;
        for permit in stored {
            let attached = self.shared.permits.attach_stored(permit).await;
            open += usize::from(attached.unwrap_or(false));
        }
        open
    }

    /// Takes up a permit that another process has detached, to report or release it here. Not
    /// settled, it stays as it was.
    pub async fn attach(
        &self,
        permit: &str,
        detached: &DetachedPermit,
    ) -> Result<(), DecisionError> {
        match self.shared.permits.attach(permit, detached).await? {
            true => Ok(()),
            false => Err(DecisionError::UnknownPermit),
        }
    }

    /// Would a call get a permit now? Takes nothing.
    pub async fn capacity(&self, call: CallRequest) -> Result<CapacityReply, DecisionError> {
        let (target, options) = split(call, None);
        let registry = &self.shared.registry;
        let mut found = capacity::capacity(registry, target, options.clone()).await?;
        if found.denied.is_none() {
            found.denied = self.shared.permits.full_for(&found.provider, &options);
        }
        CapacityReply::new(&self.shared.registry, found)
    }

    /// The tokens of one key of a guard. Takes nothing.
    pub async fn guard_status(
        &self,
        guard: &str,
        identifier: Option<&str>,
    ) -> Result<GuardStatus, DecisionError> {
        Ok(self.shared.guards.status(guard, identifier).await?)
    }

    /// Tokens of these guards now, all or none: for endpoints that let a request pass or not.
    pub async fn check(&self, asks: &[GuardAsk]) -> Result<GuardVerdict, DecisionError> {
        Ok(self.shared.guards.decide(asks).await?)
    }

    /// The asks of requests to guards.
    pub fn guard_asks(&self, guards: &[GuardRequest]) -> Result<Vec<GuardAsk>, DecisionError> {
        let guarded = &self.shared.guards;
        let ask = |one: &GuardRequest| {
            let identifier = one.identifier.as_deref();
            guarded.ask(&one.guard, identifier, one.cost)
        };
        Ok(guards.iter().map(ask).collect::<Result<_, _>>()?)
    }

    /// The permits of a provider that other processes hold.
    #[must_use]
    pub fn permits_of(&self, provider: &str) -> ProviderPermits {
        self.shared.permits.of_provider(provider)
    }

    /// A caller settles its own permits only: whoever sees an id of another must not close that provider
    /// for all with what it reports.
    fn check_holder(&self, permit: &str, caller: Option<&str>) -> Result<(), DecisionError> {
        let is_its = |caller: &str| self.shared.permits.is_held_by(permit, caller);
        match caller.is_none_or(is_its) {
            true => Ok(()),
            false => Err(DecisionError::UnknownPermit),
        }
    }

    async fn acquire_permit(
        &self,
        call: CallRequest,
        patience: Option<Span>,
    ) -> Result<Acquired, DecisionError> {
        let began = self.shared.registry.ledger().at();
        let is_costly = !call.costs.is_empty();
        let (target, options) = split(call, patience);
        match self.shared.permits.acquire(target, None, options).await {
            Ok(permit) => Ok(self.granted(&permit)),
            Err(error) => {
                let waited = self.shared.registry.ledger().at().since(began);
                let registry = &self.shared.registry;
                denial::denied(registry, error, waited, is_costly).await
            }
        }
    }

    fn granted(&self, permit: &IssuedPermit) -> Acquired {
        let wall = self.shared.registry.ledger().wall();
        Acquired::granted(permit, wall)
    }

    fn set_callers(&self, config: &Config) {
        let with_token = |caller: &&Caller| caller.token.is_some();
        let callers = config.callers.iter().filter(with_token).cloned();
        *self.shared.callers.write() = callers.collect();
    }
}

/// A call as the path takes it.
fn split(call: CallRequest, timeout: Option<Span>) -> (Target, CallOptions) {
    let options = CallOptions {
        id: call.id,
        priority: call.priority.unwrap_or_default(),
        uses_default_priority: call.priority.is_none(),
        caller: call.caller,
        token: call.token,
        is_operator: call.is_operator,
        entity: call.entity,
        costs: call.costs,
        timeout,
        ip: call.ip,
        ..CallOptions::default()
    };
    (call.target, options)
}
