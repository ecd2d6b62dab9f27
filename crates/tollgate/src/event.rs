//! Events: one owned value per fact, for the log and for subscribers.
//!
//! A registry has one bus. The line of the log is made from the same value, in place, so that lines keep
//! their order; the program's log queues it. Everybody else subscribes.
//!
//! Promises: emitting never waits. A subscriber that is too slow loses the oldest events and is
//! told how many. While nobody listens, a fact of a call is not even built. No event contains a
//! key, a query, a header or a body.
//!
//! Never: decides, and never emits under a lock (debug builds check it): whoever holds one passes
//! the fact on (`DeferredEvent`) or defers it ([`defer_events`]).

mod kinds;
mod log;
pub use kinds::{CallDecision, CallEnd, CallResult, DecisionVerdict, Event};

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::broadcast;
use tokio::sync::broadcast::error::{RecvError, TryRecvError};
use tollgate_ledger::lock_order;
use tracing::level_filters::LevelFilter;

/// How many events a subscriber may be behind. Some four per call: a second at a thousand calls per
/// second, of 16 bytes each, beside the events themselves.
pub const BACKLOG_MAX: usize = 4_096;

/// The bus of a registry. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Events {
    bus: Arc<Bus>,
}

#[derive(Debug, Default)]
struct Bus {
    /// Read for each fact of each call, so that nothing is built for nobody. Subscriptions share
    /// it instead of the bus: whoever held the bus would keep its sender alive and never hear the
    /// end.
    subscribers: Arc<AtomicUsize>,
    /// Created for the first subscriber.
    sender: std::sync::OnceLock<broadcast::Sender<Arc<Event>>>,
    /// The same for those who want no facts of calls: no call pays for them.
    rare_subscribers: Arc<AtomicUsize>,
    rare_sender: std::sync::OnceLock<broadcast::Sender<Arc<Event>>>,
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
        subscribe_to(&self.bus.sender, &self.bus.subscribers)
    }

    /// Subscribes to everything but the facts of calls, from now on: states, cool-downs, the store,
    /// reloads, operators. Calls cost no more while somebody listens to these.
    #[must_use]
    pub fn subscribe_rare(&self) -> Subscription {
        subscribe_to(&self.bus.rare_sender, &self.bus.rare_subscribers)
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
        let is_rare_heard = self.bus.rare_subscribers.load(Ordering::Relaxed) > 0;
        let to_rare = is_rare_heard && !event.is_of_call();
        if self.has_subscribers() || to_rare {
            self.send(event, to_rare);
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

    /// As [`Events::emit_with`], for a fact that the log writes at `info`.
    pub(crate) fn emit_info_with(&self, event: impl FnOnce() -> Event) {
        if self.has_subscribers() || LevelFilter::current() >= LevelFilter::INFO {
            self.emit(event());
        }
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
        self.has_subscribers() || LevelFilter::current() >= LevelFilter::DEBUG
    }

    #[inline]
    fn has_subscribers(&self) -> bool {
        self.bus.subscribers.load(Ordering::Relaxed) > 0
    }

    fn send(&self, event: Event, to_rare: bool) {
        let event = Arc::new(event);
        let rare = self.bus.rare_sender.get().filter(|_| to_rare);
        for sender in self.bus.sender.get().into_iter().chain(rare) {
            // An error: the last subscriber has just left.
            drop(sender.send(event.clone()));
        }
    }
}

fn subscribe_to(
    sender: &std::sync::OnceLock<broadcast::Sender<Arc<Event>>>,
    subscribers: &Arc<AtomicUsize>,
) -> Subscription {
    let sender = sender.get_or_init(|| broadcast::Sender::new(BACKLOG_MAX));
    let receiver = sender.subscribe();
    subscribers.fetch_add(1, Ordering::Relaxed);
    Subscription {
        subscribers: subscribers.clone(),
        receiver,
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
