//! A TCP relay that injects faults on demand: delay, jitter, cut, half-close, stall, drop, refuse.
//!
//! Promises: works below any protocol; each direction has its own [`LinkFaults`]; an update takes
//! effect at once on open connections too; forwarded bytes keep their order and are never changed;
//! delay is latency, not a lower bandwidth (up to [`QUEUE_CHUNKS`] chunks are in transit at a
//! time).
//!
//! Never: inspects the bytes, outlives its handle (dropping [`FaultProxy`] ends every task).

use std::io;
use std::net::SocketAddr;

use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tollgate_core::time::Span;

use crate::real_time;

mod pump;
pub mod text;

/// Connections relayed at a time; more wait in the kernel's queue. Two sockets and two tasks each, far
/// more than any test opens.
pub const CONNECTIONS_MAX: usize = 1_024;

/// Chunks in transit per direction: 64 × 16 KiB = 1 MiB, enough for 80 Mbit/s at 100 ms of delay.
pub const QUEUE_CHUNKS: usize = 64;

/// Pause after a failed accept, so that a lack of descriptors does not cause a busy loop.
const ACCEPT_PAUSE: Span = Span::from_millis(10);

/// Kernel queue of connections not yet accepted.
const BACKLOG: u32 = 1_024;

/// The faults of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkFaults {
    /// Added to the latency of every byte.
    pub delay: Span,
    /// Up to this much more, drawn for each chunk; order is kept.
    pub jitter: Span,
    /// Both sides are reset after this many bytes of this direction, counted per connection since
    /// the last update. A reset may overtake bytes that the receiver has not read yet.
    pub cut_after: Option<u64>,
    /// Whether bytes pass.
    pub flow: Flow,
}

/// Whether bytes pass, wait or are discarded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Flow {
    /// They pass.
    #[default]
    Pass,
    /// They are held until the flow changes; senders see a full window.
    Stall,
    /// They are read and discarded, as if the network had lost them.
    Drop,
    /// The receiver sees the end of the stream at once; later bytes are discarded. The other
    /// direction stays open.
    HalfClose,
}

/// The faults of the whole relay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProxyFaults {
    /// From client to server.
    pub up: LinkFaults,
    /// From server to client.
    pub down: LinkFaults,
    /// The kernel refuses new connections; open ones continue.
    pub refuse: bool,
    /// Connections opened before the last change of this number are reset.
    generation: u64,
}

/// A running relay. Dropping it resets nothing but ends it: both sides see closed sockets.
#[derive(Debug)]
pub struct FaultProxy {
    address: SocketAddr,
    faults: watch::Sender<ProxyFaults>,
    tasks: JoinSet<()>,
}

impl FaultProxy {
    /// Listens on a free loopback port and relays to `upstream`. `seed` seeds the jitter.
    ///
    /// # Errors
    /// When the port cannot be opened.
    pub async fn start(upstream: SocketAddr, seed: u64) -> io::Result<FaultProxy> {
        FaultProxy::listen(SocketAddr::from(([127, 0, 0, 1], 0)), upstream, seed).await
    }

    /// The same on an address of the caller's choice.
    ///
    /// # Errors
    /// When the address cannot be opened.
    pub async fn listen(
        listen: SocketAddr,
        upstream: SocketAddr,
        seed: u64,
    ) -> io::Result<FaultProxy> {
        let listener = reserve(listen)?.listen(BACKLOG)?;
        let address = listener.local_addr()?;
        let (faults, watched) = watch::channel(ProxyFaults::default());
        let mut tasks = JoinSet::new();
        tasks.spawn(relay(listener, address, upstream, seed, watched));
        Ok(FaultProxy {
            address,
            faults,
            tasks,
        })
    }

    /// Where clients connect.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The current faults.
    #[must_use]
    pub fn faults(&self) -> ProxyFaults {
        *self.faults.borrow()
    }

    /// Changes the faults, for open connections and new ones.
    pub fn update(&self, change: impl FnOnce(&mut ProxyFaults)) {
        self.faults.send_modify(change);
    }

    /// Resets every open connection now.
    pub fn cut(&self) {
        self.update(ProxyFaults::cut);
    }

    /// Everything passes again; connections that were cut or half-closed stay so.
    pub fn clear(&self) {
        self.update(ProxyFaults::clear);
    }

    /// Closes the port and every connection; returns when all tasks have ended.
    pub async fn stop(mut self) {
        self.tasks.shutdown().await;
    }
}

