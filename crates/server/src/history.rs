//! What happened in the last day, in memory: counts per provider and caller, and rare events.
//!
//! One task reads the counters of every started provider each second; calls do nothing for it.
//!
//! Promises: bounded. A provider has 300 slots of 1 s, 360 of 10 s and 1,440 of 60 s, of 60 bytes each:
//! 126 KB, of at most [`PROVIDERS_MAX`] providers 32 MB, if all of them were called for a day; five
//! providers take half a megabyte. Callers have a day ([`callers`]), events the last 500.
//!
//! Never: survives the process, asks the ledger's store, or counts a call itself.

mod callers;
mod events;
mod ring;
pub(crate) use callers::{CallerHistory, WindowStart};
pub(crate) use events::{EventLog, PageEvent, resolved};
use ring::SlotSource;
pub(crate) use ring::{Resolution, STATES, Slot};

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tollgate::providers::ActiveProvider;

use crate::daemon::Daemon;
use ring::ProviderRings;

/// The most providers that have a history; further ones have only their current state.
pub(crate) const PROVIDERS_MAX: usize = 256;

/// Everything that is remembered.
#[derive(Debug)]
pub(crate) struct History {
    providers: Mutex<BTreeMap<String, ProviderHistory>>,
    callers: Mutex<CallerHistory>,
    events: Mutex<EventLog>,
}

#[derive(Debug, Default)]
struct ProviderHistory {
    rings: ProviderRings,
    /// When a 429 was last counted, in epoch seconds.
    last_limited: Option<f64>,
}

impl History {
    /// From this time on, in epoch seconds.
    pub(crate) fn new(epoch: f64) -> History {
        // Whole milliseconds since 1970 fit.
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a time after 1970"
        )]
        let first = (epoch * 1_000.0) as u64;
        History {
            providers: Mutex::default(),
            callers: Mutex::default(),
            events: Mutex::new(EventLog::starting_at(first)),
        }
    }

    /// Reads the counters once. Called each second.
    pub(crate) fn record(&self, started: &[Arc<ActiveProvider>], epoch: f64) {
        let mut providers = self.providers.lock();
        for active in started {
            if !providers.contains_key(active.name()) && providers.len() >= PROVIDERS_MAX {
                continue;
            }
            let known = providers.entry(active.name().to_owned()).or_default();
            let source = SlotSource::read(active);
            if known.rings.record(&source) > 0 {
                known.last_limited = Some(epoch);
            }
        }
        drop(providers);
        self.callers.lock().record(started);
    }

    /// The newest slots of a provider, oldest first: so many seconds of them. `None`: it has none.
    pub(crate) fn slots(&self, provider: &str, span: u64) -> Option<(Resolution, Vec<Slot>)> {
        let providers = self.providers.lock();
        Some(providers.get(provider)?.rings.newest(span))
    }

    /// The last second of a provider, its 429s of the last day, and when the last one was.
    pub(crate) fn latest(&self, provider: &str) -> (Slot, u64, Option<f64>) {
        let providers = self.providers.lock();
        providers
            .get(provider)
            .map_or((Slot::default(), 0, None), |known| {
                let (latest, limited) = known.rings.latest();
                (latest, limited, known.last_limited)
            })
    }

    /// All of them together, newest slots, oldest first.
    pub(crate) fn total(&self, span: u64) -> (Resolution, Vec<Slot>) {
        let providers = self.providers.lock();
        let mut all: Option<(Resolution, Vec<Slot>)> = None;
        for known in providers.values() {
            let (resolution, slots) = known.rings.newest(span);
            match &mut all {
                None => all = Some((resolution, slots)),
                Some((_, sum)) => ring::add_aligned(sum, slots),
            }
        }
        all.unwrap_or((Resolution::of(span), Vec::new()))
    }

    /// What the callers did.
    pub(crate) fn callers(&self) -> parking_lot::MutexGuard<'_, CallerHistory> {
        self.callers.lock()
    }

    /// The rare events.
    pub(crate) fn events(&self) -> parking_lot::MutexGuard<'_, EventLog> {
        self.events.lock()
    }
}

/// Records until the task is dropped: counters each second, rare events as they come.
pub(crate) async fn run(daemon: Daemon, history: Arc<History>) {
    let registry = daemon.registry();
    let mut rare = registry.events().subscribe_rare();
    let mut beat = tokio::time::interval(Duration::from_secs(1));
    beat.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
    loop {
        tokio::select! {
            _ = beat.tick() => {
                let started = registry.started();
                history.record(&started, epoch(&daemon));
                for active in &started {
                    active.observe_demand();
                }
                daemon.decision_log().read();
            }
            next = rare.next() => match next {
                Some(next) => history.events().on(&next, epoch(&daemon)),
                None => return,
            },
        }
    }
}

/// The wall clock, in seconds with three decimals.
#[expect(
    clippy::cast_precision_loss,
    reason = "milliseconds of 285 000 years are exact"
)]
pub(crate) fn epoch(daemon: &Daemon) -> f64 {
    (daemon.registry().ledger().now().wall.0 / 1_000) as f64 / 1_000.0
}
