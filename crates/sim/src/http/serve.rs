//! Accepting connections and ending them.
//!
//! Promises: at most [`CONNECTIONS_MAX`] at a time; on stop no new one is accepted, running
//! responses have [`GRACE`] to finish, and no task is left behind.
//!
//! Never: inspects a request.

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

/// How long running responses may take after the stop signal. Loopback responses take milliseconds;
/// a body that drips or never ends is cut off after this.
pub const GRACE: Duration = Duration::from_millis(500);

/// Pause after a failed accept, so that a lack of descriptors does not cause a busy loop.
const ACCEPT_PAUSE: Span = Span::from_millis(10);

/// Largest request head: room for long query strings, well above the heads that clients send.
const HEAD_BYTES_MAX: usize = 64 * 1024;

/// What a port is for.
#[derive(Clone, Copy, Debug)]
pub(super) enum PortRole {
    /// Clients of the provider; faults apply.
    Clients,
    /// The control plane only; no fault applies.
    Control,
}

/// Accepts until the provider stops, then ends every connection.
pub(super) async fn accept(listener: TcpListener, context: Arc<ServerContext>, role: PortRole) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            () = context.stopped() => break,
            Some(_) = connections.join_next(), if !connections.is_empty() => {}
            accepted = listener.accept(), if connections.len() < CONNECTIONS_MAX => match accepted {
                Ok((stream, _)) => {
                    connections.spawn(connection(stream, Arc::clone(&context), role));
                }
                // The client is already gone, or no descriptor is free: wait until others end.
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

/// Serves one connection until the client is done, a fault resets it, or the provider stops.
async fn connection(stream: TcpStream, context: Arc<ServerContext>, role: PortRole) {
    // Responses are small and clients wait for them; a socket that rejects the option still works.
    stream.set_nodelay(true).ok();
    let conn_control = Arc::new(ConnectionControl::default());
    let wire = FaultStream::new(
        stream,
        Arc::clone(&conn_control),
        PortResetPolicy {
            context: Arc::clone(&context),
            role,
        },
    );
    let service = service_fn(|request| {
        serve(
            Arc::clone(&context),
            Arc::clone(&conn_control),
            role,
            request,
        )
    });
    let mut conn = std::pin::pin!(
        http1::Builder::new()
            .auto_date_header(false)
            .max_buf_size(HEAD_BYTES_MAX)
            .serve_connection(TokioIo::new(wire), service)
    );
    tokio::select! {
        // A client that disconnects is no error here; the state has recorded its requests.
        _ = conn.as_mut() => return,
        () = conn_control.wait_for_reset() => return,
        () = context.stopped() => conn.as_mut().graceful_shutdown(),
    }
    tokio::select! {
        _ = conn => {}
        () = conn_control.wait_for_reset() => {}
    }
}

/// The control port serves only the control plane.
async fn serve(
    context: Arc<ServerContext>,
    conn_control: Arc<ConnectionControl>,
    role: PortRole,
    request: Request<Incoming>,
) -> Result<Response<SimBody>, Infallible> {
    match role {
        PortRole::Clients => handle(context, conn_control, request).await,
        PortRole::Control => Ok(control::handle(&context, request).await),
    }
}

/// Applies byte-level faults only on the port for clients.
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
