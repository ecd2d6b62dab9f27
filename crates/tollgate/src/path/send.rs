//! The send stage: the bytes leave, and with them the key.
//!
//! Promises: the one place where a key is added to a call (a login has its own in what it posts), and
//! only for the provider's own origin. Nothing is written under a permit older than 500 ms: a process
//! that was stopped in between asks again. What was refused before its first byte counts as not
//! sent, anything else as sent.
//!
//! Never: follows a redirect, or sends anything twice.

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use http::header::{
    ACCEPT_ENCODING, AUTHORIZATION, CONTENT_LENGTH, HOST, HeaderMap, HeaderName, HeaderValue,
    UPGRADE, VIA,
};
use http::uri::PathAndQuery;
use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use tollgate_config::Secret;
use tollgate_config::provider::{Auth, AuthStyle};
use tollgate_core::health::Fault;
use tollgate_core::time::Span;

use super::acquire::Grant;
use super::attempt_guard::AttemptGuard;
use super::connect;
use super::credential::{Credential, CredentialSource};
use super::retry::{AttemptError, RetryState};
use super::route::Route;
use super::{merge, query};
use crate::body::{Outgoing, Payload, Upload};
use crate::error::Stage;
use crate::event::LogEvent;
use crate::failpoint;
use crate::pool::{Conn, ExpectedCall};
use crate::providers::CompiledPolicy;
use crate::timer::within;
use crate::{Error, Permit};

/// The oldest permit under which bytes may leave. The ledger's proof needs a bound on the time
/// between grant and send; half a second is far above any scheduling delay of a healthy host.
const PERMIT_AGE_MAX: Span = Span::from_millis(500);

/// Headers whose value is no key, whoever sets them.
const KEYLESS_HEADERS: [&str; 4] = ["user-agent", "accept", "accept-language", "from"];

/// An answer whose body is still to come.
#[derive(Debug)]
pub(crate) struct Sent {
    pub(crate) response: Response<Incoming>,
    pub(crate) conn: Conn,
    pub(crate) permit: Permit,
    pub(crate) attempt_guard: AttemptGuard,
}

/// Sends one attempt and waits for the head of its answer.
pub(crate) async fn send(
    route: &mut Route,
    plan: &CompiledPolicy,
    credential: &Credential,
    granted: Grant,
    expected: ExpectedCall,
    tries: &mut RetryState,
) -> Result<Sent, AttemptError> {
    let Grant {
        mut permit,
        attempt_guard: watch,
    } = granted;
    let patience = connect::timeout(route, plan);
    let unconnected = |unreached| connect::connect_failure(route, plan, patience, unreached);
    let mut conn = match expected.take(plan.connections_max, patience).await {
        Ok(conn) => conn,
        Err(unreached) => return Err(not_connected(watch, permit, unconnected(unreached))),
    };
    if is_stale(route, &permit) {
        // If it was the handshake that took so long, the next attempt finds it done.
        conn.release();
        return Err(AttemptError::Again);
    }
    let request = build_request(route, plan, credential, conn.host())?;
    let upload = request.body().upload();
    permit.sent();
    route.mark_sent();
    tries.made += 1;
    conn.wire.preamble.start();
    let answer = conn.wire.sender.try_send_request(request);
    let answer = wait_for_head(route, plan, upload.as_deref(), answer).await;
    conn.wire.preamble.finish();
    match answer {
        Ok(Ok(mut response)) => {
            if response.status() == StatusCode::SWITCHING_PROTOCOLS {
                conn.upgraded = Some(hyper::upgrade::on(&mut response));
            }
            if conn.upgraded.is_some() && !is_upgrade(&route.headers) {
                // Nobody asked for it, so nobody could speak what follows.
                return Err(attempt_failed(route, watch, Fault::Reset));
            }
            Ok(Sent {
                response,
                conn,
                permit,
                attempt_guard: watch,
            })
        }
        Ok(Err(mut error)) => match error.take_message() {
            // The connection was closed before it took the request: nothing has left.
            Some(request) => {
                permit.unsent();
                tries.made -= 1;
                route.payload.restore(request.into_body());
                Err(AttemptError::Again)
            }
            None => Err(no_response(route, watch, upload.as_deref(), Fault::Reset)),
        },
        // The caller's time, not the provider's: it says nothing about the provider.
        Err(_) if route.remaining() == Some(Span::ZERO) => Err(too_late(route)),
        Err(_) => Err(no_response(route, watch, upload.as_deref(), Fault::Timeout)),
    }
}

