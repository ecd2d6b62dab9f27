//! The health of one provider: Normal, Throttle, Sleep, HalfOpen, CacheOnly (A1–A8, A15), and the
//! circuit breaker (M9) as the same machine without Throttle.
//!
//! ```text
//!   Normal ──(ratio ≥ 20 %, 3 × 429)──► Throttle ──(10 successes, ratio < 10 %)──► HalfOpen
//!     ▲ │                                  │ (5 × 429, 60 % for 5 min)         │        │
//!     │ └──(5 failures in a row)──► Sleep ◄┘ ◄──(a probe failed, rest doubled)─┘        │
//!     │                              └──(rest over)──► HalfOpen        (5 probes went well)
//!     └─────────────────────────────────────────────────────────────────────────────────┘
//!   CacheOnly: by an operator, or by policy after long trouble; back through Sleep and HalfOpen.
//! ```
//!
//! Promises: total (every event has an answer in every state), deterministic, and in bounded
//! memory. It does not flap: ratio conditions must hold twice. It does not stick: every state but
//! those an operator asked for ends by a timer or by successes. It never polls: [`Health::next_tick`]
//! says when it wants to be asked again.
//!
//! Never: blocks a call itself. It closes and opens a scope of the ledger (one that belongs to
//! health alone), so that all processes rest together and probe once; Throttle and the ramp are a
//! [`Pace`] of this process.

mod class;
pub use class::{Class, Fault};
mod settings;
pub use settings::{
    HealthMode, HealthSettings, PROBE_CONCURRENCY_MAX, RAMP_FACTOR_MIN, RampAfter, RampSettings,
    WINDOW_RESULTS_MAX, WhenBlocked,
};
mod window;
pub use window::Counts;
mod pace;
pub use pace::{BasePace, Pace, Rate};
mod phase;
mod results;
mod commands;
mod ledger_view;
mod transitions;
mod status;
pub use status::{Admission, BlockReason, Breaker, HealthStatus};
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
mod tests_shared;
#[cfg(test)]
mod scenarios;
#[cfg(test)]
mod tables;
#[cfg(test)]
mod properties;

use std::fmt;

use smallvec::SmallVec;

use crate::ask::{Reopen, ScopeId, Settle};
use crate::problem::Problem;
use crate::scope::ScopeView;
use crate::time::{Micros, Span};

use phase::{ConsecutiveCounts, HealthPhase};
use window::ResultWindow;

/// The five states, spelt as the documents spell them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HealthState {
    /// All is well.
    Normal,
    /// Slower, because some calls fail.
    Throttle,
    /// No calls until a known time (or, offline, until resumed).
    Sleep,
    /// A few calls try whether the provider has recovered.
    HalfOpen,
    /// No calls; answers come from the cache only.
    CacheOnly,
}

/// Why the state changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// Too large a part of the last results were failures.
    ErrRatio,
    /// Too many 429s in a row.
    Consec429,
    /// Too many failures of any kind in a row.
    Failures,
    /// Enough successes, and few failures beside them.
    SuccessWindowOk,
    /// Enough probes went well.
    ProbeOk,
    /// A probe failed.
    ProbeFailed,
    /// The rest is over.
    SleepOver,
    /// Somebody said so.
    Operator,
    /// CacheOnly tries to recover by itself.
    AutoRecover,
    /// Configuration says so, or another process of the same ledger found out.
    Policy,
}

/// What happens to the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HealthEvent {
    /// An attempt has come to its end, one way or another.
    Completed(AttemptResult),
    /// The same for an attempt that was granted before a cool-down closed its scope
    /// ([`Cooldown::is_old_news`](crate::cooldown::Cooldown::is_old_news)): it counts in the ratio
    /// and advances nothing else (A4).
    CompletedLate(AttemptResult),
    /// An attempt got its permit.
    Granted,
    /// An attempt ended and nothing was learned: its caller went away.
    Dropped {
        /// When it got its permit.
        granted: Micros,
    },
    /// The time has come that [`Health::next_tick`] named.
    Tick,
    /// An operator wants something.
    Operator(Command),
    /// What the health scope looks like in the ledger: at the start, and after every change.
    ScopeChanged(ScopeView),
}

/// The end of one attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttemptResult {
    /// What it says about the provider.
    pub class: Class,
    /// When the attempt got its permit, on the clock of `now`. Attempts granted before the scope
    /// closed are old news: they count in the ratio and advance nothing else (A4).
    pub granted: Micros,
    /// What the provider said about when to return, as it was read.
    pub retry_after: Option<Span>,
}

/// What an operator can want.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// No calls until resumed.
    Offline,
    /// Answers from the cache only; `lasts` = for so long, then as if resumed.
    CacheOnly {
        /// `--for 30m`.
        lasts: Option<Span>,
    },
    /// End whatever holds calls back: a hold of a healthy provider at once, everything else by
    /// probing now.
    Resume,
    /// Forget all results and start in Normal. A provider that is offline stays offline.
    Reset,
}

