//! The paths of a provider that fail: each is closed, probed and opened on its own, while calls to
//! other paths go on (A4).
//!
//! Promises: a path is stored (`path_table`) only from its first failure to its next success. A
//! closed path is closed in the ledger too, in a scope of its own, so that all processes leave it
//! alone and probe it once.
//!
//! Never: puts the provider to sleep. The failures in a row of the provider do that, and they
//! count a single path only up to one below the threshold.

use super::path_table::{PathEntry, PathState, PathStatus};
use super::phase::HealthPhase;
use super::settings::{HealthCount, HealthMode, HealthScope};
use super::{Action, Actions, AttemptResult, Class, Health, HealthState, Reason};
use crate::ask::PathTag;
use crate::scope::ScopeView;
use crate::time::{Micros, Span};

impl Health {
    /// Failures close the path first.
    pub(super) fn is_by_path(&self) -> bool {
        match (self.settings.scope, self.settings.mode) {
            (HealthScope::Path, HealthMode::Adaptive | HealthMode::Breaker) => {
                self.settings.failure_threshold.is_some()
            }
            (HealthScope::Path, HealthMode::Off) | (HealthScope::Provider, _) => false,
        }
    }

    /// The path that a result is about. A 429 is about the provider's limits, not about a path.
    pub(super) fn path_of(&self, result: AttemptResult) -> Option<PathTag> {
        result
            .path
            .filter(|_| self.is_by_path() && result.class != Class::Limited)
    }

    /// Another failed attempt of a call that has counted already. Probes always count.
    pub(super) fn is_counted_already(&self, result: AttemptResult) -> bool {
        let once = match self.settings.count {
            HealthCount::Call => result.repeated && result.class.is_failure(),
            HealthCount::Attempt => false,
        };
        once && !matches!(self.phase, HealthPhase::HalfOpen(_)) && !self.is_path_probe(result.path)
    }

    /// The paths that a caller must check: nothing fails while this is false.
    #[must_use]
    pub fn has_failing_paths(&self) -> bool {
        !self.paths.is_empty()
    }

    /// The path whose scope a call must find open, if it is one that fails.
    #[must_use]
    pub fn failing_path(&self, path: Option<PathTag>) -> Option<PathTag> {
        self.paths.key_of(path?)
    }

    /// The tags of all failing paths.
    pub fn failing_tags(&self) -> impl Iterator<Item = PathTag> {
        self.paths.entries.iter().map(|entry| entry.path)
    }

    /// Would a call to this path be a probe?
    #[must_use]
    pub fn is_probe(&self, path: Option<PathTag>) -> bool {
        matches!(self.phase, HealthPhase::HalfOpen(_)) || self.is_path_probe(path)
    }

    fn is_path_probe(&self, path: Option<PathTag>) -> bool {
        let entry = path.and_then(|path| self.paths.entry(path));
        entry.is_some_and(|entry| entry.state == PathState::Probing)
    }

    /// Names a failing path, for people.
    pub fn name_path(&mut self, path: PathTag, name: impl FnOnce() -> String) {
        let mut entries = self.paths.entries.iter_mut();
        let entry = entries.find(|entry| entry.path == path);
        if let Some(entry) = entry.filter(|entry| entry.name.is_none()) {
            entry.name = Some(name().into());
        }
    }

    /// The status of every failing path.
    #[must_use]
    pub fn failing_paths(&self, now: Micros) -> Vec<PathStatus> {
        let status = |entry: &PathEntry| PathStatus {
            path: entry.name.as_deref().map(str::to_owned),
            state: entry.shown_state(),
            failures: entry.failures,
            sleep_remaining: entry.remaining(now),
        };
        self.paths.entries.iter().map(status).collect()
    }

    /// Every closed path, for people. One that has no name yet is left out.
    #[must_use]
    pub fn closed_paths(&self, now: Micros) -> Vec<(PathTag, PathStatus)> {
        let entries = self.paths.entries.iter().zip(self.failing_paths(now));
        let closed = entries.filter(|(entry, _)| {
            let is_shown = entry.name.is_some() || entry.path == PathTag::OTHERS;
            is_shown && entry.state != PathState::Open
        });
        closed.map(|(entry, status)| (entry.path, status)).collect()
    }

    /// The state of a closed path, the time until it is probed, and its failures in a row.
    pub(super) fn closed_path(
        &self,
        path: Option<PathTag>,
        now: Micros,
    ) -> Option<(HealthState, Option<Span>, u32)> {
        let entry = self.paths.entry(path?)?;
        match entry.state {
            PathState::Open => None,
            PathState::Closed { .. } | PathState::Probing => {
                Some((entry.shown_state(), entry.remaining(now), entry.failures))
            }
        }
    }

