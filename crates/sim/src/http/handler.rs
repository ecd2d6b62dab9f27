//! The path of one request through the provider, top to bottom.
//!
//! Promises: a request is counted after its way up and exactly once; a refusal does no work; whatever
//! the answer, its `Date` is the provider's own clock.
//!
//! Never: delays or spoils the control plane (`/-/…`).

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

/// Request bodies are read and thrown away up to this size; a larger one ends the connection. Uploads
/// are not what is simulated here.
const REQUEST_BYTES_MAX: usize = 1024 * 1024;

/// 64 headers of 1 KiB: the 64 KiB of the failure catalogue.
const HUGE_HEADERS: usize = 64;

/// The media type of everything but a problem.
const JSON: &str = "application/json";

/// See [`HUGE_HEADERS`].
const HUGE_HEADER_BYTES: usize = 1024;

/// Answers one request, or makes its connection end without an answer.
pub(super) async fn handle(
    desk: Arc<ServerContext>,
    orders: Arc<ConnectionControl>,
    request: Request<Incoming>,
) -> Result<Response<SimBody>, Infallible> {
    if control::is_control(request.uri().path()) {
        return Ok(control::handle(&desk, request).await);
    }
    let (head, body) = request.into_parts();
    let asked = SimRequest::read(&head, &desk.settings); //            who asks for what
    if !read_to_end(body).await || !delay_uplink(&desk).await {
        return break_connection(&orders).await; //                            it never reached the limiter
    }
    let (counted, in_flight) = desk.count(&asked); //             counted, judged and logged
    match counted.faults.response_fault {
        ResponseFault::Reset => return break_connection(&orders).await,
        ResponseFault::Hang => {
            desk.stopped().await;
            return break_connection(&orders).await;
        }
        ResponseFault::Unaffected | ResponseFault::Outage(_) => {}
    }
    let latency = desk.settings.latency;
    if !counted.limited && !desk.delay(latency.work).await {
        return break_connection(&orders).await;
    }
    let response = build_response(&desk, &asked, &counted, in_flight); // headers tell how it stands now
    if !desk.delay(latency.down).await {
        return break_connection(&orders).await;
    }
    Ok(response)
}

/// Reads the request to its end, so that the time it counts is the time it has arrived.
async fn read_to_end(body: Incoming) -> bool {
    Limited::new(body, REQUEST_BYTES_MAX)
        .collect()
        .await
        .is_ok()
}

/// The way up, on which the limiter does not know of the request.
async fn delay_uplink(desk: &ServerContext) -> bool {
    let _mark = desk.mark_in_transit();
    desk.delay(desk.settings.latency.up).await
}

/// Breaks the connection instead of answering. What waits here is dropped with the connection.
async fn break_connection(orders: &ConnectionControl) -> Result<Response<SimBody>, Infallible> {
    orders.reset();
    std::future::pending().await
}

/// What an answer says, before anything spoils it.
struct Content {
    status: u16,
    media_type: &'static str,
    headers: Vec<(&'static str, String)>,
    body: String,
}

fn build_response(
    desk: &ServerContext,
    asked: &SimRequest,
    counted: &CountedRequest,
    in_flight: InFlightRequest,
) -> Response<SimBody> {
    let wall = skewed(desk.now().wall, counted.faults.skew_secs);
    let content = content(&desk.settings, asked, counted, wall);
    // Nobody reads the body of these, so the provider is done with them now.
    let in_flight = if asked.head_only || matches!(content.status, 204 | 304) {
        in_flight.complete();
        None
    } else {
        Some(in_flight)
    };
    let announced = content.body.len();
    let wait = if counted.limited {
        Span::ZERO
    } else {
        desk.draw(desk.settings.latency.body)
    };
    let body = SimBody::new(content.body, wait, counted.faults.body, in_flight);
    let mut response = plain(content.status, content.media_type, body);
    let fields = response.headers_mut();
    fields.insert(DATE, value(&http_date(wall.0 / 1_000_000)));
    for (name, told) in content.headers {
        fields.append(name, value(&told));
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

/// An outage hides everything else; a refusal speaks in the provider's style.
fn content(
    settings: &Settings,
    asked: &SimRequest,
    counted: &CountedRequest,
    wall: Wall,
) -> Content {
    let facts = LimitFacts {
        rules: &counted.limits,
        binding: counted.binding,
        wall,
        entity: &asked.entity,
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
    let body = success(members, asked, settings.body_bytes);
    Content {
        status: settings.status,
        media_type: JSON,
        headers,
        body,
    }
}

/// An answer with a body and nothing else.
pub(super) fn plain(status: u16, media_type: &'static str, body: SimBody) -> Response<SimBody> {
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::OK);
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
    response
}

/// Names the call it answers, so that a client can see cross-talk; padded to the size asked for.
fn success(mut members: Map<String, Value>, asked: &SimRequest, bytes_min: usize) -> String {
    members.insert("path".to_owned(), asked.path.clone().into());
    if let Some(call) = &asked.call {
        members.insert("call".to_owned(), call.clone().into());
    }
    members.insert("padding".to_owned(), "".into());
    let bare = Value::Object(members.clone()).to_string().len();
    let padding = "x".repeat(bytes_min.saturating_sub(bare));
    members.insert("padding".to_owned(), padding.into());
    Value::Object(members).to_string()
}

/// Everything told is printable ASCII; if a style ever were not, its header would be empty, not a crash.
fn value(text: &str) -> HeaderValue {
    HeaderValue::from_str(text).unwrap_or(HeaderValue::from_static(""))
}

fn skewed(wall: Wall, secs: i64) -> Wall {
    let by = Span::from_secs(secs.unsigned_abs());
    if secs < 0 { wall - by } else { wall + by }
}
