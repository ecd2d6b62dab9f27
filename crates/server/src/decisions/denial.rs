//! Denials of permits: which errors are "not now", and what they say.
//!
//! Promises: every denial has a reason, and the name of the limit if a limit said no. If something else
//! did, the message names it: which part of the provider is closed, why, and until when. What
//! remains is true: it is read where a costly call was denied although something remains.
//!
//! Never: takes a mistake of the caller for a denial.

use tollgate::error::Reason;
use tollgate::{Error, ProviderRegistry};
use tollgate_core::time::Span;

use super::error::DecisionError;
use super::limit_summary::LimitSummary;
use super::reply::Acquired;

/// Why a call gets no permit now.
#[derive(Clone, Debug)]
pub(super) struct Denial {
    pub(super) provider: String,
    pub(super) entity: Option<String>,
    pub(super) reason: &'static str,
    pub(super) limit: Option<LimitSummary>,
    pub(super) retry_in: Option<Span>,
    pub(super) message: String,
}

/// The denial that an error means, or the mistake of the caller.
pub(super) fn of(registry: &ProviderRegistry, error: Error) -> Result<Denial, DecisionError> {
    let (provider, entity, retry_in) = match &error {
        Error::NoPermit {
            provider,
            entity,
            retry_in,
            ..
        }
        | Error::NotInCache {
            provider,
            entity,
            retry_in,
            ..
        } => (provider, entity.clone(), *retry_in),
        Error::ProviderUnavailable {
            provider, status, ..
        } => {
            let reset_in = Some(status.reset_in).filter(|reset_in| *reset_in > Span::ZERO);
            (provider, None, reset_in)
        }
        Error::DeadlineExceeded { provider, .. } => (provider, None, error.retry_in()),
        _ => return Err(error.into()),
    };
    let limit = error.limit().map(|name| {
        let active = registry.named_or_unknown(provider).ok();
        let known = active.and_then(|active| active.limit_named(name));
        LimitSummary::of_status(name, known.as_ref())
    });
    Ok(Denial {
        provider: provider.clone(),
        entity,
        reason: error.reason_str(),
        limit,
        retry_in,
        message: message(&error),
    })
}

/// What said no: a limit, or the state that a part of the provider is in, and until when.
fn message(error: &Error) -> String {
    let Error::ProviderUnavailable {
        provider,
        status,
        path,
    } = error
    else {
        return error.to_string();
    };
    let scope = match path {
        Some(path) => format!("`{path}` of `{provider}`"),
        None => format!("`{provider}`"),
    };
    let why = match status.hold {
        Some(hold) => format!("is {}", hold.words()),
        None => format!("sleeps after {} failures", status.failure_count),
    };
    let until = match status.reset_in {
        Span::ZERO => format!("until `tollgate resume {provider}`"),
        reset_in => format!("for another {}", reset_in.in_words()),
    };
    format!("{error}: {scope} {why} {until}")
}

/// The reply to a call that gets no permit.
pub(super) async fn denied(
    registry: &ProviderRegistry,
    error: Error,
    waited: Span,
    is_costly: bool,
) -> Result<Acquired, DecisionError> {
    let hint = hint(&error);
    let has_room = matches!(error.reason(), Some(Reason::Spread | Reason::Ahead));
    let denial = of(registry, error)?;
    let remaining = match &denial.limit {
        None => None,
        Some(limit) if is_costly || has_room => remaining(registry, &denial, &limit.name).await,
        Some(_) => Some(0),
    };
    Ok(Acquired {
        waited,
        retry_in: denial.retry_in,
        remaining,
        reason: Some(denial.reason),
        message: Some(denial.message),
        hint: Some(hint),
        limit: denial.limit,
        provider: Some(denial.provider),
        ..Acquired::default()
    })
}

/// What remains of the limit that denied a call for which it has room, or a costly one.
async fn remaining(registry: &ProviderRegistry, denial: &Denial, limit: &str) -> Option<u64> {
    let active = registry.named(&denial.provider).ok()?;
    let mut limits = active.limits(None).await;
    if let Some(entity) = &denial.entity {
        limits.extend(active.limits(Some(entity)).await);
    }
    let same = limits.into_iter().filter(|one| one.name == limit);
    same.filter_map(|one| Some(one.view?.remaining)).min()
}

/// An operator closed it: waiting longer does not help.
const RESUME: &str = "`tollgate resume` lets calls through again";

/// What a caller can do. The words are those of the API; the gateway has its own.
fn hint(error: &Error) -> &'static str {
    if let Error::ProviderUnavailable { status, .. } = error
        && status.hold.is_some()
    {
        return RESUME;
    }
    match error.reason() {
        Some(Reason::TooCostly) => {
            "the call costs more than the whole limit; split it or raise the limit"
        }
        Some(Reason::NoShare) => "raise the limit, lower `nodes`, or let all nodes share one store",
        Some(Reason::QueueFull) => "raise queue.max, or ask less often",
        Some(Reason::PermitsOpen) => {
            "report or release each permit when its call has ended; those that are not expire by themselves"
        }
        Some(Reason::StoreLost) => {
            "the log of tollgate says why; on_store_loss in the provider's file sets what happens meanwhile"
        }
        Some(Reason::CacheOnly | Reason::CacheRequested | Reason::Paused) => RESUME,
        Some(Reason::Degraded) => "little of the quota remains; `tollgate reset` ends degrade mode",
        _ if error.retry_in().is_none() => {
            "nobody knows how long; send \"wait\": true with a longer timeout"
        }
        _ => "come back after retry_in seconds, or send \"wait\": true with a longer timeout",
    }
}
