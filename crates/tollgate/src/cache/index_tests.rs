//! The index: a key that is not in it costs no disk read, and every key of the file gets into it.

use super::*;

fn key(number: u32) -> CacheKey {
    let mut key = [7; 32];
    key[..4].copy_from_slice(&number.to_le_bytes());
    CacheKey(key)
}

/// A file with these keys.
fn file(keys: impl IntoIterator<Item = u32>) -> Connection {
    let conn = Connection::open_in_memory().unwrap();
    let table = "CREATE TABLE answers (id INTEGER PRIMARY KEY, key BLOB NOT NULL, variant BLOB,
                   UNIQUE (key, variant))";
    conn.execute_batch(table).unwrap();
    keys.into_iter().for_each(|number| write(&conn, number));
    conn
}

fn write(conn: &Connection, number: u32) {
    let insert = "INSERT INTO answers (key) VALUES (?1)";
    conn.execute(insert, [key(number).0]).unwrap();
}

/// The time of a load.
#[expect(
    clippy::disallowed_methods,
    reason = "an Instant can only be derived from another one"
)]
fn start() -> Instant {
    Instant::now()
}

fn index_of(conn: &Connection) -> (Arc<Index>, IndexLoader) {
    let index = Arc::new(Index::default());
    let mut loader = IndexLoader::new(index.clone());
    while loader.load_step(conn, start()).unwrap() {}
    (index, loader)
}

#[test]
fn before_all_keys_are_loaded_every_key_may_exist() {
    let index = Arc::new(Index::default());
    let mut loader = IndexLoader::new(index.clone());
    let conn = file([2]);
    assert!(loader.load_step(&conn, start()).unwrap());
    assert!(index.may_have(&key(1)));
    assert!(!loader.load_step(&conn, start()).unwrap());
    assert!(!index.may_have(&key(1)) && index.may_have(&key(2)));
}

#[test]
fn many_keys_are_loaded_in_steps_and_none_is_missed() {
    let conn = file(0..2_500);
    let (index, mut steps) = (Arc::new(Index::default()), 0);
    let mut loader = IndexLoader::new(index.clone());
    while loader.load_step(&conn, start()).unwrap() {
        steps += 1;
    }
    assert_eq!(steps, 3, "the start and two full steps");
    assert!((0..2_500).all(|number| index.may_have(&key(number))));
    assert!(!index.may_have(&key(2_500)));
}

#[test]
fn own_keys_are_known_at_once_and_foreign_keys_after_the_next_poll() {
    let conn = file([]);
    let (index, mut loader) = index_of(&conn);
    index.put(&key(1));
    assert!(index.may_have(&key(1)));
    write(&conn, 2);
    assert!(!index.may_have(&key(2)));
    assert!(!loader.load_new(&conn).unwrap());
    assert!(index.may_have(&key(2)) && index.may_have(&key(1)));
}

/// A key written during a load is not lost, although the load does not read it.
#[test]
fn keys_written_during_a_load_are_known_afterwards() {
    let conn = file((10..2_000).map(u32::to_be));
    let (index, mut written) = (Arc::new(Index::default()), Vec::new());
    let mut loader = IndexLoader::new(index.clone());
    loader.load_step(&conn, start()).unwrap();
    loader.load_step(&conn, start()).unwrap();
    for number in [1_u32, 2] {
        written.push(key(number.to_be()));
        write(&conn, number.to_be());
    }
    index.put(&key(3_u32.to_be()));
    written.push(key(3_u32.to_be()));
    while loader.load_step(&conn, start()).unwrap() || loader.load_new(&conn).unwrap() {}
    assert!(written.iter().all(|key| index.may_have(key)));
    assert!(!index.may_have(&key(4_u32.to_be())));
}

#[test]
fn a_missing_key_is_looked_up_once() {
    let (index, loader) = index_of(&file([1]));
    loader.remove(&key(1));
    assert!(!index.may_have(&key(1)));
}

/// Ids start again where the last rows were deleted: all keys are reloaded, but not continuously.
#[test]
fn a_missed_key_is_found_by_the_next_reload() {
    let conn = file([1, 2, 3]);
    let (index, mut loader) = index_of(&conn);
    conn.execute("DELETE FROM answers", []).unwrap();
    write(&conn, 4);
    loader.load_new(&conn).unwrap();
    assert!(!index.may_have(&key(4)), "its id was used before");
    assert!(!loader.load_step(&conn, start()).unwrap(), "not yet");
    let later = start() + RELOAD_AFTER;
    while loader.load_step(&conn, later).unwrap() {}
    assert!(index.may_have(&key(4)) && !index.may_have(&key(1)));
}

#[test]
fn past_the_bound_every_key_may_exist_until_the_next_reload() {
    let conn = file([1]);
    let (index, mut loader) = index_of(&conn);
    {
        let mut state = index.state.lock();
        (0..=KEYS_MAX as u64).for_each(|key| state.add(key));
        assert!(!state.is_complete && state.keys.capacity() == 0);
    }
    assert!(index.may_have(&key(9)));
    assert!(!loader.load_step(&conn, start()).unwrap(), "not yet");
    let later = start() + RELOAD_AFTER;
    while loader.load_step(&conn, later).unwrap() {}
    assert!(!index.may_have(&key(9)) && index.may_have(&key(1)));
}

#[test]
fn a_load_with_too_many_keys_is_abandoned() {
    let conn = file(0..10);
    let (index, mut loader) = (Arc::new(Index::default()), IndexLoader::new(Arc::default()));
    loader.index = index.clone();
    loader.load_step(&conn, start()).unwrap();
    {
        let mut state = index.state.lock();
        (0..=KEYS_MAX as u64).for_each(|key| state.add(key));
        assert!(state.loading.is_none());
    }
    assert!(!loader.load_step(&conn, start()).unwrap());
    assert!(index.may_have(&key(99)) && loader.is_reload_due);
}
