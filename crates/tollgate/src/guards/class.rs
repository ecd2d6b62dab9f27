//! One configured guard, compiled for the table.
//!
//! Promises: an address is counted as its caller may write it: IPv4 in IPv6 as IPv4, IPv6 by its /64,
//! which one host has to itself.
//!
//! Never: keeps an identifier; only its fingerprint.

use std::net::{IpAddr, Ipv6Addr};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use crate::event::Events;
use tollgate_config::config::{Guard, GuardKey as CountedBy, Match, Task};
use tollgate_config::settings::OnStoreLoss;
use tollgate_core::time::{Micros, Span, Wall};
use tollgate_guard::{GuardPlan, GuardTable, KeyView, Keys, Limit, PlanError};

use super::UncountableGuard;
use super::bucket_key::{BucketKey, is_secret_header, shared_key};
use super::client_ip;
use super::descriptor::LimitOverride;
use super::identifier::Identifier;
use super::request::GuardedRequest;
use super::shared_bucket::SharedPace;
use super::tally::{GuardCounts, GuardMetrics, GuardTally};
use crate::period::period_text;

/// The identifier of the only key of a global guard.
const GLOBAL: &str = "global";

/// How long a request waits for tokens if it does not say (C1).
const REQUEST_WAIT: Span = Span::from_secs(60);

/// The class of keys of limits that descriptors bring along. No guard has a name with a space.
const OVERRIDES: &str = "limit override";

/// The prefix of their keys in Redis.
const OVERRIDE_PREFIX: &str = "ratelimit:override:";

/// One guard.
#[derive(Debug)]
pub struct GuardClass {
    guard: Guard,
    /// In this process. If it counts in Redis, the part of this node while Redis is lost.
    plan: GuardPlan,
    /// In Redis, if that is where it counts.
    shared: Option<SharedPace>,
    keys: Keys,
    tally: Arc<GuardTally>,
    /// A descriptor brought its limit along.
    is_override: bool,
}

/// The tokens of one key (C2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuardStatus {
    /// Tokens available, in millionths.
    pub micro_tokens: u64,
    /// Tokens gained per minute.
    pub tokens_per_minute: u64,
    /// Capacity of the bucket.
    pub burst: u32,
    /// Up to when its refill is counted.
    pub last_refill: Wall,
    /// N per `period`.
    pub limit: u32,
    /// The period of the limit.
    pub period: Span,
}

impl GuardStatus {
    /// When so many tokens are there; `None` if the bucket never holds as many.
    #[must_use]
    pub fn available_in(&self, tokens: u64) -> Option<Span> {
        if tokens > u64::from(self.burst) {
            return None;
        }
        let missing = tokens
            .saturating_mul(1_000_000)
            .saturating_sub(self.micro_tokens);
        let rate = u128::from(self.limit.max(1)) * 1_000_000;
        let wait = (u128::from(missing) * u128::from(self.period.0)).div_ceil(rate);
        Some(Span(u64::try_from(wait).unwrap_or(u64::MAX)))
    }
}

impl GuardClass {
    /// An error for limits that a checked configuration does not have, and if the table is full.
    /// `nodes` share it through Redis, if that is where it counts.
    pub(super) fn new(
        guard: &Guard,
        table: &GuardTable,
        nodes: Option<u32>,
        tally: Arc<GuardTally>,
    ) -> Result<GuardClass, UncountableGuard> {
        let uncountable = |reason| UncountableGuard {
            guard: guard.name.clone(),
            reason,
        };
        let number = |number| NonZeroU32::new(number).ok_or(PlanError::Empty);
        let limit = Limit {
            limit: number(guard.limit).map_err(uncountable)?,
            period: Duration::from(guard.period),
            burst: number(guard.burst).map_err(uncountable)?,
        };
        let shared = nodes.map(|_| {
            let pace = SharedPace::new(guard.limit, guard.period, guard.burst);
            pace.ok_or_else(|| uncountable(PlanError::Impossible(0)))
        });
        let limit = share_of(limit, nodes.unwrap_or(1));
        Ok(GuardClass {
            plan: table.plan(&[limit]).map_err(uncountable)?,
            shared: shared.transpose()?,
            keys: table.keys(&guard.name),
            guard: guard.clone(),
            tally,
            is_override: false,
        })
    }

