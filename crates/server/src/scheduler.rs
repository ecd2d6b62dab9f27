//! Runs the sources (H5, H6): each cycle the due ones whose provider has capacity are queued, and workers fetch them.
//!
//! Promises: asking for capacity takes nothing; of one provider no more sources are queued or running than it has capacity for
//! when they are queued. Each worker acquires again, on the path of every call; a denial puts its source back and is no
//! failure. What is due survives a restart. One process of a state folder runs the sources.
//!
//! Never: decides by itself which source is due or tried again; `core::schedule` does.

mod fetch;
mod output;
pub(crate) use output::Output;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::{Id, JoinError, JoinHandle, JoinSet};
use tokio::time::{Interval, MissedTickBehavior, interval, timeout};
use tollgate::capacity::{self, Capacity};
use tollgate::event::Event;
use tollgate_config::amount;
use tollgate_core::ask::Priority;
use tollgate_core::schedule::{Cron, PlanRules, RunEnd, RunPlan, RunState, Schedule};
use tollgate_core::time::{Micros, Span};

use crate::call_words;
use crate::daemon::Daemon;
use crate::desk::{Desk, RunResult, Source, SourceRun};
use fetch::FetchEnd;

/// The shortest and the longest cycle: a cycle looks at every source.
const CYCLES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(3_600));

/// The most workers: each may hold a response of 16 MiB.
const WORKERS_MAX: usize = 64;

/// Sources whose capacity is asked for in one cycle: each takes some 10 µs, or a round trip to a store far away.
const ASKS_MAX: usize = 500;

/// Sources of one provider that are asked for in vain in one cycle; parts of it may have room where others have none.
const VAIN_ASKS_MAX: usize = 16;

/// Another process with the same state folder may have changed the sources.
const LOOK_EVERY: Span = Span::from_secs(60);

/// How long fetches that are under way may take when the process ends.
const GRACE: Duration = Duration::from_secs(10);

/// How sources are run.
#[derive(Clone, Copy, Debug)]
pub struct SchedulerOptions {
    /// What happens to a source that fails: three retries, after 5, 10 and 20 seconds.
    pub rules: PlanRules,
}

impl Default for SchedulerOptions {
    fn default() -> SchedulerOptions {
        SchedulerOptions {
            rules: PlanRules {
                retries: 3,
                base: Span::from_secs(5),
                max: Span::from_secs(300),
            },
        }
    }
}

/// Runs the sources until it is drained or dropped.
#[derive(Debug)]
pub struct Scheduler {
    task: JoinHandle<()>,
    stop: Arc<Notify>,
}

impl Scheduler {
    /// Starts. Must be called inside a tokio runtime.
    #[must_use]
    pub fn start(daemon: &Daemon, options: SchedulerOptions) -> Scheduler {
        let stop = Arc::new(Notify::new());
        let runner = SourceRunner {
            daemon: daemon.clone(),
            plan: RunPlan::new(options.rules),
            sources: BTreeMap::new(),
            workers: JoinSet::new(),
            running: HashMap::new(),
            seen: None,
            fetches: 0,
        };
        Scheduler {
            task: tokio::spawn(runner.run(stop.clone())),
            stop,
        }
    }

    /// Queues nothing more, and waits for what is being fetched, for a while.
    pub async fn drain(mut self) {
        self.stop.notify_one();
        // What did not end in time is due again after the restart.
        timeout(GRACE, &mut self.task).await.ok();
    }
}

impl Drop for Scheduler {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A source, and its last result.
#[derive(Debug)]
struct KnownSource {
    source: Arc<Source>,
    result: Option<RunResult>,
}

#[derive(Debug)]
struct SourceRunner {
    daemon: Daemon,
    plan: RunPlan,
    sources: BTreeMap<String, KnownSource>,
    workers: JoinSet<FetchEnd>,
    /// What each worker fetches.
    running: HashMap<Id, Arc<Source>>,
    /// The version of the sources that is known, and since when.
    seen: Option<(u64, Micros)>,
    fetches: u64,
}

impl SourceRunner {
    async fn run(mut self, stop: Arc<Notify>) {
        let mut ticks = ticks(self.cycle_length());
        loop {
            if ticks.period() != self.cycle_length() {
                ticks = self::ticks(self.cycle_length());
            }
            tokio::select! {
                biased;
                () = stop.notified() => break,
                Some(ended) = self.workers.join_next_with_id(), if !self.workers.is_empty() => {
                    self.on_worker_ended(ended).await;
                }
                _ = ticks.tick() => self.cycle().await,
            }
            self.start_workers();
        }
        while let Some(ended) = self.workers.join_next_with_id().await {
            self.on_worker_ended(ended).await;
        }
    }

