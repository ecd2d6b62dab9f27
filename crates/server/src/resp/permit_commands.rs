//! `TG.*`: permits for calls that the client makes itself, and tokens of guards.
//!
//! Promises: the fields of the HTTP API, with times in whole milliseconds: rounded up where they say
//! when to come back, down where they are over or must not be exceeded. A denial is no error.
//!
//! Never: decides; `crate::decisions` does.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

use http::{HeaderMap, HeaderName, HeaderValue};
use serde_json::Value;
use tollgate_core::health::Fault;
use tollgate_core::time::Span;

use super::commands::Action;
use super::parse::Command;
use super::reply::{Protocol, ReplyWriter};
use super::session::Session;
use super::words::{Subject, Words};
use crate::decisions::{
    AcquireRequest, Acquired, CapacityReply, DecisionError, LimitSummary, ReportRequest,
    ReportedOutcome,
};
use crate::guards::{GuardError, GuardStatus};

/// The most headers of a response that is reported, as over HTTP.
const HEADERS_MAX: usize = 512;

const ACQUIRE: &[&str] = &["ENTITY", "PRIORITY", "COST", "CALLER", "WAIT", "NOWAIT"];
const CAPACITY: &[&str] = &["ENTITY", "PRIORITY", "COST", "CALLER"];
const REPORT: &[&str] = &["STATUS", "ERROR", "HEADER", "BODY", "COST", "LATENCY"];

/// Fields of a status that are seconds over HTTP.
const TIMES: [&str; 10] = [
    "since",
    "sleep_until",
    "reset_in",
    "period",
    "window_start",
    "reset_at",
    "cooldown_until",
    "until",
    "eta",
    "retry_in",
];

pub(super) fn acquire(session: &mut Session, command: &Command<'_>, out: &mut Vec<u8>) -> Action {
    let request = match acquire_request(session, command) {
        Ok(request) => request,
        Err(error) => return failed(session, out, &error),
    };
    let (context, identity) = (session.context.clone(), session.identity.clone());
    let (protocol, wait) = (session.protocol, request.wait);
    Action::Later(Box::pin(async move {
        let mut asked = pin!(context.decisions().acquire(request));
        let first = poll_fn(|cx| Poll::Ready(asked.as_mut().poll(cx))).await;
        let done = match first {
            Poll::Ready(done) => done,
            Poll::Pending if !wait => asked.await,
            // Without a place it gives up its turn, and nothing was counted.
            Poll::Pending => match context.waiting.take(&identity) {
                Some(_place) => asked.await,
                None => return written(protocol, |reply| reply.error(TOO_MANY_WAIT)),
            },
        };
        written(protocol, |reply| match &done {
            Ok(acquired) => write_acquired(reply, acquired),
            Err(error) => reply.error(&mistake(error)),
        })
    }))
}

const TOO_MANY_WAIT: &str =
    "ERR too many commands wait; send NOWAIT, or try again in a second (nothing was counted)";

fn acquire_request(session: &Session, command: &Command<'_>) -> Result<AcquireRequest, String> {
    let mut words = Words::new(*command);
    let subject = words.subject()?;
    let options = words.request_options(ACQUIRE)?;
    let (wait, timeout) = match options.wait {
        None => (true, None),
        Some(None) => (false, None),
        Some(timeout @ Some(_)) => (true, timeout),
    };
    Ok(AcquireRequest {
        of: options.ask(session, subject)?,
        wait,
        timeout,
    })
}

pub(super) fn capacity(session: &mut Session, command: &Command<'_>, out: &mut Vec<u8>) -> Action {
    let mut words = Words::new(*command);
    let read = words.subject().and_then(|subject| {
        let options = words.request_options(CAPACITY)?;
        Ok((subject, options))
    });
    let (subject, options) = match read {
        Ok(read) => read,
        Err(error) => return failed(session, out, &error),
    };
    let target = match subject {
        Subject::Call(target) => target,
        Subject::Guards(guards) => {
            let names = guards.iter().map(|(guard, _)| guard.as_str());
            return match options.guard_capacity(session, names) {
                Ok(cost) => guard_status(session, &guards, cost, out),
                Err(error) => failed(session, out, &error),
            };
        }
    };
    let call = match options.call(session, target) {
        Ok(call) => call,
        Err(error) => return failed(session, out, &error),
    };
    let (decisions, protocol) = (session.context.decisions().clone(), session.protocol);
    Action::Later(Box::pin(async move {
        let done = decisions.capacity(call).await;
        written(protocol, |reply| match &done {
            Ok(capacity) => write_capacity(reply, capacity),
            Err(error) => reply.error(&mistake(error)),
        })
    }))
}

