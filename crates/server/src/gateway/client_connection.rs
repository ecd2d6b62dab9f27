//! One connection of a caller: its requests one after the other, then perhaps a tunnel.
//!
//! Promises: on the order to end, the request under way
//! is finished and nothing follows. A tunnel lives in the task of its connection, so it counts as one
//! and ends with the gateway.
//!
//! Never: knows what a call is about.

use std::convert::Infallible;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tollgate::body::{BodyError, ReplyBody, Tunnel};

use super::hit_fast_path::HitFastPath;
use super::watched_stream::{RequestProgress, WatchedStream};
use super::{GatewayState, ListenerKind, handler};
use crate::accept_loop::shutdown_requested;

/// The largest head of a request, of at most 100 headers, which is the parser's own bound: room for
/// long queries and cookies, as other proxies have it.
const HEAD_MAX: usize = 64 * 1024;

/// A caller's connection, as its requests see it.
#[derive(Debug)]
pub(super) struct ClientConnection {
    pub(super) state: Arc<GatewayState>,
    pub(super) kind: Arc<ListenerKind>,
    pub(super) peer: IpAddr,
    progress: Arc<RequestProgress>,
    tunnel: Mutex<Option<(OnUpgrade, Tunnel)>>,
    /// Its door is closed, or the gateway ends.
    shutdown: watch::Receiver<bool>,
}

impl ClientConnection {
    pub(super) fn new(
        state: Arc<GatewayState>,
        door: Arc<ListenerKind>,
        peer: IpAddr,
        ending: watch::Receiver<bool>,
    ) -> ClientConnection {
        ClientConnection {
            state,
            kind: door,
            peer,
            shutdown: ending,
            progress: Arc::default(),
            tunnel: Mutex::new(None),
        }
    }

    /// A request begins. `false`: two servers could disagree where it ends.
    pub(super) fn begin_request(&self) -> bool {
        self.progress.begin_request()
    }

    /// After this answer the connection is a tunnel.
    pub(super) fn become_tunnel(&self, caller: OnUpgrade, tunnel: Tunnel) {
        self.progress.become_tunnel();
        *self.tunnel.lock() = Some((caller, tunnel));
    }
}

/// Serves one connection until its client is done or the gateway ends.
pub(super) async fn serve(stream: TcpStream, visit: ClientConnection) {
    // Answers are waited for; a socket that refuses the option works all the same.
    stream.set_nodelay(true).ok();
    let mut ending = visit.shutdown.clone();
    let patience = visit.state.options.timeouts;
    let visit = Arc::new(visit);
    let lane = HitFastPath::new(visit.clone());
    let line = WatchedStream::new(stream, visit.progress.clone(), patience).with_fast_path(lane);
    let service = service_fn(|request| {
        let visit = visit.clone();
        async move {
            let answer = handler::handle(&visit, request).await;
            Ok::<_, Infallible>(answer.map(|body| TrackedBody {
                body,
                connection: visit,
            }))
        }
    });
    // How long a connection may lie idle, and a head may take, its line says.
    let mut connection = std::pin::pin!(
        http1::Builder::new()
            .header_read_timeout(None)
            .max_buf_size(HEAD_MAX)
            .max_header_size(HEAD_MAX)
            .serve_connection(TokioIo::new(line), service)
            .with_upgrades()
    );
    tokio::select! {
        // What goes wrong on a client's connection is the client's affair.
        _ended = connection.as_mut() => {}
        () = shutdown_requested(&mut ending) => {
            visit.progress.close_when_idle();
            connection.as_mut().graceful_shutdown();
            connection.await.ok();
        }
    }
    let tunnel = visit.tunnel.lock().take();
    if let Some((caller, tunnel)) = tunnel
        && let Ok(caller) = caller.await
    {
        tunnel.run(TokioIo::new(caller)).await;
    }
}

/// The body of an answer while it is sent. Its line is told when it is all handed over.
#[derive(Debug)]
struct TrackedBody {
    body: ReplyBody,
    connection: Arc<ClientConnection>,
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
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