    fn cycle_length(&self) -> Duration {
        let cycle = self.daemon.loaded().config.scheduler.cycle;
        Duration::from(cycle).clamp(CYCLES.0, CYCLES.1)
    }

    /// One cycle: which sources are due, and for which is there room?
    async fn cycle(&mut self) {
        if self.daemon.is_draining() || self.workers_max() == 0 || !self.look_at_desk().await {
            return;
        }
        let due = self.plan.due(self.daemon.registry().ledger().wall());
        let mut queued = Vec::new();
        let mut in_vain: BTreeMap<String, usize> = BTreeMap::new();
        for name in due.into_iter().take(ASKS_MAX) {
            let Some(known) = self.sources.get(&name) else {
                continue;
            };
            let source = known.source.clone();
            let provider = provider_of(&self.daemon, &source);
            if in_vain.get(&provider).copied().unwrap_or(0) >= VAIN_ASKS_MAX {
                continue;
            }
            if self.queue_if_room(&source, &provider).await {
                queued.push(name);
                self.start_workers();
            } else {
                *in_vain.entry(provider).or_default() += 1;
            }
        }
        if !queued.is_empty() {
            let rows = queued.iter().filter_map(|name| self.row(name, true));
            self.store(rows.collect()).await;
        }
    }

    /// Reads the sources if they may have changed. `false`: there are none, or another process runs them.
    async fn look_at_desk(&mut self) -> bool {
        let (daemon, seen) = (self.daemon.clone(), self.seen);
        let now = daemon.registry().ledger().at();
        let is_fresh = |version| {
            seen.is_some_and(|(known, at)| known == version && now.since(at) < LOOK_EVERY)
        };
        if seen.is_none() && !daemon.has_desk_file() {
            return false;
        }
        if let Some(desk) = daemon.open_desk()
            && is_fresh(desk.sources_version())
        {
            return !self.sources.is_empty();
        }
        let looked = self.daemon.on_desk(|desk: &Desk| {
            let version = desk.sources_version();
            let sources = desk.sources()?;
            if sources.is_empty() || !desk.runs_sources()? {
                return Ok((version, None));
            }
            let runs = desk.source_runs()?;
            Ok((version, Some((sources, runs))))
        });
        let Some((version, found)) = looked.await else {
            return false;
        };
        let Some((sources, runs)) = found else {
            // None, or those of another process: looked at again in a while, or when they change here.
            self.plan.keep_only(|_| false);
            self.sources.clear();
            self.seen = Some((version, now));
            return false;
        };
        self.seen = Some((version, now));
        self.take_over(sources, runs).await;
        true
    }

    /// Adds new sources to the plan, and removes those that are gone.
    async fn take_over(&mut self, sources: Vec<Source>, mut runs: BTreeMap<String, SourceRun>) {
        let found: BTreeMap<String, Arc<Source>> = sources
            .into_iter()
            .map(|source| (source.name.clone(), Arc::new(source)))
            .collect();
        self.sources
            .retain(|name, known| found.get(name) == Some(&known.source));
        let known = &self.sources;
        self.plan.keep_only(|name| known.contains_key(name));
        let now = self.daemon.registry().ledger().wall();
        let mut new = Vec::new();
        for (name, source) in found {
            if self.sources.contains_key(&name) {
                continue;
            }
            let schedule = schedule_of(&source);
            let run = runs.remove(&name);
            let is_new = run.is_none();
            let run = run.unwrap_or_else(|| SourceRun {
                state: RunState {
                    next: schedule.first(now),
                    ..RunState::default()
                },
                ..SourceRun::default()
            });
            let result = run.result;
            self.plan
                .add(&name, schedule, priority_of(&source), run.state, now);
            self.sources
                .insert(name.clone(), KnownSource { source, result });
            // What was queued when the last process ended is due again.
            if is_new || run.is_queued {
                new.push(name);
            }
        }
        if !new.is_empty() {
            let rows = new.iter().filter_map(|name| self.row(name, false));
            self.store(rows.collect()).await;
        }
    }

    /// Asks for capacity without taking any, and queues the source if there is room for it.
    async fn queue_if_room(&mut self, source: &Arc<Source>, provider: &str) -> bool {
        let name = &source.name;
        let now = self.daemon.registry().ledger().wall();
        let Some((target, options)) = fetch::call_of(source, self.next_id()) else {
            return self.plan.queue(name, provider, None); // the worker reports it
        };
        let asked = capacity::capacity(self.daemon.registry(), target, options).await;
        match asked {
            Ok(Capacity {
                denied: Some(error),
                ..
            }) => {
                self.plan.skip(name, error.retry_in(), now);
                false
            }
            Ok(found) => self.plan.queue(name, provider, found.remaining),
            // The call itself is wrong: the worker reports it.
            Err(_) => self.plan.queue(name, provider, None),
        }
    }

