//! The send stage: the bytes leave, with the key.
//!
//! Promises: the only place that adds a key to a call (a login posts its own), and only for the
//! provider's own origin. Nothing is written under a permit older than 500 ms: a process that was
//! stopped in between asks again. A request that failed before its first byte counts as not sent,
//! any other as sent. A request without a response counts as arrived when it is acknowledged and
//! `arrive_within` has passed since its last byte, for limits that say so.
//!
//! Never: follows a redirect, or sends anything twice.

use std::borrow::Cow;

use bytes::Bytes;
use http::header::{
    ACCEPT_ENCODING, AUTHORIZATION, CONTENT_LENGTH, HOST, HeaderMap, HeaderName, HeaderValue,
    TRANSFER_ENCODING, VIA,
};
use http::response::Parts;
use http::uri::PathAndQuery;
use http::{Request, Response, StatusCode};
use http_body::Body;
use hyper::body::Incoming;
use tollgate_core::health::Fault;
use tollgate_core::time::Span;

use super::attempt_guard::AttemptGuard;
use super::await_head::{PresumedArrival, wait_for_head};
use super::connect;
use super::requested_limits::Grant;
use super::response::AttemptError;
use super::retry::RetryState;
use super::route::Route;
use super::subject::Subject;
use super::{merge, unsendable};
use crate::body::IncomingBody;
use crate::credentials::{Credential, CredentialSource};
use crate::credentials::{attach_all, secret_value};
use crate::error::Stage;
use crate::event::{Event, StepKind};
use crate::failpoint;
use crate::headers::{is_end_clear, is_keyless_header, is_upgrade};
use crate::payload::{Outgoing, Payload, Upload};
use crate::pool::{Conn, ExpectedCall};
use crate::providers::CompiledPolicy;
use crate::{Error, Permit};

/// The oldest permit under which bytes may leave. The ledger's proof needs a bound on the time
/// between grant and send.
pub(super) const PERMIT_AGE_MAX: Span = tollgate_core::ask::GRANT_AGE_MAX;

/// A response whose body is still to come.
#[derive(Debug)]
pub(crate) struct Sent {
    pub(crate) head: Parts,
    pub(crate) body: IncomingBody,
    /// The connection of our pool that it arrives on.
    pub(crate) conn: Option<Conn>,
    pub(crate) grant: Grant,
}

impl Sent {
    fn pooled(response: Response<Incoming>, conn: Conn, grant: Grant) -> Sent {
        let (head, incoming) = response.into_parts();
        Sent {
            head,
            body: IncomingBody::Own(incoming),
            conn: Some(conn),
            grant,
        }
    }
}

