//! How guards decide in this process: all asks of a decision or none.
//!
//! Promises: asks of configured guards, up to eight, are one step of their table, so nobody ever sees half of a decision.
//! More of them, or limits that descriptors bring along, are several steps; a denied one puts back what the
//! others took, and until then other callers may be denied, never granted, too much.
//!
//! Never: waits.

use smallvec::{SmallVec, smallvec};
use std::sync::atomic::Ordering;
use tollgate_config::config::Limiting;
use tollgate_core::time::Span;
use tollgate_guard::{ASKS_MAX, Ask, GuardTable, KeyView, Outcome};

use super::{
    GuardAsk, GuardDenied, GuardError, GuardVerdict, GuardView, Guards, SWEEP_EVERY, SWEEP_SLOTS,
};

/// More guards than can be decided in one step.
pub(super) fn at_most_as_one(asks: &[GuardAsk]) -> Result<(), GuardError> {
    if asks.len() > ASKS_MAX {
        return Err(GuardError::TooMany(asks.len()));
    }
    Ok(())
}

impl Guards {
    /// Decides at once, all or none.
    pub async fn decide(&self, asks: &[GuardAsk]) -> Result<GuardVerdict, GuardError> {
        at_most_as_one(asks)?;
        Ok(self.decide_any_number(asks).await)
    }

    /// The same for a call, whose own end says that a guard denied it.
    pub async fn decide_for_call(&self, asks: &[GuardAsk]) -> Result<GuardVerdict, GuardError> {
        at_most_as_one(asks)?;
        let verdict = self.try_once(asks).await;
        self.count_denials(asks, &verdict);
        Ok(verdict)
    }

    /// The same without waiting for a store; `None` if guards count in one.
    pub fn decide_in_memory(&self, asks: &[GuardAsk]) -> Option<Result<GuardVerdict, GuardError>> {
        if self.shared.is_some() {
            return None;
        }
        Some(at_most_as_one(asks).map(|()| {
            let mut verdict = self.try_locally(asks);
            self.on_decided(asks, &mut verdict);
            verdict
        }))
    }

    /// Decides at once, all or none, also if they are more than can be decided in one step.
    pub async fn decide_any_number(&self, asks: &[GuardAsk]) -> GuardVerdict {
        let mut verdict = self.try_once(asks).await;
        self.on_decided(asks, &mut verdict);
        verdict
    }

    /// Counts what was denied, and keeps a denial among the last decisions.
    pub(super) fn on_decided(&self, asks: &[GuardAsk], verdict: &mut GuardVerdict) {
        self.count_denials(asks, verdict);
        let waited = verdict.waited;
        if let Some(denied) = &mut verdict.denied
            && let Some(ask) = asks.get(denied.at)
        {
            let now = (self.ledger.at(), self.ledger.wall());
            denied.id = self.denials.keep((ask, denied), waited, now, &self.events);
        }
    }

    /// Counts what was denied, and what would have been.
    pub(super) fn count_denials(&self, asks: &[GuardAsk], verdict: &GuardVerdict) {
        if let Some(denied) = &verdict.denied
            && let Some(ask) = asks.get(denied.at)
        {
            denied.class.tally().on_hit(ask.identifier);
        }
        let denied = verdict.denied.as_ref().map(|denied| (&denied.class, false));
        let shadow = verdict.views.iter().filter(|view| view.would_deny);
        let shadow = shadow.map(|view| (&view.class, true));
        for (class, shadow) in denied.into_iter().chain(shadow) {
            class.on_denial(shadow, self.ledger.at(), &self.events);
        }
    }

    /// Decides where guards count, and counts no denial: it may be tried again.
    pub(super) async fn try_once(&self, asks: &[GuardAsk]) -> GuardVerdict {
        match &self.shared {
            None => self.try_locally(asks),
            Some(shared) => self.try_shared(shared, asks).await,
        }
    }

    /// Decides in this process, and counts no denial.
    pub(super) fn try_locally(&self, asks: &[GuardAsk]) -> GuardVerdict {
        let limiting = self.limiting();
        if asks.is_empty() || limiting == Limiting::Off {
            return GuardVerdict::default();
        }
        self.sweep_a_part();
        let is_shadow = |ask: &GuardAsk| limiting == Limiting::Shadow || ask.class.is_shadow();
        let mut views: SmallVec<[Option<GuardView>; 4]> = smallvec![None; asks.len()];
        let enforced: SmallVec<[usize; ASKS_MAX]> = (0..asks.len())
            .filter(|at| asks.get(*at).is_some_and(|ask| !is_shadow(ask)))
            .collect();
        let denied = match self.empty_peek(asks, &enforced) {
            None => self.take_in_steps(asks, &enforced, &mut views),
            denied => {
                for at in enforced {
                    views[at] = asks.get(at).map(|ask| self.view(ask));
                }
                denied
            }
        };
        for (at, ask) in asks.iter().enumerate().filter(|(_, ask)| is_shadow(ask)) {
            // What is rejected anyway costs a guard in shadow nothing either.
            let is_denied = denied.is_none() && self.take(asks, &[at], &mut views).is_some();
            let view = views.get_mut(at).and_then(Option::take);
            let view = view.unwrap_or_else(|| self.view(ask));
            if let Some(place) = views.get_mut(at) {
                *place = Some(GuardView {
                    would_deny: is_denied,
                    ..view
                });
            }
        }
        GuardVerdict {
            denied,
            views: views.into_iter().flatten().collect(),
            ..GuardVerdict::default()
        }
    }

