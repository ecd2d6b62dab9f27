//! Connections to a Postgres server, prepared for the ledger.
//!
//! Promises: each one has the schema that this program knows; one of a newer program is rejected.
//! Commits are synchronous. A statement that takes longer than the deadline is cancelled by the
//! server. Several hosts are tried in turn, each with a deadline of its own, the one that was connected
//! last first. An address is shown without user and password.
//!
//! Never: knows what is sent on it.

use std::fmt;
use std::future::poll_fn;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio_postgres::config::{Host, SslMode};
use tokio_postgres::error::SqlState;
use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres::{
    AsyncMessage, Client, Config, Connection, Error, NoTls, Notification, Socket, Statement,
};
use tollgate_core::time::Span;

use super::tls::Tls;
use crate::networked::link::{
    CONNECT_WITHIN, Checked, ConnectionEnd, Link, Numbered, RequestGuard, no_connection,
};

/// Where Postgres listens unless the address says so.
const DEFAULT_PORT: u16 = 5432;

/// The version of the schema that this program knows.
const SCHEMA: i32 = 1;

/// What a server has not acknowledged by then is lost, and so is the connection.
const ACKNOWLEDGED_WITHIN: Duration = Duration::from_secs(2);

/// What leads from the schema before to each version.
const MIGRATIONS: [&str; 1] = [include_str!("schema-1.sql")];

/// Called with what the server notifies.
pub(super) type OnNotification = Arc<dyn Fn(&Notification) + Send + Sync>;

/// Where a Postgres server is, and how to log in there.
#[derive(Clone)]
pub struct PostgresAddress {
    config: Config,
    /// One for each host, with its name.
    hosts: Vec<(String, Config)>,
    text: String,
}

/// Why an address is not one of a Postgres server.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}; write postgres://USER@HOST:5432/DATABASE, with ?sslmode=require for TLS")]
pub struct InvalidPostgresAddress(String);

/// One connection.
#[derive(Clone)]
pub(super) struct PostgresConnection {
    pub(super) client: Arc<Client>,
    pub(super) exchange: Statement,
    /// The server's identity: a restored copy has another one.
    pub(super) system: u64,
}

/// A Postgres server, while it can be reached and while it cannot.
#[derive(Debug)]
pub(super) struct PostgresLink {
    address: String,
    link: Link<PostgresConnection>,
}

impl PostgresAddress {
    /// `postgres://USER:PASSWORD@HOST:PORT/DATABASE`. Several hosts are tried in turn, as in libpq.
    pub fn parse(url: &str) -> Result<PostgresAddress, InvalidPostgresAddress> {
        let invalid = |error: Error| InvalidPostgresAddress(error.to_string());
        let mut config = Config::from_str(url).map_err(invalid)?;
        let hosts: Vec<String> = config.get_hosts().iter().map(host_text).collect();
        let ports: Vec<String> = config.get_ports().iter().map(u16::to_string).collect();
        let database = config.get_dbname().unwrap_or_default();
        let text = match ports.is_empty() {
            true => format!("{}/{database}", hosts.join(",")),
            false => format!("{}:{}/{database}", hosts.join(","), ports.join(",")),
        };
        if config.get_application_name().is_none() {
            config.application_name("tollgate");
        }
        if config.get_tcp_user_timeout().is_none() {
            config.tcp_user_timeout(ACKNOWLEDGED_WITHIN);
        }
        let hosts = each_host(&config);
        Ok(PostgresAddress {
            config,
            hosts,
            text,
        })
    }

    /// Without user and password.
    #[must_use]
    pub fn redacted(&self) -> &str {
        &self.text
    }

    pub(super) fn config(&self) -> &Config {
        &self.config
    }
}

