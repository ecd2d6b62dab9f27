//! Listeners of the decision service that are off unless configured: gRPC and the Redis protocol.
//!
//! Promises: each address is printed. A listener that other hosts can reach needs a token: the
//! configured one, or the generated one of the admin address.
//!
//! Never: decides.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::Path;

use anyhow::Context;
use tokio::net::TcpListener;
use tollgate_config::config::ListenOn;
use tollgate_config::{Config, Secret};
use tollgate_server::{Daemon, Grpc, GrpcOptions, RespOptions, RespServer};

use super::operator_token;

/// The listeners that are open.
#[derive(Debug, Default)]
pub(super) struct DecisionListeners {
    grpc: Option<Grpc>,
    resp: Option<RespServer>,
    /// Of the Redis protocol, as clients write it.
    resp_url: Option<String>,
}

impl DecisionListeners {
    /// Opens the listeners that flags and settings name.
    pub(super) async fn open(
        daemon: &Daemon,
        config: &Config,
        grpc: Option<SocketAddr>,
        operator: Option<&Secret>,
    ) -> anyhow::Result<DecisionListeners> {
        let mut listeners = DecisionListeners::default();
        if let Some(wanted) = grpc {
            let (listener, is_local) = bind(wanted, "--grpc").await?;
            let options = GrpcOptions {
                token: token(config, is_local, operator)?,
                ..GrpcOptions::default()
            };
            listeners.grpc = Some(Grpc::serve(daemon, listener, options)?);
        }
        if let Some(wanted) = &config.resp {
            let (server, url) = open_resp(daemon, config, wanted, operator).await?;
            (listeners.resp, listeners.resp_url) = (Some(server), Some(url));
        }
        Ok(listeners)
    }

    /// Prints the addresses.
    pub(super) fn announce(&self, out: &mut impl Write) -> io::Result<()> {
        if let Some(grpc) = &self.grpc {
            let url = shown("http", grpc.address());
            writeln!(out, "  {:<16} {url}", "(grpc)")?;
        }
        if let Some(url) = &self.resp_url {
            writeln!(out, "  {:<16} {url}", "(resp)")?;
        }
        Ok(())
    }

    /// Finishes what is running, and closes.
    pub(super) async fn drain(self) {
        let grpc = async {
            if let Some(grpc) = self.grpc {
                grpc.drain().await;
            }
        };
        let resp = async {
            if let Some(resp) = self.resp {
                resp.drain().await;
            }
        };
        tokio::join!(grpc, resp);
    }
}

async fn open_resp(
    daemon: &Daemon,
    config: &Config,
    wanted: &ListenOn,
    operator: Option<&Secret>,
) -> anyhow::Result<(RespServer, String)> {
    let options = |is_local| {
        anyhow::Ok(RespOptions {
            token: token(config, is_local, operator)?,
            connections_max: usize::try_from(config.connections_max).unwrap_or(usize::MAX),
            ..RespOptions::default()
        })
    };
    match wanted {
        ListenOn::Address(address) => {
            let (listener, is_local) = bind(*address, "--resp").await?;
            let address = listener.local_addr()?;
            let server = RespServer::serve(daemon, listener, &options(is_local)?)?;
            Ok((server, shown("redis", address)))
        }
        ListenOn::Unix(path) => {
            let served = RespServer::serve_unix(daemon, Path::new(path), &options(true)?);
            Ok((
                served.with_context(|| remedy(wanted, "--resp"))?,
                format!("unix://{path}"),
            ))
        }
    }
}

/// The token of a listener: that of the admin address, which may be generated, also where only this host
/// can reach the listener. Otherwise this host would be the operator on one address and nobody on another.
fn token(
    config: &Config,
    is_local: bool,
    operator: Option<&Secret>,
) -> anyhow::Result<Option<Secret>> {
    match operator {
        Some(token) => Ok(Some(token.clone())),
        None => operator_token(config, is_local),
    }
}

/// An address as clients write it. 0.0.0.0 cannot be called, and says that others can call.
fn shown(scheme: &str, address: SocketAddr) -> String {
    let reachable = crate::admin_client::reachable(address);
    match address.ip().is_unspecified() {
        true => format!("{address}, every address of this host: {scheme}://{reachable}"),
        false => format!("{scheme}://{address}"),
    }
}

/// A socket, and whether only this host can reach it.
async fn bind(wanted: SocketAddr, flag: &str) -> anyhow::Result<(TcpListener, bool)> {
    let listener = TcpListener::bind(wanted).await;
    let listener = listener.with_context(|| remedy(wanted, flag))?;
    let is_local = listener.local_addr()?.ip().is_loopback();
    Ok((listener, is_local))
}

fn remedy(wanted: impl std::fmt::Display, flag: &str) -> String {
    format!("could not listen on {wanted}; is it in use? choose another with {flag}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `redis://127.0.0.1` was printed for a listener that every host could reach.
    #[test]
    fn an_address_that_others_can_reach_says_so() {
        let shown = |text: &str| shown("redis", text.parse().expect("an address"));
        let all = shown("0.0.0.0:6380");
        assert!(all.starts_with("0.0.0.0:6380, every address"), "{all}");
        assert!(all.ends_with(" redis://127.0.0.1:6380"), "{all}");
        assert_eq!(shown("127.0.0.1:6380"), "redis://127.0.0.1:6380");
    }
}
