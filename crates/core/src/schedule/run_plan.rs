//! Which sources are due, queued and running (H6).
//!
//! Promises: of one provider at most as many are queued or running as it has capacity for when they are queued. A source
//! that is denied is put back and has used no retry; one that fails is tried again after growing waits, as often as the
//! rules allow, and then waits for its next time. The urgent ones are queued first, then those that wait longest.
//!
//! Never: reads a clock, asks for capacity or fetches anything.

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};

use super::Schedule;
use crate::ask::Priority;
use crate::backoff::{Backoff, Jitter};
use crate::ratio::Ppm;
use crate::time::{Span, Wall};

/// A denied source asks again after this time at the latest: limits may have been changed meanwhile.
const ASK_AGAIN_MAX: Span = Span::from_secs(60);

/// What happens to a source that fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlanRules {
    /// How often it is tried again before it waits for its next time.
    pub retries: u32,
    /// The first wait; each further one doubles it.
    pub base: Span,
    /// The longest wait.
    pub max: Span,
}

/// How far a source has come: what survives a restart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunState {
    /// When it is due; `None` = never again.
    pub next: Option<Wall>,
    /// Put back, or failed: not before this time.
    pub not_before: Option<Wall>,
    /// When it was fetched last, with whatever result.
    pub last: Option<Wall>,
    /// How often it has failed since its last success.
    pub failures: u32,
}

/// How a fetch ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunEnd {
    /// With a result.
    Done,
    /// It got no permit (`RateLimitExceeded`); it may in this time, if that is known.
    Denied(Option<Span>),
    /// Otherwise.
    Failed,
    /// Its result could not be delivered. It is not fetched again for that.
    Undelivered,
}

/// A source that the plan knows.
#[derive(Clone, Debug)]
struct PlannedSource {
    schedule: Schedule,
    priority: Priority,
    state: RunState,
    stage: Stage,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Stage {
    Waiting,
    /// Queued or running, for this provider.
    Outstanding(String),
}

/// All sources.
#[derive(Clone, Debug)]
pub struct RunPlan {
    rules: PlanRules,
    sources: BTreeMap<String, PlannedSource>,
    queue: VecDeque<String>,
    /// Queued and running ones by provider: at most as many entries as sources.
    outstanding: BTreeMap<String, u64>,
}

impl RunPlan {
    /// No sources.
    #[must_use]
    pub fn new(rules: PlanRules) -> RunPlan {
        RunPlan {
            rules,
            sources: BTreeMap::new(),
            queue: VecDeque::new(),
            outstanding: BTreeMap::new(),
        }
    }

    /// Adds a source, as far as it had come; one of this name stays as it is.
    pub fn add(
        &mut self,
        name: &str,
        schedule: Schedule,
        priority: Priority,
        state: RunState,
        now: Wall,
    ) {
        let next = schedule.corrected(state.next, state.last, now);
        let state = RunState { next, ..state };
        let planned = PlannedSource {
            schedule,
            priority,
            state,
            stage: Stage::Waiting,
        };
        self.sources.entry(name.to_owned()).or_insert(planned);
    }

    /// Removes all that are not among these. One that runs ends unnoticed.
    pub fn keep_only(&mut self, is_there: impl Fn(&str) -> bool) {
        let gone: Vec<String> = self
            .sources
            .keys()
            .filter(|name| !is_there(name))
            .cloned()
            .collect();
        for name in gone {
            self.leave_provider(&name);
            self.sources.remove(&name);
            self.queue.retain(|queued| *queued != name);
        }
    }

    /// Sources that are due and not queued yet, in the order in which they should be.
    #[must_use]
    pub fn due(&mut self, now: Wall) -> Vec<String> {
        let mut due = Vec::new();
        for (name, source) in &mut self.sources {
            let RunState { next, last, .. } = source.state;
            source.state.next = source.schedule.corrected(next, last, now);
            let is_due = source.stage == Stage::Waiting
                && source.state.next.is_some_and(|next| next <= now)
                && source.is_allowed(now);
            if is_due {
                due.push((Reverse(source.priority), source.state.next, name.clone()));
            }
        }
        due.sort();
        due.into_iter().map(|(_, _, name)| name).collect()
    }

