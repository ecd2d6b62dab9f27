//! One request: from the parsed head to the response.
//!
//! Promises: every response carries its id, its source, the decision, the time it waited, the
//! number of attempts and the remaining quota. The upstream's own rate-limit headers pass
//! unchanged.
//!
//! Never: decides about a call. `tollgate::path` does.

use std::sync::Arc;

use http::header::{CONNECTION, COOKIE, HOST, HeaderMap, HeaderName, HeaderValue, SET_COOKIE};
use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::ext::ReasonPhrase;
use serde_json::json;
use tollgate::Error;
use tollgate::body::ReplyBody;
use tollgate::error::{NotAllowed, Reason};
use tollgate::path::{self, CallTrace, HttpCall, Reply, Target};
use tollgate::providers::Links;
use tollgate_core::time::Span;

use super::address::{Address, Mount};
use super::client_connection::{CallCut, ClientConnection};
use super::head::{self, OptionHeaders};
use super::{
    GatewayState, ListenerKind, cookies, decision_endpoint, guarded, hang_up, links, upgrade,
};
use crate::api::RESTART_SECONDS;
use crate::decision_api::DeniedId;
use crate::guards::GuardVerdict;
use crate::rejection::{self, rejection};
use tollgate::rate_headers;

/// Headers of every response, as constants, so that no request parses their names.
pub(super) const ID: HeaderName = HeaderName::from_static("x-tollgate-id");
const WAIT: HeaderName = HeaderName::from_static("x-tollgate-wait");
const ATTEMPTS: HeaderName = HeaderName::from_static("x-tollgate-attempts");
pub(super) const SOURCE: HeaderName = HeaderName::from_static("x-tollgate-source");
const DEGRADED: HeaderName = HeaderName::from_static("x-tollgate-degraded");
pub(super) const DECISION: HeaderName = HeaderName::from_static("x-tollgate-decision");

/// Handles one request.
pub(super) async fn handle(
    connection: &ClientConnection,
    request: Request<Incoming>,
) -> Response<ReplyBody> {
    let id: Arc<str> = connection.state.next_id().into();
    let mut trace = CallTrace::until(connection.is_over());
    let mut guards = None;
    let is_chunked = head::is_chunked(request.headers());
    let may_stay_unread = hang_up::may_stay_unread(request.body());
    // On the heap: its kilobytes would be moved three times between here and the connection's task.
    let responding = Box::pin(respond(connection, request, &id, &mut trace, &mut guards));
    let responded = connection.unless_cut(may_stay_unread, responding);
    let responded = responded.await;
    let responded = responded.unwrap_or_else(|cut| match cut {
        CallCut::ShuttingDown => Err(shutting_down(&trace)),
        CallCut::HungUp => Err(Error::IncompleteBody),
    });
    let mut response = match responded {
        Ok(response) => response,
        Err(error) => {
            // Unless the path has reported it already.
            trace.reject(connection.state.registry.events(), &id, &error);
            let wall = connection.state.registry.ledger().wall();
            let remaining = rate_headers::remaining_of_rejecting(&trace.rates, wall);
            let mut response = rejection(&error, &id, remaining);
            let headers = response.headers_mut();
            headers.insert(SOURCE, HeaderValue::from_static("tollgate"));
            headers.insert(DECISION, HeaderValue::from_static("reject"));
            if is_degraded(&error) {
                headers.insert(DEGRADED, HeaderValue::from_static("true"));
            }
            if error.is_malformed() {
                headers.insert(CONNECTION, HeaderValue::from_static("close"));
            }
            response
        }
    };
    let is_upgrade = response.status() == StatusCode::SWITCHING_PROTOCOLS;
    // Where chunks are not plain, a proxy in front may see their end elsewhere, and take what follows for a
    // part of them.
    let is_last = is_chunked && !connection.has_plain_end();
    if is_last || (connection.is_closing() && !is_upgrade) {
        let headers = response.headers_mut();
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
    }
    let wall = connection.state.registry.ledger().wall();
    match &guards {
        None => rate_headers::add_headers(response.headers_mut(), &trace.rates, wall),
        Some(verdict) => {
            rate_headers::add_guards(response.headers_mut(), verdict, &trace.rates, wall);
        }
    }
    add_call_headers(response.headers_mut(), &id, &trace);
    if let Some(DeniedId(id)) = response.extensions_mut().remove() {
        response.headers_mut().insert(ID, id);
    }
    response
}

