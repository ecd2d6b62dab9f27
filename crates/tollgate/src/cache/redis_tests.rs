//! The tier in a real Redis: two caches share it, within its bounds, whatever happens to the server.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, StatusCode};
use tollgate_core::fresh::Freshness;
use tollgate_core::time::{Span, Wall};
use tollgate_ledger::redis::RedisAddress;
use tollgate_ledger::{Clock, Ledger};
use tollgate_sim::test_servers::RedisServer;

use super::key::Variant;
use super::*;
use crate::event::Events;

fn open(redis: &RedisServer, bytes_max: u64) -> Cache {
    let address = RedisAddress::parse(&redis.url()).unwrap();
    let sizes = Sizes {
        disk: bytes_max,
        ..Sizes::default()
    };
    Cache::open_redis(
        address,
        sizes,
        Ledger::memory(Clock::System),
        &Events::new(),
    )
}

/// A cache that knows the salt of its Redis.
async fn connected(redis: &RedisServer) -> Cache {
    let cache = open(redis, 1 << 20);
    wait_for(|| tier(&cache).salt().is_some()).await;
    cache
}

fn tier(cache: &Cache) -> &RedisTier {
    match &cache.shared.stored {
        Some(StoredTier::Redis(tier)) => tier,
        other => panic!("a tier in Redis: {other:?}"),
    }
}

async fn wait_for(happened: impl Fn() -> bool) {
    let waiting = async {
        while !happened() {
            tokio::task::yield_now().await;
        }
    };
    let waited = tokio::time::timeout(Duration::from_secs(10), waiting).await;
    waited.expect("it should have happened by now");
}

fn key(number: u8) -> CacheKey {
    CacheKey([number; 32])
}

fn object(now: Wall, variant: u8, url: u8, body: &str) -> Arc<CachedResponse> {
    let mut headers = HeaderMap::new();
    headers.insert("x-a", HeaderValue::from_static("1"));
    Arc::new(CachedResponse {
        url: UrlHash([url; 16]),
        stored: now,
        vary_names: vec!["accept-language".to_owned()],
        variant: Variant([variant; 16]),
        freshness: Freshness {
            fresh_until: now + Span::from_secs(60),
            stale_until: now + Span::from_secs(600),
            ..Freshness::default()
        },
        status: StatusCode::OK,
        headers,
        body: Bytes::from(body.to_owned()),
        provider: "x".to_owned(),
        entity: Some("odds".to_owned()),
        wire_form: WireForm::default(),
    })
}

fn wall() -> Wall {
    Ledger::memory(Clock::System).wall()
}

async fn body(cache: &Cache, number: u8) -> Option<String> {
    let found = cache.find(&key(number), wall()).await?;
    // What is in memory and has changed since is not used.
    let valid = |one: &&Arc<CachedResponse>| !cache.is_invalid(&key(number), one, wall());
    let body = found.objects().iter().find(valid)?.body.clone();
    Some(String::from_utf8(body.to_vec()).unwrap())
}

/// S12: what one gateway stores, another finds, with everything that belongs to it; other keys and variants are apart.
#[tokio::test]
async fn s12_two_caches_share_their_responses() {
    let redis = RedisServer::start(&[]);
    let (one, two) = (connected(&redis).await, connected(&redis).await);
    assert_eq!(one.salt().0, two.salt().0, "the keys of both are the same");
    let now = wall();
    one.store_now(key(1), &object(now, 1, 9, "first"), now);
    one.store_now(key(1), &object(now, 2, 9, "second"), now);
    one.flush().await;
    let found = two.find(&key(1), wall()).await.expect("both variants");
    assert_eq!(found.objects().len(), 2);
    let first = found.objects().iter().find(|one| one.variant.0[0] == 1);
    let (first, stored) = (first.unwrap(), object(now, 1, 9, "first"));
    assert_eq!(
        (&first.body, &first.headers, first.status, first.freshness),
        (
            &stored.body,
            &stored.headers,
            stored.status,
            stored.freshness
        )
    );
    assert_eq!(first.entity, stored.entity);
    assert_eq!(two.find(&key(2), wall()).await.map(|_| ()), None);
    let usage = two.usage().await;
    assert_eq!((usage.len(), usage[0].responses), (1, 2), "{usage:?}");
    assert_eq!(usage[0].entity.as_deref(), Some("odds"));
    assert!(usage[0].bytes > 0);
}

