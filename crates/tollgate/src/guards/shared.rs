//! Guards that count in Redis: one script for all asks of a decision.
//!
//! Promises: the clock is the server's. A decision has a deadline; while the server is lost nobody waits for
//! it. Keys are those of the inbound document; on a node of a Redis Cluster they share the hash tag
//! `{ratelimit}`.
//!
//! Never: decides what happens while the server is lost.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use redis::Script;
use tollgate_config::Config;
use tollgate_config::config::Store;
use tollgate_core::time::Span;
use tollgate_ledger::Ledger;
use tollgate_ledger::redis::RedisAddress;

use super::shared_bucket::{SharedLevel, SharedPace};
use crate::event::{Event, Events};
use crate::redis_access::{AccessChange, RedisAccess};

/// How long a decision waits for Redis: the server is near, and callers wait meanwhile.
const DECIDE_WITHIN: Duration = Duration::from_millis(500);

/// The hash tag of all keys on a Redis Cluster, and the prefix that becomes it.
const CLUSTER_TAG: &[u8] = b"{ratelimit}:";
const PREFIX: &[u8] = b"ratelimit:";

/// Written to see whether a lost server takes writes again. On a Cluster the node has the slot of the
/// buckets, and perhaps no other.
fn probe_key(is_cluster: bool) -> &'static str {
    match is_cluster {
        false => "ratelimit:probe",
        true => "{ratelimit}:probe",
    }
}

/// Numbers that the script has without loss.
const COST_MAX: i64 = 1 << 52;

/// The script.
pub(super) const TAKE: &str = include_str!("take.lua");

/// Guards in Redis.
#[derive(Debug)]
pub(super) struct SharedGuards {
    /// `Err`: the address cannot be used, and why.
    access: Result<Arc<RedisAccess>, String>,
    script: Script,
    nodes: NonZeroU32,
    uncounted: AtomicU64,
}

/// One bucket that is asked for tokens.
#[derive(Clone, Debug)]
pub(super) struct SharedAsk {
    pub(super) key: Arc<[u8]>,
    pub(super) pace: SharedPace,
    /// 0 asks whether a token is left; below 0 puts tokens back.
    pub(super) cost: i64,
    /// It denies if it lacks tokens.
    pub(super) is_enforced: bool,
}

/// What the script has decided, in the order of the asks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SharedReply {
    pub(super) is_denied: bool,
    pub(super) asks: Vec<SharedView>,
}

/// One ask after a decision.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SharedView {
    /// Its bucket before all asks.
    pub(super) before: SharedLevel,
    /// Its bucket after all asks.
    pub(super) after: SharedLevel,
    /// It is not enforced, and lacked tokens.
    pub(super) is_lacking: bool,
}

/// No decision: the server is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StoreLost;

impl SharedGuards {
    /// If the configuration says that guards count in Redis. `events` hear of a loss.
    pub(super) fn of(config: &Config, ledger: &Ledger, events: &Events) -> Option<SharedGuards> {
        let Store::Redis(url) = &config.guard_store else {
            return None;
        };
        let events = events.clone();
        let access = RedisAddress::parse(url.expose()).map(|address| {
            RedisAccess::new(
                address,
                DECIDE_WITHIN,
                probe_key,
                ledger.clone(),
                move |change| {
                    events.emit(match change.clone() {
                        AccessChange::Lost(why) => Event::GuardStoreLost { why },
                        AccessChange::Back(away) => Event::GuardStoreBack { away },
                    });
                },
            )
        });
        Some(SharedGuards {
            access: access.map_err(|error| format!("guard_store: {error}")),
            script: Script::new(TAKE),
            nodes: NonZeroU32::new(config.nodes).unwrap_or(NonZeroU32::MIN),
            uncounted: AtomicU64::new(0),
        })
    }

    /// Another script, in tests: with a clock of their own.
    #[cfg(test)]
    pub(super) fn with_script(mut self, script: &str) -> SharedGuards {
        self.script = Script::new(script);
        self
    }

    /// How many nodes share them.
    pub(super) fn nodes(&self) -> u32 {
        self.nodes.get()
    }

    /// Why the server is lost, if it is.
    pub(super) fn loss_reason(&self) -> Option<Arc<str>> {
        match &self.access {
            Ok(access) => access.loss().map(|loss| loss.why),
            Err(why) => Some(why.as_str().into()),
        }
    }

    /// A request went on uncounted.
    pub(super) fn on_uncounted(&self) {
        self.uncounted.fetch_add(1, Ordering::Relaxed);
    }

