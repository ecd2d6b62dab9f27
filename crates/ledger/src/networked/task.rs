//! The task of one provider: its replica, the request in flight, and the offers and peeks that wait
//! for replies.
//!
//! Promises: one request in flight, with a deadline, and at most one peek. An offer made while the
//! store is lost gets `StoreLost`, and settles are sent when it is back.
//!
//! Never: holds a lock while it waits.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;

use tollgate_core::ask::{Ask, OwnerId, Verdict};
use tollgate_core::batch::BatchResult;
use tollgate_core::replica::{
    PeekRows, Replica, ReplicaActions, Reply, Request, RowKey, ShareRegistration, peek,
};
use tollgate_core::time::{Micros, Span};

use super::undecided_offers::UndecidedOffers;
use super::{NetworkedSettings, RowStore, TagSlot, pause};
use crate::hub::TagId;
use crate::inbox::PeekRequest;
use crate::shared::Shared;
use crate::store::{LOST_RETRY, Liveness, PeekReply, StoreError};

/// How long a task continues after the last handle is dropped, to write queued settles.
const CLOSE_WITHIN: Span = Span::from_secs(5);

/// Dead owners that are remembered: about as many as a row has waiters. Past that the one found
/// first goes; if it still matters, it is found dead again.
const DEAD_MAX: usize = 64;

/// A reply that is to come.
type Exchange = Pin<Box<dyn Future<Output = Result<Reply, StoreError>> + Send>>;

/// The task of one provider.
pub(super) struct TagTask<R> {
    tag: TagId,
    name: Arc<str>,
    shared: Arc<Shared>,
    slot: Arc<TagSlot>,
    store: Arc<R>,
    settings: NetworkedSettings,
    replica: Replica,
    undecided_offers: UndecidedOffers,
    request: Option<RequestInFlight>,
    /// Peeks, each to be sent when so many settles are stored.
    waiting_peeks: VecDeque<(u64, PeekRequest)>,
    peek_in_flight: Option<PeekInFlight>,
    /// A read that checks whether a lost store is back.
    trial: Option<(Micros, Exchange)>,
    /// Since when requests get no reply.
    failing_since: Option<Micros>,
    /// The last of them had to be durable, which may take another way: the store is back when that
    /// one works.
    failed_durable: bool,
    tried_at: Micros,
    closing_since: Option<Micros>,
    /// Owners that were found dead, the one found first in front: no capacity is left or saved for
    /// them.
    dead: Vec<OwnerId>,
}

/// A request of the replica in flight.
struct RequestInFlight {
    batch: u64,
    must_be_durable: bool,
    reply: Exchange,
}

/// A peek in flight.
struct PeekInFlight {
    asked: PeekRequest,
    since: Micros,
    sent: Micros,
    reply: Exchange,
}

/// What has happened.
enum TaskEvent {
    Reply(Result<Reply, StoreError>),
    Peeked(Result<Reply, StoreError>),
    Trial(Result<Reply, StoreError>),
    Other,
}

impl<R: RowStore> TagTask<R> {
    pub(super) fn new(
        tag: TagId,
        shared: Arc<Shared>,
        slot: Arc<TagSlot>,
        store: Arc<R>,
        settings: NetworkedSettings,
    ) -> TagTask<R> {
        let name = shared.hub.name(tag);
        let mut replica = Replica::new(settings.replica).used_before(store.past_use(&name));
        if let Some(record) = store.known_clock(&name) {
            replica = replica.knows_clock(record);
        }
        TagTask {
            tag,
            slot,
            settings,
            replica,
            store,
            name,
            undecided_offers: UndecidedOffers::default(),
            request: None,
            waiting_peeks: VecDeque::new(),
            peek_in_flight: None,
            trial: None,
            failing_since: None,
            failed_durable: false,
            tried_at: Micros(0),
            closing_since: None,
            dead: Vec::new(),
            shared,
        }
    }

