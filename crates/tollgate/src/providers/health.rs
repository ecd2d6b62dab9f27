//! What this process learned from a provider's responses: health, cool-downs, degrade, retry
//! budget.
//!
//! The core decides; this shell holds the state, passes the core's actions to the ledger, and wakes
//! waiting calls when something changes for them.
//!
//! Promises: the ledger receives actions in the order of the decisions. Memory is bounded: inactive
//! scopes are dropped first.
//!
//! Never: holds its lock across an await, or reads a clock other than the ledger's.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use tokio::sync::{Notify, watch};
use tollgate_core::ask::{PathTag, ScopeId, Settle};
use tollgate_core::backoff::Dice;
use tollgate_core::cooldown::{self, Cooldown, CooldownSettings, ProviderWait};
use tollgate_core::health::{
    Action, Actions, Admission, AttemptResult, BasePace, Class, Health, HealthEvent,
    HealthSettings, HealthStatus, Pace,
};
use tollgate_core::limit::{HoldUntil, Rule};
use tollgate_core::problem::Problem;
use tollgate_core::retry::{Budget, BudgetSettings, FailedAttempt, RetryDecision, RetrySettings};
use tollgate_core::scope::ScopeView;
use tollgate_core::time::{Micros, Span};
use tollgate_ledger::ProviderLedger;
use tollgate_ledger::lock_order::{RankedGuard, RankedMutex, rank};

use super::degrade_watch::Degrades;
use super::scope_capacity::has_capacity;
use crate::event::{Event, Events};

/// How often one sync reads the health scope again because this process wrote to it during the
/// read. That happens a few times in an outage; the last write triggers an event of its own.
const SYNC_READS_MAX: usize = 8;

/// The health, cool-downs and retry budget of one provider.
#[derive(Debug)]
pub(crate) struct ProviderHealth {
    pub(super) provider: Arc<str>,
    events: Events,
    pub(super) ledger: ProviderLedger,
    /// Knows the scopes that this process has closed, for use while the store is lost.
    local_ledger: ProviderLedger,
    pub(super) scope: ScopeId,
    pub(super) inner: RankedMutex<{ rank::HEALTH }, Inner>,
    /// The health that the ledger remembers from before the start has been read.
    has_synced: AtomicBool,
    /// Counts the changes that waiting calls must hear of.
    version: watch::Sender<u64>,
    /// Signals that the timer must be set again.
    timer_reset: Arc<Notify>,
}

#[derive(Debug)]
pub(super) struct Inner {
    pub(super) health: Health,
    /// The instant that the timer was last set to.
    tick: Option<Micros>,
    /// The number of updates of the health scope sent to the ledger.
    updates_sent: u64,
    /// The number of reads of that scope, and the last one that was applied.
    reads_started: u64,
    last_read: u64,
    throttle: ThrottleRules,
    budget: Budget,
    cooldowns: HashMap<ScopeId, Cooldown>,
    pub(super) degrades: Degrades,
    /// When inactive cool-downs are next dropped.
    next_cleanup: Micros,
    rng: fastrand::Rng,
    /// The closed paths that were told.
    pub(super) closed_paths: Vec<(PathTag, Option<Arc<str>>)>,
    /// Events that are emitted once the lock is free.
    pub(super) deferred_events: Vec<Event>,
}

/// The extra throttle of this process, as rules.
#[derive(Clone, Debug, Default)]
pub(crate) struct ThrottleRules {
    pub(crate) rate: Option<Arc<Rule>>,
    pub(crate) concurrency: Option<Arc<Rule>>,
}

/// What a call meets: admission and throttle.
#[derive(Debug)]
pub(crate) struct HealthView {
    pub(crate) admission: Admission,
    pub(crate) throttle: ThrottleRules,
    /// The scope of the path, if the path fails.
    pub(crate) path_scope: Option<ScopeId>,
    /// When this was read.
    pub(crate) at: Micros,
}

