//! The counts of one provider over time, in three resolutions.
//!
//! Promises: a slot holds what was counted in its time; the sum of the slots is the count. Its state is
//! the worst that was seen.
//!
//! Never: reads a clock: it is told each second.

use std::collections::VecDeque;

use tollgate::metrics::ResponseCounts;
use tollgate::providers::{ActiveProvider, CallCounts, Savings};
use tollgate_core::ask::Priority;
use tollgate_core::health::{HealthState, HealthStatus, OperatorHold};

/// How far a slot reaches, and how many there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Resolution {
    /// Seconds.
    pub(crate) every: u64,
    slots_max: usize,
}

/// 5 minutes, an hour, a day.
const RESOLUTIONS: [Resolution; 3] = [
    Resolution {
        every: 1,
        slots_max: 300,
    },
    Resolution {
        every: 10,
        slots_max: 360,
    },
    Resolution {
        every: 60,
        slots_max: 1_440,
    },
];

/// What happened within one slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Slot {
    /// Calls that ended.
    pub(crate) calls: u32,
    /// Attempts by priority: high, normal, low.
    pub(crate) sent: [u32; 3],
    /// Responses: success, limited, failed (5xx or none), other.
    pub(crate) responses: [u32; 4],
    /// Calls that cost no attempt: cache, shared, merged.
    pub(crate) saved: u32,
    /// Look-ups in the cache that found nothing.
    pub(crate) misses: u32,
    /// Calls that Tollgate rejected.
    pub(crate) rejected: u32,
    /// Calls that waited at its end.
    pub(crate) waiting: u32,
    /// Milliseconds that half, and 99 of 100, of the calls that were sent waited at most.
    pub(crate) waits: [u32; 2],
    /// The worst state, as its place in [`STATES`].
    pub(crate) state: u8,
}

/// The states from the best to the worst; the last three are an operator's.
pub(crate) const STATES: [&str; 8] = [
    "normal",
    "half_open",
    "throttle",
    "cache_only",
    "sleep",
    "held_cache_only",
    "paused",
    "offline",
];

/// The counters of a provider at one time.
#[derive(Clone, Debug, Default)]
pub(crate) struct SlotSource {
    calls: CallCounts,
    responses: ResponseCounts,
    savings: Savings,
    waiting: usize,
    state: u8,
}

impl SlotSource {
    pub(crate) fn read(active: &ActiveProvider) -> SlotSource {
        let by_caller = active.calls_by_caller();
        let all = [Priority::High, Priority::Normal, Priority::Low];
        SlotSource {
            calls: by_caller
                .iter()
                .fold(CallCounts::default(), |sum, (_, one)| sum.plus(one)),
            responses: active.responses(),
            savings: active.savings(),
            waiting: all.map(|one| active.waiting_at(one)).iter().sum(),
            state: state_index(&active.status()),
        }
    }
}

/// The place of a state in [`STATES`].
pub(crate) fn state_index(status: &HealthStatus) -> u8 {
    match (status.hold, status.state) {
        (Some(OperatorHold::Offline), _) => 7,
        (Some(OperatorHold::Paused), _) => 6,
        (Some(OperatorHold::CacheOnly), _) => 5,
        (None, HealthState::Sleep) => 4,
        (None, HealthState::CacheOnly) => 3,
        (None, HealthState::Throttle) => 2,
        (None, HealthState::HalfOpen) => 1,
        (None, HealthState::Normal) => 0,
    }
}

/// The rings of one provider.
#[derive(Debug)]
pub(super) struct ProviderRings {
    rings: [Ring; 3],
}

#[derive(Debug)]
struct Ring {
    resolution: Resolution,
    slots: VecDeque<Slot>,
    /// The counters when its open slot began; `None` = nothing was read so far.
    before: Option<SlotSource>,
    /// Seconds of the open slot, and the worst state in it.
    open: (u64, u8),
}

impl Default for ProviderRings {
    fn default() -> ProviderRings {
        let rings = RESOLUTIONS.map(|resolution| Ring {
            resolution,
            slots: VecDeque::new(),
            before: None,
            open: (0, 0),
        });
        ProviderRings { rings }
    }
}

impl ProviderRings {
    /// A second has passed. Returns its number of 429s.
    pub(super) fn record(&mut self, source: &SlotSource) -> u32 {
        for ring in &mut self.rings {
            ring.record(source);
        }
        self.rings[0]
            .slots
            .back()
            .map_or(0, |slot| slot.responses[1])
    }

    /// The newest slots for so many seconds, oldest first.
    pub(super) fn newest(&self, span: u64) -> (Resolution, Vec<Slot>) {
        let wanted = Resolution::of(span);
        let ring = self.rings.iter().find(|ring| ring.resolution == wanted);
        let Some(ring) = ring else {
            return (wanted, Vec::new());
        };
        let most = usize::try_from(span.div_ceil(wanted.every)).unwrap_or(usize::MAX);
        let first = ring.slots.len().saturating_sub(most);
        (wanted, ring.slots.iter().skip(first).copied().collect())
    }

    /// The last second, and the 429s of the last day.
    pub(super) fn latest(&self) -> (Slot, u64) {
        let day = &self.rings[2];
        let limited: u64 = day
            .slots
            .iter()
            .map(|slot| u64::from(slot.responses[1]))
            .sum();
        // The minute that is not over yet.
        let open = usize::try_from(day.open.0).unwrap_or(0);
        let recent = self.rings[0].slots.iter().rev().take(open);
        let recent: u64 = recent.map(|slot| u64::from(slot.responses[1])).sum();
        let latest = self.rings[0].slots.back().copied().unwrap_or_default();
        (latest, limited + recent)
    }
}

