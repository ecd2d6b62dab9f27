//! Both tiers: stored responses come back, within the bounds, whatever happens to the file.

use std::path::PathBuf;
use std::task::{Context, Waker};

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use tollgate_core::fresh::{FOREVER, Freshness};
use tollgate_core::time::{Span, Wall};
use tollgate_sim::test_host::TempFolder;

use super::key::Variant;
use super::*;

/// A folder that is deleted with its test.
pub(super) struct Folder(TempFolder);

impl Folder {
    pub(super) fn new() -> Folder {
        Folder(TempFolder::unmade("cache"))
    }

    pub(super) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(super) fn file(&self) -> PathBuf {
        self.path().join(DATABASE)
    }
}

/// A cache with a bounded file.
pub(super) fn open_with(folder: &Path, disk: u64) -> Cache {
    let sizes = Sizes {
        disk,
        ..Sizes::default()
    };
    Cache::open_within(folder, sizes, &crate::event::Events::new())
}

pub(super) fn key(number: u8) -> CacheKey {
    CacheKey([number; 32])
}

pub(super) fn object(variant: u8, body: &str) -> Arc<CachedResponse> {
    Arc::new(CachedResponse {
        url: UrlHash([u8::try_from(body.len() % 256).unwrap(); 16]),
        stored: Wall(1),
        vary_names: vec![],
        variant: Variant([variant; 16]),
        freshness: Freshness {
            fresh_until: FOREVER,
            stale_until: FOREVER,
            ..Freshness::default()
        },
        status: StatusCode::OK,
        headers: HeaderMap::new(),
        body: Bytes::from(body.to_owned()),
        provider: "x".to_owned(),
        entity: Some(body.chars().take(1).collect()),
        wire_form: WireForm::default(),
    })
}

pub(super) async fn bodies(cache: &Cache, number: u8) -> Vec<String> {
    let variants = cache.find(&key(number), Wall(1)).await;
    let objects = variants.iter().flat_map(|variants| variants.objects());
    let text = |object: &Arc<CachedResponse>| String::from_utf8(object.body.to_vec()).unwrap();
    objects.map(text).collect()
}

#[tokio::test]
async fn m11_a_response_cached_forever_survives_a_restart() {
    let folder = Folder::new();
    let first = Cache::open(folder.path(), &crate::event::Events::new());
    first.store_now(key(1), &object(1, "one"), Wall(1));
    first.store_now(key(1), &object(2, "two"), Wall(1));
    first.flush().await;
    drop(first);
    let second = Cache::open(folder.path(), &crate::event::Events::new());
    assert!(second.get_from_memory(&key(1), Wall(1)).is_none());
    assert_eq!(bodies(&second, 1).await, ["two", "one"]);
    assert!(second.get_from_memory(&key(1), Wall(1)).is_some());
}

#[tokio::test]
async fn a_new_response_replaces_the_one_for_the_same_headers() {
    let folder = Folder::new();
    for cache in [
        Cache::memory(),
        Cache::open(folder.path(), &crate::event::Events::new()),
    ] {
        cache.store_now(key(1), &object(1, "old"), Wall(1));
        cache.store_now(key(1), &object(1, "new"), Wall(1));
        assert_eq!(bodies(&cache, 1).await, ["new"]);
        cache.flush().await;
    }
    assert_eq!(
        bodies(&Cache::open(folder.path(), &crate::event::Events::new()), 1).await,
        ["new"]
    );
}

#[tokio::test]
async fn variants_of_one_url_are_bounded() {
    let folder = Folder::new();
    let cache = Cache::open(folder.path(), &crate::event::Events::new());
    for variant in 0..40 {
        cache.store_now(key(1), &object(variant, &format!("{variant}")), Wall(1));
    }
    cache.flush().await;
    for cache in [
        cache,
        Cache::open(folder.path(), &crate::event::Events::new()),
    ] {
        let bodies = bodies(&cache, 1).await;
        assert_eq!(bodies.len(), object::VARIANTS_MAX);
        assert_eq!(bodies[0], "39");
    }
}

