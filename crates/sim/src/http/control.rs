//! The control plane: `/-/report`, `/-/log`, `/-/reset`, `/-/fault`.
//!
//! ```text
//! GET  /-/report    the judgement as JSON
//! GET  /-/log       the last arrivals, one JSON object per line
//! POST /-/reset     forget what was counted and logged; faults stay
//! POST /-/fault     one fault per line (`outage now 503`), or `clear`
//! ```
//!
//! Promises: never delayed, counted or spoilt; a list of faults is planned whole or not at all.
//!
//! Never: shows a key.

use std::sync::Arc;

use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::{Method, Request, Response};
use serde_json::json;

use crate::fault::{PlannedFault, ResponseFault};

use super::body::SimBody;
use super::context::ServerContext;
use super::handler::plain;
use super::state::LogLine;

/// Size of a list of faults: 64 lines of up to 128 bytes, twice over.
const ORDERS_BYTES_MAX: usize = 16 * 1024;

const HELP: &str = "GET /-/report, GET /-/log, POST /-/reset or POST /-/fault\n";

/// Whether a path belongs to the control plane.
pub(super) fn is_control(path: &str) -> bool {
    path.starts_with("/-/")
}

/// Answers a request to the control plane.
pub(super) async fn handle(
    desk: &Arc<ServerContext>,
    request: Request<Incoming>,
) -> Response<SimBody> {
    let (head, body) = request.into_parts();
    match (&head.method, head.uri.path()) {
        (&Method::GET, "/-/report") => report(desk).await,
        (&Method::GET, "/-/log") => log(desk),
        (&Method::POST, "/-/reset") => {
            desk.with_state(|book, now| book.reset(now));
            text(200, "forgotten; faults stay\n".to_owned())
        }
        (&Method::POST, "/-/fault") => match Limited::new(body, ORDERS_BYTES_MAX).collect().await {
            Ok(body) => faults(desk, &String::from_utf8_lossy(&body.to_bytes())),
            Err(_) => text(
                413,
                format!("more than {ORDERS_BYTES_MAX} bytes; send fewer faults\n"),
            ),
        },
        (_, "/-/report" | "/-/log" | "/-/reset" | "/-/fault") => {
            text(405, format!("wrong method; use {HELP}"))
        }
        (_, path) => text(404, format!("there is no `{path}`; use {HELP}")),
    }
}

/// Judging a long log takes a while, so it is done beside the provider and not in its place.
async fn report(desk: &Arc<ServerContext>) -> Response<SimBody> {
    let desk = Arc::clone(desk);
    match tokio::task::spawn_blocking(move || desk.report().to_json()).await {
        Ok(json) => plain(200, "application/json", SimBody::whole(json)),
        Err(_) => text(500, "the report was called off; ask again\n".to_owned()),
    }
}

fn log(desk: &ServerContext) -> Response<SimBody> {
    let lines = desk.with_state(|book, _| book.lines().map(line).collect());
    plain(200, "application/x-ndjson", SimBody::whole(lines))
}

fn line(line: &LogLine) -> String {
    let fate = match line.response_fault {
        ResponseFault::Unaffected => "answered".to_owned(),
        ResponseFault::Outage(status) => format!("outage {status}"),
        ResponseFault::Reset => "reset".to_owned(),
        ResponseFault::Hang => "hang".to_owned(),
    };
    let object = json!({
        "at_us": line.at.0,
        "scope": line.scope,
        "call": line.call,
        "path": line.path,
        "accepted": line.accepted,
        "fate": fate,
    });
    format!("{object}\n")
}

fn faults(desk: &ServerContext, orders: &str) -> Response<SimBody> {
    match plan(desk, orders) {
        Ok(planned) => text(200, format!("{planned} planned\n")),
        Err(problem) => text(400, format!("{problem}\n")),
    }
}

/// All lines are read before the first is carried out.
fn plan(desk: &ServerContext, orders: &str) -> Result<usize, String> {
    let lines = orders
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty());
    let (clear, faults): (Vec<&str>, Vec<&str>) = lines.partition(|line| *line == "clear");
    if clear.is_empty() && faults.is_empty() {
        return Err(
            "no fault given; send one per line such as `outage now 503`, or `clear`".to_owned(),
        );
    }
    let read = faults
        .into_iter()
        .map(|line| line.parse().map_err(|bad| format!("{bad}")));
    let planned: Vec<PlannedFault> = read.collect::<Result<_, String>>()?;
    desk.with_state(|book, now| {
        if clear.is_empty() {
            book.plan(&planned, now)
        } else {
            book.replan(&planned, now)
        }
    })
    .map_err(|problem| problem.to_string())?;
    Ok(planned.len())
}

fn text(status: u16, text: String) -> Response<SimBody> {
    plain(status, "text/plain; charset=utf-8", SimBody::whole(text))
}
