//! What others report about a limit: the provider in its responses, and the owners that share a
//! cell.
//!
//! Promises: lower only. A lower limit applies at once. A higher one (never above the configured
//! one) applies after it was reported for one full window. Use of the key outside Tollgate counts
//! until a newer response replaces it or its reset time passes.
//!
//! Never: raises a limit above the configured one.

use smallvec::SmallVec;

use crate::ask::OwnerId;
use crate::time::{Micros, Span, TimeBounds};

/// How long an owner counts as running after its last ask. A rolling reload of a fleet takes
/// minutes, but each process asks several times a minute while it has work.
pub(crate) const OWNER_TTL: Span = Span::from_secs(60);

/// How many owners are stored per cell: more processes on one ledger than any host runs. Past this
/// the owner with the oldest ask is removed.
pub(crate) const OWNERS_MAX: usize = 64;

/// More than was ever granted: no response is newer.
const NEVER_REPLACED: u64 = 1 << 62;

/// What others reported.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reported {
    pub(crate) limit: Option<LoweredLimit>,
    /// Use of the key outside Tollgate, and until when it counts.
    pub(crate) outside_use: u64,
    pub(crate) outside_until: Micros,
    /// Everything granted when that was reported: a response to a later call is newer.
    pub(crate) outside_granted: u64,
    pub(crate) owners: SmallVec<[OwnerLimit; 2]>,
}

/// Use of the key outside Tollgate, until then.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OutsideUse {
    pub(crate) cost: u64,
    pub(crate) until: Micros,
}

/// A limit that the provider reported, below the configured one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LoweredLimit {
    pub(crate) limit: u64,
    /// Since when every response has reported more than that, and the lowest reported value.
    pub(crate) higher: Option<(Micros, u64)>,
}

/// Which N an owner uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OwnerLimit {
    pub(crate) owner: OwnerId,
    pub(crate) limit: u64,
    pub(crate) last_seen: Micros,
}

impl Reported {
    pub(crate) fn refresh(&mut self, now: Micros) {
        if now >= self.outside_until {
            (self.outside_use, self.outside_granted) = (0, 0);
        }
        self.owners
            .retain(|owner| now.since(owner.last_seen) < OWNER_TTL);
    }

    pub(crate) fn set_owner_limit(&mut self, owner: OwnerId, limit: u64, now: Micros) {
        if let Some(known) = self.owners.iter_mut().find(|known| known.owner == owner) {
            known.limit = limit;
            known.last_seen = now;
            return;
        }
        if self.owners.len() >= OWNERS_MAX
            && let Some(oldest) = (0..self.owners.len()).min_by_key(|&i| self.owners[i].last_seen)
        {
            self.owners.swap_remove(oldest);
        }
        self.owners.push(OwnerLimit {
            owner,
            limit,
            last_seen: now,
        });
    }

    /// The current N.
    pub(crate) fn limit(&self, configured: u64, now: Micros) -> u64 {
        let owners = self
            .owners
            .iter()
            .filter(|owner| now.since(owner.last_seen) < OWNER_TTL);
        let owners = owners.map(|owner| owner.limit).min().unwrap_or(configured);
        let reported = self.limit.map_or(configured, |lowered| lowered.limit);
        configured.min(owners).min(reported)
    }

    /// The provider reported the limit it enforces. `true` if more is allowed than before.
    pub(crate) fn report_limit(
        &mut self,
        limit: u64,
        configured: u64,
        window: Span,
        now: TimeBounds,
    ) -> bool {
        let below = |limit: u64| {
            (limit < configured).then_some(LoweredLimit {
                limit,
                higher: None,
            })
        };
        let Some(lowered) = &mut self.limit else {
            self.limit = below(limit);
            return false;
        };
        if limit <= lowered.limit {
            self.limit = below(limit);
            return false;
        }
        let (since, least) = lowered.higher.get_or_insert((now.hi, limit));
        *least = limit.min(*least);
        if now.lo.since(*since) < window {
            return false;
        }
        self.limit = below(*least);
        true
    }

    /// A response shows how much was used outside Tollgate. If its call was granted after the last
    /// report, it is surely newer and replaces it. Other responses may be reordered by the network,
    /// so the higher value counts. `mark` is what had been granted with that call, `granted` what
    /// is granted now. `true` if the outside use is now lower.
    pub(crate) fn report_outside_use(
        &mut self,
        outside: OutsideUse,
        mark: u64,
        granted: u64,
    ) -> bool {
        let newer = growth(mark, self.outside_granted) > 0;
        if !newer && outside.cost <= self.outside_use {
            return false;
        }
        let less = outside.cost < self.outside_use;
        self.outside_use = outside.cost;
        self.outside_until = outside.until;
        self.outside_granted = granted;
        less
    }

    /// The usage is unknown: the whole cost counts as used until then, whatever a response says. A
    /// response does not include calls that were pending when it was written, and those are the
    /// unknown ones.
    pub(crate) fn close(&mut self, outside: OutsideUse) {
        self.outside_use = outside.cost;
        self.outside_until = outside.until;
        self.outside_granted = NEVER_REPLACED;
    }

    pub(crate) fn outside_use(&self, now: Micros) -> u64 {
        if now < self.outside_until {
            self.outside_use
        } else {
            0
        }
    }

    /// Removing it changes no decision.
    pub(crate) fn is_idle(&self, now: Micros) -> bool {
        let gone = |owner: &OwnerLimit| now.since(owner.last_seen) >= OWNER_TTL;
        self.limit.is_none() && now >= self.outside_until && self.owners.iter().all(gone)
    }

    pub(crate) fn outside_until(&self) -> Micros {
        self.outside_until
    }
}

/// How much a wrapping count has grown since `then`; 0 if it has shrunk.
pub(crate) fn growth(now: u64, then: u64) -> u64 {
    u64::try_from(now.wrapping_sub(then).cast_signed()).unwrap_or(0)
}
