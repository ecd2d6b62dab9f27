//! Events: one owned value per fact, for the log and for subscribers.
//!
//! A registry has one bus. The line of the log is made from the same value, in place, so that lines keep
//! their order; the program's log queues it. Rare facts are counted in place too (`count.rs`).
//! Everybody else subscribes: to everything, or only to the ends of calls, which have their steps.
//!
//! Promises: emitting never waits. A subscriber that is too slow loses the oldest events and is
//! told how many. While nobody listens, a fact of a call is not even built. No event contains a
//! key, a query, a header or a body.
//!
//! Never: decides, and never emits under a lock (debug builds check it): whoever holds one passes
//! the fact on (`DeferredEvent`) or defers it ([`defer_events`]).

mod kinds;
mod key_suspension;
mod client_errors;
mod count;
mod cost_doubt;
mod ends;
mod log;
mod steps;
pub use client_errors::ClientErrors;
pub use cost_doubt::CostDoubt;
use ends::EndRing;
pub use ends::{ENDS_BACKLOG_MAX, EndSubscription};
pub use key_suspension::{KeyRejection, KeySuspension};
pub use kinds::{CallDecision, CallEnd, CallResult, DecisionVerdict, Event};
pub use steps::{STEPS_MAX, Step, StepKind, Steps};

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use tokio::sync::broadcast;
use tokio::sync::broadcast::error::{RecvError, TryRecvError};
use tollgate_core::time::{Micros, Span, Wall};
use tollgate_ledger::{Clock, Ledger, lock_order};
use tracing::level_filters::LevelFilter;

use crate::metrics::Metrics;

/// How many events a subscriber may be behind. Some four per call: a second at a thousand calls per
/// second, of 16 bytes each, beside the events themselves.
pub const BACKLOG_MAX: usize = 4_096;

/// The least time between two ends of cache hits for those who want only ends: a hundred a second
/// show what is going on, and a hit that nobody hears of costs nothing.
const HIT_PAUSE: Span = Span::from_millis(10);

/// The least time between two calls whose ends are kept for those who want only ends. It bounds what
/// they cost: keeping the end of a call takes some 2,700 instructions, so a thousand a second take a
/// thousandth of a core.
const END_PAUSE: Span = Span::from_millis(1);

/// The bus of a registry. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Events {
    bus: Arc<Bus>,
}

#[derive(Debug, Default)]
struct Bus {
    /// All events.
    all: Channel,
    /// Only ends of calls.
    ends: Arc<EndRing>,
    /// Everything but the facts of calls.
    rare: Channel,
    /// The log has a line for every call.
    logs_calls: AtomicBool,
    /// When those who want only ends get the next one of a hit, and of another call.
    next_hit: AtomicU64,
    next_end: AtomicU64,
    /// The registry's clock.
    clock: OnceLock<Clock>,
    metrics: Metrics,
}

#[derive(Debug, Default)]
struct Channel {
    /// Read for each fact of each call, so that nothing is built for nobody. Subscriptions share
    /// it instead of the bus: whoever held the bus would keep its sender alive and never hear the
    /// end.
    subscribers: Arc<AtomicUsize>,
    /// Created for the first subscriber.
    sender: OnceLock<broadcast::Sender<Arc<Event>>>,
}

/// Holds the facts of this thread back until it is dropped: declare it before the lock under which
/// they happen. Only for sections without an `await`.
#[derive(Debug)]
#[must_use = "facts are held back while this lives"]
pub struct DeferGuard {
    /// An outer one emits them.
    is_nested: bool,
    /// The facts are those of this thread.
    _thread: std::marker::PhantomData<*const ()>,
}

thread_local! {
    /// What is held back. As much as happens under one lock: a few facts per provider of a reload.
    static DEFERRED: RefCell<Option<Vec<(Events, Event)>>> = const { RefCell::new(None) };
}

/// Holds the facts of this thread back.
pub fn defer_events() -> DeferGuard {
    let is_nested = DEFERRED.with_borrow_mut(|held| {
        let is_nested = held.is_some();
        held.get_or_insert_default();
        is_nested
    });
    DeferGuard {
        is_nested,
        _thread: std::marker::PhantomData,
    }
}

impl Drop for DeferGuard {
    fn drop(&mut self) {
        if !self.is_nested {
            let held = DEFERRED.take().unwrap_or_default();
            held.into_iter()
                .for_each(|(events, event)| events.emit(event));
        }
    }
}

