//! The gateway: listens, accepts, serves, and ends in good order.
//!
//! Promises: at most so many connections at a time, and so many from one address; whoever finds no
//! room is told so at once. On the order to end, no new connection is accepted, calls under way are
//! finished, and those and the tunnels that are still there after the grace are dropped, which gives
//! their permits back.
//!
//! Never: knows what a call is about.

mod address;
mod handler;
mod sendfile;
mod connection_cap;
mod listeners;
pub(crate) use listeners::ListenError;
pub use listeners::Listeners;
mod framing;
mod overload;
mod head;
mod hit_fast_path;
mod watched_stream;
pub use watched_stream::ClientTimeouts;
mod links;
mod rate_headers;
mod parse_error;
mod upgrade;
mod client_connection;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::net::TcpListener;
use tollgate::ProviderRegistry;
use tollgate::event::LogEvent;
use tollgate_core::time::Span;

use connection_cap::ConnectionCap;
use overload::Overload;

/// How a gateway works.
#[derive(Clone, Debug)]
pub struct GatewayOptions {
    /// Connections of callers at a time; more are refused. One is a task and some 20 KiB, so this
    /// many are 80 MiB. Fewer where the descriptors of the process do not carry so many.
    pub connections_max: usize,
    /// Connections from one address, or one /64 of IPv6, at a time. A quarter of all, so that no
    /// single host keeps the others out, and enough for a proxy in front. This host itself is not
    /// counted by address.
    pub connections_per_address_max: usize,
    /// Count this host by its address too. Its programs share one address, so they are not unless no
    /// proxy on this host speaks for others.
    pub counts_this_host: bool,
    /// How long calls under way may take after the order to end.
    pub grace: Span,
    /// How long callers may take.
    pub timeouts: ClientTimeouts,
}

impl Default for GatewayOptions {
    fn default() -> GatewayOptions {
        GatewayOptions {
            connections_max: 4_096,
            connections_per_address_max: 1_024,
            counts_this_host: false,
            grace: Span::from_secs(10),
            timeouts: ClientTimeouts::default(),
        }
    }
}

/// What an address of the gateway is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListenerKind {
    /// Every provider.
    All,
    /// This provider only: its paths stand for themselves.
    Provider(String),
}

/// A gateway. It serves until it is drained or dropped.
#[derive(Debug)]
pub struct Gateway {
    listeners: Listeners,
}

/// An address that is being served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenAddress {
    /// Where.
    pub address: SocketAddr,
    /// For what.
    pub kind: ListenerKind,
}

#[derive(Debug)]
struct GatewayState {
    registry: ProviderRegistry,
    options: GatewayOptions,
    /// It ends: no door is opened any more.
    is_draining: AtomicBool,
    connection_cap: Arc<ConnectionCap>,
    overload: Overload,
    /// What tells the ids of two runs apart.
    run_id: String,
    calls: AtomicU64,
}

impl Gateway {
    /// A gateway to these providers that does not listen yet.
    #[must_use]
    pub fn new(shop: ProviderRegistry, options: GatewayOptions) -> Gateway {
        let state = GatewayState::new(shop, options);
        Gateway {
            listeners: Listeners::new(Arc::new(state)),
        }
    }

    /// Serves an address from now on. Port 0 = a free one.
    pub async fn listen(
        &mut self,
        address: SocketAddr,
        door: ListenerKind,
    ) -> io::Result<ListenAddress> {
        let listener = TcpListener::bind(address).await?;
        self.listeners.open(listener, door, Some(address))
    }

    /// Serves a socket that is open already, such as one that the service manager holds.
    pub fn listen_on(
        &mut self,
        listener: TcpListener,
        door: ListenerKind,
    ) -> io::Result<ListenAddress> {
        self.listeners.open(listener, door, None)
    }

    /// Its doors, for whoever opens and closes those of providers while it serves.
    #[must_use]
    pub fn listeners(&self) -> Listeners {
        self.listeners.clone()
    }

    /// Ends in good order: accepts nothing more, finishes what is under way, drops the rest.
    pub async fn drain(self) {
        LogEvent::Draining.emit();
        self.listeners.drain().await;
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.listeners.close_all();
    }
}

/// An id for an answer to what never became a call: no head was read, or there was no room for it.
fn id_without_call() -> String {
    static STRAYS: AtomicU64 = AtomicU64::new(0);
    let number = STRAYS.fetch_add(1, Ordering::Relaxed);
    format!("{:x}-stray-{number}", std::process::id())
}

impl GatewayState {
    fn new(shop: ProviderRegistry, options: GatewayOptions) -> GatewayState {
        let run = format!("{:x}", shop.ledger().now().wall.0 / 1_000);
        let most = connection_cap::max_connections(options.connections_max);
        let most_of_one = options.connections_per_address_max;
        let crowd = ConnectionCap::new(most, most_of_one, options.counts_this_host);
        GatewayState {
            registry: shop,
            options,
            is_draining: AtomicBool::new(false),
            connection_cap: Arc::new(crowd),
            overload: Overload::new(),
            run_id: run,
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
