//! A node's part in a ledger whose store can only compare and replace rows: Postgres, Redis, any
//! store with a compare-and-set.
//!
//! The node keeps the rows that it has seen with their versions, decides on them with `turn`, and
//! sends one request: *if these rows still have these versions, in this epoch and at this time,
//! replace them with these; otherwise send the current ones.* One request per provider is on its
//! way; what is asked meanwhile goes with the next one.
//!
//! Promises: no limit is exceeded, whatever is delayed, lost or repeated, whichever node stops, and
//! however the store's clock steps: every decision that counts has seen its predecessor, frees by
//! the lower bound of the store's time and stamps by the upper one. Owners that wait take turns.
//!
//! Never: reads a clock, sends, or waits. Local time comes in with each call ([`Replica::poll`]);
//! requests, verdicts and the next timer come out.

use std::collections::BTreeMap;

use crate::ask::{Ask, CellId, Outcome, OwnerId, PermitId, ScopeId, Settle, Verdict};
use crate::batch::QueuedSettle;
use crate::time::{Micros, Span, TimeBounds};

mod clock;
mod rules;
mod row;
mod known;
mod settles;
mod batch_rows;
mod decide;

pub use clock::Stamp;
pub use row::{
    Epoch, LONG_PERIOD, Loss, Reply, ReplyOutcome, Request, Row, RowBody, RowKey, SERVED_MAX,
    Served, Version, Waiting,
};
pub use rules::Rules;

use batch_rows::needed;
use clock::{Observed, StoreClock};
use decide::{Decided, Plan};
use known::KnownRows;

/// A grant that is older than this when its reply comes is given back: its call would arrive later
/// than the ledger assumes.
pub const GRANT_AGE_MAX: Span = Span::from_millis(500);

/// After this long without a reply the time is asked for first: by then the bounds are 20 ms apart.
const SILENCE_MAX: Span = Span::from_secs(10);

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
    /// This host has used the provider with this store before: a store that knows nothing of it
    /// was wiped.
    pub knew_provider: bool,
    /// The longest time that a call may be on its way: after rows were lost, calls that nobody
    /// counts may arrive for so long.
    pub late_arrival: Span,
    /// Settles may wait a few round trips for others to go with them.
    pub hold_settles: bool,
    /// The rules of the protocol; tests turn one off.
    pub rules: Rules,
}

/// What to do next.
#[derive(Clone, Debug, Default)]
pub struct ReplicaActions {
    /// Send this to the store.
    pub send: Option<Request>,
    /// Verdicts of asks that were offered.
    pub verdicts: Vec<(PermitId, Verdict)>,
    /// When the request of these verdicts was sent, on the local clock: the age of a grant counts
    /// from then.
    pub granted_at: Option<Micros>,
    /// Cells in which an ask that was rejected earlier may now succeed, or learn its time.
    pub freed: Vec<CellId>,
    /// Scopes that have changed.
    pub changed_scopes: Vec<ScopeId>,
    /// Owners that wait for a cell in which something came free. They are sent the row as well; this
    /// is for stores that cannot.
    pub wakes: Vec<(CellId, Vec<OwnerId>)>,
    /// Poll again at this local time.
    pub wake_at: Option<Micros>,
}

/// One provider's rows as one node knows them.
#[derive(Debug)]
pub struct Replica {
    settings: ReplicaSettings,
    clock: StoreClock,
    epoch: Option<Epoch>,
    rows: KnownRows,
    settles: Vec<QueuedSettle>,
    asks: Vec<Ask>,
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
    decided: Option<Decided>,
    settles: Vec<QueuedSettle>,
    asks: Vec<Ask>,
}

impl Replica {
    /// A node that knows nothing yet.
    #[must_use]
    pub fn new(settings: ReplicaSettings) -> Replica {
        Replica {
            settings,
            clock: StoreClock::new(),
            epoch: None,
            rows: KnownRows::default(),
            settles: Vec::new(),
            asks: Vec::new(),
            in_flight: None,
            batches: 0,
            conflicts: 0,
            not_before: Micros(0),
            done: ReplicaActions::default(),
        }
    }

    /// Asks for permits; each gets a verdict from a later [`Replica::poll`].
    pub fn offer(&mut self, asks: Vec<Ask>) {
        self.asks.extend(asks);
    }

    /// What happened to a permit or a scope, told at this local time.
    pub fn settle(&mut self, settle: Settle, now: Micros) {
        self.settles.push(QueuedSettle { settle, at: now });
    }