/// A fact that happened under a lock: it is emitted when this is dropped, after the lock.
#[derive(Debug)]
#[must_use = "it is emitted when it is dropped: keep it until the lock is released"]
pub(crate) struct DeferredEvent {
    events: Events,
    event: Option<Event>,
}

impl Drop for DeferredEvent {
    fn drop(&mut self) {
        if let Some(event) = self.event.take() {
            self.events.emit(event);
        }
    }
}

/// A subscription. Dropped, it receives nothing more.
#[derive(Debug)]
pub struct Subscription {
    subscribers: Arc<AtomicUsize>,
    receiver: broadcast::Receiver<Arc<Event>>,
}

/// What a subscriber receives next.
#[derive(Clone, Debug)]
pub enum Notification {
    /// An event.
    Event(Arc<Event>),
    /// It was too slow: so many events are lost.
    Lost(u64),
}

impl Events {
    /// A bus that nobody listens to yet.
    #[must_use]
    pub fn new() -> Events {
        Events::default()
    }

    /// Subscribes to everything from now on.
    #[must_use]
    pub fn subscribe(&self) -> Subscription {
        self.bus.all.subscribe(BACKLOG_MAX)
    }

    /// Subscribes to everything but the facts of calls, from now on: states, cool-downs, the store,
    /// reloads, operators. Calls cost no more while somebody listens to these.
    #[must_use]
    pub fn subscribe_rare(&self) -> Subscription {
        self.bus.rare.subscribe(BACKLOG_MAX)
    }

    /// Subscribes to the ends of calls from now on: all rejections, at most a thousand other calls a
    /// second, and of fresh cache hits at most a hundred.
    #[must_use]
    pub fn subscribe_to_ends(&self) -> EndSubscription {
        self.bus.ends.subscribe()
    }

    /// From now on the log has a line for every call, or no longer.
    pub fn log_calls(&self, logs_calls: bool) {
        self.bus.logs_calls.store(logs_calls, Ordering::Relaxed);
    }

    /// The counters of this process.
    #[must_use]
    pub fn metrics(&self) -> &Metrics {
        &self.bus.metrics
    }

    /// The registry has this clock.
    pub(crate) fn set_clock(&self, ledger: &Ledger) {
        // Of several registries on one bus, the first one's.
        let _known = self.bus.clock.set(ledger.clock().clone());
    }

    /// The wall clock of the registry.
    pub(crate) fn wall(&self) -> Wall {
        self.bus.clock.get().map_or(Wall(0), Clock::wall)
    }

    /// Emits a rare event, which is always logged.
    pub fn emit(&self, event: Event) {
        let mut event = Some(event);
        // While a thread ends, its own variables are gone, and nothing is held back.
        let _gone = DEFERRED.try_with(|held| {
            if let Some(held) = &mut *held.borrow_mut() {
                held.extend(event.take().map(|event| (self.clone(), event)));
            }
        });
        let Some(event) = event else { return };
        debug_assert!(
            lock_order::holds_none(),
            "an event is emitted under a lock: {event:?}"
        );
        event.log();
        event.count(&self.bus.metrics);
        if let Event::CallEnded(end) = &event {
            self.log_access(end);
            if self.bus.ends.is_wanted() {
                self.bus.ends.push(CallEnd::clone(end));
            }
        }
        let is_rare = self.bus.rare.is_wanted() && !event.is_of_call();
        if self.bus.all.is_wanted() || is_rare {
            let event = Arc::new(event);
            if is_rare {
                self.bus.rare.send(&event);
            }
            self.bus.all.send(&event);
        }
    }

    /// Emits the end of a call. For those who want only ends it is moved, not shared.
    pub(crate) fn emit_end(&self, end: CallEnd) {
        let is_deferred = DEFERRED.try_with(|held| held.borrow().is_some());
        if self.bus.all.is_wanted() || is_deferred.unwrap_or(false) {
            return self.emit(Event::CallEnded(Box::new(end)));
        }
        debug_assert!(
            lock_order::holds_none(),
            "the end of a call is emitted under a lock: {end:?}"
        );
        log::log_call(&end);
        self.log_access(&end);
        if self.bus.ends.is_wanted() {
            self.bus.ends.push(end);
        }
    }

