//! The path of one request through the provider, top to bottom.
//!
//! Promises: a request is counted after its uplink delay and exactly once; a 429 does no work; the
//! `Date` of every response is the provider's own clock.
//!
//! Never: delays the control plane (`/-/…`) or applies faults to it.

use std::convert::Infallible;
use std::sync::Arc;

use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::header::{CONTENT_LENGTH, CONTENT_TYPE, DATE, HeaderValue};
use hyper::{Request, Response, StatusCode};
use serde_json::{Map, Value, json};
use tollgate_core::time::{Span, Wall};

use crate::fault::{BodyFault, ResponseFault};

use super::body::SimBody;
use super::context::{InFlightRequest, ServerContext};
use super::control;
use super::fault_stream::ConnectionControl;
use super::request::SimRequest;
use super::settings::Settings;
use super::state::CountedRequest;
use super::style::{LimitFacts, LimitInfo, http_date};

/// Request bodies are read and discarded up to this size; a larger one ends the connection. The
/// simulator does not simulate uploads.
const REQUEST_BYTES_MAX: usize = 1024 * 1024;

/// 64 headers of 1 KiB: the 64 KiB of the failure catalogue.
const HUGE_HEADERS: usize = 64;

/// The media type of everything but a problem.
const JSON: &str = "application/json";

/// See [`HUGE_HEADERS`].
const HUGE_HEADER_BYTES: usize = 1024;

/// Handles one request, or ends its connection without a response.
pub(super) async fn handle(
    context: Arc<ServerContext>,
    conn_control: Arc<ConnectionControl>,
    request: Request<Incoming>,
) -> Result<Response<SimBody>, Infallible> {
    if control::is_control(request.uri().path()) {
        return Ok(control::handle(&context, request).await);
    }
    let (head, body) = request.into_parts();
    // Read scope, path and cost.
    let request = SimRequest::read(&head, &context.settings);
    if !read_to_end(body).await || !delay_uplink(&context).await {
        // It never reached the limiter.
        return break_connection(&conn_control).await;
    }
    // Count, judge and log it.
    let (counted, in_flight) = context.count(&request);
    match counted.faults.response_fault {
        ResponseFault::Reset => return break_connection(&conn_control).await,
        ResponseFault::Hang => {
            context.stopped().await;
            return break_connection(&conn_control).await;
        }
        ResponseFault::Unaffected | ResponseFault::Outage(_) => {}
    }
    let latency = context.settings.latency;
    if !counted.limited && !context.delay(latency.work).await {
        return break_connection(&conn_control).await;
    }
    // The headers show the status at this time.
    let response = build_response(&context, &request, &counted, in_flight);
    if !context.delay(latency.down).await {
        return break_connection(&conn_control).await;
    }
    Ok(response)
}

/// Reads the request to its end, so that it counts at the time it has arrived.
async fn read_to_end(body: Incoming) -> bool {
    Limited::new(body, REQUEST_BYTES_MAX)
        .collect()
        .await
        .is_ok()
}

/// The uplink delay, during which the limiter does not know of the request.
async fn delay_uplink(context: &ServerContext) -> bool {
    let _mark = context.mark_in_transit();
    context.delay(context.settings.latency.up).await
}

/// Resets the connection instead of responding. Dropping the connection drops this future too.
async fn break_connection(
    conn_control: &ConnectionControl,
) -> Result<Response<SimBody>, Infallible> {
    conn_control.reset();
    std::future::pending().await
}

/// The content of a response, before any fault changes it.
struct Content {
    status: u16,
    media_type: &'static str,
    headers: Vec<(&'static str, String)>,
    body: String,
}

fn build_response(
    context: &ServerContext,
    request: &SimRequest,
    counted: &CountedRequest,
    in_flight: InFlightRequest,
) -> Response<SimBody> {
    let wall = skewed(context.now().wall, counted.faults.skew_secs);
    let content = content(&context.settings, request, counted, wall);
    // These have no body, so the provider is done with them now.
    let in_flight = if request.head_only || matches!(content.status, 204 | 304) {
        in_flight.complete();
        None
    } else {
        Some(in_flight)
    };
    let announced = content.body.len();
    let wait = if counted.limited {
        Span::ZERO
    } else {
        context.draw(context.settings.latency.body)
    };
    let body = SimBody::new(content.body, wait, counted.faults.body, in_flight);
    let mut response = plain(content.status, content.media_type, body);
    let fields = response.headers_mut();
    fields.insert(DATE, value(&http_date(wall.0 / 1_000_000)));
    for (name, text) in content.headers {
        fields.append(name, value(&text));
    }
    if counted.faults.body == BodyFault::Truncated {
        fields.insert(CONTENT_LENGTH, HeaderValue::from(announced));
    }
    if counted.faults.huge_headers {
        let padding = value(&"x".repeat(HUGE_HEADER_BYTES));
        for _ in 0..HUGE_HEADERS {
            fields.append("x-padding", padding.clone());
        }
    }
    response
}

/// An outage hides everything else; a 429 has the provider's style.
fn content(
    settings: &Settings,
    request: &SimRequest,
    counted: &CountedRequest,
    wall: Wall,
) -> Content {
    let facts = LimitFacts {
        rules: &counted.limits,
        binding: counted.binding,
        wall,
        entity: &request.entity,
    };
    if let ResponseFault::Outage(status) = counted.faults.response_fault {
        let body = json!({"error": "simulated outage"}).to_string();
        return Content {
            status,
            media_type: JSON,
            headers: Vec::new(),
            body,
        };
    }
    let style = settings.style;
    if counted.limited {
        let LimitInfo { headers, members } = style.limited_response(&facts);
        let body = Value::Object(members).to_string();
        let media_type = style.limited_media_type();
        return Content {
            status: style.status(),
            media_type,
            headers,
            body,
        };
    }
    let LimitInfo { headers, members } = style.every_response(&facts);
    let body = success(members, request, settings.body_bytes);
    Content {
        status: settings.status,
        media_type: JSON,
        headers,
        body,
    }
}

/// A response with a body and nothing else.
pub(super) fn plain(status: u16, media_type: &'static str, body: SimBody) -> Response<SimBody> {
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::OK);
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
    response
}

/// Names its call, so that a client can detect mixed-up responses; padded to the configured size.
fn success(mut members: Map<String, Value>, request: &SimRequest, bytes_min: usize) -> String {
    members.insert("path".to_owned(), request.path.clone().into());
    if let Some(call) = &request.call {
        members.insert("call".to_owned(), call.clone().into());
    }
    members.insert("padding".to_owned(), "".into());
    let bare = Value::Object(members.clone()).to_string().len();
    let padding = "x".repeat(bytes_min.saturating_sub(bare));
    members.insert("padding".to_owned(), padding.into());
    Value::Object(members).to_string()
}

/// Every header value is printable ASCII; if a style ever sent another, its header would be empty,
/// not a crash.
fn value(text: &str) -> HeaderValue {
    HeaderValue::from_str(text).unwrap_or(HeaderValue::from_static(""))
}

fn skewed(wall: Wall, secs: i64) -> Wall {
    let by = Span::from_secs(secs.unsigned_abs());
    if secs < 0 { wall - by } else { wall + by }
}