    /// Bounds of the store's time; `None` before the first reply.
    #[must_use]
    pub fn bounds(&self, now: Micros) -> Option<TimeBounds> {
        self.clock.bounds(now)
    }

    /// A reply has come. Replies to requests that were given up are ignored.
    pub fn reply(&mut self, reply: Reply, now: Micros) {
        let Some(sent) = self
            .in_flight
            .take_if(|in_flight| in_flight.batch == reply.batch)
        else {
            return;
        };
        let stamp = Stamp {
            stored_at: reply.stored_at,
            sent: sent.sent,
            received: now,
        };
        let step = match self.clock.observe(stamp, !self.settings.rules.notice_steps) {
            Observed::Agrees | Observed::First => {
                self.rows.confirm();
                None
            }
            Observed::Stepped { then, now } => {
                self.rows.stepped(then, now);
                Some((then, now))
            }
        };
        if self.epoch != Some(reply.epoch) {
            self.rows.clear();
        }
        self.epoch = Some(reply.epoch);
        self.rows.note_waiting(&reply.waiting);
        match (reply.outcome, sent.decided) {
            (ReplyOutcome::Replaced, Some(decided)) => {
                self.conflicts = 0;
                for (id, row) in decided.replaced {
                    self.rows.wrote(id, row, step);
                }
                for &cell in &decided.freed {
                    let known = self.rows.get(RowKey::Cell(cell));
                    let waiting = known.map(|known| known.waiting.iter().copied());
                    let others = waiting.into_iter().flatten();
                    let others = others.filter(|owner| *owner != self.settings.owner);
                    self.done.wakes.push((cell, others.collect()));
                }
                self.done.freed.extend(decided.freed);
                self.done.changed_scopes.extend(decided.changed_scopes);
                self.answer(sent.asks, decided.verdicts, sent.sent, now);
            }
            (ReplyOutcome::Replaced, None) => self.put_back(sent.settles, sent.asks),
            (ReplyOutcome::Current(rows), decided) => {
                for (id, row) in rows {
                    self.rows.learn(id, row);
                }
                if decided.is_some_and(|decided| !decided.replaced.is_empty()) {
                    self.back_off(now);
                }
                self.put_back(sent.settles, sent.asks);
            }
        }
        self.rows.note_waiting(&reply.waiting);
        let provider = self.rows.get(RowKey::Provider);
        self.settings.knew_provider |= provider.is_some_and(|known| known.row.is_some());
    }

    /// Rows that another owner has replaced arrived with its wake-up.
    pub fn pushed(&mut self, rows: Vec<(RowKey, Row)>, waiting: &Waiting) {
        for (id, row) in rows {
            match id {
                _ if !self.rows.pushed(id, row) => {}
                RowKey::Cell(cell) => self.done.freed.push(cell),
                RowKey::Scope(scope) => self.done.changed_scopes.push(scope),
                RowKey::Provider => {}
            }
        }
        self.rows.note_waiting(waiting);
    }

