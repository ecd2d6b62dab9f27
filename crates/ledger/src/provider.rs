//! The ledger as one provider uses it: every ask, settle and peek carries its tag.
//!
//! Promises: asks, settles and peeks of one provider never wait for those of another.
//!
//! Never: blocks.

mod pending;
pub use pending::PendingOffer;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::{broadcast, oneshot};
use tollgate_core::ask::{Ask, CellId, OwnerId, ScopeId, Settle, Verdict};
use tollgate_core::batch::{Batch, QueuedSettle, Settles};
use tollgate_core::limit::{CellView, Rule, Strictness};
use tollgate_core::scope::ScopeView;
use tollgate_core::store_loss::{NodeShare, SHARE_MAX};
use tollgate_core::time::{Micros, Now, Span, Wall};

use crate::front::{Driver, Front};
use crate::hub::TagId;
use crate::inbox::{Offer, PeekRequest};
use crate::shared::close_settle;
use crate::store::{PeekQuery, PeekReply};
use crate::{Event, EventReceiver, Ledger, StoreLoss, StoreLost};

/// Whoever peeks waits this long for the store; past it everything looks used up. Longer than a
/// store waits for its lock: what is seen late is then a disk that hangs.
const PEEK_TIMEOUT: Duration = Duration::from_millis(1_500);

/// A reply that comes from another thread.
type PeekPending = Pin<Box<dyn Future<Output = Option<PeekReply>> + Send>>;

/// The ledger of one provider. Clones are the same handle.
#[derive(Clone, Debug)]
pub struct ProviderLedger {
    provider: Arc<Provider>,
}

#[derive(Debug)]
struct Provider {
    front: Arc<Front>,
    tag: TagId,
    name: Arc<str>,
    events: broadcast::Sender<Event>,
}

impl ProviderLedger {
    pub(crate) fn new(front: Arc<Front>, name: &str) -> ProviderLedger {
        let (tag, name, events) = front.shared.hub.tag(name);
        ProviderLedger {
            provider: Arc::new(Provider {
                front,
                tag,
                name,
                events,
            }),
        }
    }

    fn front(&self) -> &Front {
        &self.provider.front
    }

    /// The tag: the provider's name.
    #[must_use]
    pub fn tag(&self) -> &str {
        &self.provider.name
    }

    /// The whole ledger.
    #[must_use]
    pub fn ledger(&self) -> Ledger {
        Ledger::of(self.provider.front.clone())
    }

    /// Asks for permits, all in one transaction and in this order. If the returned future is
    /// dropped before it is taken, what was granted comes back unsent. Everything settled before is
    /// counted first; an offer without asks completes when it is.
    pub fn offer(&self, asks: Vec<Ask>) -> PendingOffer {
        let front = self.front();
        match &front.driver {
            Driver::Inline(store) => {
                let batch = Batch::now(store.owner(), &[], &asks);
                let decision = front.commit_inline(&self.provider.events, &batch);
                let result = decision.ok_or(StoreLost).map(|decision| {
                    let decided = asks.into_iter().zip(decision.verdicts).collect();
                    (decision.at, decided)
                });
                PendingOffer::ready(self.clone(), result)
            }
            Driver::Thread(_) | Driver::Tasks(_) if front.is_forked() => {
                PendingOffer::ready(self.clone(), Err(StoreLost))
            }
            Driver::Thread(_) | Driver::Tasks(_) => {
                let (reply, receiver) = oneshot::channel();
                let offer = Offer { asks, reply };
                front.shared.inbox.offer(self.provider.tag, offer);
                PendingOffer::waiting(self.clone(), receiver)
            }
        }
    }

    /// Asks for one permit where the verdict is available at once. `None`: this store takes time,
    /// ask with [`ProviderLedger::offer`]. What was granted is the asker's to settle. Also when it
    /// was decided.
    #[must_use]
    pub fn offer_at_once(&self, ask: &Ask) -> Option<(Verdict, Micros)> {
        let front = self.front();
        let Driver::Inline(store) = &front.driver else {
            return None;
        };
        let batch = Batch::now(store.owner(), &[], std::slice::from_ref(ask));
        let mut decision = front.commit_inline(&self.provider.events, &batch)?;
        let verdict = decision.verdicts.pop()?;
        Some((verdict, decision.at))
    }