impl ProviderHealth {
    /// The health of one provider, as the ledger remembers it. Starts the timer task, so it must be
    /// called inside a tokio runtime.
    pub(crate) fn start(
        (provider, events): (&str, &Events),
        (ledger, local_ledger): (ProviderLedger, ProviderLedger),
        (health, base): (HealthSettings, BasePace),
        (budget, dice): (&BudgetSettings, Option<u64>),
    ) -> Result<Arc<ProviderHealth>, Vec<Problem>> {
        let now = ledger.at();
        let own_seed = || now.0 ^ (u64::from(ledger.owner().0) << 32);
        let seed = dice.unwrap_or_else(own_seed);
        let scope = health_scope(provider);
        let health = Arc::new(ProviderHealth {
            provider: provider.into(),
            events: events.clone(),
            scope,
            inner: RankedMutex::new(Inner {
                health: Health::new(health, base, now)?,
                tick: None,
                updates_sent: 0,
                reads_started: 0,
                last_read: 0,
                throttle: ThrottleRules::default(),
                budget: Budget::new(budget, now),
                cooldowns: HashMap::new(),
                degrades: Degrades::default(),
                next_cleanup: Micros::default(),
                rng: fastrand::Rng::with_seed(seed),
                closed_paths: Vec::new(),
                deferred_events: Vec::new(),
            }),
            has_synced: AtomicBool::new(!ledger.takes_time()),
            version: watch::Sender::new(0),
            timer_reset: Arc::new(Notify::new()),
            ledger,
            local_ledger,
        });
        health.on_scope_changed();
        tokio::spawn(run_timer(
            Arc::downgrade(&health),
            health.timer_reset.clone(),
        ));
        Ok(health)
    }

    /// The scope that health closes and opens.
    pub(crate) fn scope(&self) -> ScopeId {
        self.scope
    }

    /// Replaces the settings; no count is lost.
    pub(crate) fn configure(
        &self,
        health: HealthSettings,
        base: BasePace,
    ) -> Result<(), Vec<Problem>> {
        let now = self.ledger.at();
        let mut inner = self.inner.lock();
        let actions = inner.health.configure(health, base, now)?;
        self.apply_actions(&mut inner, actions);
        self.release(inner);
        self.notify_waiting();
        Ok(())
    }

    /// Applies an event of the provider.
    pub(crate) fn on(&self, event: HealthEvent) {
        let mut inner = self.inner.lock();
        let now = self.ledger.at();
        let actions = inner.health.on(event, now);
        self.apply_actions(&mut inner, actions);
        self.release(inner);
    }

    /// The ledger reports that the health scope changed, by another process or by this one. A slow
    /// store is read in a task, so that nobody waits for it. Must be called inside a tokio runtime.
    pub(crate) fn on_scope_changed(self: &Arc<ProviderHealth>) {
        if self.ledger.takes_time() {
            let health = self.clone();
            tokio::spawn(async move { health.sync().await });
        } else {
            // Under the lock, so that the view is never older than our last action.
            let mut inner = self.inner.lock();
            let view = self.ledger.last_seen_scope(self.scope);
            self.apply_shared(&mut inner, view);
            self.release(inner);
        }
    }

    /// Runs before a call checks admission: the first call after a start must not see a provider as
    /// new while the ledger knows that it sleeps.
    pub(crate) async fn sync_once(&self) {
        if !self.has_synced.load(Ordering::Acquire) {
            self.sync().await;
            self.has_synced.store(true, Ordering::Release);
        }
    }

    /// Reads the health scope from the ledger. When this returns, all of it is applied, unless the
    /// store is lost.
    pub(crate) async fn sync(&self) {
        for _ in 0..SYNC_READS_MAX {
            let (read, updates_sent, number) = {
                let mut inner = self.inner.lock();
                inner.reads_started += 1;
                // Requested under the lock: of two reads, the one with the higher number sees more.
                (
                    self.ledger.try_peek_scope(self.scope),
                    inner.updates_sent,
                    inner.reads_started,
                )
            };
            let view = read.await.filter(|_| self.ledger.loss().is_none());
            let Some(view) = view else {
                return; // our last state is better
            };
            let mut inner = self.inner.lock();
            if number < inner.last_read {
                return;
            }
            // Our own actions during the read may be missing from this view.
            if updates_sent == inner.updates_sent {
                inner.last_read = number;
                self.apply_shared(&mut inner, view);
                return self.release(inner);
            }
        }
    }

    /// Applies the state that all processes share.
    fn apply_shared(&self, inner: &mut Inner, view: ScopeView) {
        if view == ScopeView::Open {
            self.local_ledger.settle(Settle::Open { scope: self.scope });
        }
        let actions = inner
            .health
            .on(HealthEvent::ScopeChanged(view), self.ledger.at());
        self.apply_actions(inner, actions);
    }

    /// An attempt to this path got its permit. `true`: it is a probe.
    pub(crate) fn on_granted(&self, path: Option<PathTag>) -> bool {
        let mut inner = self.inner.lock();
        let now = self.ledger.at();
        let actions = inner.health.on(HealthEvent::Granted, now);
        self.apply_actions(&mut inner, actions);
        let is_probe = inner.health.is_probe(path);
        self.release(inner);
        is_probe
    }