fn too_late(route: &Route) -> AttemptError {
    AttemptError::Stop(Error::TooLate {
        provider: route.provider.name.clone(),
        at: Stage::Upstream,
    })
}

/// Bytes have left, and no answer came: whose fault is that? An upload that its caller broke off or
/// lets stand still says nothing about the provider. Whether it counts the call, nobody knows.
fn no_response(
    route: &Route,
    watch: AttemptGuard,
    upload: Option<&Upload>,
    fault: Fault,
) -> AttemptError {
    let is_callers = upload.is_some_and(|upload| match fault {
        Fault::Timeout => upload.awaits_caller(),
        Fault::Reset | Fault::Connect | Fault::Dns => upload.has_failed(),
    });
    if is_callers {
        return AttemptError::Stop(Error::NoBody);
    }
    attempt_failed(route, watch, fault)
}

/// Is the permit too old to send under?
fn is_stale(route: &Route, permit: &Permit) -> bool {
    let (provider, age) = (&route.provider.name, permit.age());
    let is_stale = age > PERMIT_AGE_MAX;
    if is_stale {
        LogEvent::StalePermit { provider, age }.emit();
    }
    is_stale
}

/// Bytes have left, and no answer came.
fn attempt_failed(route: &Route, watch: AttemptGuard, fault: Fault) -> AttemptError {
    let provider = &route.provider.name;
    LogEvent::AttemptFailed { provider, fault }.emit();
    let probe = watch.probe;
    watch.failed(fault);
    AttemptError::Fault {
        fault,
        sent: true,
        probe,
    }
}

/// Health hears of it before the permit goes back, so that a probe that found nobody closes the
/// scope and the next one does not follow at once.
fn not_connected(watch: AttemptGuard, permit: Permit, mut ended: AttemptError) -> AttemptError {
    let was_probe = watch.probe;
    if let AttemptError::Fault { fault, probe, .. } = &mut ended {
        *probe = was_probe;
        watch.failed(*fault);
    }
    drop(permit);
    ended
}

/// Does the call ask for another protocol? Then its answer is nobody else's.
pub(crate) fn is_upgrade(headers: &HeaderMap) -> bool {
    headers.contains_key(UPGRADE)
}

/// Waits for the head of an answer: the provider's time, or what is left of the caller's. An upload
/// that flows is never cut, and time that a joiner brings along is used.
async fn wait_for_head<T>(
    route: &Route,
    plan: &CompiledPolicy,
    upload: Option<&Upload>,
    answer: impl Future<Output = T>,
) -> Result<T, crate::timer::Elapsed> {
    let mut answer = std::pin::pin!(answer);
    let most = plan.provider.timeouts.first_byte;
    let gone = || upload.map(Upload::pieces);
    let (mut seen, mut rest) = (gone(), most);
    loop {
        let patience = route.remaining().map_or(rest, |left| left.min(rest));
        match within(Some(patience), answer.as_mut()).await {
            Ok(answer) => return Ok(answer),
            Err(late) => {
                let sent = gone();
                rest = if sent == seen { rest - patience } else { most };
                if rest == Span::ZERO || route.remaining() == Some(Span::ZERO) {
                    return Err(late);
                }
                seen = sent;
            }
        }
    }
}

/// The request as it leaves.
fn build_request(
    route: &mut Route,
    plan: &CompiledPolicy,
    credential: &Credential,
    host: Option<&HeaderValue>,
) -> Result<Request<Outgoing>, Error> {
    failpoint::reached("granted");
    let mut headers = route.headers.clone();
    let (path, mut query, is_merged) = merge::target(route);
    if is_merged {
        headers.remove(ACCEPT_ENCODING); // its parts are cut out of it
    }
    add_defaults(route, plan, &mut headers);
    match &credential.source {
        CredentialSource::Client => {}
        CredentialSource::Key(index) => {
            let key = plan.keys.get(*index);
            match key.and_then(|key| key.headers.as_ref()) {
                Some(written) => {
                    for (name, value) in written {
                        headers.insert(name, value.clone());
                    }
                }
                None => {
                    let key = key.map(|key| &key.secret);
                    attach_all(&plan.provider.auth, key, &mut headers, &mut query)?;
                }
            }
        }
        CredentialSource::Token(held) => {
            let value = secret_value("Bearer ", held.token.expose())?;
            headers.insert(AUTHORIZATION, value);
        }
    }
    let host = host.ok_or(Error::Malformed("the host is no host"))?;
    headers.insert(HOST, host.clone());
    if !route.origin.tls {
        headers.append(VIA, route.provider.via.header_value().clone());
    }
    if matches!(route.payload, Payload::Whole(_)) {
        headers.remove(CONTENT_LENGTH);
    }
    let mut target = path;
    if let Some(query) = query.as_deref() {
        target.reserve(query.len() + 1);
        target.push('?');
        target.push_str(query);
    }
    let mut request = Request::new(route.payload.outgoing());
    *request.method_mut() = route.method.clone();
    *request.uri_mut() = PathAndQuery::from_maybe_shared(Bytes::from(target))
        .map_err(|_| Error::Malformed("the path and query are no valid request target"))?
        .into();
    *request.headers_mut() = headers;
    Ok(request)
}

