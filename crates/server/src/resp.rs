//! The decision service over the Redis protocol: `CL.THROTTLE` and `TG.*`.
//!
//! Promises: commands of one connection take effect and are replied to in order; commands that are
//! buffered are decided together and replied to with one write; a client that waits holds up nobody
//! else. Every size, number and time has a cap. On shutdown, commands that wait get the grace period.
//!
//! Never: decides; `crate::decisions` does.

mod activity;
mod client_stream;
mod commands;
mod connection;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
pub mod parse;
mod permit_commands;
mod reply;
mod session;
mod session_commands;
mod throttle_command;
mod waiting_places;
mod words;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tollgate_config::Secret;
use tollgate_core::time::Span;

use crate::accept_loop::{ConnectionHandler, ShutdownSignal};
use crate::connection_table::ConnectionTable;
use crate::daemon::Daemon;
use crate::gateway::{ConnectionCap, max_resp_connections};
use crate::serving_socket::{ServeError, ServingSocket, checked_address};
use activity::ClientActivity;
use session::{RespContext, Session};
use waiting_places::WaitingPlaces;

/// Commands that wait at a time, of all connections: as many as permits can be open. A waiting one is
/// a task of some 2 KiB, so all are 32 MiB.
const WAITING_MAX: usize = 16_384;

/// Settings of the Redis protocol.
#[derive(Clone, Debug)]
pub struct RespOptions {
    /// The admin token. With it, clients must send it or a caller's token.
    pub token: Option<Secret>,
    /// The most connections; fewer if the process has too few descriptors. No address has more than
    /// a quarter of them, loopback excepted, and a new one replaces the oldest that is idle.
    pub connections_max: usize,
    /// How long commands may wait after the shutdown signal.
    pub grace: Span,
}

impl Default for RespOptions {
    fn default() -> RespOptions {
        RespOptions {
            token: None,
            connections_max: 4_096,
            grace: Span::from_secs(5),
        }
    }
}

/// An address that speaks the Redis protocol. It serves until [`RespServer::drain`] or drop.
#[derive(Debug)]
pub struct RespServer {
    address: Option<SocketAddr>,
    socket: ServingSocket,
    /// Removed at the end.
    _file: Option<SocketFile>,
}

/// The file of a Unix socket.
#[derive(Debug)]
struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        // It is gone already, or nobody can remove it.
        std::fs::remove_file(&self.0).ok();
    }
}

impl RespServer {
    /// Starts to serve a TCP socket. Must be called inside a tokio runtime.
    ///
    /// # Errors
    /// Other hosts can reach it, and there is neither an admin token nor a caller's.
    pub fn serve(
        daemon: &Daemon,
        listener: TcpListener,
        options: &RespOptions,
    ) -> Result<RespServer, ServeError> {
        let has_token = options.token.is_some() || daemon.decisions().has_tokens();
        let address = checked_address(daemon, &listener, has_token)?;
        let handler = RespHandler::new(daemon, options, address.ip().is_loopback());
        Ok(RespServer {
            address: Some(address),
            socket: ServingSocket::start(listener, handler, options.grace),
            _file: None,
        })
    }

    /// Starts to serve a Unix socket at this path, which only this user can reach. A socket that
    /// nobody serves any more is replaced.
    ///
    /// # Errors
    /// The path is in use, or is not a socket, or cannot be written.
    pub fn serve_unix(
        daemon: &Daemon,
        path: &Path,
        options: &RespOptions,
    ) -> Result<RespServer, ServeError> {
        let listener = bind_unix(path)?;
        let handler = RespHandler::new(daemon, options, true);
        Ok(RespServer {
            address: None,
            socket: ServingSocket::start(listener, handler, options.grace),
            _file: Some(SocketFile(path.to_owned())),
        })
    }

    /// The address it listens on; `None` for a Unix socket.
    #[must_use]
    pub fn address(&self) -> Option<SocketAddr> {
        self.address
    }

    /// Shuts down gracefully: reads no further command, and waits for those that run.
    pub async fn drain(self) {
        self.socket.drain().await;
    }
}

/// Listens on a path. Connecting to what is there tells a socket in use from one that was left over.
fn bind_unix(path: &Path) -> io::Result<UnixListener> {
    use std::os::unix::fs::{FileTypeExt, PermissionsExt};
    if let Ok(found) = std::fs::symlink_metadata(path) {
        if !found.file_type().is_socket() {
            let text = "the path exists and is not a socket; choose another";
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, text));
        }
        if std::os::unix::net::UnixStream::connect(path).is_ok() {
            let text = "another program listens on this path; choose another";
            return Err(io::Error::new(io::ErrorKind::AddrInUse, text));
        }
        std::fs::remove_file(path)?;
    }
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

/// Serves the connections of one socket.
struct RespHandler {
    context: Arc<RespContext>,
    cap: Arc<ConnectionCap>,
    open: Arc<ConnectionTable<ClientActivity>>,
    connections: AtomicU64,
}

impl RespHandler {
    fn new(daemon: &Daemon, options: &RespOptions, is_local: bool) -> RespHandler {
        let max = options.connections_max.min(max_resp_connections()).max(1);
        RespHandler {
            context: Arc::new(RespContext {
                daemon: daemon.clone(),
                is_open: is_local && options.token.is_none(),
                token: options.token.clone(),
                clients: AtomicUsize::new(0),
                waiting: WaitingPlaces::new(WAITING_MAX),
            }),
            // A replaced connection has its slot until it has ended, which is at once.
            cap: Arc::new(ConnectionCap::new(
                max.saturating_mul(2),
                (max / 4).max(1),
                false,
            )),
            open: ConnectionTable::new(max),
            connections: AtomicU64::new(0),
        }
    }

    /// A new client; `None` if there is no place for it.
    fn session(&self, peer: Option<IpAddr>) -> Option<(Session, session::Place)> {
        let local = IpAddr::from([127, 0, 0, 1]);
        let slot = self.cap.try_acquire(peer.unwrap_or(local))?;
        let open = self.open.open()?;
        let id = self.connections.fetch_add(1, Ordering::Relaxed) + 1;
        let session = Session::new(self.context.clone(), id, peer);
        Some((session, self.context.place(slot, open)))
    }
}

/// What a client above the cap reads before its connection is closed, as Redis has it: all others are
/// being served.
const TOO_MANY: &[u8] = b"-ERR max number of clients reached\r\n";

impl ConnectionHandler for RespHandler {
    /// Always: a connection above the cap is rejected at once.
    fn has_capacity(&self, _active: usize) -> bool {
        true
    }

    fn handle(
        &self,
        stream: TcpStream,
        peer: SocketAddr,
        shutdown: ShutdownSignal,
    ) -> Option<impl Future<Output = ()> + Send + 'static> {
        // Clients wait for replies; if the option cannot be set, the connection still works.
        stream.set_nodelay(true).ok();
        let Some((session, place)) = self.session(Some(peer.ip())) else {
            // A new socket has room for a line.
            stream.try_write(TOO_MANY).ok();
            return None;
        };
        Some(connection::serve(stream, session, place, shutdown))
    }
}

impl ConnectionHandler<UnixListener> for RespHandler {
    fn has_capacity(&self, _active: usize) -> bool {
        true
    }

    fn handle(
        &self,
        stream: UnixStream,
        _peer: (),
        shutdown: ShutdownSignal,
    ) -> Option<impl Future<Output = ()> + Send + 'static> {
        let Some((session, place)) = self.session(None) else {
            stream.try_write(TOO_MANY).ok();
            return None;
        };
        Some(connection::serve(stream, session, place, shutdown))
    }
}
