//! What a provider's answers have taught this process: health, cool-downs, degrade, retry budget.
//!
//! The decisions are the core's; this is their shell: it holds the machines, tells the ledger what
//! they want, and wakes those who wait when something changed for them.
//!
//! Promises: the ledger hears of actions in the order in which they were decided. Bounded: scopes
//! that are at rest are forgotten first.
//!
//! Never: holds its lock across an await, or reads a clock other than the ledger's.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tollgate_core::ask::{ScopeId, Settle};
use tollgate_core::backoff::Dice;
use tollgate_core::cooldown::{self, Cooldown, CooldownSettings, ProviderWait};
use tollgate_core::degrade::{Degrade, DegradeSettings, LocalQuota, ProviderQuota};
use tollgate_core::health::{
    Action, Actions, Admission, AttemptResult, BasePace, Class, Health, HealthEvent,
    HealthSettings, HealthState, HealthStatus, Pace,
};
use tollgate_core::limit::{HoldUntil, Rule};
use tollgate_core::problem::Problem;
use tollgate_core::retry::{Budget, BudgetSettings, Decision, FailedAttempt, RetrySettings};
use tollgate_core::scope::ScopeView;
use tollgate_core::time::{Micros, Span};
use tollgate_ledger::Ledger;

use super::scope_capacity::has_capacity;
use crate::event::LogEvent;

/// How often what the ledger says is asked for anew because this process has told it something
/// meanwhile. That happens a few times in an outage; whatever was told last has an echo of its own.
const SYNC_READS_MAX: usize = 8;

/// The machines of one provider.
#[derive(Debug)]
pub(crate) struct ProviderHealth {
    provider: String,
    ledger: Ledger,
    /// Knows what this process has closed, for the time while the store is lost.
    local_ledger: Ledger,
    scope: ScopeId,
    inner: Mutex<Inner>,
    /// What the ledger remembers of before the start is known.
    has_synced: AtomicBool,
    /// Counts the changes that those who wait must hear of.
    version: watch::Sender<u64>,
    /// The timer must be set anew.
    timer_reset: Arc<Notify>,
}

#[derive(Debug)]
struct Inner {
    health: Health,
    /// What the timer was set by last.
    tick: Option<Micros>,
    /// How often the ledger was told something of the health scope.
    updates_sent: u64,
    /// How often it was asked, and which of the answers was heeded last.
    reads_started: u64,
    last_read: u64,
    throttle: ThrottleRules,
    budget: Budget,
    cooldowns: HashMap<ScopeId, Cooldown>,
    degrades: HashMap<ScopeId, Degrade>,
    /// When those at rest are looked for again, of each of the two.
    next_cleanup: [Micros; 2],
    rng: fastrand::Rng,
}

/// The extra pace of this process, as rules.
#[derive(Clone, Debug, Default)]
pub(crate) struct ThrottleRules {
    pub(crate) rate: Option<Arc<Rule>>,
    pub(crate) concurrency: Option<Arc<Rule>>,
}

/// What a call meets.
#[derive(Debug)]
pub(crate) struct HealthView {
    pub(crate) admission: Admission,
    pub(crate) throttle: ThrottleRules,
    /// When.
    pub(crate) at: Micros,
}

