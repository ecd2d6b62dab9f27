//! `envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit`.
//!
//! Promises: the domain `guards` asks guards, the name of a provider asks for a permit. A denial is
//! OVER_LIMIT, and the caller of Envoy gets its reason, its time and the rate headers. A request that
//! cannot be decided is an error that names the remedy, and nothing was counted; what Envoy does then
//! is its `failure_mode_deny`.
//!
//! Never: waits for a permit; Envoy itself waits 20 ms.

use serde_json::Value;

use super::messages::{RateLimitReply, RateLimitRequest};
use super::status::GrpcStatus;
use super::{guard_domain, provider_domain};
use crate::decision_api::Asker;
use crate::decisions::Decisions;

/// The full name of the service.
pub(super) const SERVICE: &str = "envoy.service.ratelimit.v3.RateLimitService";

/// The domain of guards.
const GUARDS: &str = "guards";

/// The frame of the response.
pub(super) async fn should_rate_limit(
    decisions: &Decisions,
    asker: Asker,
    message: &[u8],
) -> Result<Vec<u8>, GrpcStatus> {
    let request = RateLimitRequest::read(message)?;
    if request.descriptors.is_empty() {
        return Err(GrpcStatus::invalid(
            "the request has no descriptors; add actions under `rate_limits` of the route",
        ));
    }
    let reply = match request.domain {
        "" => Err(GrpcStatus::invalid(
            "the request has no domain; set `domain: guards`, or a provider's name, in Envoy's filter",
        )),
        GUARDS => guard_domain::decide(decisions, &asker, &request).await,
        _ => provider_domain::decide(decisions, asker, &request).await,
    };
    Ok(reply?.into_frame())
}

impl RateLimitReply {
    /// What was decided, in the header that every other response of Tollgate has.
    pub(super) fn set_decision(&mut self) {
        let word = if self.is_over_limit {
            "reject"
        } else {
            "allow"
        };
        let word = http::HeaderValue::from_static(word);
        self.headers.insert("x-tollgate-decision", word);
    }

    /// The body that the caller of Envoy gets with a rejection.
    pub(super) fn set_body(&mut self, body: &Value) {
        let json = http::HeaderValue::from_static("application/json");
        self.headers.insert(http::header::CONTENT_TYPE, json);
        self.body = crate::json::to_bytes(body);
    }
}
