//! The accept loop of one listening socket: accepts until shutdown, then waits for its connections.
//!
//! Promises: accepts nothing after the shutdown signal. Open connections get the grace period and
//! are dropped after it. A lack of descriptors does not cause a busy loop.
//!
//! Never: knows what a connection is for. Its [`ConnectionHandler`] does.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Pause after a failed accept, so that a lack of descriptors does not cause a busy loop.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

/// Handles the connections of a listening socket.
pub(crate) trait ConnectionHandler: Send + Sync + 'static {
    /// May the loop accept one more while `active` are open? `false` leaves it in the kernel's
    /// backlog.
    fn has_capacity(&self, active: usize) -> bool;

    /// Serves a new connection. `None`: the handler rejected it.
    fn handle(
        &self,
        stream: TcpStream,
        peer: SocketAddr,
        shutdown: watch::Receiver<bool>,
    ) -> Option<impl Future<Output = ()> + Send + 'static>;

    /// An accept failed.
    fn on_accept_error(
        &self,
        listener: &TcpListener,
        error: &io::Error,
    ) -> impl Future<Output = ()> + Send {
        let _ = (listener, error);
        async {}
    }
}

/// Accepts until shutdown, then waits for the connections.
pub(crate) async fn run(
    listener: TcpListener,
    handler: impl ConnectionHandler,
    mut shutdown: watch::Receiver<bool>,
    grace: Duration,
) {
    let mut connections = JoinSet::new();
    let signal = shutdown.clone();
    loop {
        let has_capacity = handler.has_capacity(connections.len());
        tokio::select! {
            () = shutdown_requested(&mut shutdown) => break,
            Some(_) = connections.join_next(), if !connections.is_empty() => {}
            accepted = listener.accept(), if has_capacity => match accepted {
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
    drop(listener);
    let drained = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(grace, drained).await.is_err() {
        connections.shutdown().await;
    }
}

/// Waits for the shutdown signal. A dropped sender counts as the signal.
pub(crate) async fn shutdown_requested(shutdown: &mut watch::Receiver<bool>) {
    let _signal = shutdown.wait_for(|ends| *ends).await;
}

#[expect(clippy::disallowed_methods, reason = "a pause after a failed accept")]
async fn pause(span: Duration) {
    tokio::time::sleep(span).await;
}
