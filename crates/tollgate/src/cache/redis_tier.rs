//! The tier that several gateways share, in Redis.
//!
//! Promises: keys are hashes with a salt that all gateways of one Redis have, so the rules of who may see which
//! response are those of `cache.db`. A read waits for 250 ms at most, and for nothing while Redis is lost: then
//! the cache is in memory. Stored bytes are bounded; expired responses go first, then the least recently used. A
//! removal is published to the memories of all gateways; while Redis is lost it waits, and nothing is read.
//!
//! Never: fails a call, or stores a credential.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{FromRedisValue, PushInfo, PushKind, RedisError, Script, Value};
use tokio::sync::{mpsc, oneshot};
use tollgate_core::time::{Span, Wall};
use tollgate_ledger::Ledger;
use tollgate_ledger::redis::RedisAddress;

use super::key::{Salt, UrlHash, Variant};
use super::memory::MemoryTier;
use super::object::VARIANTS_MAX;
use super::redis_wire::{hex, read_response, unhex};
use super::{CacheKey, CacheUsage, CachedResponse, VariantSet, stored_form};
use crate::event::{Event, Events};
use crate::redis_access::{AccessChange, RedisAccess, SessionHook, Unavailable};

/// How long a call waits for Redis: as for the disk.
const READ_WITHIN: Duration = Duration::from_millis(250);

/// Commands that may wait to be sent.
const WRITES_MAX: usize = 4_096;

/// Bytes that may wait to be sent: a second of a slow network.
const PENDING_MAX: u64 = 64 * 1024 * 1024;

/// How long a removal waits before it is tried again.
const RETRY_AFTER: Duration = Duration::from_millis(200);

/// How long an operator waits for a purge, and a shutdown for what is on its way.
const PURGE_WITHIN: Duration = Duration::from_secs(2);

/// No response is stored for longer.
const LASTS_MAX: Span = Span::from_secs(400 * 86_400);

/// Where removals are published.
const CHANGES: &str = "tgc:changes";

/// Written to see whether a lost server takes writes again.
const PROBE_KEY: &str = "tgc:probe";

/// The shared tier.
#[derive(Debug)]
pub(super) struct RedisTier {
    shared: Arc<TierState>,
    access: Arc<RedisAccess>,
    writes: mpsc::Sender<Command>,
}

#[derive(Debug)]
struct TierState {
    script: Script,
    memory: Arc<MemoryTier>,
    /// The salt of Redis, as soon as it is known.
    salt: OnceLock<Salt>,
    /// Used if Redis has none.
    own_salt: Salt,
    /// Another salt came into Redis: what this process stores would be found by nobody.
    is_foreign: AtomicBool,
    /// Tells our own messages from those of others.
    node: String,
    bytes_max: u64,
    pending_bytes: AtomicU64,
    /// Removals that are not done.
    open_removals: AtomicUsize,
    /// More removals waited than there is room for: everything is purged.
    is_overflowed: AtomicBool,
    was_connected: AtomicBool,
    /// Its clock.
    ledger: Ledger,
    events: Events,
}

#[derive(Debug)]
enum Command {
    Put(CacheKey, Arc<CachedResponse>, Wall),
    Touch(CacheKey, Wall),
    Remove(CacheKey, Variant, Wall),
    Invalidate(UrlHash, Wall),
    Purge(String, oneshot::Sender<u64>),
    Flush(oneshot::Sender<()>),
}

impl RedisTier {
    /// Connects at once; the caller runs in a runtime.
    pub(super) fn open(
        address: RedisAddress,
        memory: Arc<MemoryTier>,
        bytes_max: u64,
        ledger: Ledger,
        events: &Events,
    ) -> RedisTier {
        let own_salt = Salt::random();
        let shared = Arc::new(TierState {
            script: Script::new(include_str!("redis.lua")),
            memory,
            salt: OnceLock::new(),
            node: hex(&own_salt.0[..8]),
            own_salt: Salt::random(),
            is_foreign: AtomicBool::new(false),
            bytes_max,
            pending_bytes: AtomicU64::new(0),
            open_removals: AtomicUsize::new(0),
            is_overflowed: AtomicBool::new(false),
            ledger: ledger.clone(),
            was_connected: AtomicBool::new(false),
            events: events.clone(),
        });
        let bus = events.clone();
        let report = move |change: &AccessChange| {
            bus.emit(match change.clone() {
                AccessChange::Lost(why) => Event::CacheStoreLost { why },
                AccessChange::Back(away) => Event::CacheStoreBack { away },
            });
        };
        let access = RedisAccess::new(address, READ_WITHIN, |_| PROBE_KEY, ledger, report);
        access.connect(shared.clone());
        let (writes, commands) = mpsc::channel(WRITES_MAX);
        tokio::spawn(run(shared.clone(), access.clone(), commands));
        RedisTier {
            shared,
            access,
            writes,
        }
    }