    /// Nobody of this process waits for these cells any more. Where processes share a ledger, others
    /// are held up for those who wait. Costs a transaction, so it is said only when the last one has
    /// left; who is served or waits on says so by asking.
    pub fn stopped_waiting(&self, cells: &[CellId]) {
        let front = self.front();
        match &front.driver {
            Driver::Inline(store) => {
                let batch = Batch {
                    stopped_waiting: cells,
                    ..Batch::now(store.owner(), &[], &[])
                };
                front.commit_inline(&self.provider.events, &batch);
            }
            Driver::Thread(_) | Driver::Tasks(_) if front.is_forked() => {}
            Driver::Thread(_) | Driver::Tasks(_) => {
                front.shared.inbox.stop_waiting(self.provider.tag, cells);
            }
        }
    }

    /// Reports what happened to a permit or a scope. Never waits and never fails, so that it can be
    /// called from `Drop`. More than 65,536 that wait for a lost store are dropped: a permit's slot
    /// then comes free late, and others do not hear of a failure, or of a scope that closed or opened.
    pub fn settle(&self, settle: Settle) {
        let settle = self.forwarded(&settle).unwrap_or(settle);
        if matches!(self.front().driver, Driver::Inline(_)) {
            return self.settle_inline(&settle);
        }
        self.settle_queued(settle);
    }

    /// As [`ProviderLedger::settle`], for those who need the terms again: a store that decides at
    /// once only looks at them.
    pub fn settle_ref(&self, settle: &Settle) {
        if let Some(settle) = self.forwarded(settle) {
            return self.settle(settle);
        }
        if matches!(self.front().driver, Driver::Inline(_)) {
            return self.settle_inline(settle);
        }
        self.settle_queued(settle.clone());
    }

    /// A settle that concerns cells which others have taken over from, if so.
    fn forwarded(&self, settle: &Settle) -> Option<Settle> {
        self.front().shared.forwarding.forward(settle, || self.at())
    }

    fn settle_inline(&self, settle: &Settle) {
        let front = self.front();
        if front.is_former(settle) {
            return;
        }
        let batch = Batch {
            settles: Settles::Now(std::slice::from_ref(settle)),
            ..Batch::now(front.owner(), &[], &[])
        };
        if front.commit_inline(&self.provider.events, &batch).is_none() {
            // It is written when the store is back.
            let (settle, at) = (settle.clone(), self.at());
            let inbox = &front.shared.inbox;
            inbox.settle(self.provider.tag, QueuedSettle { settle, at });
            front.flush_inline();
        }
    }

    fn settle_queued(&self, settle: Settle) {
        let front = self.front();
        if front.is_forked() {
            return;
        }
        let shared = &front.shared;
        let at = shared.clock.at();
        shared.last_seen.on_settle(&settle, at);
        let queued = QueuedSettle { settle, at };
        shared.inbox.settle(self.provider.tag, queued);
    }

    /// While the store is lost: closes a scope for `closed_for` from the moment at which it is back,
    /// before anything is granted. If it is called again, the last call counts. If the store is
    /// available, it is closed now.
    pub fn close_on_recovery(&self, scope: ScopeId, closed_for: Span) {
        let front = self.front();
        let shared = &front.shared;
        if matches!(front.driver, Driver::Inline(_)) && shared.loss().is_none() {
            return self.settle_inline(&close_settle(scope, closed_for));
        }
        shared.close_on_recovery(self.provider.tag, scope, closed_for);
        front.flush_inline();
    }

    /// This process may use a share of each limit of this provider while the store cannot be reached;
    /// `None`: not any more. Of a store far away all others must know it before.
    pub fn register_share(&self, wanted: Option<NodeShare>) {
        let (front, tag) = (self.front(), self.provider.tag);
        if !matches!(front.driver, Driver::Tasks(_)) {
            return;
        }
        let is_new = front.shared.with_share(tag, |share| {
            std::mem::replace(&mut share.wanted, wanted) != wanted
        });
        if is_new {
            front.shared.inbox.wake(tag);
        }
    }

    /// May this process use its share while the store cannot be reached? Of a store far away only while
    /// the others leave it alone.
    #[must_use]
    pub fn may_use_share(&self) -> bool {
        let front = self.front();
        if !matches!(front.driver, Driver::Tasks(_)) {
            return true;
        }
        let tag = self.provider.tag;
        let registered_at = front.shared.with_share(tag, |share| share.registered_at);
        registered_at.is_some_and(|at| self.at() < at + SHARE_MAX)
    }

