//! Two gateways with one response cache in Redis.

use tollgate::cache::{Cache, Sizes};
use tollgate::event::Events;
use tollgate::providers::Options;
use tollgate_ledger::redis::RedisAddress;
use tollgate_ledger::{Clock, Ledger};
use tollgate_sim::test_servers::RedisServer;

use crate::client::{get, get_with, within_timeout};
use crate::test_daemon::{TestDaemon, from_file, write_file};
use crate::upstream::{ReceivedRequest, Upstream, ok, reply};

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

/// Two gateways whose caches share a Redis and its salt: what one fetches the other may serve.
async fn sharing(name: &str, upstream: &Upstream, redis: &RedisServer) -> [TestDaemon; 2] {
    let provider = format!(
        "name: x\nupstream: http://{}\nlimits: [100000/1s]\ncache: {{ ttl: 10m }}\n",
        upstream.address
    );
    let one = gateway(&format!("{name}-one"), redis, &provider).await;
    let two = gateway(&format!("{name}-two"), redis, &provider).await;
    within_timeout(async {
        let mut number = 0;
        loop {
            number += 1;
            let path = format!("/x/plain/{number}");
            get(one.gateway, &path).await;
            one.daemon.registry().cache().flush().await;
            if source(&two, &path, &[]).await.0 == "cache" {
                return;
            }
        }
    })
    .await;
    [one, two]
}

/// Where a response comes from, and its body.
async fn source(daemon: &TestDaemon, path: &str, headers: &[(&str, &str)]) -> (String, String) {
    let response = get_with(daemon.gateway, path, headers).await;
    let source = response.header("x-tollgate-source").to_owned();
    (source, response.body)
}

async fn fetch_at(daemon: &TestDaemon, path: &str, headers: &[(&str, &str)]) -> (String, String) {
    let fetched = source(daemon, path, headers).await;
    daemon.daemon.registry().cache().flush().await;
    fetched
}

/// A response that names who asked and in which language.
fn personal(received: &ReceivedRequest) -> crate::upstream::Reply {
    let header = |name: &str| {
        let value = received.headers.get(name);
        value
            .map_or("-", |value| value.to_str().unwrap())
            .to_owned()
    };
    let body = format!("{} {}", header("authorization"), header("accept-language"));
    let headers: &[(&str, &str)] = match received.target.as_str() {
        "/private" => &[("cache-control", "private")],
        "/no-store" => &[("cache-control", "no-store")],
        "/cookie" => &[("set-cookie", "sid=1")],
        "/vary" => &[("vary", "accept-language")],
        "/vary-all" => &[("vary", "*")],
        _ => &[],
    };
    reply(200, headers, &body)
}

/// R-E6, S12: what is for one caller only is not in Redis for the callers of another gateway.
#[tokio::test]
async fn s12_private_responses_are_not_shared_through_redis() {
    let redis = RedisServer::start(&[]);
    let upstream = Upstream::start(|_, received| async move { personal(&received) }).await;
    let [one, two] = sharing("redis-private", &upstream, &redis).await;
    for path in ["/x/private", "/x/no-store", "/x/cookie", "/x/vary-all"] {
        assert_eq!(fetch_at(&one, path, &[]).await.0, "upstream", "{path}");
        assert_eq!(source(&two, path, &[]).await.0, "upstream", "{path}");
    }
}

/// R-E5, S12: a response for one language is not served for another one.
#[tokio::test]
async fn s12_vary_holds_for_responses_in_redis() {
    let redis = RedisServer::start(&[]);
    let upstream = Upstream::start(|_, received| async move { personal(&received) }).await;
    let [one, two] = sharing("redis-vary", &upstream, &redis).await;
    let (german, english) = ([("accept-language", "de")], [("accept-language", "en")]);
    assert_eq!(fetch_at(&one, "/x/vary", &german).await.0, "upstream");
    let other = source(&two, "/x/vary", &english).await;
    assert_eq!(other, ("upstream".to_owned(), "- en".to_owned()));
    let same = source(&two, "/x/vary", &german).await;
    assert_eq!(same, ("cache".to_owned(), "- de".to_owned()));
}

/// R-E6, S12: a caller with a credential of its own never gets what another one got, and nobody without.
#[tokio::test]
async fn s12_an_own_authorization_is_not_shared_through_redis() {
    let redis = RedisServer::start(&[]);
    let upstream = Upstream::start(|_, received| async move { personal(&received) }).await;
    let [one, two] = sharing("redis-authorization", &upstream, &redis).await;
    let first = [("authorization", "Bearer first")]; // tidy:canary
    let second = [("authorization", "Bearer second")]; // tidy:canary
    fetch_at(&one, "/x/own", &first).await;
    assert_eq!(source(&two, "/x/own", &second).await.1, "Bearer second -");
    assert_eq!(source(&two, "/x/own", &[]).await.1, "- -");
}

/// S7, S12: a 304 belongs to the condition that the caller sent: another gateway's caller without one gets a body.
#[tokio::test]
async fn s12_a_304_is_not_shared_through_redis() {
    let redis = RedisServer::start(&[]);
    let upstream = Upstream::start(|_, received| async move {
        let is_same = received
            .headers
            .get("if-none-match")
            .is_some_and(|tag| tag == "\"a\"");
        match is_same {
            true => reply(304, &[("etag", "\"a\"")], ""),
            false => reply(200, &[("etag", "\"a\"")], "body"),
        }
    })
    .await;
    let [one, two] = sharing("redis-304", &upstream, &redis).await;
    let condition = [("if-none-match", "\"a\"")];
    let first = get_with(one.gateway, "/x/tagged", &condition).await;
    one.daemon.registry().cache().flush().await;
    assert_eq!(first.status, 304);
    let other = get(two.gateway, "/x/tagged").await;
    assert_eq!((other.status, other.body.as_str()), (200, "body"));
}
