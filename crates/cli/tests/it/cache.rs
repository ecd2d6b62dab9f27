//! `tollgate cache stats` and `purge`.

use crate::folder::Folder;

/// M11: what a gateway keeps is there for the next one and can be looked at and forgotten.
#[test]
fn stats_and_purge_of_an_empty_folder_succeed() {
    let folder = Folder::new("cache-empty");
    let store = format!("sqlite:{}", folder.path().display());
    let said = folder.run(&["cache", "stats", "--store", &store]);
    assert_eq!(said.code, Some(0), "{}", said.err);
    assert!(said.out.starts_with("nothing is kept in "), "{}", said.out);
    let said = folder.run(&["cache", "purge", "--store", &store]);
    assert_eq!(said.out, "0 answers forgotten\n");
}

#[test]
fn an_entity_needs_its_provider_and_memory_cannot_be_purged_from_outside() {
    let folder = Folder::new("cache-usage");
    let said = folder.run(&["cache", "purge", "--entity", "odds"]);
    assert_eq!(said.code, Some(2), "{}", said.err);
    let said = folder.run(&["cache", "purge", "--store", "memory:"]);
    assert_eq!(said.code, Some(1));
    assert!(said.err.contains("no daemon answers"), "{}", said.err);
}

/// A Redis that somebody else's settings name does not take the answers off the disk.
#[test]
fn redis_host_does_not_turn_the_disk_cache_off() {
    let folder = Folder::new("cache-redis").env("REDIS_HOST", "localhost");
    let store = format!("sqlite:{}", folder.path().display());
    let said = folder.run(&["cache", "stats", "--store", &store]);
    assert_eq!(said.code, Some(0), "{}", said.err);
    assert!(said.out.starts_with("nothing is kept in "), "{}", said.out);
}
