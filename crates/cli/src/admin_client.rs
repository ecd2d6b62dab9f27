//! A minimal HTTP/1 client for the admin address of a running daemon.
//!
//! Promises: reports an address without a daemon, with a remedy; prints a rejection in the daemon's
//! own words. Every request has a timeout and every response a size limit.
//!
//! Never: sends a token to any other address than the configured one, or shows it.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1::handshake;
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;
use tollgate_config::{Config, Secret, disk, parse_address};
use tollgate_server::admin::TokenFile;

use crate::options::Options;

/// Longer than the daemon takes for any response.
const TIMEOUT: Duration = Duration::from_secs(40);

/// The largest response: a thousand providers with a kilobyte each.
const RESPONSE_MAX: usize = 16 << 20;

/// A daemon's admin address.
#[derive(Debug)]
pub(crate) struct AdminClient {
    address: SocketAddr,
    token: Option<Secret>,
}

/// No daemon listens there, or it ended before it responded.
#[derive(Debug, thiserror::Error)]
#[error(
    "no daemon responds on {0}; start one with `tollgate serve`, or give its address with --admin"
)]
pub(crate) struct NoDaemon(SocketAddr);

/// Another program listens there.
#[derive(Debug, thiserror::Error)]
#[error("{0} is not an admin address of tollgate; give the daemon's address with --admin")]
struct NotTollgate(SocketAddr);

/// The daemon rejected the request.
#[derive(Debug)]
pub(crate) struct Rejected {
    pub(crate) message: String,
    pub(crate) hint: String,
    pub(crate) problems: Vec<String>,
}

impl AdminClient {
    /// The daemon that flags, variables and tollgate.yaml name. It is found although the
    /// configuration has errors: the daemon may run with an older version.
    pub(crate) fn find(options: &Options) -> anyhow::Result<AdminClient> {
        let (sources, environment) = (options.sources(), disk::environment());
        let config = match Config::load(&sources, &environment) {
            Ok(loaded) => loaded.config,
            Err(_) => {
                check_admin_address(options)?;
                Config::without_providers(&sources, &environment)
            }
        };
        let admin = config.admin;
        let address = reachable(admin.listen);
        // The stored token belongs to this machine's daemon, not to any address that a flag names.
        let is_ours = options.admin.is_none() || address.ip().is_loopback();
        let token = match admin.token {
            Some(token) => Some(token),
            None if is_ours => TokenFile::read(Path::new(&config.state_dir))?,
            None => None,
        };
        Ok(AdminClient { address, token })
    }

    /// One request and its response. `Ok(Err)`: the daemon rejected it.
    pub(crate) fn request(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> anyhow::Result<Result<Value, Rejected>> {
        let (status, value) = self.exchange_within(method, path, body, TIMEOUT)?;
        Ok(into_result(status, value))
    }

    /// The same with its status, for requests that wait.
    pub(crate) fn exchange_within(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
        patience: Duration,
    ) -> anyhow::Result<(StatusCode, Value)> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("the runtime could not start")?;
        let asked =
            async { tokio::time::timeout(patience, self.exchange(method, path, body)).await };
        match runtime.block_on(asked) {
            Ok(response) => response,
            Err(_) => bail!(
                "the daemon on {} does not respond within {} s; is it overloaded?",
                self.address,
                patience.as_secs()
            ),
        }
    }

    async fn exchange(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> anyhow::Result<(StatusCode, Value)> {
        let stream = TcpStream::connect(self.address)
            .await
            .map_err(|_| NoDaemon(self.address))?;
        let only_reads = method == Method::GET;
        let (mut sender, connection) = handshake(TokioIo::new(stream)).await?;
        let carried = tokio::spawn(connection);
        let text = body.map(ToString::to_string).unwrap_or_default();
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", self.address.to_string())
            .header("content-type", "application/json")
            .header("x-tollgate-admin", "1");
        if let Some(token) = &self.token {
            request = request.header("authorization", format!("Bearer {}", token.expose()));
        }
        let request = request.body(Full::new(Bytes::from(text)));
        let request = request.context("the token or the name cannot be sent over HTTP")?;
        let response = sender.send_request(request).await;
        let response = response.map_err(|error| {
            // A response that is not HTTP comes from another program.
            if error.is_parse() {
                return anyhow::Error::new(NotTollgate(self.address));
            }
            // A daemon that was killed a moment ago still accepts connections, and resets them.
            if only_reads {
                return anyhow::Error::new(NoDaemon(self.address));
            }
            anyhow::Error::new(error).context(format!("{} closed the connection", self.address))
        })?;
        let status = response.status();
        let whole = Limited::new(response.into_body(), RESPONSE_MAX)
            .collect()
            .await;
        carried.abort();
        let Ok(whole) = whole else {
            bail!(
                "the response of {} was cut off or is larger than 16 MiB",
                self.address
            );
        };
        if status == StatusCode::NO_CONTENT {
            return Ok((status, Value::Null));
        }
        let value: Value =
            serde_json::from_slice(&whole.to_bytes()).map_err(|_| NotTollgate(self.address))?;
        Ok((status, value))
    }
}

/// Rejects an invalid address instead of silently using the default.
fn check_admin_address(options: &Options) -> anyhow::Result<()> {
    let by_variable = || std::env::var("TOLLGATE_ADMIN").ok();
    let address = options.admin.clone().or_else(by_variable);
    let address = address.filter(|address| !address.is_empty());
    if let Some(address) = address {
        let parsed = parse_address(address.trim());
        parsed.context("the admin address is invalid; write IP:PORT, such as 127.0.0.1:4291")?;
    }
    Ok(())
}

/// A daemon that listens on all addresses is reached by loopback.
pub(crate) fn reachable(address: SocketAddr) -> SocketAddr {
    let mut address = address;
    if address.ip().is_unspecified() {
        address.set_ip(match address {
            SocketAddr::V4(_) => std::net::Ipv4Addr::LOCALHOST.into(),
            SocketAddr::V6(_) => std::net::Ipv6Addr::LOCALHOST.into(),
        });
    }
    address
}

fn into_result(status: StatusCode, value: Value) -> Result<Value, Rejected> {
    // The result of a reload with rejected parts is not an error: it is printed whole.
    if status.is_success() || value.get("error").is_none() {
        return Ok(value);
    }
    let text = |name: &str| value[name].as_str().unwrap_or_default().to_owned();
    let problems = value["problems"].as_array().cloned().unwrap_or_default();
    let problems = problems.iter().filter_map(Value::as_str);
    Err(Rejected {
        message: text("message"),
        hint: text("hint"),
        problems: problems.map(str::to_owned).collect(),
    })
}

impl std::fmt::Display for Rejected {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.problems.as_slice() {
            [] => write!(f, "{}; {}", self.message, self.hint),
            problems => f.write_str(&problems.join("\n")),
        }
    }
}

impl std::error::Error for Rejected {}

/// A provider's name as a path segment.
pub(crate) fn segment(name: &str) -> anyhow::Result<String> {
    if name.is_empty() {
        bail!("the name of the provider is empty");
    }
    Ok(percent_encode(name))
}

/// Everything but letters, digits, `-` and `_` as `%XX`; dots too, because `..` leads to the
/// parent.
pub(crate) fn percent_encode(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    text.bytes()
        .map(|byte| match byte {
            byte if plain(byte) => char::from(byte).to_string(),
            byte => format!("%{byte:02X}"),
        })
        .collect()
}