#[tokio::test]
async fn purges_are_by_provider_and_entity_and_reach_both_tiers() {
    let folder = Folder::new();
    for cache in [
        Cache::memory(),
        Cache::open(folder.path(), &crate::event::Events::new()),
    ] {
        cache.store_now(key(1), &object(1, "a"), Wall(1));
        cache.store_now(key(2), &object(1, "b"), Wall(1));
        assert_eq!(cache.usage().await.len(), 2);
        assert_eq!(cache.purge(Some("y"), None).await, 0);
        assert_eq!(cache.purge(Some("x"), Some("a")).await, 1);
        assert!(bodies(&cache, 1).await.is_empty());
        assert_eq!(bodies(&cache, 2).await, ["b"]);
        assert_eq!(cache.purge(None, None).await, 1);
        assert!(bodies(&cache, 2).await.is_empty());
        assert_eq!(cache.usage().await, []);
    }
}

/// The bodies that another process has stored, once they are visible here.
async fn wait_for_bodies(cache: &Cache, number: u8) -> Vec<String> {
    loop {
        let found = bodies(cache, number).await;
        if !found.is_empty() {
            return found;
        }
        tokio::task::yield_now().await;
    }
}

/// Waits until all keys of the file are known.
async fn wait_until_indexed(cache: &Cache) {
    let is_indexed = |tier: &StoredTier| match tier {
        StoredTier::Disk(disk) => disk.is_indexed(),
        #[cfg(feature = "redis")]
        StoredTier::Redis(_) => true,
    };
    while !cache.shared.stored.as_ref().is_some_and(is_indexed) {
        tokio::task::yield_now().await;
    }
}

/// Does a lookup of this key have to wait for anything?
fn must_wait(cache: &Cache, number: u8) -> bool {
    let (key, mut context) = (key(number), Context::from_waker(Waker::noop()));
    let lookup = std::pin::pin!(cache.find(&key, Wall(1)));
    lookup.poll(&mut context).is_pending()
}

/// A miss of a key that nobody has stored costs neither a disk read nor another thread, and
/// responses stored before a restart are still found.
#[tokio::test]
async fn a_lookup_of_an_unknown_key_does_not_wait() {
    let folder = Folder::new();
    let first = Cache::open(folder.path(), &crate::event::Events::new());
    wait_until_indexed(&first).await;
    assert!(!must_wait(&first, 1));
    first.store_now(key(1), &object(1, "a"), Wall(1));
    first.flush().await;
    let next = Cache::open(folder.path(), &crate::event::Events::new());
    wait_until_indexed(&next).await;
    assert!(!must_wait(&next, 2));
    assert_eq!(bodies(&next, 1).await, ["a"]);
}

/// A key that is gone from the file is looked up once.
#[tokio::test]
async fn a_row_gone_from_disk_is_looked_up_once() {
    let folder = Folder::new();
    let first = Cache::open(folder.path(), &crate::event::Events::new());
    first.store_now(key(1), &object(1, "a"), Wall(1));
    first.flush().await;
    let next = Cache::open(folder.path(), &crate::event::Events::new());
    wait_until_indexed(&next).await;
    assert_eq!(purge(folder.path(), None, None).unwrap(), 1);
    assert!(bodies(&next, 1).await.is_empty());
    assert!(!must_wait(&next, 1));
}

/// The only response to a URL: no disk read for other variants either.
#[tokio::test]
async fn a_first_variant_is_known_to_be_the_only_one() {
    let folder = Folder::new();
    let cache = Cache::open(folder.path(), &crate::event::Events::new());
    wait_until_indexed(&cache).await;
    cache.store_now(key(1), &object(1, "a"), Wall(1));
    assert!(
        !cache
            .get_from_memory(&key(1), Wall(1))
            .unwrap()
            .is_partial()
    );
}

