//! The general decision: any number of asks up to the bound, decided as one.
//!
//! Promises: all or none. Locks are taken once each, in the order of the shards' numbers, so two
//! decisions cannot deadlock; everything is drafted before anything is written, under those locks,
//! so no other thread sees a part of it.
//!
//! Never: writes for a peek (cost 0) or a rejection, except to convert a key to a new plan or to
//! repair it after a clock that stepped back.

use std::num::NonZeroU64;
use std::sync::atomic::Ordering;

use smallvec::SmallVec;
use spin::mutex::SpinMutexGuard;

use super::clock::Tick;
use super::plan::GuardPlan;
use super::shard::Shard;
use super::slots::Slot;
use super::table::{GuardTable, ROOM_SEARCH};
use super::take::{ASKS_MAX, Ask, KeyView, Outcome};

/// An ask, and whether it uses the shared bucket because its key found no room.
#[derive(Clone, Copy)]
struct PlacedAsk<'p> {
    ask: Ask<'p>,
    shared: bool,
}

/// One ask during a decision.
struct Draft<'p> {
    placed: PlacedAsk<'p>,
    /// The current slot, in terms of the ask's plan.
    before: Slot,
    /// The slot if all limits agree.
    after: Slot,
    /// Tokens that this ask and earlier ones of the same key want together.
    total: u64,
    /// Writing `after` adds a key to the table.
    fresh: bool,
    /// `before` differs from the slot in the table and is written even on a rejection.
    repaired: bool,
}

/// There is no room for the keys of these asks, one bit each.
struct NoCapacity(u8);

const _: () = assert!(ASKS_MAX <= 8, "NoCapacity has one bit per ask");

type PlacedAsks<'p> = SmallVec<[PlacedAsk<'p>; ASKS_MAX]>;
type Drafts<'p> = SmallVec<[Draft<'p>; ASKS_MAX]>;
type LockedShards<'t> = SmallVec<[(usize, SpinMutexGuard<'t, Shard>); ASKS_MAX]>;

