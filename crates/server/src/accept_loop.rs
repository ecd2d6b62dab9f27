//! The accept loop of one listening socket: accepts until shutdown, then waits for its connections.
//!
//! Promises: after the shutdown signal it accepts only what has connected before. Open connections
//! get the grace period; when it is over they learn it and get a moment for a last response, and
//! are dropped after that. A lack of descriptors does not cause a busy loop.
//!
//! Never: knows what a connection is for. Its [`ConnectionHandler`] does.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Pause after a failed accept, so that a lack of descriptors does not cause a busy loop.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

/// How long a last response may take when the grace period is over. It is a few hundred bytes; a
/// client that does not read them in this time gets none.
pub(crate) const FINAL_GRACE: Duration = Duration::from_secs(1);

/// The most connections that are taken from the kernel's backlog at shutdown: its usual length.
const BACKLOG_MAX: usize = 4_096;

/// The stages of a shutdown, for one connection.
#[derive(Clone, Debug)]
pub(crate) struct ShutdownSignal {
    requested: watch::Receiver<bool>,
    grace_over: watch::Receiver<bool>,
}

impl ShutdownSignal {
    /// Each becomes `true` at its stage.
    pub(crate) fn new(
        requested: watch::Receiver<bool>,
        grace_over: watch::Receiver<bool>,
    ) -> ShutdownSignal {
        ShutdownSignal {
            requested,
            grace_over,
        }
    }

    /// Waits until the listener closes or the process ends.
    pub(crate) async fn requested(&mut self) {
        signalled(&mut self.requested).await;
    }

    /// Waits until the grace period is over.
    pub(crate) async fn grace_over(&mut self) {
        signalled(&mut self.grace_over).await;
    }
}

/// A listening socket.
pub(crate) trait Listener: Send + Sync + Sized + 'static {
    /// A connection.
    type Stream: Send;
    /// Its other end.
    type Peer: Send;

    /// Waits for the next connection.
    fn next(&self) -> impl Future<Output = io::Result<(Self::Stream, Self::Peer)>> + Send;

    /// The connections that clients have opened already. Closing the socket would reset them.
    fn backlog(self, has_capacity: impl Fn(usize) -> bool) -> Vec<(Self::Stream, Self::Peer)>;
}

/// Handles the connections of a listening socket.
pub(crate) trait ConnectionHandler<L: Listener = TcpListener>:
    Send + Sync + 'static
{
    /// May the loop accept one more while `active` are open? `false` leaves it in the kernel's
    /// backlog.
    fn has_capacity(&self, active: usize) -> bool;

    /// Serves a new connection. `None`: the handler rejected it.
    fn handle(
        &self,
        stream: L::Stream,
        peer: L::Peer,
        shutdown: ShutdownSignal,
    ) -> Option<impl Future<Output = ()> + Send + 'static>;

    /// So many connections did not end in time and were dropped.
    fn on_dropped(&self, connections: usize) {
        let _ = connections;
    }

    /// An accept failed.
    fn on_accept_error(&self, listener: &L, error: &io::Error) -> impl Future<Output = ()> + Send {
        let _ = (listener, error);
        async {}
    }
}

/// Accepts until shutdown, then waits for the connections.
pub(crate) async fn run<L: Listener>(
    listener: L,
    handler: impl ConnectionHandler<L>,
    mut shutdown: watch::Receiver<bool>,
    grace: Duration,
) {
    let mut connections = JoinSet::new();
    let over = watch::Sender::new(false);
    let signal = ShutdownSignal::new(shutdown.clone(), over.subscribe());
    loop {
        let has_capacity = handler.has_capacity(connections.len());
        tokio::select! {
            () = signalled(&mut shutdown) => break,
            Some(_) = connections.join_next(), if !connections.is_empty() => {}
            accepted = listener.next(), if has_capacity => match accepted {
                Ok((stream, peer)) => {
                    if let Some(connection) = handler.handle(stream, peer, signal.clone()) {
                        connections.spawn(connection);
                    }
                }
                // The client has disconnected already, or there is no free descriptor.
                Err(error) => {
                    handler.on_accept_error(&listener, &error).await;
                    pause(ACCEPT_PAUSE).await;
                }
            }
        }
    }
    let has_capacity = |open| handler.has_capacity(open + connections.len());
    for (stream, peer) in listener.backlog(has_capacity) {
        if let Some(connection) = handler.handle(stream, peer, signal.clone()) {
            connections.spawn(connection);
        }
    }
    if ended_within(grace, &mut connections).await {
        return;
    }
    over.send_replace(true);
    if !ended_within(FINAL_GRACE, &mut connections).await {
        handler.on_dropped(connections.len());
        connections.shutdown().await;
    }
}

