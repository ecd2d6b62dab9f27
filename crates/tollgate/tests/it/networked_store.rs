//! The library on a store of many hosts: real servers, each test one of its own.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tollgate::{Call, Provider, Reason, SetupError, Tollgate};
use tollgate_sim::test_servers::{PostgresServer, RedisServer};

const HOUR: Duration = Duration::from_secs(3_600);

async fn open(store: &str, folder: &Path) -> Result<Tollgate, SetupError> {
    let x = Provider::new("x").limit(3, HOUR);
    let builder = Tollgate::builder().store(store).state_dir(folder);
    builder.provider(x)?.build().await
}

/// Two of them, as two processes have them, share one quota.
async fn share_one_quota(store: &str, folder: &Path) {
    let one = open(store, folder).await.expect("the server runs");
    let other = open(store, folder).await.expect("the server runs");
    for tollgate in [&one, &other, &one] {
        drop(tollgate.acquire("x").await.expect("one of three")); // counts as sent
    }
    for tollgate in [&one, &other] {
        let error = tollgate.acquire(Call::provider("x").no_wait()).await;
        let error = error.expect_err("three were taken");
        assert_eq!(
            (error.limit(), error.reason()),
            (Some("3/1h"), Some(Reason::Limit))
        );
    }
    let remaining = other.metrics("x").await.expect("known");
    assert_eq!(
        remaining.first().and_then(|one| one.tokens_remaining),
        Some(0)
    );
}

/// A folder that is gone afterwards.
struct StateDir(PathBuf);

impl StateDir {
    fn new(name: &str) -> StateDir {
        let name = format!("tollgate-networked-{name}-{}", std::process::id());
        StateDir(std::env::temp_dir().join(name))
    }
}

impl Drop for StateDir {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

#[tokio::test]
async fn programs_share_one_quota_on_redis() {
    let (server, folder) = (RedisServer::start(&[]), StateDir::new("redis"));
    share_one_quota(&server.url(), &folder.0).await;
}

#[tokio::test]
async fn programs_share_one_quota_on_postgres() {
    let (server, folder) = (PostgresServer::start(&[]), StateDir::new("postgres"));
    share_one_quota(&server.url("postgres"), &folder.0).await;
}