    /// The salt of all gateways, once Redis has told it.
    pub(super) fn salt(&self) -> Option<&Salt> {
        self.shared.salt.get()
    }

    /// The responses in Redis except those already seen.
    pub(super) async fn find(
        &self,
        key: CacheKey,
        seen: &[Variant],
        now: Wall,
    ) -> Option<Arc<VariantSet>> {
        let shared = &self.shared;
        if !shared.is_usable() || shared.open_removals.load(Ordering::Acquire) > 0 {
            return None;
        }
        let changes = shared.memory.removals();
        let found: Vec<Vec<u8>> = shared
            .send(
                &self.access,
                &["find", &now.0.to_string(), &hex(&key.0)],
                &[],
            )
            .await
            .ok()?;
        let mut objects: Vec<Arc<CachedResponse>> = found
            .chunks_exact(5)
            .filter_map(read_response)
            .filter(|object| !seen.contains(&object.variant))
            .map(Arc::new)
            .collect();
        objects.sort_by_key(|object| std::cmp::Reverse(object.stored));
        let variants = VariantSet::new(objects);
        if variants.objects().is_empty() {
            return None;
        }
        let variants = match seen.is_empty() {
            true => variants,
            false => variants.partial(),
        };
        variants.record_use(now);
        let variants = Arc::new(variants);
        shared
            .memory
            .insert_from_disk(key, variants.clone(), changes);
        self.touch(key, now);
        Some(variants)
    }

    /// A response was used.
    pub(super) fn touch(&self, key: CacheKey, now: Wall) {
        // If this fails, the response looks a little older than it is.
        let _noted = self.writes.try_send(Command::Touch(key, now));
    }

    /// Stores a response. There may always be others under its key.
    pub(super) fn put(&self, key: CacheKey, object: &Arc<CachedResponse>, now: Wall) -> bool {
        let (shared, weight) = (&self.shared, object.weight());
        let pending = shared.pending_bytes.fetch_add(weight, Ordering::AcqRel);
        let is_sent = pending + weight <= PENDING_MAX
            && shared.is_usable()
            && self.access.loss().is_none()
            && self
                .writes
                .try_send(Command::Put(key, object.clone(), now))
                .is_ok();
        if !is_sent {
            shared.pending_bytes.fetch_sub(weight, Ordering::AcqRel);
            // The response that it would have replaced must not come back.
            self.remove(key, object.variant, object.stored);
        }
        true
    }

    pub(super) fn invalidate(&self, url: UrlHash, now: Wall) {
        self.remove_with(Command::Invalidate(url, now));
    }

    pub(super) fn remove(&self, key: CacheKey, variant: Variant, at: Wall) {
        self.remove_with(Command::Remove(key, variant, at));
    }

    /// A removal that does not fit becomes a purge of everything. Before the salt is known, nothing of ours is
    /// there.
    fn remove_with(&self, command: Command) {
        let shared = &self.shared;
        if shared.salt.get().is_none() {
            return;
        }
        shared.open_removals.fetch_add(1, Ordering::AcqRel);
        if self.writes.try_send(command).is_ok() {
            return;
        }
        if shared.is_overflowed.swap(true, Ordering::AcqRel) {
            shared.open_removals.fetch_sub(1, Ordering::AcqRel);
            return;
        }
        let writes = self.writes.clone();
        tokio::spawn(async move {
            let (reply, _nobody) = oneshot::channel();
            let _closed = writes.send(Command::Purge(String::new(), reply)).await;
        });
    }

    pub(super) async fn purge(&self, provider: Option<&str>, entity: Option<&str>) -> Option<u64> {
        let what = match (provider, entity) {
            (None, _) => String::new(),
            (Some(provider), None) => provider.to_owned(),
            (Some(provider), Some(entity)) => format!("{provider}\n{entity}"),
        };
        let (reply, done) = oneshot::channel();
        self.shared.open_removals.fetch_add(1, Ordering::AcqRel);
        let sent = self.writes.send(Command::Purge(what, reply)).await;
        sent.ok()?;
        tokio::time::timeout(PURGE_WITHIN, done).await.ok()?.ok()
    }

