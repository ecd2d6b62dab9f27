//! The table as bytes, for a restart: debts as ages, never as points in time.
//!
//! Layout, little-endian: magic, seed (2 × u64), the fingerprint of a fixed name (2 × u64), number
//! of keys (u64), each key (plan u32, fingerprint 2 × u64, per limit: nanoseconds until full u64
//! and, if any limit of the plan has parts, part u32), each plan (number of limits u64, per limit:
//! limit u32, burst u32, period in ns u64), bytes of all plans (u64), checksum of all before it
//! (u64). Plans come last because keys may get new ones while the snapshot is written.
//!
//! Promises: a restored table grants nothing that the old one would have rejected. Bytes that are
//! cut short, altered or from another build's hash are rejected with the reason, never a panic.
//! Only keys in debt are written.
//!
//! Never: writes a caller's name. The bytes contain the seed, so they are secret.

use std::num::NonZeroU32;
use std::time::Duration;

use super::clock::Tick;
use super::huge_pages::{HugePages, RegionHandle};
use super::key::{GuardKey, Keys, Seed};
use super::pace::FineTime;
use super::plan::{GuardPlan, LIMITS_MAX, Limit};
use super::shard::Shard;
use super::slots::Slot;
use super::table::{GuardTable, KEYS_MAX, Plans, shards_for};

/// Format 1.
const MAGIC: [u8; 8] = *b"TGGUARD\x01";

/// Bytes of a key's record without its limits, and the most that one limit takes.
const RECORD_HEAD: usize = 20;
const RECORD_LIMIT: usize = 12;

/// Why a snapshot cannot be restored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SnapshotError {
    /// Not a snapshot of this format.
    #[error("not a guard snapshot of format 1; start with an empty table")]
    Foreign,
    /// Cut short or altered.
    #[error("the guard snapshot is damaged; start with an empty table or use an older copy")]
    Damaged,
    /// Written by a build with another key hash.
    #[error(
        "the guard snapshot was written by a build with another key hash; start with an empty table"
    )]
    OtherHash,
}

impl GuardTable {
    /// Appends the state at `now` to `out`. Decisions continue meanwhile; each key is written as it
    /// was at some time during the call.
    pub fn snapshot(&self, now: Tick, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(&MAGIC);
        let probe = probe(self.seed);
        for word in [self.seed.0[0], self.seed.0[1], probe.low, probe.high] {
            out.extend_from_slice(&word.to_le_bytes());
        }
        let count_at = out.len();
        out.extend_from_slice(&0_u64.to_le_bytes());
        out.reserve(self.len() * (RECORD_HEAD + RECORD_LIMIT * LIMITS_MAX));
        let count = self.put_keys(now.nanos(), out);
        out[count_at..count_at + 8].copy_from_slice(&count.to_le_bytes());
        let plans_at = out.len();
        put_plans(&self.plans.read().list, out);
        let plans_len = (out.len() - plans_at) as u64;
        out.extend_from_slice(&plans_len.to_le_bytes());
        let sum = checksum(&out[start..]);
        out.extend_from_slice(&sum.to_le_bytes());
    }

    /// Writes every key in debt; returns how many.
    fn put_keys(&self, now: u64, out: &mut Vec<u8>) -> u64 {
        let mut plans: Vec<GuardPlan> = self.plans.read().list.clone();
        let mut count = 0;
        for shard in &self.shards {
            for slot in shard.lock().occupied() {
                let at = slot.plan as usize - 1;
                if at >= plans.len() {
                    plans.clone_from(&self.plans.read().list);
                }
                if let Some(plan) = plans.get(at) {
                    count += u64::from(put_slot(slot, plan, now, out));
                }
            }
        }
        count
    }