    /// Takes the tokens of some asks, all or none. Those of one table are decided as one, up to
    /// [`ASKS_MAX`]; a later step that is denied puts back what the earlier ones took. Asks that put
    /// tokens back come last: they pay for nothing in the same decision.
    fn take_in_steps(
        &self,
        asks: &[GuardAsk],
        which: &[usize],
        views: &mut [Option<GuardView>],
    ) -> Option<GuardDenied> {
        let kind = |at: &usize| {
            let ask = asks.get(*at);
            ask.map(|ask| (ask.cost < 0, ask.class.is_override()))
        };
        let mut ordered: SmallVec<[usize; ASKS_MAX]> = SmallVec::from_slice(which);
        ordered.sort_by_key(kind);
        let same_kind = ordered.chunk_by(|one, next| kind(one) == kind(next));
        let mut taken = 0;
        for step in same_kind.flat_map(|same| same.chunks(ASKS_MAX)) {
            let Some(denied) = self.take(asks, step, views) else {
                taken += step.len();
                continue;
            };
            self.put_back(asks, ordered.get(..taken).unwrap_or_default());
            for at in ordered.iter().filter(|at| !step.contains(at)) {
                if let (Some(view), Some(ask)) = (views.get_mut(*at), asks.get(*at)) {
                    *view = Some(self.view(ask));
                }
            }
            return Some(denied);
        }
        None
    }

    /// Puts back what these asks took.
    fn put_back(&self, asks: &[GuardAsk], which: &[usize]) {
        let taken = which.iter().filter_map(|at| asks.get(*at));
        for ask in taken.filter(|ask| ask.cost > 0) {
            let back = Ask {
                cost: -ask.cost,
                ..ask.plain()
            };
            let _seen = self.table_of(ask).take_one_and_view(back, self.now());
        }
    }

    /// Takes the tokens of at most [`ASKS_MAX`] asks of one table, all or none, and notes what remains
    /// of each.
    fn take(
        &self,
        asks: &[GuardAsk],
        which: &[usize],
        views: &mut [Option<GuardView>],
    ) -> Option<GuardDenied> {
        let chosen: SmallVec<[&GuardAsk; ASKS_MAX]> =
            which.iter().filter_map(|at| asks.get(*at)).collect();
        let plain: SmallVec<[Ask<'_>; ASKS_MAX]> = chosen.iter().map(|ask| ask.plain()).collect();
        let mut seen = [KeyView::default(); ASKS_MAX];
        let table = self.table_of(chosen.first()?);
        let outcome = table.take_and_view(&plain, self.now(), &mut seen);
        for ((at, ask), seen) in which.iter().zip(&chosen).zip(&seen) {
            if let Some(view) = views.get_mut(*at) {
                *view = Some(GuardView::new(ask.class.clone(), seen));
            }
        }
        // More than `ASKS_MAX` asks do not come here.
        let (ask, retry_in) = match outcome.ok()? {
            Outcome::Granted { .. } => return None,
            Outcome::Rejected {
                retry_in_ns, ask, ..
            } => (ask, Some(Span(retry_in_ns.get().div_ceil(1_000)))),
            Outcome::Never { ask, .. } => (ask, None),
        };
        let at = *which.get(usize::from(ask))?;
        Some(GuardDenied {
            class: asks.get(at)?.class.clone(),
            at,
            retry_in,
            is_store_lost: false,
            id: None,
        })
    }

    /// An ask that only wants to know whether a token is left, and none is.
    fn empty_peek(&self, asks: &[GuardAsk], which: &[usize]) -> Option<GuardDenied> {
        which.iter().find_map(|at| {
            let ask = asks.get(*at).filter(|ask| ask.cost == 0)?;
            let seen = self
                .table_of(ask)
                .peek(ask.key.local, ask.class.plan(), self.now());
            (seen.remaining() == 0).then(|| GuardDenied {
                class: ask.class.clone(),
                at: *at,
                retry_in: Some(ask.class.next_token_in(&seen)),
                is_store_lost: false,
                id: None,
            })
        })
    }

    pub(super) fn view(&self, ask: &GuardAsk) -> GuardView {
        let seen = self
            .table_of(ask)
            .peek(ask.key.local, ask.class.plan(), self.now());
        GuardView::new(ask.class.clone(), &seen)
    }

    /// Where the tokens of an ask are.
    pub(super) fn table_of(&self, ask: &GuardAsk) -> &GuardTable {
        if ask.class.is_override() {
            self.overrides.table()
        } else {
            self.table()
        }
    }

    /// Evicts keys whose buckets are full again.
    pub(super) fn sweep_a_part(&self) {
        let count = self.decisions.fetch_add(1, Ordering::Relaxed);
        if count.is_multiple_of(SWEEP_EVERY) {
            self.table().sweep(self.now(), SWEEP_SLOTS);
            self.overrides.sweep(self.now());
        }
    }
}
