//! Connections and requests of the simulated language model.
//!
//! Promises: a call is counted when its request is complete, and settled when its last token was
//! produced or its client has left.
//!
//! Never: sends more than the completion that the request asks for. A list of models costs nothing.

use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tollgate_core::time::Span;

use super::account::{Account, Advertised, Usage};
use super::completion;
use super::wire::{self, LlmDialect, Prompt};
use super::{Shared, State};
use crate::real_time;

type Body = BoxBody<Bytes, io::Error>;

/// Serves every connection until the task is aborted.
pub(super) async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        while connections.try_join_next().is_some() {}
        stream.set_nodelay(true).ok();
        let shared = Arc::clone(&shared);
        connections.spawn(async move {
            let service = service_fn(|request| serve(Arc::clone(&shared), request));
            let served = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
            // A client that leaves is no error here.
            served.await.ok();
        });
    }
}

/// A call that was accepted.
struct Call {
    account: (String, String),
    prompt: Prompt,
    bound: Usage,
    headers: Vec<(String, String)>,
}

async fn serve(
    shared: Arc<Shared>,
    request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    let key = ["authorization", "x-api-key", "api-key", "x-goog-api-key"]
        .iter()
        .find_map(|name| request.headers().get(*name)?.to_str().ok())
        .map(|key| key.trim_start_matches("Bearer ").to_owned())
        .unwrap_or_default();
    let path = request.uri().path().to_owned();
    let is_list = request.method() == hyper::Method::GET;
    let Ok(body) = request.into_body().collect().await else {
        return Ok(respond(
            StatusCode::BAD_REQUEST,
            &[],
            &json!({"error": "no body"}),
        ));
    };
    if is_list && path == "/-/report" {
        return Ok(respond(StatusCode::OK, &[], &shared.report()));
    }
    if is_list {
        let list = json!({"object": "list", "data": []});
        let overloaded = overloaded(&mut shared.state.lock());
        return Ok(overloaded.unwrap_or_else(|| respond(StatusCode::OK, &[], &list)));
    }
    let mut prompt = match Prompt::read(shared.settings.dialect, &path, &body.to_bytes()) {
        Ok(prompt) => prompt,
        Err(bad) => {
            shared.state.lock().bad_requests += 1;
            let status = StatusCode::from_u16(bad.status).unwrap_or(StatusCode::BAD_REQUEST);
            let body = json!({"error": {"message": bad.message, "type": "invalid_request_error"}});
            return Ok(respond(status, &[], &body));
        }
    };
    prompt.input = (prompt.input * shared.settings.prompt_percent).div_ceil(100);
    let call = match begin(&shared, key, prompt) {
        Ok(call) => call,
        Err(rejection) => return Ok(rejection),
    };
    if call.prompt.stream {
        return Ok(stream(shared, call));
    }
    let used = call.prompt.usage(shared.settings.output);
    let takes = shared.settings.token_time.scale_up(used.output, 1);
    real_time::sleep(shared.settings.first_token).await;
    real_time::sleep(takes).await;
    finish(&shared, &call, used);
    let body = completion::whole(&call.prompt, used);
    Ok(respond(StatusCode::OK, &call.headers, &body))
}

/// Counts a call, or rejects it.
#[expect(
    clippy::result_large_err,
    reason = "a response is large, and is sent at once"
)]
fn begin(shared: &Shared, key: String, prompt: Prompt) -> Result<Call, Response<Body>> {
    let (dialect, now) = (shared.settings.dialect, shared.now());
    let mut state = shared.state.lock();
    if let Some(rejection) = overloaded(&mut state) {
        return Err(rejection);
    }
    if state.unpaid.contains(&key) {
        state.unpaid_calls += 1;
        let (status, body) = wire::unpaid(dialect);
        let status = StatusCode::from_u16(status).unwrap_or(StatusCode::PAYMENT_REQUIRED);
        return Err(respond(status, &[], &body));
    }
    let tier = state.tier;
    let name = (key, prompt.model.clone());
    let account = state
        .accounts
        .entry(name.clone())
        .or_insert_with(|| Account::new(tier, now));
    let bound = prompt.holds(shared.settings.unbounded_hold);
    let is_accepted = account.arrive(bound, now);
    let limits = account.advertised();
    drop(state);
    let mut headers = wire::headers(dialect, &limits, real_time::wall_now());
    if is_accepted {
        return Ok(Call {
            account: name,
            prompt,
            bound,
            headers,
        });
    }
    let wait = wait(&limits, bound);
    if dialect != LlmDialect::Gemini {
        headers.push((
            "retry-after".to_owned(),
            wait.0.div_ceil(1_000_000).to_string(),
        ));
    }
    let body = wire::rejection(dialect, &limits, wait);
    Err(respond(StatusCode::TOO_MANY_REQUESTS, &headers, &body))
}

