//! A provider's name as the domain: a permit for one call to it.
//!
//! Promises: `hits_addend` is the number of calls; 0 in the descriptor's own field asks for the capacity and
//! takes nothing. Envoy does not report what became of a call, so a permit counts as sent.
//!
//! Never: takes a permit for one of several descriptors only: one request is one permit.

use serde_json::json;
use tollgate::path::Target;
use tollgate_config::Secret;
use tollgate_core::ask::Priority;
use tollgate_core::time::Wall;

use super::messages::{CurrentLimit, DescriptorStatus, RateLimitReply, RateLimitRequest};
use super::status::{GrpcCode, GrpcStatus};
use crate::decision_api::{Asker, seconds_up};
use crate::decisions::{
    AcquireKind, AcquireRequest, Acquired, CallRequest, Decisions, LimitSummary,
};
use crate::{call_words, rejection};
use tollgate::rate_headers;

pub(super) async fn decide(
    decisions: &Decisions,
    asker: Asker,
    request: &RateLimitRequest<'_>,
) -> Result<RateLimitReply, GrpcStatus> {
    // What the descriptors mean depends on the provider, so a wrong domain is named first.
    decisions.find_provider(request.domain)?;
    let [descriptor] = &request.descriptors[..] else {
        return Err(GrpcStatus::invalid(
            "a request about a provider has one descriptor; put all entries into one, or ask guards",
        ));
    };
    if descriptor.limit.is_some() {
        return Err(GrpcStatus::invalid(
            "the limits of a provider stand in its file; leave `limit` out of the descriptor",
        ));
    }
    let Ok(calls) = u64::try_from(request.cost(descriptor)) else {
        return Err(GrpcStatus::invalid(
            "a permit of a provider cannot be given back here; release it over HTTP",
        ));
    };
    let mut call = call_request(decisions, asker, request.domain, &descriptor.entries)?;
    if calls == 0 {
        let capacity = decisions.capacity(call).await?;
        let acquired = Acquired {
            is_granted: capacity.is_available,
            retry_in: capacity.retry_in.filter(|_| !capacity.is_available),
            remaining: capacity.remaining,
            limit: capacity.limit,
            reason: capacity.reason,
            message: capacity.message,
            hint: Some("come back later; `tollgate capacity PROVIDER` says when"),
            provider: Some(capacity.provider),
            ..Acquired::default()
        };
        return Ok(reply(&acquired, decisions.now().wall));
    }
    if calls > 1 {
        let cost = call_words::cost("calls", calls);
        call.costs.extend([cost.ok_or_else(too_costly)?]);
    }
    let asked = AcquireRequest {
        of: AcquireKind::Call(call),
        wait: false,
        timeout: None,
    };
    let acquired = decisions.acquire(asked).await?;
    Ok(reply(&acquired, decisions.now().wall))
}

fn wrong(entry: &str, form: &str) -> GrpcStatus {
    GrpcStatus::invalid(&format!("`{entry}` is not {form}"))
}

fn too_costly() -> GrpcStatus {
    GrpcStatus::invalid("`hits_addend` is above 2^53; send the number of calls")
}

/// The call that the entries describe.
fn call_request(
    decisions: &Decisions,
    asker: Asker,
    provider: &str,
    entries: &[(&str, &str)],
) -> Result<CallRequest, GrpcStatus> {
    let (mut entity, mut named, mut priority) = (None, None, None);
    for (key, value) in entries {
        match *key {
            "entity" if !call_words::is_entity(value) => {
                return Err(wrong("entity", call_words::ENTITY_FORM));
            }
            "caller" if !call_words::is_caller(value) => {
                return Err(wrong("caller", call_words::CALLER_FORM));
            }
            "entity" => entity = Some((*value).to_owned()),
            "caller" => named = Some((*value).to_owned()),
            "priority" => priority = Some(priority_of(value)?),
            _ => {
                return Err(GrpcStatus::invalid(
                    "a descriptor of a provider has the entries `entity`, `caller` and `priority` only; \
                     use the domain `guards` for others",
                ));
            }
        }
    }
    let ip = Some(asker.peer);
    let is_operator = asker.caller.is_none();
    let (caller, token) = caller(asker, named)?;
    Ok(CallRequest {
        id: decisions.next_id(),
        target: Target::from(provider),
        entity,
        priority,
        costs: Vec::new(),
        caller,
        token,
        is_operator,
        ip,
    })
}

fn priority_of(word: &str) -> Result<Priority, GrpcStatus> {
    call_words::priority(word)
        .ok_or_else(|| GrpcStatus::invalid("`priority` is high, normal or low"))
}

/// Who calls: the caller of the token, or the one that the operator names.
fn caller(
    asker: Asker,
    named: Option<String>,
) -> Result<(Option<String>, Option<Secret>), GrpcStatus> {
    match (asker.caller, named) {
        (Some((own, _)), Some(named)) if own != named => Err(GrpcStatus::new(
            GrpcCode::PermissionDenied,
            "the token belongs to another caller; leave `caller` out, or send the token of that caller",
        )),
        (Some((own, token)), _) => Ok((Some(own), Some(token))),
        (None, named) => Ok((named, None)),
    }
}

fn reply(acquired: &Acquired, wall: Wall) -> RateLimitReply {
    let limit = acquired.limit.as_ref();
    let reset_in = match acquired.is_granted {
        true => acquired.reset_in,
        false => acquired.retry_in,
    };
    let mut reply = RateLimitReply {
        is_over_limit: !acquired.is_granted,
        ..RateLimitReply::default()
    };
    reply.statuses.push(DescriptorStatus {
        is_over_limit: !acquired.is_granted,
        limit: limit.and_then(current),
        remaining: acquired.remaining.unwrap_or(0),
        reset_in,
    });
    reply.set_decision();
    if let Some(limit) = limit
        && let Some(most) = limit.limit
    {
        let limit = (&*limit.name, most, limit.period);
        rate_headers::add_limit(
            &mut reply.headers,
            limit,
            acquired.remaining,
            reset_in,
            wall,
        );
    }
    if acquired.is_granted {
        return reply;
    }
    if let Some(wait) = acquired.retry_in {
        rejection::add_retry_after(&mut reply.headers, wait);
    }
    reply.set_body(&json!({
        "granted": false,
        "error": "RateLimitExceeded",
        "message": acquired.message,
        "hint": acquired.hint,
        "provider": acquired.provider,
        "limit": limit.map(|limit| &limit.name),
        "reason": acquired.reason,
        "retry_in": acquired.retry_in.map(seconds_up),
    }));
    reply
}

/// A limit of this process has no number.
fn current(limit: &LimitSummary) -> Option<CurrentLimit> {
    Some(CurrentLimit {
        name: limit.name.clone(),
        limit: limit.limit?,
        period: limit.period,
    })
}
