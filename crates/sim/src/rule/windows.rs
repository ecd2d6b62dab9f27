//! Counters that restart: fixed windows, first-use windows, and the two-counter estimate of a
//! sliding window.
//!
//! Promises: edges lie at `phase + k · W` of the caller's clock, exactly; the estimate of two
//! counters is compared as a fraction, without rounding.
//!
//! Never: carries a count over an edge, except in the estimate of two counters.

use tollgate_core::time::{Micros, Span};

use super::{Availability, CallId, Counter, LimitStatus};

/// The positions of window edges.
#[derive(Clone, Copy, Debug)]
struct Edges {
    window: u64,
    phase: u64,
}

/// A counter that restarts with every window.
#[derive(Debug)]
pub(super) struct WindowCounter {
    limit: u64,
    count: u64,
    start: WindowStart,
}

/// When a window starts.
#[derive(Debug)]
enum WindowStart {
    /// At every edge; `index` is the window counted last.
    Edges { edges: Edges, index: u64 },
    /// With the first use after the previous window; `opened` is the start of the open one.
    FirstUse {
        window: Span,
        opened: Option<Micros>,
    },
}

/// This window's counter and the overlapping fraction of the previous one's.
#[derive(Debug)]
pub(super) struct TwoCounter {
    limit: u64,
    edges: Edges,
    index: u64,
    before: u64,
    count: u64,
}

impl Edges {
    fn new(window: Span, phase: Span) -> Edges {
        let window = window.0.max(1);
        Edges {
            window,
            phase: phase.0 % window,
        }
    }

    /// Which window holds `now`, and how far into it `now` lies.
    fn locate(self, now: Micros) -> (u64, u64) {
        // One window is added so that instants before the first edge have an index too.
        let shifted = u128::from(now.0) + u128::from(self.window) - u128::from(self.phase);
        let window = u128::from(self.window);
        let index = u64::try_from(shifted / window).unwrap_or(u64::MAX);
        let into = u64::try_from(shifted % window).unwrap_or(0);
        (index, into)
    }
}

impl WindowCounter {
    pub(super) fn fixed(limit: u64, window: Span, phase: Span) -> WindowCounter {
        let edges = Edges::new(window, phase);
        WindowCounter {
            limit,
            count: 0,
            start: WindowStart::Edges { edges, index: 0 },
        }
    }

    pub(super) fn first_use(limit: u64, window: Span) -> WindowCounter {
        let window = window.max(Span(1));
        WindowCounter {
            limit,
            count: 0,
            start: WindowStart::FirstUse {
                window,
                opened: None,
            },
        }
    }

    /// Enters the window of `now`; returns the time until its end, zero when none is open.
    fn enter(&mut self, now: Micros) -> Span {
        match &mut self.start {
            WindowStart::Edges { edges, index } => {
                let (here, into) = edges.locate(now);
                if here != *index {
                    *index = here;
                    self.count = 0;
                }
                Span(edges.window - into)
            }
            WindowStart::FirstUse { window, opened } => {
                if opened.is_some_and(|at| at + *window <= now) {
                    *opened = None;
                    self.count = 0;
                }
                opened.map_or(Span::ZERO, |at| (at + *window).since(now))
            }
        }
    }
}

impl Counter for WindowCounter {
    fn availability(&mut self, cost: u64, now: Micros) -> Availability {
        let remaining = self.enter(now);
        // A cost of zero passes even when a lowered limit is already overdrawn.
        if cost == 0 || self.count.saturating_add(cost) <= self.limit {
            Availability::Now
        } else if cost <= self.limit {
            Availability::After(remaining)
        } else {
            Availability::Unknown
        }
    }

    fn charge(&mut self, _id: CallId, cost: u64, now: Micros) {
        if cost == 0 {
            return;
        }
        self.enter(now);
        if let WindowStart::FirstUse { opened, .. } = &mut self.start {
            opened.get_or_insert(now);
        }
        self.count = self.count.saturating_add(cost);
    }

    fn status(&mut self, now: Micros) -> LimitStatus {
        let reset_after = self.enter(now);
        let remaining = self.limit.saturating_sub(self.count);
        LimitStatus {
            limit: self.limit,
            remaining,
            reset_after,
        }
    }

    fn set_limit(&mut self, limit: u64, _now: Micros) {
        self.limit = limit;
    }
}

impl TwoCounter {
    pub(super) fn new(limit: u64, window: Span, phase: Span) -> TwoCounter {
        TwoCounter {
            limit,
            edges: Edges::new(window, phase),
            index: 0,
            before: 0,
            count: 0,
        }
    }

    /// Enters the window of `now`; returns how far into it `now` lies.
    fn enter(&mut self, now: Micros) -> u64 {
        let (index, into) = self.edges.locate(now);
        if index != self.index {
            self.before = if index == self.index.saturating_add(1) {
                self.count
            } else {
                0
            };
            self.index = index;
            self.count = 0;
        }
        into
    }

    /// The first instant of a window, counted from its edge, at which `cost` fits on top of
    /// `count` while `before` fades out; `None` if it never does.
    fn fits_from(&self, before: u64, count: u64, cost: u64) -> Option<u64> {
        let spare = self.limit.checked_sub(count.checked_add(cost)?)?;
        if before <= spare {
            return Some(0);
        }
        // before · (W − e) ≤ spare · W  ⇔  e ≥ W · (before − spare) / before
        let window = u128::from(self.edges.window);
        let from = (window * u128::from(before - spare)).div_ceil(u128::from(before));
        u64::try_from(from)
            .ok()
            .filter(|&from| from < self.edges.window)
    }
}

impl Counter for TwoCounter {
    fn availability(&mut self, cost: u64, now: Micros) -> Availability {
        let into = self.enter(now);
        if cost == 0 {
            return Availability::Now;
        }
        if let Some(from) = self.fits_from(self.before, self.count, cost) {
            return if from <= into {
                Availability::Now
            } else {
                Availability::After(Span(from - into))
            };
        }
        let edge = Span(self.edges.window - into);
        if let Some(from) = self.fits_from(self.count, 0, cost) {
            return Availability::After(edge + Span(from));
        }
        if cost <= self.limit {
            Availability::After(edge + Span(self.edges.window))
        } else {
            Availability::Unknown
        }
    }

    fn charge(&mut self, _id: CallId, cost: u64, now: Micros) {
        self.enter(now);
        self.count = self.count.saturating_add(cost);
    }

    fn status(&mut self, now: Micros) -> LimitStatus {
        let into = self.enter(now);
        let window = u128::from(self.edges.window);
        let fading = u128::from(self.before) * (window - u128::from(into));
        let spare = (u128::from(self.limit) * window)
            .saturating_sub(fading + u128::from(self.count) * window);
        let edge = Span(self.edges.window - into);
        let reset_after = match (self.count, self.before) {
            (0, 0) => Span::ZERO,
            (0, _) => edge,
            _ => edge + Span(self.edges.window),
        };
        let remaining = u64::try_from(spare / window).unwrap_or(u64::MAX);
        LimitStatus {
            limit: self.limit,
            remaining,
            reset_after,
        }
    }

    fn set_limit(&mut self, limit: u64, _now: Micros) {
        self.limit = limit;
    }
}