impl GuardTable {
    /// Decides at most [`ASKS_MAX`] asks and fills as many views as there are places.
    #[inline(never)]
    pub(super) fn decide(&self, asks: &[Ask<'_>], now: Tick, views: &mut [KeyView]) -> Outcome {
        let mut placed_asks: PlacedAsks<'_> = asks
            .iter()
            .map(|ask| PlacedAsk {
                ask: *ask,
                shared: false,
            })
            .collect();
        let mut searched = false;
        // Ends: the first round without room searches for it, every later one moves at least one
        // more ask to a shared bucket, which needs no room.
        loop {
            match self.attempt(&placed_asks, now, views) {
                Ok(outcome) => return outcome,
                Err(NoCapacity(which)) => {
                    let lacking = placed_asks.iter_mut().enumerate();
                    for (_, placed) in lacking.filter(|(at, _)| which >> at & 1 == 1) {
                        if searched {
                            placed.ask.key = self.shared_key(placed.ask.plan);
                            placed.shared = true;
                        } else {
                            self.evict_idle(self.shard_of(placed.ask.key), now);
                        }
                    }
                    searched = true;
                }
            }
        }
    }

    /// One ask, unless it needs more than its own slot: a key under another plan, a clock that was
    /// set back, a full table.
    #[inline(never)]
    pub(super) fn decide_one(&self, ask: Ask<'_>, now: Tick) -> Option<Outcome> {
        let now = now.nanos();
        let at = self.shard_of(ask.key);
        let mut shard = self.shards[at].lock();
        let place = shard.find(ask.key);
        let mut slot = *place;
        let fresh = slot.plan == 0;
        if fresh {
            slot = Slot {
                key: ask.key,
                plan: ask.plan.id,
                ..Slot::EMPTY
            };
        }
        if slot.plan != ask.plan.id || slot.repair(ask.plan, now) {
            return None;
        }
        let mut verdict = ChargeResult::default();
        verdict.charge(&mut slot, ask, ask.wanted(), now, 0);
        let outcome = verdict.outcome(slot.tokens(ask.plan, now));
        let mut freed = None;
        if outcome.is_granted() && ask.writes(fresh) {
            if !fresh {
                *place = slot;
            } else if self.reserve(1) {
                freed = shard.put(slot, self.region(at));
            } else {
                return None;
            }
        }
        // The hint may have been wrong, or the shard may have grown.
        self.hints[at].note(&shard);
        // The lock first: see `Slots`.
        drop(shard);
        drop(freed);
        Some(outcome)
    }

    fn attempt(
        &self,
        placed_asks: &[PlacedAsk<'_>],
        now: Tick,
        views: &mut [KeyView],
    ) -> Result<Outcome, NoCapacity> {
        let mut held = self.lock_in_order(placed_asks);
        let mut verdict = ChargeResult::default();
        let mut drafts = Drafts::new();
        for (ask, placed) in (0_u8..).zip(placed_asks) {
            let mut draft = self.draft(*placed, &drafts, &mut held, now.nanos());
            verdict.charge(&mut draft.after, placed.ask, draft.total, now.nanos(), ask);
            drafts.push(draft);
        }
        let remaining = drafts
            .iter()
            .map(|draft| draft.after.tokens(draft.placed.ask.plan, now.nanos()));
        let outcome = verdict.outcome(remaining.min().unwrap_or(u32::MAX));
        let granted = outcome.is_granted();
        if granted {
            self.admit_new_keys(&drafts)?;
        }
        // Allocates only if some shard grew.
        let mut freed = Vec::new();
        for draft in &drafts {
            let slot = if granted && draft.writes() {
                draft.after
            } else if draft.repaired {
                draft.before
            } else {
                continue;
            };
            let at = self.shard_of(slot.key);
            freed.extend(shard_in(&mut held, at).put(slot, self.region(at)));
        }
        // The locks first: see `Slots`.
        drop(held);
        drop(freed);
        for (view, draft) in views.iter_mut().zip(&drafts) {
            let slot = if granted { &draft.after } else { &draft.before };
            *view = KeyView::new(slot, draft.placed.ask.plan, now);
        }
        Ok(outcome)
    }

    /// The shards of all asks, each once and in the order of their numbers.
    fn lock_in_order(&self, placed_asks: &[PlacedAsk<'_>]) -> LockedShards<'_> {
        let mut order: SmallVec<[usize; ASKS_MAX]> = placed_asks
            .iter()
            .map(|placed| self.shard_of(placed.ask.key))
            .collect();
        order.sort_unstable();
        order.dedup();
        order
            .into_iter()
            .map(|at| (at, self.shards[at].lock()))
            .collect()
    }

    /// One ask before it is charged, given the drafts of the asks before it.
    fn draft<'p>(
        &self,
        placed: PlacedAsk<'p>,
        earlier: &Drafts<'p>,
        held: &mut LockedShards<'_>,
        now: u64,
    ) -> Draft<'p> {
        let Ask { key, plan, .. } = placed.ask;
        let twin = earlier
            .iter()
            .rev()
            .find(|draft| draft.placed.ask.key == key);
        let mut before = match twin {
            Some(twin) => twin.after,
            None => *shard_in(held, self.shard_of(key)).find(key),
        };
        let unknown = before.plan == 0;
        if unknown {
            before = Slot {
                key,
                plan: plan.id,
                ..Slot::EMPTY
            };
        }
        let carried = before.plan != plan.id;
        if carried {
            before = self.carry(&before, plan, now);
        }
        // A twin may be overdrawn on purpose; it was repaired itself.
        let healed = twin.is_none() && before.repair(plan, now);
        Draft {
            fresh: unknown || twin.is_some_and(|twin| twin.fresh && !twin.writes()),
            repaired: healed || twin.is_none() && carried,
            total: twin
                .map_or(0, |twin| twin.total)
                .saturating_add(placed.ask.wanted()),
            placed,
            before,
            after: before,
        }
    }

    /// The slot in terms of another plan: as many tokens as before, at most the new bursts.
    #[cold]
    fn carry(&self, slot: &Slot, plan: &GuardPlan, now: u64) -> Slot {
        let mut carried = Slot {
            key: slot.key,
            plan: plan.id,
            ..Slot::EMPTY
        };
        let plans = self.plans.read();
        let Some(old) = plans.named(slot.plan) else {
            return carried;
        };
        for (at, inherited) in plan.inherited_limits(old).iter().enumerate() {
            if let Some(from) = *inherited {
                let full = plan.paces[at].carry(&old.paces[from], slot.full_at(from), now);
                carried.set(at, full);
            }
        }
        carried
    }

    /// Counts the new keys of a granted decision, or returns those that have no room.
    fn admit_new_keys(&self, drafts: &Drafts<'_>) -> Result<(), NoCapacity> {
        let new = drafts.iter().filter(|draft| draft.fresh && draft.writes());
        let shared = new.clone().filter(|draft| draft.placed.shared).count();
        let own = new.count() - shared;
        if own > 0 && !self.reserve(own) {
            let lacking = drafts
                .iter()
                .enumerate()
                .filter(|(_, draft)| draft.fresh && draft.writes() && !draft.placed.shared);
            return Err(NoCapacity(lacking.fold(0, |bits, (at, _)| bits | 1 << at)));
        }
        self.keys.fetch_add(shared, Ordering::Relaxed);
        Ok(())
    }

    /// Evicts idle keys from the shard of a new key.
    fn evict_idle(&self, shard: usize, now: Tick) {
        let step = self.shards[shard].lock().sweep(now.nanos(), ROOM_SEARCH);
        self.keys.fetch_sub(step.removed, Ordering::Relaxed);
    }
}

impl Draft<'_> {
    /// Whether a grant changes the table.
    fn writes(&self) -> bool {
        self.placed.ask.writes(self.fresh)
    }
}

/// The result of the limits charged so far.
#[derive(Default)]
struct ChargeResult {
    never: Option<(u8, u8)>,
    /// The longest wait, its ask and its limit.
    wait: Option<(NonZeroU64, u8, u8)>,
}

impl ChargeResult {
    /// Charges every limit of one ask on a draft of its slot and records rejections. `total` is the
    /// cost of this and earlier asks of the same key together.
    fn charge(&mut self, slot: &mut Slot, ask: Ask<'_>, total: u64, now: u64, number: u8) {
        for (limit, pace) in (0_u8..).zip(ask.plan.paces()) {
            let at = usize::from(limit);
            let full = slot.full_at(at);
            if ask.cost < 0 {
                slot.set(at, pace.refund(full, now, ask.cost.unsigned_abs()));
                continue;
            }
            // A total within the burst is a cost within it, and both have 32 bits.
            let possible = total <= u64::from(pace.burst);
            let Some(cost) = u32::try_from(ask.cost).ok().filter(|_| possible) else {
                self.never.get_or_insert((number, limit));
                continue;
            };
            // Charged even if rejected: a later ask of the same key must wait for both.
            let (spent, wait) = pace.spend(full, now, cost);
            slot.set(at, spent);
            if wait > self.wait.map(|(longest, ..)| longest) {
                self.wait = wait.map(|wait| (wait, number, limit));
            }
        }
    }