    /// The table that was written, `away` later, on a clock that now reads `now`. An unknown `away`
    /// is zero: then nothing was refilled meanwhile. Keys beyond `keys_max` stay, and new ones wait
    /// for room.
    ///
    /// # Errors
    /// The bytes are no snapshot, are damaged, or come from a build with another key hash.
    pub fn restore(
        bytes: &[u8],
        keys_max: usize,
        now: Tick,
        away: Duration,
    ) -> Result<GuardTable, SnapshotError> {
        let mut reader = Reader {
            rest: checked(bytes)?,
        };
        let seed = Seed([reader.u64()?, reader.u64()?]);
        let made = GuardKey {
            low: reader.u64()?,
            high: reader.u64()?,
        };
        if made != probe(seed) {
            return Err(SnapshotError::OtherHash);
        }
        let plans = reader.split_plans()?.plans()?;
        let count = usize::try_from(reader.u64()?).map_err(|_| SnapshotError::Damaged)?;
        if count > KEYS_MAX || count > reader.rest.len() / RECORD_HEAD {
            return Err(SnapshotError::Damaged);
        }
        let keys_max = keys_max.clamp(1, KEYS_MAX);
        let shards = shards_for(keys_max);
        let each = count / shards;
        let huge_pages = HugePages::new(shards, keys_max);
        let handle = |number| RegionHandle {
            pages: &huge_pages,
            number,
        };
        let mut shards: Vec<Shard> = (0..shards)
            .map(|number| Shard::with_room(each + each / 16, handle(number)))
            .collect();
        let mask = shards.len() as u64 - 1;
        let away = u64::try_from(away.as_nanos()).unwrap_or(u64::MAX);
        for _ in 0..count {
            let slot = reader.slot(&plans, now.nanos(), away)?;
            let at = usize::try_from(slot.key.low & mask).unwrap_or(0);
            drop(shards[at].put(slot, handle(at)));
        }
        if !reader.rest.is_empty() {
            return Err(SnapshotError::Damaged);
        }
        Ok(GuardTable::with_shards(
            shards, huge_pages, keys_max, seed, plans,
        ))
    }
}

/// A fixed name's fingerprint: detects builds with another hash.
fn probe(seed: Seed) -> GuardKey {
    Keys::new(seed, "\0snapshot").key(b"a name long enough for the long way of the hash")
}

fn put_plans(plans: &[GuardPlan], out: &mut Vec<u8>) {
    for plan in plans {
        out.extend_from_slice(&(plan.limits().len() as u64).to_le_bytes());
        for limit in plan.limits() {
            let period = u64::try_from(limit.period.as_nanos()).unwrap_or(u64::MAX);
            out.extend_from_slice(&limit.limit.get().to_le_bytes());
            out.extend_from_slice(&limit.burst.get().to_le_bytes());
            out.extend_from_slice(&period.to_le_bytes());
        }
    }
}

/// Writes a key that is in debt; returns whether it did.
fn put_slot(slot: &Slot, plan: &GuardPlan, now: u64, out: &mut Vec<u8>) -> bool {
    let mut record = [0_u8; RECORD_HEAD + RECORD_LIMIT * LIMITS_MAX];
    record[..4].copy_from_slice(&slot.plan.to_le_bytes());
    record[4..12].copy_from_slice(&slot.key.low.to_le_bytes());
    record[12..20].copy_from_slice(&slot.key.high.to_le_bytes());
    let mut used = RECORD_HEAD;
    let mut in_debt = false;
    for (at, pace) in plan.paces().iter().enumerate() {
        let debt = pace.debt(slot.full_at(at), now);
        in_debt |= debt != FineTime::default();
        record[used..used + 8].copy_from_slice(&debt.at.to_le_bytes());
        used += 8;
        if !plan.whole {
            record[used..used + 4].copy_from_slice(&debt.part.to_le_bytes());
            used += 4;
        }
    }
    if in_debt {
        out.extend_from_slice(&record[..used]);
    }
    in_debt
}

/// The content between magic and checksum, if both are right.
fn checked(bytes: &[u8]) -> Result<&[u8], SnapshotError> {
    let content = bytes.strip_prefix(&MAGIC).ok_or(SnapshotError::Foreign)?;
    let at = content.len().checked_sub(8).ok_or(SnapshotError::Damaged)?;
    let (content, sum) = content.split_at(at);
    let whole = &bytes[..bytes.len() - 8];
    if checksum(whole).to_le_bytes() == sum {
        Ok(content)
    } else {
        Err(SnapshotError::Damaged)
    }
}

