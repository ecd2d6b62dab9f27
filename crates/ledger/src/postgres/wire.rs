//! Requests and replies as the function takes and returns them.
//!
//! Promises: versions and bytes as they are; times in microseconds; an epoch is a system identifier
//! and a timeline, and both can be read from it again.
//!
//! Never: sends.

use tokio_postgres::Row;
use tokio_postgres::types::ToSql;
use tollgate_core::ask::OwnerId;
use tollgate_core::replica::{Epoch, Reply, ReplyOutcome, Request, RowKey, Waiting};
use tollgate_core::time::{Micros, Span};

use crate::networked::wire::{key_text, read_key, read_row, row_bytes, version_bytes};

/// The arguments of the function, in their order.
#[derive(Debug)]
pub(super) struct Arguments {
    tag: String,
    owner: i64,
    timeline: Option<i64>,
    from: Option<i64>,
    to: Option<i64>,
    offset: i64,
    has_scope: bool,
    expected_keys: Vec<String>,
    expected_versions: Vec<Option<Vec<u8>>>,
    read_keys: Vec<String>,
    wait_keys: Vec<String>,
    wait_lasts: Vec<i64>,
    wait_notes: Vec<Vec<u8>>,
    stop_keys: Vec<String>,
    new_keys: Vec<String>,
    new_values: Vec<Vec<u8>>,
    new_keeps: Vec<Option<i64>>,
}

impl Arguments {
    /// Of this request, on the server with this identity.
    pub(super) fn new(tag: &str, request: &Request, system: u64, offset: Span) -> Arguments {
        let versions = request.expected.iter().map(|(_, version)| *version);
        let versions = versions.map(|version| version.map(|one| version_bytes(one).to_vec()));
        let is_scope = |key: &RowKey| matches!(key, RowKey::Scope(_));
        Arguments {
            tag: tag.to_owned(),
            owner: i64::from(request.owner.0),
            timeline: request.epoch.map(|epoch| timeline(epoch, system)),
            from: request.time.map(|(from, _)| signed(from.0)),
            to: request.time.map(|(_, to)| signed(to.0)),
            offset: signed(offset.0),
            has_scope: request.replace.iter().any(|(key, _)| is_scope(key)),
            expected_keys: texts(request.expected.iter().map(|(key, _)| *key)),
            expected_versions: versions.collect(),
            read_keys: texts(request.read.iter().copied()),
            wait_keys: texts(request.waits.iter().map(|(key, _)| *key)),
            wait_lasts: request
                .waits
                .iter()
                .map(|(_, note)| signed(note.lasts.0))
                .collect(),
            wait_notes: request
                .waits
                .iter()
                .map(|(_, note)| note.bytes.clone())
                .collect(),
            stop_keys: texts(request.stops.iter().copied()),
            new_keys: texts(request.replace.iter().map(|(key, _)| *key)),
            new_values: request
                .replace
                .iter()
                .map(|(_, row)| row_bytes(row))
                .collect(),
            new_keeps: request
                .replace
                .iter()
                .map(|(_, row)| row.keep_for.map(|span| signed(span.0)))
                .collect(),
        }
    }

    pub(super) fn all(&self) -> [&(dyn ToSql + Sync); 17] {
        [
            &self.tag,
            &self.owner,
            &self.timeline,
            &self.from,
            &self.to,
            &self.offset,
            &self.has_scope,
            &self.expected_keys,
            &self.expected_versions,
            &self.read_keys,
            &self.wait_keys,
            &self.wait_lasts,
            &self.wait_notes,
            &self.stop_keys,
            &self.new_keys,
            &self.new_values,
            &self.new_keeps,
        ]
    }
}

