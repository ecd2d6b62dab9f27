//! One batch, decided on the rows that are known.
//!
//! Promises: `core::batch::decide`, as for every other ledger. Where others wait, an owner lets
//! those go first that go before it: it waits a while for each of them.
//!
//! Never: holds back when nobody else waits.

use crate::ask::{Ask, CellId, Outcome, OwnerId, ScopeId, Settle, Verdict};
use crate::batch::{Batch, BatchResult, Settles, decide};
use crate::fairness::{Rows, TURN, turns_before, turns_tolerance};
use crate::row::{Incarnation, OwnerRow, ProviderRow, RowMeta, RowVersion};
use crate::time::{Micros, Span, TimeBounds};

use super::ReplicaSettings;
use super::batch_rows::{BatchRows, NeededRows};
use super::clock_record::{ClockReadings, ClockRecord};
use super::known::KnownRows;
use super::row::{Epoch, PastUse, Request, Row, RowKey, StoredRow, WaitNote};
use super::share::Membership;
use super::waits::stops;

/// How much longer than usual a request may take before the store turns it away: a later one could
/// hide a step of the clock.
const TRANSIT_SLACK: Span = Span::from_millis(5);

/// What a decision depends on besides rows, settles and asks.
#[derive(Clone, Copy, Debug)]
pub(super) struct DecisionContext<'a> {
    pub(super) settings: &'a ReplicaSettings,
    pub(super) past_use: PastUse,
    pub(super) late_arrival: Span,
    pub(super) call_timeout: Span,
    pub(super) membership: &'a Membership,
    /// This process's own row must be written, because it says that this node is there.
    pub(super) renews: bool,
    pub(super) base_age: Span,
    pub(super) clock: &'a ClockReadings,
    pub(super) round_trip: Span,
    pub(super) shortest_round_trip: Span,
    pub(super) epoch: Epoch,
    /// This node had a reply in an earlier epoch.
    pub(super) saw_promotion: bool,
    pub(super) batch: u64,
    pub(super) local: Micros,
    /// It is open what became of an earlier request.
    pub(super) is_unclear: bool,
    /// Since when the asks wait.
    pub(super) asked_at: Micros,
    pub(super) dead: &'a [OwnerId],
}

/// What goes into a batch.
#[derive(Clone, Copy, Debug)]
pub(super) struct BatchInput<'a> {
    pub(super) settles: &'a [Settle],
    pub(super) asks: &'a [Ask],
    pub(super) stopped: &'a [CellId],
}

/// A decision that counts once the store has taken it.
#[derive(Clone, Debug)]
pub(super) struct ProposedWrite {
    /// One per ask.
    pub(super) verdicts: Vec<Verdict>,
    pub(super) freed: Vec<CellId>,
    pub(super) changed_scopes: Vec<ScopeId>,
    pub(super) saved_for: Vec<OwnerId>,
    /// Every row that the decision depends on.
    pub(super) expected: Vec<(RowKey, Option<RowVersion>)>,
    /// The new rows; empty: nothing changes.
    pub(super) replaced: Vec<(RowKey, Row)>,
    /// What the store is to note: for which rows this node waits.
    pub(super) waits: Vec<(RowKey, WaitNote)>,
    pub(super) stops: Vec<RowKey>,
    /// An ask is rejected by a row that another owner may have changed since.
    pub(super) must_ask: bool,
    /// Not before this local time: others go first.
    pub(super) go_at: Micros,
    /// Is anything granted?
    pub(super) has_grant: bool,
    /// Does it renew this node's registration?
    pub(super) renews: bool,
    /// Other members that may use their share.
    pub(super) absent: u32,
    must_be_durable: bool,
    incarnation: Option<Incarnation>,
    now: TimeBounds,
}

impl BatchInput<'_> {
    pub(super) fn batch<'a>(&'a self, owner: OwnerId, dead: &'a [OwnerId]) -> Batch<'a> {
        Batch {
            owner,
            stopped_waiting: self.stopped,
            settles: Settles::Now(self.settles),
            asks: self.asks,
            dead,
        }
    }
}

