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
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use tokio::net::TcpStream;
use tollgate::body::Tunnel;

use super::line::{Line, Seen};
use super::{Door, State, answer, ended};

/// The largest head of a request, of at most 100 headers, which is the parser's own bound: room for long queries and cookies, as other proxies have it.
const HEAD_MAX: usize = 64 * 1024;

/// How long a connection may lie idle between two requests. Longer than the pools of common clients
/// keep theirs (90 s), so that it is the client that closes: a request that meets a closing
/// connection is an error that somebody has to repeat.
const IDLE_WAIT: Duration = Duration::from_secs(100);

/// A caller's connection, as its requests see it.
#[derive(Debug)]
pub(super) struct Visit {
    pub(super) state: Arc<State>,
    pub(super) door: Arc<Door>,
    pub(super) peer: IpAddr,
    seen: Arc<Seen>,
    requests: AtomicU64,
    tunnel: Mutex<Option<(OnUpgrade, Tunnel)>>,
}

impl Visit {
    pub(super) fn new(state: Arc<State>, door: Arc<Door>, peer: IpAddr) -> Visit {
        Visit {
            state,
            door,
            peer,
            seen: Arc::default(),
            requests: AtomicU64::new(0),
            tunnel: Mutex::new(None),
        }
    }

    /// A request begins. `false`: two servers could disagree where it ends.
    pub(super) fn begins(&self) -> bool {
        let number = self.requests.fetch_add(1, Ordering::Relaxed) + 1;
        self.seen.is_clear(number)
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
    let mut ending = visit.state.ending.subscribe();
    let line = Line::new(stream, visit.seen.clone());
    let visit = Arc::new(visit);
    let service = service_fn(|request| {
        let visit = visit.clone();
        async move { Ok::<_, Infallible>(answer::answer(&visit, request).await) }
    });
    let mut connection = std::pin::pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(IDLE_WAIT)
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
