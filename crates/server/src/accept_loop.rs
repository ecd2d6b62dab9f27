//! A listening socket: accepts until it is told to end, then waits for its connections.
//!
//! Promises: nothing is accepted after the order; connections under way have the grace and are dropped
//! after it. A lack of descriptors is no busy loop.
//!
//! Never: knows what a connection is for. Its host does.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Rest after a failed accept, so that a lack of descriptors is not a busy loop.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

/// Who receives the connections of a socket.
pub(crate) trait ConnectionHandler: Send + Sync + 'static {
    /// May another one be accepted while so many are here? `false` leaves it to the kernel.
    fn has_capacity(&self, inside: usize) -> bool;

    /// A connection has come. `None`: it was turned away.
    fn handle(
        &self,
        stream: TcpStream,
        peer: SocketAddr,
        ending: watch::Receiver<bool>,
    ) -> Option<impl Future<Output = ()> + Send + 'static>;

    /// None could be accepted.
    fn on_accept_error(
        &self,
        listener: &TcpListener,
        error: &io::Error,
    ) -> impl Future<Output = ()> + Send {
        let _ = (listener, error);
        async {}
    }
}

/// Accepts until the order to end, then waits for its connections.
pub(crate) async fn run(
    listener: TcpListener,
    host: impl ConnectionHandler,
    mut ending: watch::Receiver<bool>,
    grace: Duration,
) {
    let mut connections = JoinSet::new();
    let order = ending.clone();
    loop {
        let has_room = host.has_capacity(connections.len());
        tokio::select! {
            () = shutdown_requested(&mut ending) => break,
            Some(_) = connections.join_next(), if !connections.is_empty() => {}
            accepted = listener.accept(), if has_room => match accepted {
                Ok((stream, peer)) => {
                    if let Some(visit) = host.handle(stream, peer, order.clone()) {
                        connections.spawn(visit);
                    }
                }
                // The client is gone already, or there is no descriptor for it.
                Err(error) => {
                    host.on_accept_error(&listener, &error).await;
                    pause(ACCEPT_PAUSE).await;
                }
            }
        }
    }
    drop(listener);
    let drained = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(grace, drained).await.is_err() {
        connections.shutdown().await;
    }
}

/// Waits for the order to end; whoever would give it and is gone has given it.
pub(crate) async fn shutdown_requested(ending: &mut watch::Receiver<bool>) {
    let _order = ending.wait_for(|ends| *ends).await;
}

#[expect(clippy::disallowed_methods, reason = "a rest after a failed accept")]
async fn pause(span: Duration) {
    tokio::time::sleep(span).await;
}
