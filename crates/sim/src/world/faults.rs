//! The faults of a run.
//!
//! Promises: scheduled faults happen at their true time; random faults use their own random
//! streams.
//!
//! Never: active by default. An empty value is a perfect network and provider.

use tollgate_core::time::Micros;

use crate::rule::CallId;

/// True time `[from, to)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeRange {
    /// The first instant.
    pub from: Micros,
    /// The first instant after it.
    pub to: Micros,
}

/// The provider changes one of its limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitChange {
    /// When.
    pub at: Micros,
    /// Which rule.
    pub rule: usize,
    /// Its new limit.
    pub limit: u64,
}

/// All faults of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Requests per million that are lost before the provider counts them.
    pub lost_requests_ppm: u32,
    /// Responses per million that are lost after the request was counted.
    pub lost_replies_ppm: u32,
    /// The provider returns 503 and counts nothing.
    pub outages: Vec<TimeRange>,
    /// The provider returns 503, and counts nothing, to calls whose id has this remainder when
    /// divided by this number: one path of several is broken.
    pub broken: Option<(u64, u64)>,
    /// The provider counts requests that arrive, holds them until the end, and never responds.
    pub hangs: Vec<TimeRange>,
    /// Limits that change.
    pub changes: Vec<LimitChange>,
}

impl Faults {
    pub(super) fn is_down(&self, call: CallId, now: Micros) -> bool {
        let is_broken = |(remainder, of)| call.0.checked_rem(of) == Some(remainder);
        self.broken.is_some_and(is_broken) || self.outages.iter().any(|one| one.contains(now))
    }

    pub(super) fn hangs_until(&self, now: Micros) -> Option<Micros> {
        self.hangs
            .iter()
            .find(|hang| hang.contains(now))
            .map(|hang| hang.to)
    }
}

impl TimeRange {
    fn contains(self, now: Micros) -> bool {
        (self.from..self.to).contains(&now)
    }
}
