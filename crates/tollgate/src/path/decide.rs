//! Decisions without a request: a permit for an attempt that the caller makes itself.
//!
//! This is what the decision service and programs with their own HTTP clients use: `acquire` waits
//! for the permit, and `report` tells what came back. Both are the stages `permit` and `learn` of
//! the path.
//!
//! Promises: a decision that is dropped before `sent` returns its permit; after it, the attempt
//! counts as sent.
//!
//! Never: sends anything.

use std::sync::Arc;

use http::HeaderMap;
use tollgate_core::entity::EntityRequest;
use tollgate_core::gate::CallerId;
use tollgate_core::health::{Class, Fault};
use tollgate_core::time::Span;

use super::call::CallOptions;
use super::learn::{self, Observed};
use super::permit::{self, PermitHistory};
use super::rates::Rates;
use super::requested_limits::Grant;
use super::subject::Subject;
use crate::Error;
use crate::credentials::fingerprint;
use crate::providers::{Claim, CompiledPolicy, ProviderRegistry, call_costs, caller_id};

/// The right to make one attempt, and the duty to report its end.
#[derive(Debug)]
#[must_use = "a decision that is dropped returns its permit"]
pub struct Decision {
    subject: Subject,
    policy: Arc<CompiledPolicy>,
    key: Option<String>,
    grant: Grant,
    history: PermitHistory,
}

/// What came back, and what it means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Learned {
    /// The class of the response.
    pub class: Class,
    /// When to come back, if the provider said so with a failure.
    pub retry_after: Option<Span>,
}

/// Waits for a permit of this provider. `key` is the credential that the attempt will carry, for
/// limits per key. Of the options, `no_dedup` and `cache` mean nothing here.
pub async fn acquire(
    registry: &ProviderRegistry,
    provider: &str,
    key: Option<&str>,
    options: CallOptions,
) -> Result<Decision, Error> {
    let subject = subject(registry, provider, options)?;
    let key = key.map(fingerprint);
    let mut history = PermitHistory::default();
    let grant = permit::permit(&subject, key.as_deref(), &mut history).await?;
    Ok(Decision {
        policy: subject.provider.policy(),
        subject,
        key,
        grant,
        history,
    })
}

fn subject(
    registry: &ProviderRegistry,
    provider: &str,
    options: CallOptions,
) -> Result<Subject, Error> {
    let started = registry.ledger().at();
    let rights = registry.callers().rights(Claim {
        name: options.caller.as_deref(),
        token: options.token.as_ref(),
        priority: (!options.uses_default_priority).then_some(options.priority),
    })?;
    let active = registry.named(provider)?;
    let policy = active.policy();
    let mut entity = None;
    if let Some(named) = options.entity.as_deref() {
        let routed = policy.provider.entities.route(&EntityRequest {
            named: Some(named),
            host: None,
            path: "/",
            query: "",
            headers: &[],
            body: &[],
        })?;
        entity = routed.entity.map(|entity| entity.as_str().to_owned());
    }
    let caller = options.caller.as_deref();
    Ok(Subject {
        caller_id: caller.map_or_else(CallerId::default, caller_id),
        costs: call_costs(&policy.provider.costs, &options.costs, &[]),
        entity,
        priority: rights.priority,
        deadline: options.timeout.map(|timeout| started + timeout),
        id: options.id,
        caller: options.caller,
        ip: options.ip,
        at_most_permille: rights.at_most_permille,
        ..Subject::new(active, started)
    })
}

impl Decision {
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

    /// Bytes are about to leave: from now on the attempt counts as sent.
    pub fn sent(&mut self) {
        self.grant.permit.sent();
    }

    /// The whole response has arrived. `body` may be empty, or the beginning of a decoded body
    /// where the provider reports limits in it.
    pub fn report(self, status: u16, headers: &HeaderMap, body: &[u8]) -> Learned {
        let observed = Observed {
            status,
            headers,
            body,
            has_ended: true,
        };
        let key = self.key.as_deref();
        let observation = learn::observe(&self.subject, &self.policy, key, observed, self.grant);
        if let Some(permit) = observation.permit {
            permit.finished(|_| None);
        }
        Learned {
            class: observation.class,
            retry_after: observation.retry_after,
        }
    }

    /// No response arrived. After `sent`, the attempt counts as one that may still arrive.
    pub fn failed(self, fault: Fault) {
        self.grant.attempt_guard.failed(fault);
    }
}