    /// Whether anybody reads the last decisions.
    #[cfg(feature = "guards")]
    pub(crate) fn keeps_ends(&self) -> bool {
        self.bus.ends.is_wanted()
    }

    /// Keeps a decision that is no call of a provider among the ends of calls. It is neither logged nor counted: its
    /// guard has done so.
    #[cfg(feature = "guards")]
    pub(crate) fn keep_end(&self, end: CallEnd) {
        self.bus.ends.push(end);
    }

    fn log_access(&self, end: &CallEnd) {
        if self.bus.logs_calls.load(Ordering::Relaxed) {
            log::log_access(end);
        }
    }

    /// Emits a fact of a call. It is built only if there is a subscriber, or if the log is at
    /// `debug`.
    #[inline]
    pub fn emit_with(&self, event: impl FnOnce() -> Event) {
        if self.has_listeners() {
            self.emit(event());
        }
    }

    /// Emits the end of a call that Tollgate rejected, which the log writes at `info`.
    pub(crate) fn emit_rejection_with(&self, end: impl FnOnce() -> CallEnd) {
        let is_wanted = self.bus.ends.is_wanted() || self.wants_all_ends();
        if is_wanted || LevelFilter::current() >= LevelFilter::INFO {
            self.emit_end(end());
        }
    }

    /// Now, on the registry's clock.
    pub(crate) fn at(&self) -> Micros {
        self.bus.clock.get().map_or(Micros(0), Clock::at)
    }

    /// As [`Events::emit_with`], where a lock is held: it is emitted when the returned value is
    /// dropped.
    pub(crate) fn defer_with(&self, event: impl FnOnce() -> Event) -> Option<DeferredEvent> {
        self.has_listeners().then(|| DeferredEvent {
            events: self.clone(),
            event: Some(event()),
        })
    }

    /// Are the events of calls needed, by a subscriber or by the log at `debug`?
    #[inline]
    pub(crate) fn has_listeners(&self) -> bool {
        self.bus.all.is_wanted() || LevelFilter::current() >= LevelFilter::DEBUG
    }

    /// Is the end of the call that begins now needed, with its steps? Those who want only ends get one
    /// each [`END_PAUSE`], and all rejections.
    #[inline]
    pub(crate) fn wants_end(&self, now: Micros) -> bool {
        self.wants_all_ends()
            || self.bus.ends.is_wanted() && is_due(&self.bus.next_end, now.0, END_PAUSE)
    }

    fn wants_all_ends(&self) -> bool {
        self.bus.logs_calls.load(Ordering::Relaxed) || self.has_listeners()
    }

    /// Is the end of this cache hit needed? Those who want only ends get one each
    /// [`HIT_PAUSE`].
    pub(crate) fn wants_hit(&self, now: Wall) -> bool {
        self.wants_all_ends()
            || self.bus.ends.is_wanted() && is_due(&self.bus.next_hit, now.0, HIT_PAUSE)
    }
}

/// Is it time for the next one? Two threads may both say so; that is one end more.
fn is_due(next: &AtomicU64, now: u64, pause: Span) -> bool {
    let due = next.load(Ordering::Relaxed);
    // A clock that was set back by more than a pause starts anew.
    let is_due = now >= due || due - now > pause.0;
    if is_due {
        next.store(now.saturating_add(pause.0), Ordering::Relaxed);
    }
    is_due
}

impl Channel {
    fn subscribe(&self, backlog_max: usize) -> Subscription {
        let sender = self
            .sender
            .get_or_init(|| broadcast::Sender::new(backlog_max));
        let receiver = sender.subscribe();
        self.subscribers.fetch_add(1, Ordering::Relaxed);
        Subscription {
            subscribers: self.subscribers.clone(),
            receiver,
        }
    }

    #[inline]
    fn is_wanted(&self) -> bool {
        self.subscribers.load(Ordering::Relaxed) > 0
    }

    fn send(&self, event: &Arc<Event>) {
        if let Some(sender) = self.sender.get().filter(|_| self.is_wanted()) {
            // An error: the last subscriber has just left.
            drop(sender.send(event.clone()));
        }
    }
}