/// The tokens of one key of a guard.
fn guard_status(
    session: &Session,
    guards: &[(String, String)],
    cost: u64,
    out: &mut Vec<u8>,
) -> Action {
    let [(guard, identifier)] = guards else {
        let error = "ERR the capacity of one guard at a time; send GUARD once";
        return failed(session, out, error);
    };
    let (decisions, protocol) = (session.context.decisions().clone(), session.protocol);
    let (guard, identifier) = (guard.clone(), identifier.clone());
    Action::Later(Box::pin(async move {
        let status = decisions.guard_status(&guard, Some(&identifier)).await;
        written(protocol, |reply| match &status {
            Ok(status) => write_guard_status(reply, status, cost),
            Err(error) => reply.error(&mistake(error)),
        })
    }))
}

pub(super) fn report(session: &mut Session, command: &Command<'_>, out: &mut Vec<u8>) -> Action {
    let request = match report_request(command) {
        Ok(request) => request,
        Err(error) => return failed(session, out, &error),
    };
    let done = {
        let caller = session.identity.caller();
        session.context.decisions().report(&request, caller)
    };
    let mut reply = ReplyWriter::new(out, session.protocol);
    match done {
        Ok(report) => {
            reply.map(4);
            reply.text("reported");
            reply.boolean(true);
            reply.text("first");
            reply.boolean(report.is_first);
            reply.text("class");
            reply.text(report.class);
            reply.text("retry_in");
            reply.count_or_null(report.retry_in.map(milliseconds_up));
        }
        Err(error) => reply.error(&mistake(&error)),
    }
    Action::Replied
}

fn report_request(command: &Command<'_>) -> Result<ReportRequest, String> {
    let mut words = Words::new(*command);
    let permit = words.name("the permit")?;
    let (mut status, mut fault, mut costs) = (None, None, Vec::new());
    let mut latency = None;
    let (mut headers, mut body) = (HeaderMap::new(), None);
    while let Some(name) = words.option(REPORT, &["HEADER"])? {
        match name {
            "STATUS" => status = Some(read_status(words.value(name)?)?),
            "ERROR" => fault = Some(read_fault(words.value(name)?)?),
            "HEADER" => read_header(&mut words, &mut headers)?,
            "BODY" => body = Some(words.value(name)?.to_vec()),
            "COST" => costs = words.costs(true)?,
            _ => latency = Some(words.milliseconds(name)?),
        }
    }
    let outcome = match (status, fault) {
        (Some(_), Some(_)) => {
            let error = "ERR STATUS and ERROR stand together; send STATUS if there was a response, ERROR if there was none";
            return Err(error.to_owned());
        }
        (Some(status), None) => ReportedOutcome::Response {
            status,
            headers,
            body: body.unwrap_or_default(),
        },
        (None, _) if !headers.is_empty() || body.is_some() => {
            let error = "ERR HEADER and BODY belong to a response, and the report has no STATUS; send STATUS too";
            return Err(error.to_owned());
        }
        (None, Some(fault)) => ReportedOutcome::Failed(fault),
        (None, None) => ReportedOutcome::Unsaid,
    };
    Ok(ReportRequest {
        permit,
        outcome,
        costs,
        latency,
    })
}

fn read_status(value: &[u8]) -> Result<u16, String> {
    let status = super::throttle_command::integer(value);
    let status = status.filter(|status| (100..=599).contains(status));
    let status = status.and_then(|status| u16::try_from(status).ok());
    status.ok_or_else(|| "ERR STATUS is not a number from 100 to 599".to_owned())
}

