//! The decision service over gRPC: Envoy's rate limit service and the health service, on an address of
//! their own.
//!
//! Promises: without a token it listens on loopback only. Connections, messages and times are bounded. On
//! shutdown, running calls are finished within the grace period.
//!
//! Never: decides. Descriptors become requests to [`crate::decisions`].

mod protobuf;
mod status;
mod messages;
mod body;
mod rate_limit;
mod guard_domain;
mod provider_domain;
mod health;
mod places;
mod connection;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tollgate::event::Event;
use tollgate_config::Secret;
use tollgate_core::time::Span;

use crate::accept_loop;
use crate::daemon::Daemon;
use crate::gateway::max_admin_connections;
use connection::{GrpcHandler, GrpcState};
use places::Places;

/// The most connections: Envoy has one per worker thread, so these are those of ten large hosts.
const CONNECTIONS_MAX: usize = 256;

/// Settings of the gRPC address.
#[derive(Clone, Debug)]
pub struct GrpcOptions {
    /// The operator's token. Callers send it, or their own; `None` = loopback only.
    pub token: Option<Secret>,
    /// The most connections; fewer if the process has too few descriptors. One address has at most a
    /// quarter of them, this host apart, and a new one replaces the oldest that is idle.
    pub connections_max: usize,
    /// How long running calls may take after the shutdown signal.
    pub grace: Span,
}

impl Default for GrpcOptions {
    fn default() -> GrpcOptions {
        GrpcOptions {
            token: None,
            connections_max: CONNECTIONS_MAX,
            grace: Span::from_secs(5),
        }
    }
}

/// Why the gRPC address cannot start.
#[derive(Debug, thiserror::Error)]
pub enum GrpcError {
    /// Other hosts can reach it, and there is no token to authenticate them.
    #[error("{0} is reachable from other hosts; set admin.token, or listen on 127.0.0.1")]
    NoToken(SocketAddr),
    /// The socket failed.
    #[error("the gRPC socket failed")]
    Socket(#[from] io::Error),
}

/// The gRPC address. It serves until [`Grpc::drain`] or drop.
#[derive(Debug)]
pub struct Grpc {
    address: SocketAddr,
    shutdown: watch::Sender<bool>,
    tasks: JoinSet<()>,
}

impl Grpc {
    /// Starts to serve this socket. Must be called inside a tokio runtime.
    pub fn serve(
        daemon: &Daemon,
        listener: TcpListener,
        options: GrpcOptions,
    ) -> Result<Grpc, GrpcError> {
        let address = listener.local_addr()?;
        if options.token.is_none() && !address.ip().is_loopback() {
            return Err(GrpcError::NoToken(address));
        }
        daemon.registry().add_own_address(address);
        let shutdown = watch::Sender::new(false);
        let handler = GrpcHandler {
            state: Arc::new(GrpcState {
                daemon: daemon.clone(),
                token: options.token,
            }),
            places: Places::new(options.connections_max.min(max_admin_connections())),
        };
        let mut tasks = JoinSet::new();
        let grace = options.grace.into();
        let signal = shutdown.subscribe();
        tasks.spawn(accept_loop::run(listener, handler, signal, grace));
        let events = daemon.registry().events();
        events.emit(Event::Listening { address });
        Ok(Grpc {
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

    /// Shuts down gracefully: accepts nothing more, finishes running calls, drops the rest.
    pub async fn drain(mut self) {
        self.shutdown.send_replace(true);
        while self.tasks.join_next().await.is_some() {}
    }
}
