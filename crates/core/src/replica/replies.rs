//! What a node does with a reply, and with rows that others have written.
//!
//! Promises: what a reply says of time is compared first. A batch that was stored is never taken
//! for one that was not.
//!
//! Never: sends. The next [`Replica::poll`] does.

use crate::row::read_waiters;
use crate::time::{Micros, TimeBounds};

use super::clock::{Observed, Stamp, Step};
use super::decide::ProposedWrite;
use super::queue::BatchPart;
use super::row::{Epoch, PastUse, Reply, ReplyOutcome, Row, RowKey, StoredRow, Waiting};
use super::{InFlight, Replica};

impl Replica {
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
        let step = self.observe(stamp);
        // What has lost nothing has the rows that are known, and a step of its clock was noticed.
        if self.epoch != Some(reply.epoch) && !self.settings.durable {
            self.rows.clear();
        }
        self.saw_promotion |= self.epoch.is_some_and(|epoch| epoch != reply.epoch);
        self.epoch = Some(reply.epoch);
        // A request that arrives twice is turned away the second time, and only that reply may come.
        let is_stored = self.stored_batch(&reply.outcome) == Some(sent.batch);
        let is_replaced = matches!(reply.outcome, ReplyOutcome::Replaced) || is_stored;
        self.note_clock(&sent, is_replaced, stamp, (reply.epoch, step.is_some()));
        match (reply.outcome, sent.decided) {
            (ReplyOutcome::Replaced, Some(decided)) => {
                self.replaced(decided, sent.taken, sent.sent, step, now);
            }
            (ReplyOutcome::Replaced, None) => {}
            (ReplyOutcome::Current(rows), Some(decided)) if is_stored => {
                self.replaced(decided, sent.taken, sent.sent, step, now);
                self.learn(&rows, sent.sent, now);
            }
            (ReplyOutcome::Current(rows), decided) => {
                self.noted(decided.as_ref(), sent.sent);
                if decided.is_some_and(|decided| decided.is_outdated_by(&rows)) {
                    self.back_off(now);
                }
                self.learn(&rows, sent.sent, now);
            }
        }
        self.rows.note_waiting(&reply.waiting);
        self.note_incarnation();
        self.compare_clock(stamp);
    }

    /// Keeps the reading of the clock that a reply is, and what the request before it has stored of
    /// earlier ones.
    fn note_clock(
        &mut self,
        sent: &InFlight,
        is_replaced: bool,
        stamp: Stamp,
        (epoch, is_step): (Epoch, bool),
    ) {
        let readings = &mut self.clock_readings;
        if is_replaced && sent.has_clock {
            readings.stored();
        }
        let written = sent.decided.as_ref().filter(|_| is_replaced);
        if let Some(row) = written.and_then(ProposedWrite::provider_row) {
            readings.wrote(row.clock_changes, row.incarnation);
            readings.must_count = false;
        }
        readings.observe(stamp, epoch, is_step);
    }

    /// What is known of the clock counts only for the provider's row as it is.
    fn compare_clock(&mut self, stamp: Stamp) {
        let provider = self.rows.get(RowKey::Provider);
        match provider.map(|known| known.row.as_ref()) {
            Some(Some(Row::Provider(row))) => self.clock_readings.compare(Some(row), stamp),
            Some(_) => self.clock_readings.compare(None, stamp),
            None => {}
        }
    }

    /// Remembers whose contents the store has. Another incarnation is remembered when the loss is in
    /// the provider's row, by whoever noticed it first: until then each decision writes it there.
    fn note_incarnation(&mut self) {
        let provider = self.rows.get(RowKey::Provider);
        let Some(row) = provider.and_then(|known| known.row.as_ref()) else {
            return;
        };
        self.past_use = match (self.past_use, row) {
            (PastUse::Of(known), Row::Provider(row))
                if row.incarnation != Some(known) && !row.loss.is_total() =>
            {
                PastUse::Of(known)
            }
            (known, Row::Provider(row)) => row.incarnation.map_or(known.some(), PastUse::Of),
            (known, _) => known.some(),
        };
    }

    /// Compares the reply's time with the earlier ones.
    fn observe(&mut self, stamp: Stamp) -> Option<Step> {
        match self.clock.observe(stamp, !self.settings.rules.notice_steps) {
            Observed::Agrees | Observed::First => {
                self.rows.confirm();
                None
            }
            Observed::Stepped(step) => {
                self.rows.stepped(step);
                Some(step)
            }
        }
    }

    /// The store has taken a batch.
    fn replaced(
        &mut self,
        decided: ProposedWrite,
        taken: BatchPart,
        sent: Micros,
        step: Option<Step>,
        now: Micros,
    ) {
        self.conflicts = 0;
        self.noted(Some(&decided), sent);
        self.membership.stored(decided.renews, sent);
        for &id in &decided.stops {
            if let Some(known) = self.rows.get_mut(id) {
                (known.noted_until, known.noted_as) = (Micros(0), None);
            }
        }
        for (id, row) in decided.replaced {
            self.rows.wrote(id, row, step, sent);
        }
        self.done.freed.extend(decided.freed);
        self.done.changed_scopes.extend(decided.changed_scopes);
        self.done.saved_for.extend(decided.saved_for);
        let asks = self.queue.stored(taken);
        self.resolve(asks, decided.verdicts, sent, now);
    }

    /// The store has noted what this node waits for, whatever became of the rest.
    fn noted(&mut self, decided: Option<&ProposedWrite>, sent: Micros) {
        let waits = decided.into_iter().flat_map(|decided| &decided.waits);
        for (id, note) in waits {
            if let Some(known) = self.rows.get_mut(*id) {
                let noted = read_waiters(&note.bytes).unwrap_or_default();
                known.noted_as = noted.first().map(|one| (one.priority, one.cost));
                known.noted_until = sent + note.lasts;
            }
        }
    }

    /// The last batch of this process that the store has taken, if the reply says so.
    fn stored_batch(&self, outcome: &ReplyOutcome) -> Option<u64> {
        let ReplyOutcome::Current(rows) = outcome else {
            return None;
        };
        let own = self.own_row();
        let (_, row) = rows.iter().find(|(id, _)| *id == own)?;
        Some(row.as_ref()?.version.batch)
    }

    /// The store's rows as they are.
    fn learn(&mut self, rows: &[(RowKey, Option<StoredRow>)], sent: Micros, now: Micros) {
        let own = self.own_row();
        let shows = self.clock.bounds(now).map_or(Micros(0), |bounds| bounds.hi);
        for (id, row) in rows {
            self.rows.learn(*id, row.as_ref(), sent, shows);
            if let Some(row) = row.as_ref().filter(|_| *id == own) {
                let granted = self.queue.learn_stored(row.version.batch, now);
                for (ask, verdict, sent) in granted {
                    self.done.verdicts.push((ask.id, verdict, sent));
                }
            }
        }
    }

    /// Rows that another owner has replaced arrived with its wake-up.
    pub fn pushed(&mut self, rows: &[(RowKey, StoredRow)], waiting: &Waiting, now: Micros) {
        // By the time the row was written on, and the wake-up took to come.
        let late = self.clock.shortest_round_trip();
        let shows = self.clock.bounds(now).unwrap_or_default();
        let shows = TimeBounds::new(shows.lo - late, shows.hi, shows.wall);
        for (id, row) in rows {
            let is_news = self.rows.pushed(*id, row, shows);
            match id {
                RowKey::Cell(cell) if is_news => self.done.freed.push(*cell),
                // Everybody hears of scopes, also who has never used them.
                RowKey::Scope(scope) => self.done.changed_scopes.push(*scope),
                RowKey::Cell(_) | RowKey::Provider | RowKey::Owner(..) => {}
            }
        }
        self.rows.note_waiting(waiting);
    }
}