    /// Works until the last handle is gone and every settle is stored.
    pub(super) async fn run(mut self) {
        loop {
            let both = self.shared.clock.now();
            let now = both.at;
            self.take_pushes(now);
            self.take_work(now);
            self.check_dead(&[]);
            self.check_share(now);
            let actions = self.replica.poll(both);
            let wake_at = self.act(actions, now);
            self.note_share();
            if self.is_over(now) {
                self.undecided_offers.fail();
                return;
            }
            match self.wait(wake_at, now).await {
                TaskEvent::Reply(reply) => self.on_reply(reply),
                TaskEvent::Peeked(reply) => self.on_peek_reply(reply),
                TaskEvent::Trial(reply) => self.on_trial(reply),
                TaskEvent::Other => {}
            }
        }
    }

    fn is_lost(&self) -> bool {
        self.shared.loss_of(self.tag).is_some()
    }

    /// Whether this node may use a share without the store, and whether it has lost it.
    fn check_share(&mut self, now: Micros) {
        let is_closing = self.shared.is_closing.load(Ordering::Acquire);
        let wanted = self.shared.with_share(self.tag, |share| share.wanted);
        let wanted = wanted.filter(|_| !is_closing);
        let node = || self.store.node().unwrap_or(self.settings.replica.process);
        let registration = wanted.map(|share| ShareRegistration {
            node: node(),
            nodes: share.nodes,
            lease: share.lease,
        });
        self.replica.register_share(registration);
        self.replica.set_cut_off(self.is_lost(), now);
    }

    fn note_share(&self) {
        let (registered_at, absent) = (self.replica.registered_at(), self.replica.absent());
        self.shared.with_share(self.tag, |share| {
            (share.registered_at, share.absent) = (registered_at, absent);
        });
    }

    /// Rows that other owners have written.
    fn take_pushes(&mut self, now: Micros) {
        let pushes = self.slot.take_pushes();
        for (rows, waiting) in pushes.rows {
            self.replica.pushed(&rows, &waiting, now);
        }
        if pushes.is_missed {
            self.replica.missed_pushes();
        }
    }

    /// What waits in the inbox, as far as the replica has room for it.
    fn take_work(&mut self, now: Micros) {
        let is_lost = self.is_lost();
        let replica = &mut self.replica;
        let work = self.shared.inbox.take_tag(self.tag, replica.room());
        for queued in work.settles {
            replica.settle(queued.settle, queued.at);
        }
        replica.stop_waiting(&work.stopped_waiting);
        let accepted = replica.settled().accepted;
        // Whoever has gone already needs no permit.
        for offer in work.offers.into_iter().filter(|one| !one.reply.is_closed()) {
            replica.offer(offer.asks.clone(), now);
            self.undecided_offers.add(offer, accepted, now);
        }
        if is_lost {
            replica.drop_asks(now);
            self.undecided_offers.fail();
        } else {
            self.waiting_peeks
                .extend(work.peeks.into_iter().map(|one| (accepted, one)));
        }
    }

    /// Does what the replica says. Returns when to poll it again.
    fn act(&mut self, actions: ReplicaActions, now: Micros) -> Option<Micros> {
        let awaited = self.replica.awaits();
        let late = self.request.take_if(|one| awaited != Some(one.batch));
        if let Some(late) = late {
            // Its deadline has passed.
            self.failed_durable = late.must_be_durable;
            self.on_failure(&no_reply(self.settings.replica.deadline), now);
        }
        if let Some(request) = actions.send {
            self.tried_at = now;
            self.request = Some(RequestInFlight {
                batch: request.batch,
                must_be_durable: request.must_be_durable,
                reply: self.exchange(request),
            });
        }
        for (id, verdict, sent) in actions.verdicts {
            self.undecided_offers.decide(id, verdict, sent);
        }
        let settled = self.replica.settled().stored;
        for hand_out in self.undecided_offers.take_decided(self.tag, settled) {
            let (asks, verdicts): (Vec<Ask>, Vec<Verdict>) =
                hand_out.decided.iter().cloned().unzip();
            self.shared.hub.record_waiting(self.tag, &asks, &verdicts);
            hand_out.deliver_synced(&self.shared);
        }
        self.check_dead(&actions.saved_for);
        if actions.damaged_rows > 0 {
            self.shared.on_rows_damaged(actions.damaged_rows);
        }
        let mut decision = BatchResult {
            freed: actions.freed,
            changed_scopes: actions.changed_scopes,
            ..BatchResult::default()
        };
        self.shared.hub.decided_for_tag(self.tag, &mut decision);
        self.send_next_peek(settled, now);
        self.try_again(now);
        actions.wake_at
    }