impl ProviderHealth {
    /// The machines of one provider, with the health that the ledger remembers. Starts the task
    /// that keeps their timer, so it must be called inside a tokio runtime.
    pub(crate) fn start(
        provider: &str,
        (ledger, spare): (Ledger, Ledger),
        (health, base): (HealthSettings, BasePace),
        budget: &BudgetSettings,
    ) -> Result<Arc<ProviderHealth>, Vec<Problem>> {
        let now = ledger.at();
        let seed = now.0 ^ (u64::from(ledger.owner().0) << 32);
        let scope = health_scope(provider);
        let machine = Arc::new(ProviderHealth {
            provider: provider.to_owned(),
            scope,
            inner: Mutex::new(Inner {
                health: Health::new(health, base, now)?,
                tick: None,
                updates_sent: 0,
                reads_started: 0,
                last_read: 0,
                throttle: ThrottleRules::default(),
                budget: Budget::new(budget, now),
                cooldowns: HashMap::new(),
                degrades: HashMap::new(),
                next_cleanup: [Micros::default(); 2],
                rng: fastrand::Rng::with_seed(seed),
            }),
            has_synced: AtomicBool::new(!ledger.takes_time()),
            version: watch::Sender::new(0),
            timer_reset: Arc::new(Notify::new()),
            ledger,
            local_ledger: spare,
        });
        machine.on_scope_changed();
        tokio::spawn(run_timer(
            Arc::downgrade(&machine),
            machine.timer_reset.clone(),
        ));
        Ok(machine)
    }

    /// The scope that health closes and opens.
    pub(crate) fn scope(&self) -> ScopeId {
        self.scope
    }

    /// Other settings from now on; nothing counted is lost.
    pub(crate) fn configure(
        &self,
        health: HealthSettings,
        base: BasePace,
    ) -> Result<(), Vec<Problem>> {
        let now = self.ledger.at();
        let mut inner = self.inner.lock();
        let actions = inner.health.configure(health, base, now)?;
        self.apply_actions(&mut inner, actions);
        drop(inner);
        self.notify_waiting();
        Ok(())
    }

    /// Something happened to the provider.
    pub(crate) fn on(&self, event: HealthEvent) {
        let mut inner = self.inner.lock();
        let now = self.ledger.at();
        let actions = inner.health.on(event, now);
        self.apply_actions(&mut inner, actions);
    }

    /// The ledger says that the health scope changed: another process, or our own echo. Nobody waits
    /// for a store that takes time; a task does. Must be called inside a tokio runtime.
    pub(crate) fn on_scope_changed(self: &Arc<ProviderHealth>) {
        if self.ledger.takes_time() {
            let machine = self.clone();
            tokio::spawn(async move { machine.sync().await });
        } else {
            // Under the lock, so that it is never older than what we did last.
            let mut inner = self.inner.lock();
            let view = self.ledger.last_seen_scope(self.scope);
            self.apply_shared(&mut inner, view);
        }
    }

    /// Before a call looks at the door: the first one after a start must not meet a provider that looks
    /// new while its ledger knows that it sleeps.
    pub(crate) async fn sync_once(&self) {
        if !self.has_synced.load(Ordering::Acquire) {
            self.sync().await;
            self.has_synced.store(true, Ordering::Release);
        }
    }

    /// Everything that the ledger says of the health scope is known when this returns, unless its
    /// store is lost.
    pub(crate) async fn sync(&self) {
        for _ in 0..SYNC_READS_MAX {
            let (look, told, number) = {
                let mut inner = self.inner.lock();
                inner.reads_started += 1;
                // Asked under the lock: of two who look, the one with the higher number sees more.
                (
                    self.ledger.try_peek_scope(self.scope),
                    inner.updates_sent,
                    inner.reads_started,
                )
            };
            let view = look.await.filter(|_| self.ledger.loss().is_none());
            let Some(view) = view else {
                return; // what we knew is better
            };
            let mut inner = self.inner.lock();
            if number < inner.last_read {
                return;
            }
            // What we did meanwhile may not be in this view.
            if told == inner.updates_sent {
                inner.last_read = number;
                return self.apply_shared(&mut inner, view);
            }
        }
    }

    /// This is what all processes know.
    fn apply_shared(&self, inner: &mut Inner, view: ScopeView) {
        if view == ScopeView::Open {
            self.local_ledger.settle(Settle::Open { scope: self.scope });
        }
        let actions = inner
            .health
            .on(HealthEvent::ScopeChanged(view), self.ledger.at());
        self.apply_actions(inner, actions);
    }

