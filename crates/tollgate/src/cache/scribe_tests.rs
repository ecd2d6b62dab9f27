//! Orders that could not be obeyed at once: what must be forgotten is forgotten all the same.

use std::sync::mpsc::sync_channel;

use super::super::tests::{Folder, bodies, key, object};
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

/// An answer that does not fit is the only one that is not written.
#[tokio::test]
async fn an_answer_that_does_not_fit_takes_no_invalidation_with_it() {
    let folder = Folder::new();
    let mut scribe = scribe(&folder).await;
    let large = object(1, &"z".repeat(2_000_000));
    scribe.pending.store(large.weight(), Ordering::Release);
    let batch = vec![forget(), Write::Put(key(2), large, Wall(5))];
    let full = scribe.obey(batch).unwrap_err();
    assert_eq!(full.sqlite_error_code(), Some(ErrorCode::DiskFull));
    assert!(rows(&folder.0).unwrap().is_empty());
}

/// Answers that come together and do not all fit: the last ones are there, and no more than fit.
#[tokio::test]
async fn of_answers_that_do_not_all_fit_the_last_ones_are_kept() {
    let folder = Folder::new();
    let mut scribe = scribe(&folder).await;
    let answer = object(1, &"z".repeat(10_000));
    let put = |number: u8| Write::Put(key(number), answer.clone(), Wall(u64::from(number)));
    scribe
        .pending
        .store(100 * answer.weight(), Ordering::Release);
    scribe.obey((2..102).map(put).collect()).unwrap();
    let next = Cache::open(&folder.0);
    assert!(bodies(&next, 2).await.is_empty());
    assert_eq!(bodies(&next, 101).await.len(), 1);
    let kept = &rows(&folder.0).unwrap()[0];
    assert!(kept.bytes <= BYTES_MAX && kept.answers > 5, "{kept:?}");
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
