//! One connection of a caller: its requests one after the other, then perhaps a tunnel.
//!
//! Promises: on the order to end, the request under way
//! is finished and nothing follows. A tunnel lives in the task of its connection, so it counts as one
//! and ends with the gateway.
//!
//! Never: knows what a call is about.

use std::convert::Infallible;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tollgate::body::{BodyError, ReplyBody, Tunnel};

use super::lane::Lane;
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
    let visit = Arc::new(visit);
    let lane = Lane::new(visit.clone());
    let line = Line::new(stream, visit.seen.clone(), patience).with(lane);
    let service = service_fn(|request| {
        let visit = visit.clone();
        async move {
            let answer = answer::answer(&visit, request).await;
            Ok::<_, Infallible>(answer.map(|body| Sending { body, visit }))
        }
    });
    // How long a connection may lie idle, and a head may take, its line says.
    let mut connection = std::pin::pin!(
        http1::Builder::new()
            .header_read_timeout(None)
            .max_buf_size(HEAD_MAX)
            .max_header_size(HEAD_MAX)
            .serve_connection(TokioIo::new(line), service)
            .with_upgrades()
    );
    tokio::select! {
        // What goes wrong on a client's connection is the client's affair.
        _ended = connection.as_mut() => {}
        () = ended(&mut ending) => {
            visit.seen.is_last();
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

/// The body of an answer while it is sent. Its line is told when it is all handed over.
#[derive(Debug)]
struct Sending {
    body: ReplyBody,
    visit: Arc<Visit>,
}

impl Drop for Sending {
    fn drop(&mut self) {
        self.visit.seen.ends();
    }
}

impl Body for Sending {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
