//! One batch, decided on the rows that are known.
//!
//! Promises: the same `turn` as every other ledger. Where others wait, an owner takes at most its
//! share, ⌈free / waiting owners⌉, and lets those go first that were served less: it waits one
//! round trip for each of them.
//!
//! Never: holds back when nobody else waits.

use crate::ask::{Ask, BlockedBy, CellId, ScopeId, Settle, Term, Verdict, WakeOn};
use crate::batch::QueuedSettle;
use crate::time::{Micros, Span, TimeBounds};
use crate::turn::turn;

use super::batch_rows::{BatchRow, BatchRows, Needed};
use super::known::{KnownRows, Reading};
use super::row::{Epoch, Loss, Request, Row, RowBody, RowKey, Version};
use super::{PerCell, ReplicaSettings};

/// How much longer than it said an owner counts as waiting: it asks at its time, or each second.
const GRACE: Span = Span::from_millis(1_500);

/// How much longer than usual a request may take before the store turns it away: a later one could
/// hide a step of the clock.
const TRANSIT_SLACK: Span = Span::from_millis(5);

/// What a decision depends on besides rows, settles and asks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan<'a> {
    pub(super) settings: &'a ReplicaSettings,
    pub(super) base_age: Span,
    pub(super) round_trip: Span,
    pub(super) shortest_round_trip: Span,
    pub(super) epoch: Epoch,
    pub(super) batch: u64,
    pub(super) local: Micros,
}

/// A decision that counts once the store has taken it.
#[derive(Clone, Debug)]
pub(super) struct Decided {
    /// One per ask.
    pub(super) verdicts: Vec<Verdict>,
    pub(super) freed: Vec<CellId>,
    pub(super) changed_scopes: Vec<ScopeId>,
    /// Every row that the decision depends on.
    pub(super) expected: Vec<(RowKey, Option<Version>)>,
    /// The new rows; empty: nothing changes.
    pub(super) replaced: Vec<(RowKey, Row)>,
    /// What the store is to note: for which rows this node waits, and for how long.
    pub(super) waits: Vec<(RowKey, Option<Span>)>,
    /// Not before this local time: others go first.
    pub(super) go_at: Micros,
    /// Is anything granted?
    pub(super) has_grant: bool,
    now: TimeBounds,
}