    /// The limit that a descriptor brings along. It counts apart from every guard, and each descriptor
    /// apart from others.
    pub(super) fn of_override(
        name: &str,
        wanted: LimitOverride,
        table: &GuardTable,
        nodes: Option<u32>,
        tally: Arc<GuardTally>,
    ) -> Result<GuardClass, PlanError> {
        // A limit of 0 is never granted: the ask costs more than the bucket holds.
        let most = NonZeroU32::new(wanted.limit).unwrap_or(NonZeroU32::MIN);
        let limit = Limit::new(most, Duration::from(wanted.period));
        let plan = table.plan(&[share_of(limit, nodes.unwrap_or(1))])?;
        let shared = nodes.map(|_| {
            let pace = SharedPace::new(most.get(), wanted.period, most.get());
            pace.ok_or(PlanError::Impossible(0))
        });
        let guard = Guard {
            name: name.to_owned(),
            limit: wanted.limit,
            period: wanted.period,
            burst: wanted.limit,
            by: CountedBy::Name,
            key_prefix: OVERRIDE_PREFIX.to_owned(),
            shadow: false,
            on_store_loss: OnStoreLoss::LocalShare,
            matches: Match::default(),
            task: Task::default(),
        };
        Ok(GuardClass {
            plan,
            shared: shared.transpose()?,
            keys: table.keys(OVERRIDES),
            guard,
            tally,
            is_override: true,
        })
    }

