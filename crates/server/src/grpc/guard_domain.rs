//! The domain `guards`: descriptors mean guards, or bring their limits along.
//!
//! Promises: the guards of all descriptors agree, or none is charged. A descriptor that no guard applies
//! to is OK. However many guards a request means, it is decided: an error would let it pass. Only the
//! operator puts tokens back or brings limits along. Every status names the guard with the least remaining, or the one that rejected.
//!
//! Never: rejects because of a guard in shadow.

use http::HeaderValue;
use smallvec::SmallVec;
use tollgate::path::Rates;

use super::messages::{
    CurrentLimit, DescriptorStatus, RateLimitReply, RateLimitRequest, WireDescriptor, unit_period,
};
use super::status::{GrpcCode, GrpcStatus};
use crate::decision_api::{Asker, guard_denial};
use crate::decisions::Decisions;
use crate::guards::{Descriptor, GuardAsk, GuardVerdict, GuardView, LimitOverride};
use crate::rejection;
use tollgate::rate_headers;

pub(super) async fn decide(
    decisions: &Decisions,
    asker: &Asker,
    request: &RateLimitRequest<'_>,
) -> Result<RateLimitReply, GrpcStatus> {
    let guards = decisions.guards();
    // All are read before the first limit of one is remembered.
    let descriptors = request.descriptors.iter();
    let descriptors = descriptors.map(|wire| descriptor(asker, request, wire));
    let descriptors = descriptors.collect::<Result<SmallVec<[Descriptor<'_>; 2]>, _>>()?;
    let mut asks: Vec<GuardAsk> = Vec::new();
    let mut ends: SmallVec<[usize; 4]> = SmallVec::new();
    for descriptor in &descriptors {
        asks.extend(guards.asks_of_descriptor(descriptor)?);
        ends.push(asks.len());
    }
    decisions.allow_guards(asker.caller_name(), asks.iter().map(GuardAsk::guard))?;
    let verdict = guards.decide_any_number(&asks).await;
    let begins = std::iter::once(0).chain(ends.iter().copied());
    let ranges = begins.zip(&ends).map(|(begin, end)| begin..*end);
    let mut reply = RateLimitReply {
        is_over_limit: verdict.denied.is_some(),
        statuses: ranges.map(|range| status(&asks, &verdict, range)).collect(),
        ..RateLimitReply::default()
    };
    rate_headers::add_guards(
        &mut reply.headers,
        &verdict,
        &Rates::default(),
        guards.wall(),
    );
    reply.set_decision();
    if let Some(denied) = &verdict.denied {
        if let Some(wait) = denied.retry_in {
            rejection::add_retry_after(&mut reply.headers, wait);
        }
        let id = denied.id.as_deref();
        if let Some(id) = id.and_then(|id| HeaderValue::from_str(id).ok()) {
            reply.headers.insert("x-tollgate-id", id);
        }
        reply.set_body(&guard_denial(denied));
    }
    Ok(reply)
}

/// What a descriptor asks, if its asker may.
fn descriptor<'a>(
    asker: &Asker,
    request: &RateLimitRequest<'_>,
    wire: &'a WireDescriptor<'_>,
) -> Result<Descriptor<'a>, GrpcStatus> {
    let is_operator = asker.caller.is_none();
    if !is_operator && (wire.is_negative_hits || wire.limit.is_some()) {
        return Err(GrpcStatus::new(
            GrpcCode::PermissionDenied,
            "only the operator puts tokens back (`is_negative_hits`) or brings a `limit` along; leave them \
             out, or send the admin token",
        ));
    }
    Ok(Descriptor {
        entries: &wire.entries,
        cost: request.cost(wire),
        limit: limit(wire)?,
    })
}

fn limit(wire: &WireDescriptor<'_>) -> Result<Option<LimitOverride>, GrpcStatus> {
    let Some((limit, unit)) = wire.limit else {
        return Ok(None);
    };
    let period = unit_period(unit).ok_or_else(|| {
        GrpcStatus::invalid(
            "the limit of a descriptor has no known unit; send SECOND, MINUTE, HOUR, DAY, MONTH or YEAR",
        )
    })?;
    Ok(Some(LimitOverride { limit, period }))
}

/// The status of the descriptor that made these asks.
fn status(
    asks: &[GuardAsk],
    verdict: &GuardVerdict,
    range: std::ops::Range<usize>,
) -> DescriptorStatus {
    let denied = verdict.denied.as_ref().map(|denied| denied.at);
    let lacks = |at: usize, view: &GuardView| {
        let needs = asks.get(at).map_or(0, GuardAsk::needs);
        denied.is_some() && !view.class.is_shadow() && view.remaining < needs
    };
    // None if guards are off.
    let seen = range.filter_map(|at| Some((at, verdict.views.get(at)?)));
    let shown = seen.min_by_key(|(at, view)| (denied != Some(*at), view.remaining));
    let Some((at, view)) = shown else {
        return DescriptorStatus::default();
    };
    DescriptorStatus {
        is_over_limit: denied == Some(at) || lacks(at, view),
        limit: Some(CurrentLimit {
            name: view.class.name().to_owned(),
            limit: view.class.limit().into(),
            period: Some(view.class.period()),
        }),
        remaining: view
            .remaining
            .min(view.class.limit().max(view.class.burst()).into()),
        reset_in: Some(view.full_in),
    }
}