    /// How many sources are fetched at a time. None: somebody else fetches them.
    fn workers_max(&self) -> usize {
        let workers = self.daemon.loaded().config.scheduler.workers;
        usize::try_from(workers)
            .unwrap_or(usize::MAX)
            .min(WORKERS_MAX)
    }

    fn start_workers(&mut self) {
        let workers = self.workers_max();
        while self.workers.len() < workers
            && let Some(name) = self.plan.start_next()
        {
            let Some(known) = self.sources.get(&name) else {
                continue;
            };
            let (daemon, source) = (self.daemon.clone(), known.source.clone());
            let id = self.next_id();
            let fetched = source.clone();
            let fetching = async move { fetch::fetch(&daemon, &fetched, id).await };
            let worker = self.workers.spawn(fetching);
            self.running.insert(worker.id(), source);
        }
    }

    /// A worker is done with a source, or has panicked.
    async fn on_worker_ended(&mut self, ended: Result<(Id, FetchEnd), JoinError>) {
        let (id, ended) = match ended {
            Ok(ended) => ended,
            Err(error) => {
                let why = "the worker panicked; this is a bug of Tollgate".to_owned();
                (error.id(), FetchEnd::failed(None, why))
            }
        };
        let Some(source) = self.running.remove(&id) else {
            return;
        };
        let name = source.name.clone();
        let known = self.sources.get_mut(&name);
        // Removed meanwhile, or replaced by another of this name.
        let Some(known) = known.filter(|known| known.source == source) else {
            return;
        };
        if ended.result.is_some() {
            known.result.clone_from(&ended.result);
        }
        let now = self.daemon.registry().ledger().wall();
        let before = self.plan.state(&name).unwrap_or_default();
        let Some(state) = self.plan.on_end(&name, ended.end, now) else {
            return;
        };
        let is_tried_again = state.failures > before.failures;
        let retry_at = state.not_before.filter(|_| is_tried_again);
        let retry_in = retry_at.map(|at| at.since(now));
        if let Some(row) = self.row(&name, false) {
            self.store(vec![row]).await;
        }
        let event = event(name.as_str().into(), ended, retry_in);
        self.daemon.registry().events().emit(event);
    }

    /// The row of a source.
    fn row(&self, name: &str, is_queued: bool) -> Option<(String, SourceRun)> {
        let known = self.sources.get(name)?;
        let run = SourceRun {
            state: self.plan.state(name)?,
            is_queued,
            result: known.result.clone(),
        };
        Some((name.to_owned(), run))
    }

    async fn store(&self, rows: Vec<(String, SourceRun)>) {
        self.daemon
            .on_desk(move |desk| desk.store_runs(&rows))
            .await;
    }

    fn next_id(&mut self) -> Arc<str> {
        self.fetches += 1;
        format!("source-{:x}", self.fetches).into()
    }
}

fn ticks(cycle: Duration) -> Interval {
    let mut ticks = interval(cycle);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

/// The provider that limits a source; its URL's host if none does.
fn provider_of(daemon: &Daemon, source: &Source) -> String {
    let uri: Option<http::Uri> = source.url.parse().ok();
    let authority = uri.as_ref().and_then(|uri| uri.authority());
    let authority = authority.map_or("", |authority| authority.as_str());
    match daemon.registry().find_by_authority(authority) {
        Some(provider) => provider.name().to_owned(),
        None => format!("//{authority}"),
    }
}

/// The times of a source. They were checked when it was added.
fn schedule_of(source: &Source) -> Schedule {
    let every = source.every.as_deref().and_then(amount::span);
    let cron = source.cron.as_deref().and_then(Cron::parse);
    match (every, cron) {
        (Some(every), _) => Schedule::Every(every),
        (None, Some(cron)) => Schedule::Cron(cron),
        (None, None) => Schedule::Once,
    }
}

fn priority_of(source: &Source) -> Priority {
    let priority = source.priority.as_deref().and_then(call_words::priority);
    priority.unwrap_or_default()
}

/// What has happened to a source.
fn event(source: Arc<str>, ended: FetchEnd, retry_in: Option<Span>) -> Event {
    let result = ended.result.unwrap_or_default();
    match ended.end {
        RunEnd::Done => Event::SourceFetched {
            source,
            status: result.status.unwrap_or(0),
            bytes: usize::try_from(result.bytes).unwrap_or(usize::MAX),
            from: ended.from,
        },
        RunEnd::Denied(retry_in) => Event::SourcePutBack {
            source,
            reason: ended.reason,
            retry_in,
        },
        RunEnd::Failed | RunEnd::Undelivered => Event::SourceFailed {
            source,
            why: result.error.unwrap_or_default().into(),
            retry_in,
        },
    }
}
