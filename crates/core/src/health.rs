//! The health state machine of one provider: Normal, Throttle, Sleep, HalfOpen, CacheOnly (A1–A8,
//! A15), and the circuit breaker (M9), which is the same machine without Throttle.
//!
//! ```text
//!   Normal ──(ratio ≥ 20 %, 3 × 429)──► Throttle ──(10 successes, ratio < 10 %)──► HalfOpen
//!     ▲ │                                  │ (5 × 429, 60 % for 5 min)         │        │
//!     │ └──(5 failures in a row)──► Sleep ◄┘ ◄──(a probe failed, sleep × 1.2)──┘        │
//!     │                              └──(sleep over)─► HalfOpen        (5 probes succeeded)
//!     └─────────────────────────────────────────────────────────────────────────────────┘
//!   Failures on one path alone close that path, not the provider (`paths.rs`).
//!   CacheOnly: by an operator, or by policy after a long outage; ends by Sleep and HalfOpen.
//! ```
//!
//! Promises: total (every state handles every event), deterministic, and in bounded memory. It does
//! not flap: ratio conditions must hold twice. It does not get stuck: a timer or successes end
//! every state that no operator set. It never polls: [`Health::next_tick`] says when the next timer
//! is due.
//!
//! Never: blocks a call itself. It closes and opens a scope of the ledger (one that only health
//! uses), so that all processes sleep together and probe once; Throttle and the ramp are a [`Pace`]
//! of this process.

mod class;
pub use class::{Class, Fault};
mod settings;
pub use settings::{
    HealthCount, HealthMode, HealthScope, HealthSettings, PROBE_CONCURRENCY_MAX, RAMP_FACTOR_MIN,
    RampAfter, RampSettings, WINDOW_RESULTS_MAX, WhenBlocked,
};
mod window;
pub use window::Counts;
mod pace;
pub use crate::rate::Rate;
pub use pace::{BasePace, Pace};
mod phase;
mod path;
pub use path::shown_path;
mod path_table;
pub use path_table::{PATHS_MAX, PathStatus};
mod paths;
mod results;
mod settles;
mod commands;
mod ledger_view;
mod transitions;
mod status;
pub use status::{Admission, BlockReason, Breaker, HealthStatus, OperatorHold};
#[cfg(test)]
mod harness;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_recovery;
#[cfg(test)]
mod tests_modes;
#[cfg(test)]
mod tests_commands;
#[cfg(test)]
mod tests_paths;
#[cfg(test)]
mod tests_path_probes;
#[cfg(test)]
mod tests_shared;
#[cfg(test)]
mod scenarios;
#[cfg(test)]
mod tables;
#[cfg(test)]
mod properties;

use std::fmt;

use smallvec::SmallVec;

use crate::ask::{PathTag, Reopen};
use crate::problem::Problem;
use crate::scope::ScopeView;
use crate::time::{Micros, Span};

use path_table::PathTable;
use phase::{ConsecutiveCounts, HealthPhase};
use window::ResultWindow;

/// The five states, spelt as the documents spell them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HealthState {
    /// Calls go at the full rate.
    Normal,
    /// Calls go at a reduced rate, because some fail.
    Throttle,
    /// No calls until a known time (or, offline, until resumed).
    Sleep,
    /// A few calls test whether the provider has recovered.
    HalfOpen,
    /// No calls; responses come from the cache only.
    CacheOnly,
}

/// Why the state changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// The error ratio of the last results is too high.
    ErrRatio,
    /// Too many 429s in a row.
    Consec429,
    /// Too many failures of any kind in a row.
    Failures,
    /// Enough successes, and a low error ratio.
    SuccessWindowOk,
    /// Enough probes succeeded.
    ProbeOk,
    /// A probe failed.
    ProbeFailed,
    /// The sleep has ended.
    SleepOver,
    /// An operator's command.
    Operator,
    /// CacheOnly tries to recover by itself.
    AutoRecover,
    /// The configuration requires it, or another process of the same ledger changed its state.
    Policy,
}

