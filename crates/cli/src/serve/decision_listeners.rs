//! Listeners of the decision service that are off unless a flag opens them.
//!
//! Promises: each address is printed. A listener beyond this host needs the admin token.
//!
//! Never: decides.

use std::io::{self, Write};
use std::net::SocketAddr;

use anyhow::Context;
use tokio::net::TcpListener;
use tollgate_config::Config;
use tollgate_server::{Daemon, Grpc, GrpcOptions};

/// The listeners that are open.
#[derive(Debug, Default)]
pub(super) struct DecisionListeners {
    grpc: Option<Grpc>,
}

impl DecisionListeners {
    /// Opens the listeners that flags name.
    pub(super) async fn open(
        daemon: &Daemon,
        config: &Config,
        grpc: Option<SocketAddr>,
    ) -> anyhow::Result<DecisionListeners> {
        let mut listeners = DecisionListeners::default();
        if let Some(wanted) = grpc {
            let listener = TcpListener::bind(wanted).await;
            let listener = listener.with_context(|| {
                format!("could not listen on {wanted}; choose another with --grpc")
            })?;
            let is_local = listener.local_addr()?.ip().is_loopback();
            let options = GrpcOptions {
                token: super::operator_token(config, is_local)?,
                ..GrpcOptions::default()
            };
            listeners.grpc = Some(Grpc::serve(daemon, listener, options)?);
        }
        Ok(listeners)
    }

    /// Prints the addresses.
    pub(super) fn announce(&self, out: &mut impl Write) -> io::Result<()> {
        if let Some(grpc) = &self.grpc {
            writeln!(out, "  {:<16} http://{}", "(grpc)", grpc.address())?;
        }
        Ok(())
    }

    /// Finishes what is running, and closes.
    pub(super) async fn drain(self) {
        if let Some(grpc) = self.grpc {
            grpc.drain().await;
        }
    }
}
