//! Commands that could not be executed at once: removals still happen.

use std::sync::mpsc::sync_channel;

use super::super::tests::{Folder, bodies, key, object, open_with};
use super::super::{Cache, DATABASE, usage};
use super::*;

const BYTES_MAX: u64 = 200_000;

/// The writer of a file with one response in it.
async fn writer(folder: &Folder) -> CacheWriter {
    let cache = open_with(folder.path(), BYTES_MAX);
    cache.store_now(key(1), &object(1, "a"), Wall(1));
    cache.flush().await;
    let (conn, _) = database::open(folder.path(), BYTES_MAX).expect("a folder of our own");
    // A locked file fails at once.
    conn.busy_timeout(Duration::ZERO)
        .expect("an open connection");
    CacheWriter {
        conn,
        bytes_max: BYTES_MAX,
        since_check: 0,
        pending_bytes: Arc::default(),
        backlog: Arc::default(),
        broken: Arc::default(),
        events: crate::event::Events::new(),
        path: folder.path().join(DATABASE),
        deferred: Vec::new(),
        free_bytes: |_| None,
        is_growth_stopped: false,
    }
}

/// The cache shares its disk with the ledger, which rejects calls when it has no room.
#[tokio::test]
async fn the_file_does_not_grow_while_the_disk_has_little_room() {
    let folder = Folder::new();
    let mut writer = writer(&folder).await;
    writer.bytes_max = 10 * BYTES_MAX;
    let size = |writer: &CacheWriter| -> i64 {
        let conn = &writer.conn;
        conn.query_row("PRAGMA page_count", [], |row| row.get(0))
            .unwrap()
    };
    let reply = object(1, &"z".repeat(1_000));
    let store = |writer: &mut CacheWriter, numbers: std::ops::Range<u8>| {
        let puts = numbers.map(|n| WriteCommand::Put(key(n), reply.clone(), Wall(u64::from(n))));
        let puts: Vec<_> = puts.collect();
        let weight = puts.len() as u64 * reply.weight();
        writer.pending_bytes.fetch_add(weight, Ordering::AcqRel);
        writer.execute(puts).unwrap();
    };
    writer.free_bytes = |_| Some(DISK_FREE_MIN - 1);
    for begin in [10, 60, 110, 160] {
        store(&mut writer, begin..begin + 50);
    }
    assert!(size(&writer) <= 64, "{} pages", size(&writer));
    let stored = usage(folder.path()).unwrap()[0].responses;
    assert!(stored > 5, "new responses replace others: {stored}");
    writer.free_bytes = |_| Some(DISK_FREE_MIN);
    store(&mut writer, 210..250);
    assert!(usage(folder.path()).unwrap()[0].responses > stored);
}

fn removal() -> WriteCommand {
    WriteCommand::Invalidate(object(1, "a").url, Wall(5))
}

/// A response that does not fit is the only one that is not written.
#[tokio::test]
async fn a_response_that_does_not_fit_loses_no_invalidation() {
    let folder = Folder::new();
    let mut writer = writer(&folder).await;
    let large = object(1, &"z".repeat(2_000_000));
    writer
        .pending_bytes
        .store(large.weight(), Ordering::Release);
    let batch = vec![removal(), WriteCommand::Put(key(2), large, Wall(5))];
    let full = writer.execute(batch).unwrap_err();
    assert_eq!(full.sqlite_error_code(), Some(ErrorCode::DiskFull));
    assert!(usage(folder.path()).unwrap().is_empty());
}

/// Of responses that come together and do not all fit, the last ones are stored, and no more than
/// fit.
#[tokio::test]
async fn when_responses_do_not_all_fit_the_last_ones_are_stored() {
    let folder = Folder::new();
    let mut writer = writer(&folder).await;
    let reply = object(1, &"z".repeat(10_000));
    let put = |number: u8| WriteCommand::Put(key(number), reply.clone(), Wall(u64::from(number)));
    writer
        .pending_bytes
        .store(100 * reply.weight(), Ordering::Release);
    writer.execute((2..102).map(put).collect()).unwrap();
    let next = Cache::open(folder.path(), &crate::event::Events::new());
    assert!(bodies(&next, 2).await.is_empty());
    assert_eq!(bodies(&next, 101).await.len(), 1);
    let kept = &usage(folder.path()).unwrap()[0];
    assert!(kept.bytes <= BYTES_MAX && kept.responses > 5, "{kept:?}");
}

/// Removals that were deferred while another process held the file are executed at shutdown.
#[tokio::test]
async fn deferred_removals_are_done_at_shutdown() {
    let folder = Folder::new();
    let mut writer = writer(&folder).await;
    let holder = Connection::open(folder.file()).unwrap();
    holder.execute_batch("BEGIN IMMEDIATE").unwrap();
    writer.execute(vec![removal()]).unwrap_err();
    assert_eq!(writer.deferred.len(), 1);
    let (orders, taken) = sync_channel(1);
    drop(orders);
    let ending = std::thread::spawn(move || writer.run(&taken));
    std::thread::park_timeout(RETRY_AFTER / 2);
    holder.execute_batch("COMMIT").unwrap();
    ending.join().unwrap();
    assert!(usage(folder.path()).unwrap().is_empty());
}

/// Fills the file: the next purge that frees nothing finds no room.
fn fill(writer: &CacheWriter) {
    let number = |sql: &str| -> i64 { writer.conn.query_row(sql, [], |row| row.get(0)).unwrap() };
    let pages = number("PRAGMA page_count");
    number(&format!("PRAGMA max_page_count = {pages}"));
    while admin::purge_rows(&writer.conn, Some("nobody"), None).is_ok() {}
}

/// A purge on a full disk waits until there is room, and meanwhile no affected response is read.
#[tokio::test]
async fn a_purge_on_a_full_disk_is_not_lost() {
    let folder = Folder::new();
    let mut writer = writer(&folder).await;
    fill(&writer);
    let (reply, mut done) = oneshot::channel();
    let purge = writer.backlog.purge(Some("nobody".to_owned()), None, reply);
    let full = writer.execute(vec![purge]).unwrap_err();
    assert!(is_full(&full) && writer.backlog.is_purging());
    assert!(done.try_recv().is_err());
    let room = "PRAGMA max_page_count = 1000";
    writer.conn.query_row(room, [], |_| Ok(())).unwrap();
    let again = std::mem::take(&mut writer.deferred);
    writer.execute(again).unwrap();
    assert_eq!(done.try_recv(), Ok(0));
    assert!(!writer.backlog.is_purging());
}

/// Responses whose removal fails at shutdown for lack of room would come back: the file is deleted.
#[tokio::test]
async fn removals_that_fail_at_shutdown_delete_the_file() {
    let folder = Folder::new();
    let mut writer = writer(&folder).await;
    fill(&writer);
    let all = writer
        .backlog
        .purge(Some("nobody".to_owned()), None, oneshot::channel().0);
    let (last, mut ended) = oneshot::channel();
    writer
        .execute(vec![all, WriteCommand::Close(last)])
        .unwrap_err();
    assert_eq!(ended.try_recv(), Ok(()));
    assert!(!folder.file().exists());
    assert!(
        bodies(&Cache::open(folder.path(), &crate::event::Events::new()), 1)
            .await
            .is_empty()
    );
}
