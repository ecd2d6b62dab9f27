//! One request: from the head that came to the answer that goes out.
//!
//! Promises: every answer carries its id, where it came from, what was decided, how long it waited
//! and how many attempts were made, and what the limits have left. The upstream's own rate-limit
//! headers pass untouched.
//!
//! Never: decides. The path does.

use http::header::{CONNECTION, HOST, HeaderMap, HeaderName, HeaderValue};
use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use serde_json::json;
use tollgate::Error;
use tollgate::body::ReplyBody;
use tollgate::error::{NotAllowed, Reason};
use tollgate::event::LogEvent;
use tollgate::path::{self, Call, CallTrace, Reply, Target};
use tollgate::providers::Links;
use tollgate_core::time::Span;

use super::address::{Address, Mount};
use super::client_connection::ClientConnection;
use super::head::{self, OptionHeaders};
use super::{GatewayState, ListenerKind, links, rate_headers, upgrade};
use crate::rejection::{self, rejection};

/// What every answer carries. Names that are known before need not be read each time.
pub(super) const ID: HeaderName = HeaderName::from_static("x-tollgate-id");
const WAIT: HeaderName = HeaderName::from_static("x-tollgate-wait");
const ATTEMPTS: HeaderName = HeaderName::from_static("x-tollgate-attempts");
const SOURCE: HeaderName = HeaderName::from_static("x-tollgate-source");
const DEGRADED: HeaderName = HeaderName::from_static("x-tollgate-degraded");
const DECISION: HeaderName = HeaderName::from_static("x-tollgate-decision");

/// A permit that took longer than this was waited for; less is the time that asking takes.
const QUEUED_MIN: Span = Span::from_millis(1);

/// Answers one request.
pub(super) async fn handle(
    visit: &ClientConnection,
    request: Request<Incoming>,
) -> Response<ReplyBody> {
    let id = visit.state.next_id();
    let mut trail = CallTrace::default();
    let is_last = head::must_close_after(request.headers());
    let mut response = match respond(visit, request, &id, &mut trail).await {
        Ok(response) => response,
        Err(error) => {
            LogEvent::Rejected {
                id: &id,
                error: &error,
            }
            .emit();
            let mut response = rejection(&error, &id);
            let headers = response.headers_mut();
            headers.insert(SOURCE, HeaderValue::from_static("tollgate"));
            headers.insert(DECISION, HeaderValue::from_static("reject"));
            if is_degraded(&error) {
                headers.insert(DEGRADED, HeaderValue::from_static("true"));
            }
            if is_malformed(&error) {
                headers.insert(CONNECTION, HeaderValue::from_static("close"));
            }
            response
        }
    };
    if is_last {
        let headers = response.headers_mut();
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
    }
    let wall = visit.state.registry.ledger().wall();
    rate_headers::add_headers(response.headers_mut(), &trail.rates, wall);
    add_call_headers(response.headers_mut(), &id, &trail);
    response
}

async fn respond(
    visit: &ClientConnection,
    mut request: Request<Incoming>,
    id: &str,
    trail: &mut CallTrace,
) -> Result<Response<ReplyBody>, Error> {
    let state = &visit.state;
    let is_clear = visit.begin_request();
    let upgraded = hyper::upgrade::on(&mut request);
    let (mut parts, body) = request.into_parts();
    head::check(&parts, is_clear)?;
    let (target, caller, mount) = match Address::of(&parts.uri, &visit.kind)? {
        Address::Health => return Ok(status_response(StatusCode::OK, "ok")),
        Address::Ready if state.is_draining() => {
            return Ok(status_response(StatusCode::SERVICE_UNAVAILABLE, "draining"));
        }
        Address::Ready => return Ok(ready(state)),
        Address::Call {
            target,
            caller,
            mount,
        } => (target, caller, mount),
    };
    check_listener(visit, &target)?;
    if visit.peer.to_canonical().is_loopback() && head::is_cross_site(&parts.headers) {
        return Err(Error::CrossSite);
    }
    let here = parts.headers.get(HOST).cloned();
    let wanted = upgrade::requested(&parts);
    let OptionHeaders { options: mut said } = OptionHeaders::take(&mut parts.headers)?;
    id.clone_into(&mut said.id);
    said.caller = caller.or(said.caller);
    said.ip = Some(visit.peer);
    upgrade::add_headers(&mut parts.headers, wanted);
    let call = Call {
        target,
        method: parts.method,
        headers: parts.headers,
        body,
        options: said,
    };
    let mut reply = path::call(&state.registry, call, trail).await?;
    let protocol = upgrade::accept(visit, upgraded, &mut reply);
    let mut response = build_response(reply, trail, &mount, here.as_ref());
    upgrade::add_headers(response.headers_mut(), protocol);
    Ok(response)
}