    /// Its name: `ip`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.guard.name
    }

    /// N per [`GuardClass::period`].
    #[must_use]
    pub fn limit(&self) -> u32 {
        self.guard.limit
    }

    /// How many tokens its buckets hold.
    #[must_use]
    pub fn burst(&self) -> u32 {
        self.guard.burst
    }

    /// The period of its limit.
    #[must_use]
    pub fn period(&self) -> Span {
        self.guard.period
    }

    /// The limit as rate headers state it: tokens per minute, at least one.
    #[must_use]
    pub fn tokens_per_minute(&self) -> u64 {
        let minute = u128::from(Span::from_secs(60).0);
        let tokens = u128::from(self.guard.limit) * minute / u128::from(self.guard.period.0.max(1));
        u64::try_from(tokens).unwrap_or(u64::MAX).max(1)
    }

    /// Its limit as errors name it: `10/1m`.
    #[must_use]
    pub fn limit_name(&self) -> String {
        format!("{}/{}", self.guard.limit, period_text(self.guard.period))
    }

    /// All requests share one key.
    #[must_use]
    pub fn is_global(&self) -> bool {
        self.guard.by == CountedBy::Global
    }

    /// What it has denied since the start.
    #[must_use]
    pub fn counts(&self) -> GuardCounts {
        self.tally.counts()
    }

    /// Its counters, which survive a reload.
    pub(super) fn tally(&self) -> Arc<GuardTally> {
        self.tally.clone()
    }

    pub(super) fn on_denial(&self, shadow: bool, now: Micros, events: &Events) {
        // Overrides are counted together, whichever guard they replace.
        let name = if self.is_override {
            OVERRIDES
        } else {
            self.name()
        };
        self.tally.on_denial(name, shadow, now, events);
    }

    /// How long an ask waits that does not say: tasks are more patient than requests (C1, C5).
    pub(super) fn wait(&self) -> Span {
        match self.guard.by {
            CountedBy::Name => self.guard.task.wait,
            CountedBy::Ip | CountedBy::Global | CountedBy::Header(_) => REQUEST_WAIT,
        }
    }

    /// What it means for tasks (C5, C6); `None` if it does not count names.
    #[must_use]
    pub fn task(&self) -> Option<Task> {
        (self.guard.by == CountedBy::Name).then_some(self.guard.task)
    }

    /// It counts, and rejects nothing.
    #[must_use]
    pub fn is_shadow(&self) -> bool {
        self.guard.shadow
    }

    /// A descriptor brought its limit along: it is counted in the table of overrides.
    pub(super) fn is_override(&self) -> bool {
        self.is_override
    }

    pub(super) fn guard(&self) -> &Guard {
        &self.guard
    }

    pub(super) fn plan(&self) -> &GuardPlan {
        &self.plan
    }

    /// Its limit in Redis, if that is where it counts.
    pub(super) fn shared(&self) -> Option<&SharedPace> {
        self.shared.as_ref()
    }

    /// What happens while Redis is lost.
    #[must_use]
    pub fn on_store_loss(&self) -> OnStoreLoss {
        self.guard.on_store_loss
    }

    pub(super) fn status(&self, view: &KeyView, wall: Wall) -> GuardStatus {
        let bucket = view.buckets().first().copied().unwrap_or_default();
        self.status_of(bucket.micro_tokens, wall)
    }

    /// The status of a bucket with so many millionths of tokens now.
    pub(super) fn status_of(&self, micro_tokens: u64, wall: Wall) -> GuardStatus {
        GuardStatus {
            micro_tokens,
            tokens_per_minute: self.tokens_per_minute(),
            burst: self.guard.burst,
            last_refill: wall,
            limit: self.guard.limit,
            period: self.guard.period,
        }
    }

    /// When an empty bucket has its next token.
    pub(super) fn next_token_in(&self, view: &KeyView) -> Span {
        let tokens = view.buckets().first().map_or(0, |seen| seen.micro_tokens);
        let missing =
            u128::from(1_000_000_u64.saturating_sub(tokens)) * u128::from(self.guard.period.0);
        let wait = missing.div_ceil(u128::from(self.guard.limit.max(1)) * 1_000_000);
        Span(u64::try_from(wait).unwrap_or(u64::MAX).max(1))
    }

    /// The key of an identifier; `None` if the guard needs one.
    pub(super) fn key_of(&self, identifier: Option<&str>) -> Option<BucketKey> {
        let identifier = identifier.filter(|identifier| !identifier.is_empty());
        match (&self.guard.by, identifier) {
            (CountedBy::Global, _) => Some(self.bucket(GLOBAL.as_bytes())),
            // Other texts count too: whoever may not store addresses sends their hashes.
            (CountedBy::Ip, Some(text)) => Some(match client_ip::parse(text) {
                Some(ip) => self.key_of_ip(ip),
                None => self.bucket(text.as_bytes()),
            }),
            (CountedBy::Name | CountedBy::Header(_), Some(text)) => {
                Some(self.bucket(text.as_bytes()))
            }
            (CountedBy::Ip | CountedBy::Name | CountedBy::Header(_), None) => None,
        }
    }

    /// The key of a name in bytes.
    pub(super) fn key_of_bytes(&self, name: &[u8]) -> BucketKey {
        self.bucket(name)
    }

    /// For whom it counts a request, in metrics.
    pub(super) fn identifier_in(&self, request: &GuardedRequest<'_>) -> Identifier {
        match &self.guard.by {
            CountedBy::Ip => Identifier::Ip(request.ip),
            CountedBy::Header(name) => {
                let value = request.headers.get(name);
                value.map_or(Identifier::Global, |value| {
                    Identifier::of_text(value.as_bytes())
                })
            }
            CountedBy::Global | CountedBy::Name => Identifier::Global,
        }
    }

    /// Its counters for metrics: whom it denied and how often, and how long requests waited.
    pub fn metrics(&self) -> GuardMetrics {
        self.tally.metrics()
    }

    /// The key of a request; `None` if the guard does not apply to it.
    pub(super) fn key_in(&self, request: &GuardedRequest<'_>) -> Option<BucketKey> {
        let path = self.guard.matches.path.as_deref();
        let is_other = |prefix: &str| request.has_plain_path() && !request.path.starts_with(prefix);
        if path.is_some_and(is_other) || !self.guard.matches.descriptor.is_empty() {
            return None;
        }
        match &self.guard.by {
            CountedBy::Global => self.key_of(None),
            CountedBy::Ip => Some(self.key_of_ip(request.ip)),
            CountedBy::Header(name) => {
                let value = request.headers.get(name)?.as_bytes();
                (!value.is_empty()).then(|| self.bucket(value))
            }
            // Tasks have names, requests have none.
            CountedBy::Name => None,
        }
    }

    /// The maker of its keys.
    #[cfg(test)]
    pub(super) fn keys_for_tests(&self) -> &Keys {
        &self.keys
    }

    fn bucket(&self, identifier: &[u8]) -> BucketKey {
        let may_be_secret =
            matches!(&self.guard.by, CountedBy::Header(name) if is_secret_header(name));
        let prefix = &self.guard.key_prefix;
        BucketKey {
            local: self.keys.key(identifier),
            shared: self
                .shared
                .map(|_| shared_key(prefix, identifier, may_be_secret)),
        }
    }

    fn key_of_ip(&self, ip: IpAddr) -> BucketKey {
        let network = match ip.to_canonical() {
            IpAddr::V4(v4) => IpAddr::V4(v4),
            IpAddr::V6(v6) => IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() >> 64 << 64)),
        };
        self.bucket(network.to_string().as_bytes())
    }
}

/// The part of one of several nodes: as much less often, and of the burst at least one token.
fn share_of(limit: Limit, nodes: u32) -> Limit {
    let nodes = nodes.max(1);
    Limit {
        period: limit.period.saturating_mul(nodes),
        burst: NonZeroU32::new(limit.burst.get() / nodes).unwrap_or(NonZeroU32::MIN),
        ..limit
    }
}