/// Ids of deleted rows are not reused: readers of new rows would miss them.
#[tokio::test]
async fn row_ids_are_not_reused() {
    let folder = Folder::new();
    let cache = Cache::open(folder.path(), &crate::event::Events::new());
    let conn = rusqlite::Connection::open(folder.file()).unwrap();
    let last = || -> i64 {
        let last = "SELECT max(id) FROM answers";
        conn.query_row(last, [], |row| row.get(0)).unwrap()
    };
    cache.store_now(key(1), &object(1, "a"), Wall(1_000));
    cache.flush().await;
    let before = last();
    cache.purge(None, None).await;
    cache.store_now(key(2), &object(1, "b"), Wall(1_001));
    cache.flush().await;
    assert!(last() > before);
}

/// Two processes share a file: a response that one stores or purges is stored or purged for the
/// other.
#[tokio::test]
async fn processes_share_stored_and_purged_responses() {
    let folder = Folder::new();
    let (one, other) = (
        Cache::open(folder.path(), &crate::event::Events::new()),
        Cache::open(folder.path(), &crate::event::Events::new()),
    );
    one.store_now(key(1), &object(1, "a"), Wall(1));
    one.store_now(key(2), &object(1, "b"), Wall(1));
    one.flush().await;
    assert_eq!(wait_for_bodies(&other, 1).await, ["a"]);
    assert_eq!(wait_for_bodies(&other, 2).await, ["b"]);
    let url = object(1, "b-changed").url;
    one.store_now(key(3), &object(1, "b-changed"), Wall(1));
    one.flush().await;
    assert_eq!(wait_for_bodies(&other, 3).await, ["b-changed"]);
    one.invalidate(None, url, Wall(1));
    one.flush().await;
    assert_eq!(purge(folder.path(), Some("x"), Some("a")).unwrap(), 1);
    // The other process checks for purges each second.
    let changed = object(1, "b-changed");
    while other.get_from_memory(&key(1), Wall(1)).is_some()
        || !other.is_invalid(&key(3), &changed, Wall(1))
    {
        other.find(&key(9), Wall(1)).await;
        tokio::task::yield_now().await;
    }
    assert!(bodies(&other, 1).await.is_empty());
    assert_eq!(bodies(&other, 2).await, ["b"]);
    assert!(
        usage(folder.path())
            .unwrap()
            .iter()
            .all(|row| row.responses == 1)
    );
}

#[tokio::test]
async fn a_damaged_file_is_moved_aside_and_recreated() {
    let folder = Folder::new();
    std::fs::create_dir_all(folder.path()).unwrap();
    std::fs::write(folder.file(), vec![b'x'; 10_000]).unwrap();
    let cache = Cache::open(folder.path(), &crate::event::Events::new());
    cache.store_now(key(1), &object(1, "a"), Wall(1));
    cache.flush().await;
    assert_eq!(usage(folder.path()).unwrap().len(), 1);
    assert!(folder.path().join("cache.db.damaged").exists());
}

#[tokio::test]
async fn a_file_of_a_newer_version_is_left_alone() {
    let folder = Folder::new();
    drop(Cache::open(folder.path(), &crate::event::Events::new()));
    let conn = rusqlite::Connection::open(folder.file()).unwrap();
    conn.pragma_update(None, "user_version", 99).unwrap();
    drop(conn);
    let cache = Cache::open(folder.path(), &crate::event::Events::new());
    cache.store_now(key(1), &object(1, "a"), Wall(1));
    cache.flush().await;
    assert_eq!(bodies(&cache, 1).await, ["a"]);
    assert!(matches!(
        usage(folder.path()),
        Err(CacheAdminError::Newer(_))
    ));
}

#[tokio::test]
async fn a_folder_that_cannot_be_written_means_memory_only() {
    let folder = Folder::new();
    std::fs::write(folder.path(), "a file, not a folder").unwrap();
    let cache = Cache::open(folder.path(), &crate::event::Events::new());
    cache.store_now(key(1), &object(1, "a"), Wall(1));
    assert_eq!(bodies(&cache, 1).await, ["a"]);
    std::fs::remove_file(folder.path()).unwrap();
}

