//! The control plane: `/-/report`, `/-/log`, `/-/reset`, `/-/fault`.
//!
//! ```text
//! GET  /-/report    the report as JSON
//! GET  /-/log       the last arrivals, one JSON object per line
//! POST /-/reset     clear counters and log; faults stay
//! POST /-/fault     one fault per line (`outage now 503`), or `clear`
//! ```
//!
//! Promises: never delayed, counted or affected by faults; a list of faults is planned whole or not
//! at all.
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
const FAULTS_BYTES_MAX: usize = 16 * 1024;

const HELP: &str = "GET /-/report, GET /-/log, POST /-/reset or POST /-/fault\n";

/// Whether a path belongs to the control plane.
pub(super) fn is_control(path: &str) -> bool {
    path.starts_with("/-/")
}

/// Handles a request to the control plane.
pub(super) async fn handle(
    context: &Arc<ServerContext>,
    request: Request<Incoming>,
) -> Response<SimBody> {
    let (head, body) = request.into_parts();
    match (&head.method, head.uri.path()) {
        (&Method::GET, "/-/report") => report(context).await,
        (&Method::GET, "/-/log") => log(context),
        (&Method::POST, "/-/reset") => {
            context.with_state(|state, now| state.reset(now));
            text(200, "counters and log cleared; faults stay\n".to_owned())
        }
        (&Method::POST, "/-/fault") => match Limited::new(body, FAULTS_BYTES_MAX).collect().await {
            Ok(body) => faults(context, &String::from_utf8_lossy(&body.to_bytes())),
            Err(_) => text(
                413,
                format!("more than {FAULTS_BYTES_MAX} bytes; send fewer faults\n"),
            ),
        },
        (_, "/-/report" | "/-/log" | "/-/reset" | "/-/fault") => {
            text(405, format!("wrong method; use {HELP}"))
        }
        (_, path) => text(404, format!("there is no `{path}`; use {HELP}")),
    }
}

/// Judging a long log takes a while, so it runs on a blocking thread and does not stop the
/// provider.
async fn report(context: &Arc<ServerContext>) -> Response<SimBody> {
    let context = Arc::clone(context);
    match tokio::task::spawn_blocking(move || context.report().to_json()).await {
        Ok(json) => plain(200, "application/json", SimBody::whole(json)),
        Err(_) => text(500, "the report was cancelled; retry\n".to_owned()),
    }
}

fn log(context: &ServerContext) -> Response<SimBody> {
    let lines = context.with_state(|state, _| state.lines().map(line).collect());
    plain(200, "application/x-ndjson", SimBody::whole(lines))
}

fn line(line: &LogLine) -> String {
    let response_fault = match line.response_fault {
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
        "fate": response_fault,
    });
    format!("{object}\n")
}

fn faults(context: &ServerContext, body: &str) -> Response<SimBody> {
    match plan(context, body) {
        Ok(planned) => text(200, format!("{planned} planned\n")),
        Err(problem) => text(400, format!("{problem}\n")),
    }
}

/// All lines are parsed before the first is applied.
fn plan(context: &ServerContext, body: &str) -> Result<usize, String> {
    let lines = body.lines().map(str::trim).filter(|line| !line.is_empty());
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
    context
        .with_state(|state, now| {
            if clear.is_empty() {
                state.plan(&planned, now)
            } else {
                state.replan(&planned, now)
            }
        })
        .map_err(|problem| problem.to_string())?;
    Ok(planned.len())
}

fn text(status: u16, text: String) -> Response<SimBody> {
    plain(status, "text/plain; charset=utf-8", SimBody::whole(text))
}
