//! The connection to a Redis server: one for requests and for what the server pushes (RESP3).
//!
//! Whoever needs Redis uses this: the ledger here, others later. It knows nothing of what is sent.
//!
//! Promises: it connects again by itself, at jittered intervals. TLS with `rediss://`. An address is
//! shown without user and password.
//!
//! Never: sends a request twice, or has a deadline of its own for one: who asks has.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ErrorKind, IntoConnectionInfo, ProtocolVersion,
    PushInfo, PushKind, RedisError, ServerErrorKind,
};
use tokio::runtime::Handle;

use crate::networked::link::{
    CONNECT_WITHIN, Checked, ConnectionEnd, Link, Numbered, RequestGuard,
};

/// What is done with each new connection before it is used, and with what the server pushes.
pub trait RedisSession: Send + Sync + fmt::Debug + 'static {
    /// A new connection. An error makes another one, later.
    fn prepare(
        &self,
        connection: MultiplexedConnection,
    ) -> Pin<Box<dyn Future<Output = Result<(), String>> + Send + '_>>;

    /// The server has pushed something.
    fn pushed(&self, push: PushInfo);
}

/// Where a Redis server is, and how to log in there.
#[derive(Clone)]
pub struct RedisAddress {
    client: Client,
    text: String,
}

/// A Redis server, while it can be reached and while it cannot.
#[derive(Debug)]
pub struct RedisLink {
    address: String,
    link: Link<MultiplexedConnection>,
}

/// A connection. Send requests on it.
#[derive(Clone, Debug)]
pub struct RedisConnection(Numbered<MultiplexedConnection>);

/// Why an address is not one of a Redis server.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}; write redis://HOST:6379/0, or rediss:// for TLS")]
pub struct InvalidAddress(String);

impl RedisAddress {
    /// `redis://USER:PASSWORD@HOST:PORT/DATABASE`, or `rediss://…` for TLS.
    pub fn parse(url: &str) -> Result<RedisAddress, InvalidAddress> {
        let invalid = |error: RedisError| InvalidAddress(error.to_string());
        let info = url.into_connection_info().map_err(invalid)?;
        let text = match info.addr() {
            ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
                format!("{host}:{port}/{}", info.redis_settings().db())
            }
            other => other.to_string(),
        };
        // Pushes and replies share a connection: if it breaks, both are known to have stopped.
        let settings = info.redis_settings().clone();
        let info = info.set_redis_settings(settings.set_protocol(ProtocolVersion::RESP3));
        let client = Client::open(info).map_err(invalid)?;
        Ok(RedisAddress { client, text })
    }

    /// Without user and password.
    #[must_use]
    pub fn redacted(&self) -> &str {
        &self.text
    }
}

impl fmt::Debug for RedisAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl RedisLink {
    /// Connects to this address, now and whenever the connection is lost.
    #[must_use]
    pub fn start(
        address: &RedisAddress,
        runtime: &Handle,
        seed: u64,
        session: Arc<dyn RedisSession>,
    ) -> RedisLink {
        let (client, text) = (address.client.clone(), address.text.clone());
        let link = Link::start(runtime, seed, CONNECT_WITHIN, move |end| {
            let (client, session, text) = (client.clone(), session.clone(), text.clone());
            Box::pin(async move {
                let made = connect(&client, session, end).await;
                made.map_err(|why| format!("Redis at {text}: {why}"))
            })
        });
        RedisLink {
            address: address.text.clone(),
            link,
        }
    }

    /// Where the server is, without user and password.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The connection. While there is none, the one that is made next, or why it could not be made.
    pub async fn connection(&self) -> Result<RedisConnection, Arc<str>> {
        self.link.connection().await.map(RedisConnection)
    }

    /// A request on this connection has failed. Returns why, for people; the connection is dropped
    /// if it cannot be used for other requests, or leads to a server that is no longer the master.
    pub fn failed(&self, connection: &RedisConnection, error: &RedisError) -> String {
        if !can_stay(error) {
            self.drop_connection(connection);
        }
        format!("Redis at {}: {}", self.address, advice(error))
    }

    /// A request begins on this connection: if it gets no reply, the connection is checked.
    pub(crate) fn request<'a>(
        &'a self,
        connection: &'a RedisConnection,
    ) -> RequestGuard<'a, MultiplexedConnection> {
        self.link.request(&connection.0)
    }

    /// Makes another connection instead of this one.
    pub fn drop_connection(&self, connection: &RedisConnection) {
        self.link.drop_connection(&connection.0);
    }
}

impl RedisConnection {
    /// To send requests on.
    pub fn requests(&mut self) -> &mut MultiplexedConnection {
        &mut self.0.connection
    }
}

impl Checked for MultiplexedConnection {
    async fn check(mut self) -> bool {
        redis::cmd("PING").exec_async(&mut self).await.is_ok()
    }
}

async fn connect(
    client: &Client,
    session: Arc<dyn RedisSession>,
    end: ConnectionEnd<MultiplexedConnection>,
) -> Result<MultiplexedConnection, String> {
    let on_push = session.clone();
    let pushed = move |push: PushInfo| {
        match push.kind {
            PushKind::Disconnection => end.ended(),
            _ => on_push.pushed(push),
        }
        Ok::<(), redis::aio::SendError>(())
    };
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(None)
        .set_response_timeout(None)
        .set_push_sender(pushed);
    let connecting = client.get_multiplexed_async_connection_with_config(&config);
    let connection = connecting.await.map_err(|error| advice(&error))?;
    session.prepare(connection.clone()).await?;
    Ok(connection)
}

/// Can other requests use the connection after this error?
fn can_stay(error: &RedisError) -> bool {
    match error.kind() {
        ErrorKind::Server(kind) => !matches!(
            kind,
            ServerErrorKind::ReadOnly
                | ServerErrorKind::MasterDown
                | ServerErrorKind::Moved
                | ServerErrorKind::ClusterDown
        ),
        // A code that the library does not know is a reply all the same: OOM, BUSY, MISCONF.
        ErrorKind::Extension => true,
        _ => false,
    }
}

/// What happened, and what to do.
pub(crate) fn advice(error: &RedisError) -> String {
    let remedy = match error.code() {
        Some("NOAUTH" | "WRONGPASS") => "check user and password in the store's address",
        Some("NOPERM") => {
            "allow this user the keys `tg:*`, the channels `tg:*`, EVAL, EVALSHA, INFO, TIME and PUBLISH"
        }
        Some("OOM") => "give the server more memory (maxmemory)",
        Some("READONLY") => {
            "connect to the master; Tollgate looks for it again by the same address"
        }
        Some("LOADING") => "wait until the server has loaded its data",
        Some("BUSY") => "a script of another program blocks the server; end it with SCRIPT KILL",
        Some("MISCONF") => "the server cannot write to its disk; make room there",
        Some("NOREPLICAS") => "the server has fewer replicas than min-replicas-to-write demands",
        Some(_) => "see the server's log",
        None => "check that the server runs and can be reached from this host",
    };
    format!("{error}; {remedy}")
}