/// The same for one host only. An address without hosts, or with numbers in place of names, stays as
/// it is.
fn each_host(config: &Config) -> Vec<(String, Config)> {
    let (hosts, ports) = (config.get_hosts(), config.get_ports());
    if hosts.len() < 2 || !config.get_hostaddrs().is_empty() {
        let name = hosts.first().map_or_else(String::new, host_text);
        return vec![(name, config.clone())];
    }
    let one = |(index, host): (usize, &Host)| {
        let port = ports.get(index).or(ports.first()).copied();
        let port = port.unwrap_or(DEFAULT_PORT);
        (
            format!("{}:{port}", host_text(host)),
            for_host(config, host, port),
        )
    };
    hosts.iter().enumerate().map(one).collect()
}

fn for_host(config: &Config, host: &Host, port: u16) -> Config {
    let mut one = Config::new();
    match host {
        Host::Tcp(name) => one.host(name),
        Host::Unix(path) => one.host_path(path),
    };
    one.port(port)
        .ssl_mode(config.get_ssl_mode())
        .ssl_negotiation(config.get_ssl_negotiation())
        .channel_binding(config.get_channel_binding())
        .target_session_attrs(config.get_target_session_attrs())
        .keepalives(config.get_keepalives())
        .keepalives_idle(config.get_keepalives_idle());
    if let Some(user) = config.get_user() {
        one.user(user);
    }
    if let Some(password) = config.get_password() {
        one.password(password);
    }
    if let Some(database) = config.get_dbname() {
        one.dbname(database);
    }
    if let Some(options) = config.get_options() {
        one.options(options);
    }
    if let Some(name) = config.get_application_name() {
        one.application_name(name);
    }
    if let Some(timeout) = config.get_connect_timeout() {
        one.connect_timeout(*timeout);
    }
    if let Some(timeout) = config.get_tcp_user_timeout() {
        one.tcp_user_timeout(*timeout);
    }
    if let Some(interval) = config.get_keepalives_interval() {
        one.keepalives_interval(interval);
    }
    if let Some(retries) = config.get_keepalives_retries() {
        one.keepalives_retries(retries);
    }
    one
}

fn host_text(host: &Host) -> String {
    match host {
        Host::Tcp(name) => name.clone(),
        Host::Unix(path) => path.display().to_string(),
    }
}

impl fmt::Debug for PostgresAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl PostgresLink {
    /// Connects to this address, now and whenever the connection is lost, and runs `prepare` on
    /// each new connection before it is used.
    pub(super) fn start(
        address: &PostgresAddress,
        runtime: &Handle,
        seed: u64,
        deadline: Span,
        on_notification: Option<OnNotification>,
    ) -> PostgresLink {
        let text = address.text.clone();
        let address = address.clone();
        let hosts = u32::try_from(address.hosts.len()).unwrap_or(1);
        let within = CONNECT_WITHIN * hosts + CONNECT_WITHIN / 2;
        let first = Arc::new(AtomicUsize::new(0));
        let link = Link::start(runtime, seed, within, move |end| {
            let (address, on_notification) = (address.clone(), on_notification.clone());
            let first = first.clone();
            Box::pin(async move {
                let made = connect_to_any(&address, &first, deadline, on_notification, end).await;
                made.map_err(|why| format!("Postgres at {}: {why}", address.text))
            })
        });
        PostgresLink {
            address: text,
            link,
        }
    }

    pub(super) fn address(&self) -> &str {
        &self.address
    }

    pub(super) async fn connection(&self) -> Result<Numbered<PostgresConnection>, Arc<str>> {
        self.link.connection().await
    }

    /// A request begins on this connection: if it gets no reply, the connection is checked.
    pub(super) fn request<'a>(
        &'a self,
        connection: &'a Numbered<PostgresConnection>,
    ) -> RequestGuard<'a, PostgresConnection> {
        self.link.request(connection)
    }

    /// A request has failed. Returns why, for people; the connection is dropped unless others can
    /// use it.
    pub(super) fn failed(
        &self,
        connection: &Numbered<PostgresConnection>,
        error: &Error,
    ) -> String {
        if !can_stay(error) {
            self.link.drop_connection(connection);
        }
        format!("Postgres at {}: {}", self.address, advice(error))
    }

    pub(super) fn drop_connection(&self, connection: &Numbered<PostgresConnection>) {
        self.link.drop_connection(connection);
    }
}

