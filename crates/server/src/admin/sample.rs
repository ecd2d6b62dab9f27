//! The sample of each second: every provider, its limits, its queue, and what it did in the last second.
//!
//! Promises: the store is asked about a provider only if it was called, waits or is not flowing, and every
//! [`QUIET_TICKS`] seconds. One sample serves all readers.
//!
//! Never: runs while nobody listens.

use std::collections::HashMap;

use serde::Serialize;

use crate::daemon::{Daemon, LiveProvider, OpenAlert};
use crate::history::{self, History, Slot};

/// How often a provider is read that does nothing.
const QUIET_TICKS: u64 = 5;

/// What is known from earlier samples. As many providers as there are.
#[derive(Debug, Default)]
pub(super) struct Sampler {
    tick: u64,
    known: HashMap<String, LiveProvider>,
}

/// The sample.
#[derive(Debug, Serialize)]
pub(super) struct LiveSample {
    ts: f64,
    store: &'static str,
    waiting: u64,
    /// The alerts that fire: also those that began before a restart, or many events ago.
    alerts: Vec<OpenAlert>,
    providers: Vec<SampledProvider>,
}

#[derive(Debug, Serialize)]
struct SampledProvider {
    #[serde(flatten)]
    provider: LiveProvider,
    last_second: LastSecond,
    limited_24h: u64,
    last_429: Option<f64>,
}

/// What a provider did in the last second.
#[derive(Debug, Serialize)]
struct LastSecond {
    calls: u32,
    sent: [u32; 3],
    responses: [u32; 4],
    saved: u32,
    misses: u32,
    rejected: u32,
    /// Milliseconds: half of the calls, and 99 of 100, waited no longer.
    waits: [u32; 2],
}

impl From<Slot> for LastSecond {
    fn from(slot: Slot) -> LastSecond {
        LastSecond {
            calls: slot.calls,
            sent: slot.sent,
            responses: slot.responses,
            saved: slot.saved,
            misses: slot.misses,
            rejected: slot.rejected,
            waits: slot.waits,
        }
    }
}

impl Sampler {
    pub(super) async fn sample(&mut self, daemon: &Daemon, history: &History) -> LiveSample {
        let started = daemon.registry().started();
        let is_full = self.tick.is_multiple_of(QUIET_TICKS);
        self.tick += 1;
        let mut fresh: HashMap<String, LiveProvider> = HashMap::new();
        for active in &started {
            let (slot, _, _) = history.latest(active.name());
            let known = self.known.remove(active.name());
            let is_quiet = slot.calls == 0 && active.waiting() == 0 && !is_full;
            let provider = match known {
                Some(known) if is_quiet && known.is_flowing() && known.is_started() => known,
                _ => daemon.live(active).await,
            };
            fresh.insert(provider.name.clone(), provider);
        }
        if is_full {
            // Those that nobody has called, in the order of the files.
            for summary in daemon.list().await {
                let provider = LiveProvider::from(summary);
                fresh.entry(provider.name.clone()).or_insert(provider);
            }
        } else {
            let known = self.known.drain();
            fresh.extend(known.filter(|(_, one)| !one.is_started()));
        }
        self.known = fresh;
        let mut providers: Vec<SampledProvider> =
            self.known.values().map(|one| of(one, history)).collect();
        providers.sort_by(|one, other| one.provider.name.cmp(&other.provider.name));
        LiveSample {
            ts: history::epoch(daemon),
            store: daemon.store_word(),
            waiting: started.iter().map(|active| active.waiting() as u64).sum(),
            alerts: daemon.open_alerts().to_vec(),
            providers,
        }
    }
}

fn of(provider: &LiveProvider, history: &History) -> SampledProvider {
    let (slot, limited_24h, last_429) = history.latest(&provider.name);
    SampledProvider {
        provider: provider.clone(),
        last_second: slot.into(),
        limited_24h,
        last_429,
    }
}
