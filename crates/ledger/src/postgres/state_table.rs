//! The table `rate_limiter_state`: counts that are written now and then, and read at the next start (H8).
//!
//! Promises: the columns of the document, one row per domain. A write replaces rows and adds none of the same
//! domain. Each use makes a connection of its own, with a deadline: once in ten seconds that costs nothing, and no
//! connection has to be watched.
//!
//! Never: decides, or stores a key.

use std::future::Future;
use std::time::Duration;

use tokio::time::timeout;
use tokio_postgres::config::SslMode;
use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Error, NoTls, Socket};
use tollgate_core::time::Wall;

use super::link::{PostgresAddress, advice};
use super::tls::Tls;

/// How long one use may take.
const WITHIN: Duration = Duration::from_secs(3);

/// As the document has it.
const TABLE: &str = "CREATE TABLE IF NOT EXISTS rate_limiter_state (
    domain TEXT PRIMARY KEY,
    request_count INT NOT NULL,
    window_start TIMESTAMPTZ NOT NULL,
    updated_at TIMESTAMPTZ NOT NULL
)";

const LOAD: &str = "SELECT domain, request_count, \
    (extract(epoch FROM window_start) * 1000000)::bigint FROM rate_limiter_state";

const SAVE: &str = "INSERT INTO rate_limiter_state (domain, request_count, window_start, updated_at) \
    SELECT domain, request_count, \
      timestamptz 'epoch' + window_start * interval '1 microsecond', now() \
    FROM unnest($1::text[], $2::int[], $3::bigint[]) AS new (domain, request_count, window_start) \
    ON CONFLICT (domain) DO UPDATE SET request_count = excluded.request_count, \
      window_start = excluded.window_start, updated_at = excluded.updated_at";

/// The count of one domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DomainState {
    /// Whose.
    pub domain: String,
    /// Requests in the current window.
    pub request_count: u64,
    /// When it began.
    pub window_start: Wall,
}

/// The table of one database.
#[derive(Clone, Debug)]
pub struct StateTable {
    address: PostgresAddress,
}

impl StateTable {
    /// Nothing is opened yet.
    #[must_use]
    pub fn new(address: PostgresAddress) -> StateTable {
        StateTable { address }
    }

    /// All rows; makes the table if there is none.
    pub async fn load(&self) -> Result<Vec<DomainState>, String> {
        self.within(async {
            let client = self.connect().await?;
            client.batch_execute(TABLE).await.map_err(in_words)?;
            let rows = client.query(LOAD, &[]).await.map_err(in_words)?;
            Ok(rows
                .iter()
                .map(|row| DomainState {
                    domain: row.get(0),
                    request_count: u64::try_from(row.get::<_, i32>(1)).unwrap_or(0),
                    window_start: Wall(u64::try_from(row.get::<_, i64>(2)).unwrap_or(0)),
                })
                .collect())
        })
        .await
    }

    /// Writes these rows, in one statement.
    pub async fn save(&self, rows: &[DomainState]) -> Result<(), String> {
        let domains: Vec<&str> = rows.iter().map(|row| row.domain.as_str()).collect();
        let counts = rows.iter().map(|row| row.request_count);
        let counts: Vec<i32> = counts
            .map(|count| i32::try_from(count).unwrap_or(i32::MAX))
            .collect();
        let starts = rows.iter().map(|row| row.window_start.0);
        let starts: Vec<i64> = starts
            .map(|start| i64::try_from(start).unwrap_or(i64::MAX))
            .collect();
        self.within(async {
            let client = self.connect().await?;
            client.batch_execute(TABLE).await.map_err(in_words)?;
            let rows: [&(dyn ToSql + Sync); 3] = [&domains, &counts, &starts];
            client.execute(SAVE, &rows).await.map_err(in_words)?;
            Ok(())
        })
        .await
    }

    async fn within<T>(&self, work: impl Future<Output = Result<T, String>>) -> Result<T, String> {
        let done = timeout(WITHIN, work).await;
        let done = done.unwrap_or_else(|_| {
            let within = WITHIN.as_secs();
            Err(format!(
                "no reply within {within} s; check that the server runs"
            ))
        });
        done.map_err(|why| format!("Postgres at {}: {why}", self.address.redacted()))
    }

    async fn connect(&self) -> Result<Client, String> {
        match self.address.config().get_ssl_mode() {
            SslMode::Require => self.connect_with(Tls::with_native_roots()?).await,
            _ => self.connect_with(NoTls).await,
        }
    }

    async fn connect_with<T>(&self, tls: T) -> Result<Client, String>
    where
        T: MakeTlsConnect<Socket> + Send,
        T::Stream: Send + 'static,
    {
        let connected = self.address.config().connect(tls).await;
        let (client, connection) = connected.map_err(in_words)?;
        // It ends with the client.
        tokio::spawn(connection);
        Ok(client)
    }
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn in_words(error: Error) -> String {
    advice(&error)
}
