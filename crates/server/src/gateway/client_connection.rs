//! One client connection: it serves requests in order, and may then become a tunnel.
//!
//! Promises: on shutdown, the running request is finished, and so is one that has arrived already.
//! A call without a response at the end of the grace period gets a rejection. A tunnel runs in the
//! task of its connection, so it counts as a connection and ends with the gateway.
//!
//! Never: decides anything about a call.

use std::convert::Infallible;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::io::AsyncRead;
use tokio::net::TcpStream;
use tollgate::body::{BodyError, ReplyBody, Tunnel};

use super::hang_up;
use super::hit_fast_path::HitFastPath;
use super::sendfile::SendFile;
use super::watched_stream::{RequestProgress, WatchedStream};
use super::{GatewayState, ListenerKind, handler};
use crate::accept_loop::ShutdownSignal;

/// The largest request head: enough for long queries and cookies, as in other proxies. The parser
/// itself allows at most 100 headers.
pub(super) const HEAD_MAX: usize = 64 * 1024;

/// How long a connection without any request stays open after the shutdown signal: its client is
/// probably about to send one.
const FIRST_REQUEST_WAIT: Duration = Duration::from_secs(1);

/// How long an upgraded connection may take to be handed over after its requests have ended. It has
/// been handed over by then, or never is.
const UPGRADE_WAIT: Duration = Duration::from_secs(1);

/// The state of a client connection that its requests share.
#[derive(Debug)]
pub(super) struct ClientConnection {
    pub(super) state: Arc<GatewayState>,
    pub(super) kind: Arc<ListenerKind>,
    pub(super) peer: IpAddr,
    progress: Arc<RequestProgress>,
    tunnel: Mutex<Option<(OnUpgrade, Tunnel)>>,
    /// When the listener closes or the gateway shuts down.
    shutdown: ShutdownSignal,
    /// The grace period is over: a call without a response gets none from its provider.
    is_over: Arc<AtomicBool>,
}

/// Why a call ends before it has a result.
#[derive(Clone, Copy, Debug)]
pub(super) enum CallCut {
    /// The grace period is over.
    ShuttingDown,
    /// Nobody waits for its response.
    HungUp,
}

impl ClientConnection {
    pub(super) fn new(
        state: Arc<GatewayState>,
        kind: Arc<ListenerKind>,
        peer: IpAddr,
        shutdown: ShutdownSignal,
    ) -> ClientConnection {
        ClientConnection {
            state,
            kind,
            peer,
            shutdown,
            is_over: Arc::default(),
            progress: Arc::default(),
            tunnel: Mutex::new(None),
        }
    }

    /// Does the connection close after the current response?
    pub(super) fn is_closing(&self) -> bool {
        self.progress.is_closing()
    }

    /// Whether the grace period is over.
    pub(super) fn is_over(&self) -> Arc<AtomicBool> {
        self.is_over.clone()
    }

    /// The result of a call, unless the grace period is over first or its caller hangs up. The
    /// connection's task polls it, and is woken when that happens. `may_stay_unread`: nobody else
    /// notices that its caller hangs up.
    pub(super) async fn unless_cut<T>(
        &self,
        may_stay_unread: bool,
        call: impl Future<Output = T>,
    ) -> Result<T, CallCut> {
        let mut call = std::pin::pin!(call);
        // On the heap: few calls have it.
        let progress = || self.progress.clone();
        let mut gone = may_stay_unread.then(|| Box::pin(hang_up::hung_up(progress())));
        std::future::poll_fn(|cx| {
            if let Poll::Ready(result) = call.as_mut().poll(cx) {
                return Poll::Ready(Ok(result));
            }
            if self.is_over.load(Ordering::Acquire) {
                return Poll::Ready(Err(CallCut::ShuttingDown));
            }
            match &mut gone {
                Some(gone) => gone.as_mut().poll(cx).map(|()| Err(CallCut::HungUp)),
                None => Poll::Pending,
            }
        })
        .await
    }

    /// Marks the start of a request. Returns `false` if it is unclear where it ends.
    pub(super) fn begin_request(&self) -> bool {
        self.progress.begin_request()
    }

    /// Has the current request ended with plain chunks?
    pub(super) fn has_plain_end(&self) -> bool {
        self.progress.has_plain_end()
    }

    /// Makes the connection a tunnel after the current response.
    pub(super) fn become_tunnel(&self, caller: OnUpgrade, tunnel: Tunnel) {
        self.progress.become_tunnel();
        *self.tunnel.lock() = Some((caller, tunnel));
    }
}