fn texts(keys: impl Iterator<Item = RowKey>) -> Vec<String> {
    keys.map(key_text).collect()
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// A server's identity and its timeline as one number.
fn epoch(system: u64, timeline: u32) -> Epoch {
    Epoch(system ^ u64::from(timeline).rotate_left(32))
}

/// The timeline of an epoch on this server; one that no server has, if the epoch is another
/// server's.
fn timeline(epoch: Epoch, system: u64) -> i64 {
    let timeline = (epoch.0 ^ system).rotate_right(32);
    u32::try_from(timeline).map_or(-1, i64::from)
}

/// The reply to this request.
pub(super) fn read_reply(row: &Row, request: &Request, system: u64) -> Option<Reply> {
    let stored_at: i64 = row.try_get("stored_at").ok()?;
    let timeline: i64 = row.try_get("timeline").ok()?;
    let expected = request.expected.iter().map(|(key, _)| *key);
    let named: Vec<RowKey> = expected.chain(request.read.iter().copied()).collect();
    let outcome = match row.try_get("is_replaced").ok()? {
        true => ReplyOutcome::Replaced,
        false => {
            let rows: Vec<Option<&[u8]>> = row.try_get("row_values").ok()?;
            if rows.len() != named.len() {
                return None;
            }
            let rows = rows.into_iter().map(|row| row.map(read_row));
            ReplyOutcome::Current(named.iter().copied().zip(rows).collect())
        }
    };
    Some(Reply {
        batch: request.batch,
        stored_at: Micros(u64::try_from(stored_at).ok()?),
        epoch: epoch(system, u32::try_from(timeline).ok()?),
        outcome,
        waiting: waiting(row, &named)?,
    })
}

fn waiting(row: &Row, named: &[RowKey]) -> Option<Waiting> {
    let keys: Option<Vec<&str>> = row.try_get("note_keys").ok()?;
    let owners: Option<Vec<i64>> = row.try_get("note_owners").ok()?;
    let notes: Option<Vec<&[u8]>> = row.try_get("notes").ok()?;
    let mut waiting: Waiting = named.iter().map(|key| (*key, Vec::new())).collect();
    let owners = owners.into_iter().flatten();
    let found = keys.into_iter().flatten().zip(owners);
    for ((key, owner), note) in found.zip(notes.into_iter().flatten()) {
        let (key, owner) = (read_key(key)?, u32::try_from(owner).ok()?);
        for (_, owners) in waiting.iter_mut().filter(|(named, _)| *named == key) {
            owners.push((OwnerId(owner), note.to_vec()));
        }
    }
    Some(waiting)
}

/// Who has written, which provider, and which rows; no rows: too many to name.
pub(super) fn read_notification(payload: &str) -> Option<(OwnerId, String, Vec<RowKey>)> {
    let mut words = payload.split(' ');
    let owner = OwnerId(words.next()?.parse().ok()?);
    let tag = words.next()?.to_owned();
    let keys: Option<Vec<RowKey>> = words.map(read_key).collect();
    Some((owner, tag, keys?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that was restored from another one's dump is another one, whatever its timeline.
    #[test]
    fn an_epoch_is_of_one_server_and_one_timeline() {
        let (one, other) = (7_123_456_789_012_345_678, 7_123_456_789_012_345_679);
        assert_eq!(timeline(epoch(one, 3), one), 3);
        assert_ne!(epoch(one, 3), epoch(one, 4));
        assert_ne!(epoch(one, 3), epoch(other, 3));
        assert_eq!(timeline(epoch(one, 3), other), -1);
    }

    #[test]
    fn notifications_name_owner_provider_and_rows() {
        let keys = vec![RowKey::Provider];
        let read = read_notification("7 tmdb p");
        assert_eq!(read, Some((OwnerId(7), "tmdb".to_owned(), keys)));
        let read = read_notification("7 tmdb");
        assert_eq!(read, Some((OwnerId(7), "tmdb".to_owned(), Vec::new())));
        assert_eq!(read_notification("x tmdb p"), None);
        assert_eq!(read_notification("7 tmdb nonsense"), None);
    }
}
