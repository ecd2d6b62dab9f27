//! One connection of the gRPC address: HTTP/2, its requests, its bounds.
//!
//! Promises: streams, heads, messages and the time of each are bounded. A connection without requests is closed, soon
//! if it never had one, and at once if a new one
//! needs its place. On shutdown, running calls are finished and streams end.
//!
//! Never: decides.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tollgate_config::Secret;

use super::activity::Activity;
use super::body::GrpcBody;
use super::protobuf::FRAME_PREFIX;
use super::status::{GrpcCode, GrpcStatus};
use super::{health, rate_limit};
use crate::accept_loop::{ConnectionHandler, ShutdownSignal};
use crate::api::bearer;
use crate::connection_table::{ConnectionPlace, ConnectionTable};
use crate::daemon::Daemon;
use crate::decision_api::Asker;
use crate::gateway::ConnectionCap;

/// The largest message: 32 descriptors of a kilobyte.
const MESSAGE_MAX: usize = 32 * 1024;

/// The largest head: a few names and a token.
const HEAD_MAX: u32 = 16 * 1024;

/// Calls at a time on one connection. Envoy has a connection per worker thread, and a decision takes
/// microseconds. With messages of 32 KiB they hold 4 MiB.
const STREAMS_MAX: u32 = 128;

/// How long a message may take to arrive.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(10);

/// How often a silent client is asked whether it is still there, and how long it may take to respond.
const PING_EVERY: Duration = Duration::from_secs(60);
const PING_TIMEOUT: Duration = Duration::from_secs(20);

/// How often a connection is checked for requests. One that had none so far is closed at the first
/// check, any other after [`IDLE_CHECKS`] without one: clients open a new one when they need it.
const IDLE_CHECK: Duration = Duration::from_secs(30);
const IDLE_CHECKS: usize = 30;

/// How long a connection that is closed may take to end: longer than any call, and than the grace period
/// of a shutdown.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(15);

/// What all connections share.
#[derive(Debug)]
pub(super) struct GrpcState {
    pub(super) daemon: Daemon,
    /// The operator's token; `None` = loopback only, and no token is needed.
    pub(super) token: Option<Secret>,
}

/// Serves the connections of the gRPC address.
#[derive(Debug)]
pub(super) struct GrpcHandler {
    pub(super) state: Arc<GrpcState>,
    pub(super) connections: Arc<ConnectionTable<Activity>>,
    /// The share of each address.
    pub(super) cap: Arc<ConnectionCap>,
}

impl ConnectionHandler for GrpcHandler {
    /// Always: a new connection replaces an idle one, and one without a place is closed at once.
    fn has_capacity(&self, _active: usize) -> bool {
        true
    }

    fn handle(
        &self,
        stream: TcpStream,
        peer: SocketAddr,
        shutdown: ShutdownSignal,
    ) -> Option<impl Future<Output = ()> + Send + 'static> {
        // Clients wait for responses; if the option cannot be set, the connection still works.
        stream.set_nodelay(true).ok();
        let slot = self.cap.try_acquire(peer.ip())?;
        let place = self.connections.open()?;
        let serving = serve(stream, self.state.clone(), peer, place, shutdown);
        Some(async move {
            serving.await;
            drop(slot);
        })
    }
}

async fn serve<S>(
    stream: S,
    state: Arc<GrpcState>,
    peer: SocketAddr,
    place: ConnectionPlace<Activity>,
    mut shutdown: ShutdownSignal,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let activity = place.activity().clone();
    let (of_calls, at_shutdown) = (activity.clone(), shutdown.clone());
    let service = service_fn(move |request| {
        let running = of_calls.begin();
        let (state, shutdown) = (state.clone(), at_shutdown.clone());
        async move {
            let response = call(&state, peer, running.activity(), request, shutdown).await;
            drop(running);
            Ok::<_, Infallible>(response)
        }
    });
    let mut connection = std::pin::pin!(
        http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .auto_date_header(false)
            .max_concurrent_streams(STREAMS_MAX)
            .max_header_list_size(HEAD_MAX)
            .keep_alive_interval(PING_EVERY)
            .keep_alive_timeout(PING_TIMEOUT)
            .serve_connection(TokioIo::new(stream), service)
    );
    tokio::select! {
        // An error on a client's connection concerns the client only.
        _ended = connection.as_mut() => return,
        () = place.replaced() => {
            // The client learns it if that needs no wait: its place is taken.
            connection.as_mut().graceful_shutdown();
            tokio::time::timeout(Duration::ZERO, connection).await.ok();
            return;
        }
        () = ceased(&activity) => {}
        () = shutdown.requested() => {}
    }
    connection.as_mut().graceful_shutdown();
    // A client that never speaks would not learn of it either. A health watch never ends by itself.
    if activity.begun() > 0 {
        tokio::select! {
            _ended = tokio::time::timeout(CLOSE_TIMEOUT, connection) => {}
            () = place.replaced() => {}
        }
    }
}

/// One request.
async fn call(
    state: &GrpcState,
    peer: SocketAddr,
    activity: &Activity,
    request: Request<Incoming>,
    shutdown: ShutdownSignal,
) -> Response<GrpcBody> {
    if request.method() != Method::POST || !is_grpc(request.headers()) {
        let mut response = Response::new(GrpcBody::default());
        *response.status_mut() = StatusCode::UNSUPPORTED_MEDIA_TYPE;
        return response;
    }
    let (body, failed) = match decide(state, peer, activity, request, shutdown).await {
        Ok(body) => (body, None),
        Err(status) => (GrpcBody::default(), Some(status.trailers())),
    };
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    // A failure without a message has its status in the head.
    headers.extend(failed.into_iter().flatten());
    let grpc = HeaderValue::from_static("application/grpc");
    headers.insert(CONTENT_TYPE, grpc);
    response
}

