//! A node's part in a ledger whose store can only compare and replace rows: Postgres, Redis, any
//! store with a compare-and-set.
//!
//! The node keeps the rows that it has seen with their versions, decides on them with `core::batch`, and
//! sends one request: *if these rows still have these versions, in this epoch and at this time,
//! replace them with these; otherwise send the current ones.* One request per provider is on its
//! way; what is asked meanwhile goes with the next one. Each request also replaces the process's own
//! row, so that a batch whose reply was lost is recognised and never applied twice.
//!
//! Rows have several types, one for each step: `CellRow`, `ScopeRow`, `ProviderRow` and `OwnerRow`
//! are the contents (`core::row`); `Row` is one of them; [`StoredRow`] is its bytes with a version,
//! as the store has it; `KnownRow` is what this node last saw of it, and how far its times can be
//! trusted; `BatchRow` is a copy that one batch may change.
//!
//! Promises: no limit is exceeded, whatever is delayed, lost or repeated, whichever node stops, and
//! however the store's clock steps: every decision that counts has seen its predecessor, frees by
//! the lower bound of the store's time and stamps by the upper one. Owners that wait take turns.
//!
//! Never: reads a clock, sends, or waits. Local time comes in with each call ([`Replica::poll`]);
//! requests, verdicts and the next timer come out.

use crate::ask::{
    Ask, CellId, Evidence, GRANT_AGE_MAX, OwnerId, PermitId, ScopeId, Settle, Verdict,
};
use crate::batch::QueuedSettle;
use crate::time::{Micros, Now, Span, TimeBounds, Wall};

mod clock;
mod clock_record;
mod rules;
mod row;
mod known;
mod settles;
mod queue;
mod batch_rows;
mod current_rows;
mod decide;
mod waits;
mod share;
mod replies;
mod peek;
#[cfg(test)]
mod known_tests;
#[cfg(test)]
mod promotion_tests;
#[cfg(test)]
mod tests;

pub use clock::Stamp;
pub use clock_record::{ClockRecord, READINGS_MAX};
pub use peek::{PeekRows, peek};
pub use queue::{ASKS_MAX, SETTLES_MAX, SettleCounts};
pub use row::{Epoch, PastUse, Reply, ReplyOutcome, Request, RowKey, StoredRow, WaitNote, Waiting};
pub use rules::Rules;
pub use share::ShareRegistration;

use batch_rows::{NeededRows, ROWS_PER_BATCH, needed};
use clock::StoreClock;
use clock_record::ClockReadings;
use decide::{BatchInput, DecisionContext, ProposedWrite};
use known::KnownRows;
use queue::{BatchPart, Queue, unsent_at};
use share::{Membership, member_rows};

/// After this long without a reply the time is asked for first: by then the bounds are 20 ms apart.
const SILENCE_MAX: Span = Span::from_secs(10);

/// How long a call may be on its way before any ask has said it: the default of `late_arrival`.
const LATE_ARRIVAL: Span = Span::from_secs(5);

/// Conflicts in a row that lengthen the pause further: with 64 owners one of them gets through.
const CONFLICTS_MAX: u64 = 8;

/// What a replica needs to know of its process and its store.
#[derive(Clone, Copy, Debug)]
pub struct ReplicaSettings {
    /// This process among those that share the store.
    pub owner: OwnerId,
    /// A random number of this process.
    pub process: u64,
    /// After this long a request counts as lost.
    pub deadline: Span,
    /// An epoch change loses no row: a promotion of a replica that has everything.
    pub durable: bool,
    /// The rules of the protocol; tests turn one off.
    pub rules: Rules,
}