    /// Queued or running for this provider. Those that run may have their permit already, which the provider's capacity
    /// shows too: counted twice, they keep room free for a moment, and never take it.
    #[must_use]
    pub fn outstanding(&self, provider: &str) -> u64 {
        self.outstanding.get(provider).copied().unwrap_or(0)
    }

    /// Queues a source for a provider with so much capacity (`None` = no limit); `false` = there is no room for it.
    pub fn queue(&mut self, name: &str, provider: &str, remaining: Option<u64>) -> bool {
        let outstanding = self.outstanding(provider);
        if remaining.is_some_and(|remaining| remaining <= outstanding) {
            return false;
        }
        let Some(source) = self.sources.get_mut(name) else {
            return false;
        };
        if source.stage != Stage::Waiting {
            return false;
        }
        source.stage = Stage::Outstanding(provider.to_owned());
        self.queue.push_back(name.to_owned());
        *self.outstanding.entry(provider.to_owned()).or_default() += 1;
        true
    }

    /// The provider has no capacity for it before this time: it is not asked for until then.
    pub fn skip(&mut self, name: &str, retry_in: Option<Span>, now: Wall) {
        if let Some(source) = self.sources.get_mut(name) {
            source.state.not_before = Some(ask_again(retry_in, now));
        }
    }

    /// The next queued source, for a worker that is free.
    pub fn start_next(&mut self) -> Option<String> {
        self.queue.pop_front()
    }

    /// A worker is done with a source. Returns how far that has come; `None` = it was removed meanwhile.
    pub fn on_end(&mut self, name: &str, end: RunEnd, now: Wall) -> Option<RunState> {
        let rules = self.rules;
        self.leave_provider(name);
        let source = self.sources.get_mut(name)?;
        let due = source.state.next.unwrap_or(now);
        let state = &mut source.state;
        match end {
            RunEnd::Denied(retry_in) => state.not_before = Some(ask_again(retry_in, now)),
            RunEnd::Failed if state.failures < rules.retries => {
                state.last = Some(now);
                state.not_before = Some(now + rules.wait(state.failures));
                state.failures += 1;
            }
            RunEnd::Done | RunEnd::Failed | RunEnd::Undelivered => {
                *state = RunState {
                    next: source.schedule.after(due, now),
                    last: Some(now),
                    ..RunState::default()
                };
            }
        }
        Some(*state)
    }

    /// How far a source has come.
    #[must_use]
    pub fn state(&self, name: &str) -> Option<RunState> {
        Some(self.sources.get(name)?.state)
    }

    /// Sources that wait for a worker.
    #[must_use]
    pub fn queued(&self) -> usize {
        self.queue.len()
    }

    /// A source is neither queued nor running any more.
    fn leave_provider(&mut self, name: &str) {
        let Some(source) = self.sources.get_mut(name) else {
            return;
        };
        let Stage::Outstanding(provider) = std::mem::replace(&mut source.stage, Stage::Waiting)
        else {
            return;
        };
        if let Some(count) = self.outstanding.get_mut(&provider) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.outstanding.remove(&provider);
            }
        }
    }
}

impl PlannedSource {
    /// No earlier time forbids it. One that lies further ahead than any wait was written by a clock that was set back.
    fn is_allowed(&self, now: Wall) -> bool {
        self.state
            .not_before
            .is_none_or(|at| at <= now || at > now + WAIT_MAX)
    }
}

/// The longest wait of any rule.
const WAIT_MAX: Span = Span::from_secs(3_600);

impl PlanRules {
    /// The wait after the failure that follows so many.
    fn wait(self, failures: u32) -> Span {
        let backoff = Backoff {
            base: self.base,
            factor: Ppm(2_000_000),
            max: Span(self.max.0.min(WAIT_MAX.0)),
            jitter: Jitter::None,
        };
        backoff.ceiling(failures)
    }
}

fn ask_again(retry_in: Option<Span>, now: Wall) -> Wall {
    now + retry_in.map_or(Span::ZERO, |wait| Span(wait.0.min(ASK_AGAIN_MAX.0)))
}
