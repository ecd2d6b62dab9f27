//! The table of the paths of a provider that fail.
//!
//! Promises: at most [`PATHS_MAX`] paths, and one more entry for all others. The one that nobody has
//! called for longest makes room.
//!
//! Never: closes or opens a path; `paths` does.

use super::HealthState;
use crate::ask::PathTag;
use crate::time::{Micros, Span};

/// Paths that fail at a time and have an entry of their own: 64 entries of 80 bytes and their names of
/// some 70 bytes are 10 KB per provider, and an API with more broken paths than that is down.
pub const PATHS_MAX: usize = 64;

/// A path without a failure for this long makes room for another one, unless it is still closed.
const IDLE_AFTER: Span = Span::from_secs(600);

/// The paths that failed and have not succeeded since.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PathTable {
    pub(super) entries: Vec<PathEntry>,
}

/// One path that fails.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PathEntry {
    pub(super) path: PathTag,
    /// For people.
    pub(super) name: Option<Box<str>>,
    /// Failures in a row.
    pub(super) failures: u32,
    pub(super) failed_probes: u32,
    /// Probes that succeeded since it was closed.
    pub(super) successes: u32,
    pub(super) state: PathState,
    /// Attempts granted before this are outdated.
    pub(super) valid_from: Micros,
    /// The ledger has shown it closed since we closed it: from then on, open means that another
    /// process opened it.
    pub(super) seen_closed: bool,
    pub(super) last_failure: Micros,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PathState {
    Open,
    Closed { until: Micros },
    Probing,
}

/// The status of one failing path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathStatus {
    /// The path with ids as `*`; `None` = all paths without an entry of their own.
    pub path: Option<String>,
    /// `Normal` = it failed, but is not closed; `Sleep` = closed; `HalfOpen` = it is probed.
    pub state: HealthState,
    /// Failures in a row.
    pub failures: u32,
    /// How long it stays closed.
    pub sleep_remaining: Option<Span>,
}

impl PathEntry {
    pub(super) fn shown_state(&self) -> HealthState {
        match self.state {
            PathState::Open => HealthState::Normal,
            PathState::Closed { .. } => HealthState::Sleep,
            PathState::Probing => HealthState::HalfOpen,
        }
    }

    pub(super) fn remaining(&self, now: Micros) -> Option<Span> {
        match self.state {
            PathState::Closed { until } => Some(until.since(now)),
            PathState::Open | PathState::Probing => None,
        }
    }
}

impl PathTable {
    /// The entry under which a path is counted: its own, or that of all others.
    pub(super) fn key_of(&self, path: PathTag) -> Option<PathTag> {
        let has = |tag| self.entries.iter().any(|entry| entry.path == tag);
        if has(path) {
            Some(path)
        } else {
            has(PathTag::OTHERS).then_some(PathTag::OTHERS)
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The earliest end of a closed path.
    pub(super) fn next_end(&self) -> Option<Micros> {
        let ends = self.entries.iter().filter_map(|entry| match entry.state {
            PathState::Closed { until } => Some(until),
            PathState::Open | PathState::Probing => None,
        });
        ends.min()
    }

    pub(super) fn entry(&self, path: PathTag) -> Option<&PathEntry> {
        let key = self.key_of(path)?;
        self.entries.iter().find(|entry| entry.path == key)
    }

    pub(super) fn entry_mut(&mut self, path: PathTag) -> Option<&mut PathEntry> {
        let key = self.key_of(path)?;
        self.entries.iter_mut().find(|entry| entry.path == key)
    }

    pub(super) fn remove(&mut self, path: PathTag) {
        self.entries.retain(|entry| entry.path != path);
    }

    /// The entry whose last failure is the oldest, if nobody has called it for [`IDLE_AFTER`]: a
    /// closed path may be probed, but nobody does.
    fn longest_idle(&self, now: Micros) -> Option<usize> {
        let idle = self.entries.iter().enumerate().filter(|(_, entry)| {
            let is_used = matches!(entry.state, PathState::Closed { .. });
            !is_used && now.since(entry.last_failure) >= IDLE_AFTER
        });
        let oldest = idle.min_by_key(|(_, entry)| entry.last_failure);
        oldest.map(|(index, _)| index)
    }

    /// The key of the entry for a path that fails now. Returns the path that made room for it.
    pub(super) fn admit(&mut self, path: PathTag, now: Micros) -> (PathTag, Option<PathTag>) {
        if self.entries.iter().any(|entry| entry.path == path) {
            return (path, None);
        }
        let is_full = self.entries.len() >= PATHS_MAX;
        let evicted = is_full.then(|| self.longest_idle(now)).flatten();
        let evicted = evicted.map(|index| self.entries.swap_remove(index).path);
        let key = if self.entries.len() < PATHS_MAX {
            path
        } else {
            PathTag::OTHERS
        };
        if !self.entries.iter().any(|entry| entry.path == key) {
            self.entries.push(PathEntry {
                path: key,
                name: None,
                failures: 0,
                failed_probes: 0,
                successes: 0,
                state: PathState::Open,
                valid_from: Micros::default(),
                seen_closed: false,
                last_failure: now,
            });
        }
        (key, evicted)
    }
}