/// The input of the state machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HealthEvent {
    /// An attempt has ended.
    Completed(AttemptResult),
    /// The same for an attempt that was granted before a cool-down closed its scope
    /// ([`Cooldown::is_outdated`](crate::cooldown::Cooldown::is_outdated)): it counts in the ratio
    /// and advances nothing else (A4).
    CompletedLate(AttemptResult),
    /// An attempt got its permit.
    Granted,
    /// An attempt ended without a result: its caller disconnected.
    Dropped {
        /// When it got its permit.
        granted: Micros,
        /// Its path, if it is known.
        path: Option<PathTag>,
    },
    /// The time that [`Health::next_tick`] returned has come.
    Tick,
    /// An operator's command.
    Operator(Command),
    /// The current view of the health scope in the ledger: at the start, and after every change.
    ScopeChanged(ScopeView),
    /// An operator has resumed the provider in another process: every path opens.
    PathsResumed,
    /// The current view of the scope of a failing path, after another process has changed it.
    PathScopeChanged(PathTag, ScopeView),
}

/// The result of one attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttemptResult {
    /// The class of the result.
    pub class: Class,
    /// When the attempt got its permit, on the clock of `now`. Attempts granted before the scope
    /// closed are outdated: they count in the ratio and advance nothing else (A4).
    pub granted: Micros,
    /// The provider's `Retry-After` as read, without floor or maximum.
    pub retry_after: Option<Span>,
    /// The path that it was sent to; `None` = unknown, or no connection was made, so that no path is
    /// to blame.
    pub path: Option<PathTag>,
    /// An earlier attempt of the same call has failed.
    pub repeated: bool,
}

impl AttemptResult {
    /// A first attempt, without a path and without a `Retry-After`.
    #[must_use]
    pub fn new(class: Class, granted: Micros) -> AttemptResult {
        AttemptResult {
            class,
            granted,
            retry_after: None,
            path: None,
            repeated: false,
        }
    }
}

/// An operator's command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// No calls until resumed; calls are rejected.
    Offline,
    /// No calls until resumed; calls wait. `lasts` = for this long, then as if resumed.
    Pause {
        /// `--for 30m`.
        lasts: Option<Span>,
    },
    /// Responses from the cache only; `lasts` = for this long, then as if resumed.
    CacheOnly {
        /// `--for 30m`.
        lasts: Option<Span>,
    },
    /// End every block: the hold of a healthy provider at once, everything else by probing now.
    Resume,
    /// Clear all results and start in Normal. A provider that is offline stays offline.
    Reset,
}

/// What the caller must do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Close the health scope.
    Close {
        /// How long ago the closing began.
        age: Span,
        /// How long from then; `None` = until opened.
        closed_for: Option<Span>,
        /// How the scope reopens.
        reopen: Reopen,
    },
    /// Open the health scope for all processes.
    Open,
    /// An attempt failed: the ledger counts it together with those of other processes, and closes
    /// the health scope when the count reaches `in_a_row`.
    Failed {
        /// This many failures close it.
        in_a_row: u32,
        /// For how long.
        closed_for: Span,
        /// The path that failed: one path alone does not close the health scope.
        path: Option<PathTag>,
    },
    /// A path failed: the ledger counts it, and closes the path when the count reaches `in_a_row`.
    PathFailed {
        /// Which one.
        path: PathTag,
        /// This many failures close it.
        in_a_row: u32,
        /// For how long.
        closed_for: Span,
    },
    /// Close a path for all processes; then one call probes it.
    ClosePath {
        /// Which one.
        path: PathTag,
        /// For how long.
        closed_for: Span,
    },
    /// Open a path for all processes.
    OpenPath {
        /// Which one.
        path: PathTag,
    },
    /// An attempt succeeded after an earlier one of this process failed.
    Succeeded,
    /// From now on this extra local pace applies, in place of the last one.
    Pace(Pace),
    /// To be reported: log line, metric, event stream.
    Transition {
        /// The state before.
        from: HealthState,
        /// The state after.
        to: HealthState,
        /// Why.
        reason: Reason,
    },
}

/// The actions of one event, in order. Most steps have at most four; a failed recovery from CacheOnly,
/// a failed path with which the provider falls asleep, and opening many paths have more.
pub type Actions = SmallVec<[Action; 4]>;

