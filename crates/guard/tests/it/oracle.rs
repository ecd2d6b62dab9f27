//! The oracle for buckets, independent of the table: brute force in exact integers.
//!
//! Promises: no rounding at all. A bucket counts in units of which a token is `period_ns` and a
//! nanosecond of refill is `limit`; nothing is ever evicted or divided.
//!
//! Never: shares code or representation with the code under test.

use std::collections::HashMap;

use tollgate_guard::Limit;

/// One bucket: units missing from full, and when that was counted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bucket {
    missing: u128,
    counted_at: u64,
    limit: Limit,
}

/// The oracle's decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Truth {
    Granted { remaining: u32 },
    Rejected { wait_ns: u64 },
    Never,
}

impl Bucket {
    pub(crate) fn full(limit: Limit, now: u64) -> Bucket {
        Bucket {
            missing: 0,
            counted_at: now,
            limit,
        }
    }

    fn token(&self) -> u128 {
        self.limit.period.as_nanos()
    }

    fn capacity(&self) -> u128 {
        u128::from(self.limit.burst.get()) * self.token()
    }

    fn refill(&mut self, now: u64) {
        let passed = u128::from(now.saturating_sub(self.counted_at));
        let gained = passed * u128::from(self.limit.limit.get());
        self.missing = self.missing.saturating_sub(gained);
        self.counted_at = self.counted_at.max(now);
    }

    pub(crate) fn take(&mut self, cost: i64, now: u64) -> Truth {
        self.refill(now);
        let units = u128::from(cost.unsigned_abs()) * self.token();
        if cost < 0 {
            self.missing = self.missing.saturating_sub(units);
        } else if units > self.capacity() {
            return Truth::Never;
        } else {
            // Overdrawn if rejected: the oracle restores everything.
            self.missing += units;
        }
        let Some(room) = self.capacity().checked_sub(self.missing) else {
            let lacking = self.missing - self.capacity();
            let wait = lacking.div_ceil(u128::from(self.limit.limit.get()));
            return Truth::Rejected {
                wait_ns: u64::try_from(wait).expect("tests wait for days"),
            };
        };
        let remaining = u32::try_from(room / self.token()).expect("at most the burst");
        Truth::Granted { remaining }
    }
}

/// Any number of keys, each with the limits it was first seen with.
#[derive(Clone, Debug, Default)]
pub(crate) struct Oracle {
    keys: HashMap<u64, Vec<Bucket>>,
}

impl Oracle {
    /// All asks or none; of several rejections the longest wait.
    pub(crate) fn take(&mut self, asks: &[(u64, &[Limit], i64)], now: u64) -> Truth {
        let before = self.keys.clone();
        let mut truth = Truth::Granted {
            remaining: u32::MAX,
        };
        let mut totals: HashMap<u64, i64> = HashMap::new();
        for &(key, limits, cost) in asks {
            let total = totals.entry(key).or_default();
            *total += cost.max(0);
            if cost > 0
                && limits
                    .iter()
                    .any(|limit| *total > i64::from(limit.burst.get()))
            {
                truth = Truth::Never;
            }
            let full = || {
                limits
                    .iter()
                    .map(|&limit| Bucket::full(limit, now))
                    .collect()
            };
            for bucket in self.keys.entry(key).or_insert_with(full) {
                truth = worse(truth, bucket.take(cost, now));
            }
        }
        if !matches!(truth, Truth::Granted { .. }) {
            self.keys = before;
        }
        truth
    }
}

fn worse(one: Truth, other: Truth) -> Truth {
    match (one, other) {
        (Truth::Never, _) | (_, Truth::Never) => Truth::Never,
        (Truth::Rejected { wait_ns: one }, Truth::Rejected { wait_ns: other }) => Truth::Rejected {
            wait_ns: one.max(other),
        },
        (rejected @ Truth::Rejected { .. }, Truth::Granted { .. })
        | (Truth::Granted { .. }, rejected @ Truth::Rejected { .. }) => rejected,
        (Truth::Granted { remaining: one }, Truth::Granted { remaining: other }) => {
            Truth::Granted {
                remaining: one.min(other),
            }
        }
    }
}