    /// Requests that went on uncounted since the start.
    pub(super) fn uncounted(&self) -> u64 {
        self.uncounted.load(Ordering::Relaxed)
    }

    /// Decides all asks as one.
    pub(super) async fn take(&self, asks: &[SharedAsk]) -> Result<SharedReply, StoreLost> {
        self.take_at(asks, None).await
    }

    /// The same, at a time that a test chose; its script reads it.
    pub(super) async fn take_at(
        &self,
        asks: &[SharedAsk],
        at: Option<Span>,
    ) -> Result<SharedReply, StoreLost> {
        let Ok(access) = &self.access else {
            return Err(StoreLost);
        };
        let mut buckets: Vec<&SharedAsk> = Vec::with_capacity(asks.len());
        let mut places = Vec::with_capacity(asks.len());
        for ask in asks {
            let known = buckets.iter().position(|bucket| bucket.key == ask.key);
            places.push(known.unwrap_or(buckets.len()));
            if known.is_none() {
                buckets.push(ask);
            }
        }
        let replied = access.request(|mut connection| {
            // Known as soon as there is a connection.
            let is_cluster = access.is_cluster();
            let mut sent = self.script.prepare_invoke();
            for bucket in &buckets {
                sent.key(wire_key(&bucket.key, is_cluster));
                for number in bucket.pace.arguments() {
                    sent.arg(number);
                }
            }
            for (ask, place) in asks.iter().zip(&places) {
                let cost = ask.cost.clamp(-COST_MAX, COST_MAX);
                sent.arg(place + 1).arg(cost).arg(u8::from(ask.is_enforced));
            }
            if let Some(at) = at {
                sent.arg(at.0 / 1_000_000).arg(at.0 % 1_000_000);
            }
            async move {
                let numbers: Vec<u64> = sent.invoke_async(&mut connection).await?;
                Ok(numbers)
            }
        });
        let numbers = replied.await.map_err(|_| StoreLost)?;
        read_reply(&numbers, &places).ok_or(StoreLost)
    }
}

/// The numbers that the script returns, for asks of these buckets.
fn read_reply(numbers: &[u64], places: &[usize]) -> Option<SharedReply> {
    let (denied, rest) = numbers.split_first()?;
    let buckets = places.iter().max().map_or(0, |last| last + 1);
    let (levels, lacking) = rest.split_at_checked(buckets * 4)?;
    let level = |at: usize| {
        Some(SharedLevel {
            tokens: *levels.get(at)?,
            parts: *levels.get(at + 1)?,
        })
    };
    let views = places.iter().zip(lacking).map(|(place, lacking)| {
        Some(SharedView {
            before: level(place * 4)?,
            after: level(place * 4 + 2)?,
            is_lacking: *lacking == 1,
        })
    });
    let asks = views.collect::<Option<Vec<_>>>()?;
    (asks.len() == places.len()).then_some(SharedReply {
        is_denied: *denied == 1,
        asks,
    })
}

/// The key as it is sent. On a Cluster all keys of a decision must be on one node.
fn wire_key(key: &[u8], is_cluster: bool) -> Vec<u8> {
    match is_cluster {
        false => key.to_vec(),
        true => {
            let rest = key.strip_prefix(PREFIX).unwrap_or(key);
            [CLUSTER_TAG, rest].concat()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// C3: on a Cluster the prefix becomes `{ratelimit}`.
    #[test]
    fn c3_keys_of_a_cluster_have_one_hash_tag() {
        assert_eq!(wire_key(b"ratelimit:ip:a", false), b"ratelimit:ip:a");
        assert_eq!(wire_key(b"ratelimit:ip:a", true), b"{ratelimit}:ip:a");
        assert_eq!(wire_key(b"mine:a", true), b"{ratelimit}:mine:a");
    }

    #[test]
    fn a_reply_of_another_length_is_no_reply() {
        let numbers = [1, 2, 3, 4, 5, 0, 1];
        let reply = read_reply(&numbers, &[0, 0]).unwrap();
        assert!(reply.is_denied && reply.asks[1].is_lacking && !reply.asks[0].is_lacking);
        assert_eq!(
            (reply.asks[0].before.tokens, reply.asks[1].after.parts),
            (2, 5)
        );
        for wrong in [&[][..], &[0], &numbers[..6]] {
            assert_eq!(read_reply(wrong, &[0, 0]), None, "{wrong:?}");
        }
    }
}