impl Checked for PostgresConnection {
    async fn check(self) -> bool {
        self.client.simple_query("").await.is_ok()
    }
}

/// One host after the other, from `first` on, which becomes the one that was connected. Each has its
/// own deadline: one that hangs keeps nobody from the others.
async fn connect_to_any(
    address: &PostgresAddress,
    first: &AtomicUsize,
    deadline: Span,
    on_notification: Option<OnNotification>,
    end: ConnectionEnd<PostgresConnection>,
) -> Result<PostgresConnection, String> {
    let hosts = &address.hosts;
    let start = first.load(Ordering::Relaxed);
    let mut failures = Vec::new();
    for index in (0..hosts.len()).map(|step| (start + step) % hosts.len()) {
        let (name, config) = &hosts[index];
        let (this, is_abandoned) = end.for_one_try();
        let connecting = connect(config, deadline, on_notification.clone(), this);
        let made = tokio::time::timeout(CONNECT_WITHIN, connecting).await;
        match made.unwrap_or_else(|_| Err(no_connection(CONNECT_WITHIN))) {
            Ok(connection) => {
                first.store(index, Ordering::Relaxed);
                return Ok(connection);
            }
            Err(why) => {
                // What ends later is not the connection that is made next.
                is_abandoned.store(true, Ordering::Release);
                failures.push((name, why));
            }
        }
    }
    let each = failures.into_iter().map(|(name, why)| match hosts.len() {
        1 => why,
        _ => format!("{name}: {why}"),
    });
    Err(each.collect::<Vec<String>>().join("; "))
}

async fn connect(
    config: &Config,
    deadline: Span,
    on_notification: Option<OnNotification>,
    end: ConnectionEnd<PostgresConnection>,
) -> Result<PostgresConnection, String> {
    match config.get_ssl_mode() {
        SslMode::Require => {
            let tls = Tls::with_native_roots()?;
            connect_with(tls, config, deadline, on_notification, end).await
        }
        _ => connect_with(NoTls, config, deadline, on_notification, end).await,
    }
}

async fn connect_with<T>(
    tls: T,
    config: &Config,
    deadline: Span,
    on_notification: Option<OnNotification>,
    end: ConnectionEnd<PostgresConnection>,
) -> Result<PostgresConnection, String>
where
    T: MakeTlsConnect<Socket> + Send,
    T::Stream: Send + 'static,
{
    let connecting = config.connect(tls).await;
    let (mut client, connection) = connecting.map_err(|error| advice(&error))?;
    tokio::spawn(receive(connection, on_notification.clone(), end));
    let prepared = prepare(&mut client, deadline, on_notification.is_some()).await;
    let (exchange, system) = prepared?;
    Ok(PostgresConnection {
        client: Arc::new(client),
        exchange,
        system,
    })
}

/// Receives replies and notifications until the connection ends.
async fn receive<S, T>(
    mut connection: Connection<S, T>,
    on_notification: Option<OnNotification>,
    end: ConnectionEnd<PostgresConnection>,
) where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
    T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
{
    while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await {
        if let (AsyncMessage::Notification(notification), Some(on)) = (&message, &on_notification) {
            on(notification);
        }
    }
    end.ended();
}

/// The schema, the settings of the session, and the statement that all requests use.
async fn prepare(
    client: &mut Client,
    deadline: Span,
    listens: bool,
) -> Result<(Statement, u64), String> {
    let failed = |error: Error| advice(&error);
    // Each statement of the function must see what was committed before it got its lock: with an older
    // snapshot, whoever waited for the lock ends with "could not serialize access". Before the
    // migration, which waits for a lock too.
    let isolation = "SET default_transaction_isolation = 'read committed'";
    client.batch_execute(isolation).await.map_err(failed)?;
    migrate(client).await?;
    let millis = deadline.0.div_ceil(1_000);
    let listen = if listens { "LISTEN tollgate" } else { "" };
    // A server may be configured not to wait for its disk.
    client
        .batch_execute(&format!(
            "SET statement_timeout = {millis}; \
             SELECT set_config('synchronous_commit', 'on', false) \
               WHERE current_setting('synchronous_commit') IN ('off', 'local'); {listen}"
        ))
        .await
        .map_err(failed)?;
    let system = "SELECT system_identifier FROM pg_control_system()";
    let system: i64 = client.query_one(system, &[]).await.map_err(failed)?.get(0);
    let exchange = "SELECT * FROM tollgate_exchange($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, \
                    $12, $13, $14, $15, $16, $17)";
    let exchange = client.prepare(exchange).await.map_err(failed)?;
    Ok((exchange, system.cast_unsigned()))
}