    /// Adds those of these owners that are dead. An owner that is alive again (its lease had lapsed)
    /// is removed, and served as before.
    fn check_dead(&mut self, saved_for: &[OwnerId]) {
        let is_dead = |owner: &OwnerId| self.store.liveness(*owner) == Liveness::Dead;
        let before = self.dead.clone();
        self.dead.retain(is_dead);
        for owner in saved_for {
            if is_dead(owner) && !self.dead.contains(owner) {
                self.dead.push(*owner);
            }
        }
        let excess = self.dead.len().saturating_sub(DEAD_MAX);
        self.dead.drain(..excess);
        if self.dead != before {
            self.replica.set_dead(self.dead.clone());
        }
    }

    fn exchange(&self, request: Request) -> Exchange {
        let (store, name) = (self.store.clone(), self.name.clone());
        Box::pin(async move { store.exchange(&name, request).await })
    }

    /// Sends the next peek, once the settles before it are stored; and sends one again that got
    /// no reply.
    fn send_next_peek(&mut self, settled: u64, now: Micros) {
        let deadline = self.settings.replica.deadline;
        let late = |one: &mut PeekInFlight| now >= one.sent + deadline;
        let mut next = self
            .peek_in_flight
            .take_if(late)
            .map(|one| (one.since, one.asked));
        // Dropped without a reply: what it asked about cannot be known.
        drop(next.take_if(|(since, _)| now >= *since + self.settings.lost_after));
        let is_due = |(after, _): &mut (u64, PeekRequest)| *after <= settled;
        if self.peek_in_flight.is_none() && next.is_none() {
            next = self
                .waiting_peeks
                .pop_front_if(is_due)
                .map(|(_, asked)| (now, asked));
        }
        if let Some((since, asked)) = next {
            let request = peek_rows(&asked).request();
            self.peek_in_flight = Some(PeekInFlight {
                asked,
                since,
                sent: now,
                reply: self.exchange(request),
            });
        }
    }

    /// While the store is lost and nothing is queued for it: checks whether it is back.
    fn try_again(&mut self, now: Micros) {
        let deadline = self.settings.replica.deadline;
        drop(self.trial.take_if(|(sent, _)| now >= *sent + deadline));
        let is_idle = self.request.is_none() && self.trial.is_none();
        if self.is_lost() && is_idle && now >= self.tried_at + LOST_RETRY {
            self.tried_at = now;
            let request = Request {
                read: vec![RowKey::Provider],
                must_be_durable: self.failed_durable,
                ..Request::default()
            };
            self.trial = Some((now, self.exchange(request)));
        }
    }

    fn on_reply(&mut self, reply: Result<Reply, StoreError>) {
        let now = self.shared.clock.at();
        let sent = self.request.take();
        match reply {
            Ok(reply) => {
                self.replica.reply(reply, now);
                self.on_success(None);
            }
            Err(error) => {
                self.replica.give_up(now);
                self.failed_durable = sent.is_some_and(|sent| sent.must_be_durable);
                self.on_failure(&error, now);
            }
        }
    }

    fn on_peek_reply(&mut self, reply: Result<Reply, StoreError>) {
        let reply = match reply {
            Ok(reply) => reply,
            Err(error) => {
                // As if the reply were lost: it is sent again at its deadline.
                if let Some(one) = &mut self.peek_in_flight {
                    one.reply = Box::pin(std::future::pending());
                }
                return self.on_failure(&error, self.shared.clock.at());
            }
        };
        let Some(PeekInFlight { mut asked, .. }) = self.peek_in_flight.take() else {
            return;
        };
        if let Some((cells, scopes)) = peek(peek_rows(&asked), &reply) {
            asked.reply = PeekReply { cells, scopes };
            (asked.on_reply)(asked.reply);
        }
    }