async fn decide(
    state: &GrpcState,
    peer: SocketAddr,
    activity: &Activity,
    request: Request<Incoming>,
    shutdown: ShutdownSignal,
) -> Result<GrpcBody, GrpcStatus> {
    let (head, body) = request.into_parts();
    match head.uri.path() {
        "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit" => {
            let asker = state.asker(peer, &head.headers)?;
            activity.on_known();
            let message = read_message(body).await?;
            let decisions = state.daemon.decisions();
            let frame = rate_limit::should_rate_limit(decisions, asker, &message).await?;
            Ok(GrpcBody::of(frame))
        }
        "/grpc.health.v1.Health/Check" => health::check(&state.daemon, &read_message(body).await?),
        "/grpc.health.v1.Health/Watch" => {
            health::watch(&state.daemon, &read_message(body).await?, shutdown)
        }
        _ => Err(GrpcStatus::new(
            GrpcCode::Unimplemented,
            format!(
                "there is no such method; call {}/ShouldRateLimit or grpc.health.v1.Health/Check",
                rate_limit::SERVICE
            ),
        )),
    }
}

impl GrpcState {
    /// Who asks: the operator, or the caller whose token it is.
    fn asker(&self, peer: SocketAddr, headers: &HeaderMap) -> Result<Asker, GrpcStatus> {
        let peer = peer.ip();
        let sent = bearer(headers);
        let caller = match (&self.token, sent) {
            (None, None) => None,
            (Some(token), Some(sent)) if *token == sent => None,
            (_, Some(sent)) => {
                let name = self.daemon.decisions().caller_of(&sent);
                Some((name.ok_or_else(no_token)?, sent))
            }
            (Some(_), None) => return Err(no_token()),
        };
        Ok(Asker { peer, caller })
    }
}

fn no_token() -> GrpcStatus {
    GrpcStatus::new(
        GrpcCode::Unauthenticated,
        "the token is missing or wrong; send `authorization: Bearer TOKEN` (Envoy: initial_metadata) with the admin \
         token, or with the `token` of a caller under `callers:` in tollgate.yaml",
    )
}

/// `application/grpc`, perhaps with an encoding of messages; not `application/grpc-web`.
fn is_grpc(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes);
    let rest = kind.and_then(|kind| kind.strip_prefix(b"application/grpc"));
    rest.is_some_and(|rest| matches!(rest, [] | [b';', ..] | [b'+', b'p', b'r', b'o', b't', b'o']))
}

/// The only message of a request.
async fn read_message(body: Incoming) -> Result<Bytes, GrpcStatus> {
    let read = tokio::time::timeout(MESSAGE_TIMEOUT, read_body(body)).await;
    let mut frame = read.map_err(|_| {
        GrpcStatus::new(
            GrpcCode::DeadlineExceeded,
            "the message took longer than 10 s; send it at once",
        )
    })??;
    if frame.len() < FRAME_PREFIX {
        return Err(GrpcStatus::invalid(
            "the request has no message; send one behind five bytes of flag and length",
        ));
    }
    let message = frame.split_off(FRAME_PREFIX);
    let (flag, length) = match *frame {
        [flag, a, b, c, d] => (flag, u32::from_be_bytes([a, b, c, d])),
        _ => (0, 0),
    };
    if flag != 0 {
        return Err(GrpcStatus::new(
            GrpcCode::Unimplemented,
            "the message is compressed; send it as it is",
        ));
    }
    if usize::try_from(length) != Ok(message.len()) {
        return Err(GrpcStatus::invalid(
            "the length of the message is not the one that its frame states; send one message",
        ));
    }
    Ok(message)
}

/// The whole body. Most come in one piece, which is not copied.
async fn read_body(mut body: Incoming) -> Result<Bytes, GrpcStatus> {
    let (mut first, mut more) = (Bytes::new(), BytesMut::new());
    while let Some(frame) = body.frame().await {
        let Ok(frame) = frame
            .map_err(|_| ())
            .and_then(|frame| frame.into_data().map_err(|_| ()))
        else {
            break; // the client has left, or these are trailers
        };
        if first.len() + more.len() + frame.len() > MESSAGE_MAX + FRAME_PREFIX {
            return Err(GrpcStatus::new(
                GrpcCode::ResourceExhausted,
                "the message is larger than 32 KiB; send fewer or shorter descriptors",
            ));
        }
        if first.is_empty() {
            first = frame;
        } else {
            more.extend_from_slice(&frame);
        }
    }
    if more.is_empty() {
        return Ok(first);
    }
    let mut whole = BytesMut::from(first);
    whole.extend_from_slice(&more);
    Ok(whole.freeze())
}

/// Waits until a connection has been without requests for long.
#[expect(
    clippy::disallowed_methods,
    reason = "the absence of requests is no event"
)]
async fn ceased(activity: &Activity) {
    let (mut seen, mut idle) = (0, 0);
    loop {
        tokio::time::sleep(IDLE_CHECK).await;
        let begun = activity.begun();
        if begun == 0 {
            return;
        }
        let is_idle = begun == seen && activity.is_idle();
        (seen, idle) = (begun, if is_idle { idle + 1 } else { 0 });
        if idle >= IDLE_CHECKS {
            return;
        }
    }
}

#[cfg(test)]
#[path = "connection_tests.rs"]
mod tests;
