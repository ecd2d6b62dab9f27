//! Removed responses stay removed: one of several, those invalidated by a change of their URL, and
//! those that a newer response should have replaced.

use rusqlite::Connection;

use super::key::{UrlHash, Variant};
use super::tests::{Folder, bodies, key, object};
use super::*;

fn requested_at(at: Wall, variant: u8, body: &str) -> Arc<CachedResponse> {
    let mut object = (*object(variant, body)).clone();
    (object.stored, object.url) = (at, UrlHash([7; 16]));
    Arc::new(object)
}

/// One response is removed; the others under its key, and those to the same URL under other keys,
/// stay.
#[tokio::test]
async fn removing_one_response_keeps_all_others() {
    let folder = Folder::new();
    for cache in [
        Cache::memory(),
        Cache::open(folder.path(), &crate::event::Events::new()),
    ] {
        let one = requested_at(Wall(5), 1, "one");
        cache.store_now(key(1), &one, Wall(5));
        cache.store_now(key(1), &requested_at(Wall(5), 2, "two"), Wall(5));
        cache.store_now(key(2), &requested_at(Wall(5), 1, "of another"), Wall(5));
        cache.remove(&key(1), &one, Wall(6));
        cache.flush().await;
        assert_eq!(bodies(&cache, 1).await, ["two"]);
        assert_eq!(bodies(&cache, 2).await, ["of another"]);
        cache.store_now(key(1), &requested_at(Wall(6), 1, "on its way"), Wall(7));
        assert_eq!(bodies(&cache, 1).await, ["two"]);
        cache.store_now(key(1), &requested_at(Wall(7), 1, "new"), Wall(7));
        cache.flush().await;
        assert_eq!(bodies(&cache, 1).await, ["new", "two"]);
    }
    assert_eq!(
        bodies(&Cache::open(folder.path(), &crate::event::Events::new()), 1).await,
        ["new", "two"]
    );
}

/// After a clock was set back, responses to a URL that was changed before are still stored.
#[tokio::test]
async fn an_invalidation_from_the_future_does_not_block_storing() {
    let cache = Cache::memory();
    let (now, ahead) = (Wall(1_000_000_000_000), Wall(5_000_000_000_000));
    let invalid = requested_at(ahead, 1, "before the change");
    cache.store_now(key(1), &invalid, ahead);
    cache.invalidate(None, invalid.url, ahead);
    let kept = requested_at(now, 1, "kept");
    cache.store_now(key(1), &kept, now);
    assert_eq!(bodies(&cache, 1).await, ["kept"]);
    assert!(!cache.is_invalid(&key(1), &kept, now));
    assert!(cache.is_invalid(&key(1), &invalid, now));
    // A small difference between clocks does not count as a clock that was set back.
    assert!(cache.is_invalid(
        &key(1),
        &requested_at(Wall(ahead.0 - 2), 1, ""),
        Wall(ahead.0 - 1)
    ));
}

/// More invalidations than are remembered one by one make no old response valid again.
#[tokio::test]
async fn an_invalidation_pushed_out_of_memory_still_applies() {
    let cache = Cache::memory();
    let now = Wall(1_000_000);
    let first = requested_at(now, 1, "first");
    cache.invalidate(None, first.url, now);
    for number in 0..20_000_u32 {
        let mut url = [9; 16];
        url[..4].copy_from_slice(&number.to_le_bytes());
        cache.invalidate(None, UrlHash(url), Wall(now.0 + u64::from(number) + 1));
    }
    let later = Wall(now.0 + 30_000);
    assert!(cache.is_invalid(&key(1), &first, later));
    let new = requested_at(later, 1, "new");
    assert!(!cache.is_invalid(&key(1), &new, later));
}

/// A newer response that could not be written leaves no older one behind.
#[tokio::test]
async fn a_response_that_could_not_be_replaced_is_removed() {
    let folder = Folder::new();
    let cache = Cache::open(folder.path(), &crate::event::Events::new());
    cache.store_now(key(1), &requested_at(Wall(1), 1, "old"), Wall(1));
    cache.store_now(key(2), &requested_at(Wall(1), 1, "other"), Wall(1));
    cache.flush().await;
    let holder = Connection::open(folder.file()).unwrap();
    holder.execute_batch("BEGIN IMMEDIATE").unwrap();
    cache.store_now(key(1), &requested_at(Wall(2), 1, "new"), Wall(2));
    cache.flush().await;
    holder.execute_batch("COMMIT").unwrap();
    cache.close().await;
    let next = Cache::open(folder.path(), &crate::event::Events::new());
    assert!(bodies(&next, 1).await.is_empty());
    assert_eq!(bodies(&next, 2).await, ["other"]);
}