    /// An attempt got its permit. `true`: it is a probe.
    pub(crate) fn on_granted(&self) -> bool {
        let mut inner = self.inner.lock();
        let now = self.ledger.at();
        let actions = inner.health.on(HealthEvent::Granted, now);
        self.apply_actions(&mut inner, actions);
        inner.health.state() == HealthState::HalfOpen
    }

    /// What a call meets now.
    pub(crate) fn view(&self) -> HealthView {
        let inner = self.inner.lock();
        let now = self.ledger.at();
        HealthView {
            admission: inner.health.admission(now),
            throttle: inner.throttle.clone(),
            at: now,
        }
    }

    /// What its health looks like now, for people.
    pub(crate) fn status(&self) -> HealthStatus {
        let inner = self.inner.lock();
        inner.health.status(self.ledger.at())
    }

    /// Hears of changes from now on: a new pace, a door that closed, other settings.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }

    /// Those who wait must look again.
    pub(crate) fn notify_waiting(&self) {
        self.version.send_modify(|version| *version += 1);
    }

    /// An attempt under a cool-down's scope came to its end. Health and cool-down hear of it in one
    /// step: attempts that were on their way when the scope closed are old news to both, and none
    /// slips between them (A4). Returns the rest that begins now.
    pub(crate) fn on_response(
        &self,
        scope: ScopeId,
        answer: AttemptResult,
        rests: Option<&CooldownSettings>,
    ) -> Option<Span> {
        let mut inner = self.inner.lock();
        let now = self.ledger.at();
        let known = inner.cooldowns.get(&scope);
        let event = if known.is_some_and(|known| known.is_outdated(answer.granted)) {
            HealthEvent::CompletedLate(answer)
        } else {
            HealthEvent::Completed(answer)
        };
        let actions = inner.health.on(event, now);
        self.apply_actions(&mut inner, actions);
        match answer.class {
            Class::Limited => self.cool_down(&mut inner, scope, answer, rests?, now),
            Class::Success => {
                if let Some(cooldown) = inner.cooldowns.get_mut(&scope) {
                    cooldown.on_success(answer.granted); // the next rest is a first one again
                }
                None
            }
            Class::ServerError | Class::Network | Class::Other => None,
        }
    }

    /// A call of this scope was refused: it rests for everybody.
    fn cool_down(
        &self,
        inner: &mut Inner,
        scope: ScopeId,
        answer: AttemptResult,
        settings: &CooldownSettings,
        now: Micros,
    ) -> Option<Span> {
        let dice = Dice(inner.rng.u64(..));
        let is_needed = |known: &Cooldown| known.remaining(now).is_some();
        let has_room = has_capacity(
            &mut inner.cooldowns,
            scope,
            &mut inner.next_cleanup[0],
            now,
            is_needed,
        );
        let mut unknown = Cooldown::default();
        let cooldown = if has_room {
            inner.cooldowns.entry(scope).or_default()
        } else {
            &mut unknown
        };
        let told = ProviderWait {
            retry_after: answer.retry_after,
            reset_after: None,
        };
        let rest = cooldown.on_limited(settings, answer.granted, told, dice, now)?;
        self.settle(cooldown::settle(scope, rest));
        Some(rest)
    }

    /// A throw of this provider's dice.
    pub(crate) fn roll_dice(&self) -> Dice {
        Dice(self.inner.lock().rng.u64(..))
    }

    /// What is left of a scope: little means that only the cache is used.
    pub(crate) fn on_remaining(
        &self,
        settings: &DegradeSettings,
        scope: ScopeId,
        theirs: Option<ProviderQuota>,
        ours: LocalQuota,
    ) {
        let mut guard = self.inner.lock();
        let inner = &mut *guard;
        let now = self.ledger.at();
        let is_needed = |known: &Degrade| known.is_on(now);
        if !has_capacity(
            &mut inner.degrades,
            scope,
            &mut inner.next_cleanup[1],
            now,
            is_needed,
        ) {
            return; // its limits hold all the same
        }
        let degrade = inner.degrades.entry(scope).or_default();
        if let Some(theirs) = theirs {
            degrade.on_provider_quota(theirs, ours.period, now);
        }
        let change = degrade.evaluate(settings, ours, now).settle(scope);
        drop(guard);
        if let Some(settle) = change {
            self.settle(settle);
            self.notify_waiting();
        }
    }

