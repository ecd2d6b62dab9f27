//! The admin address: status, settings, commands, decisions; later metrics and the dashboard.
//!
//! Promises: without a token it listens on loopback only. Connections, heads, bodies and responses
//! are bounded in number, size and time; a new connection replaces an idle one, or gets 503 if there is
//! none. On shutdown, running requests are finished within the grace period.
//!
//! Never: forwards calls to providers; the gateway does.

mod connections;
mod overload;
mod stream;
mod cache;
mod commands;
mod decisions;
mod desk;
mod metrics;
mod openapi;
mod openapi_schemas;
mod providers;
mod routes;
mod sources;
mod tasks;
mod access;
mod token;
pub use token::{TokenError, TokenFile};

use std::convert::Infallible;
use std::io;
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
use tokio::sync::watch;
use tokio::task::JoinSet;
use tollgate::event::Event;
use tollgate_config::Secret;
use tollgate_core::time::Span;

use crate::accept_loop::{self, ConnectionHandler, ShutdownSignal};
use crate::daemon::Daemon;
use crate::gateway::max_admin_connections;
use access::AccessPolicy;
use connections::{AdminConnection, AdminConnections};
use decisions::Peer;
use overload::AdminOverload;
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

/// Why the admin address cannot start.
#[derive(Debug, thiserror::Error)]
pub enum AdminError {
    /// Other hosts can reach it, and there is no token to authenticate them.
    #[error("{0} is reachable from other hosts; set admin.token, or listen on 127.0.0.1")]
    NoToken(SocketAddr),
    /// The socket failed.
    #[error("the admin socket failed")]
    Socket(#[from] io::Error),
}

/// The admin address. It serves until [`Admin::drain`] or drop.
#[derive(Debug)]
pub struct Admin {
    address: SocketAddr,
    shutdown: watch::Sender<bool>,
    tasks: JoinSet<()>,
}

impl Admin {
    /// Starts to serve this socket. Must be called inside a tokio runtime.
    pub fn serve(
        daemon: &Daemon,
        listener: TcpListener,
        options: AdminOptions,
    ) -> Result<Admin, AdminError> {
        let address = listener.local_addr()?;
        if options.token.is_none() && !address.ip().is_loopback() {
            return Err(AdminError::NoToken(address));
        }
        daemon.registry().add_own_address(address);
        let shutdown = watch::Sender::new(false);
        let policy = AccessPolicy::new(address, options.token, daemon.clone());
        let router = routes::router(daemon.clone(), policy);
        let mut tasks = JoinSet::new();
        let handler = AdminHandler {
            router,
            connections: AdminConnections::new(max_admin_connections()),
            overload: AdminOverload::default(),
        };
        let grace = options.grace.into();
        tasks.spawn(accept_loop::run(
            listener,
            handler,
            shutdown.subscribe(),
            grace,
        ));
        daemon
            .registry()
            .events()
            .emit(Event::Listening { address });
        Ok(Admin {
            address,
            shutdown,
            tasks,
        })
    }

    /// The address it listens on.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Shuts down gracefully: accepts nothing more, finishes running requests, drops the rest.
    pub async fn drain(mut self) {
        self.shutdown.send_replace(true);
        while self.tasks.join_next().await.is_some() {}
    }
}

/// Serves the connections of the admin address.
struct AdminHandler {
    router: axum::Router,
    connections: Arc<AdminConnections>,
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
    place: AdminConnection,
    mut shutdown: ShutdownSignal,
) where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let router = TowerToHyperService::new(router);
    let stream = AdminStream::new(stream, place.progress());
    let service = service_fn(|request| {
        let running = place.begin();
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