fn read_fault(value: &[u8]) -> Result<Fault, String> {
    let all = [Fault::Timeout, Fault::Dns, Fault::Connect, Fault::Reset];
    let is_it = |fault: &Fault| value.eq_ignore_ascii_case(fault.as_str().as_bytes());
    let found = all.into_iter().find(is_it);
    found.ok_or_else(|| "ERR ERROR is not timeout, dns, connect or reset".to_owned())
}

fn read_header(words: &mut Words<'_>, headers: &mut HeaderMap) -> Result<(), String> {
    let invalid = || "ERR HEADER is not a name and a value; send for example HEADER Retry-After 30";
    let name = HeaderName::from_bytes(words.value("HEADER")?).map_err(|_| invalid())?;
    let value = HeaderValue::from_bytes(words.value("HEADER")?).map_err(|_| invalid())?;
    if headers.len() >= HEADERS_MAX {
        return Err("ERR a report has at most 512 HEADERs".to_owned());
    }
    headers.append(name, value);
    Ok(())
}

pub(super) fn release(session: &mut Session, command: &Command<'_>, out: &mut Vec<u8>) -> Action {
    let permit = match Words::new(*command).name("the permit") {
        Ok(permit) => permit,
        Err(error) => return failed(session, out, &error),
    };
    let done = {
        let caller = session.identity.caller();
        session.context.decisions().release(&permit, caller)
    };
    let mut reply = ReplyWriter::new(out, session.protocol);
    match done {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(&mistake(&error)),
    }
    Action::Replied
}

/// `TG.STATUS [provider]`: the fields of `GET /v1/providers`, without the settings.
pub(super) fn status(session: &mut Session, command: &Command<'_>, out: &mut Vec<u8>) -> Action {
    let provider = match command.len() {
        1 => None,
        _ => match Words::new(*command).name("the provider") {
            Ok(provider) => Some(provider),
            Err(error) => return failed(session, out, &error),
        },
    };
    let (daemon, protocol) = (session.context.daemon.clone(), session.protocol);
    Action::Later(Box::pin(async move {
        let value = match provider {
            None => serde_json::to_value(daemon.list().await),
            Some(name) => match daemon.describe(&name, None).await {
                Ok(details) => serde_json::to_value(details),
                Err(error) => {
                    let error = mistake(&DecisionError::Call(error));
                    return written(protocol, |reply| reply.error(&error));
                }
            },
        };
        let mut value = value.unwrap_or_default();
        if let Value::Object(fields) = &mut value {
            fields.remove("settings");
        }
        written(protocol, |reply| write_json(reply, &value, false))
    }))
}

fn failed(session: &Session, out: &mut Vec<u8>, error: &str) -> Action {
    ReplyWriter::new(out, session.protocol).error(error);
    Action::Replied
}