/// Sends one attempt and waits for the head of its response.
pub(crate) async fn send(
    route: &mut Route,
    policy: &CompiledPolicy,
    credential: &Credential,
    granted: Grant,
    expected: ExpectedCall,
    retries: &mut RetryState,
) -> Result<Sent, AttemptError> {
    let Grant {
        mut permit,
        attempt_guard,
    } = granted;
    let patience = connect::timeout(route, policy);
    let unconnected = |unreached| connect::connect_failure(route, policy, patience, unreached);
    let connections_max = route.subject.provider.connections.max();
    let mut conn = match expected.take(connections_max, patience).await {
        Ok(conn) => conn,
        Err(unreached) => return Err(not_connected(attempt_guard, permit, unconnected(unreached))),
    };
    if is_stale(&route.subject, &permit) {
        // If the handshake took so long, the next attempt finds it done.
        conn.release();
        return Err(AttemptError::Again);
    }
    let request = build_request(route, policy, credential, conn.host())?;
    let upload = request.body().upload();
    permit.sent();
    route.mark_sent();
    count_attempt(&route.subject, retries);
    // Of a body that is read while it is sent nobody knows when its last byte has left.
    let presumes = upload.is_none() && permit.presumes_arrival();
    let within = presumes.then_some(policy.provider.arrive_within);
    conn.wire.preamble.start();
    let response = conn.wire.sender.try_send_request(request);
    let arrival = PresumedArrival::new(within, &conn.wire.preamble, &mut permit);
    let response = wait_for_head(route, policy, upload.as_deref(), arrival, response).await;
    conn.wire.preamble.finish();
    match response {
        Ok(Ok(mut response)) => {
            if response.status() == StatusCode::SWITCHING_PROTOCOLS {
                conn.upgraded = Some(hyper::upgrade::on(&mut response));
            }
            if !is_usable(route, &conn, &response) {
                return Err(attempt_failed(route, attempt_guard, Fault::Reset));
            }
            let grant = Grant {
                permit,
                attempt_guard,
            };
            Ok(Sent::pooled(response, conn, grant))
        }
        Ok(Err(mut error)) => match error.take_message() {
            // The connection was closed before it took the request: no byte has left.
            Some(request) => {
                permit.unsent();
                retries.set_made(&route.subject, retries.made - 1);
                route.request.payload.restore(request.into_body());
                Err(AttemptError::Again)
            }
            None => {
                if error.error().is_parse() {
                    conn.expect_many_headers(); // perhaps there were too many
                }
                let upload = upload.as_deref();
                Err(no_response(route, attempt_guard, upload, Fault::Reset))
            }
        },
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

/// Can the caller get this response? Not if it is unclear where it ends, if its first chunk is
/// invalid, or if it changes to another protocol that the caller did not ask for.
fn is_usable(route: &Route, conn: &Conn, response: &Response<Incoming>) -> bool {
    let is_expected = conn.upgraded.is_none() || is_upgrade(&route.request.headers);
    let has_chunks = response.headers().contains_key(TRANSFER_ENCODING);
    let has_bad_chunk =
        has_chunks && !response.body().is_end_stream() && conn.wire.preamble.has_bad_chunk();
    is_expected && !has_bad_chunk && is_end_clear(response.headers())
}

pub(super) fn deadline_exceeded(route: &Route) -> AttemptError {
    AttemptError::Stop(Error::DeadlineExceeded {
        provider: route.subject.provider.name.clone(),
        at: Stage::Upstream,
    })
}

/// Bytes have left, and no response arrived: whose fault is it? An upload that its caller aborts or
/// stalls says nothing about the provider. Whether the provider counts the call is unknown.
pub(super) fn no_response(
    route: &Route,
    attempt_guard: AttemptGuard,
    upload: Option<&Upload>,
    fault: Fault,
) -> AttemptError {
    let is_callers = upload.is_some_and(|upload| match fault {
        Fault::Timeout => upload.awaits_caller(),
        Fault::Reset | Fault::Connect | Fault::Dns => upload.has_failed(),
    });
    if is_callers {
        let is_slow = upload.is_some_and(Upload::is_too_slow);
        return AttemptError::Stop(if is_slow {
            Error::SlowBody
        } else {
            Error::IncompleteBody
        });
    }
    attempt_failed(route, attempt_guard, fault)
}

/// Counts an attempt, and reports it unless it was reported before it turned out to be unsent.
pub(super) fn count_attempt(subject: &Subject, retries: &mut RetryState) {
    retries.set_made(subject, retries.made + 1);
    if retries.made > retries.reported {
        retries.reported = retries.made;
        emit_attempt(subject, retries.made);
    }
}

pub(super) fn emit_attempt(subject: &Subject, number: u32) {
    subject.add_step(|| StepKind::Sent { attempt: number });
    subject.provider.events.emit_with(|| {
        let (id, provider, entity) = subject.labels();
        Event::Attempt {
            id,
            provider,
            entity,
            number,
        }
    });
}

/// Is the permit too old to send under?
pub(super) fn is_stale(subject: &Subject, permit: &Permit) -> bool {
    let (provider, age) = (&subject.provider, permit.age());
    let is_stale = age > PERMIT_AGE_MAX;
    if is_stale {
        let name = provider.label();
        provider.events.emit(Event::StalePermit {
            provider: name,
            age,
        });
    }
    is_stale
}

/// Bytes have left, and no response arrived.
pub(super) fn attempt_failed(
    route: &Route,
    attempt_guard: AttemptGuard,
    fault: Fault,
) -> AttemptError {
    connect::emit_failed(&route.subject, fault);
    let probe = attempt_guard.probe;
    attempt_guard.failed(fault);
    AttemptError::Fault {
        fault,
        sent: true,
        probe,
    }
}

/// Reports to health before the permit is returned, so that a failed probe closes the scope and the
/// next probe does not follow at once.
pub(super) fn not_connected(
    attempt_guard: AttemptGuard,
    permit: Permit,
    mut ended: AttemptError,
) -> AttemptError {
    let was_probe = attempt_guard.probe;
    if let AttemptError::Fault { fault, probe, .. } = &mut ended {
        *probe = was_probe;
        attempt_guard.unreached(*fault);
    }
    drop(permit);
    ended
}

/// Builds the request.
pub(super) fn build_request(
    route: &mut Route,
    policy: &CompiledPolicy,
    credential: &Credential,
    host: Option<&HeaderValue>,
) -> Result<Request<Outgoing>, Error> {
    failpoint::reached("granted");
    let mut headers = route.request.headers.clone();
    let merged = merge::target(route);
    if merged.is_some() {
        headers.remove(ACCEPT_ENCODING); // its parts are extracted from plain text
    }
    let (path, mut query) = match &merged {
        Some((path, query)) => (path, query.as_deref().map(Cow::Borrowed)),
        None => {
            let query = route.request.query.as_deref();
            (&route.request.path, query.map(Cow::Borrowed))
        }
    };
    add_defaults(route, policy, &mut headers);
    match &credential.source {
        CredentialSource::Client => {}
        CredentialSource::Key(index) => {
            let key = policy.keys.get(*index);
            match key.and_then(|key| key.headers.as_ref()) {
                Some(written) => {
                    for (name, value) in written {
                        headers.insert(name, value.clone());
                    }
                }
                None => {
                    let key = key.map(|key| &key.secret);
                    let mut with_key = query.map(Cow::into_owned);
                    attach_all(&policy.provider.auth, key, &mut headers, &mut with_key)
                        .map_err(|error| unsendable::key_error(policy, *index, &error))?;
                    query = with_key.map(Cow::Owned);
                }
            }
        }
        CredentialSource::Token(held) => {
            let value = secret_value("Bearer ", held.token.expose())
                .map_err(|_| unsendable::token_error(policy))?;
            headers.insert(AUTHORIZATION, value);
        }
    }
    let host = host.ok_or(Error::Malformed("the host name is not valid"))?;
    headers.insert(HOST, host.clone());
    if !route.request.origin.tls {
        headers.append(VIA, route.subject.provider.via.header_value().clone());
    }
    if matches!(
        route.request.payload,
        Payload::Whole(_) | Payload::Spooled(_)
    ) {
        headers.remove(CONTENT_LENGTH);
    }
    let query = query.as_deref();
    let mut target = String::with_capacity(path.len() + query.map_or(0, |query| query.len() + 1));
    target.push_str(path);
    if let Some(query) = query {
        target.push('?');
        target.push_str(query);
    }
    let mut request = Request::new(route.request.payload.outgoing(&headers));
    *request.method_mut() = route.request.method.clone();
    *request.uri_mut() = PathAndQuery::from_maybe_shared(Bytes::from(target))
        .map_err(|_| unsendable::target_error(route, policy, credential))?
        .into();
    *request.headers_mut() = headers;
    Ok(request)
}

/// Adds the file's headers that the caller does not send. Their values may be keys, so they are
/// sent only to the provider's own origin, except those that are never keys.
fn add_defaults(route: &Route, policy: &CompiledPolicy, headers: &mut HeaderMap) {
    for (name, value) in &policy.provider.headers {
        if (route.request.is_own_origin || is_keyless_header(name))
            && let Ok(name) = HeaderName::try_from(name)
            && let Ok(value) = secret_value("", value.expose())
            && !headers.contains_key(&name)
        {
            headers.insert(name, value);
        }
    }
}