    /// A result changes the state of its path. A probe that neither opens nor closes its path frees
    /// its place: a 429, a failure that came too late.
    pub(super) fn on_path_result(
        &mut self,
        result: AttemptResult,
        timely: bool,
        now: Micros,
        actions: &mut Actions,
    ) {
        let probed = result.path.and_then(|path| self.paths.key_of(path));
        if let Some(path) = self.path_of(result) {
            self.change_path(path, result, timely, now, actions);
        }
        let is_current = |key: &PathTag| self.paths.key_of(*key) == Some(*key);
        let probed = probed.filter(is_current);
        self.path_probe_ended(probed, result.granted, actions);
    }

    fn change_path(
        &mut self,
        path: PathTag,
        result: AttemptResult,
        timely: bool,
        now: Micros,
        actions: &mut Actions,
    ) {
        match result.class {
            Class::Success => self.on_path_success(path, result.granted, now, actions),
            Class::ServerError | Class::Network if timely => {
                self.on_path_failure(path, result.granted, now, actions);
            }
            Class::ServerError | Class::Network | Class::Limited | Class::Other => {}
        }
        if self.only_path.is_some_and(|only| only != path) {
            self.set_only_path(None, now);
            self.announce(Reason::ProbeOk, actions);
        }
    }

    fn on_path_success(
        &mut self,
        path: PathTag,
        granted: Micros,
        now: Micros,
        actions: &mut Actions,
    ) {
        let enough = self.probes_to_open(path);
        let Some(entry) = self
            .paths
            .entry_mut(path)
            .filter(|one| granted >= one.valid_from)
        else {
            return;
        };
        let key = entry.path;
        if entry.state != PathState::Open {
            entry.state = PathState::Probing;
            entry.successes = entry.successes.saturating_add(1);
            if entry.successes < enough {
                return;
            }
        }
        actions.push(Action::OpenPath { path: key });
        self.paths.remove(key);
        self.set_only_path(None, now);
        self.announce(Reason::ProbeOk, actions);
    }

    /// One success opens a path. The only path that is called is the provider, which needs more of
    /// them; a probe that fails closes it again, so that no error ratio is needed in addition.
    fn probes_to_open(&self, path: PathTag) -> u32 {
        match self.settings.mode {
            _ if self.only_path != Some(path) => 1,
            HealthMode::Adaptive | HealthMode::Off => self.settings.probe_success,
            HealthMode::Breaker => self.settings.success_threshold,
        }
    }

    /// The only path that is called is closed, or no longer: an outage of the provider begins or
    /// ends with it.
    fn set_only_path(&mut self, path: Option<PathTag>, now: Micros) {
        self.only_path = path;
        match &self.phase {
            HealthPhase::Normal { .. } | HealthPhase::Throttle(_) => {
                self.trouble_since = path.map(|_| self.trouble_since.unwrap_or(now));
            }
            HealthPhase::Sleep { .. }
            | HealthPhase::Offline { .. }
            | HealthPhase::HalfOpen(_)
            | HealthPhase::CacheOnly { .. } => {}
        }
    }

    /// The next timer of any path.
    pub(super) fn path_tick(&self) -> Option<Micros> {
        let ticks = [self.paths.next_end(), self.only_path_tick()];
        ticks.into_iter().flatten().min()
    }

    /// When a long outage of the only path leads to CacheOnly, as one of the provider does (A7).
    fn only_path_tick(&self) -> Option<Micros> {
        let is_closed = self.only_path.is_some() && self.state() == HealthState::Sleep;
        match &self.phase {
            HealthPhase::Normal { .. } | HealthPhase::Throttle(_) if is_closed => {
                self.cache_only_at()
            }
            HealthPhase::Normal { .. }
            | HealthPhase::Throttle(_)
            | HealthPhase::Sleep { .. }
            | HealthPhase::Offline { .. }
            | HealthPhase::HalfOpen(_)
            | HealthPhase::CacheOnly { .. } => None,
        }
    }

