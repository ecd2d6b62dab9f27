//! What the handles of a ledger, its drivers and the threads of its store share.
//!
//! Promises: while the store is lost, everybody who asks finds the reason; when it is back, scopes
//! that were to be closed are closed before anything is granted. A store far away may be lost for some
//! providers only; the others go on.
//!
//! Never: asks the store.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use tollgate_core::ask::{Reopen, ScopeId, Settle};
use tollgate_core::batch::QueuedSettle;
use tollgate_core::store_loss::NodeShare;
use tollgate_core::time::{Micros, Span};

use crate::cell_forwarding::CellForwarding;
use crate::dead_owners::DeadOwners;
use crate::former_owners::FormerOwners;
use crate::hub::{Hub, TagId};
use crate::inbox::Inbox;
use crate::last_seen::LastSeenScopes;
use crate::lock_order::{RankedMutex, rank};
use crate::store::StoreError;
use crate::{Clock, Event, StoreLoss};

/// Scopes that are closed when the store comes back: one per provider, as many as offers wait.
const CLOSES_MAX: usize = 1_024;

const NOT_LOST: u64 = u64::MAX;

/// A scope that is to be closed when the store is back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecoveryClose {
    pub(crate) tag: TagId,
    scope: ScopeId,
    closed_for: Span,
}

/// A share of each limit of a provider, for while a store far away cannot be reached.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ShareOfLimits {
    pub(crate) wanted: Option<NodeShare>,
    /// When the last registration was sent that the store has.
    pub(crate) registered_at: Option<Micros>,
    /// Other nodes that may use their share now.
    pub(crate) absent: u32,
}

impl RecoveryClose {
    pub(crate) fn settle(self, at: Micros) -> QueuedSettle {
        let settle = close_settle(self.scope, self.closed_for);
        QueuedSettle { settle, at }
    }
}

/// Closes a scope for so long.
pub(crate) fn close_settle(scope: ScopeId, closed_for: Span) -> Settle {
    Settle::Close {
        scope,
        age: Span::ZERO,
        closed_for: Some(closed_for),
        reopen: Reopen::All,
    }
}

/// What handles, drivers and the threads of a store share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) clock: Clock,
    pub(crate) inbox: Inbox,
    pub(crate) hub: Arc<Hub>,
    pub(crate) forwarding: CellForwarding,
    pub(crate) last_seen: LastSeenScopes,
    /// Peeks sent to the store so far.
    pub(crate) peeks_sent: AtomicU64,
    /// Rows of a store far away that could not be believed.
    damaged_rows: AtomicU64,
    /// Held while `lost_at` and `is_final` change: two threads find out about the store.
    loss_reason: RankedMutex<{ rank::LOSS_REASON }, Option<String>>,
    /// When the store was lost, on the ledger's clock; [`NOT_LOST`] while it is there.
    lost_at: AtomicU64,
    /// It does not come back by itself.
    is_final: AtomicBool,
    /// While it is lost: since when for each provider, if not for all. Held after the reason.
    lost_tags: RankedMutex<{ rank::LOST_TAGS }, Option<BTreeMap<TagId, Micros>>>,
    /// When a lost store was tried again last, if nobody but those who ask does so. Held meanwhile.
    pub(crate) recovery_tried_at: RankedMutex<{ rank::RECOVERING }, Option<Micros>>,
    closes_on_recovery: RankedMutex<{ rank::RECOVERY }, BTreeMap<ScopeId, RecoveryClose>>,
    /// Of providers that may use a share of each limit without a store far away.
    shares: Mutex<BTreeMap<TagId, ShareOfLimits>>,
    pub(crate) is_closing: AtomicBool,
    pub(crate) dead: DeadOwners,
    pub(crate) former: FormerOwners,
}

impl Shared {
    pub(crate) fn new(clock: Clock) -> Arc<Shared> {
        Arc::new(Shared {
            clock,
            inbox: Inbox::default(),
            hub: Arc::new(Hub::new()),
            forwarding: CellForwarding::default(),
            last_seen: LastSeenScopes::default(),
            peeks_sent: AtomicU64::new(0),
            damaged_rows: AtomicU64::new(0),
            loss_reason: RankedMutex::default(),
            lost_at: AtomicU64::new(NOT_LOST),
            is_final: AtomicBool::new(false),
            lost_tags: RankedMutex::default(),
            recovery_tried_at: RankedMutex::default(),
            closes_on_recovery: RankedMutex::default(),
            shares: Mutex::default(),
            is_closing: AtomicBool::new(false),
            dead: DeadOwners::default(),
            former: FormerOwners::default(),
        })
    }