    /// The admission and throttle that a call to this path meets now.
    pub(crate) fn view(&self, path: Option<PathTag>) -> HealthView {
        let inner = self.inner.lock();
        let now = self.ledger.at();
        HealthView {
            admission: inner.health.admission_on(path, now),
            throttle: inner.throttle.clone(),
            path_scope: inner
                .health
                .failing_path(path)
                .map(|path| path.scope(self.scope)),
            at: now,
        }
    }

    /// The current health status, for people.
    pub(crate) fn status(&self) -> HealthStatus {
        let inner = self.inner.lock();
        inner.health.status(self.ledger.at())
    }

    /// Subscribes to changes: a new throttle, a closed scope, other settings.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }

    /// Makes waiting calls check again.
    pub(crate) fn notify_waiting(&self) {
        self.version.send_modify(|version| *version += 1);
    }

    /// An attempt under a cool-down's scope ended. Health and cool-down process it in one step:
    /// both ignore attempts that were already sent when the scope closed, and none slips between
    /// them (A4). Returns the cool-down that starts now.
    pub(crate) fn on_response(
        &self,
        scope: ScopeId,
        response: AttemptResult,
        cooldown_settings: Option<&CooldownSettings>,
    ) -> Option<Span> {
        let mut inner = self.inner.lock();
        let now = self.ledger.at();
        let known = inner.cooldowns.get(&scope);
        let event = if known.is_some_and(|known| known.is_outdated(response.granted)) {
            HealthEvent::CompletedLate(response)
        } else {
            HealthEvent::Completed(response)
        };
        let actions = inner.health.on(event, now);
        self.apply_actions(&mut inner, actions);
        let cooldown = match response.class {
            Class::Limited => self.cool_down(&mut inner, scope, response, cooldown_settings, now),
            Class::Success => {
                if let Some(cooldown) = inner.cooldowns.get_mut(&scope) {
                    cooldown.on_success(response.granted); // the next cool-down is a first one
                }
                None
            }
            Class::ServerError | Class::Network | Class::Other => None,
        };
        self.release(inner);
        cooldown
    }

    /// The provider limited a call of this scope: the scope cools down for everybody.
    fn cool_down(
        &self,
        inner: &mut Inner,
        scope: ScopeId,
        response: AttemptResult,
        settings: Option<&CooldownSettings>,
        now: Micros,
    ) -> Option<Span> {
        let settings = settings?;
        let dice = Dice(inner.rng.u64(..));
        let is_needed = |known: &Cooldown| known.remaining(now).is_some();
        let has_room = has_capacity(
            &mut inner.cooldowns,
            scope,
            &mut inner.next_cleanup,
            now,
            is_needed,
        );
        let mut unknown = Cooldown::default();
        let cooldown = if has_room {
            inner.cooldowns.entry(scope).or_default()
        } else {
            &mut unknown
        };
        let wait = ProviderWait {
            retry_after: response.retry_after,
            reset_after: None,
        };
        let pause = cooldown.on_limited(settings, response.granted, wait, dice, now)?;
        self.settle(cooldown::settle(scope, pause, now.since(response.granted)));
        Some(pause)
    }

    /// A random number from this provider's generator.
    pub(crate) fn roll_dice(&self) -> Dice {
        Dice(self.inner.lock().rng.u64(..))
    }

    /// An operator ends cool-downs and degrade modes: the named ones, and on request every other
    /// one that this process knows. Other processes see the scopes open and follow.
    pub(crate) fn clear_scopes(&self, scopes: &[ScopeId], and_others: bool) {
        let mut inner = self.inner.lock();
        let mut scopes = scopes.to_vec();
        if and_others {
            scopes.extend(inner.cooldowns.keys().chain(inner.degrades.scopes.keys()));
        }
        for scope in scopes {
            inner.cooldowns.remove(&scope);
            inner.degrades.scopes.remove(&scope);
            self.settle(Settle::Open { scope });
        }
    }

    /// An operator ends these cool-downs, and every other one that this process knows.
    pub(crate) fn clear_cooldowns(&self, scopes: impl Iterator<Item = ScopeId>) {
        let mut inner = self.inner.lock();
        let known = std::mem::take(&mut inner.cooldowns);
        for scope in scopes.chain(known.into_keys()) {
            self.settle(Settle::Open { scope });
        }
    }

    /// The wait that the provider asked for, when this scope began to cool down.
    pub(crate) fn cooldown_stated(&self, scope: ScopeId) -> Option<Span> {
        self.inner.lock().cooldowns.get(&scope)?.stated()
    }