/// Headers that the file sets where the caller sends none. Their values may be keys, so they go to
/// the provider's own origin only, except those that never are.
fn add_defaults(route: &Route, plan: &CompiledPolicy, headers: &mut HeaderMap) {
    for (name, value) in &plan.provider.headers {
        if (route.is_own_origin || is_keyless_header(name))
            && let Ok(name) = HeaderName::try_from(name)
            && let Ok(value) = secret_value("", value.expose())
            && !headers.contains_key(&name)
        {
            headers.insert(name, value);
        }
    }
}

/// Is the value of this header no key, whoever sets it?
pub(crate) fn is_keyless_header(name: &str) -> bool {
    KEYLESS_HEADERS.contains(&name)
}

/// A key and its companions as the headers that carry them, so that this is done once and not for
/// every call; `None` where they go another way.
pub(crate) fn auth_headers(auth: &Auth, key: &Secret) -> Option<Vec<(HeaderName, HeaderValue)>> {
    let (mut headers, mut query) = (HeaderMap::new(), None);
    attach_all(auth, Some(key), &mut headers, &mut query).ok()?;
    let each = headers.iter();
    let each = each.map(|(name, value)| (name.clone(), value.clone()));
    query.is_none().then(|| each.collect())
}

/// Adds a key and its companions.
fn attach_all(
    auth: &Auth,
    key: Option<&Secret>,
    headers: &mut HeaderMap,
    query: &mut Option<String>,
) -> Result<(), Error> {
    if let Some(key) = key {
        attach(&auth.style, None, key.expose(), headers, query)?;
    }
    for (name, key) in &auth.also {
        attach(&auth.style, Some(name), key.expose(), headers, query)?;
    }
    Ok(())
}

/// Adds a key, in place of whatever the client sent there. A further key goes the same way under
/// its own name.
fn attach(
    style: &AuthStyle,
    name: Option<&str>,
    key: &str,
    headers: &mut HeaderMap,
    query: &mut Option<String>,
) -> Result<(), Error> {
    let (at, value) = match style {
        AuthStyle::Query { name: own } => {
            *query = Some(query::with_parameter(
                query.as_deref(),
                name.unwrap_or(own),
                key,
            ));
            return Ok(());
        }
        AuthStyle::Header { name: own, prefix } => {
            (name.unwrap_or(own), secret_value(prefix, key)?)
        }
        AuthStyle::Bearer => match name {
            Some(name) => (name, secret_value("", key)?),
            None => (AUTHORIZATION.as_str(), secret_value("Bearer ", key)?),
        },
        AuthStyle::Basic => match name {
            Some(name) => (name, secret_value("", key)?),
            None => (
                AUTHORIZATION.as_str(),
                secret_value("Basic ", &BASE64.encode(key))?,
            ),
        },
        AuthStyle::None | AuthStyle::OAuth2(_) | AuthStyle::Login(_) => return Ok(()),
    };
    let at = HeaderName::try_from(at)
        .map_err(|_| Error::Malformed("the key's header has no valid name"))?;
    headers.insert(at, value);
    Ok(())
}

/// A value that no debug output shows.
fn secret_value(prefix: &str, secret: &str) -> Result<HeaderValue, Error> {
    let mut value = HeaderValue::try_from(format!("{prefix}{secret}"))
        .map_err(|_| Error::Malformed("the key has a character that no header can carry"))?;
    value.set_sensitive(true);
    Ok(value)
}
