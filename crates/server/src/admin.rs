//! The admin address: status, settings, commands, decisions, the page; later metrics.
//!
//! Promises: without a token it listens on loopback only. Connections, heads, bodies and responses
//! are bounded in number, size and time; a new connection replaces an idle one, or gets 503 if there is
//! none. On shutdown, running requests are finished within the grace period.
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
use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tollgate_config::Secret;
use tollgate_core::time::Span;

use crate::accept_loop::{ConnectionHandler, ShutdownSignal};
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
    /// How long running requests may take after the shutdown signal.
    pub grace: Span,
}

impl Default for AdminOptions {
    fn default() -> AdminOptions {
        AdminOptions {
            token: None,
            grace: Span::from_secs(5),
        }
    }
}

/// The admin address. It serves until [`Admin::drain`] or drop.
#[derive(Debug)]
pub struct Admin {
    address: SocketAddr,
    socket: ServingSocket,
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
        let router = routes::router(daemon.clone(), policy, history.clone(), live);
        socket.run_beside(history::run(daemon.clone(), history));
        let handler = AdminHandler {
            router,
            connections: ConnectionTable::new(max_admin_connections()),
            overload: AdminOverload::default(),
        };
        socket.accept(listener, handler, options.grace);
        Ok(Admin { address, socket })
    }

    /// The address it listens on.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Shuts down gracefully: accepts nothing more, finishes running requests, drops the rest.
    pub async fn drain(self) {
        self.socket.drain().await;
    }
}

/// Serves the connections of the admin address.
struct AdminHandler {
    router: axum::Router,
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
        let router = self.router.clone().layer(Extension(Peer(peer.ip())));
        Some(async move {
            match place {
                Ok(connection) => serve_connection(stream, router, connection, shutdown).await,
                Err(place) => place.reject(stream).await,
            }
        })
    }
}

async fn serve_connection<S>(
    stream: S,
    router: axum::Router,
    place: ConnectionPlace<AdminProgress>,
    mut shutdown: ShutdownSignal,
) where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let router = TowerToHyperService::new(router);
    let stream = AdminStream::new(stream, place.activity().clone());
    let service = service_fn(|request| {
        let running = place.activity().begin();
        let response = router.call(request);
        async move {
            let response = response.await?;
            // It runs until its last byte is written.
            Ok::<_, Infallible>(response.map(|body| RunningBody::new(body, running)))
        }
    });
    let mut connection = std::pin::pin!(
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
