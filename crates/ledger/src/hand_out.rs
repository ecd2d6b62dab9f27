//! Delivers the verdicts of an offer to the gate that made it.
//!
//! Promises: a permit whose decision is too old to be used, or that nobody takes, is given back.
//!
//! Never: waits.

use tokio::sync::oneshot;
use tollgate_core::ask::{Ask, BlockedBy, GRANT_AGE_MAX, Verdict, WakeOn};
use tollgate_core::batch::QueuedSettle;
use tollgate_core::time::{Micros, Span};

use crate::StoreLost;
use crate::hub::TagId;
use crate::offer::{OfferResult, unsent_settles};
use crate::shared::Shared;

/// A decision this old is not handed out: this process was stopped in between, and the sender must
/// not send later than [`GRANT_AGE_MAX`] after the grant. Half of it is left to the sender.
const STALE_AFTER: Span = Span(GRANT_AGE_MAX.0 / 2);

/// As [`STALE_AFTER`], after a sync: on a slow disk a decision waits for two of them, the one under
/// way and its own. The sender checks the age again before it sends.
const STALE_AFTER_SYNC: Span = Span(GRANT_AGE_MAX.0 / 5 * 4);

/// One decided offer, and where its verdicts go.
#[derive(Debug)]
pub(crate) struct HandOut {
    pub(crate) tag: TagId,
    pub(crate) reply: oneshot::Sender<OfferResult>,
    pub(crate) decided: Vec<(Ask, Verdict)>,
    pub(crate) at: Micros,
}

impl HandOut {
    /// Hands out, unless the decision is too old or nobody takes it.
    pub(crate) fn deliver(self, shared: &Shared) {
        self.deliver_within(STALE_AFTER, shared);
    }

    /// As [`HandOut::deliver`], once it is durable.
    pub(crate) fn deliver_synced(self, shared: &Shared) {
        self.deliver_within(STALE_AFTER_SYNC, shared);
    }

    fn deliver_within(self, stale_after: Span, shared: &Shared) {
        let HandOut {
            tag,
            reply,
            mut decided,
            at,
        } = self;
        if shared.clock.at().since(at) > stale_after {
            give_back(shared, tag, decided.clone());
            decided.iter_mut().for_each(expire_grant);
        }
        if let Err(Ok((_, decided))) = reply.send(Ok((at, decided))) {
            give_back(shared, tag, decided);
        }
    }

    /// The sync failed: nothing is handed out.
    pub(crate) fn fail(self) {
        drop(self.reply.send(Err(StoreLost)));
    }
}

fn give_back(shared: &Shared, tag: TagId, decided: Vec<(Ask, Verdict)>) {
    let at = shared.clock.at();
    for settle in unsent_settles(decided) {
        shared.inbox.settle(tag, QueuedSettle { settle, at });
    }
}

/// Granted too long ago to be used: ask again.
fn expire_grant((ask, verdict): &mut (Ask, Verdict)) {
    if let Verdict::Go { .. } = verdict {
        let by = if ask.terms.is_empty() {
            BlockedBy::Scope(0)
        } else {
            BlockedBy::Term(0)
        };
        *verdict = Verdict::Wait {
            after: Span::ZERO,
            on: WakeOn::Time,
            by,
        };
    }
}
