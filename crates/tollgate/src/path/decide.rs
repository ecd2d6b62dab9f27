//! Decisions without a request: a permit for an attempt that the caller makes itself.
//!
//! This is what the decision service and programs with their own HTTP clients use: `acquire` waits
//! for the permit, `sent` says that bytes leave now, and `report` says what came back (`head` and
//! `finish`, if head and end are apart). These are the stages `permit`, `send` and `learn` of the
//! path.
//!
//! A decision lives in this process; `permit_table` hands its permit to another one, by id.
//!
//! Promises: a decision that is dropped before `sent` returns its permit; after it, the attempt
//! counts as sent. Nothing is sent under a permit older than 500 ms: `sent` returns it and fails.
//!
//! Never: sends anything.

use std::sync::Arc;

use http::HeaderMap;
use tollgate_core::ask::{PathTag, Settle};
use tollgate_core::domain::Host;
use tollgate_core::entity::EntityRequest;
use tollgate_core::feedback::Feedback;
use tollgate_core::gate::CallerId;
use tollgate_core::health::{Class, Fault};
use tollgate_core::time::{Micros, Span};
use tollgate_ledger::ProviderLedger;

use super::call::{CallOptions, Target};
use super::call_end::ExternalCall;
use super::learn::{self, ObservedResponse};
use super::permit::{self, PermitHistory};
use super::rates::Rates;
use super::requested_limits::Grant;
use super::response_cost;
use super::send::{self, PERMIT_AGE_MAX};
use super::subject::Subject;
use super::{connect, destination};
use crate::credentials::fingerprint;
use crate::providers::{
    ActiveProvider, BodyText, Claim, CompiledPolicy, ProviderRegistry, call_costs, caller_id,
};
use crate::{Error, Permit};

/// The right to make one attempt, and the duty to report its end.
#[derive(Debug)]
#[must_use = "a decision that is dropped returns its permit"]
pub struct AcquiredPermit {
    subject: Subject,
    policy: Arc<CompiledPolicy>,
    key: Option<String>,
    /// Until the head, or until it has expired.
    grant: Option<Grant>,
    /// From the head to the end, unless it is settled before.
    permit: Option<Permit>,
    is_sent: bool,
    /// How long its response took, if whoever received it says so.
    pub(super) took: Option<Span>,
    history: PermitHistory,
    end: ExternalCall,
}

/// The permit was too old to send under, and is returned: acquire another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the permit is {} old and has expired; nothing may be sent: acquire again", .age.in_words())]
pub struct Expired {
    /// How old it was.
    pub age: Span,
}

/// What came back, and what it means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Learned {
    /// The class of the response.
    pub class: Class,
    /// When to come back, if the provider said so with a failure.
    pub retry_after: Option<Span>,
}

/// Waits for a permit for a call to this provider, or to the provider of this URL. Path and query
/// determine the entity, and the host counts for limits per host. `key` is the credential that the
/// attempt will carry, for limits per key. Of the options, `no_dedup` and `cache` mean nothing here.
pub async fn acquire(
    registry: &ProviderRegistry,
    target: impl Into<Target>,
    key: Option<&str>,
    options: CallOptions,
) -> Result<AcquiredPermit, Error> {
    acquire_within(registry, target.into(), key, options, Span::ZERO).await
}

/// The same for a caller that sends over connections of its own, within this time of the grant.
pub(crate) async fn acquire_within(
    registry: &ProviderRegistry,
    target: Target,
    key: Option<&str>,
    options: CallOptions,
    use_within: Span,
) -> Result<AcquiredPermit, Error> {
    let mut end = ExternalCall::begin(registry.events(), &options);
    let mut subject = end.check(subject(registry, target, options))?;
    subject.use_within = use_within;
    end.on_routed(&mut subject);
    decide(subject, key, end).await
}

/// Waits for the permit of this subject.
pub(super) async fn decide(
    subject: Subject,
    key: Option<&str>,
    mut end: ExternalCall,
) -> Result<AcquiredPermit, Error> {
    let key = key_of(&subject, key);
    let mut history = PermitHistory::default();
    let granted = permit::permit(&subject, key.as_deref(), &mut history).await;
    let grant = end.check(granted)?;
    end.granted(history.waited);
    let policy = subject.provider.policy();
    Ok(AcquiredPermit::new(
        (subject, policy, key),
        grant,
        history,
        end,
    ))
}

/// The key that an attempt carries: this credential, or the provider's own.
pub(super) fn key_of(subject: &Subject, key: Option<&str>) -> Option<String> {
    key.map(fingerprint).or_else(|| own_key(subject))
}

/// The key that calls of this provider carry. Whoever makes an attempt itself and names no key uses
/// the same one: a limit per key would otherwise count its attempts beside the gateway's.
pub(super) fn own_key(subject: &Subject) -> Option<String> {
    let policy = subject.provider.policy();
    policy.fingerprints().next().map(str::to_owned)
}