#[tokio::test]
async fn the_disk_is_bounded_and_evicts_the_least_recently_used() {
    let folder = Folder::new();
    let cache = open_with(folder.path(), 100_000);
    let large = "z".repeat(10_000);
    for number in 0..50_u8 {
        cache.store_now(key(number), &object(1, &large), Wall(u64::from(number)));
    }
    cache.flush().await;
    let kept = usage(folder.path()).unwrap();
    assert!(kept[0].bytes <= 100_000, "{kept:?}");
    drop(cache);
    let cache = Cache::open(folder.path(), &crate::event::Events::new());
    assert!(bodies(&cache, 0).await.is_empty());
    assert!(bodies(&cache, 49).await == [large]);
}

#[tokio::test]
async fn expired_responses_are_evicted_first() {
    let folder = Folder::new();
    let cache = open_with(folder.path(), 100_000);
    let mut old = (*object(1, "old")).clone();
    old.freshness.fresh_until = Wall(5);
    old.freshness.stale_until = Wall(5);
    cache.store_now(key(1), &Arc::new(old), Wall(1));
    cache.flush().await;
    let later = Wall(0) + Span::from_secs(1);
    cache.store_now(key(2), &object(1, &"y".repeat(20_000)), later);
    cache.flush().await;
    assert_eq!(usage(folder.path()).unwrap().len(), 1);
}

#[test]
fn reading_usage_of_an_empty_folder_creates_no_file() {
    let folder = Folder::new();
    std::fs::create_dir_all(folder.path()).unwrap();
    assert_eq!(usage(folder.path()).unwrap(), []);
    assert_eq!(purge(folder.path(), None, None).unwrap(), 0);
    assert!(!folder.file().exists());
}

/// A response requested before another does not replace it, and none requested before its URL
/// changed or before a purge is stored afterwards.
#[tokio::test]
async fn a_response_requested_before_a_change_is_not_stored() {
    let asked_at = |at: u64, body: &str| {
        let mut object = (*object(1, body)).clone();
        (object.stored, object.url) = (Wall(at), UrlHash([7; 16]));
        Arc::new(object)
    };
    let folder = Folder::new();
    for cache in [
        Cache::memory(),
        Cache::open(folder.path(), &crate::event::Events::new()),
    ] {
        cache.store_now(key(1), &asked_at(5, "new"), Wall(6));
        cache.store_now(key(1), &asked_at(4, "old"), Wall(7));
        assert_eq!(bodies(&cache, 1).await, ["new"]);
        cache.invalidate(Some(&key(1)), UrlHash([7; 16]), Wall(8));
        cache.store_now(key(1), &asked_at(8, "on its way"), Wall(9));
        assert!(cache.get_from_memory(&key(1), Wall(1)).is_none());
        cache.store_now(key(1), &asked_at(9, "after"), Wall(9));
        assert_eq!(bodies(&cache, 1).await, ["after"]);
        let purges = cache.purge_count();
        cache.purge(None, None).await;
        cache.store(key(1), &asked_at(10, "purged"), Wall(10), purges);
        cache.flush().await;
        assert!(cache.get_from_memory(&key(1), Wall(1)).is_none());
    }
    assert!(
        bodies(&Cache::open(folder.path(), &crate::event::Events::new()), 1)
            .await
            .is_empty()
    );
}

/// After a clock was set back, an earlier response does not stay the newest forever.
#[tokio::test]
async fn a_response_from_the_future_is_replaced() {
    let cache = Cache::memory();
    let mut future = (*object(1, "future")).clone();
    future.stored = Wall(1_000);
    cache.store_now(key(1), &Arc::new(future), Wall(1_000));
    cache.store_now(key(1), &object(1, "now"), Wall(2));
    assert_eq!(bodies(&cache, 1).await, ["now"]);
}

/// Other processes see an invalidation also if nothing was stored on disk.
#[tokio::test]
async fn invalidations_reach_other_processes() {
    let folder = Folder::new();
    let (one, other) = (
        Cache::open(folder.path(), &crate::event::Events::new()),
        Cache::open(folder.path(), &crate::event::Events::new()),
    );
    let changed = object(1, "only in the other's memory");
    one.invalidate(None, changed.url, Wall(1));
    one.flush().await;
    while !other.is_invalid(&key(3), &changed, Wall(1)) {
        other.find(&key(9), Wall(1)).await;
        tokio::task::yield_now().await;
    }
}