/// The state machine of one provider in one process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    settings: HealthSettings,
    base: BasePace,
    phase: HealthPhase,
    /// When the state began.
    since: Micros,
    window: ResultWindow,
    consecutive: ConsecutiveCounts,
    /// HalfOpen phases that failed since Normal: each makes the next Sleep longer.
    failed_probes: u32,
    /// Attempts granted before this are outdated.
    valid_from: Micros,
    /// The latest end of a `Retry-After` since the last success.
    retry_after_until: Option<Micros>,
    /// Since when the state has been Sleep or HalfOpen.
    trouble_since: Option<Micros>,
    /// A 429 was part of the current outage.
    saw_429: bool,
    /// This Sleep or HalfOpen is an automatic recovery from CacheOnly.
    auto_recovering: bool,
    /// The ledger has shown the scope closed since we closed it: from then on, an open scope means
    /// that another process opened it.
    seen_closed: bool,
    pace: Pace,
    /// The paths that fail.
    paths: PathTable,
    /// The only path that is called, if it is closed: then its state is the provider's.
    only_path: Option<PathTag>,
    /// The last state that was reported.
    announced: HealthState,
}

impl Health {
    /// A state machine in Normal. `Err`: every invalid setting.
    pub fn new(
        settings: HealthSettings,
        base: BasePace,
        now: Micros,
    ) -> Result<Health, Vec<Problem>> {
        let problems = settings.check();
        if !problems.is_empty() {
            return Err(problems);
        }
        Ok(Health {
            settings,
            base,
            phase: HealthPhase::normal(),
            since: now,
            window: ResultWindow::default(),
            consecutive: ConsecutiveCounts::default(),
            failed_probes: 0,
            valid_from: Micros::default(),
            retry_after_until: None,
            trouble_since: None,
            saw_429: false,
            auto_recovering: false,
            seen_closed: false,
            pace: Pace::default(),
            paths: PathTable::default(),
            only_path: None,
            announced: HealthState::Normal,
        })
    }

    /// The whole state machine: takes an event and its time, returns the actions.
    #[must_use]
    pub fn on(&mut self, event: HealthEvent, now: Micros) -> Actions {
        let mut actions = Actions::new();
        // Before our timers: the state that they would end may have ended or got a new end time.
        if let HealthEvent::ScopeChanged(view) = event {
            self.on_scope_view(view, now, &mut actions);
        }
        self.run_timers(now, &mut actions);
        match event {
            HealthEvent::Completed(result) => self.on_result(result, true, now, &mut actions),
            HealthEvent::CompletedLate(result) => self.on_result(result, false, now, &mut actions),
            HealthEvent::Granted => self.on_granted(now, &mut actions),
            HealthEvent::Dropped { granted, path } => {
                self.on_dropped(path, granted, now, &mut actions);
            }
            HealthEvent::PathScopeChanged(path, view) => {
                self.on_path_view(path, view, now, &mut actions);
            }
            HealthEvent::PathsResumed => self.open_paths(Reason::Operator, now, &mut actions),
            HealthEvent::Tick | HealthEvent::ScopeChanged(_) => {}
            HealthEvent::Operator(command) => self.on_command(command, now, &mut actions),
        }
        self.update_pace(&mut actions);
        actions
    }

    /// Applies other settings from now on; no count is lost. A state that the new mode does not
    /// have ends.
    pub fn configure(
        &mut self,
        settings: HealthSettings,
        base: BasePace,
        now: Micros,
    ) -> Result<Actions, Vec<Problem>> {
        let problems = settings.check();
        if !problems.is_empty() {
            return Err(problems);
        }
        let mut actions = Actions::new();
        self.settings = settings;
        self.base = base;
        let is_obsolete = match (&self.phase, settings.mode) {
            (HealthPhase::Throttle(_), HealthMode::Breaker | HealthMode::Off)
            | (HealthPhase::Sleep { .. } | HealthPhase::HalfOpen(_), HealthMode::Off) => true,
            (
                HealthPhase::Throttle(_) | HealthPhase::Sleep { .. } | HealthPhase::HalfOpen(_),
                _,
            )
            | (
                HealthPhase::Normal { .. }
                | HealthPhase::Offline { .. }
                | HealthPhase::CacheOnly { .. },
                _,
            ) => false,
        };
        if is_obsolete {
            self.enter_normal(Reason::Policy, now, &mut actions);
        }
        if !self.is_by_path() {
            self.open_paths(Reason::Policy, now, &mut actions);
        }
        self.run_timers(now, &mut actions);
        self.update_pace(&mut actions);
        Ok(actions)
    }