/// A process that has not seen a removal yet does not store the response again.
#[tokio::test]
async fn a_late_store_in_another_process_does_not_undo_a_purge_or_change() {
    const SECOND: u64 = 1_000_000;
    let folder = Folder::new();
    let cache = Cache::open(folder.path(), &crate::event::Events::new());
    let conn = Connection::open(folder.file()).unwrap();
    // As another process leaves it: this one has not seen it, because it reads nothing.
    let purges = "INSERT INTO purges (url, at, provider, entity) VALUES (?1, ?2, ?3, ?4)";
    let url = UrlHash([7; 16]);
    let at = i64::try_from(100 * SECOND).unwrap();
    let all: Option<&str> = None;
    conn.execute(purges, (Some(url.0), at, all, all)).unwrap();
    conn.execute(purges, (None::<[u8; 16]>, at, Some("y"), all))
        .unwrap();
    let of = |provider: &str, url: u8, stored: u64, body: &str| {
        let mut object = (*object(1, body)).clone();
        object.provider = provider.to_owned();
        (object.stored, object.url) = (Wall(stored * SECOND), UrlHash([url; 16]));
        Arc::new(object)
    };
    let now = Wall(101 * SECOND);
    let put = |number, object: &Arc<CachedResponse>| {
        let disk = cache.shared.stored.as_ref().unwrap();
        disk.put(key(number), object, now);
    };
    put(1, &of("x", 7, 99, "before the change"));
    put(2, &of("y", 8, 99, "before the purge"));
    put(3, &of("x", 8, 99, "of another provider"));
    put(4, &of("y", 7, 101, "after both"));
    put(5, &of("x", 9, 101, "newer"));
    put(5, &of("x", 9, 100, "older"));
    cache.flush().await;
    let next = Cache::open(folder.path(), &crate::event::Events::new());
    assert!(bodies(&next, 1).await.is_empty());
    assert!(bodies(&next, 2).await.is_empty());
    assert_eq!(bodies(&next, 3).await, ["of another provider"]);
    assert_eq!(bodies(&next, 4).await, ["after both"]);
    assert_eq!(bodies(&next, 5).await, ["newer"]);
}

/// A purge records its time: a response requested before it is stored too late.
#[tokio::test]
async fn a_purge_records_its_time() {
    let folder = Folder::new();
    let cache = Cache::open(folder.path(), &crate::event::Events::new());
    cache.purge(Some("x"), None).await;
    purge(folder.path(), None, None).unwrap();
    let conn = Connection::open(folder.file()).unwrap();
    let count = "SELECT count(*) FROM purges WHERE at > 1700000000000000";
    let count: i64 = conn.query_row(count, [], |row| row.get(0)).unwrap();
    assert_eq!(count, 2);
}

/// Several large responses to one URL that do not fit one variant set: each is found.
#[tokio::test]
async fn large_variants_that_do_not_fit_one_set_are_all_found() {
    let folder = Folder::new();
    let cache = Cache::open(folder.path(), &crate::event::Events::new());
    for variant in 1..=3 {
        let body = format!("{variant}").repeat(7 << 20);
        cache.store_now(key(1), &requested_at(Wall(1), variant, &body), Wall(1));
        cache.flush().await;
    }
    let next = Cache::open(folder.path(), &crate::event::Events::new());
    let mut seen = Vec::new();
    let mut variants = next.find(&key(1), Wall(1)).await;
    while let Some(found) = variants {
        seen.extend(found.objects().iter().map(|object| object.variant));
        assert!(seen.len() < 10, "it ends");
        variants = next.find_other_variants(&key(1), &seen, Wall(1)).await;
    }
    for variant in 1..=3 {
        assert!(
            seen.contains(&Variant([variant; 16])),
            "{variant}: {seen:?}"
        );
    }
}

/// Only the owner may read responses, also in a recreated file.
#[cfg(unix)]
#[tokio::test]
async fn a_recreated_file_is_readable_by_its_owner_only() {
    use std::os::unix::fs::PermissionsExt;
    let folder = Folder::new();
    std::fs::create_dir_all(folder.path()).unwrap();
    std::fs::write(
        folder.file(),
        "no database at all, and long enough to be seen as one".repeat(99),
    )
    .unwrap();
    let cache = Cache::open(folder.path(), &crate::event::Events::new());
    cache.store_now(key(1), &object(1, "a"), Wall(1));
    cache.flush().await;
    for file in [folder.file(), folder.file().with_extension("db-wal")] {
        let mode = std::fs::metadata(&file).unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0, "{file:?} {mode:o}");
    }
}

/// A check for damage does not create the file.
#[test]
fn checking_a_missing_file_for_damage_does_not_create_it() {
    let folder = Folder::new();
    std::fs::create_dir_all(folder.path()).unwrap();
    assert!(!database::is_damaged(&folder.file()));
    assert!(!folder.file().exists());
}