impl DecisionContext<'_> {
    pub(super) fn decide(
        &self,
        known: &mut KnownRows,
        needed: &NeededRows,
        bounds: TimeBounds,
        input: BatchInput<'_>,
    ) -> ProposedWrite {
        let owner = self.settings.owner;
        let (mut rows, now) = self.rows(known, needed, bounds);
        let expected = self.expected(known, &rows);
        let before = rows.clone();
        let incarnation = rows.provider.row.incarnation;
        let absent = rows.members.absent;
        let is_present = rows.members.presence.is_some();
        self.note_own_waits(known, &mut rows);
        let BatchResult {
            verdicts,
            freed,
            changed_scopes,
            saved_for,
            ..
        } = decide(&mut rows, now, &input.batch(owner, self.dead));
        self.note_room(known, &before, input.asks, now);
        let is_grant = |verdict: &Verdict| matches!(verdict, Verdict::Go { .. });
        let has_grant = verdicts.iter().any(is_grant);
        let go_at = match has_grant {
            true => self.go_at(known, &before, input.asks, now),
            false => self.local,
        };
        let (waits, must_ask) = self.waits(known, &rows, input.asks, &verdicts, now);
        let stops = stops(known, &rows, input, owner);
        let writes = has_grant
            || before.must_write()
            || self.is_unclear
            || self.renews
            || !input.settles.is_empty()
            || !input.stopped.is_empty();
        let must_compare = self.is_unclear || input.settles.iter().any(concerns_scopes);
        let replaced = match writes {
            true => self.replaced(known, &before, rows, now, must_compare),
            false => Vec::new(),
        };
        let must_be_durable = input.batch(owner, &[]).must_be_durable(&verdicts);
        let is_written = |(id, _): &(RowKey, Row)| *id == self.own_row();
        ProposedWrite {
            renews: self.membership.renews() && is_present && replaced.iter().any(is_written),
            absent,
            must_be_durable,
            incarnation,
            verdicts,
            freed,
            changed_scopes,
            saved_for,
            expected,
            replaced,
            waits,
            stops,
            must_ask,
            go_at,
            has_grant,
            now,
        }
    }

    /// The request for a decision.
    pub(super) fn request(&self, decided: &ProposedWrite, bounds: TimeBounds) -> Request {
        let rules = &self.settings.rules;
        let transit = self.shortest_round_trip.scale_up(4, 1) + TRANSIT_SLACK;
        let stored = |(id, row): &(RowKey, Row)| (*id, row.stored());
        Request {
            owner: self.settings.owner,
            batch: self.batch,
            epoch: rules.compare_epoch.then_some(self.epoch),
            time: rules
                .compare_time
                .then_some((decided.now.lo, bounds.hi + transit)),
            expected: decided.expected.clone(),
            read: Vec::new(),
            replace: decided.replaced.iter().map(stored).collect(),
            waits: match rules.note_waiting {
                true => decided.waits.clone(),
                false => Vec::new(),
            },
            stops: decided.stops.clone(),
            must_be_durable: decided.must_be_durable,
            incarnation: decided.incarnation,
            clock: self.clock_record(decided),
        }
    }

    /// What the next process of this host should know of the clock, once this is stored.
    fn clock_record(&self, decided: &ProposedWrite) -> Option<ClockRecord> {
        let mut record = self.clock.due()?.clone();
        if let Some(row) = decided.provider_row() {
            (record.changes, record.incarnation) = (row.clock_changes, row.incarnation);
        }
        Some(record)
    }

    /// The key of this process's own row.
    pub(super) fn own_row(&self) -> RowKey {
        RowKey::Owner(self.settings.owner, self.settings.process)
    }

    fn expected(&self, known: &KnownRows, rows: &BatchRows) -> Vec<(RowKey, Option<RowVersion>)> {
        let mut expected = rows.expected();
        if !self.settings.rules.own_row {
            return expected;
        }
        let own = known
            .get(self.own_row())
            .and_then(|known| known.row.as_ref());
        expected.push((self.own_row(), own.map(|row| row.meta().version)));
        expected
    }

    /// Remembers since when there is room in the cells of these asks, and who has not come for it.
    fn note_room(&self, known: &mut KnownRows, rows: &BatchRows, asks: &[Ask], now: TimeBounds) {
        for term in asks.iter().flat_map(|ask| &ask.terms) {
            let Some(known) = known.get_mut(RowKey::Cell(term.cell)) else {
                continue;
            };
            if rows.peek(term.cell, &term.rule, now).remaining < term.cost {
                known.room_since = None;
                continue;
            }
            known.room_since = known.room_since.or(Some(self.local));
            let waiters = rows.waiters(term.cell);
            let late = turns_tolerance(waiters.len(), self.round_trip);
            let waiters = waiters.iter().copied();
            let others = waiters.filter(|waiter| waiter.owner != self.settings.owner);
            let absent = others.filter(|waiter| now.lo > waiter.due + late);
            known.pass_over(absent);
        }
    }

    /// When this owner may take what is free: two round trips later for each owner that goes
    /// before, counted from when there was room. If they come, their write is known here before.
    fn go_at(&self, known: &KnownRows, rows: &BatchRows, asks: &[Ask], now: TimeBounds) -> Micros {
        let mut go_at = self.local;
        if !self.settings.rules.take_turns {
            return go_at;
        }
        let terms = asks
            .iter()
            .flat_map(|ask| ask.terms.iter().map(move |term| (ask, term)));
        for (ask, term) in terms {
            let known = known.get(RowKey::Cell(term.cell));
            let Some(since) = known.and_then(|known| known.room_since) else {
                continue;
            };
            let waiters = rows.waiters(term.cell);
            let owner = self.settings.owner;
            let turns = turns_before(waiters, owner, ask.priority, now.lo, self.round_trip);
            go_at = go_at.max(since + self.round_trip.scale_up(TURN * turns, 1));
        }
        go_at
    }

    /// The rows to write: those that have changed, and this process's own one, by which it knows
    /// whether they were. `must_compare`: the versions matter even if nothing has changed.
    fn replaced(
        &self,
        known: &KnownRows,
        before: &BatchRows,
        rows: BatchRows,
        now: TimeBounds,
        must_compare: bool,
    ) -> Vec<(RowKey, Row)> {
        let stamp = |meta: &mut RowMeta| self.stamp(meta, now);
        let presence = rows.members.presence;
        let renews = self.renews && presence.is_some();
        let mut changed = rows.changed(before, stamp);
        if (must_compare || renews || !changed.is_empty()) && self.settings.rules.own_row {
            let own = known
                .get(self.own_row())
                .and_then(|known| known.row.as_ref());
            let meta = own.map_or_else(RowMeta::default, |row| row.meta().clone());
            let mut own = OwnerRow { presence, meta };
            stamp(&mut own.meta);
            changed.push((self.own_row(), Row::Owner(own)));
        }
        changed
    }

    fn stamp(&self, meta: &mut RowMeta, now: TimeBounds) {
        meta.revision += 1;
        meta.version = match self.settings.rules.named_versions {
            true => RowVersion {
                owner: self.settings.owner,
                nonce: self.settings.process,
                batch: self.batch,
            },
            false => RowVersion {
                batch: meta.revision,
                ..RowVersion::default()
            },
        };
        (meta.time, meta.epoch) = (now.lo, self.epoch.0);
    }
}

