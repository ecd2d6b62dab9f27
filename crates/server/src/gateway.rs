//! The gateway: listens, accepts, serves, and ends in good order.
//!
//! Promises: at most so many connections at a time, and so many from one address; whoever finds no
//! room is told so at once. On the order to end, no new connection is accepted, calls under way are
//! finished, and those and the tunnels that are still there after the grace are dropped, which gives
//! their permits back.
//!
//! Never: knows what a call is about.

mod address;
mod answer;
mod crowd;
mod framing;
mod full;
mod head;
mod line;
mod links;
mod rates;
mod upgrade;
mod visit;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tollgate::Shop;
use tollgate::event::Fact;
use tollgate_core::time::Span;

use crowd::Crowd;
use full::Full;
use visit::Visit;

/// Rest after a failed accept, so that a lack of descriptors is not a busy loop.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

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
    /// How long calls under way may take after the order to end.
    pub grace: Span,
}

impl Default for GatewayOptions {
    fn default() -> GatewayOptions {
        GatewayOptions {
            connections_max: 4_096,
            connections_per_address_max: 1_024,
            grace: Span::from_secs(10),
        }
    }
}

/// What an address of the gateway is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Door {
    /// Every provider.
    All,
    /// This provider only: its paths stand for themselves.
    Provider(String),
}

/// A gateway. It serves until it is drained or dropped.
#[derive(Debug)]
pub struct Gateway {
    state: Arc<State>,
    doors: JoinSet<()>,
}

/// An address that is being served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listening {
    /// Where.
    pub address: SocketAddr,
    /// For what.
    pub door: Door,
}

#[derive(Debug)]
struct State {
    shop: Shop,
    options: GatewayOptions,
    ending: watch::Sender<bool>,
    crowd: Arc<Crowd>,
    full: Full,
    /// What tells the ids of two runs apart.
    run: String,
    calls: AtomicU64,
}

impl Gateway {
    /// A gateway to these providers that does not listen yet.
    #[must_use]
    pub fn new(shop: Shop, options: GatewayOptions) -> Gateway {
        let run = format!("{:x}", shop.ledger().now().wall.0 / 1_000);
        let most = crowd::affordable(options.connections_max);
        let crowd = Crowd::new(most, options.connections_per_address_max);
        Gateway {
            state: Arc::new(State {
                shop,
                options,
                ending: watch::Sender::new(false),
                crowd: Arc::new(crowd),
                full: Full::new(),
                run,
                calls: AtomicU64::new(0),
            }),
            doors: JoinSet::new(),
        }
    }

    /// Serves an address from now on. Port 0 = a free one.
    pub async fn listen(&mut self, address: SocketAddr, door: Door) -> io::Result<Listening> {
        self.listen_on(TcpListener::bind(address).await?, door)
    }

    /// Serves a socket that is open already, such as one that the service manager holds.
    pub fn listen_on(&mut self, listener: TcpListener, door: Door) -> io::Result<Listening> {
        let address = listener.local_addr()?;
        self.state.shop.is_ours(address);
        let listening = Listening { address, door };
        let accept = accept(listener, self.state.clone(), listening.door.clone());
        self.doors.spawn(accept);
        Fact::Listening { address }.tell();
        Ok(listening)
    }

    /// Ends in good order: accepts nothing more, finishes what is under way, drops the rest.
    pub async fn drain(mut self) {
        Fact::Draining.tell();
        self.state.ending.send_replace(true);
        while self.doors.join_next().await.is_some() {}
    }
}

impl State {
    fn next_id(&self) -> String {
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        let mut digits = itoa::Buffer::new();
        let digits = digits.format(call);
        let mut id = String::with_capacity(self.run.len() + 1 + digits.len());
        id.push_str(&self.run);
        id.push('-');
        id.push_str(digits);
        id
    }

    fn is_draining(&self) -> bool {
        *self.ending.borrow()
    }
}

/// Accepts until the gateway ends, then waits for its connections.
async fn accept(listener: TcpListener, state: Arc<State>, door: Door) {
    let door = Arc::new(door);
    let mut connections = JoinSet::new();
    let mut ending = state.ending.subscribe();
    loop {
        tokio::select! {
            () = ended(&mut ending) => break,
            Some(_) = connections.join_next(), if !connections.is_empty() => {}
            accepted = listener.accept() => match accepted {
                Ok((stream, peer)) => match state.crowd.enter(peer.ip()) {
                    Some(room) => {
                        let visit = Visit::new(state.clone(), door.clone(), peer.ip());
                        connections.spawn(async move {
                            visit::serve(stream, visit).await;
                            drop(room);
                        });
                    }
                    None => state.full.tell(stream),
                },
                Err(error) if full::is_lack(&error) => {
                    state.full.let_go(&listener).await;
                    pause(ACCEPT_PAUSE).await;
                }
                // The client is gone already.
                Err(_) => pause(ACCEPT_PAUSE).await,
            }
        }
    }
    drop(listener);
    let grace = Duration::from(state.options.grace);
    let drained = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(grace, drained).await.is_err() {
        connections.shutdown().await;
    }
}

/// Waits for the order to end; a gateway that is gone has given it.
async fn ended(ending: &mut watch::Receiver<bool>) {
    let _order = ending.wait_for(|ends| *ends).await;
}

#[expect(clippy::disallowed_methods, reason = "a rest after a failed accept")]
async fn pause(span: Duration) {
    tokio::time::sleep(span).await;
}
