//! The admin address: status, settings, orders; later decisions, metrics and the dashboard.
//!
//! Promises: without a token it serves loopback alone. At most so many connections; heads, bodies
//! and answers have their time and their size. On the order to end, requests under way are
//! finished within the grace.
//!
//! Never: carries calls to providers; the gateway does.

mod answer;
mod cache;
mod orders;
mod providers;
mod routes;
mod safety;
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
use tollgate::event::Fact;
use tollgate_config::Secret;
use tollgate_core::time::Span;

use crate::daemon::Daemon;
use safety::Safety;

/// Connections at a time: commands, probes and a few open dashboards. One is a task and some
/// 20 KiB, so this many are 5 MiB.
const CONNECTIONS_MAX: usize = 256;

/// The largest head of a request: no browser sends more to a local address.
const HEAD_MAX: usize = 32 * 1024;

/// How long a head may take to come, and how long a connection may lie idle between two.
const HEAD_WAIT: Duration = Duration::from_secs(10);

/// Rest after a failed accept, so that a lack of descriptors is not a busy loop.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

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
    ending: watch::Sender<bool>,
    door: JoinSet<()>,
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
        daemon.shop().is_ours(address);
        let ending = watch::Sender::new(false);
        let safety = Safety::new(address, options.token);
        let router = routes::router(daemon.clone(), safety, ending.subscribe());
        let mut door = JoinSet::new();
        door.spawn(accept(listener, router, ending.subscribe(), options.grace));
        Fact::Listening { address }.tell();
        Ok(Admin {
            address,
            ending,
            door,
        })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Ends in good order: accepts nothing more, finishes what is under way, drops the rest.
    pub async fn drain(mut self) {
        self.ending.send_replace(true);
        while self.door.join_next().await.is_some() {}
    }
}

/// Accepts until the end, then waits for its connections.
async fn accept(
    listener: TcpListener,
    router: axum::Router,
    mut ending: watch::Receiver<bool>,
    grace: Span,
) {
    let mut connections = JoinSet::new();
    let order = ending.clone();
    loop {
        let has_room = connections.len() < CONNECTIONS_MAX;
        tokio::select! {
            () = ended(&mut ending) => break,
            Some(_) = connections.join_next(), if !connections.is_empty() => {}
            accepted = listener.accept(), if has_room => match accepted {
                Ok((stream, _)) => {
                    connections.spawn(connection(stream, router.clone(), order.clone()));
                }
                Err(_) => pause(ACCEPT_PAUSE).await,
            }
        }
    }
    drop(listener);
    let drained = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(grace.into(), drained).await.is_err() {
        connections.shutdown().await;
    }
}

async fn connection(stream: TcpStream, router: axum::Router, mut ending: watch::Receiver<bool>) {
    stream.set_nodelay(true).ok();
    let mut connection = std::pin::pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_WAIT)
            .max_buf_size(HEAD_MAX)
            .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router))
    );
    tokio::select! {
        // What goes wrong on a client's connection is the client's affair.
        _ended = connection.as_mut() => return,
        () = ended(&mut ending) => connection.as_mut().graceful_shutdown(),
    }
    connection.await.ok();
}

/// Waits for the order to end; an address that is gone has given it.
async fn ended(ending: &mut watch::Receiver<bool>) {
    let _order = ending.wait_for(|ends| *ends).await;
}

#[expect(clippy::disallowed_methods, reason = "a rest after a failed accept")]
async fn pause(span: Duration) {
    tokio::time::sleep(span).await;
}