    /// An operator ends cool-downs and degrade modes: those named, and on request every other one
    /// that this process knows of. Other processes see the scopes open and follow.
    pub(crate) fn clear_scopes(&self, scopes: &[ScopeId], and_others: bool) {
        let mut inner = self.inner.lock();
        let mut scopes = scopes.to_vec();
        if and_others {
            scopes.extend(inner.cooldowns.keys().chain(inner.degrades.keys()));
        }
        for scope in scopes {
            inner.cooldowns.remove(&scope);
            inner.degrades.remove(&scope);
            self.settle(Settle::Open { scope });
        }
    }

    /// A call is made for the first time.
    pub(crate) fn on_call(&self, settings: &BudgetSettings) {
        let now = self.ledger.at();
        self.inner.lock().budget.on_call(settings, now);
    }

    /// May a failed attempt be made again?
    pub(crate) fn decide_retry(
        &self,
        settings: &RetrySettings,
        failed: &FailedAttempt,
    ) -> Decision {
        let now = self.ledger.at();
        let mut inner = self.inner.lock();
        let dice = Dice(inner.rng.u64(..));
        settings.decide(failed, &mut inner.budget, dice, now)
    }

    /// Does what the health machine wants, in order and under its lock.
    fn apply_actions(&self, inner: &mut Inner, actions: Actions) {
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
                Action::Close { .. } | Action::Open | Action::Failed { .. } | Action::Succeeded => {
                }
                Action::Pace(pace) => {
                    inner.throttle = ThrottleRules::of(pace);
                    concerns_waiting = true;
                }
                Action::Transition { from, to, reason } => {
                    concerns_waiting = true;
                    let provider = &self.provider;
                    let status = &inner.health.status(self.ledger.at());
                    LogEvent::Transition {
                        provider,
                        from,
                        to,
                        reason,
                        status,
                    }
                    .emit();
                }
            }
        }
        if concerns_waiting {
            self.notify_waiting();
        }
    }

    /// Tells both ledgers of a scope. It happens rarely, and nobody knows when the store is lost.
    fn settle(&self, settle: Settle) {
        self.local_ledger.settle(settle.clone());
        self.ledger.settle(settle);
    }

    fn next_tick(&self) -> Option<Span> {
        let mut inner = self.inner.lock();
        let tick = inner.health.next_tick();
        inner.tick = tick;
        drop(inner);
        tick.map(|tick| tick.since(self.ledger.at()))
    }
}

/// The scope that the health of a provider closes and opens.
pub(super) fn health_scope(provider: &str) -> ScopeId {
    ScopeId::named(&[provider, "health"])
}

impl ThrottleRules {
    fn of(pace: Pace) -> ThrottleRules {
        // Both are sane by construction: a gap of at least one microsecond, at least one at a time.
        // The rate holds from the send on: it slows this process down, it is nobody's limit.
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

/// The one timer of a provider's health, until the provider is gone.
async fn run_timer(machine: Weak<ProviderHealth>, poke: Arc<Notify>) {
    loop {
        let Some(pause) = machine.upgrade().map(|machine| machine.next_tick()) else {
            return;
        };
        tokio::select! {
            () = poke.notified() => {}
            () = crate::timer::sleep(pause) => {
                let Some(machine) = machine.upgrade() else { return };
                machine.on(HealthEvent::Tick);
            }
        }
    }
}

impl Drop for ProviderHealth {
    /// Lets the task that keeps time end.
    fn drop(&mut self) {
        self.timer_reset.notify_one();
    }
}