    /// How many other nodes may be using their share of each limit, because they are cut off from a
    /// store far away or were killed.
    #[must_use]
    pub fn absent_nodes(&self) -> u32 {
        let shared = &self.front().shared;
        shared.with_share(self.provider.tag, |share| share.absent)
    }

    /// What those who wait for this provider must hear of.
    #[must_use]
    pub fn events(&self) -> EventReceiver {
        EventReceiver::new(self.provider.events.subscribe())
    }

    /// The current state of these limits and scopes, read in one request; takes nothing. The
    /// request is sent at once, after all that was settled before; awaiting the reply blocks
    /// no thread. `None`: it cannot be known now.
    pub fn peek_all(&self, query: PeekQuery) -> impl Future<Output = Option<PeekReply>> + use<> {
        let reply = self.send_peek(query);
        async move {
            match reply {
                Ok(known) => known,
                Err(later) => later.await,
            }
        }
    }

    /// As [`ProviderLedger::peek_all`], for those who only show it: what cannot be known looks used
    /// up, or closed.
    pub fn peek_or_closed(&self, query: PeekQuery) -> impl Future<Output = PeekReply> + use<> {
        let (unknown, reply) = match &self.front().driver {
            Driver::Inline(store) => {
                self.count_peek();
                let known = self.front().peek_inline(&**store, &query);
                let unknown = known.is_none().then(|| unknown_reply(&query));
                (unknown, Ok(known))
            }
            Driver::Thread(_) | Driver::Tasks(_) => {
                (Some(unknown_reply(&query)), self.send_peek(query))
            }
        };
        async move {
            let known = match reply {
                Ok(known) => known,
                Err(later) => later.await,
            };
            known.or(unknown).unwrap_or_default()
        }
    }

    /// As [`ProviderLedger::peek_or_closed`], of limits only.
    pub fn peek(
        &self,
        cells: Vec<(CellId, Arc<Rule>)>,
    ) -> impl Future<Output = Vec<CellView>> + use<> {
        let scopes = Vec::new();
        let reply = self.peek_or_closed(PeekQuery { cells, scopes });
        async move { reply.await.cells }
    }

    /// As [`ProviderLedger::peek`], for those who cannot wait: what is seen goes to `then`, at once
    /// where it is known at once, else on the ledger's own thread, so it must be short and must not
    /// block. If the store is lost, `then` is not called.
    pub fn peek_then(
        &self,
        cells: Vec<(CellId, Arc<Rule>)>,
        then: impl FnOnce(Vec<CellView>) + Send + 'static,
    ) {
        let scopes = Vec::new();
        self.send_peek_then(PeekQuery { cells, scopes }, |reply| then(reply.cells));
    }

    /// The state of a scope; the request is sent at once. A scope that cannot be read looks closed.
    pub fn peek_scope(&self, scope: ScopeId) -> impl Future<Output = ScopeView> + use<> {
        let known = self.try_peek_scope(scope);
        async move { known.await.unwrap_or(ScopeView::Closed { remaining: None }) }
    }

    /// As [`ProviderLedger::peek_scope`], for those to whom "closed" and "cannot be known now" are
    /// not the same; the latter is `None`.
    pub fn try_peek_scope(
        &self,
        scope: ScopeId,
    ) -> impl Future<Output = Option<ScopeView>> + use<> {
        let (cells, scopes) = (Vec::new(), vec![scope]);
        let reply = self.peek_all(PeekQuery { cells, scopes });
        async move { reply.await?.scopes.pop() }
    }

    /// What a scope looked like a moment ago, for what is shown and not decided by it: nobody waits.
    /// Where the store decides at once it is exact; a store that takes time is asked for the next
    /// one who looks, and a scope of which nothing is known yet looks open.
    #[must_use]
    pub fn last_seen_scope(&self, scope: ScopeId) -> ScopeView {
        let front = self.front();
        let (cells, scopes) = (Vec::new(), vec![scope]);
        let query = PeekQuery { cells, scopes };
        if let Driver::Inline(store) = &front.driver {
            let seen = self.front().peek_inline(&**store, &query);
            return seen
                .and_then(|mut seen| seen.scopes.pop())
                .unwrap_or(ScopeView::Open);
        }
        let shared = &front.shared;
        let seen = shared.last_seen.get(scope, shared.clock.at());
        if seen.needs_refresh {
            let weak = Arc::downgrade(shared);
            self.send_peek_then(query, move |mut reply| {
                if let (Some(view), Some(shared)) = (reply.scopes.pop(), weak.upgrade()) {
                    shared.last_seen.record(scope, view, shared.clock.at());
                }
            });
        }
        seen.view
    }