/// Against accidents, not against attacks. Four lanes, because one would wait for its multiply.
fn checksum(bytes: &[u8]) -> u64 {
    const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut lanes = [1_u64, 2, 3, 4];
    let blocks = bytes.chunks_exact(32);
    let tail = blocks.remainder();
    for block in blocks {
        for (lane, word) in lanes.iter_mut().zip(block.chunks_exact(8)) {
            let word = word.try_into().map_or(0, u64::from_le_bytes);
            *lane = (*lane ^ word).wrapping_mul(ODD).rotate_left(29);
        }
    }
    let fold = |sum: u64, word: u64| (sum ^ word).wrapping_mul(ODD).rotate_left(29);
    let sum = tail
        .iter()
        .fold(bytes.len() as u64, |sum, &byte| fold(sum, u64::from(byte)));
    lanes.into_iter().fold(sum, fold)
}

/// The rest of a snapshot.
struct Reader<'b> {
    rest: &'b [u8],
}

impl Reader<'_> {
    #[inline]
    fn take<const N: usize>(&mut self) -> Result<[u8; N], SnapshotError> {
        let (taken, rest) = self
            .rest
            .split_first_chunk()
            .ok_or(SnapshotError::Damaged)?;
        self.rest = rest;
        Ok(*taken)
    }

    #[inline]
    fn u64(&mut self) -> Result<u64, SnapshotError> {
        self.take().map(u64::from_le_bytes)
    }

    #[inline]
    fn u32(&mut self) -> Result<u32, SnapshotError> {
        self.take().map(u32::from_le_bytes)
    }

    fn nonzero(&mut self) -> Result<NonZeroU32, SnapshotError> {
        NonZeroU32::new(self.u32()?).ok_or(SnapshotError::Damaged)
    }

    /// Takes the plans off the end.
    fn split_plans(&mut self) -> Result<Self, SnapshotError> {
        let (rest, len) = self.rest.split_last_chunk().ok_or(SnapshotError::Damaged)?;
        let len = usize::try_from(u64::from_le_bytes(*len)).map_err(|_| SnapshotError::Damaged)?;
        let at = rest.len().checked_sub(len).ok_or(SnapshotError::Damaged)?;
        let (rest, plans) = rest.split_at(at);
        self.rest = rest;
        Ok(Reader { rest: plans })
    }

    fn plans(&mut self) -> Result<Plans, SnapshotError> {
        let mut plans = Plans::default();
        // Ends: every turn takes bytes, and `Plans` rejects more than PLANS_MAX of them.
        while !self.rest.is_empty() {
            let mut limits = Vec::with_capacity(LIMITS_MAX);
            for _ in 0..self.u64()?.min(LIMITS_MAX as u64 + 1) {
                let limit = self.nonzero()?;
                let burst = self.nonzero()?;
                let period = Duration::from_nanos(self.u64()?);
                limits.push(Limit {
                    limit,
                    period,
                    burst,
                });
            }
            plans.plan(&limits).map_err(|_| SnapshotError::Damaged)?;
        }
        Ok(plans)
    }

    #[inline]
    fn slot(&mut self, plans: &Plans, now: u64, away: u64) -> Result<Slot, SnapshotError> {
        let id = self.u32()?;
        let key = GuardKey {
            low: self.u64()?,
            high: self.u64()?,
        };
        let plan = plans.named(id).ok_or(SnapshotError::Damaged)?;
        let mut slot = Slot {
            key,
            plan: id,
            ..Slot::EMPTY
        };
        for (limit, pace) in plan.paces().iter().enumerate() {
            let at = self.u64()?;
            let part = if plan.whole { 0 } else { self.u32()? };
            let debt = FineTime { at, part };
            let full = pace
                .restore_debt(debt, now, away)
                .ok_or(SnapshotError::Damaged)?;
            slot.set(limit, full);
        }
        Ok(slot)
    }
}
