//! Waiting for the replicas of a Redis server.
//!
//! Promises: what is confirmed is on every replica that follows the server. One that is still
//! synchronising stops nobody.
//!
//! Never: sends a request of the ledger.

use crate::networked::open::passing;
use crate::store::StoreError;

use super::RedisStore;
use super::link::{RedisConnection, RedisLink};
use super::wire::confirmation_key;

/// How long to wait for replicas, in milliseconds: less than the deadline, so that the reason is
/// known.
const REPLICAS_WITHIN_MS: u64 = 250;

/// How long the server keeps the mark that is written to ask replicas how far they are.
const MARK_KEPT_MS: u64 = 60_000;

impl RedisStore {
    /// The replicas have what this reply says. A write of this request confirms all before it. A read
    /// does not, so another write goes before: replicas confirm what was written on the connection
    /// only, and the unconfirmed one may have been on another.
    pub(super) async fn confirm(
        &self,
        link: &RedisLink,
        connection: &mut RedisConnection,
        tag: &str,
        replicas: u32,
        is_replaced: bool,
    ) -> Result<(), StoreError> {
        if !is_replaced {
            let mut mark = redis::cmd("SET");
            mark.arg(confirmation_key(tag))
                .arg(1)
                .arg("PX")
                .arg(MARK_KEPT_MS);
            if let Err(error) = mark.exec_async(connection.requests()).await {
                return Err(self.failure(link, connection, &error).await);
            }
        }
        self.wait_for_replicas(link, connection, replicas).await
    }

    /// Waits until all replicas that follow have what was written on this connection.
    ///
    /// A replica that is still synchronising is not waited for: `WAIT` never counts it, so every permit would
    /// fail until it has its copy, which takes as long as the copy is large. What was confirmed before
    /// it lost its connection it still has, and its next copy has everything. If it is promoted before that,
    /// what was written since it last followed is lost, as with a replica that is not connected. Waiting
    /// would take the time of the copy out of that, and could not make it exact: what was written while
    /// it was away it lacks all the same. One that was emptied to load its copy and is promoted
    /// without it is a wiped store.
    ///
    /// One that has finished meanwhile follows too: it may have confirmed in place of another.
    async fn wait_for_replicas(
        &self,
        link: &RedisLink,
        connection: &mut RedisConnection,
        replicas: u32,
    ) -> Result<(), StoreError> {
        let mut wanted = replicas;
        loop {
            // Both in one go: nothing happens between them.
            let mut both = redis::pipe();
            both.cmd("WAIT").arg(wanted).arg(REPLICAS_WITHIN_MS);
            both.cmd("INFO").arg("replication");
            let replied = both.query_async(connection.requests()).await;
            let (confirmed, info): (u32, String) = match replied {
                Ok(replied) => replied,
                Err(error) => return Err(self.failure(link, connection, &error).await),
            };
            let following = following_replicas(&info);
            if confirmed >= wanted && confirmed >= following {
                return Ok(());
            }
            if confirmed < wanted {
                return Err(passing(format!(
                    "Redis at {}: {confirmed} of {wanted} replicas confirmed a write within \
                     {REPLICAS_WITHIN_MS} ms; check their connection",
                    link.address()
                )));
            }
            // More each time; the request's deadline ends it.
            wanted = following;
        }
    }
}

/// How many replicas follow the server, of those that are connected: the script counts the same.
fn following_replicas(info: &str) -> u32 {
    let follows = |line: &&str| line.starts_with("slave") && line.contains(",state=online,");
    u32::try_from(info.lines().filter(follows).count()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replica_that_synchronises_does_not_follow_yet() {
        let line = |number: u32, state: &str| {
            format!("slave{number}:ip=::1,port=1,state={state},offset=0,lag=0\r\n")
        };
        let states = ["online", "wait_bgsave", "send_bulk", "online"];
        let lines: String = (0..)
            .zip(states)
            .map(|(at, state)| line(at, state))
            .collect();
        let info = format!("# Replication\r\nrole:master\r\nconnected_slaves:4\r\n{lines}");
        assert_eq!(following_replicas(&info), 2);
        assert_eq!(
            following_replicas("role:master\r\nconnected_slaves:0\r\n"),
            0
        );
    }
}
