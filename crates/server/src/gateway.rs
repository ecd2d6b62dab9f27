//! The gateway: listens, accepts, serves, and ends in good order.
//!
//! Promises: at most so many connections at a time; a head must come within its time; on the order
//! to end, no new connection is accepted, calls under way are finished, and those that are still
//! there after the grace are dropped, which gives their permits back.
//!
//! Never: knows what a call is about.

mod address;
mod answer;
mod head;
mod links;

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tollgate::Shop;
use tollgate::event::Fact;
use tollgate_core::time::Span;

/// The largest head of a request: room for long queries and cookies, as other proxies have it.
const HEAD_MAX: usize = 64 * 1024;

/// How long a head may take to come, and how long a connection may lie idle between two: long
/// enough for clients that keep connections, short enough for those that dribble.
const HEAD_WAIT: Duration = Duration::from_secs(30);

/// Rest after a failed accept, so that a lack of descriptors is not a busy loop.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

/// How a gateway works.
#[derive(Clone, Debug)]
pub struct GatewayOptions {
    /// Connections of callers at a time; more wait in the kernel's queue. One is a task and some
    /// 20 KiB, so this many are 80 MiB.
    pub connections_max: usize,
    /// How long calls under way may take after the order to end.
    pub grace: Span,
}

impl Default for GatewayOptions {
    fn default() -> GatewayOptions {
        GatewayOptions {
            connections_max: 4_096,
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
    /// What tells the ids of two runs apart.
    run: u64,
    calls: AtomicU64,
}

impl Gateway {
    /// A gateway to these providers that does not listen yet.
    #[must_use]
    pub fn new(shop: Shop, options: GatewayOptions) -> Gateway {
        let run = shop.ledger().now().wall.0 / 1_000;
        Gateway {
            state: Arc::new(State {
                shop,
                options,
                ending: watch::Sender::new(false),
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
        format!("{:x}-{call:x}", self.run)
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
        let has_room = connections.len() < state.options.connections_max;
        tokio::select! {
            () = ended(&mut ending) => break,
            Some(_) = connections.join_next(), if !connections.is_empty() => {}
            accepted = listener.accept(), if has_room => match accepted {
                Ok((stream, peer)) => {
                    connections.spawn(connection(stream, peer, state.clone(), door.clone()));
                }
                // The client is gone already, or there are no descriptors: let others end.
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

/// Serves one connection until its client is done or the gateway ends.
async fn connection(stream: TcpStream, peer: SocketAddr, state: Arc<State>, door: Arc<Door>) {
    // Answers are waited for; a socket that refuses the option works all the same.
    stream.set_nodelay(true).ok();
    let mut ending = state.ending.subscribe();
    let service = service_fn(|request| {
        let (state, door) = (state.clone(), door.clone());
        async move {
            let answer = answer::answer(&state, &door, peer.ip(), request).await;
            Ok::<_, Infallible>(answer)
        }
    });
    let mut connection = std::pin::pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_WAIT)
            .max_buf_size(HEAD_MAX)
            .serve_connection(TokioIo::new(stream), service)
    );
    tokio::select! {
        // What goes wrong on a client's connection is the client's affair.
        _ended = connection.as_mut() => return,
        () = ended(&mut ending) => connection.as_mut().graceful_shutdown(),
    }
    connection.await.ok();
}

/// Waits for the order to end; a gateway that is gone has given it.
async fn ended(ending: &mut watch::Receiver<bool>) {
    let _order = ending.wait_for(|ends| *ends).await;
}

#[expect(clippy::disallowed_methods, reason = "a rest after a failed accept")]
async fn pause(span: Duration) {
    tokio::time::sleep(span).await;
}
