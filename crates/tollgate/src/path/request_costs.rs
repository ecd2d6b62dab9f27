//! The cost of a request before it is sent, and why it is not certain.
//!
//! Promises: a body that cannot be read is reported, unless it does not claim to be JSON.
//!
//! Never: reads a body. It is given what was read of it.

use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue};

use super::call::CallOptions;
use super::destination::Destination;
use crate::body_scan::LargeBody;
use crate::event::CostDoubt;
use crate::providers::{BodyText, CallCost, call_costs};

/// What the call costs before it is sent; what is not certain of it is reported.
pub(super) fn costs(
    destination: &Destination,
    options: &CallOptions,
    headers: &HeaderMap,
    (body, large): (&[u8], Option<&LargeBody>),
    entity: Option<&str>,
) -> Vec<CallCost> {
    let claims_json = claims_json(headers);
    let body = match large {
        Some(large) if claims_json || large.is_whole => BodyText::Large(large),
        Some(_) => BodyText::File,
        None => BodyText::Whole(body),
    };
    let active = &destination.provider;
    let (file, known) = (
        &destination.policy.provider,
        (&*active.token_estimates, entity),
    );
    let (costs, doubt) = call_costs(&file.costs, &options.costs, body, known);
    // A file is no JSON, and nothing is wrong with it.
    let is_doubtful = |doubt: &CostDoubt| claims_json || *doubt != CostDoubt::UnreadableBody;
    if let Some(doubt) = doubt.filter(is_doubtful) {
        active.cost_doubts.report(doubt);
    }
    costs
}

/// A request that does not claim to be JSON, such as a file, is none.
fn claims_json(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes);
    kind.is_none_or(|kind| {
        kind.windows(4)
            .any(|part| part.eq_ignore_ascii_case(b"json"))
    })
}
