//! `tollgate cache stats` and `purge`.

use crate::folder::Folder;

/// M11: the next gateway finds the cached responses of the last one, and commands can list and
/// purge them.
#[test]
fn stats_and_purge_of_an_empty_folder_succeed() {
    let folder = Folder::new("cache-empty");
    let store = format!("sqlite:{}", folder.path().display());
    let output = folder.run(&["cache", "stats", "--store", &store]);
    assert_eq!(output.code, Some(0), "{}", output.err);
    assert!(
        output.out.starts_with("nothing is cached in "),
        "{}",
        output.out
    );
    let output = folder.run(&["cache", "purge", "--store", &store]);
    assert_eq!(output.out, "0 responses purged\n");
}

#[test]
fn an_entity_needs_its_provider_and_memory_cannot_be_purged_from_outside() {
    let folder = Folder::new("cache-usage");
    let output = folder.run(&["cache", "purge", "--entity", "odds"]);
    assert_eq!(output.code, Some(2), "{}", output.err);
    let output = folder.run(&["cache", "purge", "--store", "memory:"]);
    assert_eq!(output.code, Some(1));
    assert!(output.err.contains("no daemon responds"), "{}", output.err);
}

/// With a cache in Redis there is no folder to look into, and the message says so.
#[test]
fn a_cache_in_redis_is_seen_by_a_daemon_only() {
    let folder = Folder::new("cache-redis").env("REDIS_HOST", "localhost");
    let store = format!("sqlite:{}", folder.path().display());
    let output = folder.run(&["cache", "stats", "--store", &store]);
    assert_eq!(output.code, Some(1), "{}", output.out);
    assert!(output.err.contains("in Redis"), "{}", output.err);
}