    /// When the caller must send [`HealthEvent::Tick`]; `None` = not before another event.
    #[must_use]
    pub fn next_tick(&self) -> Option<Micros> {
        let ticks = [self.phase_tick(), self.path_tick()];
        ticks.into_iter().flatten().min()
    }

    fn phase_tick(&self) -> Option<Micros> {
        match &self.phase {
            HealthPhase::Normal { ramp, .. } => ramp.map(|ramp| ramp.next),
            HealthPhase::Throttle(_) | HealthPhase::HalfOpen(_) => None,
            HealthPhase::Offline { pause, .. } => pause.and_then(|pause| pause.ends),
            HealthPhase::Sleep { until, .. } => {
                Some(self.cache_only_at().map_or(*until, |at| at.min(*until)))
            }
            // An operator's end time takes precedence over automatic recovery.
            HealthPhase::CacheOnly { ends, .. } => {
                let tries = || self.settings.auto_recover.map(|every| self.since + every);
                ends.or_else(tries)
            }
        }
    }

    /// The state by name.
    #[must_use]
    pub fn state(&self) -> HealthState {
        let path = self.closed_path(self.only_path, Micros::default());
        match (&self.phase, path) {
            (HealthPhase::Normal { .. } | HealthPhase::Throttle(_), Some((state, ..))) => state,
            (_, _) => self.phase.state(),
        }
    }

    /// Fires every timer that is due, so that a late or missing tick changes nothing. The loop ends
    /// because each step leaves a state whose next timer lies ahead, and a ramp rises by at least
    /// 1 % a step.
    fn run_timers(&mut self, now: Micros, actions: &mut Actions) {
        while self.phase_tick().is_some_and(|due| due <= now) {
            self.fire_timer(now, actions);
        }
        if self.path_tick().is_some_and(|due| due <= now) {
            self.fire_path_timers(now, actions);
        }
    }

    fn update_pace(&mut self, actions: &mut Actions) {
        let pace = self.wanted_pace();
        if pace != self.pace {
            self.pace = pace;
            actions.push(Action::Pace(pace));
        }
    }
}

impl HealthState {
    /// All states.
    pub const ALL: [HealthState; 5] = [
        HealthState::Normal,
        HealthState::Throttle,
        HealthState::Sleep,
        HealthState::HalfOpen,
        HealthState::CacheOnly,
    ];

    /// As in log lines: `HalfOpen`.
    #[must_use]
    pub fn log_name(self) -> &'static str {
        match self {
            HealthState::Normal => "Normal",
            HealthState::Throttle => "Throttle",
            HealthState::Sleep => "Sleep",
            HealthState::HalfOpen => "HalfOpen",
            HealthState::CacheOnly => "CacheOnly",
        }
    }

    /// As in JSON and metrics: `half_open`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            HealthState::Normal => "normal",
            HealthState::Throttle => "throttle",
            HealthState::Sleep => "sleep",
            HealthState::HalfOpen => "half_open",
            HealthState::CacheOnly => "cache_only",
        }
    }
}

impl fmt::Display for Reason {
    /// The name in logs and events.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Reason::ErrRatio => "err_ratio",
            Reason::Consec429 => "consec_429",
            Reason::Failures => "failures",
            Reason::SuccessWindowOk => "success_window_ok",
            Reason::ProbeOk => "probe_ok",
            Reason::ProbeFailed => "probe_failed",
            Reason::SleepOver => "sleep_over",
            Reason::Operator => "operator",
            Reason::AutoRecover => "auto_recover",
            Reason::Policy => "policy",
        })
    }
}
