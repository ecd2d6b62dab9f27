//! Two gateways with one response cache in Redis.

use tollgate::cache::{Cache, Sizes};
use tollgate::event::Events;
use tollgate::providers::Options;
use tollgate_ledger::redis::RedisAddress;
use tollgate_ledger::{Clock, Ledger};
use tollgate_sim::test_servers::RedisServer;

use crate::client::{get, get_with, within_timeout};
use crate::test_daemon::{TestDaemon, from_file, write_file};
use crate::upstream::{Upstream, ok};

async fn gateway(name: &str, redis: &RedisServer, provider: &str) -> TestDaemon {
    let file = format!("{name}.yaml");
    write_file(&file, provider);
    let address = RedisAddress::parse(&redis.url()).unwrap();
    let ledger = Ledger::memory(Clock::System);
    let cache = Cache::open_redis(address, Sizes::default(), ledger, &Events::new());
    let options = Options {
        cache,
        ..Options::default()
    };
    TestDaemon::start_with(from_file(&file), options, None).await
}

/// S12: a response that one gateway has is served by the other, to callers who may see it, and Redis holds no credential.
#[tokio::test]
async fn s12_two_gateways_share_a_response_and_no_credential() {
    let redis = RedisServer::start(&[]);
    let upstream = Upstream::start(|_, _| async { ok() }).await;
    let provider = format!(
        "name: x\nupstream: http://{}\ndomain: api.example.org\nlimits: [1000/1s]\ncache: {{ ttl: 10m }}\napi_key: canary-key-of-x\nauth: {{ header: x-api-key }}\n", // tidy:canary
        upstream.address
    );
    let one = gateway("shared-cache-one", &redis, &provider).await;
    let two = gateway("shared-cache-two", &redis, &provider).await;
    // Until both know the salt, each asks for itself.
    within_timeout(async {
        let mut number = 0;
        loop {
            number += 1;
            let path = format!("/x/a{number}");
            get(one.gateway, &path).await;
            one.daemon.registry().cache().flush().await;
            let response = get(two.gateway, &path).await;
            if response.header("x-tollgate-source") == "cache" {
                return;
            }
        }
    })
    .await;
    // Another caller's credential is another key.
    let token = ("x-session", "CANARY-OF-A-CALLER"); // tidy:canary
    let own = get_with(one.gateway, "/x/own", &[token]).await;
    assert_eq!(own.status, 200);
    one.daemon.registry().cache().flush().await;
    let others = get(two.gateway, "/x/own").await;
    assert_eq!(others.header("x-tollgate-source"), "upstream", "{others:?}");
    let same = get_with(two.gateway, "/x/own", &[token]).await;
    assert_eq!(same.header("x-tollgate-source"), "cache", "{same:?}");
    // Everything that Redis holds, its keys and its values.
    for key in redis.command(&["KEYS", "*"]).unwrap().lines() {
        let kinds: [&[&str]; 2] = [&["HGETALL", key], &["GET", key]];
        for read in kinds {
            let held = redis.command(read).unwrap_or_default();
            assert!(!held.to_lowercase().contains("canary"), "{key}: {held}");
        }
    }
}