    /// A call makes its first attempt.
    pub(crate) fn on_call(&self, settings: &BudgetSettings) {
        let now = self.ledger.at();
        self.inner.lock().budget.on_call(settings, now);
    }

    /// May a failed attempt be retried?
    pub(crate) fn decide_retry(
        &self,
        settings: &RetrySettings,
        failed: &FailedAttempt,
    ) -> RetryDecision {
        let now = self.ledger.at();
        let mut inner = self.inner.lock();
        let dice = Dice(inner.rng.u64(..));
        settings.decide(failed, &mut inner.budget, dice, now)
    }

    /// Executes the actions of the health state machine, in order and under its lock.
    pub(super) fn apply_actions(&self, inner: &mut Inner, actions: Actions) {
        let tick = inner.health.next_tick();
        if tick != inner.tick {
            inner.tick = tick;
            self.timer_reset.notify_one();
        }
        let mut concerns_waiting = false;
        for action in actions {
            if let Some(settle) = action.settle(self.scope) {
                inner.updates_sent += 1;
                self.settle(settle);
            }
            match action {
                Action::Close { .. }
                | Action::Open
                | Action::Failed { .. }
                | Action::PathFailed { .. }
                | Action::OpenPath { .. }
                | Action::Succeeded => {}
                // Waiting calls to it have asked without its scope.
                Action::ClosePath { .. } => concerns_waiting = true,
                Action::Pace(pace) => {
                    inner.throttle = ThrottleRules::of(pace);
                    concerns_waiting = true;
                }
                Action::Transition { from, to, reason } => {
                    concerns_waiting = true;
                    let status = inner.health.status(self.ledger.at());
                    inner.deferred_events.push(Event::Transition {
                        provider: self.provider.clone(),
                        from,
                        to,
                        reason,
                        status: Box::new(status),
                    });
                }
            }
        }
        self.note_closed_paths(inner);
        if concerns_waiting {
            self.notify_waiting();
        }
    }

    /// Frees the lock, then emits the events that happened under it.
    pub(super) fn release(&self, mut inner: RankedGuard<'_, Inner>) {
        let deferred_events = std::mem::take(&mut inner.deferred_events);
        drop(inner);
        deferred_events
            .into_iter()
            .for_each(|fact| self.events.emit(fact));
    }

    /// The timer is set again, because something is due earlier.
    pub(super) fn reset_timer(&self) {
        self.timer_reset.notify_one();
    }

    pub(super) fn emit(&self, event: Event) {
        self.events.emit(event);
    }

    /// Reports a scope to both ledgers. This is rare, and the store may be lost at any time.
    pub(super) fn settle(&self, settle: Settle) {
        self.local_ledger.settle(settle.clone());
        self.ledger.settle(settle);
    }

    fn next_tick(&self) -> Option<Span> {
        let mut inner = self.inner.lock();
        let tick = inner.health.next_tick();
        inner.tick = tick;
        let look = inner.degrades.next_look();
        drop(inner);
        let first = [tick, look].into_iter().flatten().min();
        first.map(|tick| tick.since(self.ledger.at()))
    }
}

/// The scope that the health of a provider closes and opens.
pub(super) fn health_scope(provider: &str) -> ScopeId {
    ScopeId::named(&[provider, "health"])
}

impl ThrottleRules {
    fn of(pace: Pace) -> ThrottleRules {
        // Both are valid by construction: a gap of at least one microsecond, a concurrency of at
        // least one. The rate holds from the send on: it slows this process down and is no
        // provider's limit.
        let rate = pace
            .rate
            .and_then(|rate| Rule::bucket(1, rate.gap(), 1).ok());
        let rate = rate.map(|rule| rule.hold_until(HoldUntil::Send));
        let most = pace.concurrency.map(|most| u64::from(most.max(1)));
        ThrottleRules {
            rate: rate.map(Arc::new),
            concurrency: most
                .and_then(|most| Rule::in_flight(most).ok())
                .map(|rule| Arc::new(rule.of_one_process())),
        }
    }
}

/// The one timer of a provider's health; ends with the provider.
async fn run_timer(health: Weak<ProviderHealth>, poke: Arc<Notify>) {
    loop {
        let Some(pause) = health.upgrade().map(|health| health.next_tick()) else {
            return;
        };
        tokio::select! {
            () = poke.notified() => {}
            () = crate::timer::sleep(pause) => {
                let Some(health) = health.upgrade() else { return };
                health.on(HealthEvent::Tick);
                health.look_at_due();
            }
        }
    }
}

impl Drop for ProviderHealth {
    /// Lets the timer task end.
    fn drop(&mut self) {
        self.timer_reset.notify_one();
    }
}