/// A response that is used from memory is not evicted first on disk.
#[tokio::test]
async fn a_memory_hit_updates_its_use_on_disk_once_an_hour() {
    let folder = Folder::new();
    let cache = Cache::open(folder.path(), &crate::event::Events::new());
    cache.store_now(key(1), &object(1, "a"), Wall(1));
    let later = Wall(1) + Span::from_secs(4_000);
    for _ in 0..3 {
        assert!(cache.get_from_memory(&key(1), later).is_some());
    }
    cache.flush().await;
    let conn = rusqlite::Connection::open(folder.file()).unwrap();
    let used: i64 = conn
        .query_row("SELECT used FROM answers", [], |row| row.get(0))
        .unwrap();
    assert_eq!(used.unsigned_abs(), later.0);
    let variants = cache.get_from_memory(&key(1), later).unwrap();
    assert!(!variants.is_use_due(later + Span::from_secs(60), disk::TOUCH_STEP));
}

/// A hit returns the cached bytes themselves.
#[tokio::test]
async fn a_cached_body_is_never_copied() {
    let cache = Cache::memory();
    let object = object(1, "a body that is kept");
    cache.store_now(key(1), &object, Wall(1));
    let variants = cache.find(&key(1), Wall(1)).await.unwrap();
    let body = variants.objects()[0].body.clone();
    assert_eq!(body.as_ptr(), object.body.as_ptr());
    let mut served = crate::body::ReplyBody::whole(body);
    let frame = http_body_util::BodyExt::frame(&mut served).await;
    let data = frame.unwrap().unwrap().into_data().unwrap();
    assert_eq!(data.as_ptr(), object.body.as_ptr());
}

/// A variant on disk is found although another response to the same URL is already in memory.
#[tokio::test]
async fn a_variant_on_disk_is_not_hidden_by_one_in_memory() {
    let folder = Folder::new();
    let first = Cache::open(folder.path(), &crate::event::Events::new());
    first.store_now(key(1), &object(1, "one"), Wall(1));
    first.flush().await;
    drop(first);
    let cache = Cache::open(folder.path(), &crate::event::Events::new());
    cache.store_now(key(1), &object(2, "two"), Wall(1));
    let here = cache.find(&key(1), Wall(1)).await.unwrap();
    assert!(here.objects().len() == 1 && here.is_partial());
    cache.flush().await;
    let rest = cache
        .find_other_variants(&key(1), &[], Wall(1))
        .await
        .unwrap();
    assert_eq!(rest.objects().len(), 2);
    let whole = cache.get_from_memory(&key(1), Wall(1)).unwrap();
    assert_eq!(bodies(&cache, 1).await, ["two", "one"]);
    assert!(!whole.is_partial());
}

/// Large responses to one URL are not evicted from memory together.
#[tokio::test]
async fn a_variant_set_is_bounded_in_bytes() {
    let cache = Cache::memory();
    let large = "z".repeat(5 * 1024 * 1024);
    for variant in 0..4 {
        cache.store_now(key(1), &object(variant, &large), Wall(1));
    }
    let variants = cache
        .get_from_memory(&key(1), Wall(1))
        .expect("some of it stays");
    assert_eq!(variants.objects().len(), 2);
    assert!(variants.weight() <= object::VARIANT_SET_BYTES_MAX && variants.is_partial());
    cache.store_now(key(2), &object(1, &"y".repeat(8 * 1024 * 1024)), Wall(1));
    assert_eq!(bodies(&cache, 2).await.len(), 1);
}

/// `cache_size.memory`: the memory tier stays within it, also below what four shards would need.
#[test]
fn memory_is_bounded_by_what_is_configured() {
    for bytes in [1 << 20, 4 << 20, 40 << 20] {
        let memory = MemoryTier::new(bytes);
        for number in 0..100_u8 {
            let response = object(1, &"z".repeat(500_000));
            memory.put(key(number), &response, Wall(1), 0, || false);
        }
        let kept: u64 = memory.usage().iter().map(|row| row.bytes).sum();
        assert!(kept <= bytes && kept > bytes / 4, "{kept} of {bytes}");
    }
}