/// What to do next.
#[derive(Clone, Debug, Default)]
pub struct ReplicaActions {
    /// Send this to the store.
    pub send: Option<Request>,
    /// Verdicts of asks that were offered, and when the request was sent that got them, on the local
    /// clock: the age of a grant counts from then.
    pub verdicts: Vec<(PermitId, Verdict, Micros)>,
    /// Cells in which an ask that was rejected earlier may now succeed, or learn its time.
    pub freed: Vec<CellId>,
    /// Scopes that have changed.
    pub changed_scopes: Vec<ScopeId>,
    /// Owners for whom something is saved up. If one is dead, say so ([`Replica::set_dead`]).
    pub saved_for: Vec<OwnerId>,
    /// So many rows could not be read: their limits count as used up for one period.
    pub damaged_rows: u64,
    /// Poll again at this local time.
    pub wake_at: Option<Micros>,
}

/// One provider's rows as one node knows them.
#[derive(Debug)]
pub struct Replica {
    settings: ReplicaSettings,
    /// Has this host used the provider with this store before? Then one without its rows, or with
    /// those of another incarnation, was wiped.
    past_use: PastUse,
    /// The longest time that a call may be on its way, by the asks so far: after rows were lost,
    /// calls that nobody counts may arrive for so long.
    late_arrival: Option<Span>,
    /// The longest time that a call may take, by the asks so far.
    call_timeout: Span,
    membership: Membership,
    /// Other members that may use their share of the limits now, when it was decided last.
    absent: u32,
    /// There is no share for this node, or none to give up.
    is_refused: bool,
    clock: StoreClock,
    clock_readings: ClockReadings,
    epoch: Option<Epoch>,
    /// The epoch has changed since the first reply: what others used before may be lost, also if this
    /// node has not seen it.
    saw_promotion: bool,
    rows: KnownRows,
    queue: Queue,
    dead: Vec<OwnerId>,
    in_flight: Option<InFlight>,
    batches: u64,
    conflicts: u64,
    not_before: Micros,
    done: ReplicaActions,
}

/// A request on its way.
#[derive(Debug)]
struct InFlight {
    batch: u64,
    sent: Micros,
    /// What it decided; `None`: it only reads.
    decided: Option<ProposedWrite>,
    /// So much of the queue, from its front.
    taken: BatchPart,
    /// It carries what is known of the clock.
    has_clock: bool,
}

impl Replica {
    /// A node that knows nothing yet.
    #[must_use]
    pub fn new(settings: ReplicaSettings) -> Replica {
        Replica {
            settings,
            past_use: PastUse::Never,
            late_arrival: None,
            call_timeout: Span::ZERO,
            membership: Membership::default(),
            absent: 0,
            is_refused: false,
            clock: StoreClock::new(),
            clock_readings: ClockReadings::default(),
            epoch: None,
            saw_promotion: false,
            rows: KnownRows::default(),
            queue: Queue::default(),
            dead: Vec::new(),
            in_flight: None,
            batches: 0,
            conflicts: 0,
            not_before: Micros(0),
            done: ReplicaActions::default(),
        }
    }

    /// What this host knows from before this process started.
    #[must_use]
    pub fn used_before(self, past_use: PastUse) -> Replica {
        Replica { past_use, ..self }
    }

    /// What earlier processes of this host, in this boot, have left of the store's clock
    /// ([`Request::clock`]).
    #[must_use]
    pub fn knows_clock(self, record: ClockRecord) -> Replica {
        Replica {
            clock_readings: ClockReadings::of(record),
            ..self
        }
    }

    /// For how many asks there is room. Offer others later.
    #[must_use]
    pub fn room(&self) -> usize {
        self.queue.room()
    }

    /// Nobody waits for the verdicts of what was asked. What may have been granted comes back.
    pub fn drop_asks(&mut self, now: Micros) {
        self.queue.drop_asks();
        if self.in_flight.is_none() {
            self.queue.remove_dropped(now);
        }
    }

    /// Rows that other owners have replaced may have been missed: nobody is rejected by those that
    /// are known before they were read again.
    pub fn missed_pushes(&mut self) {
        self.rows.clear_notes();
    }

