//! Sliding windows: the exact log, and the one that counts in bins.
//!
//! Promises: the log counts a request at `a` in `[a, a + W)`, and nothing else; the binned window
//! counts at least what the log would, and at most what a log of W plus one bin would.
//!
//! Never: evicts a counted request early.

use std::collections::VecDeque;

use tollgate_core::time::{Micros, Span};

use super::{Availability, CallId, Counter, LimitStatus};

/// Entries stored. Accepted requests are at most `limit`; only limited ones that are counted can
/// accumulate. 2²⁰ entries are 16 MiB and a flood of one per microsecond for a second; beyond it
/// the newest entry absorbs the rest and moves up to now, which evicts nothing early.
const ENTRIES_MAX: usize = 1 << 20;

/// The requests that still count, oldest first.
#[derive(Debug)]
struct Counted {
    entries: VecDeque<(Micros, u64)>,
    sum: u64,
}

/// At most `limit` in any window.
#[derive(Debug)]
pub(super) struct Log {
    limit: u64,
    window: Span,
    counted: Counted,
}

/// At most `limit` in the bins that touch the window.
#[derive(Debug)]
pub(super) struct Binned {
    log: Log,
    width: u64,
}

impl Counted {
    fn push(&mut self, at: Micros, cost: u64) {
        if cost == 0 {
            return;
        }
        self.sum = self.sum.saturating_add(cost);
        let full = self.entries.len() >= ENTRIES_MAX;
        match self.entries.back_mut() {
            Some(newest) if newest.0 == at || full => {
                *newest = (at, newest.1.saturating_add(cost));
            }
            _ => self.entries.push_back((at, cost)),
        }
    }

    fn evict(&mut self, now: Micros, window: Span) {
        while let Some(&(at, cost)) = self.entries.front()
            && at + window <= now
        {
            self.sum = self.sum.saturating_sub(cost);
            self.entries.pop_front();
        }
    }
}

impl Log {
    pub(super) fn new(limit: u64, window: Span) -> Log {
        let counted = Counted {
            entries: VecDeque::new(),
            sum: 0,
        };
        Log {
            limit,
            window: window.max(Span(1)),
            counted,
        }
    }

    /// When enough of the oldest entries have expired for `cost` to fit.
    fn fits_at(&self, cost: u64) -> Option<Micros> {
        if cost > self.limit {
            return None;
        }
        let mut sum = self.counted.sum;
        for &(at, counted) in &self.counted.entries {
            sum = sum.saturating_sub(counted);
            if sum.saturating_add(cost) <= self.limit {
                return Some(at + self.window);
            }
        }
        None
    }
}

impl Counter for Log {
    fn availability(&mut self, cost: u64, now: Micros) -> Availability {
        self.counted.evict(now, self.window);
        // A cost of zero passes even when a lowered limit is already overdrawn.
        if cost == 0 || self.counted.sum.saturating_add(cost) <= self.limit {
            return Availability::Now;
        }
        self.fits_at(cost).map_or(Availability::Unknown, |at| {
            Availability::After(at.since(now))
        })
    }

    fn charge(&mut self, _id: CallId, cost: u64, now: Micros) {
        self.counted.push(now, cost);
    }

    fn status(&mut self, now: Micros) -> LimitStatus {
        self.counted.evict(now, self.window);
        let newest = self.counted.entries.back();
        LimitStatus {
            limit: self.limit,
            remaining: self.limit.saturating_sub(self.counted.sum),
            reset_after: newest.map_or(Span::ZERO, |&(at, _)| (at + self.window).since(now)),
        }
    }

    fn set_limit(&mut self, limit: u64, _now: Micros) {
        self.limit = limit;
    }
}

impl Binned {
    pub(super) fn new(limit: u64, window: Span, bins: u64) -> Binned {
        let width = window.0.max(1).div_ceil(bins.max(1));
        Binned {
            log: Log::new(limit, window),
            width,
        }
    }
}

/// A binned window is a log in which every request is at the end of its bin.
impl Counter for Binned {
    fn availability(&mut self, cost: u64, now: Micros) -> Availability {
        self.log.availability(cost, now)
    }

    fn charge(&mut self, id: CallId, cost: u64, now: Micros) {
        let bin_end = (now.0 / self.width)
            .saturating_add(1)
            .saturating_mul(self.width);
        self.log.charge(id, cost, Micros(bin_end));
    }

    fn status(&mut self, now: Micros) -> LimitStatus {
        self.log.status(now)
    }

    fn set_limit(&mut self, limit: u64, now: Micros) {
        self.log.set_limit(limit, now);
    }
}
