//! A socket that is served until it is drained: the start and the end of every address for operators and
//! the decision service.
//!
//! Promises: an address that other hosts can reach is served only if its clients can prove who they are. It
//! counts as Tollgate's own, so that no call loops back to it.
//!
//! Never: reads a byte.

use std::io;
use std::net::SocketAddr;

use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tollgate::event::Event;
use tollgate_core::time::Span;

use crate::accept_loop::{self, ConnectionHandler, Listener};
use crate::daemon::Daemon;

/// Why an address cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Other hosts can reach it, and nobody has a token.
    #[error(
        "{0} is reachable from other hosts; set admin.token, or listen on 127.0.0.1 (the Redis protocol also takes the `token` of a caller, or unix:PATH)"
    )]
    NoToken(SocketAddr),
    /// The socket failed.
    #[error("the socket failed")]
    Socket(#[from] io::Error),
}

/// A socket that is served until [`ServingSocket::drain`] or drop.
#[derive(Debug)]
pub(crate) struct ServingSocket {
    shutdown: watch::Sender<bool>,
    tasks: JoinSet<()>,
}

/// The address of a socket that may be served.
pub(crate) fn checked_address(
    daemon: &Daemon,
    listener: &TcpListener,
    has_token: bool,
) -> Result<SocketAddr, ServeError> {
    let address = listener.local_addr()?;
    if !has_token && !address.ip().is_loopback() {
        return Err(ServeError::NoToken(address));
    }
    daemon.registry().add_own_address(address);
    daemon
        .registry()
        .events()
        .emit(Event::Listening { address });
    Ok(address)
}

impl ServingSocket {
    /// Starts to serve it. Must be called inside a tokio runtime.
    pub(crate) fn start<L: Listener>(
        listener: L,
        handler: impl ConnectionHandler<L>,
        grace: Span,
    ) -> ServingSocket {
        let mut socket = ServingSocket::new();
        socket.accept(listener, handler, grace);
        socket
    }

    /// One that accepts nothing yet, for those whose handler needs to know when it ends.
    pub(crate) fn new() -> ServingSocket {
        ServingSocket {
            shutdown: watch::Sender::new(false),
            tasks: JoinSet::new(),
        }
    }

    /// Becomes true when it is drained.
    pub(crate) fn shutdown_signal(&self) -> watch::Receiver<bool> {
        self.shutdown.subscribe()
    }

    /// Runs this beside the connections, until it is drained.
    pub(crate) fn run_beside(&mut self, work: impl Future<Output = ()> + Send + 'static) {
        let mut ended = self.shutdown.subscribe();
        self.tasks.spawn(async move {
            tokio::select! {
                () = work => {}
                _ = ended.wait_for(|is_over| *is_over) => {}
            }
        });
    }

    /// Starts to accept connections. Must be called inside a tokio runtime.
    pub(crate) fn accept<L: Listener>(
        &mut self,
        listener: L,
        handler: impl ConnectionHandler<L>,
        grace: Span,
    ) {
        let signal = self.shutdown.subscribe();
        self.tasks
            .spawn(accept_loop::run(listener, handler, signal, grace.into()));
    }

    /// Accepts nothing more, finishes what is running within the grace period, and drops the rest.
    pub(crate) async fn drain(mut self) {
        self.shutdown.send_replace(true);
        while self.tasks.join_next().await.is_some() {}
    }
}