impl ProxyFaults {
    /// Resets every connection that is open now.
    pub fn cut(&mut self) {
        self.generation += 1;
    }

    /// Removes every fault.
    pub fn clear(&mut self) {
        *self = ProxyFaults {
            generation: self.generation,
            ..ProxyFaults::default()
        };
    }
}

/// A socket that owns its port but does not listen yet: the kernel refuses connections to it.
fn reserve(address: SocketAddr) -> io::Result<TcpSocket> {
    let socket = if address.is_ipv4() {
        TcpSocket::new_v4()
    } else {
        TcpSocket::new_v6()
    }?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    Ok(socket)
}

/// Accepts unless new connections are refused; its connections end with it.
async fn relay(
    listener: TcpListener,
    address: SocketAddr,
    upstream: SocketAddr,
    seed: u64,
    mut faults: watch::Receiver<ProxyFaults>,
) {
    let mut connections = JoinSet::new();
    let mut port = Port::Open(listener);
    let mut opened: u64 = 0;
    loop {
        let refuse = faults.borrow_and_update().refuse;
        port = port.set_refusing(address, refuse);
        tokio::select! {
            changed = faults.changed() => if changed.is_err() { return },
            Some(_) = connections.join_next(), if !connections.is_empty() => {}
            client = port.accept(), if connections.len() < CONNECTIONS_MAX => {
                opened += 1;
                let dice = fastrand::Rng::with_seed(seed.wrapping_add(opened));
                connections.spawn(connection(client, upstream, dice, faults.clone()));
            }
        }
    }
}

/// The port of the relay.
enum Port {
    Open(TcpListener),
    /// Reserved while new connections are refused; without a socket if another process took the
    /// port.
    Shut(Option<TcpSocket>),
}

impl Port {
    /// Opens or shuts the port. If it cannot be opened, it stays shut until the next update tries
    /// again.
    fn set_refusing(self, address: SocketAddr, refuse: bool) -> Port {
        match (self, refuse) {
            (Port::Open(listener), true) => {
                drop(listener);
                Port::Shut(reserve(address).ok())
            }
            (Port::Shut(reserved), false) => {
                let socket = reserved.map_or_else(|| reserve(address), Ok);
                socket
                    .and_then(|socket| socket.listen(BACKLOG))
                    .map_or(Port::Shut(None), Port::Open)
            }
            (unchanged @ Port::Open(_), false) | (unchanged @ Port::Shut(_), true) => unchanged,
        }
    }

    /// The next client; waits forever while new connections are refused.
    async fn accept(&self) -> TcpStream {
        let Port::Open(listener) = self else {
            return std::future::pending().await;
        };
        loop {
            // A failed accept (client already gone, no free descriptors) concerns that client
            // alone.
            match listener.accept().await {
                Ok((stream, _)) => return stream,
                Err(_) => real_time::sleep(ACCEPT_PAUSE).await,
            }
        }
    }
}

/// Relays one connection until both directions have ended or it is cut.
async fn connection(
    mut client: TcpStream,
    upstream: SocketAddr,
    mut dice: fastrand::Rng,
    mut faults: watch::Receiver<ProxyFaults>,
) {
    let generation = faults.borrow().generation;
    let mut server = match TcpStream::connect(upstream).await {
        Ok(server) => server,
        Err(_) => return reset(&[&client]),
    };
    // Small writes must be sent at once: the proxy chooses the delays, not Nagle. A socket that
    // rejects the option still works.
    client.set_nodelay(true).ok();
    server.set_nodelay(true).ok();
    let ended = {
        let (from_client, to_client) = client.split();
        let (from_server, to_server) = server.split();
        let up = pump::pump(
            from_client,
            to_server,
            |w| w.up,
            dice.fork(),
            faults.clone(),
        );
        let down = pump::pump(
            from_server,
            to_client,
            |w| w.down,
            dice.fork(),
            faults.clone(),
        );
        let both = async { tokio::try_join!(up, down) };
        tokio::select! {
            ended = both => ended.map(|_| ()),
            _ = faults.wait_for(|faults| faults.generation != generation) => Err(pump::Cut),
        }
    };
    if ended.is_err() {
        reset(&[&client, &server]);
    }
}

/// Makes closing send RST instead of FIN.
fn reset(streams: &[&TcpStream]) {
    for stream in streams {
        // Fails only if the peer has closed already; then there is nothing to reset.
        stream.set_zero_linger().ok();
    }
}
