//! Degrade mode of a provider's scopes: the counts are read, the core decides, the ledger hears of it.
//!
//! Promises: they are read after every response, at the end of a permit that nobody reported, and again at
//! the times that the core asks for, so that the mode also ends where no response comes.
//!
//! Never: waits for a ledger that takes time.

use std::collections::HashMap;
use std::sync::Arc;

use tollgate_core::ask::{CellId, ScopeId, Settle};
use tollgate_core::degrade::{Degrade, DegradeSettings, LocalQuota, ProviderQuota};
use tollgate_core::limit::{CellView, Rule};
use tollgate_core::time::{Micros, Span};

use super::health::{Inner, ProviderHealth};
use super::scope_capacity::has_capacity;
use crate::event::Event;

/// How soon counts that could not be read are read again.
const LOOK_AGAIN: Span = Span::from_secs(1);

/// What to read for the degrade mode of one scope.
#[derive(Debug)]
pub(crate) struct DegradeWatch {
    pub(crate) scope: ScopeId,
    pub(crate) provider: Arc<str>,
    pub(crate) entity: Option<Arc<str>>,
    pub(crate) settings: DegradeSettings,
    /// Its limits of calls.
    pub(crate) cells: Vec<(CellId, Arc<Rule>)>,
}

/// The degrade modes of the scopes of one provider.
#[derive(Debug, Default)]
pub(super) struct Degrades {
    pub(super) scopes: HashMap<ScopeId, WatchedDegrade>,
    /// The first time that one of them is read again.
    next_look: Option<Micros>,
    next_cleanup: Micros,
}

#[derive(Debug)]
pub(super) struct WatchedDegrade {
    mode: Degrade,
    watch: Arc<DegradeWatch>,
}

impl Degrades {
    pub(super) fn next_look(&self) -> Option<Micros> {
        self.next_look
    }

    /// Those to be read now. Until they are, they are not due again.
    fn due(&mut self, now: Micros) -> Vec<Arc<DegradeWatch>> {
        if self.next_look.is_none_or(|look| look > now) {
            return Vec::new();
        }
        let mut due = Vec::new();
        let mut next = None;
        for degrade in self.scopes.values() {
            match degrade.mode.next_tick() {
                Some(tick) if tick <= now => {
                    due.push(degrade.watch.clone());
                    // A store that is lost shows nothing: then it is still due.
                    next = earlier(next, now + LOOK_AGAIN);
                }
                Some(tick) => next = earlier(next, tick),
                None => {}
            }
        }
        self.next_look = next;
        due
    }
}

impl ProviderHealth {
    /// Reads the counts of this scope and evaluates them. `theirs`: what a response has just said.
    pub(crate) fn look(self: &Arc<Self>, watch: Arc<DegradeWatch>, theirs: Option<ProviderQuota>) {
        let health = Arc::downgrade(self);
        // The response does not wait for it.
        self.ledger.peek_then(watch.cells.clone(), move |views| {
            if let (Some(health), Some(ours)) = (health.upgrade(), tightest(&watch, &views)) {
                health.on_remaining(&watch, theirs, ours);
            }
        });
    }

    /// Reads the counts of those scopes whose time has come.
    pub(super) fn look_at_due(self: &Arc<Self>) {
        let due = self.inner.lock().degrades.due(self.ledger.at());
        for watch in due {
            self.look(watch, None);
        }
    }

    /// What remains of the provider's quota, or of an entity's: is it little enough for degrade mode?
    fn on_remaining(
        &self,
        watch: &Arc<DegradeWatch>,
        theirs: Option<ProviderQuota>,
        ours: LocalQuota,
    ) {
        let mut guard = self.inner.lock();
        let inner = &mut *guard;
        let now = self.ledger.at();
        let Some((change, was_on, is_on)) = evaluate(inner, watch, theirs, ours, now) else {
            return; // its limits still hold
        };
        let has_look = inner.degrades.next_look.is_some();
        drop(guard);
        if let Some(settle) = change {
            self.settle(settle);
            self.notify_waiting();
        }
        if has_look {
            self.reset_timer();
        }
        if was_on != is_on {
            let theirs = theirs.map_or(u64::MAX, |theirs| theirs.remaining);
            self.emit(Event::Degrade {
                provider: watch.provider.clone(),
                entity: watch.entity.clone(),
                is_on,
                remaining: ours.remaining.min(theirs),
                below: watch.settings.below,
                recover: watch.settings.recover,
            });
        }
    }
}

/// What to tell the ledger, and whether the mode was on and is. `None`: there is no place for one more scope.
fn evaluate(
    inner: &mut Inner,
    watch: &Arc<DegradeWatch>,
    theirs: Option<ProviderQuota>,
    ours: LocalQuota,
    now: Micros,
) -> Option<(Option<Settle>, bool, bool)> {
    let Degrades {
        scopes,
        next_look,
        next_cleanup,
    } = &mut inner.degrades;
    let is_needed = |known: &WatchedDegrade| known.mode.is_on(now);
    if !has_capacity(scopes, watch.scope, next_cleanup, now, is_needed) {
        return None;
    }
    let degrade = scopes.entry(watch.scope).or_insert_with(|| WatchedDegrade {
        mode: Degrade::default(),
        watch: watch.clone(),
    });
    // A new configuration may have other limits.
    degrade.watch = watch.clone();
    let was_on = degrade.mode.is_active();
    if let Some(theirs) = theirs {
        degrade.mode.on_provider_quota(theirs, ours.period, now);
    }
    let change = degrade.mode.evaluate(&watch.settings, ours, now);
    if let Some(tick) = degrade.mode.next_tick() {
        *next_look = earlier(*next_look, tick);
    }
    let is_on = degrade.mode.is_active();
    Some((change.settle(watch.scope), was_on, is_on))
}

/// The count with the least left. The provider's count is judged beside ours, because it ends at another time.
fn tightest(watch: &DegradeWatch, views: &[CellView]) -> Option<LocalQuota> {
    let rules = watch.cells.iter().map(|(_, rule)| rule);
    let (view, rule) = views
        .iter()
        .zip(rules)
        .min_by_key(|(view, _)| view.own_remaining)?;
    Some(LocalQuota {
        remaining: view.own_remaining,
        // Of a bucket the depth is what may remain, not what it gains in a period.
        limit: view.limit.min(rule.max_cost()),
        full_after: view.reset_after,
        period: rule.period(),
    })
}

fn earlier(known: Option<Micros>, tick: Micros) -> Option<Micros> {
    Some(known.map_or(tick, |known| known.min(tick)))
}