    /// Asks for permits; each gets a verdict from a later [`Replica::poll`].
    pub fn offer(&mut self, asks: Vec<Ask>, now: Micros) {
        let late = asks.iter().map(|ask| match ask.evidence {
            Evidence::Report { late, .. } => late,
            Evidence::None { use_within } => use_within,
        });
        self.late_arrival = self.late_arrival.max(late.max());
        let timeouts = asks.iter().map(|ask| match ask.evidence {
            Evidence::Report { timeout, .. } => timeout,
            Evidence::None { use_within } => use_within,
        });
        self.call_timeout = timeouts.fold(self.call_timeout, Span::max);
        self.queue.offer(asks, now);
    }

    /// What happened to a permit or a scope, reported at this local time.
    pub fn settle(&mut self, settle: Settle, now: Micros) {
        self.queue.settle(QueuedSettle { settle, at: now });
    }

    /// Nobody of this process waits for these cells any more.
    pub fn stop_waiting(&mut self, cells: &[CellId]) {
        self.queue.stop_waiting(cells);
    }

    /// These owners are dead: no capacity is left or saved for them.
    pub fn set_dead(&mut self, owners: Vec<OwnerId>) {
        self.dead = owners;
    }

    /// How many settles were accepted so far, and how many of them are stored.
    #[must_use]
    pub fn settled(&self) -> SettleCounts {
        self.queue.settled()
    }

    /// Bounds of the store's time; `None` before the first reply.
    #[must_use]
    pub fn bounds(&self, now: Micros) -> Option<TimeBounds> {
        self.clock.bounds(now)
    }

    /// The number of the request on its way.
    #[must_use]
    pub fn awaits(&self) -> Option<u64> {
        self.in_flight.as_ref().map(|sent| sent.batch)
    }

    /// This process among those that share the store.
    #[must_use]
    pub fn owner(&self) -> OwnerId {
        self.settings.owner
    }

    /// The key of this process's own row.
    fn own_row(&self) -> RowKey {
        RowKey::Owner(self.settings.owner, self.settings.process)
    }

