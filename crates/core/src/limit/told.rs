//! What others said about a limit: the provider in its answers, and the owners that share a cell.
//!
//! Promises: lower only. A lower limit holds at once; a higher one (never above the configured) is
//! believed after it was said for one full window. Strangers' use of the key is a phantom that the
//! next answer replaces and that its reset ends.
//!
//! Never: raises a limit above what is configured.

use smallvec::SmallVec;

use crate::ask::OwnerId;
use crate::time::{Micros, Span};

/// How long an owner counts as living after its last ask. A rolling reload of a fleet takes
/// minutes, but each process asks several times a minute while it has work.
pub(crate) const OWNER_LIVES: Span = Span::from_secs(60);

/// How many owners are remembered per cell: more processes on one ledger than any host runs. Past
/// this the one heard of longest ago is forgotten.
pub(crate) const OWNERS_MAX: usize = 64;

/// What others said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Told {
    pub(crate) limit: Option<Lowered>,
    /// What strangers took, and until when that is believed.
    pub(crate) taken: u64,
    pub(crate) taken_until: Micros,
    pub(crate) owners: SmallVec<[OwnerLimit; 2]>,
}

/// A limit that the provider told, below the configured one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lowered {
    pub(crate) limit: u64,
    /// Since when every answer has said more than that.
    pub(crate) higher_since: Option<Micros>,
}

/// Which N an owner works with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OwnerLimit {
    pub(crate) owner: OwnerId,
    pub(crate) limit: u64,
    pub(crate) seen: Micros,
}

impl Told {
    pub(crate) fn refresh(&mut self, now: Micros) {
        if now >= self.taken_until {
            self.taken = 0;
        }
        self.owners
            .retain(|owner| now.since(owner.seen) < OWNER_LIVES);
    }

    pub(crate) fn publish(&mut self, owner: OwnerId, limit: u64, now: Micros) {
        if let Some(known) = self.owners.iter_mut().find(|known| known.owner == owner) {
            known.limit = limit;
            known.seen = now;
            return;
        }
        if self.owners.len() >= OWNERS_MAX
            && let Some(oldest) = (0..self.owners.len()).min_by_key(|&i| self.owners[i].seen)
        {
            self.owners.swap_remove(oldest);
        }
        self.owners.push(OwnerLimit {
            owner,
            limit,
            seen: now,
        });
    }

    /// N in force.
    pub(crate) fn limit(&self, configured: u64, now: Micros) -> u64 {
        let owners = self
            .owners
            .iter()
            .filter(|owner| now.since(owner.seen) < OWNER_LIVES);
        let owners = owners.map(|owner| owner.limit).min().unwrap_or(configured);
        let told = self.limit.map_or(configured, |lowered| lowered.limit);
        configured.min(owners).min(told)
    }

    /// The provider said which limit it enforces.
    pub(crate) fn tell_limit(&mut self, limit: u64, configured: u64, window: Span, now: Micros) {
        let Some(lowered) = &mut self.limit else {
            if limit < configured {
                self.limit = Some(Lowered {
                    limit,
                    higher_since: None,
                });
            }
            return;
        };
        if limit <= lowered.limit {
            *lowered = Lowered {
                limit,
                higher_since: None,
            };
            return;
        }
        let since = *lowered.higher_since.get_or_insert(now);
        if now.since(since) >= window {
            self.limit = (limit < configured).then_some(Lowered {
                limit,
                higher_since: None,
            });
        }
    }

    /// The newest answer says how much strangers have taken; it replaces what was said before.
    pub(crate) fn tell_taken(&mut self, taken: u64, until: Micros) {
        self.taken = taken;
        self.taken_until = until;
    }

    pub(crate) fn taken(&self, now: Micros) -> u64 {
        if now < self.taken_until {
            self.taken
        } else {
            0
        }
    }

    pub(crate) fn taken_until(&self) -> Micros {
        self.taken_until
    }
}
