//! A folder that the program before this row format wrote is read and goes on counting.
//!
//! `tests/fixtures/format-3` was written by the program of format 3 at `sqlite::START`, before the rows
//! had the present format: five algorithms in use, one scope closed, one probing by an operator's
//! word, and one process that waits. Its boot is called `another`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rusqlite::Connection;
use smallvec::smallvec;
use tollgate_core::ask::ScopeId;
use tollgate_core::limit::{Calendar, CalendarPeriod, Rule};
use tollgate_core::scope::ScopeView;
use tollgate_core::time::Span;

use crate::backend::{Backend, Owner, secs, sliding, term};
use crate::sqlite::Sqlite;

const HOUR: Span = Span::from_secs(3_600);

fn rules() -> [(&'static str, Arc<Rule>); 5] {
    let calendar = Calendar::new(CalendarPeriod::Day, jiff::tz::TimeZone::UTC);
    [
        ("sliding", sliding(300, HOUR)),
        (
            "bucket",
            Arc::new(Rule::bucket(100, HOUR, 100).unwrap().drift_ppm(0)),
        ),
        (
            "fixed",
            Arc::new(Rule::fixed(300, HOUR).unwrap().drift_ppm(0)),
        ),
        ("calendar", Arc::new(Rule::calendar(300, calendar).unwrap())),
        ("short", sliding(5, secs(10))),
    ]
}

fn fixture() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/format-3")
}

/// The fixture in a folder of its own; `boot` is what it takes for its boot.
fn opened(boot: &str) -> Sqlite {
    let backend = Sqlite::new();
    std::fs::create_dir_all(backend.folder.path()).unwrap();
    for file in ["ledger.db", "ledger.lock"] {
        std::fs::copy(fixture().join(file), backend.folder.path().join(file)).unwrap();
    }
    let conn = Connection::open(backend.folder.path().join("ledger.db")).unwrap();
    conn.execute("UPDATE meta SET boot = ?1", [boot]).unwrap();
    backend
}

fn this_boot() -> String {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let clock = std::fs::read_link("/proc/self/ns/time").unwrap();
    format!("{} {}", boot.trim(), clock.to_string_lossy())
}

/// What was counted goes on, of this boot and of one before it.
#[tokio::test]
async fn a_folder_of_format_3_goes_on_with_its_counts_and_scopes() {
    for boot in [this_boot(), "another".to_owned()] {
        let backend = opened(&boot);
        let mut owner = Owner::new(&backend, 9);
        for (cell, rule) in rules() {
            let view = owner.peek(cell, &rule).await;
            if cell == "short" && boot == "another" {
                assert_eq!(view.remaining, 0, "short limits start used up");
            } else {
                assert_eq!(view.used, 4, "{cell} of {boot}");
            }
        }
        let resting = owner.peek_scope(ScopeId::named(&["resting"])).await;
        let remaining = Some(HOUR);
        assert_eq!(resting, ScopeView::Closed { remaining });
        let off = owner.peek_scope(ScopeId::named(&["off"])).await;
        assert_eq!(off, ScopeView::CacheOnly { remaining: None });
        // One of four is still on its way; the three that arrived leave after an hour.
        backend.pass(HOUR);
        let sliding = &rules()[0];
        assert_eq!(owner.peek(sliding.0, &sliding.1).await.used, 1);
        owner
            .take(smallvec![term(sliding.0, &sliding.1)])
            .await
            .unwrap();
        assert_eq!(owner.ledger.ledger().damaged_rows(), 0);
        drop(owner);
        let conn = Connection::open(backend.folder.path().join("ledger.db")).unwrap();
        let (format, row): (i64, Vec<u8>) = conn
            .query_row(
                "SELECT user_version, state FROM cells, pragma_user_version WHERE id = ?1",
                [&term(sliding.0, &sliding.1).cell.0.to_le_bytes()[..]],
                |row| Ok((row.get(0)?, row.get(1)?)),
            )
            .unwrap();
        assert_eq!((format, row[0]), (4, tollgate_core::row::FORMAT));
    }
}
