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
mod activity;
mod connection;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::TcpListener;
use tollgate_config::Secret;
use tollgate_core::time::Span;

use crate::connection_table::ConnectionTable;
use crate::daemon::Daemon;
use crate::gateway::{ConnectionCap, max_admin_connections};
use crate::serving_socket::{ServeError, ServingSocket, checked_address};
use connection::{GrpcHandler, GrpcState};

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

/// The gRPC address. It serves until [`Grpc::drain`] or drop.
#[derive(Debug)]
pub struct Grpc {
    address: SocketAddr,
    socket: ServingSocket,
}

impl Grpc {
    /// Starts to serve this socket. Must be called inside a tokio runtime.
    pub fn serve(
        daemon: &Daemon,
        listener: TcpListener,
        options: GrpcOptions,
    ) -> Result<Grpc, ServeError> {
        let address = checked_address(daemon, &listener, options.token.is_some())?;
        let max = options.connections_max.min(max_admin_connections()).max(1);
        let handler = GrpcHandler {
            state: Arc::new(GrpcState {
                daemon: daemon.clone(),
                token: options.token,
            }),
            connections: ConnectionTable::new(max),
            // A replaced connection has its slot until it has ended, which is at once.
            cap: Arc::new(ConnectionCap::new(
                max.saturating_mul(2),
                (max / 4).max(1),
                false,
            )),
        };
        Ok(Grpc {
            address,
            socket: ServingSocket::start(listener, handler, options.grace),
        })
    }

    /// The address it listens on.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Shuts down gracefully: accepts nothing more, finishes running calls, drops the rest.
    pub async fn drain(self) {
        self.socket.drain().await;
    }
}