impl Plan<'_> {
    pub(super) fn decide(
        &self,
        known: &mut KnownRows,
        needed: &Needed,
        bounds: TimeBounds,
        settles: &[QueuedSettle],
        asks: &[Ask],
    ) -> Decided {
        let (mut rows, now) = self.rows(known, needed, bounds);
        let before = rows.clone();
        rows.note_waiters(|id| {
            let noted = known.get(id).map(|known| known.noted_until);
            noted.is_some_and(|until| until > self.local)
        });
        let settles: Vec<Settle> = settles
            .iter()
            .map(|queued| queued.aged(self.local))
            .collect();
        let settled = turn(&mut rows, now, &settles, &[]);
        let withheld = self.withheld(&rows, asks, now);
        let go_at = self.go_at(known, &rows, asks, now);
        let verdicts = self.serve(&mut rows, asks, &withheld, now);
        self.count_served(&mut rows, asks, &verdicts);
        let waits = self.waits(known, asks, &verdicts);
        let has_grant = verdicts
            .iter()
            .any(|verdict| matches!(verdict, Verdict::Go { .. }));
        let must_write = rows.rows.values().any(|row| row.must_write);
        let writes = has_grant || must_write || !settles.is_empty();
        Decided {
            expected: expected(&before),
            replaced: if writes {
                self.replaced(&before, rows, now)
            } else {
                Vec::new()
            },
            has_grant,
            go_at: if has_grant { go_at } else { self.local },
            verdicts,
            waits,
            freed: settled.freed,
            changed_scopes: settled.changed_scopes,
            now,
        }
    }

    /// The request for a decision.
    pub(super) fn request(&self, decided: &Decided, bounds: TimeBounds) -> Request {
        let rules = &self.settings.rules;
        let transit = self.shortest_round_trip.scale_up(4, 1) + TRANSIT_SLACK;
        Request {
            batch: self.batch,
            epoch: rules.compare_epoch.then_some(self.epoch),
            time: rules
                .compare_time
                .then_some((decided.now.lo, bounds.hi + transit)),
            expected: decided.expected.clone(),
            read: Vec::new(),
            replace: decided.replaced.clone(),
            waits: if rules.note_waiting {
                decided.waits.clone()
            } else {
                Vec::new()
            },
        }
    }

    /// The rows as they count now, and the time at which they do: no row goes back in time.
    fn rows(
        &self,
        known: &KnownRows,
        needed: &Needed,
        bounds: TimeBounds,
    ) -> (BatchRows, TimeBounds) {
        let reading = Reading {
            now: bounds,
            base_age: self.base_age,
            epoch: self.epoch,
            durable: self.settings.durable,
            late_arrival: self.settings.late_arrival,
            rules: &self.settings.rules,
        };
        let mut lo = bounds.lo;
        let mut rows = BatchRows::default();
        let loss = self.provider_row(known, bounds, &mut rows);
        for (&id, rule) in needed {
            let rule = rule.as_deref();
            let seen = known.get(id);
            if id == RowKey::Provider {
                continue;
            }
            let row = match seen.and_then(|known| known.read(rule, &reading)) {
                Some((row, must_write)) => {
                    lo = lo.max(row.time);
                    let version = row.version;
                    BatchRow {
                        must_write,
                        ..BatchRow::of(row, Some(version))
                    }
                }
                None => BatchRow::absent(id, rule, loss),
            };
            let waiting = seen.into_iter().flat_map(|known| &known.waiting);
            let rivals = waiting.filter(|owner| **owner != self.settings.owner);
            let rivals = rivals.copied().collect();
            rows.rows.insert(id, BatchRow { rivals, ..row });
        }
        let now = TimeBounds::new(lo, bounds.hi, bounds.wall);
        if self.settings.rules.two_bounds {
            (rows, now)
        } else {
            (rows, TimeBounds::exact(now.lo, now.wall))
        }
    }

    /// What a missing row means; written down when it has changed.
    fn provider_row(&self, known: &KnownRows, now: TimeBounds, rows: &mut BatchRows) -> Loss {
        let keeps = self.settings.durable || !self.settings.rules.close_after_promotion;
        let row = known
            .get(RowKey::Provider)
            .and_then(|known| known.row.as_ref());
        // Calls that were on their way may arrive until then.
        let lost_at = now.hi + self.settings.late_arrival;
        let (loss, is_new) = match row {
            Some(row) => {
                let before = match &row.body {
                    RowBody::Provider(loss) => *loss,
                    RowBody::Cell(_) | RowBody::Scope(_) => Loss::default(),
                };
                let is_new = row.epoch != self.epoch && !keeps;
                let at = if is_new { Some(lost_at) } else { before.at };
                (Loss { at, ..before }, is_new)
            }
            None if self.settings.knew_provider && !keeps => {
                let at = Some(lost_at);
                (Loss { at, is_all: true }, true)
            }
            None => (Loss::default(), true),
        };
        let mut provider = BatchRow::absent(RowKey::Provider, None, loss);
        provider.must_write = is_new;
        if let Some(row) = row {
            provider.expected = Some(row.version);
            provider.revision = row.revision;
        }
        rows.rows.insert(RowKey::Provider, provider);
        loss
    }

    /// Which asks leave what is free to others: all beyond this owner's share.
    fn withheld(&self, rows: &BatchRows, asks: &[Ask], now: TimeBounds) -> Vec<Option<usize>> {
        let mut taken = PerCell::new();
        let mut shares = PerCell::new();
        let mut withhold = |ask: &Ask| {
            let over = ask.terms.iter().position(|term| {
                let share = *shares
                    .entry(term.cell)
                    .or_insert_with(|| self.share(rows, term, now));
                let so_far = taken.get(&term.cell).copied().unwrap_or(0);
                so_far > 0 && so_far.saturating_add(term.cost) > share
            });
            if over.is_none() {
                for term in &ask.terms {
                    let sum = taken.entry(term.cell).or_default();
                    *sum = sum.saturating_add(term.cost);
                }
            }
            over
        };
        asks.iter().map(&mut withhold).collect()
    }

    /// ⌈free / waiting owners⌉ where others wait.
    fn share(&self, rows: &BatchRows, term: &Term, now: TimeBounds) -> u64 {
        let rivals = rows.rivals(term.cell).len() as u64;
        if rivals == 0 || !self.settings.rules.take_turns {
            return u64::MAX;
        }
        match rows.free(term.cell, &term.rule, now) {
            // The cell itself says when there is room.
            0 => u64::MAX,
            free => free.div_ceil(rivals + 1),
        }
    }

    /// When this owner may take what is free: after one round trip for each owner that goes
    /// before, counted from when there was room.
    fn go_at(
        &self,
        known: &mut KnownRows,
        rows: &BatchRows,
        asks: &[Ask],
        now: TimeBounds,
    ) -> Micros {
        let mut go_at = self.local;
        if !self.settings.rules.take_turns {
            return go_at;
        }
        for term in asks.iter().flat_map(|ask| &ask.terms) {
            let Some(known) = known.get_mut(RowKey::Cell(term.cell)) else {
                continue;
            };
            if rows.free(term.cell, &term.rule, now) < term.cost {
                known.room_since = None;
                continue;
            }
            let since = *known.room_since.get_or_insert(self.local);
            let rank = rows.rank(term.cell, self.settings.owner);
            go_at = go_at.max(since + self.round_trip.scale_up(rank, 1));
        }
        go_at
    }

    /// Decides the asks that are not withheld; the others come back in a moment.
    fn serve(
        &self,
        rows: &mut BatchRows,
        asks: &[Ask],
        withheld: &[Option<usize>],
        now: TimeBounds,
    ) -> Vec<Verdict> {
        if withheld.iter().all(Option::is_none) {
            return turn(rows, now, &[], asks).verdicts;
        }
        let both = asks.iter().zip(withheld);
        let served = both.filter(|(_, withheld)| withheld.is_none());
        let served: Vec<Ask> = served.map(|(ask, _)| ask.clone()).collect();
        let mut served = turn(rows, now, &[], &served).verdicts.into_iter();
        let verdict = |withheld: &Option<usize>| match withheld {
            Some(term) => Some(Verdict::Wait {
                after: self.round_trip,
                on: WakeOn::Time,
                by: BlockedBy::Term(*term),
            }),
            None => served.next(),
        };
        withheld.iter().filter_map(verdict).collect()
    }

    /// Counts what this owner was granted where others wait.
    fn count_served(&self, rows: &mut BatchRows, asks: &[Ask], verdicts: &[Verdict]) {
        let both = asks.iter().zip(verdicts);
        for (ask, _) in both.filter(|(_, verdict)| matches!(verdict, Verdict::Go { .. })) {
            for term in &ask.terms {
                let deficit_max = term.rule.limit();
                rows.served(term.cell, self.settings.owner, term.cost, deficit_max);
            }
        }
    }

    /// Where this node must tell the store that it waits: where that is not noted yet, or not for
    /// long enough. A node that is not noted is not sent new rows, so it must not reject by those
    /// that it has.
    fn waits(
        &self,
        known: &mut KnownRows,
        asks: &[Ask],
        verdicts: &[Verdict],
    ) -> Vec<(RowKey, Option<Span>)> {
        let mut waits: Vec<(RowKey, Option<Span>)> = Vec::new();
        for (ask, verdict) in asks.iter().zip(verdicts) {
            let Verdict::Wait { after, on, by } = verdict else {
                continue;
            };
            let id = match *by {
                BlockedBy::Term(index) => ask.terms.get(index).map(|term| RowKey::Cell(term.cell)),
                BlockedBy::Scope(index) => ask.scopes.get(index).copied().map(RowKey::Scope),
            };
            // Who does not wait only makes sure that the row is the current one.
            let grace = match ask.max_wait {
                Span::ZERO => Span::ZERO,
                _ => GRACE,
            };
            let needed = match on {
                WakeOn::Time if grace > Span::ZERO => *after,
                WakeOn::Time | WakeOn::Event => Span::ZERO,
            };
            let is_told = waits.iter().any(|(told, _)| Some(*told) == id);
            if let Some(id) = id.filter(|_| !is_told)
                && let Some(known) = known.get_mut(id)
                && known.noted_until < self.local + needed
            {
                known.noted_until = self.local + needed + grace;
                waits.push((id, Some(needed + grace)));
            }
        }
        waits
    }

    fn replaced(&self, before: &BatchRows, rows: BatchRows, now: TimeBounds) -> Vec<(RowKey, Row)> {
        let rules = &self.settings.rules;
        let changed = rows.rows.into_iter().filter(|(id, row)| {
            let old = before.rows.get(id);
            row.must_write
                || old.is_none_or(|old| (&old.body, &old.served) != (&row.body, &row.served))
        });
        let written = changed.map(|(id, row)| {
            let version = if rules.named_versions {
                Version {
                    owner: self.settings.owner,
                    process: self.settings.process,
                    batch: self.batch,
                }
            } else {
                Version {
                    batch: row.revision + 1,
                    ..Version::default()
                }
            };
            let written = Row {
                version,
                epoch: self.epoch,
                revision: row.revision + 1,
                time: now.lo,
                body: row.body,
                served: row.served,
            };
            (id, written)
        });
        written.collect()
    }
}

impl Decided {
    /// Would a fresh reply let an ask go now? After a silence the bounds are apart by drift alone.
    pub(super) fn is_refused_by_drift(&self, bounds: TimeBounds, round_trip: Span) -> bool {
        let apart = bounds.hi.since(bounds.lo);
        let drift = apart - round_trip.scale_up(2, 1);
        let is_close = |verdict: &Verdict| match verdict {
            Verdict::Wait { after, .. } => *after <= drift,
            Verdict::Go { .. } | Verdict::Never(_) => false,
        };
        drift > Span::ZERO && !self.has_grant && self.verdicts.iter().any(is_close)
    }
}

fn expected(rows: &BatchRows) -> Vec<(RowKey, Option<Version>)> {
    let rows = rows.rows.iter();
    rows.map(|(id, row)| (*id, row.expected)).collect()
}