    pub(super) async fn usage(&self) -> Option<Vec<CacheUsage>> {
        let words = ["usage", &self.shared.ledger.wall().0.to_string()];
        let sums: Vec<BTreeMap<String, u64>> =
            self.shared.send(&self.access, &words, &[]).await.ok()?;
        let [counts, bytes] = sums.try_into().ok()?;
        let owners = counts.into_iter().filter(|(owner, _)| !owner.is_empty());
        let rows = owners.map(|(owner, responses)| {
            let (provider, entity) = owner.split_once('\n').unwrap_or((&owner, ""));
            CacheUsage {
                provider: provider.to_owned(),
                entity: (!entity.is_empty()).then(|| entity.to_owned()),
                responses,
                bytes: bytes.get(&owner).copied().unwrap_or_default(),
            }
        });
        Some(rows.collect())
    }

    pub(super) async fn flush(&self) {
        let (reply, done) = oneshot::channel();
        if self.writes.send(Command::Flush(reply)).await.is_ok() {
            // What is not sent by then is lost, and costs a call.
            let _late = tokio::time::timeout(PURGE_WITHIN, done).await;
        }
    }

    pub(super) async fn close(&self) {
        self.flush().await;
    }
}

impl TierState {
    fn is_usable(&self) -> bool {
        self.salt.get().is_some() && !self.is_foreign.load(Ordering::Acquire)
    }

    async fn send<T: FromRedisValue>(
        &self,
        access: &Arc<RedisAccess>,
        words: &[&str],
        rest: &[&[u8]],
    ) -> Result<T, Unavailable> {
        let mut sent = self.script.prepare_invoke();
        for word in words {
            sent.arg(*word);
        }
        for word in rest {
            sent.arg(*word);
        }
        access
            .request(|mut connection| async move { sent.invoke_async(&mut connection).await })
            .await
    }

    async fn put(
        &self,
        access: &Arc<RedisAccess>,
        key: CacheKey,
        object: &CachedResponse,
        now: Wall,
    ) -> Result<i64, Unavailable> {
        let until = object
            .freshness
            .stale_until
            .max(object.freshness.fresh_until);
        let lasts = until.since(now).min(LASTS_MAX).0 / 1_000;
        let owner = match &object.entity {
            Some(entity) => format!("{}\n{entity}", object.provider),
            None => format!("{}\n", object.provider),
        };
        let salt = self.salt.get().map(|salt| hex(&salt.0));
        let [now, stored, lasts, bytes_max, variants_max] = [
            now.0,
            object.stored.0,
            lasts.max(1),
            self.bytes_max,
            VARIANTS_MAX as u64,
        ]
        .map(|number| number.to_string());
        let (key, variant, url) = (hex(&key.0), hex(&object.variant.0), hex(&object.url.0));
        let salt = salt.unwrap_or_default();
        let words: [&[u8]; 12] = [
            b"put",
            now.as_bytes(),
            salt.as_bytes(),
            key.as_bytes(),
            variant.as_bytes(),
            stored.as_bytes(),
            url.as_bytes(),
            owner.as_bytes(),
            &stored_form::encode(object),
            lasts.as_bytes(),
            bytes_max.as_bytes(),
            variants_max.as_bytes(),
        ];
        self.send(access, &[], &words).await
    }

    /// Sends a removal.
    async fn remove(
        &self,
        access: &Arc<RedisAccess>,
        command: &Command,
    ) -> Result<u64, Unavailable> {
        let node = self.node.as_str();
        match command {
            Command::Remove(key, variant, at) => {
                let (key, variant, at) = (hex(&key.0), hex(&variant.0), at.0.to_string());
                let words = ["remove", &at, &key, &variant, &at, node];
                self.send(access, &words, &[]).await
            }
            Command::Invalidate(url, at) => {
                let (url, at) = (hex(&url.0), at.0.to_string());
                self.send(access, &["invalidate", &at, &url, &at, node], &[])
                    .await
            }
            Command::Purge(what, _) => {
                self.is_overflowed.store(false, Ordering::Release);
                let at = self.ledger.wall().0.to_string();
                let mut purged = 0;
                loop {
                    let words = ["purge", &at, what, &at, node];
                    let (gone, visited): (u64, u64) = self.send(access, &words, &[]).await?;
                    purged += gone;
                    if visited == 0 {
                        return Ok(purged);
                    }
                }
            }
            Command::Put(..) | Command::Touch(..) | Command::Flush(_) => Ok(0),
        }
    }

