//! Statements that change `cache.db`.
//!
//! Promises: room for a response is made by evicting the least recently used ones. A response that is
//! older than a removal of its URL is not written.
//!
//! Never: decides when; `writer` does.

use rusqlite::{Connection, ErrorCode, params};
use tollgate_core::time::Wall;

use super::disk::variants_max;
use super::key::{UrlHash, Variant};
use super::stored_form::encode_head;
use super::{CacheKey, CachedResponse, admin};

/// How often room is made for one response, each time more.
const PUT_TRIES: u64 = 3;

/// Eviction frees this fraction of the whole (one twentieth), so that it does not run for every
/// response.
pub(super) const EVICT_FRACTION: u64 = 20;

/// Responses evicted at once; more follow with the next batch.
const EVICT_MAX: i64 = 4_096;

/// Evicts expired responses, then the least recently used.
pub(super) fn evict_excess(conn: &Connection, bytes_max: u64, now: Wall) -> rusqlite::Result<()> {
    conn.execute(
        "DELETE FROM answers WHERE id IN (SELECT id FROM answers WHERE until < ?1 LIMIT ?2)",
        params![signed(now), EVICT_MAX],
    )?;
    let total = "SELECT ifnull(sum(size), 0) FROM answers";
    let total: i64 = conn.query_row(total, [], |row| row.get(0))?;
    let most = bytes_max - bytes_max / EVICT_FRACTION;
    let excess = total.unsigned_abs().saturating_sub(most);
    if total.is_negative() || excess == 0 {
        return Ok(());
    }
    evict(conn, excess)
}

/// Is the disk or the file full?
pub(super) fn is_full(error: &rusqlite::Error) -> bool {
    error.sqlite_error_code() == Some(ErrorCode::DiskFull)
}

/// Writes a response; evicts the least recently used if there is no room.
pub(super) fn put_or_evict(
    conn: &Connection,
    key: &CacheKey,
    object: &CachedResponse,
    now: Wall,
    bytes_max: u64,
) -> rusqlite::Result<()> {
    let mut done = put(conn, key, object, now);
    // Pages are not full, and indexes need room too: evicting the same size may not be enough.
    for times in 1..=PUT_TRIES {
        match &done {
            Err(error)
                if is_full(error) && !conn.is_autocommit() && object.weight() < bytes_max =>
            {
                evict(
                    conn,
                    times * object.weight().max(bytes_max / EVICT_FRACTION),
                )?;
                done = put(conn, key, object, now);
            }
            _ => return done,
        }
    }
    done
}

/// Evicts this many bytes of the least recently used responses.
fn evict(conn: &Connection, bytes: u64) -> rusqlite::Result<()> {
    conn.prepare_cached(
        "DELETE FROM answers WHERE id IN (SELECT id FROM (SELECT id, sum(size)
           OVER (ORDER BY used, id ROWS UNBOUNDED PRECEDING) - size AS before FROM answers
           ORDER BY used, id LIMIT ?2) WHERE before < ?1)",
    )?
    .execute(params![i64::try_from(bytes).unwrap_or(i64::MAX), EVICT_MAX])?;
    Ok(())
}

/// Has another process removed it since the request, or stored a newer one? Times in the future
/// come from a clock that has been set back.
fn is_superseded(
    conn: &Connection,
    key: &CacheKey,
    object: &CachedResponse,
    now: Wall,
) -> rusqlite::Result<bool> {
    conn.prepare_cached(
        "SELECT EXISTS (SELECT 1 FROM purges WHERE at BETWEEN ?1 AND ?2 AND (url = ?3 OR (url IS NULL
             AND ifnull(provider, ?4) = ?4 AND (entity IS NULL OR entity IS ?5))))
           OR EXISTS (SELECT 1 FROM answers WHERE key = ?6 AND variant = ?7 AND stored > ?1
             AND stored <= ?2)",
    )?
    .query_row(
        params![
            signed(object.stored),
            signed(now),
            object.url.0,
            object.provider,
            object.entity,
            key.0,
            object.variant.0,
        ],
        |row| row.get(0),
    )
}

fn put(
    conn: &Connection,
    key: &CacheKey,
    object: &CachedResponse,
    now: Wall,
) -> rusqlite::Result<()> {
    if is_superseded(conn, key, object, now)? {
        return Ok(());
    }
    let until = object
        .freshness
        .stale_until
        .max(object.freshness.fresh_until);
    // Ids follow the clock: ids of deleted rows are not reused, so that readers of new rows miss
    // nothing.
    let last: i64 = conn
        .prepare_cached("SELECT ifnull(max(id), 0) FROM answers")?
        .query_row([], |row| row.get(0))?;
    let id = last.saturating_add(1).max(signed(now));
    conn.prepare_cached(
        "INSERT OR REPLACE INTO answers
           (key, variant, url, stored, provider, entity, size, used, until, head, body, id)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)",
    )?
    .execute(params![
        key.0,
        object.variant.0,
        object.url.0,
        signed(object.stored),
        object.provider,
        object.entity,
        i64::try_from(object.weight()).unwrap_or(i64::MAX),
        signed(now),
        signed(until),
        encode_head(object),
        &object.body[..],
        id,
    ])?;
    conn.prepare_cached(
        "DELETE FROM answers WHERE key = ?1 AND id NOT IN
           (SELECT id FROM answers WHERE key = ?1 ORDER BY id DESC LIMIT ?2)",
    )?
    .execute(params![key.0, variants_max()])?;
    Ok(())
}

pub(super) fn remove(
    conn: &Connection,
    key: &CacheKey,
    variant: Variant,
    at: Wall,
) -> rusqlite::Result<()> {
    conn.prepare_cached("DELETE FROM answers WHERE key = ?1 AND variant = ?2 AND stored <= ?3")?
        .execute(params![key.0, variant.0, signed(at)])
        .map(drop)
}

pub(super) fn invalidate(conn: &Connection, url: UrlHash, at: Wall) -> rusqlite::Result<()> {
    conn.prepare_cached("DELETE FROM answers WHERE url = ?1 AND stored <= ?2")?
        .execute(params![url.0, signed(at)])?;
    // Also if no row matched: other processes may hold it in memory, or be storing it now.
    conn.prepare_cached("INSERT INTO purges (url, at) VALUES (?1, ?2)")?
        .execute(params![url.0, signed(at)])?;
    admin::trim_purges(conn)
}

pub(super) fn signed(at: Wall) -> i64 {
    i64::try_from(at.0).unwrap_or(i64::MAX)
}
