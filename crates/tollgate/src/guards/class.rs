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
use tollgate_guard::{GuardKey, GuardPlan, GuardTable, KeyView, Keys, Limit, PlanError};

use super::UncountableGuard;
use super::descriptor::LimitOverride;
use super::identifier::Identifier;
use super::request::GuardedRequest;
use super::tally::{GuardCounts, GuardMetrics, GuardTally};
use crate::period::period_text;

/// The identifier of the only key of a global guard.
const GLOBAL: &str = "global";

/// How long a request waits for tokens if it does not say (C1).
const REQUEST_WAIT: Span = Span::from_secs(60);

/// The class of keys of limits that descriptors bring along. No guard has a name with a space.
const OVERRIDES: &str = "limit override";

/// One guard.
#[derive(Debug)]
pub struct GuardClass {
    guard: Guard,
    plan: GuardPlan,
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
}

impl GuardClass {
    /// An error for limits that a checked configuration does not have, and if the table is full.
    pub(super) fn new(
        guard: &Guard,
        table: &GuardTable,
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
        Ok(GuardClass {
            plan: table.plan(&[limit]).map_err(uncountable)?,
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
        tally: Arc<GuardTally>,
    ) -> Result<GuardClass, PlanError> {
        // A limit of 0 is never granted: the ask costs more than the bucket holds.
        let most = NonZeroU32::new(wanted.limit).unwrap_or(NonZeroU32::MIN);
        let plan = table.plan(&[Limit::new(most, Duration::from(wanted.period))])?;
        let guard = Guard {
            name: name.to_owned(),
            limit: wanted.limit,
            period: wanted.period,
            burst: wanted.limit,
            by: CountedBy::Name,
            key_prefix: String::new(),
            shadow: false,
            on_store_loss: OnStoreLoss::LocalShare,
            matches: Match::default(),
            task: Task::default(),
        };
        Ok(GuardClass {
            plan,
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

    pub(super) fn status(&self, view: &KeyView, wall: Wall) -> GuardStatus {
        let bucket = view.buckets().first().copied().unwrap_or_default();
        GuardStatus {
            micro_tokens: bucket.micro_tokens,
            tokens_per_minute: self.tokens_per_minute(),
            burst: self.guard.burst,
            last_refill: wall,
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
    pub(super) fn key_of(&self, identifier: Option<&str>) -> Option<GuardKey> {
        let identifier = identifier.filter(|identifier| !identifier.is_empty());
        match (&self.guard.by, identifier) {
            (CountedBy::Global, _) => Some(self.keys.key(GLOBAL.as_bytes())),
            (CountedBy::Ip, Some(text)) => Some(match text.parse() {
                Ok(ip) => self.key_of_ip(ip),
                Err(_) => self.keys.key(text.as_bytes()),
            }),
            (CountedBy::Name | CountedBy::Header(_), Some(text)) => {
                Some(self.keys.key(text.as_bytes()))
            }
            (CountedBy::Ip | CountedBy::Name | CountedBy::Header(_), None) => None,
        }
    }

    /// The key of a name in bytes.
    pub(super) fn key_of_bytes(&self, name: &[u8]) -> GuardKey {
        self.keys.key(name)
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
    pub(super) fn key_in(&self, request: &GuardedRequest<'_>) -> Option<GuardKey> {
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
                (!value.is_empty()).then(|| self.keys.key(value))
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

    fn key_of_ip(&self, ip: IpAddr) -> GuardKey {
        let network = match ip.to_canonical() {
            IpAddr::V4(v4) => IpAddr::V4(v4),
            IpAddr::V6(v6) => IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() >> 64 << 64)),
        };
        self.keys.key(network.to_string().as_bytes())
    }
}