/// The next calls get 529.
fn overloaded(state: &mut State) -> Option<Response<Body>> {
    state.overloaded = state.overloaded.checked_sub(1)?;
    let body =
        json!({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}});
    let status = StatusCode::from_u16(529).unwrap_or(StatusCode::SERVICE_UNAVAILABLE);
    Some(respond(status, &[], &body))
}

/// How long until there is enough for the call.
fn wait(limits: &[(&str, Advertised)], bound: Usage) -> Span {
    let waits = limits.iter().map(|(name, limit)| {
        let needed = match *name {
            "requests" => 1,
            "input-tokens" => bound.input,
            "output-tokens" => bound.output,
            _ => bound.input + bound.output,
        };
        let missing = needed.saturating_sub(limit.remaining);
        super::account::MINUTE.scale_up(missing, limit.limit)
    });
    waits.fold(Span::from_millis(1), Span::max)
}

fn finish(shared: &Shared, call: &Call, used: Usage) {
    let now = shared.now();
    let mut state = shared.state.lock();
    if let Some(account) = state.accounts.get_mut(&call.account) {
        let counted = call.prompt.counted(shared.settings.dialect, used);
        account.finish(call.bound, counted, now);
    }
}

/// Sends a completion token by token. If the client leaves, what was produced is counted.
fn stream(shared: Arc<Shared>, call: Call) -> Response<Body> {
    let (sender, receiver) = mpsc::channel(8);
    let head = call.headers.clone();
    tokio::spawn(async move {
        let (dialect, used) = (
            shared.settings.dialect,
            call.prompt.usage(shared.settings.output),
        );
        real_time::sleep(shared.settings.first_token).await;
        let first = completion::first_events(&call.prompt, used);
        let mut is_gone = !first.is_empty() && sender.send(Ok(Bytes::from(first))).await.is_err();
        let ends_at = call
            .prompt
            .breaks_after
            .unwrap_or(u64::MAX)
            .min(used.output);
        let mut produced = 0;
        while produced < ends_at && !is_gone {
            real_time::sleep(shared.settings.token_time).await;
            produced += 1;
            let event = completion::token_event(&call.prompt);
            is_gone = sender.send(Ok(Bytes::from(event))).await.is_err();
        }
        let used = Usage {
            output: produced,
            ..used
        };
        finish(&shared, &call, used);
        let last = match call.prompt.breaks_after {
            // The connection is closed in the middle of the body.
            Some(_) => Err(io::Error::other("breaks off")),
            None => Ok(Bytes::from(completion::last_events(
                dialect,
                &call.prompt,
                used,
            ))),
        };
        sender.send(last).await.ok();
    });
    let body = ChannelBody { receiver }.boxed();
    let mut response = Response::builder().header("content-type", "text/event-stream");
    for (name, value) in head {
        response = response.header(name, value);
    }
    response.body(body).expect("headers are valid")
}

fn respond(status: StatusCode, headers: &[(String, String)], body: &Value) -> Response<Body> {
    let mut response = Response::builder()
        .status(status)
        .header("content-type", "application/json");
    for (name, value) in headers {
        response = response.header(name, value);
    }
    let body = Full::new(Bytes::from(body.to_string()));
    let body = body.map_err(|never| match never {}).boxed();
    response.body(body).expect("headers are valid")
}

/// A body of pieces that another task sends.
struct ChannelBody {
    receiver: mpsc::Receiver<io::Result<Bytes>>,
}

impl hyper::body::Body for ChannelBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let piece = self.receiver.poll_recv(cx);
        piece.map(|piece| piece.map(|piece| piece.map(Frame::data)))
    }
}
