//! What fuzz targets need of the gateway; built with the feature `fuzzing` only.
//!
//! Promises: calls the code of the gateway, and adds nothing to it.
//!
//! Never: is part of a program.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use tokio::sync::watch;
use tollgate::ProviderRegistry;

use super::client_connection::ClientConnection;
use super::framing::Framing;
use super::hit_fast_path::{HitBody, HitFastPath};
use super::{Gateway, GatewayOptions, GatewayState, ListenerKind, Listeners};
use crate::accept_loop::ShutdownSignal;

/// What is known about the requests of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FramingReport {
    /// Heads, complete or begun.
    pub heads: u64,
    /// The first request whose end is ambiguous, from 1.
    pub first_ambiguous: Option<u64>,
    /// The next byte begins a request.
    pub is_between: bool,
    /// A head has begun.
    pub is_in_head: bool,
    /// A body has begun.
    pub is_in_body: bool,
}

/// Inspects the bytes of a connection.
pub fn framing<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> FramingReport {
    let mut framing = Framing::default();
    pieces.for_each(|piece| framing.feed(piece));
    FramingReport {
        heads: framing.heads(),
        first_ambiguous: framing.first_ambiguous(),
        is_between: framing.is_between(),
        is_in_head: framing.is_in_head(),
        is_in_body: framing.is_in_body(),
    }
}

/// A gateway, and one connection of its fast path.
#[derive(Debug)]
pub struct FastPathProbe {
    /// Where the gateway listens.
    pub address: SocketAddr,
    connection: Arc<ClientConnection>,
    _gateway: Gateway,
    _shutdown: watch::Sender<bool>,
}

impl FastPathProbe {
    /// Starts a gateway on loopback.
    pub async fn start(registry: ProviderRegistry) -> std::io::Result<FastPathProbe> {
        let state = Arc::new(GatewayState::new(registry, GatewayOptions::default()));
        let mut gateway = Gateway {
            listeners: Listeners::new(state.clone()),
        };
        let free = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let address = gateway.listen(free, ListenerKind::All).await?.address;
        let (sender, shutdown) = watch::channel(false);
        let (kind, peer) = (Arc::new(ListenerKind::All), IpAddr::V4(Ipv4Addr::LOCALHOST));
        let shutdown = ShutdownSignal::new(shutdown.clone(), shutdown);
        let connection = ClientConnection::new(state, kind, peer, shutdown);
        Ok(FastPathProbe {
            address,
            connection: Arc::new(connection),
            _gateway: gateway,
            _shutdown: sender,
        })
    }

    /// The response of the fast path, if it serves the request.
    #[must_use]
    pub fn respond(&self, request: &[u8]) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        match HitFastPath::new(self.connection.clone()).respond(request, &mut out)? {
            HitBody::Bytes(body) => out.extend_from_slice(&body),
            HitBody::Memfd(memfd) => {
                let file = memfd.as_fd().try_clone_to_owned().ok()?;
                let mut body = vec![0; memfd.len()];
                std::fs::File::from(file).read_exact_at(&mut body, 0).ok()?;
                out.append(&mut body);
            }
        }
        Some(out)
    }
}