/// Brings the schema to the version that this program knows.
async fn migrate(client: &mut Client) -> Result<(), String> {
    let failed = |error: Error| advice(&error);
    let version = "SELECT coalesce(max(version), 0) FROM tollgate_schema";
    let is_made = "SELECT to_regclass('tollgate_schema') IS NOT NULL";
    let is_made: bool = client.query_one(is_made, &[]).await.map_err(failed)?.get(0);
    if is_made {
        let found: i32 = client.query_one(version, &[]).await.map_err(failed)?.get(0);
        if found == SCHEMA {
            return Ok(());
        }
    }
    let transaction = client.transaction().await.map_err(failed)?;
    // One process migrates; the others find it done.
    let lock = "SELECT pg_advisory_xact_lock(28775, 0); \
                CREATE TABLE IF NOT EXISTS tollgate_schema (version int PRIMARY KEY)";
    transaction.batch_execute(lock).await.map_err(failed)?;
    let version: i32 = transaction
        .query_one(version, &[])
        .await
        .map_err(failed)?
        .get(0);
    if version > SCHEMA {
        return Err(format!(
            "the schema in the database is version {version}, made by a newer tollgate; this one \
             knows {SCHEMA}; use the newer program, or another database"
        ));
    }
    for (number, migration) in (1..).zip(MIGRATIONS) {
        if number > version {
            transaction.batch_execute(migration).await.map_err(failed)?;
            let insert = "INSERT INTO tollgate_schema VALUES ($1)";
            transaction
                .execute(insert, &[&number])
                .await
                .map_err(failed)?;
        }
    }
    transaction.commit().await.map_err(failed)
}

/// Can other requests use the connection after this error?
fn can_stay(error: &Error) -> bool {
    error.code().is_some_and(|code| {
        *code == SqlState::QUERY_CANCELED
            || *code == SqlState::T_R_DEADLOCK_DETECTED
            || *code == SqlState::DISK_FULL
            || *code == SqlState::LOCK_NOT_AVAILABLE
    })
}

/// What happened, and what to do.
pub(super) fn advice(error: &Error) -> String {
    let Some(reply) = error.as_db_error() else {
        let mut text = error.to_string();
        if let Some(source) = std::error::Error::source(error) {
            text = format!("{text}: {source}");
        }
        return format!("{text}; check that the server runs and can be reached from this host");
    };
    let code = reply.code();
    let remedy = if *code == SqlState::QUERY_CANCELED {
        "the server is overloaded, or another program holds a lock"
    } else if *code == SqlState::DISK_FULL {
        "make room on the server's disk"
    } else if *code == SqlState::INVALID_AUTHORIZATION_SPECIFICATION {
        "check pg_hba.conf; where TLS is needed, add ?sslmode=require to the address"
    } else if *code == SqlState::INVALID_PASSWORD {
        "check user and password in the store's address"
    } else if *code == SqlState::INSUFFICIENT_PRIVILEGE {
        "this user must own its schema: GRANT CREATE ON SCHEMA public"
    } else if *code == SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE
        || *code == SqlState::READ_ONLY_SQL_TRANSACTION
    {
        "this server is a standby; name all hosts and add ?target_session_attrs=read-write"
    } else {
        "see the server's log"
    };
    format!("{}; {remedy}", reply.message())
}