impl ProposedWrite {
    /// The provider's row, if it is written.
    pub(super) fn provider_row(&self) -> Option<&ProviderRow> {
        self.replaced.iter().find_map(|(_, row)| match row {
            Row::Provider(row) => Some(row),
            Row::Owner(_) | Row::Cell(_) | Row::Scope(_) | Row::Damaged(_) => None,
        })
    }

    /// Have others changed what it was decided on? If not, the store has turned the request away
    /// because of its time, and there is nobody to make way for.
    pub(super) fn is_outdated_by(&self, rows: &[(RowKey, Option<StoredRow>)]) -> bool {
        let version = |id: &RowKey| {
            let found = rows.iter().find(|(of, _)| of == id);
            found
                .and_then(|(_, row)| row.as_ref())
                .map(|row| row.version)
        };
        let mut expected = self.expected.iter();
        !self.replaced.is_empty() && expected.any(|(id, expected)| version(id) != *expected)
    }

    /// Would a fresh reply let an ask go now? After a silence the bounds are apart by drift alone.
    pub(super) fn is_rejected_by_drift(&self, bounds: TimeBounds, round_trip: Span) -> bool {
        let apart = bounds.hi.since(bounds.lo);
        let drift = apart - round_trip.scale_up(2, 1);
        let is_close = |verdict: &Verdict| match verdict {
            Verdict::Wait { after, .. } => *after <= drift,
            Verdict::Go { .. } | Verdict::Never(_) => false,
        };
        drift > Span::ZERO && !self.has_grant && self.verdicts.iter().any(is_close)
    }
}

/// May it change a scope? The known row of a scope may be old, so comparing with it does not show
/// whether it does.
fn concerns_scopes(settle: &Settle) -> bool {
    match settle {
        Settle::Permit {
            scopes, outcome, ..
        } => {
            let concerns = match outcome {
                Outcome::Arrived { .. }
                | Outcome::Complete { .. }
                | Outcome::Failed { .. }
                | Outcome::Finished { .. }
                | Outcome::Unknown { .. }
                | Outcome::Unsent => true,
                Outcome::Presumed { .. } | Outcome::Alive { .. } => false,
            };
            concerns && !scopes.is_empty()
        }
        Settle::Close { .. }
        | Settle::Limited { .. }
        | Settle::Inherit { .. }
        | Settle::Open { .. }
        | Settle::Failed { .. }
        | Settle::Succeeded { .. } => true,
    }
}
