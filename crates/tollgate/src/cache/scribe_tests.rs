//! Orders that could not be obeyed at once: what must be forgotten is forgotten all the same.

use std::sync::mpsc::sync_channel;

use super::super::tests::{Folder, key, object};
use super::super::{Cache, DATABASE, rows};
use super::*;

const BYTES_MAX: u64 = 200_000;

/// The writer of a file with one answer in it.
async fn scribe(folder: &Folder) -> Scribe {
    let cache = Cache::open_with(&folder.0, BYTES_MAX);
    cache.put(key(1), &object(1, "a"), Wall(1));
    cache.flush().await;
    let (conn, _) = book::open(&folder.0, BYTES_MAX).expect("a folder of our own");
    // Whoever holds the file is met at once.
    conn.busy_timeout(Duration::ZERO)
        .expect("an open connection");
    Scribe {
        conn,
        bytes_max: BYTES_MAX,
        since_check: 0,
        pending: Arc::default(),
        overdue: Arc::default(),
        broken: Arc::default(),
        path: folder.0.join(DATABASE),
        held_back: Vec::new(),
    }
}

fn forget() -> Write {
    Write::Invalidate(object(1, "a").url, Wall(5))
}

/// Where there is no room, SQLite takes back the whole transaction, and with it what was forgotten
/// beside an answer that does not fit.
#[tokio::test]
async fn an_answer_that_does_not_fit_takes_no_invalidation_with_it() {
    let folder = Folder::new();
    let mut scribe = scribe(&folder).await;
    let large = object(1, &"z".repeat(2_000_000));
    scribe.pending.store(large.weight(), Ordering::Release);
    let batch = vec![forget(), Write::Put(key(2), large, Wall(5))];
    let full = scribe.obey(batch).unwrap_err();
    assert_eq!(full.sqlite_error_code(), Some(ErrorCode::DiskFull));
    assert_eq!(rows(&folder.0).unwrap().len(), 1, "it was all taken back");
    let again = std::mem::take(&mut scribe.held_back);
    scribe.obey(again).unwrap();
    assert!(rows(&folder.0).unwrap().is_empty());
}

/// What was held back while somebody else held the file is done at the end.
#[tokio::test]
async fn what_was_held_back_is_done_when_nobody_orders_any_more() {
    let folder = Folder::new();
    let mut scribe = scribe(&folder).await;
    let holder = Connection::open(folder.file()).unwrap();
    holder.execute_batch("BEGIN IMMEDIATE").unwrap();
    scribe.obey(vec![forget()]).unwrap_err();
    assert_eq!(scribe.held_back.len(), 1);
    let (orders, taken) = sync_channel(1);
    drop(orders);
    let ending = std::thread::spawn(move || scribe.run(&taken));
    std::thread::park_timeout(AGAIN_AFTER / 2);
    holder.execute_batch("COMMIT").unwrap();
    ending.join().unwrap();
    assert!(rows(&folder.0).unwrap().is_empty());
}
