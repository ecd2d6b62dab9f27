//! Requests and replies as the script takes and returns them.
//!
//! Promises: versions, epochs and bytes are strings, at full width. Times are numbers below 2^53.
//!
//! Never: sends.

use std::collections::BTreeMap;

use redis::{Script, ScriptInvocation, Value, from_redis_value};
use tollgate_core::ask::OwnerId;
use tollgate_core::replica::{Epoch, Reply, ReplyOutcome, Request, RowKey, StoredRow, Waiting};
use tollgate_core::time::{Micros, Span};

use crate::networked::wire::{key_text, read_key, read_row, row_bytes, version_bytes};

/// Numbers that Lua has without loss.
const NUMBER_MAX: u64 = 1 << 53;

/// All keys of a provider have the same hash tag.
fn prefix(tag: &str) -> String {
    format!("tg:{{{tag}}}:")
}

/// Where new rows of this provider are published.
pub(super) fn channel(tag: &str) -> String {
    prefix(tag) + "rows"
}

/// What is written to ask replicas how far they are.
pub(super) fn confirmation_key(tag: &str) -> String {
    prefix(tag) + "sync"
}

/// Arguments of the script, with keys by their position.
struct Arguments<'a> {
    sent: ScriptInvocation<'a>,
    prefix: String,
    positions: BTreeMap<RowKey, usize>,
}

impl Arguments<'_> {
    fn key(&mut self, key: RowKey) {
        let next = self.positions.len() + 1;
        let position = *self.positions.entry(key).or_insert(next);
        if position == next {
            self.sent.key(format!("{}{}", self.prefix, key_text(key)));
        }
        self.sent.arg(position);
    }

    fn number(&mut self, number: Option<u64>) {
        match number {
            Some(number) => self.sent.arg(number.min(NUMBER_MAX)),
            None => self.sent.arg(""),
        };
    }
}

/// The script with this request.
pub(super) fn invoke<'a>(
    script: &'a Script,
    tag: &str,
    request: &Request,
    offset: Span,
) -> ScriptInvocation<'a> {
    let mut arguments = Arguments {
        sent: script.prepare_invoke(),
        prefix: prefix(tag),
        positions: BTreeMap::new(),
    };
    let has_scope = request
        .replace
        .iter()
        .any(|(key, _)| matches!(key, RowKey::Scope(_)));
    let epoch = request.epoch.map(|epoch| format!("{:016x}", epoch.0));
    arguments.sent.arg(offset.0).arg(request.owner.0);
    arguments.sent.arg(epoch.unwrap_or_default());
    arguments.number(request.time.map(|(from, _)| from.0));
    arguments.number(request.time.map(|(_, to)| to.0));
    arguments.sent.arg(channel(tag)).arg(u8::from(has_scope));
    arguments.sent.arg(request.expected.len());
    for (key, version) in &request.expected {
        arguments.key(*key);
        match version {
            Some(version) => arguments.sent.arg(&version_bytes(*version)[..]),
            None => arguments.sent.arg(""),
        };
    }
    arguments.sent.arg(request.read.len());
    request.read.iter().for_each(|key| arguments.key(*key));
    arguments.sent.arg(request.waits.len());
    for (key, note) in &request.waits {
        arguments.key(*key);
        arguments.number(Some(note.lasts.0));
        arguments.sent.arg(&note.bytes);
    }
    arguments.sent.arg(request.stops.len());
    request.stops.iter().for_each(|key| arguments.key(*key));
    arguments.sent.arg(request.replace.len());
    for (key, row) in &request.replace {
        arguments.key(*key);
        arguments.number(row.keep_for.map(millis));
        arguments.sent.arg(row_bytes(row));
    }
    arguments.sent
}

fn millis(span: Span) -> u64 {
    span.0.div_ceil(1_000)
}

/// What the script returns: microseconds, epoch, replicas, replaced, rows, notes.
type ScriptReply = (
    u64,
    String,
    u32,
    bool,
    Vec<Option<Vec<u8>>>,
    Vec<Vec<Vec<u8>>>,
);

/// The reply to this request, and how many replicas follow the server.
pub(super) fn read_reply(value: Value, request: &Request) -> Option<(Reply, u32)> {
    let (stored_at, epoch, replicas, is_replaced, rows, notes): ScriptReply =
        from_redis_value(value).ok()?;
    let expected = request.expected.iter().map(|(key, _)| *key);
    let named: Vec<RowKey> = expected.chain(request.read.iter().copied()).collect();
    let outcome = match is_replaced {
        true => ReplyOutcome::Replaced,
        false => {
            let rows = rows.iter().map(|row| row.as_deref().map(read_row));
            if rows.len() != named.len() {
                return None;
            }
            ReplyOutcome::Current(named.iter().copied().zip(rows).collect())
        }
    };
    let waiting = notes.into_iter().map(|notes| {
        let pairs = notes.chunks_exact(2);
        pairs
            .filter_map(|pair| Some((read_owner(&pair[0])?, pair[1].clone())))
            .collect()
    });
    let reply = Reply {
        batch: request.batch,
        stored_at: Micros(stored_at),
        epoch: Epoch(u64::from_str_radix(&epoch, 16).ok()?),
        outcome,
        waiting: named.into_iter().zip(waiting).collect(),
    };
    Some((reply, replicas))
}

fn read_owner(text: &[u8]) -> Option<OwnerId> {
    let text = std::str::from_utf8(text).ok()?;
    text.parse().ok().map(OwnerId)
}

/// New rows that another owner has published.
type PushedRows = (String, OwnerId, Vec<(RowKey, StoredRow)>, Waiting);

/// What was published on a channel: which provider, who has written, the rows, and who waits.
pub(super) fn read_push(data: &[Value]) -> Option<PushedRows> {
    let [Value::BulkString(channel), Value::BulkString(bytes)] = data else {
        return None;
    };
    let channel = std::str::from_utf8(channel).ok()?;
    let tag = channel.strip_prefix("tg:{")?.strip_suffix("}:rows")?;
    let prefix = prefix(tag);
    let mut rest = bytes.as_slice();
    let from = read_owner(netstring(&mut rest)?)?;
    let count = number(&mut rest)?;
    let (mut rows, mut waiting) = (Vec::new(), Waiting::new());
    for _ in 0..count {
        let key = std::str::from_utf8(netstring(&mut rest)?).ok()?;
        let key = read_key(key.strip_prefix(&prefix)?)?;
        rows.push((key, read_row(netstring(&mut rest)?)));
    }
    for (key, _) in &rows {
        let mut owners = Vec::new();
        for _ in 0..number(&mut rest)? {
            let owner = read_owner(netstring(&mut rest)?)?;
            owners.push((owner, netstring(&mut rest)?.to_vec()));
        }
        waiting.push((*key, owners));
    }
    Some((tag.to_owned(), from, rows, waiting))
}

/// `LENGTH:BYTES`
fn netstring<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let colon = rest.iter().position(|byte| *byte == b':')?;
    let (length, tail) = rest.split_at(colon);
    let length: usize = std::str::from_utf8(length).ok()?.parse().ok()?;
    let (text, tail) = tail.get(1..)?.split_at_checked(length)?;
    *rest = tail;
    Some(text)
}

fn number(rest: &mut &[u8]) -> Option<usize> {
    std::str::from_utf8(netstring(rest)?).ok()?.parse().ok()
}
