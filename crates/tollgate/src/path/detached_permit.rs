//! Permits that outlive the process that acquired them: written down, and settled by another one.
//!
//! Processes that share a store count in the same rows, and a settle names a permit by its id. So a
//! process that knows the id, the cells and the costs of a permit can settle it, although another
//! one acquired it.
//!
//! Promises: plain data without keys, URLs or paths. A limit that the configuration no longer has
//! stays counted until the call can no longer arrive. Meanwhile, and if nobody settles the permit, it
//! counts as sent.
//!
//! Never: settles anything by itself; the caller makes sure that one process alone settles a permit.

use serde::{Deserialize, Serialize};
use tollgate_core::ask::{
    Ask, Mark, Marks, OwnerId, PathTag, PermitId, Priority, ScopeId, Term, Terms,
};
use tollgate_core::domain::Host;
use tollgate_core::time::{Micros, Span};

use super::call::{CallOptions, Target};
use super::call_end::ExternalCall;
use super::decide::{self, AcquiredPermit};
use super::permit::PermitHistory;
use super::requested_limits::{Grant, RequestedLimits};
use crate::providers::ProviderRegistry;
use crate::{Error, Permit};

/// A permit as another process can settle it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DetachedPermit {
    /// The provider that it is for.
    pub provider: String,
    pub(super) entity: Option<String>,
    pub(super) caller: Option<String>,
    pub(super) host: Option<String>,
    /// The path as health counts it: a hash.
    pub(super) path: Option<u64>,
    pub(super) owner: u32,
    pub(super) seq: u64,
    /// On the ledger's clock, in microseconds.
    pub(super) granted: u64,
    /// How long after the grant bytes may leave, in microseconds.
    pub(super) use_within: u64,
    /// How long after the grant it can be settled, in microseconds.
    pub(super) lives: u64,
    pub(super) scopes: Vec<String>,
    pub(super) terms: Vec<DetachedTerm>,
}

/// An open permit of a table that ends, for the table of the next process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredPermit {
    /// By which it is reported.
    pub id: String,
    /// The caller that may settle it; `None` = the operator.
    pub holder: Option<String>,
    /// The permit.
    pub permit: DetachedPermit,
}

/// One limit of a permit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct DetachedTerm {
    pub(super) cell: String,
    pub(super) cost: u64,
    /// The fields of its [`Mark`].
    pub(super) mark: [u64; 4],
}

impl DetachedPermit {
    fn new(decision: &AcquiredPermit, permit: &Permit) -> DetachedPermit {
        let (subject, (ask, marks, shared)) = (decision.subject(), permit.parts());
        let terms = ask.terms.iter().zip(marks).take(shared);
        DetachedPermit {
            provider: subject.provider.name().to_owned(),
            entity: subject.entity_name(),
            caller: subject.caller.clone(),
            host: subject.host.as_ref().map(ToString::to_string),
            path: subject.path.map(PathTag::number),
            owner: ask.id.owner.0,
            seq: ask.id.seq,
            granted: permit.granted().0,
            use_within: decision.use_within().0,
            lives: (decision.use_within() + decision.response_timeout()).0,
            scopes: ask.scopes.iter().map(|scope| hex(scope.0)).collect(),
            terms: terms
                .map(|(term, mark)| DetachedTerm {
                    cell: hex(term.cell.0),
                    cost: term.cost,
                    mark: [mark.granted, mark.settled, mark.used, mark.remaining],
                })
                .collect(),
        }
    }

    /// It was renewed meanwhile.
    pub(super) fn with_end(self, expires: Micros) -> DetachedPermit {
        DetachedPermit {
            lives: expires.since(Micros(self.granted)).0,
            ..self
        }
    }

    /// When it can no longer be settled, on the ledger's clock; `None`: this clock began after the
    /// grant.
    pub(super) fn expires(&self, now: Micros) -> Option<Micros> {
        let granted = Micros(self.granted);
        (granted <= now).then(|| granted + Span(self.lives))
    }

    /// Whether it can no longer be settled: it counts as sent.
    #[must_use]
    pub fn has_expired(&self, now: Micros) -> bool {
        self.expires(now).is_none_or(|expires| expires <= now)
    }

    /// The terms of the policy that this permit was granted under, with its costs and marks.
    fn terms_of(&self, current: &[Term]) -> (Terms, Marks) {
        let mut found = (Terms::new(), Marks::new());
        for term in current {
            let cell = hex(term.cell.0);
            let Some(detached) = self.terms.iter().find(|term| term.cell == cell) else {
                continue;
            };
            let [granted, settled, used, remaining] = detached.mark;
            found.0.push(Term {
                cost: detached.cost,
                ..term.clone()
            });
            found.1.push(Mark {
                granted,
                settled,
                used,
                remaining,
            });
        }
        found
    }
}

/// Another process will settle it: here it counts as sent. `None`: it is settled.
pub(super) fn detach(decision: AcquiredPermit) -> Option<DetachedPermit> {
    let detached = DetachedPermit::new(&decision, decision.permit()?);
    decision.abandon_as_used();
    Some(detached)
}

/// Takes a permit up that another process has detached.
pub(super) async fn attach(
    registry: &ProviderRegistry,
    detached: &DetachedPermit,
) -> Result<AcquiredPermit, Error> {
    let options = CallOptions {
        caller: detached.caller.clone(),
        entity: detached.entity.as_deref().map(Into::into),
        is_operator: true,
        ..CallOptions::default()
    };
    let mut end = ExternalCall::begin(registry.events(), &options);
    let target = Target::from(detached.provider.as_str());
    let mut subject = end.check(decide::subject(registry, target, options))?;
    let host = detached.host.as_deref().map(Host::parse);
    subject.host = host.and_then(Result::ok).or(subject.host);
    subject.path = detached.path.map(PathTag::from_number);
    subject.use_within = Span(detached.use_within);
    end.on_routed(&mut subject);
    let provider = subject.provider.clone();
    provider.health.sync_once().await;
    let (policy, key) = (provider.policy(), decide::own_key(&subject));
    let health = provider.health.view(subject.path);
    let order = (0, provider.permits.edition());
    let (request, requested) =
        RequestedLimits::new(&subject, &policy, key.as_deref(), &health, order);
    let shared = request.terms.len() - requested.local;
    let limits = requested.limits().min(shared);
    let (terms, marks) = detached.terms_of(&request.terms[..shared]);
    let is_limit = |term: &Term| {
        request.terms[..limits]
            .iter()
            .any(|one| one.cell == term.cell)
    };
    let limits = terms.iter().filter(|term| is_limit(term)).count();
    let ask = Ask {
        id: PermitId {
            owner: OwnerId(detached.owner),
            seq: detached.seq,
        },
        terms,
        scopes: detached
            .scopes
            .iter()
            .filter_map(|scope| scope_of(scope))
            .collect(),
        priority: Priority::Normal,
        evidence: request.evidence,
        max_wait: Span::ZERO,
    };
    let granted = (Micros(detached.granted), Span::ZERO);
    let permit = Permit::new(provider.ledger.clone(), ask, marks, granted, None);
    let grant = requested.grant(&subject, &policy, false, permit);
    let grant = Grant {
        permit: grant.permit.with_parts(limits, 0),
        ..grant
    };
    end.granted(Span::ZERO);
    Ok(AcquiredPermit::new(
        (subject, policy, key),
        grant,
        PermitHistory::default(),
        end,
    ))
}

fn hex(number: u128) -> String {
    format!("{number:032x}")
}

fn scope_of(text: &str) -> Option<ScopeId> {
    u128::from_str_radix(text, 16).ok().map(ScopeId)
}
