//! One connection of a caller: its requests one after the other, then perhaps a tunnel.
//!
//! Promises: a connection lies idle for at most its time; on the order to end, the request under way
//! is finished and nothing follows. A tunnel lives in the task of its connection, so it counts as one
//! and ends with the gateway.
//!
//! Never: knows what a call is about.

use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tollgate::body::Tunnel;

use super::line::{Line, Seen};
use super::{Door, State, answer};
use crate::doorway::ended;

/// The largest head of a request, of at most 100 headers, which is the parser's own bound: room for
/// long queries and cookies, as other proxies have it.
const HEAD_MAX: usize = 64 * 1024;

/// A caller's connection, as its requests see it.
#[derive(Debug)]
pub(super) struct Visit {
    pub(super) state: Arc<State>,
    pub(super) door: Arc<Door>,
    pub(super) peer: IpAddr,
    seen: Arc<Seen>,
    tunnel: Mutex<Option<(OnUpgrade, Tunnel)>>,
    /// Its door is closed, or the gateway ends.
    ending: watch::Receiver<bool>,
}

impl Visit {
    pub(super) fn new(
        state: Arc<State>,
        door: Arc<Door>,
        peer: IpAddr,
        ending: watch::Receiver<bool>,
    ) -> Visit {
        Visit {
            state,
            door,
            peer,
            ending,
            seen: Arc::default(),
            tunnel: Mutex::new(None),
        }
    }

    /// A request begins. `false`: two servers could disagree where it ends.
    pub(super) fn begins(&self) -> bool {
        self.seen.begins()
    }

    /// After this answer the connection is a tunnel.
    pub(super) fn becomes_tunnel(&self, caller: OnUpgrade, tunnel: Tunnel) {
        self.seen.becomes_tunnel();
        *self.tunnel.lock() = Some((caller, tunnel));
    }
}

/// Serves one connection until its client is done or the gateway ends.
pub(super) async fn serve(stream: TcpStream, visit: Visit) {
    // Answers are waited for; a socket that refuses the option works all the same.
    stream.set_nodelay(true).ok();
    let mut ending = visit.ending.clone();
    let patience = visit.state.options.patience;
    let line = Line::new(stream, visit.seen.clone(), patience);
    let visit = Arc::new(visit);
    let service = service_fn(|request| {
        let visit = visit.clone();
        async move { Ok::<_, Infallible>(answer::answer(&visit, request).await) }
    });
    let mut connection = std::pin::pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(std::time::Duration::from(patience.idle))
            .max_buf_size(HEAD_MAX)
            .max_header_size(HEAD_MAX)
            .serve_connection(TokioIo::new(line), service)
            .with_upgrades()
    );
    tokio::select! {
        // What goes wrong on a client's connection is the client's affair.
        _ended = connection.as_mut() => {}
        () = ended(&mut ending) => {
            connection.as_mut().graceful_shutdown();
            connection.await.ok();
        }
    }
    let tunnel = visit.tunnel.lock().take();
    if let Some((caller, tunnel)) = tunnel
        && let Ok(caller) = caller.await
    {
        tunnel.run(TokioIo::new(caller)).await;
    }
}