    /// Nothing waits to be sent, and nothing is on its way.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        let is_leaving = self.membership.is_leaving() && self.membership.due().is_some();
        self.queue.is_empty() && self.in_flight.is_none() && !is_leaving
    }

    /// The connection says that no reply comes: as if the deadline had passed.
    pub fn give_up(&mut self, now: Micros) {
        if let Some(lost) = self.in_flight.take() {
            self.recover(&lost, now);
        }
    }

    /// What to do at this local time.
    ///
    /// Calendar windows open when the store's clock and this node's wall clock both say so: either
    /// may be wrong, and a node that joins cannot see a step of the store's.
    pub fn poll(&mut self, now: Now) -> ReplicaActions {
        let (now, wall) = (now.at, now.wall);
        let deadline = self.settings.deadline;
        if let Some(late) = self
            .in_flight
            .take_if(|in_flight| now >= in_flight.sent + deadline)
        {
            self.recover(&late, now);
        }
        let mut send = None;
        let mut wake_at = None;
        if self.in_flight.is_none() {
            match self.next(now, wall) {
                Next::Nothing => {}
                Next::Later(at) => wake_at = Some(at),
                Next::Send(request) => send = Some(*request),
            }
        }
        let mut actions = std::mem::take(&mut self.done);
        actions.send = send;
        actions.damaged_rows = self.rows.take_damaged();
        let lost_at = self.in_flight.as_ref().map(|sent| sent.sent + deadline);
        actions.wake_at = wake_at.or(lost_at);
        actions
    }

    fn next(&mut self, now: Micros, wall: Wall) -> Next {
        self.queue.remove_dropped(now);
        let is_due = self.membership.due().is_some_and(|due| due <= now);
        let next = match self.queue.is_empty() && !is_due {
            true => Next::Nothing,
            false => self.next_batch(now, wall, is_due),
        };
        if std::mem::take(&mut self.is_refused) {
            self.membership.refuse(now);
        }
        let later = self.membership.due().filter(|due| *due > now);
        match (next, later) {
            (Next::Nothing, Some(due)) => Next::Later(due),
            (Next::Later(at), Some(due)) => Next::Later(at.min(due)),
            (next, _) => next,
        }
    }

    /// `renews`: this node's registration must be renewed.
    fn next_batch(&mut self, now: Micros, wall: Wall, renews: bool) -> Next {
        if now < self.not_before {
            return Next::Later(self.not_before);
        }
        let settles_due = settles::due(self.queue.settles(), self.clock.round_trip());
        let is_unclear = self.queue.is_unclear();
        let can_wait = now < settles_due && !is_unclear && !renews;
        if self.queue.is_only_settles() && can_wait {
            return Next::Later(settles_due);
        }
        let (taken, settles, mut needed) = self.take(now);
        let own = (self.settings.owner, self.settings.process);
        let shows = self.clock.bounds(now).unwrap_or_default();
        // A reply is no older than the deadline.
        let seen_by = now - self.settings.deadline;
        let (members, is_old) = member_rows(&self.rows, own, shows, seen_by);
        needed.extend(members.into_iter().map(|row| (row, None)));
        let is_known = self.rows.touch(needed.keys());
        let silence = self.clock.silence(now);
        let bounds = self.clock.bounds(now);
        let (Some(bounds), Some(epoch), true) = (
            bounds.filter(|_| silence.is_some_and(|silence| silence < SILENCE_MAX)),
            self.epoch,
            is_known && !is_old,
        ) else {
            return self.read(now, &needed);
        };
        let bounds = TimeBounds {
            wall: bounds.wall.min(wall),
            ..bounds
        };
        let shortest = self.clock.shortest_round_trip();
        let plan = DecisionContext {
            settings: &self.settings,
            past_use: self.past_use,
            late_arrival: self.late_arrival.unwrap_or(LATE_ARRIVAL),
            call_timeout: self.call_timeout,
            membership: &self.membership,
            renews,
            base_age: self.clock.age(now),
            clock: &self.clock_readings,
            round_trip: self.clock.round_trip(),
            shortest_round_trip: shortest,
            epoch,
            saw_promotion: self.saw_promotion,
            batch: self.batches + 1,
            local: now,
            is_unclear,
            asked_at: self.queue.asked_at(taken),
            dead: &self.dead,
        };
        let stopped = self.queue.stopped(taken).iter().copied();
        let stopped: Vec<CellId> = stopped
            .filter(|cell| {
                let known = self.rows.get(RowKey::Cell(*cell));
                known.is_some_and(|known| known.is_readable(epoch))
            })
            .collect();
        let input = BatchInput {
            settles: &settles,
            asks: self.queue.asks(taken),
            stopped: &stopped,
        };
        let decided = plan.decide(&mut self.rows, &needed, bounds, input);
        self.absent = decided.absent;
        let is_nothing = self.membership.renews() || decided.replaced.is_empty();
        self.is_refused = renews && !decided.renews && is_nothing;
        if decided.is_rejected_by_drift(bounds, shortest) && silence > Some(shortest) {
            return self.read(now, &needed);
        }
        if decided.go_at > now {
            return Next::Later(decided.go_at);
        }
        let can_wait = can_wait && taken.settles > 0 && !decided.has_grant;
        if !decided.must_ask && (decided.replaced.is_empty() || can_wait) {
            return self.resolve_locally(decided, taken, can_wait.then_some(settles_due), now);
        }
        let request = plan.request(&decided, bounds);
        self.send(now, request, Some(decided), taken)
    }

    /// What of the queue goes into the next batch: as much as its rows allow.
    fn take(&self, now: Micros) -> (BatchPart, Vec<Settle>, NeededRows) {
        let mut taken = self.queue.next();
        loop {
            let settles = self.queue.aged_settles(taken, now);
            let input = BatchInput {
                settles: &settles,
                asks: self.queue.asks(taken),
                stopped: self.queue.stopped(taken),
            };
            let mut needed = needed(&input.batch(self.settings.owner, &[]));
            needed.insert(self.own_row(), None);
            if needed.len() <= ROWS_PER_BATCH || taken.is_small() {
                return (taken, settles, needed);
            }
            taken = taken.smaller();
        }
    }

    /// Nothing has to be written for these verdicts, or not yet: settles may wait for others to go
    /// with them.
    fn resolve_locally(
        &mut self,
        decided: ProposedWrite,
        taken: BatchPart,
        settles_due: Option<Micros>,
        now: Micros,
    ) -> Next {
        self.done.saved_for.extend(decided.saved_for);
        let asks = self.queue.take_asks(taken);
        self.resolve(asks, decided.verdicts, now, now);
        if let Some(due) = settles_due {
            return Next::Later(due);
        }
        // Settles that change nothing are about permits that the ledger no longer holds.
        self.queue.drop_settles(taken.settles);
        self.queue.drop_stopped(taken.stopped);
        match self.queue.is_empty() {
            true => Next::Nothing,
            false => Next::Later(now),
        }
    }

    /// Asks for rows that are not known, and for the time.
    fn read(&mut self, now: Micros, needed: &NeededRows) -> Next {
        let request = Request {
            owner: self.settings.owner,
            read: needed.keys().copied().collect(),
            ..Request::default()
        };
        self.send(now, request, None, BatchPart::default())
    }

    fn send(
        &mut self,
        now: Micros,
        mut request: Request,
        decided: Option<ProposedWrite>,
        taken: BatchPart,
    ) -> Next {
        self.batches += 1;
        request.batch = self.batches;
        self.in_flight = Some(InFlight {
            batch: self.batches,
            sent: now,
            decided,
            taken,
            has_clock: request.clock.is_some(),
        });
        Next::Send(Box::new(request))
    }

    /// Verdicts that the store has confirmed. Grants that are too old are given back and asked for
    /// again.
    fn resolve(
        &mut self,
        asks: Vec<(Ask, bool)>,
        verdicts: Vec<Verdict>,
        sent: Micros,
        now: Micros,
    ) {
        let age = match self.settings.rules.age_from_sent {
            true => now.since(sent),
            false => Span::ZERO,
        };
        for ((ask, is_dropped), verdict) in asks.into_iter().zip(verdicts) {
            let is_grant = matches!(verdict, Verdict::Go { .. });
            if is_grant && (is_dropped || age > GRANT_AGE_MAX) {
                self.queue.settle(unsent_at(&ask, now));
            }
            if is_dropped {
                continue;
            } else if is_grant && age > GRANT_AGE_MAX {
                self.queue.offer(vec![ask], now);
            } else {
                self.done.verdicts.push((ask.id, verdict, sent));
            }
        }
    }

    /// The request may have been lost, or its reply, or it may still come. The next batch is
    /// decided from the same versions, so only one of the two can be stored; this process's own row
    /// tells which. It first gives back what the lost one may have granted.
    fn recover(&mut self, lost: &InFlight, now: Micros) {
        if let Some(decided) = &lost.decided
            && !decided.replaced.is_empty()
            && self.settings.rules.recover_by_write
        {
            let (batch, taken) = (lost.batch, lost.taken);
            self.queue.lost(batch, lost.sent, taken, &decided.verdicts);
        }
        self.back_off(now);
    }

    /// After a conflict: a pause that differs between owners and grows with each conflict.
    fn back_off(&mut self, now: Micros) {
        self.conflicts = (self.conflicts + 1).min(CONFLICTS_MAX);
        let mixed = (self.settings.process ^ self.batches.rotate_left(32))
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            >> 33;
        let slots = mixed % (self.conflicts + 1);
        self.not_before = now + Span(self.clock.round_trip().0 / 2 * slots);
    }
}

enum Next {
    Nothing,
    Later(Micros),
    Send(Box<Request>),
}
