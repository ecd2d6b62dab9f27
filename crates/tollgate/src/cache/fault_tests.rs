//! Faults of `cache.db`, at the start and in use: the cache still serves responses, and removals
//! still happen.

use rusqlite::Connection;

use super::tests::{Folder, bodies, key, object, open_with};
use super::*;

/// Another process that holds the file.
struct FileLock(Connection);

impl FileLock {
    fn of(folder: &Folder) -> FileLock {
        let conn = Connection::open(folder.file()).unwrap();
        conn.execute_batch("BEGIN IMMEDIATE").unwrap();
        FileLock(conn)
    }

    fn release(self) {
        self.0.execute_batch("COMMIT").unwrap();
    }
}

#[tokio::test]
async fn a_file_locked_at_startup_means_memory_only() {
    let folder = Folder::new();
    drop(Cache::open(folder.path(), &crate::event::Events::new()));
    let holder = FileLock::of(&folder);
    let cache = Cache::open(folder.path(), &crate::event::Events::new());
    cache.store_now(key(1), &object(1, "a"), Wall(1));
    assert_eq!(bodies(&cache, 1).await, ["a"]);
    assert_eq!(cache.purge(None, None).await, 1);
    holder.release();
}

/// Responses that cannot be written are served from memory; later ones are written again.
#[tokio::test]
async fn a_file_locked_for_a_while_is_used_again_afterwards() {
    let folder = Folder::new();
    let cache = Cache::open(folder.path(), &crate::event::Events::new());
    cache.store_now(key(1), &object(1, "a"), Wall(1));
    cache.flush().await;
    let holder = FileLock::of(&folder);
    cache.store_now(key(2), &object(1, "b"), Wall(1));
    cache.flush().await;
    assert_eq!(bodies(&cache, 2).await, ["b"]);
    holder.release();
    cache.store_now(key(3), &object(1, "c"), Wall(1));
    cache.flush().await;
    let next = Cache::open(folder.path(), &crate::event::Events::new());
    assert_eq!(bodies(&next, 1).await, ["a"]);
    assert!(
        bodies(&next, 2).await.is_empty(),
        "the store was not retried"
    );
    assert_eq!(bodies(&next, 3).await, ["c"]);
}

/// A purge is not lost because another process writes: the reply comes when it is done.
#[tokio::test]
async fn a_purge_waits_for_a_locked_file() {
    let folder = Folder::new();
    let cache = Cache::open(folder.path(), &crate::event::Events::new());
    let url = object(1, "bb").url;
    cache.store_now(key(1), &object(1, "a"), Wall(1));
    cache.store_now(key(2), &object(1, "bb"), Wall(1));
    cache.flush().await;
    let holder = FileLock::of(&folder);
    cache.invalidate(Some(&key(2)), url, Wall(5));
    let purging = cache.clone();
    let purge = tokio::spawn(async move { purging.purge(Some("x"), Some("a")).await });
    // Meanwhile no purged response is served, and this flush is told that it failed.
    cache.flush().await;
    assert!(bodies(&cache, 1).await.is_empty() && !purge.is_finished());
    holder.release();
    assert_eq!(purge.await.unwrap(), 1);
    let next = Cache::open(folder.path(), &crate::event::Events::new());
    assert!(bodies(&next, 1).await.is_empty());
    assert!(bodies(&next, 2).await.is_empty());
}

/// Closing waits for removals; without them the responses would come back with the next start.
#[tokio::test]
async fn closing_waits_for_pending_removals() {
    let folder = Folder::new();
    let cache = Cache::open(folder.path(), &crate::event::Events::new());
    cache.store_now(key(1), &object(1, "a"), Wall(1));
    cache.flush().await;
    let holder = FileLock::of(&folder);
    cache.invalidate(Some(&key(1)), object(1, "a").url, Wall(5));
    let closing = cache.clone();
    let closing = tokio::spawn(async move { closing.close().await });
    // Twice: the second reply comes after the attempt of the first.
    cache.flush().await;
    cache.flush().await;
    assert!(!closing.is_finished());
    holder.release();
    closing.await.unwrap();
    assert!(usage(folder.path()).unwrap().is_empty());
}