    /// Sends a peek at once. `Ok`: the reply of a store that never blocks; `Err`: a future of the
    /// reply.
    fn send_peek(&self, query: PeekQuery) -> Result<Option<PeekReply>, PeekPending> {
        if let Driver::Inline(store) = &self.front().driver {
            self.count_peek();
            return Ok(self.front().peek_inline(&**store, &query));
        }
        let (reply, receiver) = oneshot::channel();
        self.send_peek_then(query, |seen| drop(reply.send(seen)));
        Err(Box::pin(async move {
            tokio::time::timeout(PEEK_TIMEOUT, receiver)
                .await
                .ok()?
                .ok()
        }))
    }

    /// If the store is lost, `then` is not called.
    fn send_peek_then(&self, query: PeekQuery, then: impl FnOnce(PeekReply) + Send + 'static) {
        let front = self.front();
        self.count_peek();
        match &front.driver {
            Driver::Inline(store) => {
                if let Some(reply) = self.front().peek_inline(&**store, &query) {
                    then(reply);
                }
            }
            Driver::Thread(_) | Driver::Tasks(_)
                if front.is_forked() || front.shared.loss_of(self.provider.tag).is_some() => {}
            Driver::Thread(_) | Driver::Tasks(_) => {
                let request = PeekRequest {
                    query,
                    reply: PeekReply::default(),
                    on_reply: Box::new(then),
                };
                front.shared.inbox.peek(self.provider.tag, request);
            }
        }
    }

    fn count_peek(&self) {
        let peeks_sent = &self.front().shared.peeks_sent;
        peeks_sent.fetch_add(1, Ordering::Relaxed);
    }

    /// An offer takes time to decide: asks that are offered together are cheaper.
    #[must_use]
    pub fn takes_time(&self) -> bool {
        match self.front().driver {
            Driver::Inline(_) => false,
            Driver::Thread(_) | Driver::Tasks(_) => true,
        }
    }

    /// An offer takes a round trip to another host.
    #[must_use]
    pub fn is_far_away(&self) -> bool {
        matches!(self.front().driver, Driver::Tasks(_))
    }

    /// This process among those that share the ledger. Permits carry it.
    #[must_use]
    pub fn owner(&self) -> OwnerId {
        self.front().owner()
    }

    /// Since when this provider cannot reach the store, while it cannot. Cheap enough to ask per call.
    #[must_use]
    pub fn loss(&self) -> Option<StoreLoss> {
        let front = self.front();
        front.loss()?;
        front.shared.loss_of(self.provider.tag)
    }

    /// Why the store cannot be reached, while it cannot: a sentence for people.
    #[must_use]
    pub fn loss_reason(&self) -> Option<String> {
        self.ledger().loss_reason()
    }

    /// The ledger clock, without the wall clock.
    #[must_use]
    pub fn at(&self) -> Micros {
        self.front().shared.clock.at()
    }

    /// The wall clock alone.
    #[must_use]
    pub fn wall(&self) -> Wall {
        self.front().shared.clock.wall()
    }

    /// Both clocks, as this ledger reads them.
    #[must_use]
    pub fn now(&self) -> Now {
        self.front().shared.clock.now()
    }
}

fn unknown_reply(query: &PeekQuery) -> PeekReply {
    let cells = query.cells.iter();
    PeekReply {
        cells: cells.map(|(_, rule)| used_up_view(rule)).collect(),
        scopes: vec![ScopeView::Closed { remaining: None }; query.scopes.len()],
    }
}

/// What a limit looks like of which nothing can be known now.
fn used_up_view(rule: &Rule) -> CellView {
    CellView {
        limit: rule.limit(),
        used: rule.limit(),
        in_flight: 0,
        remaining: 0,
        own_remaining: 0,
        window_age: None,
        reset_after: None,
        strictness: Strictness::default(),
        spreads_low: false,
        low_in: Span::ZERO,
        learned: None,
    }
}