impl Subscription {
    /// Waits for the next event; `None` = the registry is gone.
    pub async fn next(&mut self) -> Option<Notification> {
        match self.receiver.recv().await {
            Ok(event) => Some(Notification::Event(event)),
            Err(RecvError::Lagged(lost)) => Some(Notification::Lost(lost)),
            Err(RecvError::Closed) => None,
        }
    }

    /// The next event, if it has happened already.
    pub fn try_next(&mut self) -> Option<Notification> {
        match self.receiver.try_recv() {
            Ok(event) => Some(Notification::Event(event)),
            Err(TryRecvError::Lagged(lost)) => Some(Notification::Lost(lost)),
            Err(TryRecvError::Empty | TryRecvError::Closed) => None,
        }
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.subscribers.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reloaded(providers: usize) -> Event {
        Event::Reloaded { providers }
    }

    #[test]
    fn an_event_of_a_call_is_built_only_if_needed() {
        let events = Events::new();
        events.emit_with(|| panic!("nobody listens"));
        let mut subscription = events.subscribe();
        events.emit_with(|| reloaded(1));
        assert!(
            matches!(subscription.try_next(), Some(Notification::Event(event))
            if matches!(*event, Event::Reloaded { providers: 1 }))
        );
        drop(subscription);
        events.emit_with(|| panic!("nobody listens any more"));
    }

    /// The page listens to these all the time, and calls must not pay for it.
    #[test]
    fn a_subscriber_of_rare_events_makes_no_call_build_one() {
        let events = Events::new();
        let mut rare = events.subscribe_rare();
        events.emit_with(|| panic!("nobody listens to calls"));
        events.emit(reloaded(1));
        assert!(rare.try_next().is_some());
        let _all = events.subscribe();
        let fault = tollgate_core::health::Fault::Timeout;
        events.emit_with(|| Event::AttemptFailed {
            id: "1".into(),
            provider: "x".into(),
            fault,
        });
        assert!(rare.try_next().is_none(), "a fact of a call");
    }

    /// What it costs to keep the steps of calls is bounded by the second, not by the call.
    #[test]
    fn those_who_want_only_ends_get_one_in_each_pause() {
        let next = AtomicU64::new(0);
        let pause = Span(1_000);
        let due = |now| is_due(&next, now, pause);
        assert!(due(5_000) && !due(5_000) && !due(5_999));
        assert!(due(6_000) && due(9_000));
        assert!(due(100), "the clock was set back");
        assert!(!due(101));
    }

    /// Whoever listens may ask the provider something, which would wait for its own thread.
    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "an event is emitted under a lock")]
    fn an_event_under_a_lock_is_an_error() {
        let lock = lock_order::RankedMutex::<{ lock_order::rank::HEALTH }, ()>::default();
        let _held = lock.lock();
        Events::new().emit(reloaded(1));
    }

    /// Also if somebody below holds facts back for a lock of its own.
    #[test]
    fn facts_are_held_back_until_the_outermost_lock_is_released() {
        let events = Events::new();
        let mut subscription = events.subscribe();
        let outer = defer_events();
        let lock = lock_order::RankedMutex::<{ lock_order::rank::RELOAD }, ()>::default();
        let held = lock.lock();
        drop(defer_events());
        events.emit(reloaded(1));
        drop(held);
        assert!(subscription.try_next().is_none());
        drop(outer);
        assert!(subscription.try_next().is_some());
        events.emit(reloaded(2));
        assert!(subscription.try_next().is_some());
    }

    /// What happens under a lock is told after it.
    #[test]
    fn a_deferred_event_is_emitted_when_it_is_dropped() {
        let events = Events::new();
        assert!(events.defer_with(|| panic!("nobody listens")).is_none());
        let mut subscription = events.subscribe();
        let deferred = events.defer_with(|| reloaded(1));
        assert!(subscription.try_next().is_none());
        drop(deferred);
        assert!(subscription.try_next().is_some());
    }

    #[test]
    fn a_slow_subscriber_loses_the_oldest_events_and_learns_how_many() {
        let events = Events::new();
        let mut subscription = events.subscribe();
        for number in 0..BACKLOG_MAX + 3 {
            events.emit(reloaded(number));
        }
        assert!(matches!(
            subscription.try_next(),
            Some(Notification::Lost(3))
        ));
        assert!(
            matches!(subscription.try_next(), Some(Notification::Event(event))
            if matches!(*event, Event::Reloaded { providers: 3 }))
        );
    }
}