    /// What another gateway has removed.
    fn apply(&self, message: &str) -> Option<()> {
        let (node, rest) = message.split_once(' ')?;
        if node == self.node {
            return Some(());
        }
        let (kind, rest) = rest.split_once(' ')?;
        let mut words = rest.split(' ');
        match kind {
            "p" => {
                let (provider, entity) = match rest.split_once('\n') {
                    Some((provider, entity)) => (provider, Some(entity)),
                    None => (rest, None),
                };
                let provider = Some(provider).filter(|provider| !provider.is_empty());
                self.memory.purge(provider, entity);
            }
            "u" => {
                let url = UrlHash(unhex(words.next()?)?);
                let at = Wall(words.next()?.parse().ok()?);
                self.memory.invalidate(None, url, at);
            }
            "r" => {
                let key = CacheKey(unhex(words.next()?)?);
                let variant = Variant(unhex(words.next()?)?);
                self.memory
                    .remove(&key, variant, Wall(words.next()?.parse().ok()?));
            }
            _ => return None,
        }
        Some(())
    }
}

impl SessionHook for TierState {
    /// Learns the salt, and hears of removals from now on.
    fn prepare(
        &self,
        mut connection: MultiplexedConnection,
    ) -> Pin<Box<dyn Future<Output = Result<(), RedisError>> + Send + '_>> {
        Box::pin(async move {
            connection.subscribe(CHANGES).await?;
            let own = self.salt.get().unwrap_or(&self.own_salt);
            let mut set = redis::cmd("SET");
            set.arg("tgc:salt").arg(hex(&own.0)).arg("NX");
            let _is_first: Option<String> = set.query_async(&mut connection).await?;
            let mut get = redis::cmd("GET");
            let salt: String = get.arg("tgc:salt").query_async(&mut connection).await?;
            let salt = unhex(&salt).map(Salt);
            let is_ours =
                salt.is_some_and(|salt| self.salt.get_or_init(|| salt.clone()).0 == salt.0);
            self.is_foreign.store(!is_ours, Ordering::Release);
            // What others removed while there was no connection was missed.
            if self.was_connected.swap(true, Ordering::AcqRel) {
                self.memory.purge(None, None);
            }
            Ok(())
        })
    }

    fn pushed(&self, push: &PushInfo) {
        if push.kind != PushKind::Message {
            return;
        }
        let [.., Value::BulkString(message)] = push.data.as_slice() else {
            return;
        };
        let message = std::str::from_utf8(message);
        if message
            .ok()
            .and_then(|message| self.apply(message))
            .is_none()
        {
            self.memory.purge(None, None);
        }
    }
}

/// Sends what is stored and removed, in its order.
async fn run(
    shared: Arc<TierState>,
    access: Arc<RedisAccess>,
    mut commands: mpsc::Receiver<Command>,
) {
    while let Some(command) = commands.recv().await {
        match command {
            Command::Put(key, object, now) => {
                let weight = object.weight();
                shared.pending_bytes.fetch_sub(weight, Ordering::AcqRel);
                let stored = shared.put(&access, key, &object, now).await;
                if stored == Ok(-1) && !shared.is_foreign.swap(true, Ordering::AcqRel) {
                    let why = "another gateway has replaced the salt of the cache in Redis; restart this one";
                    shared
                        .events
                        .emit(Event::CacheOnlyInMemory { why: why.into() });
                }
            }
            Command::Touch(key, now) => {
                let words = ["touch", &now.0.to_string(), &hex(&key.0)];
                let _noted: Result<i64, Unavailable> = shared.send(&access, &words, &[]).await;
            }
            Command::Flush(reply) => {
                let _receiver_gone = reply.send(());
            }
            removal => {
                let gone = loop {
                    match shared.remove(&access, &removal).await {
                        Ok(gone) => break gone,
                        Err(Unavailable) => pause().await,
                    }
                };
                shared.open_removals.fetch_sub(1, Ordering::AcqRel);
                if let Command::Purge(_, reply) = removal {
                    let _receiver_gone = reply.send(gone);
                }
            }
        }
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "a removal waits until the server is back"
)]
async fn pause() {
    tokio::time::sleep(RETRY_AFTER).await;
}
