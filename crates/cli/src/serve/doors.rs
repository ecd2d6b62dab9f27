//! The doors of the decision service that are off unless a flag or the configuration opens them.
//!
//! Promises: each address is printed. A door beyond this host needs a token.
//!
//! Never: decides.

use std::io::{self, Write};
use std::net::SocketAddr;

use anyhow::Context;
use tokio::net::TcpListener;
use tollgate_config::Config;
use tollgate_server::{Daemon, Grpc, GrpcOptions, RespServer};

use super::resp;

/// The doors that are open.
#[derive(Debug, Default)]
pub(super) struct Doors {
    resp: Option<RespServer>,
    grpc: Option<Grpc>,
}

impl Doors {
    /// Opens the doors that are wanted.
    pub(super) async fn open(
        daemon: &Daemon,
        config: &Config,
        grpc: Option<SocketAddr>,
    ) -> anyhow::Result<Doors> {
        let grpc = match grpc {
            None => None,
            Some(wanted) => Some(open_grpc(daemon, config, wanted).await?),
        };
        let resp = resp::serve(daemon, config).await?;
        Ok(Doors { resp, grpc })
    }

    /// Prints the addresses.
    pub(super) fn announce(&self, out: &mut impl Write, config: &Config) -> io::Result<()> {
        if let Some(grpc) = &self.grpc {
            let address = crate::admin_client::reachable(grpc.address());
            writeln!(out, "  {:<16} http://{address}", "(grpc)")?;
        }
        resp::announce(out, config, self.resp.as_ref())
    }

    /// Finishes what is running, and closes.
    pub(super) async fn drain(self) {
        let grpc = async {
            if let Some(grpc) = self.grpc {
                grpc.drain().await;
            }
        };
        tokio::join!(grpc, resp::drain(self.resp));
    }
}

async fn open_grpc(daemon: &Daemon, config: &Config, wanted: SocketAddr) -> anyhow::Result<Grpc> {
    let listener = TcpListener::bind(wanted).await;
    let listener = listener
        .with_context(|| format!("could not listen on {wanted}; choose another with --grpc"))?;
    let is_local = listener.local_addr()?.ip().is_loopback();
    let options = GrpcOptions {
        token: super::operator_token(config, is_local)?,
        ..GrpcOptions::default()
    };
    Ok(Grpc::serve(daemon, listener, options)?)
}