/// Serves one connection until the client closes it or the gateway shuts down.
pub(super) async fn serve(stream: TcpStream, client: ClientConnection) {
    // Clients wait for responses, so send them without delay. If the option cannot be set, the
    // connection still works.
    stream.set_nodelay(true).ok();
    serve_stream(stream, client).await;
}

async fn serve_stream<S>(stream: S, client: ClientConnection)
where
    S: AsyncRead + SendFile + Send + 'static,
{
    let mut shutdown = client.shutdown.clone();
    let client = Arc::new(client);
    serve_requests(stream, &client, &mut shutdown).await;
    let tunnel = client.tunnel.lock().take();
    if let Some((caller, tunnel)) = tunnel
        && let Ok(Ok(caller)) = tokio::time::timeout(UPGRADE_WAIT, caller).await
    {
        let over = shutdown.grace_over();
        tunnel.run(TokioIo::new(caller), over).await;
    }
}

/// Serves the requests of a connection. When this returns, hyper's part of the connection is gone:
/// an upgrade that it could not hand over, because the client is gone, has failed by then.
async fn serve_requests<S>(stream: S, client: &Arc<ClientConnection>, shutdown: &mut ShutdownSignal)
where
    S: AsyncRead + SendFile + Send + 'static,
{
    let timeouts = client.state.options.timeouts;
    let fast_path = HitFastPath::new(client.clone());
    let watched =
        WatchedStream::new(stream, client.progress.clone(), timeouts).with_fast_path(fast_path);
    let service = service_fn(|request| {
        let client = client.clone();
        async move {
            let response = handler::handle(&client, request).await;
            Ok::<_, Infallible>(response.map(|body| TrackedBody::new(body, client)))
        }
    });
    // `WatchedStream` enforces the timeouts for idle connections and for request heads.
    let mut connection = std::pin::pin!(
        http1::Builder::new()
            .header_read_timeout(None)
            .max_buf_size(HEAD_MAX)
            .max_header_size(HEAD_MAX)
            .serve_connection(TokioIo::new(watched), service)
            .with_upgrades()
    );
    // An error on a client's connection concerns the client only.
    let has_ended = tokio::select! {
        _ended = connection.as_mut() => true,
        () = shutdown.requested() => false,
    };
    if !has_ended {
        shut_down(connection, client, shutdown).await;
    }
}

/// Serves what the client has sent already, then closes the connection.
async fn shut_down<E>(
    mut connection: Pin<&mut impl Future<Output = Result<(), E>>>,
    client: &ClientConnection,
    shutdown: &mut ShutdownSignal,
) {
    // The bytes of a request may have arrived unnoticed: the runtime looks for them now.
    tokio::task::yield_now().await;
    client.progress.close_when_idle();
    if within(FIRST_REQUEST_WAIT, connection.as_mut()).await {
        return;
    }
    client.progress.close_when_unused();
    tokio::select! {
        _ended = connection.as_mut() => return,
        () = shutdown.grace_over() => {}
    }
    client.is_over.store(true, Ordering::Release);
    connection.await.ok();
}

/// Waits for the end of a connection. `false`: it has not ended in this time.
async fn within<T>(time: Duration, connection: impl Future<Output = T>) -> bool {
    tokio::time::timeout(time, connection).await.is_ok()
}

/// A response body. When it is dropped, the response counts as passed on for writing.
#[derive(Debug)]
struct TrackedBody {
    body: ReplyBody,
    connection: Arc<ClientConnection>,
    has_begun: bool,
    /// The body failed before its first byte; hyper hears it after the head is written.
    held_back: Option<BodyError>,
}

impl TrackedBody {
    fn new(body: ReplyBody, connection: Arc<ClientConnection>) -> TrackedBody {
        TrackedBody {
            body,
            connection,
            has_begun: false,
            held_back: None,
        }
    }
}

impl Drop for TrackedBody {
    fn drop(&mut self) {
        self.connection.progress.end_response();
    }
}

impl Body for TrackedBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if let Some(error) = self.held_back.take() {
            return Poll::Ready(Some(Err(error)));
        }
        match Pin::new(&mut self.body).poll_frame(cx) {
            // hyper discards a head that it has not written when its body fails, and the caller
            // would take an empty connection for one that was closed while idle. While a body is
            // pending, hyper writes what it has.
            Poll::Ready(Some(Err(error))) if !self.has_begun => {
                self.has_begun = true;
                self.held_back = Some(error);
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            polled => {
                self.has_begun |= polled.is_ready();
                polled
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.held_back.is_none() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
#[path = "client_connection_tests.rs"]
mod tests;