/// What the machine wants done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Close the health scope.
    Close {
        /// How long ago the rest began.
        age: Span,
        /// How long from then; `None` = until opened.
        closed_for: Option<Span>,
        /// What follows the rest.
        reopen: Reopen,
    },
    /// Open the health scope for everybody.
    Open,
    /// An attempt failed: the ledger counts it together with those of other processes, and closes
    /// the health scope if that makes so many in a row.
    Failed {
        /// So many close it.
        in_a_row: u32,
        /// For how long.
        closed_for: Span,
    },
    /// An attempt went well after one of ours had failed.
    Succeeded,
    /// From now on this extra local pace holds, in place of the last one.
    Pace(Pace),
    /// To be told: log line, metric, event stream.
    Transition {
        /// The state before.
        from: HealthState,
        /// The state after.
        to: HealthState,
        /// Why.
        reason: Reason,
    },
}

/// What one event leads to, in order. Four cover every step but a failed trial out of CacheOnly.
pub type Actions = SmallVec<[Action; 4]>;

/// The machine of one provider in one process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    settings: HealthSettings,
    base: BasePace,
    phase: HealthPhase,
    /// When the state began.
    since: Micros,
    window: ResultWindow,
    consecutive: ConsecutiveCounts,
    /// HalfOpens that have failed since Normal: each makes the next Sleep longer.
    failed_probes: u32,
    /// Attempts granted before this are old news.
    valid_from: Micros,
    /// The latest time that a `Retry-After` named since the last success.
    retry_after_until: Option<Micros>,
    /// Since when there was nothing but Sleep and HalfOpen.
    trouble_since: Option<Micros>,
    /// A 429 was part of the present trouble.
    saw_429: bool,
    /// This Sleep or HalfOpen is CacheOnly's try to recover.
    auto_recovering: bool,
    /// The ledger has shown the scope closed since we closed it: from then on, open means that
    /// another process opened it.
    seen_closed: bool,
    pace: Pace,
}

impl Health {
    /// A machine in Normal. `Err`: every setting that cannot be obeyed.
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
        })
    }

    /// The whole machine: what happens, when, and what follows from it.
    #[must_use]
    pub fn on(&mut self, event: HealthEvent, now: Micros) -> Actions {
        let mut actions = Actions::new();
        // Before our timers: what they would end may have another end by now, or be over.
        if let HealthEvent::ScopeChanged(view) = event {
            self.on_scope_view(view, now, &mut actions);
        }
        self.run_timers(now, &mut actions);
        match event {
            HealthEvent::Completed(answer) => self.on_result(answer, true, now, &mut actions),
            HealthEvent::CompletedLate(answer) => self.on_result(answer, false, now, &mut actions),
            HealthEvent::Granted => self.on_granted(now, &mut actions),
            HealthEvent::Dropped { granted } => self.on_dropped(granted, now, &mut actions),
            HealthEvent::Tick | HealthEvent::ScopeChanged(_) => {}
            HealthEvent::Operator(command) => self.on_command(command, now, &mut actions),
        }
        self.update_pace(&mut actions);
        actions
    }

    /// Other settings from now on: no count is lost. A state that the new mode does not have ends.
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
        let is_left_over = match (&self.phase, settings.mode) {
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
        if is_left_over {
            self.enter_normal(Reason::Policy, now, &mut actions);
        }
        self.run_timers(now, &mut actions);
        self.update_pace(&mut actions);
        Ok(actions)
    }

    /// When the machine wants [`HealthEvent::Tick`]; `None` = not before something else happens.
    #[must_use]
    pub fn next_tick(&self) -> Option<Micros> {
        match &self.phase {
            HealthPhase::Normal { ramp, .. } => ramp.map(|ramp| ramp.next),
            HealthPhase::Throttle(_) | HealthPhase::Offline { .. } | HealthPhase::HalfOpen(_) => {
                None
            }
            HealthPhase::Sleep { until, .. } => {
                Some(self.cache_only_at().map_or(*until, |at| at.min(*until)))
            }
            // The end that an operator named holds, whatever recovers by itself.
            HealthPhase::CacheOnly { ends, .. } => {
                let tries = || self.settings.auto_recover.map(|every| self.since + every);
                ends.or_else(tries)
            }
        }
    }

    /// The state by name.
    #[must_use]
    pub fn state(&self) -> HealthState {
        self.phase.state()
    }

    /// Lets every timer fire that is due, so that a tick that comes late, or never, changes
    /// nothing. Ends because each step leaves a state whose next timer lies ahead, and a ramp
    /// climbs by at least 1 % a step.
    fn run_timers(&mut self, now: Micros, actions: &mut Actions) {
        while self.next_tick().is_some_and(|due| due <= now) {
            self.fire_timer(now, actions);
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

impl Action {
    /// What the ledger is told; `None` for what concerns this process alone.
    #[must_use]
    pub fn settle(self, scope: ScopeId) -> Option<Settle> {
        match self {
            Action::Close {
                age,
                closed_for: rest,
                reopen: then,
            } => Some(Settle::Close {
                scope,
                age,
                closed_for: rest,
                reopen: then,
            }),
            Action::Open => Some(Settle::Open { scope }),
            Action::Failed {
                in_a_row,
                closed_for: rest,
            } => Some(Settle::Failed {
                scope,
                age: Span::ZERO,
                in_a_row,
                closed_for: rest,
            }),
            Action::Succeeded => Some(Settle::Succeeded { scope }),
            Action::Pace(_) | Action::Transition { .. } => None,
        }
    }
}

impl HealthState {
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
    /// The word in logs and events.
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