/// Who calls what: as for a call with a request, but without headers and body.
pub(super) fn subject(
    registry: &ProviderRegistry,
    target: Target,
    options: CallOptions,
) -> Result<Subject, Error> {
    let started = registry.ledger().at();
    let rights = registry.callers().rights(Claim {
        name: options.caller.as_deref(),
        token: options.token.as_ref(),
        priority: (!options.uses_default_priority).then_some(options.priority),
        is_operator: options.is_operator,
    })?;
    let (active, host, called, path, query) = resolve(registry, target)?;
    let policy = active.policy();
    let routed = policy.provider.entities.route(&EntityRequest {
        named: options.entity.as_deref(),
        host: host.as_ref(),
        path: if path.is_empty() { "/" } else { &path },
        query: query.as_deref().unwrap_or_default(),
        headers: &[],
        body: &[],
    })?;
    let entity: Option<Arc<str>> = routed.entity.map(|entity| entity.as_str().into());
    let caller = options.caller.as_deref();
    let subject = Subject {
        caller_id: caller.map_or_else(CallerId::default, caller_id),
        costs: call_costs(
            &policy.provider.costs,
            &options.costs,
            BodyText::Whole(&[]),
            (&active.token_estimates, entity.as_deref()),
        )
        .0,
        entity,
        host: called,
        priority: rights.priority,
        deadline: options.timeout.map(|timeout| started + timeout),
        id: options.id,
        caller: options.caller,
        ip: options.ip,
        at_most_permille: rights.at_most_permille,
        path: (!path.is_empty()).then(|| PathTag::of(&path)),
        path_text: (!path.is_empty()).then(|| path.into()),
        ..Subject::new(active, started)
    };
    Ok(subject.with_entity_metrics(&policy))
}

/// The provider, the host that the caller named, the host that is called, path and query. A provider
/// that is named need not have an upstream: its caller knows where it is.
fn resolve(registry: &ProviderRegistry, target: Target) -> Result<Resolved, Error> {
    if let Target::Provider { name, path, query } = target {
        let active = registry.named(&name)?;
        let upstream = active.policy().provider.upstream.clone();
        let host = upstream.map(|upstream| upstream.host);
        return Ok((active, host.clone(), host, path, query));
    }
    let (destination, path, query) = destination::resolve(registry, target)?;
    let (host, called) = (destination.host, destination.origin.host);
    Ok((destination.provider, Some(host), Some(called), path, query))
}

/// Provider, host as named, host that is called, path, query.
type Resolved = (
    Arc<ActiveProvider>,
    Option<Host>,
    Option<Host>,
    String,
    Option<String>,
);

impl AcquiredPermit {
    pub(super) fn new(
        (subject, policy, key): (Subject, Arc<CompiledPolicy>, Option<String>),
        grant: Grant,
        history: PermitHistory,
        end: ExternalCall,
    ) -> AcquiredPermit {
        AcquiredPermit {
            subject,
            policy,
            key,
            grant: Some(grant),
            permit: None,
            is_sent: false,
            took: None,
            history,
            end,
        }
    }

    pub(super) fn subject(&self) -> &Subject {
        &self.subject
    }

    /// Its permit, until the head of the response.
    pub(super) fn permit(&self) -> Option<&Permit> {
        self.grant.as_ref().map(|grant| &grant.permit)
    }

    /// The provider that it is for.
    #[must_use]
    pub fn provider(&self) -> &str {
        self.subject.provider.name()
    }

    /// How long it waited for the permit.
    #[must_use]
    pub fn waited(&self) -> Span {
        self.history.waited
    }

    /// What remained of each limit.
    #[must_use]
    pub fn rates(&self) -> &Rates {
        &self.history.rates
    }

    /// How long bytes may still leave under its permit; zero = acquire again.
    #[must_use]
    pub fn expires_in(&self) -> Span {
        self.grant
            .as_ref()
            .map_or(Span::ZERO, |grant| PERMIT_AGE_MAX - grant.permit.age())
    }

    /// Bytes are about to leave: from now on the attempt counts as sent. Fails if the permit is too
    /// old, and returns it: then nothing may be sent.
    pub fn sent(&mut self) -> Result<(), Expired> {
        if self.is_sent {
            return Ok(());
        }
        match self.grant.take() {
            Some(grant) if !send::is_stale(&self.subject, &grant.permit) => {
                self.grant = Some(grant);
                self.count_as_sent();
                Ok(())
            }
            late => Err(Expired {
                age: late.map_or(PERMIT_AGE_MAX, |grant| grant.permit.age()),
            }),
        }
    }

    /// The process that holds the permit may still use it, and nobody will hear of it.
    pub(super) fn abandon_as_used(mut self) {
        self.count_as_sent();
        let grant = self.grant.take().map(|grant| grant.permit);
        if let Some(permit) = grant.or(self.permit.take()) {
            permit.abandon_as_used();
        }
    }

    /// Its time is over, and nobody has reported it: it counts, also towards degrade mode.
    pub(crate) fn lapse(&mut self) {
        self.count_as_sent();
        if self.policy.provider.enabled {
            let key = self.key.as_deref();
            learn::update_degrade(&self.subject, &self.policy, key, &Feedback::default());
        }
    }