/// S12: a change of a URL and a purge by one gateway reach the memory of another.
#[tokio::test]
async fn s12_removals_reach_the_memory_of_other_gateways() {
    let redis = RedisServer::start(&[]);
    let (one, two) = (connected(&redis).await, connected(&redis).await);
    let now = wall();
    for number in 1..=3 {
        one.store_now(key(number), &object(now, 1, number, "old"), now);
    }
    one.flush().await;
    for number in 1..=3 {
        assert_eq!(body(&two, number).await.as_deref(), Some("old"));
    }
    one.invalidate(None, UrlHash([1; 16]), wall());
    one.flush().await;
    assert_eq!(body(&one, 1).await, None);
    let late = object(now, 1, 1, "requested before the change");
    let is_gone = || two.is_invalid(&key(1), &late, wall());
    wait_for(is_gone).await;
    // Stored by a gateway that did not hear of it.
    tier(&one).put(key(1), &late, wall());
    one.flush().await;
    let third = connected(&redis).await;
    assert_eq!(body(&third, 1).await, None);
    assert_eq!(body(&third, 2).await.as_deref(), Some("old"));
    assert_eq!(third.purge(Some("y"), None).await, 0);
    assert_eq!(third.purge(Some("x"), Some("odds")).await, 2);
    wait_for(|| two.get_from_memory(&key(2), wall()).is_none()).await;
    assert_eq!(body(&two, 3).await, None);
    assert_eq!(two.usage().await, []);
}

/// S12: no more than the configured bytes, and nothing for longer than it is of use.
#[tokio::test]
async fn s12_the_cache_in_redis_is_bounded_and_expires() {
    let redis = RedisServer::start(&[]);
    let cache = open(&redis, 64 << 10);
    wait_for(|| tier(&cache).salt().is_some()).await;
    let now = wall();
    let large = "b".repeat(8 << 10);
    for number in 0..40 {
        cache.store_now(key(number), &object(now, 1, number, &large), wall());
    }
    cache.flush().await;
    let other = connected(&redis).await;
    let usage = other.usage().await;
    let bytes: u64 = usage.iter().map(|row| row.bytes).sum();
    assert!((32 << 10..=64 << 10).contains(&bytes), "{usage:?}");
    assert_eq!(
        body(&other, 0).await,
        None,
        "the least recently used is gone"
    );
    assert!(body(&other, 39).await.is_some());
    let name = format!("tgc:r:{}", "27".repeat(32));
    let expiry = redis.command(&["PTTL", &name]).unwrap();
    let expiry: i64 = expiry.trim().trim_start_matches(':').parse().unwrap();
    assert!((590_000..=600_000).contains(&expiry), "{expiry} ms");
}

/// S12: without Redis the cache is in memory: nothing fails, nobody waits, and it returns by itself.
#[tokio::test]
async fn s12_without_redis_the_cache_is_in_memory_and_returns() {
    let mut redis = RedisServer::start(&["--appendonly", "yes", "--appendfsync", "always"]);
    let cache = connected(&redis).await;
    let now = wall();
    cache.store_now(key(1), &object(now, 1, 1, "old"), now);
    cache.flush().await;
    redis.kill();
    assert_eq!(body(&cache, 2).await, None);
    #[expect(clippy::disallowed_methods, reason = "the slowness of a server")]
    let began = tokio::time::Instant::now();
    for number in 10..60 {
        cache.store_now(key(number), &object(wall(), 1, number, "new"), wall());
        assert_eq!(body(&cache, number).await.as_deref(), Some("new"));
        assert_eq!(body(&cache, 100).await, None);
    }
    cache.invalidate(None, UrlHash([1; 16]), wall());
    assert!(
        began.elapsed() < Duration::from_secs(15),
        "{:?}",
        began.elapsed()
    );
    redis.restart();
    let other = connected(&redis).await;
    let waiting = async {
        // What was removed meanwhile is removed there as soon as it is back.
        while body(&other, 1).await.is_some() {
            tokio::task::yield_now().await;
        }
        loop {
            cache.store_now(key(70), &object(wall(), 1, 70, "again"), wall());
            if body(&other, 70).await.is_some() {
                return;
            }
            tokio::task::yield_now().await;
        }
    };
    let returned = tokio::time::timeout(Duration::from_secs(10), waiting).await;
    returned.expect("the cache is used again");
}