async fn respond(
    connection: &ClientConnection,
    mut request: Request<Incoming>,
    id: &Arc<str>,
    trace: &mut CallTrace,
    guards: &mut Option<GuardVerdict>,
) -> Result<Response<ReplyBody>, Error> {
    let state = &connection.state;
    let is_clear = connection.begin_request();
    let upgraded = hyper::upgrade::on(&mut request);
    let (mut parts, body) = request.into_parts();
    head::check(&parts, is_clear)?;
    let (target, caller, mount) = match Address::of(&parts.uri, &connection.kind)? {
        Address::Health => return Ok(status_response(StatusCode::OK, "ok")),
        Address::Ready if state.is_draining() => {
            return Ok(status_response(StatusCode::SERVICE_UNAVAILABLE, "draining"));
        }
        Address::Ready => return Ok(ready(state)),
        Address::Decision(path) => {
            // Boxed: every call's future would otherwise grow by its size.
            let serving = decision_endpoint::serve(connection, &parts, &path, body, trace);
            return Ok(Box::pin(serving).await);
        }
        Address::Call {
            target,
            caller,
            mount,
        } => (target, caller, mount),
    };
    check_listener(connection, &target)?;
    if connection.peer.to_canonical().is_loopback() && head::is_cross_site(&parts) {
        return Err(Error::CrossSite);
    }
    let ip = guarded::client_ip(connection, &parts.headers);
    guarded::check(connection, &target, ip, &parts.headers, guards).await?;
    let host = parts.headers.get(HOST).cloned();
    let protocols = upgrade::requested(&parts);
    let OptionHeaders { mut options } = OptionHeaders::take(&mut parts.headers)?;
    options.id = id.clone();
    options.caller = caller.or(options.caller);
    options.ip = Some(ip);
    upgrade::add_headers(&mut parts.headers, protocols);
    if parts.headers.contains_key(COOKIE) {
        cookies::select(&mut parts.headers, &state.registry, &target, &mount);
    }
    let call = HttpCall {
        target,
        method: parts.method,
        headers: parts.headers,
        body,
        options,
    };
    let mut reply = path::call(&state.registry, call, trace).await?;
    let protocol = upgrade::accept(connection, upgraded, &mut reply);
    let mut response = build_response(reply, trace, &mount, host.as_ref());
    upgrade::add_headers(response.headers_mut(), protocol);
    Ok(response)
}

/// The gateway shuts down, and the call has no response yet.
fn shutting_down(trace: &CallTrace) -> Error {
    let provider = trace.provider.as_ref();
    Error::NoPermit {
        provider: provider.map_or_else(String::new, |provider| provider.name().to_owned()),
        entity: None,
        limit: None,
        reason: Reason::ShuttingDown,
        retry_in: Some(Span::from_secs(RESTART_SECONDS.into())),
    }
}

/// A provider's own listener is no proxy to other hosts.
pub(super) fn check_listener(connection: &ClientConnection, target: &Target) -> Result<(), Error> {
    let (ListenerKind::Provider(name), Target::Url { authority, .. }) = (&*connection.kind, target)
    else {
        return Ok(());
    };
    if connection.state.registry.has_host(name, authority)? {
        return Ok(());
    }
    Err(Error::NotAllowed {
        host: authority.clone(),
        why: NotAllowed::OtherProvider,
    })
}