    /// So many rows of a store far away could not be believed: their limits count as used up.
    pub(crate) fn on_rows_damaged(&self, rows: u64) {
        self.damaged_rows.fetch_add(rows, Ordering::Relaxed);
        self.hub.broadcast(&Event::Damaged { rows });
    }

    /// How many there were so far.
    pub(crate) fn damaged_rows(&self) -> u64 {
        self.damaged_rows.load(Ordering::Relaxed)
    }

    /// Since when the store cannot be reached, while it cannot.
    pub(crate) fn loss(&self) -> Option<StoreLoss> {
        let since = self.lost_at.load(Ordering::Acquire);
        (since != NOT_LOST).then(|| StoreLoss {
            since: Micros(since),
            is_final: self.is_final.load(Ordering::Acquire),
        })
    }

    /// The same for one provider.
    pub(crate) fn loss_of(&self, tag: TagId) -> Option<StoreLoss> {
        let loss = self.loss()?;
        match &*self.lost_tags.lock() {
            None => Some(loss),
            Some(tags) => tags.get(&tag).map(|since| StoreLoss {
                since: *since,
                ..loss
            }),
        }
    }

    pub(crate) fn loss_reason(&self) -> Option<String> {
        self.loss_reason.lock().clone()
    }

    /// Set before replies are sent, so that a caller that gets `StoreLost` also sees `loss()`. While
    /// it is lost, the last reason counts.
    pub(crate) fn mark_lost(&self, error: &StoreError) {
        let mut reason = self.loss_reason.lock();
        *reason = Some(error.to_string());
        if error.is_final {
            self.is_final.store(true, Ordering::Release);
        }
        let is_new = self.loss().is_none();
        *self.lost_tags.lock() = None;
        if is_new {
            self.lost_at.store(self.clock.at().0, Ordering::Release);
        }
        drop(reason);
        if is_new {
            self.hub.broadcast(&Event::Lost);
        }
    }

    /// It is lost for this provider. Others may still reach it.
    pub(crate) fn mark_lost_for(&self, tag: TagId, error: &StoreError) {
        if error.is_final {
            return self.mark_lost(error);
        }
        let mut reason = self.loss_reason.lock();
        *reason = Some(error.to_string());
        let now = self.clock.at();
        let mut is_new = true;
        {
            let mut tags = self.lost_tags.lock();
            match (&mut *tags, self.loss()) {
                (_, None) => *tags = Some(BTreeMap::from([(tag, now)])),
                (Some(tags), Some(_)) => is_new = !tags.contains_key(&tag),
                (None, Some(_)) => is_new = false,
            }
            if let Some(tags) = &mut *tags {
                tags.entry(tag).or_insert(now);
            }
            if self.loss().is_none() {
                self.lost_at.store(now.0, Ordering::Release);
            }
        }
        drop(reason);
        if is_new {
            self.hub.broadcast(&Event::Lost);
        }
    }

    /// It is back for this provider; where it was lost for all, it is back for all.
    pub(crate) fn mark_recovered_for(&self, tag: TagId) {
        {
            let mut tags = self.lost_tags.lock();
            let others = tags.as_mut().map_or(0, |tags| {
                tags.remove(&tag);
                tags.len()
            });
            if others == 0 {
                drop(tags);
                return self.mark_recovered(&[]);
            }
        }
        let mut closes = self.closes_on_recovery.lock();
        let (due, later) = std::mem::take(&mut *closes)
            .into_iter()
            .partition(|(_, close)| close.tag == tag);
        *closes = later;
        drop(closes);
        let due: BTreeMap<ScopeId, RecoveryClose> = due;
        due.into_values().for_each(|close| self.close_now(close));
        self.hub.broadcast(&Event::Recovered);
    }

    /// Why it does not come back.
    pub(crate) fn failure(&self) -> StoreError {
        StoreError {
            message: self.loss_reason().unwrap_or_default().into(),
            is_final: true,
        }
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.is_final.load(Ordering::Acquire)
    }

    /// The store is back, and these are closed in it. One that has failed for good is not.
    pub(crate) fn mark_recovered(&self, closed: &[RecoveryClose]) {
        // Held until it counts as back: whatever is added later is settled as usual.
        let mut closes = self.closes_on_recovery.lock();
        let mut reason = self.loss_reason.lock();
        if self.has_failed() {
            return;
        }
        for close in closed {
            if closes.get(&close.scope) == Some(close) {
                closes.remove(&close.scope);
            }
        }
        let late = std::mem::take(&mut *closes);
        self.lost_at.store(NOT_LOST, Ordering::Release);
        *self.lost_tags.lock() = None;
        *reason = None;
        drop(reason);
        drop(closes);
        late.into_values().for_each(|close| self.close_now(close));
        self.hub.broadcast(&Event::Recovered);
    }