    /// Bytes have left, or may have: another process does not say when.
    pub(crate) fn count_as_sent(&mut self) {
        if let Some(grant) = &mut self.grant
            && !self.is_sent
        {
            grant.permit.sent();
            self.is_sent = true;
            self.end.sent();
            send::emit_attempt(&self.subject, 1);
        }
    }

    /// How long after the grant its bytes may leave.
    pub(crate) fn use_within(&self) -> Span {
        self.subject.use_within
    }

    /// How long ago its permit was granted.
    pub(crate) fn granted_ago(&self) -> Option<Span> {
        self.permit().map(Permit::age)
    }

    /// When its permit was granted.
    pub(super) fn granted(&self) -> Option<Micros> {
        self.grant.as_ref().map(|grant| grant.permit.granted())
    }

    /// How long a response may take.
    pub(super) fn response_timeout(&self) -> Span {
        self.policy.provider.timeouts.first_byte
    }

    /// Did it have to wait for a limit, a scope or a time?
    #[must_use]
    pub fn was_queued(&self) -> bool {
        self.history.was_queued
    }

    /// The part of the provider that it is for.
    #[must_use]
    pub fn entity(&self) -> Option<&str> {
        self.subject.entity.as_deref()
    }

    /// The attempt still runs: its permit is held for this much longer.
    pub fn keep_alive(&mut self, by: Span) {
        let granted = self.grant.as_mut().map(|grant| &mut grant.permit);
        if let Some(permit) = granted.or(self.permit.as_mut()) {
            permit.keep_alive(by);
        }
    }

    /// As [`AcquiredPermit::keep_alive`], to be settled by whoever holds no lock.
    pub(super) fn alive(&self, by: Span) -> Option<(ProviderLedger, Settle)> {
        let granted = self.grant.as_ref().map(|grant| &grant.permit);
        Some(granted.or(self.permit.as_ref())?.alive(by))
    }

    /// The whole response has arrived. `body` may be empty, or the beginning of a decoded body
    /// where the provider reports limits in it. `costs` are the real costs, by unit, where they
    /// were estimated before.
    pub fn report(
        mut self,
        status: u16,
        headers: &HeaderMap,
        body: &[u8],
        costs: &[(String, u64)],
    ) -> Learned {
        let observed = ObservedResponse {
            status,
            headers,
            body,
            has_ended: true,
            took: self.took,
        };
        let learned = self.observe(observed);
        let read = match costs {
            [] => response_cost::reported(&self.subject, &self.policy, status, body),
            _stated => Vec::new(),
        };
        self.settle(costs, &read);
        learned
    }

    /// The head of the response has arrived; `finish` follows at its end.
    pub fn head(&mut self, status: u16, headers: &HeaderMap) -> Learned {
        self.observe(ObservedResponse {
            status,
            headers,
            body: &[],
            has_ended: false,
            took: None,
        })
    }

    /// The end of the response has arrived, with its real costs by unit.
    pub fn finish(self, costs: &[(String, u64)]) {
        self.settle(costs, &[]);
    }

    /// `stated`: by unit; `read`: by term.
    fn settle(self, stated: &[(String, u64)], read: &[(usize, u64)]) {
        let Some(permit) = self.permit else {
            return; // settled at its head, or no head was reported
        };
        let has_shares = self.subject.at_most_permille.is_some();
        let units = self
            .policy
            .term_units(self.subject.joint_priority(), has_shares);
        permit.finished(|term| {
            let unit = units.get(term)?;
            let cost = stated.iter().find(|(named, _)| named == unit);
            let in_body = || read.iter().find(|(of, _)| *of == term);
            cost.map(|(_, amount)| *amount)
                .or_else(|| Some(in_body()?.1))
        });
    }

    fn observe(&mut self, observed: ObservedResponse<'_>) -> Learned {
        let Some(grant) = self.grant.take() else {
            // Expired, or its head was reported before: there is nothing left to learn for.
            return Learned {
                class: Class::of_status(observed.status, None),
                retry_after: None,
            };
        };
        self.end.reported(Ok(observed.status));
        let key = self.key.as_deref();
        let observation = learn::observe(&self.subject, &self.policy, key, observed, grant);
        self.permit = observation.permit;
        if observation.class.is_failure() {
            self.name_path();
        }
        Learned {
            class: observation.class,
            retry_after: observation.retry_after,
        }
    }

    /// No response arrived. After `sent`, the attempt counts as one that may still arrive.
    pub fn failed(mut self, fault: Fault) {
        self.end.reported(Err(fault));
        connect::emit_failed(&self.subject, fault);
        if let Some(grant) = self.grant.take() {
            grant.attempt_guard.failed(fault);
        }
        self.name_path();
    }

    /// The handshake failed: no byte has left, so the permit is returned.
    pub(crate) fn unreached(mut self, fault: Fault) {
        self.end.reported(Err(fault));
        connect::emit_failed(&self.subject, fault);
        if let Some(grant) = self.grant.take() {
            grant.attempt_guard.unreached(fault);
        }
    }

    /// Its path may fail now: people want to know which.
    fn name_path(&self) {
        if let Some(text) = &self.subject.path_text {
            let health = &self.subject.provider.health;
            health.name_path(self.subject.path, text);
        }
    }
}
