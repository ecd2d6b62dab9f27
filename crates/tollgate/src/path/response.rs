//! What an attempt brings back: a response and what it means, or why there is none.
//!
//! Promises: an unwanted response is read for a moment, so that its connection can be reused.
//!
//! Never: decides what follows; `retry` does.

use std::sync::Arc;

use http::response::Parts;
use http_body_util::{BodyExt, Limited};
use tollgate_core::feedback::LimitVerdict;
use tollgate_core::health::{Class, Fault};
use tollgate_core::time::{Micros, Span};

use crate::body::ReplyBody;
use crate::providers::CompiledPolicy;
use crate::{Error, timer};

/// How much of an error body is read to learn from it. Limit responses are small; larger ones are
/// pages for people, and their headers must suffice.
pub(crate) const ERROR_BODY_MAX: usize = 64 * 1024;

/// How long the rest of an unwanted response is read. Closing its connection costs less than this.
const DISCARD_MAX: Span = Span::from_secs(1);

/// A response, and what it means.
#[derive(Debug)]
pub(crate) struct UpstreamResponse {
    pub(crate) head: Parts,
    pub(crate) body: ReplyBody,
    pub(crate) class: Class,
    pub(crate) verdict: LimitVerdict,
    pub(crate) retry_after: Option<Span>,
    pub(crate) probe: bool,
    /// When its permit was granted, just before its bytes left; `None` = another call fetched it.
    pub(crate) granted: Option<Micros>,
    /// The policy when its bytes left; `None` = another call fetched it.
    pub(crate) sent_under: Option<Arc<CompiledPolicy>>,
}

/// An attempt without a response.
#[derive(Debug)]
pub(crate) enum AttemptError {
    /// The call is over.
    Stop(Error),
    /// No byte has left and nothing was learned: ask again at once.
    Again,
    /// Its credential was rejected, and there is another: at most once for each.
    OtherKey,
    /// The network failed.
    Fault {
        /// How.
        fault: Fault,
        /// Bytes of it may have left.
        sent: bool,
        /// It was a probe.
        probe: bool,
    },
}

impl From<Error> for AttemptError {
    fn from(error: Error) -> AttemptError {
        AttemptError::Stop(error)
    }
}

impl UpstreamResponse {
    /// A part of a response that has already been learned from.
    pub(crate) fn part(head: Parts, body: ReplyBody, granted: Option<Micros>) -> UpstreamResponse {
        UpstreamResponse {
            head,
            body,
            class: Class::Success,
            verdict: LimitVerdict::Passed,
            retry_after: None,
            probe: false,
            granted,
            sent_under: None,
        }
    }

    /// Reads the rest of a failure, so that its connection can be reused. `None` = its body is large, or broke off.
    async fn whole(self) -> Option<UpstreamResponse> {
        let body = Limited::new(self.body, ERROR_BODY_MAX).collect();
        let bytes = body.await.ok()?.to_bytes();
        Some(UpstreamResponse {
            body: ReplyBody::whole(bytes),
            ..self
        })
    }
}

/// Reads the rest of a failure, if it arrives soon. It is the response if no further attempt is possible.
pub(crate) async fn keep(response: UpstreamResponse) -> Option<Box<UpstreamResponse>> {
    let whole = timer::within(Some(DISCARD_MAX), response.whole()).await;
    whole.ok().flatten().map(Box::new)
}

/// Reads the rest of an unwanted response, if it arrives soon.
pub(crate) async fn discard(response: UpstreamResponse) {
    discard_body(response.body).await;
}

/// The same for the body alone.
pub(crate) async fn discard_body(body: ReplyBody) {
    let _late = timer::within(Some(DISCARD_MAX), body.drain(ERROR_BODY_MAX)).await;
}
