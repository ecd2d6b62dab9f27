//! The admin address: status, settings, commands, decisions, the page; later metrics.
//!
//! Promises: without a token it listens on loopback only. Connections, heads, bodies and responses
//! are bounded in number, size and time; a new connection replaces an idle one, or gets 503 if there is
//! none. On shutdown, running requests are finished within the grace period; one that has no response
//! then, because it waits for a permit, gets 503.
//!
//! Never: forwards calls to providers; the gateway does.

mod progress;
mod overload;
mod stream;
mod cache;
mod charts;
mod commands;
mod decisions;
mod desk;
mod live;
mod metrics;
mod openapi;
mod openapi_limits;
mod openapi_schemas;
mod page;
mod providers;
mod routes;
mod sample;
mod session;
mod sources;
mod tasks;
mod access;
mod token;
mod unread_input;
pub use token::{TokenError, TokenFile};

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::timeout;
use tollgate_config::Secret;
use tollgate_core::time::Span;

use crate::accept_loop::{ConnectionHandler, FINAL_GRACE, ShutdownSignal};
use crate::api::ApiError;
use crate::connection_table::{ConnectionPlace, ConnectionTable};
use crate::daemon::Daemon;
use crate::gateway::max_admin_connections;
use crate::history::{self, History};
use crate::serving_socket::{ServeError, ServingSocket, checked_address};
use access::AccessPolicy;
use decisions::Peer;
use live::LiveEvents;
use overload::AdminOverload;
use progress::AdminProgress;
use routes::AdminRoutes;
use stream::{AdminStream, RunningBody};

/// The largest request head: no browser sends more to a local address.
const HEAD_MAX: usize = 32 * 1024;

/// How long a head may take to arrive, and how long a connection may be idle between two.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);

/// Settings of the admin address.
#[derive(Clone, Debug)]
pub struct AdminOptions {
    /// The token that clients must send; `None` = loopback only.
    pub token: Option<Secret>,
    /// How long running requests may take after the shutdown signal: as long as on the gateway.
    pub grace: Span,
}

impl Default for AdminOptions {
    fn default() -> AdminOptions {
        AdminOptions {
            token: None,
            grace: Span::from_secs(10),
        }
    }
}

/// The admin address. It serves until [`Admin::drain`] or drop.
#[derive(Debug)]
pub struct Admin {
    address: SocketAddr,
    socket: ServingSocket,
    grace: Duration,
    grace_over: watch::Sender<bool>,
}

impl Admin {
    /// Starts to serve this socket. Must be called inside a tokio runtime.
    pub fn serve(
        daemon: &Daemon,
        listener: TcpListener,
        options: AdminOptions,
    ) -> Result<Admin, ServeError> {
        let address = checked_address(daemon, &listener, options.token.is_some())?;
        let policy = AccessPolicy::new(address, options.token, daemon.clone());
        let mut socket = ServingSocket::new();
        let history = Arc::new(History::new(history::epoch(daemon)));
        let live = LiveEvents::new(daemon.clone(), history.clone(), socket.shutdown_signal());
        let routes = AdminRoutes::new(daemon.clone(), policy, history.clone(), live);
        socket.run_beside(history::run(daemon.clone(), history));
        let grace_over = watch::Sender::new(false);
        let handler = AdminHandler {
            routes,
            grace_over: grace_over.subscribe(),
            connections: ConnectionTable::new(max_admin_connections()),
            overload: AdminOverload::default(),
        };
        socket.accept(listener, handler, options.grace);
        Ok(Admin {
            address,
            socket,
            grace: options.grace.into(),
            grace_over,
        })
    }

    /// The address it listens on.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Shuts down gracefully: accepts nothing more, finishes running requests, drops the rest.
    pub async fn drain(self) {
        self.drain_beside(std::future::ready(())).await;
    }

    /// The same while `others` shut down: it accepts requests until they have, so that permits can be
    /// reported and health checks get their 503, but no longer than its own grace period, which begins now.
    pub async fn drain_beside(self, others: impl Future<Output = ()>) {
        let mut others = pin!(others);
        let mut drained = pin!(self.socket.drain());
        let mut others_have_ended = false;
        let all = async {
            others.as_mut().await;
            others_have_ended = true;
            drained.as_mut().await;
        };
        if timeout(self.grace, all).await.is_ok() {
            return;
        }
        self.grace_over.send_replace(true);
        // A client that does not read its last response in this time gets none.
        let last_responses = timeout(FINAL_GRACE, drained);
        if others_have_ended {
            last_responses.await.ok();
        } else {
            let _ended = tokio::join!(others, last_responses);
        }
    }
}

/// Serves the connections of the admin address.
struct AdminHandler {
    routes: AdminRoutes,
    grace_over: watch::Receiver<bool>,
    connections: Arc<ConnectionTable<AdminProgress>>,
    overload: AdminOverload,
}

impl ConnectionHandler for AdminHandler {
    /// Always: a new connection replaces an idle one.
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
        let place = match self.connections.open() {
            Some(connection) => Ok(connection),
            None => Err(self.overload.place()?),
        };
        let (routes, peer) = (self.routes.clone(), Peer(peer.ip()));
        let grace_over = self.grace_over.clone();
        Some(async move {
            match place {
                Ok(connection) => {
                    let signals = (shutdown, grace_over);
                    let respond = |request| routes.respond(peer, request);
                    serve_connection(stream, respond, connection, signals).await;
                }
                Err(place) => place.reject(stream).await,
            }
        })
    }
}

async fn serve_connection<S, F>(
    stream: S,
    respond: impl Fn(Request) -> F,
    place: ConnectionPlace<AdminProgress>,
    (mut shutdown, grace_over): (ShutdownSignal, watch::Receiver<bool>),
) where
    S: AsyncRead + AsyncWrite + Unpin,
    F: Future<Output = Response>,
{
    let stream = AdminStream::new(stream, place.activity().clone());
    let service = service_fn(|request: hyper::Request<Incoming>| {
        let running = place.activity().begin();
        let response = respond(request.map(Body::new));
        let mut grace_over = grace_over.clone();
        async move {
            let response = tokio::select! {
                biased;
                response = response => response,
                _ = grace_over.wait_for(|is_over| *is_over) => {
                    ApiError::shutting_down().into_response()
                }
            };
            // It runs until its last byte is written.
            Ok::<_, Infallible>(response.map(|body| RunningBody::new(body, running)))
        }
    });
    let mut connection = pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_TIMEOUT)
            .max_buf_size(HEAD_MAX)
            .serve_connection(TokioIo::new(stream), service)
    );
    tokio::select! {
        // An error on a client's connection concerns the client only.
        _ended = connection.as_mut() => return,
        () = place.replaced() => return,
        () = shutdown.requested() => connection.as_mut().graceful_shutdown(),
    }
    connection.await.ok();
}