impl Ring {
    fn record(&mut self, source: &SlotSource) {
        let Some(before) = &self.before else {
            // What a provider counted before its first second belongs to that second.
            self.before = Some(SlotSource::default());
            return self.record(source);
        };
        let (seconds, worst) = (self.open.0 + 1, self.open.1.max(source.state));
        if seconds < self.resolution.every {
            self.open = (seconds, worst);
            return;
        }
        let mut slot = difference(before, source);
        slot.state = worst;
        if self.slots.len() >= self.resolution.slots_max {
            self.slots.pop_front();
        }
        self.slots.push_back(slot);
        self.before = Some(source.clone());
        self.open = (0, 0);
    }
}

impl Resolution {
    /// The finest one that reaches so many seconds back; the coarsest if none does.
    pub(crate) fn of(span: u64) -> Resolution {
        let reaches = |one: &Resolution| one.every * one.slots_max as u64 >= span;
        let [.., coarsest] = RESOLUTIONS;
        RESOLUTIONS.into_iter().find(reaches).unwrap_or(coarsest)
    }
}

fn difference(before: &SlotSource, now: &SlotSource) -> Slot {
    let calls = now.calls.since(&before.calls);
    let count = |now: u64, before: u64| clamped(now.saturating_sub(before));
    let saved = |one: &Savings| one.hits + one.stale + one.revalidated + one.shared + one.merged;
    let failed = |one: &ResponseCounts| one.server_error + one.network;
    let (old, new) = (&before.responses, &now.responses);
    let wait = |permille| {
        let wait = calls.waits.quantile(permille);
        wait.map_or(0, |wait| clamped(wait.0 / 1_000))
    };
    Slot {
        calls: clamped(calls.calls),
        sent: calls.sent.map(clamped),
        responses: [
            count(new.success, old.success),
            count(new.limited, old.limited),
            count(failed(new), failed(old)),
            count(new.other, old.other),
        ],
        saved: count(saved(&now.savings), saved(&before.savings)),
        misses: count(now.savings.misses, before.savings.misses),
        rejected: clamped(calls.rejected),
        waiting: clamped(now.waiting as u64),
        waits: [wait(500), wait(990)],
        state: now.state,
    }
}

/// Adds the slots of another provider, aligned at the newest.
pub(super) fn add_aligned(sum: &mut Vec<Slot>, mut other: Vec<Slot>) {
    if other.len() > sum.len() {
        std::mem::swap(sum, &mut other);
    }
    for (sum, other) in sum.iter_mut().rev().zip(other.iter().rev()) {
        sum.calls = sum.calls.saturating_add(other.calls);
        sum.saved = sum.saved.saturating_add(other.saved);
        sum.misses = sum.misses.saturating_add(other.misses);
        sum.rejected = sum.rejected.saturating_add(other.rejected);
        sum.waiting = sum.waiting.saturating_add(other.waiting);
        sum.state = sum.state.max(other.state);
        for at in 0..3 {
            sum.sent[at] = sum.sent[at].saturating_add(other.sent[at]);
        }
        for at in 0..4 {
            sum.responses[at] = sum.responses[at].saturating_add(other.responses[at]);
        }
        for at in 0..2 {
            // Quantiles do not add up: the slower provider says it.
            sum.waits[at] = sum.waits[at].max(other.waits[at]);
        }
    }
}

fn clamped(count: u64) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(calls: u64, limited: u64, state: u8) -> SlotSource {
        SlotSource {
            calls: CallCounts {
                calls,
                ..CallCounts::default()
            },
            responses: ResponseCounts {
                limited,
                ..ResponseCounts::default()
            },
            state,
            ..SlotSource::default()
        }
    }

    /// A day of one call a second, with a 429 each minute.
    #[test]
    fn the_rings_are_bounded_and_their_slots_add_up() {
        let mut rings = ProviderRings::default();
        let day = 86_400;
        for second in 1..=day + 30 {
            rings.record(&source(second, second / 60, 0));
        }
        for (span, every, slots, calls) in [
            (300, 1, 300, 300),
            (3_600, 10, 360, 3_600),
            (day, 60, 1_440, day),
        ] {
            let (resolution, found) = rings.newest(span);
            let sum: u64 = found.iter().map(|slot| u64::from(slot.calls)).sum();
            assert_eq!((resolution.every, found.len(), sum), (every, slots, calls));
        }
        assert_eq!(rings.newest(60).1.len(), 60);
        assert_eq!(rings.newest(u64::MAX).1.len(), 1_440);
        let (latest, limited) = rings.latest();
        assert_eq!((latest.calls, limited), (1, 1_440));
        assert!(size_of::<Slot>() <= 60, "{}", size_of::<Slot>());
    }

    #[test]
    fn a_slot_has_the_worst_state_of_its_time() {
        let mut rings = ProviderRings::default();
        for second in 1..=20 {
            rings.record(&source(second, 0, if second == 5 { 4 } else { 0 }));
        }
        let states =
            |span| -> Vec<u8> { rings.newest(span).1.iter().map(|slot| slot.state).collect() };
        assert_eq!(states(3_600), [4, 0]);
        assert_eq!(states(300)[3..6], [0, 4, 0]);
    }

    #[test]
    fn histories_of_different_length_add_at_their_newest_end() {
        let slot = |calls| Slot {
            calls,
            ..Slot::default()
        };
        let mut sum = vec![slot(5)];
        add_aligned(&mut sum, vec![slot(1), slot(2)]);
        assert_eq!(sum, [slot(1), slot(7)]);
    }
}
