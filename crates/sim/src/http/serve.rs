//! Accepting connections and ending them.
//!
//! Promises: at most [`CONNECTIONS_MAX`] at a time; on stop no new one is accepted, answers under way
//! have [`GRACE`] to finish, and no task is left behind.
//!
//! Never: knows what a request is about.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tollgate_core::time::Span;

use crate::real_time;

use super::body::SimBody;
use super::context::ServerContext;
use super::control;
use super::fault_stream::{ConnectionControl, FaultStream, ResetPolicy};
use super::handler::handle;

/// Connections open at a time; more wait in the kernel's queue. One task and about 16 KiB each.
pub const CONNECTIONS_MAX: usize = 4_096;

/// How long answers under way may take after the order to stop. Loopback answers take milliseconds; a
/// body that drips or never ends is cut off after this.
pub const GRACE: Duration = Duration::from_millis(500);

/// Rest after a failed accept, so that a lack of descriptors is not a busy loop.
const ACCEPT_PAUSE: Span = Span::from_millis(10);

/// Largest request head: room for long query strings, well above what clients send.
const HEAD_BYTES_MAX: usize = 64 * 1024;

/// What a port is for.
#[derive(Clone, Copy, Debug)]
pub(super) enum PortRole {
    /// Clients of the provider; faults strike.
    Clients,
    /// The control plane alone; nothing strikes.
    Control,
}

/// Accepts until the provider stops, then ends every connection.
pub(super) async fn accept(listener: TcpListener, desk: Arc<ServerContext>, door: PortRole) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            () = desk.stopped() => break,
            Some(_) = connections.join_next(), if !connections.is_empty() => {}
            accepted = listener.accept(), if connections.len() < CONNECTIONS_MAX => match accepted {
                Ok((stream, _)) => {
                    connections.spawn(connection(stream, Arc::clone(&desk), door));
                }
                // Client gone already, or no descriptors left: give others the time to end.
                Err(_) => real_time::sleep(ACCEPT_PAUSE).await,
            }
        }
    }
    drop(listener);
    let drained = async { while connections.join_next().await.is_some() {} };
    if timeout(GRACE, drained).await.is_err() {
        connections.shutdown().await;
    }
}

/// Serves one connection until the client is done, it is ordered to break, or the provider stops.
async fn connection(stream: TcpStream, desk: Arc<ServerContext>, door: PortRole) {
    // Answers are small and waited for; a socket that refuses the option works all the same.
    stream.set_nodelay(true).ok();
    let orders = Arc::new(ConnectionControl::default());
    let wire = FaultStream::new(
        stream,
        Arc::clone(&orders),
        PortResetPolicy {
            context: Arc::clone(&desk),
            role: door,
        },
    );
    let service =
        service_fn(|request| serve(Arc::clone(&desk), Arc::clone(&orders), door, request));
    let mut conn = std::pin::pin!(
        http1::Builder::new()
            .auto_date_header(false)
            .max_buf_size(HEAD_BYTES_MAX)
            .serve_connection(TokioIo::new(wire), service)
    );
    tokio::select! {
        // A client that breaks off is its own business; the book has what it sent.
        _ = conn.as_mut() => return,
        () = orders.wait_for_reset() => return,
        () = desk.stopped() => conn.as_mut().graceful_shutdown(),
    }
    tokio::select! {
        _ = conn => {}
        () = orders.wait_for_reset() => {}
    }
}

/// Behind the control door there is nothing but the control plane.
async fn serve(
    desk: Arc<ServerContext>,
    orders: Arc<ConnectionControl>,
    door: PortRole,
    request: Request<Incoming>,
) -> Result<Response<SimBody>, Infallible> {
    match door {
        PortRole::Clients => handle(desk, orders, request).await,
        PortRole::Control => Ok(control::handle(&desk, request).await),
    }
}

/// Lets faults strike bytes only at the door for clients.
#[derive(Debug)]
struct PortResetPolicy {
    context: Arc<ServerContext>,
    role: PortRole,
}

impl ResetPolicy for PortResetPolicy {
    fn may_reset(&self) -> bool {
        match self.role {
            PortRole::Clients => self.context.may_reset(),
            PortRole::Control => false,
        }
    }

    fn resets(&self) -> bool {
        match self.role {
            PortRole::Clients => self.context.resets(),
            PortRole::Control => false,
        }
    }
}