/// The response to the caller, from the reply of the path.
pub(super) fn build_response(
    reply: Reply,
    trace: &CallTrace,
    mount: &Mount,
    host: Option<&HeaderValue>,
) -> Response<ReplyBody> {
    let (source, degraded) = (reply.source.as_str(), reply.degraded);
    let mut response = Response::new(reply.body);
    *response.status_mut() = reply.head.status;
    if reply.head.status.canonical_reason().is_none() {
        // The provider's own words, or none: the parser's would be `<none>`.
        let reason = reply.head.extensions.get::<ReasonPhrase>().cloned();
        let reason = reason.unwrap_or(ReasonPhrase::from_static(b""));
        response.extensions_mut().insert(reason);
    }
    *response.headers_mut() = reply.head.headers;
    let headers = response.headers_mut();
    head::remove_hop_by_hop(headers);
    head::remove_own(headers);
    if headers.contains_key(SET_COOKIE)
        && let Some(provider) = &trace.provider
    {
        cookies::rewrite(headers, provider, mount);
    }
    if links::has_any(headers) {
        let origin = trace.origin.as_ref().map(ToString::to_string);
        let links = trace
            .provider
            .as_ref()
            .map_or_else(Links::default, |provider| {
                provider.links(origin.as_deref().unwrap_or_default())
            });
        links::rewrite(headers, &links, mount, &self::gateway_origin(host));
    }
    headers.insert(SOURCE, HeaderValue::from_static(source));
    if degraded {
        headers.insert(DEGRADED, HeaderValue::from_static("true"));
    }
    let decision = trace.decision().as_str();
    headers.insert(DECISION, HeaderValue::from_static(decision));
    response
}

/// Adds the id, the wait and the attempts.
pub(super) fn add_call_headers(headers: &mut HeaderMap, id: &str, trace: &CallTrace) {
    let waited = match trace.waited.0 / 1_000 {
        0 => Ok(HeaderValue::from_static("0.000")),
        millis => HeaderValue::try_from(format!("{}.{:03}", millis / 1_000, millis % 1_000)),
    };
    for (name, value) in [(ID, HeaderValue::from_str(id)), (WAIT, waited)] {
        if let Ok(value) = value {
            headers.insert(name, value);
        }
    }
    headers.insert(ATTEMPTS, HeaderValue::from(trace.attempts));
}

/// Can the gateway serve calls? Not while the ledger's store is lost and `on_store_loss` is
/// `closed`.
fn ready(state: &GatewayState) -> Response<ReplyBody> {
    let Some(trouble) = state.registry.closed_reason() else {
        return status_response(StatusCode::OK, "ready");
    };
    let body = json!({
        "status": "store_lost",
        "error": "StoreLost",
        "message": format!("The ledger's store is lost: {trouble}"),
        "hint": "calls are rejected until the store is back; on_store_loss in the provider's file sets what happens meanwhile",
        "reason": "store_lost",
    });
    let mut response = rejection::json(StatusCode::SERVICE_UNAVAILABLE, &body, None);
    let headers = response.headers_mut();
    headers.insert(SOURCE, HeaderValue::from_static("tollgate"));
    headers.insert(DECISION, HeaderValue::from_static("reject"));
    response
}

/// A status of the gateway itself.
fn status_response(status: StatusCode, word: &str) -> Response<ReplyBody> {
    let mut response = rejection::json(status, &json!({ "status": word }), None);
    let headers = response.headers_mut();
    headers.insert(SOURCE, HeaderValue::from_static("tollgate"));
    headers.insert(DECISION, HeaderValue::from_static("allow"));
    response
}

/// The gateway's own origin, as the caller wrote it.
fn gateway_origin(host: Option<&HeaderValue>) -> String {
    let host = host.and_then(|host| host.to_str().ok());
    format!("http://{}", host.unwrap_or_default())
}

/// Is the call rejected because of degrade mode?
fn is_degraded(error: &Error) -> bool {
    matches!(
        error,
        Error::NotInCache {
            reason: Reason::Degraded,
            ..
        }
    )
}