/// An address of a provider's own is no proxy to anybody else.
pub(super) fn check_listener(visit: &ClientConnection, target: &Target) -> Result<(), Error> {
    let (ListenerKind::Provider(name), Target::Url { authority, .. }) = (&*visit.kind, target)
    else {
        return Ok(());
    };
    if visit.state.registry.has_host(name, authority)? {
        return Ok(());
    }
    Err(Error::NotAllowed {
        host: authority.clone(),
        why: NotAllowed::OtherProvider,
    })
}

/// The provider's answer, as it goes out.
pub(super) fn build_response(
    reply: Reply,
    trail: &CallTrace,
    mount: &Mount,
    here: Option<&HeaderValue>,
) -> Response<ReplyBody> {
    let (source, degraded) = (reply.source.as_str(), reply.degraded);
    let mut response = Response::new(reply.body);
    *response.status_mut() = reply.head.status;
    *response.headers_mut() = reply.head.headers;
    let headers = response.headers_mut();
    head::remove_hop_by_hop(headers);
    head::remove_own(headers);
    if links::has_any(headers) {
        let origin = trail.origin.as_ref().map(ToString::to_string);
        let links = trail.provider.as_ref().map_or_else(Links::default, |live| {
            live.links(origin.as_deref().unwrap_or_default())
        });
        links::rewrite(headers, &links, mount, &self::gateway_origin(here));
    }
    let decision = if trail.waited >= QUEUED_MIN {
        "queue"
    } else {
        "allow"
    };
    headers.insert(SOURCE, HeaderValue::from_static(source));
    if degraded {
        headers.insert(DEGRADED, HeaderValue::from_static("true"));
    }
    headers.insert(DECISION, HeaderValue::from_static(decision));
    response
}

/// What every answer carries.
pub(super) fn add_call_headers(headers: &mut HeaderMap, id: &str, trail: &CallTrace) {
    let waited = match trail.waited.0 / 1_000 {
        0 => Ok(HeaderValue::from_static("0.000")),
        millis => HeaderValue::try_from(format!("{}.{:03}", millis / 1_000, millis % 1_000)),
    };
    for (name, value) in [(ID, HeaderValue::from_str(id)), (WAIT, waited)] {
        if let Ok(value) = value {
            headers.insert(name, value);
        }
    }
    headers.insert(ATTEMPTS, HeaderValue::from(trail.attempts));
}

/// Can calls be answered? Not while the store that counts them is lost and they must be counted.
fn ready(state: &GatewayState) -> Response<ReplyBody> {
    let Some(trouble) = state.registry.closed_reason() else {
        return status_response(StatusCode::OK, "ready");
    };
    let body = json!({
        "status": "store_lost",
        "error": "StoreLost",
        "message": format!("The ledger's store is lost: {trouble}"),
        "hint": "calls are refused until it is back; on_store_loss says what else may happen",
        "reason": "store_lost",
    });
    let mut response = rejection::json(StatusCode::SERVICE_UNAVAILABLE, &body, None);
    let headers = response.headers_mut();
    headers.insert(SOURCE, HeaderValue::from_static("tollgate"));
    headers.insert(DECISION, HeaderValue::from_static("reject"));
    response
}

/// What the gateway says about itself.
fn status_response(status: StatusCode, word: &str) -> Response<ReplyBody> {
    let mut response = rejection::json(status, &json!({ "status": word }), None);
    let headers = response.headers_mut();
    headers.insert(SOURCE, HeaderValue::from_static("tollgate"));
    headers.insert(DECISION, HeaderValue::from_static("allow"));
    response
}

/// The gateway's own address, as the caller wrote it.
fn gateway_origin(host: Option<&HeaderValue>) -> String {
    let host = host.and_then(|host| host.to_str().ok());
    format!("http://{}", host.unwrap_or_default())
}

/// Is it refused because little is left?
fn is_degraded(error: &Error) -> bool {
    matches!(
        error,
        Error::NotInCache {
            reason: Reason::Degraded,
            ..
        }
    )
}

/// What follows on the connection may be read differently by two servers, so nothing follows.
fn is_malformed(error: &Error) -> bool {
    match error {
        Error::Path(_) | Error::Host(_) | Error::Malformed(_) | Error::NoBody => true,
        Error::NoPermit { .. }
        | Error::Asleep { .. }
        | Error::NotInCache { .. }
        | Error::TooLate { .. }
        | Error::NoResponse { .. }
        | Error::NoCredential { .. }
        | Error::UnknownProvider { .. }
        | Error::NoUpstream { .. }
        | Error::NotAllowed { .. }
        | Error::WrongCallerToken { .. }
        | Error::CrossSite
        | Error::Loop { .. } => false,
    }
}