    /// Nothing waits to be sent, and nothing is on its way.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.settles.is_empty() && self.asks.is_empty() && self.in_flight.is_none()
    }

    /// The connection says that no reply comes: as if the deadline had passed.
    pub fn give_up(&mut self, now: Micros) {
        if let Some(lost) = self.in_flight.take() {
            self.recover(lost, now);
        }
    }

    /// What to do at this local time.
    pub fn poll(&mut self, now: Micros) -> ReplicaActions {
        let deadline = self.settings.deadline;
        if let Some(late) = self
            .in_flight
            .take_if(|in_flight| now >= in_flight.sent + deadline)
        {
            self.recover(late, now);
        }
        let mut send = None;
        let mut wake_at = None;
        if self.in_flight.is_none() {
            match self.next(now) {
                Next::Nothing => {}
                Next::Later(at) => wake_at = Some(at),
                Next::Send(request) => send = Some(*request),
            }
        }
        let mut actions = std::mem::take(&mut self.done);
        actions.send = send;
        let lost_at = self.in_flight.as_ref().map(|sent| sent.sent + deadline);
        actions.wake_at = wake_at.or(lost_at);
        actions
    }

    fn next(&mut self, now: Micros) -> Next {
        if self.settles.is_empty() && self.asks.is_empty() {
            return Next::Nothing;
        }
        if now < self.not_before {
            return Next::Later(self.not_before);
        }
        let settles_due = match self.settings.hold_settles {
            true => settles::due(&self.settles, self.clock.round_trip()),
            false => now,
        };
        if self.asks.is_empty() && now < settles_due {
            return Next::Later(settles_due);
        }
        let settles = self.settles.iter().map(|queued| &queued.settle);
        let needed = needed(settles, self.asks.iter());
        let is_known = needed.keys().all(|id| self.rows.get(*id).is_some());
        let silence = self.clock.silence(now);
        let bounds = self.clock.bounds(now);
        let (Some(bounds), Some(epoch), true) = (
            bounds.filter(|_| silence.is_some_and(|silence| silence < SILENCE_MAX)),
            self.epoch,
            is_known,
        ) else {
            let read = needed.keys().copied().collect();
            return self.send(
                now,
                Request {
                    read,
                    ..Request::default()
                },
                None,
            );
        };
        let plan = Plan {
            settings: &self.settings,
            base_age: self.clock.age(now),
            round_trip: self.clock.round_trip(),
            shortest_round_trip: self.clock.shortest_round_trip(),
            epoch,
            batch: self.batches + 1,
            local: now,
        };
        let decided = plan.decide(&mut self.rows, &needed, bounds, &self.settles, &self.asks);
        if decided.is_refused_by_drift(bounds, self.clock.shortest_round_trip())
            && silence > Some(self.clock.shortest_round_trip())
        {
            let read = needed.keys().copied().collect();
            let request = Request {
                read,
                ..Request::default()
            };
            return self.send(now, request, None);
        }
        if decided.go_at > now {
            return Next::Later(decided.go_at);
        }
        let can_wait = !self.settles.is_empty() && !decided.has_grant && now < settles_due;
        if decided.waits.is_empty() && (decided.replaced.is_empty() || can_wait) {
            let asks = std::mem::take(&mut self.asks);
            self.answer(asks, decided.verdicts, now, now);
            if can_wait {
                return Next::Later(settles_due);
            }
            // Settles that change nothing are about permits that the ledger no longer holds.
            self.settles.clear();
            return Next::Nothing;
        }
        let request = plan.request(&decided, bounds);
        self.send(now, request, Some(decided))
    }

    fn send(&mut self, now: Micros, mut request: Request, decided: Option<Decided>) -> Next {
        self.batches += 1;
        request.batch = self.batches;
        self.in_flight = Some(InFlight {
            batch: self.batches,
            sent: now,
            decided,
            settles: std::mem::take(&mut self.settles),
            asks: std::mem::take(&mut self.asks),
        });
        Next::Send(Box::new(request))
    }

    /// Verdicts that the store has confirmed. Grants that are too old are given back and asked for
    /// again.
    fn answer(&mut self, asks: Vec<Ask>, verdicts: Vec<Verdict>, sent: Micros, now: Micros) {
        let age = if self.settings.rules.age_from_sent {
            now.since(sent)
        } else {
            Span::ZERO
        };
        for (ask, verdict) in asks.into_iter().zip(verdicts) {
            let is_grant = matches!(verdict, Verdict::Go { .. });
            if is_grant && age > GRANT_AGE_MAX {
                self.settle(unsent(&ask), now);
                self.asks.push(ask);
            } else {
                self.done.verdicts.push((ask.id, verdict));
                self.done.granted_at = Some(sent);
            }
        }
    }

    fn put_back(&mut self, settles: Vec<QueuedSettle>, asks: Vec<Ask>) {
        self.settles.splice(0..0, settles);
        self.asks.splice(0..0, asks);
    }

    /// The request may have been lost, or its reply, or it may still come. The next batch is
    /// decided from the same versions, so only one of the two can be stored; and it first gives
    /// back what the lost one may have granted.
    fn recover(&mut self, lost: InFlight, now: Micros) {
        let granted: Vec<Settle> = match &lost.decided {
            Some(decided) if self.settings.rules.recover_by_write => {
                let both = lost.asks.iter().zip(&decided.verdicts);
                let grants = both.filter(|(_, verdict)| matches!(verdict, Verdict::Go { .. }));
                grants.map(|(ask, _)| unsent(ask)).collect()
            }
            Some(_) | None => Vec::new(),
        };
        self.put_back(lost.settles, lost.asks);
        let given_back = granted.into_iter();
        let given_back = given_back.map(|settle| QueuedSettle { settle, at: now });
        self.settles.extend(given_back);
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

fn unsent(ask: &Ask) -> Settle {
    Settle::Permit {
        id: ask.id,
        terms: ask.terms.clone(),
        scopes: ask.scopes.clone(),
        outcome: Outcome::Unsent,
    }
}

/// Per cell: a number.
type PerCell = BTreeMap<CellId, u64>;
