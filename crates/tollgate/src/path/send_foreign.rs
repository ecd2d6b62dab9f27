//! The send stage for a client of the embedding program.
//!
//! Such a client connects by itself, so its permit comes first. What is known of it is what it
//! reports: a response, a failed handshake, or another failure.
//!
//! Promises: a failed handshake, or a request that the client does not send at all, returns the
//! permit; after any other failure the attempt counts as sent. The client gets the request under a
//! permit that is not older than 500 ms; when its bytes leave is not known, so the request counts as
//! arrived with its response only, and one that is given up may arrive up to `late_arrival` later.
//!
//! Never: follows a redirect, or sends anything twice.

use http::header::HOST;
use http::uri::{PathAndQuery, Scheme};
use http::{HeaderValue, Request, StatusCode, Uri};
use tollgate_core::health::Fault;
use tollgate_core::time::Span;

use super::await_head::{OnlyByResponse, wait_for_head};
use super::connect;
use super::requested_limits::Grant;
use super::response::AttemptError;
use super::retry::RetryState;
use super::route::Route;
use super::send::{
    Sent, attempt_failed, build_request, count_attempt, deadline_exceeded, is_stale, no_response,
    not_connected,
};
use crate::Error;
use crate::body::IncomingBody;
use crate::credentials::Credential;
use crate::foreign::{ForeignClient, ForeignError, RequestBody};
use crate::headers::is_end_clear;
use crate::payload::Outgoing;
use crate::pool::Origin;
use crate::providers::CompiledPolicy;

/// Sends one attempt and waits for the head of its response.
pub(super) async fn send(
    route: &mut Route,
    policy: &CompiledPolicy,
    credential: &Credential,
    granted: Grant,
    client: ForeignClient,
    retries: &mut RetryState,
) -> Result<Sent, AttemptError> {
    let Grant {
        mut permit,
        attempt_guard,
    } = granted;
    if is_stale(&route.subject, &permit) {
        return Err(AttemptError::Again);
    }
    let host = HeaderValue::try_from(route.request.origin.authority()).ok();
    let request = build_request(route, policy, credential, host.as_ref())?;
    let request = absolute(request, &route.request.origin)?;
    let upload = request.body().0.upload();
    permit.sent();
    route.mark_sent();
    count_attempt(&route.subject, retries);
    let response = client.exchange(request);
    let response = wait_for_head(route, policy, upload.as_deref(), OnlyByResponse, response).await;
    match response {
        Ok(Ok(response)) => {
            let is_upgraded = response.status() == StatusCode::SWITCHING_PROTOCOLS;
            if is_upgraded || !is_end_clear(response.headers()) {
                return Err(attempt_failed(route, attempt_guard, Fault::Reset));
            }
            let (head, body) = response.into_parts();
            Ok(Sent {
                head,
                body: IncomingBody::Foreign(body),
                conn: None,
                grant: Grant {
                    permit,
                    attempt_guard,
                },
            })
        }
        Ok(Err(ForeignError::NotBuilt(why))) => {
            permit.unsent();
            retries.set_made(&route.subject, retries.made - 1);
            Err(AttemptError::Stop(Error::NotBuilt(why)))
        }
        Ok(Err(ForeignError::Unsent(fault))) => {
            permit.unsent();
            retries.set_made(&route.subject, retries.made - 1);
            connect::emit_failed(&route.subject, fault);
            let ended = AttemptError::Fault {
                fault,
                sent: false,
                probe: false,
            };
            Err(not_connected(attempt_guard, permit, ended))
        }
        Ok(Err(ForeignError::Failed(fault))) => {
            Err(no_response(route, attempt_guard, upload.as_deref(), fault))
        }
        // The caller's time, not the provider's: it says nothing about the provider.
        Err(_) if route.subject.remaining() == Some(Span::ZERO) => Err(deadline_exceeded(route)),
        Err(_) => Err(no_response(
            route,
            attempt_guard,
            upload.as_deref(),
            Fault::Timeout,
        )),
    }
}

/// The same request with its origin in the URI: a client finds it there, and writes `Host` itself.
fn absolute(request: Request<Outgoing>, origin: &Origin) -> Result<Request<RequestBody>, Error> {
    let (mut head, body) = request.into_parts();
    head.headers.remove(HOST);
    let scheme = if origin.tls {
        Scheme::HTTPS
    } else {
        Scheme::HTTP
    };
    let path = head.uri.path_and_query().cloned();
    head.uri = Uri::builder()
        .scheme(scheme)
        .authority(origin.authority())
        .path_and_query(path.unwrap_or_else(|| PathAndQuery::from_static("/")))
        .build()
        .map_err(|_| Error::Malformed("the host name is not valid"))?;
    Ok(Request::from_parts(head, RequestBody(body)))
}
