//! The domain `guards`: descriptors mean guards, or bring their limits along.
//!
//! Promises: the guards of all descriptors agree, or none is charged. A descriptor that no guard applies
//! to is OK. Every status names the guard with the least remaining, or the one that rejected.
//!
//! Never: rejects because of a guard in shadow.

use smallvec::SmallVec;
use tollgate::path::Rates;

use super::messages::{
    CurrentLimit, DescriptorStatus, RateLimitReply, RateLimitRequest, WireDescriptor, unit_period,
};
use super::status::GrpcStatus;
use crate::decision_api::guard_denial;
use crate::decisions::Decisions;
use crate::guards::{Descriptor, GuardAsk, GuardVerdict, GuardView, LimitOverride};
use crate::{rate_headers, rejection};

pub(super) fn decide(
    decisions: &Decisions,
    request: &RateLimitRequest<'_>,
) -> Result<RateLimitReply, GrpcStatus> {
    let guards = decisions.guards();
    let mut asks: Vec<GuardAsk> = Vec::new();
    let mut ends: SmallVec<[usize; 4]> = SmallVec::new();
    for wire in &request.descriptors {
        let descriptor = Descriptor {
            entries: &wire.entries,
            cost: request.cost(wire),
            limit: limit(wire)?,
        };
        asks.extend(guards.asks_of_descriptor(&descriptor)?);
        ends.push(asks.len());
    }
    let verdict = decisions.check(&asks)?;
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
    if let Some(denied) = &verdict.denied {
        if let Some(wait) = denied.retry_in {
            rejection::add_retry_after(&mut reply.headers, wait);
        }
        reply.set_body(&guard_denial(denied));
    }
    Ok(reply)
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