    /// Closes a scope for so long from the moment at which the store is back: now, if it is.
    pub(crate) fn close_on_recovery(&self, tag: TagId, scope: ScopeId, closed_for: Span) {
        let close = RecoveryClose {
            tag,
            scope,
            closed_for,
        };
        let mut closes = self.closes_on_recovery.lock();
        if self.loss_of(tag).is_none() {
            drop(closes);
            self.close_now(close);
        } else if closes.len() < CLOSES_MAX || closes.contains_key(&scope) {
            closes.insert(scope, close);
        }
    }

    /// Nothing is to be closed for this provider when the store is back: the others know what this
    /// process may have used.
    pub(crate) fn drop_closes_of(&self, tag: TagId) {
        let mut closes = self.closes_on_recovery.lock();
        closes.retain(|_, close| close.tag != tag);
    }

    /// Providers are bounded by the hub.
    pub(crate) fn with_share<T>(
        &self,
        tag: TagId,
        apply: impl FnOnce(&mut ShareOfLimits) -> T,
    ) -> T {
        apply(self.shares.lock().entry(tag).or_default())
    }

    fn close_now(&self, close: RecoveryClose) {
        let settle = close.settle(self.clock.at());
        self.inbox.settle(close.tag, settle);
    }

    /// What is to be closed first when the store is back.
    pub(crate) fn recovery_closes(&self) -> Vec<RecoveryClose> {
        self.closes_on_recovery.lock().values().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inbox::SettleDelay;

    const TAG: TagId = TagId(0);

    fn lost(is_final: bool) -> StoreError {
        StoreError {
            message: "gone".into(),
            is_final,
        }
    }

    fn closes(shared: &Shared) -> usize {
        let work = shared.inbox.next(SettleDelay::Hurry);
        work.tags.iter().map(|tag| tag.settles.len()).sum()
    }

    /// A close that is asked for while the store comes back is neither forgotten nor kept for the
    /// next loss.
    #[test]
    fn a_close_that_comes_while_the_store_recovers_is_settled() {
        let shared = Shared::new(Clock::System);
        shared.mark_lost(&lost(false));
        shared.close_on_recovery(TAG, ScopeId(1), Span::from_secs(1));
        let closed = shared.recovery_closes();
        shared.close_on_recovery(TAG, ScopeId(2), Span::from_secs(1));
        shared.mark_recovered(&closed);
        assert_eq!(closes(&shared), 1);
        shared.close_on_recovery(TAG, ScopeId(3), Span::from_secs(1));
        assert_eq!(closes(&shared), 1);
        assert_eq!(shared.recovery_closes(), []);
    }

    /// One provider's requests failed, and every provider was closed.
    #[test]
    fn a_loss_for_one_provider_is_none_for_others() {
        let shared = Shared::new(Clock::System);
        let other = TagId(1);
        shared.mark_lost_for(TAG, &lost(false));
        assert!(shared.loss().is_some() && shared.loss_of(TAG).is_some());
        assert!(shared.loss_of(other).is_none());
        shared.close_on_recovery(other, ScopeId(1), Span::from_secs(1));
        assert_eq!(closes(&shared), 1, "now");
        shared.mark_lost_for(other, &lost(false));
        shared.close_on_recovery(TAG, ScopeId(1), Span::from_secs(1));
        shared.close_on_recovery(other, ScopeId(2), Span::from_secs(1));
        shared.mark_recovered_for(other);
        assert_eq!(closes(&shared), 1);
        assert!(shared.loss_of(TAG).is_some() && shared.loss_of(other).is_none());
        shared.mark_recovered_for(TAG);
        assert_eq!(closes(&shared), 1);
        assert!(shared.loss().is_none() && shared.loss_reason().is_none());
        // Lost for all, as when it was never reached: whoever reaches it brings it back.
        shared.mark_lost(&lost(false));
        assert!(shared.loss_of(TAG).is_some() && shared.loss_of(other).is_some());
        shared.mark_recovered_for(TAG);
        assert!(shared.loss_of(other).is_none());
    }

    /// The sync thread has found out that the disk failed, the ledger thread has just committed.
    #[test]
    fn a_store_that_failed_for_good_does_not_recover() {
        let shared = Shared::new(Clock::System);
        shared.mark_lost(&lost(true));
        shared.mark_recovered(&[]);
        assert!(shared.loss().is_some_and(|loss| loss.is_final));
        assert!(shared.loss_reason().is_some());
    }
}