/// A file with forty responses, all of it in the file itself, and then garbage from there on.
async fn damaged(from: impl Fn(usize) -> usize) -> Folder {
    let folder = Folder::new();
    let cache = Cache::open(folder.path(), &crate::event::Events::new());
    for number in 0..40 {
        cache.store_now(key(number), &object(1, &"x".repeat(5_000)), Wall(1));
    }
    cache.flush().await;
    drop(cache);
    let conn = Connection::open(folder.file()).unwrap();
    conn.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))
        .unwrap();
    drop(conn);
    let mut bytes = std::fs::read(folder.file()).unwrap();
    let from = from(bytes.len());
    bytes[from..].fill(0x5a);
    std::fs::write(folder.file(), &bytes).unwrap();
    folder
}

/// A file that is damaged after a valid beginning is recreated at the start.
#[tokio::test]
async fn a_file_with_unreadable_tables_is_recreated() {
    let folder = damaged(|_| 4_096).await;
    let cache = Cache::open(folder.path(), &crate::event::Events::new());
    assert!(folder.path().join("cache.db.damaged").exists());
    cache.store_now(key(1), &object(1, "a"), Wall(1));
    cache.flush().await;
    assert_eq!(
        bodies(&Cache::open(folder.path(), &crate::event::Events::new()), 1).await,
        ["a"]
    );
}

/// A file that is found damaged in use is moved aside; the next start creates a new one.
#[tokio::test]
async fn a_file_found_damaged_while_in_use_is_moved_aside() {
    let folder = damaged(|length| length / 2).await;
    let cache = Cache::open(folder.path(), &crate::event::Events::new());
    let aside = folder.path().join("cache.db.damaged");
    for number in 0..40 {
        bodies(&cache, number).await;
    }
    while !aside.exists() {
        tokio::task::yield_now().await; // it is looked through beside what calls wait for
    }
    cache.store_now(key(50), &object(1, "new"), Wall(1));
    cache.flush().await;
    assert_eq!(bodies(&cache, 50).await, ["new"], "in memory");
    let next = Cache::open(folder.path(), &crate::event::Events::new());
    next.store_now(key(1), &object(1, "a"), Wall(1));
    next.flush().await;
    assert_eq!(
        bodies(&Cache::open(folder.path(), &crate::event::Events::new()), 1).await,
        ["a"]
    );
}

/// A file that may not grow is no failure: responses that do not fit stay in memory, and eviction
/// makes room.
#[tokio::test]
async fn a_full_file_evicts_and_keeps_working() {
    let folder = Folder::new();
    let cache = open_with(folder.path(), 200_000);
    cache.store_now(key(1), &object(1, &"z".repeat(2_000_000)), Wall(1));
    cache.flush().await;
    assert_eq!(bodies(&cache, 1).await[0].len(), 2_000_000, "in memory");
    assert!(usage(folder.path()).unwrap().is_empty());
    for number in 2..30 {
        cache.store_now(key(number), &object(1, &"y".repeat(20_000)), Wall(2));
        cache.flush().await;
    }
    let kept = usage(folder.path()).unwrap();
    assert!(
        kept[0].bytes <= 200_000 && kept[0].responses > 1,
        "{kept:?}"
    );
    let size = std::fs::metadata(folder.file()).unwrap().len();
    assert!(size < 700_000, "{size}");
}

#[tokio::test]
async fn a_folder_in_place_of_the_file_means_memory_only() {
    let folder = Folder::new();
    std::fs::create_dir_all(folder.file()).unwrap();
    let cache = Cache::open(folder.path(), &crate::event::Events::new());
    cache.store_now(key(1), &object(1, "a"), Wall(1));
    assert_eq!(bodies(&cache, 1).await, ["a"]);
}

/// Removals that do not fit in the queue are not lost, and they are bounded.
#[tokio::test]
async fn removals_are_not_lost_when_the_queue_is_full() {
    let folder = Folder::new();
    let cache = Cache::open(folder.path(), &crate::event::Events::new());
    cache.store_now(key(1), &object(1, "a"), Wall(1));
    cache.flush().await;
    let busy = Connection::open(folder.file()).unwrap();
    busy.execute_batch("BEGIN IMMEDIATE").unwrap();
    let url = object(1, "a").url;
    for number in 0..12_000_u32 {
        let mut other = [0; 16];
        other[..4].copy_from_slice(&number.to_le_bytes());
        cache.invalidate(None, UrlHash(other), Wall(1));
    }
    cache.invalidate(None, url, Wall(1));
    busy.execute_batch("COMMIT").unwrap();
    // While the writer removes them, the file may be busy for longer than a reader waits.
    while !usage(folder.path()).is_ok_and(|usage| usage.is_empty()) {
        tokio::task::yield_now().await;
    }
}