impl Listener for TcpListener {
    type Stream = TcpStream;
    type Peer = SocketAddr;

    async fn next(&self) -> io::Result<(TcpStream, SocketAddr)> {
        self.accept().await
    }

    fn backlog(self, has_capacity: impl Fn(usize) -> bool) -> Vec<(TcpStream, SocketAddr)> {
        let Ok(listener) = self.into_std() else {
            return Vec::new();
        };
        take_backlog(has_capacity, || {
            let (stream, peer) = listener.accept()?;
            stream.set_nonblocking(true)?;
            Ok((TcpStream::from_std(stream)?, peer))
        })
    }
}

impl Listener for UnixListener {
    type Stream = UnixStream;
    /// Such clients have no address.
    type Peer = ();

    async fn next(&self) -> io::Result<(UnixStream, ())> {
        Ok((self.accept().await?.0, ()))
    }

    fn backlog(self, has_capacity: impl Fn(usize) -> bool) -> Vec<(UnixStream, ())> {
        let Ok(listener) = self.into_std() else {
            return Vec::new();
        };
        take_backlog(has_capacity, || {
            let (stream, _) = listener.accept()?;
            stream.set_nonblocking(true)?;
            Ok((UnixStream::from_std(stream)?, ()))
        })
    }
}

/// Accepts until nothing is left. A connection that cannot be taken, because its client has reset it
/// already, does not end this: others are behind it.
fn take_backlog<T>(
    has_capacity: impl Fn(usize) -> bool,
    mut accept: impl FnMut() -> io::Result<T>,
) -> Vec<T> {
    let mut taken = Vec::new();
    for _ in 0..BACKLOG_MAX {
        if !has_capacity(taken.len()) {
            break;
        }
        match accept() {
            Ok(connection) => taken.push(connection),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(_) => {}
        }
    }
    taken
}

/// Waits for the end of all connections. `false`: some have not ended.
async fn ended_within(time: Duration, connections: &mut JoinSet<()>) -> bool {
    let ended = async { while connections.join_next().await.is_some() {} };
    tokio::time::timeout(time, ended).await.is_ok()
}

/// Waits for a signal. A dropped sender counts as one.
async fn signalled(shutdown: &mut watch::Receiver<bool>) {
    let _signal = shutdown.wait_for(|ends| *ends).await;
}

#[expect(clippy::disallowed_methods, reason = "a pause after a failed accept")]
async fn pause(span: Duration) {
    tokio::time::sleep(span).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One client that had reset its connection cut off all that were behind it in the backlog.
    #[test]
    fn a_client_that_has_left_does_not_end_the_backlog() {
        use io::ErrorKind::{ConnectionAborted, Interrupted, WouldBlock};
        let accepted = [
            Ok(1),
            Err(ConnectionAborted),
            Err(Interrupted),
            Ok(2),
            Err(WouldBlock),
        ];
        let mut accepted = accepted.into_iter().chain([Ok(3)]);
        let mut accept = || accepted.next().unwrap().map_err(io::Error::from);
        assert_eq!(take_backlog(|_| true, &mut accept), [1, 2]);
        assert_eq!(take_backlog(|taken| taken < 1, &mut accept), [3]);
        let failing = || Err::<u8, _>(ConnectionAborted.into());
        assert!(take_backlog(|_| true, failing).is_empty(), "it ends");
    }
}