    /// The outcome, with `remaining` tokens if no limit rejects.
    fn outcome(&self, remaining: u32) -> Outcome {
        if let Some((ask, limit)) = self.never {
            return Outcome::Never { ask, limit };
        }
        match self.wait {
            Some((retry_in_ns, ask, limit)) => Outcome::Rejected {
                retry_in_ns,
                ask,
                limit,
            },
            None => Outcome::Granted { remaining },
        }
    }
}

impl Slot {
    /// Whole tokens in the emptiest bucket.
    fn tokens(&self, plan: &GuardPlan, now: u64) -> u32 {
        let paces = plan.paces().iter().enumerate();
        paces
            .map(|(at, pace)| pace.tokens(self.full_at(at), now))
            .min()
            .unwrap_or(u32::MAX)
    }

    /// Repairs buckets that a clock which stepped back left far in the future.
    fn repair(&mut self, plan: &GuardPlan, now: u64) -> bool {
        let mut healed = false;
        for (at, pace) in plan.paces().iter().enumerate() {
            if let Some(full) = pace.repair(self.full_at(at), now) {
                self.set(at, full);
                healed = true;
            }
        }
        healed
    }
}

/// The locked shard with this number.
fn shard_in<'h>(held: &'h mut LockedShards<'_>, at: usize) -> &'h mut Shard {
    let held = held.iter_mut().find(|(number, _)| *number == at);
    &mut held.expect("lock_in_order locked the shard of every ask").1
}