fn written(protocol: Protocol, write: impl FnOnce(&mut ReplyWriter<'_>)) -> Vec<u8> {
    let mut out = Vec::with_capacity(512);
    write(&mut ReplyWriter::new(&mut out, protocol));
    out
}

/// A mistake of the client, and what to do about it.
fn mistake(error: &DecisionError) -> String {
    let hint = match error {
        DecisionError::Guard(GuardError::NoIdentifier(_)) => {
            "send GUARD name identifier".to_owned()
        }
        DecisionError::UnknownPermit => {
            "report or release a permit within use_within and the provider's timeout".to_owned()
        }
        DecisionError::Call(tollgate::Error::UnknownProvider { nearest, .. }) => match nearest {
            Some(near) => format!("did you mean {near}?"),
            None => "TG.STATUS lists the providers".to_owned(),
        },
        other => other.hint(),
    };
    format!("ERR {error}; {hint}")
}

fn write_acquired(reply: &mut ReplyWriter<'_>, acquired: &Acquired) {
    let decision = match (acquired.is_granted, acquired.was_queued) {
        (true, false) => "allow",
        (true, true) => "queue",
        (false, _) => "reject",
    };
    let named = [
        ("guard", acquired.guard.as_deref()),
        ("provider", acquired.provider.as_deref()),
        ("message", acquired.message.as_deref()),
        ("id", acquired.id.as_deref()),
    ];
    let named = named
        .iter()
        .filter_map(|(name, value)| Some((name, (*value)?)));
    reply.map(9 + named.clone().count());
    reply.text("granted");
    reply.boolean(acquired.is_granted);
    reply.text("permit");
    reply.text_or_null(acquired.permit.as_deref());
    reply.text("waited");
    reply.count(acquired.waited.0 / 1_000);
    reply.text("retry_in");
    reply.count_or_null(acquired.retry_in.map(milliseconds_up));
    reply.text("limit");
    write_limit(reply, acquired.limit.as_ref());
    reply.text("remaining");
    reply.count_or_null(acquired.remaining);
    reply.text("reason");
    reply.text_or_null(acquired.reason);
    reply.text("decision");
    reply.text(decision);
    reply.text("use_within");
    reply.count_or_null(acquired.use_within.map(|within| within.0 / 1_000));
    for (name, value) in named {
        reply.text(name);
        reply.text(value);
    }
}

fn write_capacity(reply: &mut ReplyWriter<'_>, capacity: &CapacityReply) {
    reply.map(8);
    reply.text("available");
    reply.boolean(capacity.is_available);
    reply.text("retry_in");
    reply.count_or_null(capacity.retry_in.map(milliseconds_up));
    reply.text("remaining");
    reply.count_or_null(capacity.remaining);
    reply.text("state");
    reply.text(capacity.state);
    reply.text("provider");
    reply.text(&capacity.provider);
    reply.text("limit");
    write_limit(reply, capacity.limit.as_ref());
    reply.text("reason");
    reply.text_or_null(capacity.reason);
    reply.text("message");
    reply.text_or_null(capacity.message.as_deref());
}

fn write_guard_status(reply: &mut ReplyWriter<'_>, status: &GuardStatus, cost: u64) {
    let remaining = status.micro_tokens / 1_000_000;
    reply.map(6);
    reply.text("available");
    reply.boolean(remaining >= cost);
    reply.text("retry_in");
    reply.count_or_null(status.available_in(cost).map(milliseconds_up));
    reply.text("limit");
    write_limit(reply, Some(&LimitSummary::of_guard_status(status)));
    reply.text("remaining");
    reply.count(remaining);
    reply.text("tokens_per_minute");
    reply.count(status.tokens_per_minute);
    reply.text("burst_size");
    reply.count(status.burst.into());
}

fn write_limit(reply: &mut ReplyWriter<'_>, limit: Option<&LimitSummary>) {
    let Some(limit) = limit else {
        return reply.null();
    };
    reply.map(4);
    reply.text("name");
    reply.text(&limit.name);
    reply.text("limit");
    reply.count_or_null(limit.limit);
    reply.text("period");
    reply.count_or_null(limit.period.map(milliseconds_up));
    reply.text("scope");
    reply.text(limit.scope);
}

/// JSON as a reply; seconds become milliseconds.
fn write_json(reply: &mut ReplyWriter<'_>, value: &Value, is_time: bool) {
    match value {
        Value::Null => reply.null(),
        Value::Bool(value) => reply.boolean(*value),
        Value::String(text) => reply.text(text),
        Value::Number(number) => {
            let decimal = number.as_f64().unwrap_or_default();
            match number.as_i64() {
                _ if is_time => reply.integer(rounded(decimal * 1_000.0)),
                Some(integer) => reply.integer(integer),
                None => reply.decimal(decimal),
            }
        }
        Value::Array(values) => {
            reply.array(values.len());
            for value in values {
                write_json(reply, value, is_time);
            }
        }
        Value::Object(fields) => {
            reply.map(fields.len());
            for (name, value) in fields {
                reply.text(name);
                write_json(reply, value, TIMES.contains(&name.as_str()));
            }
        }
    }
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "a float beyond the range becomes its end"
)]
fn rounded(value: f64) -> i64 {
    value.round() as i64
}

/// A time to come back is rounded up.
fn milliseconds_up(span: Span) -> u64 {
    span.0.div_ceil(1_000)
}
