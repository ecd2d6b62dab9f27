//! The gateway: listens, accepts, serves, and shuts down gracefully.
//!
//! Promises: bounds the number of connections, in total and per client address, and rejects further
//! ones at once. On shutdown it accepts no new connection and finishes running calls. After the
//! grace period it drops the remaining calls and tunnels, which releases their permits.
//!
//! Never: knows what a call is about.

mod address;
mod handler;
mod hang_up;
pub(crate) use hang_up::until_read_closed;
mod sendfile;
mod connection_cap;
pub(crate) use connection_cap::{
    ConnectionCap, ConnectionSlot, max_admin_connections, max_resp_connections,
};
mod listeners;
pub(crate) use listeners::ListenError;
pub use listeners::Listeners;
mod framing;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod overload;
mod head;
mod hit_fast_path;
mod watched_stream;
pub use watched_stream::ClientTimeouts;
mod links;
mod cookies;
mod guarded;
mod decision_endpoint;
pub(crate) mod parse_error;
mod upgrade;
mod client_connection;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::net::TcpListener;
use tollgate::ProviderRegistry;
use tollgate::event::Event;
use tollgate_core::time::Span;

use crate::decisions::Decisions;
use overload::Overload;

/// Settings of a gateway.
#[derive(Clone, Debug)]
pub struct GatewayOptions {
    /// The maximum number of client connections; the gateway rejects further ones. A connection is
    /// a task of some 20 KiB, so the default is 80 MiB. Fewer if the process has too few
    /// descriptors.
    pub connections_max: usize,
    /// The maximum number of connections from one address, or one /64 of IPv6. A quarter of the
    /// total: no single host locks out the others, and a proxy in front has enough. Loopback is not
    /// counted by address.
    pub connections_per_address_max: usize,
    /// Count loopback by address too. Local programs share one address, so enable this only if no
    /// local proxy forwards for other clients.
    pub counts_this_host: bool,
    /// How long running calls may take after the shutdown signal.
    pub grace: Span,
    /// The timeouts of client connections.
    pub timeouts: ClientTimeouts,
    /// The decision service: its guards stand in front of providers that name them, and its calls
    /// are served at `/-/v1/…`. `None` = neither.
    pub decisions: Option<Decisions>,
}

impl Default for GatewayOptions {
    fn default() -> GatewayOptions {
        GatewayOptions {
            connections_max: 4_096,
            connections_per_address_max: 1_024,
            counts_this_host: false,
            grace: Span::from_secs(10),
            timeouts: ClientTimeouts::default(),
            decisions: None,
        }
    }
}

/// What a listener of the gateway serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListenerKind {
    /// Every provider.
    All,
    /// This provider only: request paths are paths of the provider.
    Provider(String),
}

/// A gateway. It serves until [`Gateway::drain`] or drop.
#[derive(Debug)]
pub struct Gateway {
    listeners: Listeners,
}

/// An address that the gateway serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenAddress {
    /// The bound address.
    pub address: SocketAddr,
    /// What it serves.
    pub kind: ListenerKind,
}

#[derive(Debug)]
struct GatewayState {
    registry: ProviderRegistry,
    options: GatewayOptions,
    /// The gateway shuts down and opens no more listeners.
    is_draining: AtomicBool,
    connection_cap: Arc<ConnectionCap>,
    overload: Overload,
    /// Distinguishes the ids of two runs.
    run_id: String,
    calls: AtomicU64,
}

impl Gateway {
    /// A gateway for these providers that does not listen yet.
    #[must_use]
    pub fn new(registry: ProviderRegistry, options: GatewayOptions) -> Gateway {
        let state = GatewayState::new(registry, options);
        Gateway {
            listeners: Listeners::new(Arc::new(state)),
        }
    }

    /// Starts to serve an address. Port 0 = a free port.
    pub async fn listen(
        &mut self,
        address: SocketAddr,
        kind: ListenerKind,
    ) -> io::Result<ListenAddress> {
        let listener = TcpListener::bind(address).await?;
        self.listeners.open(listener, kind, Some(address))
    }

    /// Starts to serve a socket that is open already, such as one from systemd.
    pub fn listen_on(
        &mut self,
        listener: TcpListener,
        kind: ListenerKind,
    ) -> io::Result<ListenAddress> {
        self.listeners.open(listener, kind, None)
    }

    /// The listeners, to open and close those of providers at run time.
    #[must_use]
    pub fn listeners(&self) -> Listeners {
        self.listeners.clone()
    }

    /// Shuts down gracefully: accepts nothing more, finishes running calls, drops the rest.
    pub async fn drain(self) {
        self.listeners.events().emit(Event::Draining);
        self.listeners.drain().await;
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.listeners.close_all();
    }
}

/// An id for a response without a call: no head was parsed, or the connection was rejected.
fn id_without_call() -> String {
    static STRAYS: AtomicU64 = AtomicU64::new(0);
    let number = STRAYS.fetch_add(1, Ordering::Relaxed);
    format!("{:x}-stray-{number}", std::process::id())
}

impl GatewayState {
    fn new(registry: ProviderRegistry, options: GatewayOptions) -> GatewayState {
        let run_id = format!("{:x}", registry.ledger().now().wall.0 / 1_000);
        let max = connection_cap::max_connections(options.connections_max, registry.events());
        let max_per_client = options.connections_per_address_max;
        let cap = ConnectionCap::new(max, max_per_client, options.counts_this_host);
        GatewayState {
            registry,
            options,
            is_draining: AtomicBool::new(false),
            connection_cap: Arc::new(cap),
            overload: Overload::new(connection_cap::spare_descriptors(max)),
            run_id,
            calls: AtomicU64::new(0),
        }
    }

    fn next_id(&self) -> String {
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        let mut digits = itoa::Buffer::new();
        let digits = digits.format(call);
        let mut id = String::with_capacity(self.run_id.len() + 1 + digits.len());
        id.push_str(&self.run_id);
        id.push('-');
        id.push_str(digits);
        id
    }

    fn is_draining(&self) -> bool {
        self.is_draining.load(Ordering::Acquire)
    }
}
