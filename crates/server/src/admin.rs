//! The admin address: status, settings, orders; later decisions, metrics and the dashboard.
//!
//! Promises: without a token it serves loopback alone. At most so many connections; heads, bodies
//! and answers have their time and their size. On the order to end, requests under way are
//! finished within the grace.
//!
//! Never: carries calls to providers; the gateway does.

mod response;
mod cache;
mod commands;
mod providers;
mod routes;
mod access;
mod token;
pub use token::{TokenError, TokenFile};

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tollgate::event::LogEvent;
use tollgate_config::Secret;
use tollgate_core::time::Span;

use crate::accept_loop::{self, ConnectionHandler, shutdown_requested};
use crate::daemon::Daemon;
use access::AccessPolicy;

/// Connections at a time: commands, probes and a few open dashboards. One is a task and some
/// 20 KiB, so this many are 5 MiB.
const CONNECTIONS_MAX: usize = 256;

/// The largest head of a request: no browser sends more to a local address.
const HEAD_MAX: usize = 32 * 1024;

/// How long a head may take to come, and how long a connection may lie idle between two.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);

/// How the admin address works.
#[derive(Clone, Debug)]
pub struct AdminOptions {
    /// What callers must show; `None` = loopback only.
    pub token: Option<Secret>,
    /// How long requests under way may take after the order to end.
    pub grace: Span,
}

impl Default for AdminOptions {
    fn default() -> AdminOptions {
        AdminOptions {
            token: None,
            grace: Span::from_secs(5),
        }
    }
}

/// Why the admin address cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum AdminError {
    /// Open to other hosts, and nothing to tell friend from foe.
    #[error("{0} is open to other hosts; give the admin address a token, or 127.0.0.1")]
    NoToken(SocketAddr),
    /// The socket.
    #[error("the admin socket cannot be used")]
    Socket(#[from] io::Error),
}

/// The admin address. It serves until it is drained or dropped.
#[derive(Debug)]
pub struct Admin {
    address: SocketAddr,
    shutdown: watch::Sender<bool>,
    tasks: JoinSet<()>,
}

impl Admin {
    /// Serves this socket from now on. Must be called inside a tokio runtime.
    pub fn serve(
        daemon: &Daemon,
        listener: TcpListener,
        options: AdminOptions,
    ) -> Result<Admin, AdminError> {
        let address = listener.local_addr()?;
        if options.token.is_none() && !address.ip().is_loopback() {
            return Err(AdminError::NoToken(address));
        }
        daemon.registry().add_own_address(address);
        let ending = watch::Sender::new(false);
        let safety = AccessPolicy::new(address, options.token);
        let router = routes::router(daemon.clone(), safety, ending.subscribe());
        let mut door = JoinSet::new();
        let host = AdminHandler(router);
        let grace = options.grace.into();
        door.spawn(accept_loop::run(listener, host, ending.subscribe(), grace));
        LogEvent::Listening { address }.emit();
        Ok(Admin {
            address,
            shutdown: ending,
            tasks: door,
        })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Ends in good order: accepts nothing more, finishes what is under way, drops the rest.
    pub async fn drain(mut self) {
        self.shutdown.send_replace(true);
        while self.tasks.join_next().await.is_some() {}
    }
}

/// Whoever comes to the admin address.
struct AdminHandler(axum::Router);

impl ConnectionHandler for AdminHandler {
    fn has_capacity(&self, inside: usize) -> bool {
        inside < CONNECTIONS_MAX
    }

    fn handle(
        &self,
        stream: TcpStream,
        _peer: SocketAddr,
        ending: watch::Receiver<bool>,
    ) -> Option<impl Future<Output = ()> + Send + 'static> {
        Some(serve_connection(stream, self.0.clone(), ending))
    }
}

async fn serve_connection(
    stream: TcpStream,
    router: axum::Router,
    mut ending: watch::Receiver<bool>,
) {
    stream.set_nodelay(true).ok();
    let mut connection = std::pin::pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_TIMEOUT)
            .max_buf_size(HEAD_MAX)
            .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router))
    );
    tokio::select! {
        // What goes wrong on a client's connection is the client's affair.
        _ended = connection.as_mut() => return,
        () = shutdown_requested(&mut ending) => connection.as_mut().graceful_shutdown(),
    }
    connection.await.ok();
}