    fn on_trial(&mut self, reply: Result<Reply, StoreError>) {
        self.trial = None;
        match reply {
            Ok(reply) => self.on_success(Some(&reply)),
            Err(error) => self.on_failure(&error, self.shared.clock.at()),
        }
    }

    /// `trial`: the reply that shows that the store is back, if the replica does not have it.
    fn on_success(&mut self, trial: Option<&Reply>) {
        self.failing_since = None;
        self.failed_durable = false;
        if self.is_lost() {
            if self.replica.is_registered(trial) {
                self.shared.drop_closes_of(self.tag);
            }
            // What is to be closed first is in the inbox before anybody can ask.
            self.shared.mark_recovered_for(self.tag);
        }
    }

    fn on_failure(&mut self, error: &StoreError, now: Micros) {
        let deadline = self.settings.replica.deadline;
        let since = *self.failing_since.get_or_insert(now - deadline);
        // Where it is lost for others already, this is no accident of the network.
        let is_lost_elsewhere = self.shared.loss().is_some();
        if now >= since + self.settings.lost_after || error.is_final || is_lost_elsewhere {
            self.shared.mark_lost_for(self.tag, error);
            self.replica.drop_asks(now);
            self.undecided_offers.fail();
            self.waiting_peeks.clear();
        }
    }

    /// Is nobody there any more, and everything stored?
    fn is_over(&mut self, now: Micros) -> bool {
        if !self.shared.is_closing.load(Ordering::Acquire) {
            return false;
        }
        let since = *self.closing_since.get_or_insert(now);
        self.replica.is_idle() || now >= since + CLOSE_WITHIN
    }

    /// Waits for whatever comes first.
    async fn wait(&mut self, wake_at: Option<Micros>, now: Micros) -> TaskEvent {
        let deadline = self.settings.replica.deadline;
        let timers = [
            wake_at,
            self.peek_in_flight.as_ref().map(|one| one.sent + deadline),
            self.trial.as_ref().map(|(sent, _)| *sent + deadline),
            self.is_lost().then(|| self.tried_at.max(now) + LOST_RETRY),
            self.closing_since.map(|since| since + CLOSE_WITHIN),
        ];
        let until = timers.into_iter().flatten().min();
        let sleep = async {
            match until {
                Some(at) => pause(Duration::from_micros(at.since(now).0)).await,
                None => std::future::pending().await,
            }
        };
        let woken = self.slot.wake.notified();
        let (mut sleep, mut woken) = (std::pin::pin!(sleep), std::pin::pin!(woken));
        let (request, peek_in_flight, trial) =
            (&mut self.request, &mut self.peek_in_flight, &mut self.trial);
        std::future::poll_fn(|context| {
            if let Some(RequestInFlight { reply, .. }) = request
                && let Poll::Ready(reply) = reply.as_mut().poll(context)
            {
                return Poll::Ready(TaskEvent::Reply(reply));
            }
            if let Some(PeekInFlight { reply, .. }) = peek_in_flight
                && let Poll::Ready(reply) = reply.as_mut().poll(context)
            {
                return Poll::Ready(TaskEvent::Peeked(reply));
            }
            if let Some((_, reply)) = trial
                && let Poll::Ready(reply) = reply.as_mut().poll(context)
            {
                return Poll::Ready(TaskEvent::Trial(reply));
            }
            let is_woken = woken.as_mut().poll(context).is_ready();
            match is_woken || sleep.as_mut().poll(context).is_ready() {
                true => Poll::Ready(TaskEvent::Other),
                false => Poll::Pending,
            }
        })
        .await
    }
}

fn peek_rows(asked: &PeekRequest) -> PeekRows<'_> {
    PeekRows {
        cells: &asked.query.cells,
        scopes: &asked.query.scopes,
    }
}

fn no_reply(deadline: Span) -> StoreError {
    let message = format!(
        "the store did not respond within {deadline}; check that it runs and can be reached from this host"
    );
    StoreError {
        message: message.into(),
        is_final: false,
    }
}
