//! The address of the Redis protocol: opens it, prints it, ends it.
//!
//! Promises: off unless configured. An address that other hosts can reach needs a token.
//!
//! Never: serves; `tollgate_server::resp` does.

use std::io::{self, Write};
use std::path::Path;

use anyhow::Context;
use tokio::net::TcpListener;
use tollgate_config::Config;
use tollgate_config::config::ListenOn;
use tollgate_server::{Daemon, RespOptions, RespServer};

/// Serves the configured address, if there is one.
pub(super) async fn serve(daemon: &Daemon, config: &Config) -> anyhow::Result<Option<RespServer>> {
    let Some(listen) = &config.resp else {
        return Ok(None);
    };
    let options = RespOptions {
        token: config.admin.token.clone(),
        connections_max: usize::try_from(config.connections_max).unwrap_or(usize::MAX),
        ..RespOptions::default()
    };
    let failed =
        || format!("could not listen on {listen}; is it in use? choose another with --resp");
    let server = match listen {
        ListenOn::Address(address) => {
            let listener = TcpListener::bind(address).await.with_context(failed)?;
            RespServer::serve(daemon, listener, &options)?
        }
        ListenOn::Unix(path) => {
            RespServer::serve_unix(daemon, Path::new(path), &options).with_context(failed)?
        }
    };
    Ok(Some(server))
}

/// Prints where it listens, as clients write it.
pub(super) fn announce(
    out: &mut impl Write,
    config: &Config,
    server: Option<&RespServer>,
) -> io::Result<()> {
    match (server.and_then(RespServer::address), &config.resp) {
        (Some(address), _) => {
            let address = crate::admin_client::reachable(address);
            writeln!(out, "  {:<16} redis://{address}", "(resp)")?;
        }
        (None, Some(ListenOn::Unix(path))) => writeln!(out, "  {:<16} unix://{path}", "(resp)")?,
        (None, _) => {}
    }
    out.flush()
}

/// Ends it, when the commands that wait have their replies.
pub(super) async fn drain(server: Option<RespServer>) {
    if let Some(server) = server {
        server.drain().await;
    }
}
