//! What others said about a limit: the provider in its answers, and the owners that share a cell.
//!
//! Promises: lower only. A lower limit holds at once; a higher one (never above the configured) is
//! believed after it was said for one full window. Strangers' use of the key is a phantom that a
//! surely newer answer replaces and that its reset ends.
//!
//! Never: raises a limit above what is configured.

use smallvec::SmallVec;

use crate::ask::OwnerId;
use crate::time::{Micros, Span};

/// How long an owner counts as living after its last ask. A rolling reload of a fleet takes
/// minutes, but each process asks several times a minute while it has work.
pub(crate) const OWNER_TTL: Span = Span::from_secs(60);

/// How many owners are remembered per cell: more processes on one ledger than any host runs. Past
/// this the one heard of longest ago is forgotten.
pub(crate) const OWNERS_MAX: usize = 64;

/// More than was ever granted: no answer is newer.
const NEVER_REPLACED: u64 = 1 << 62;

/// What others said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reported {
    pub(crate) limit: Option<LoweredLimit>,
    /// What strangers took, and until when that is believed.
    pub(crate) outside_use: u64,
    pub(crate) outside_until: Micros,
    /// Everything granted when that was heard: a call granted later is answered by newer news.
    pub(crate) outside_granted: u64,
    pub(crate) owners: SmallVec<[OwnerLimit; 2]>,
}

/// What strangers took, until then.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OutsideUse {
    pub(crate) cost: u64,
    pub(crate) until: Micros,
}

/// A limit that the provider told, below the configured one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LoweredLimit {
    pub(crate) limit: u64,
    /// Since when every answer has said more than that, and the least that was said.
    pub(crate) higher: Option<(Micros, u64)>,
}

/// Which N an owner works with.
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

    /// N in force.
    pub(crate) fn limit(&self, configured: u64, now: Micros) -> u64 {
        let owners = self
            .owners
            .iter()
            .filter(|owner| now.since(owner.last_seen) < OWNER_TTL);
        let owners = owners.map(|owner| owner.limit).min().unwrap_or(configured);
        let told = self.limit.map_or(configured, |lowered| lowered.limit);
        configured.min(owners).min(told)
    }

    /// The provider said which limit it enforces. `true` if more is allowed than before.
    pub(crate) fn report_limit(
        &mut self,
        limit: u64,
        configured: u64,
        window: Span,
        now: Micros,
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
        let (since, least) = lowered.higher.get_or_insert((now, limit));
        *least = limit.min(*least);
        if now.since(*since) < window {
            return false;
        }
        self.limit = below(*least);
        true
    }

    /// An answer says how much strangers have taken. One to a call that was granted after the last
    /// was heard is surely newer and replaces it; of others, which the network may have brought in
    /// any order, the higher counts. `mark` is what had been granted with that call, `granted` what
    /// has been by now. `true` if strangers now count for less.
    pub(crate) fn report_outside_use(
        &mut self,
        taken: OutsideUse,
        mark: u64,
        granted: u64,
    ) -> bool {
        let newer = growth(mark, self.outside_granted) > 0;
        if !newer && taken.cost <= self.outside_use {
            return false;
        }
        let less = taken.cost < self.outside_use;
        self.outside_use = taken.cost;
        self.outside_until = taken.until;
        self.outside_granted = granted;
        less
    }

    /// Nothing is known of what was used: all of it until then, whatever an answer says. An answer
    /// speaks of what was on its way when it was written, and that is what is not known.
    pub(crate) fn close(&mut self, taken: OutsideUse) {
        self.outside_use = taken.cost;
        self.outside_until = taken.until;
        self.outside_granted = NEVER_REPLACED;
    }

    pub(crate) fn outside_use(&self, now: Micros) -> u64 {
        if now < self.outside_until {
            self.outside_use
        } else {
            0
        }
    }

    /// Forgetting it changes no answer.
    pub(crate) fn is_idle(&self, now: Micros) -> bool {
        let gone = |owner: &OwnerLimit| now.since(owner.last_seen) >= OWNER_TTL;
        self.limit.is_none() && now >= self.outside_until && self.owners.iter().all(gone)
    }

    pub(crate) fn outside_until(&self) -> Micros {
        self.outside_until
    }
}

/// How much a count that only wraps has grown since `then`; nothing if it has shrunk.
pub(crate) fn growth(now: u64, then: u64) -> u64 {
    u64::try_from(now.wrapping_sub(then).cast_signed()).unwrap_or(0)
}