    fn on_path_failure(
        &mut self,
        path: PathTag,
        granted: Micros,
        now: Micros,
        actions: &mut Actions,
    ) {
        let Some(in_a_row) = self.settings.failure_threshold else {
            return;
        };
        let (key, evicted) = self.paths.admit(path, now);
        actions.extend(evicted.map(|path| Action::OpenPath { path }));
        let Some(entry) = self.paths.entry_mut(key) else {
            return;
        };
        if granted < entry.valid_from {
            return;
        }
        entry.last_failure = now;
        entry.failures = entry.failures.saturating_add(1);
        let (is_closing, reason) = match entry.state {
            PathState::Open => (entry.failures >= in_a_row, Reason::Failures),
            PathState::Closed { .. } | PathState::Probing => {
                entry.failed_probes = entry.failed_probes.saturating_add(1);
                (true, Reason::ProbeFailed)
            }
        };
        let failed_probes = entry.failed_probes;
        let closed_for = self.sleep_after(failed_probes, now);
        if is_closing {
            self.close_path(key, closed_for, now, actions);
            let only = self.window.only_path().filter(|only| *only == path);
            self.set_only_path(only, now);
            // They have closed it; they must not throttle the provider as well.
            self.window.remove_path(path);
            self.announce(reason, actions);
        } else {
            actions.push(Action::PathFailed {
                path: key,
                in_a_row,
                closed_for,
            });
        }
    }

    /// Closes a path for all processes; then one call probes it.
    pub(super) fn close_path(
        &mut self,
        path: PathTag,
        closed_for: Span,
        now: Micros,
        actions: &mut Actions,
    ) {
        let Some(entry) = self.paths.entry_mut(path) else {
            return;
        };
        entry.state = PathState::Closed {
            until: now + closed_for,
        };
        entry.valid_from = now;
        entry.seen_closed = false;
        entry.successes = 0;
        actions.push(Action::ClosePath {
            path: entry.path,
            closed_for,
        });
    }

    /// A probe of a path ended without a verdict: the next one may go.
    pub(super) fn path_probe_ended(
        &mut self,
        path: Option<PathTag>,
        granted: Micros,
        actions: &mut Actions,
    ) {
        let gap = self.probe_gap();
        let entry = path.and_then(|path| self.paths.entry(path));
        if let Some(entry) = entry
            && entry.state == PathState::Probing
            && granted >= entry.valid_from
        {
            actions.push(Action::ClosePath {
                path: entry.path,
                closed_for: gap,
            });
        }
    }

    /// Another process has changed the scope of a path that fails here too.
    pub(super) fn on_path_view(
        &mut self,
        path: PathTag,
        view: ScopeView,
        now: Micros,
        actions: &mut Actions,
    ) {
        let is_only = self.window.only_path() == Some(path);
        let mut entries = self.paths.entries.iter_mut();
        let Some(entry) = entries.find(|entry| entry.path == path) else {
            return;
        };
        let until = match (entry.state, view) {
            (_, ScopeView::Open) if entry.seen_closed => {
                self.paths.remove(path);
                let only = self.only_path.filter(|only| *only != path);
                self.set_only_path(only, now);
                return self.announce(Reason::ProbeOk, actions);
            }
            (
                PathState::Open | PathState::Probing,
                ScopeView::Closed {
                    remaining: Some(remaining),
                },
            ) => Some(now + remaining),
            (PathState::Open, ScopeView::Probing) => None,
            (PathState::Closed { .. }, ScopeView::Closed { .. } | ScopeView::Probing)
            | (PathState::Probing, ScopeView::Probing) => {
                entry.seen_closed = true;
                return;
            }
            (
                _,
                ScopeView::Open
                | ScopeView::Paced { .. }
                | ScopeView::CacheOnly { .. }
                | ScopeView::Paused { .. }
                | ScopeView::Closed { remaining: None },
            ) => return,
        };
        entry.state = until.map_or(PathState::Probing, |until| PathState::Closed { until });
        (entry.valid_from, entry.seen_closed) = (now, true);
        self.set_only_path(is_only.then_some(path), now);
        self.announce(Reason::Failures, actions);
    }

    /// The time of closed paths is over: one call probes each. Or the only path has been closed for
    /// too long.
    pub(super) fn fire_path_timers(&mut self, now: Micros, actions: &mut Actions) {
        if self.only_path_tick().is_some_and(|due| due <= now) {
            self.enter_cache_only(Reason::Policy, None, now, actions);
        }
        for entry in &mut self.paths.entries {
            if let PathState::Closed { until } = entry.state
                && until <= now
            {
                // A process whose clock is ahead may have granted the probe a moment ago.
                entry.state = PathState::Probing;
            }
        }
        self.announce(Reason::SleepOver, actions);
    }

    /// Opens every path: an operator says so, or paths no longer count.
    pub(super) fn open_paths(&mut self, reason: Reason, now: Micros, actions: &mut Actions) {
        let entries = std::mem::take(&mut self.paths.entries).into_iter();
        actions.extend(entries.map(|entry| Action::OpenPath { path: entry.path }));
        self.set_only_path(None, now);
        self.announce(reason, actions);
    }
}
