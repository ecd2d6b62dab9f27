//! The rows of a batch as they count now.
//!
//! Promises: no row goes back in time. A row that is missing means what the provider's row says of
//! lost rows.
//!
//! Never: decides.

use crate::ask::WakeOn;
use crate::limit::{LentShares, Rule};
use crate::row::{Incarnation, Loss, ProviderRow};
use crate::time::TimeBounds;

use super::batch_rows::{BatchRow, BatchRows, NeededRows};
use super::decide::DecisionContext;
use super::known::{KnownRows, Reading};
use super::row::{PastUse, Row, RowKey};
use super::share::MemberView;

impl DecisionContext<'_> {
    /// The rows as they count now, and the time at which they do: no row goes back in time. What
    /// frees is decided for the moment at which the request arrives, as far as that is certain: the
    /// store turns it away if it is early after all.
    pub(super) fn rows(
        &self,
        known: &KnownRows,
        needed: &NeededRows,
        bounds: TimeBounds,
    ) -> (BatchRows, TimeBounds) {
        let rules = &self.settings.rules;
        let reading = self.reading(bounds);
        let mut lo = match rules.compare_time && rules.two_bounds {
            true => bounds.lo + self.shortest_round_trip.scale_up(7, 8),
            false => bounds.lo,
        };
        let (mut provider, loss) = self.provider_row(known, &reading);
        let members = self.members(known, &mut provider, bounds);
        let losses = provider.row.losses;
        let mut rows = BatchRows {
            provider,
            is_shared: rules.take_turns,
            turn_time: self.round_trip,
            members,
            ..BatchRows::default()
        };
        for (&id, rule) in needed {
            if let RowKey::Owner(..) = id
                && id != self.own_row()
            {
                continue;
            }
            let rule = rule.as_deref();
            let seen = known.get(id);
            let read = seen.and_then(|known| known.read(id, rule, &reading));
            let expected = seen.and_then(|known| known.row.as_ref());
            let expected = expected.map(|row| row.meta().version);
            lo = read.as_ref().map_or(lo, |(row, _)| lo.max(row.meta().time));
            match (id, read) {
                (RowKey::Provider | RowKey::Owner(..), _) => {}
                (RowKey::Cell(cell), read) => {
                    let mut row = match read {
                        Some((Row::Cell(row), must_write)) => BatchRow::present_cell(
                            row, expected, must_write,
                        )
                        .after_losses(rule, loss, losses, self.call_timeout),
                        Some(_) | None => {
                            BatchRow::absent_cell(rule, loss, losses, self.call_timeout)
                        }
                    };
                    if let Some(rule) = rule.filter(|_| rules.leave_shares) {
                        let lent = self.lent(&rows.members, rule, bounds);
                        row.row.cell.lend(lent);
                    }
                    let in_row = std::mem::take(&mut row.row.waiters);
                    row.row.waiters = seen
                        .map_or_else(Vec::new, |seen| seen.waiters(in_row, bounds.lo, self.local));
                    rows.cells.insert(cell, row);
                }
                (RowKey::Scope(scope), Some((Row::Scope(row), must_write))) => {
                    let row = BatchRow {
                        expected,
                        row,
                        must_write,
                    };
                    rows.scopes.insert(scope, row);
                }
                (RowKey::Scope(scope), _) => {
                    rows.scopes.insert(scope, BatchRow::default());
                }
            }
        }
        match rules.two_bounds {
            true => (rows, TimeBounds::new(lo, bounds.hi, bounds.wall)),
            false => (rows, TimeBounds::exact(lo, bounds.wall)),
        }
    }

    fn reading(&self, now: TimeBounds) -> Reading<'_> {
        Reading {
            now,
            base_age: self.base_age,
            clock: self.clock,
            local: self.local,
            epoch: self.epoch,
            durable: self.settings.durable,
            late_arrival: self.late_arrival,
            call_timeout: self.call_timeout,
            rules: &self.settings.rules,
        }
    }

    /// Who may use a share without the store, this node included.
    fn members(
        &self,
        known: &KnownRows,
        provider: &mut BatchRow<ProviderRow>,
        now: TimeBounds,
    ) -> MemberView {
        let own = (self.settings.owner, self.settings.process);
        let row = &mut provider.row;
        let (members, is_changed) = self.membership.view(known, row, own, now);
        provider.must_write |= is_changed;
        members
    }

    /// What others may use of a limit without the store.
    fn lent(&self, members: &MemberView, rule: &Rule, now: TimeBounds) -> LentShares {
        let counts_for = rule.usage_expires_after().unwrap_or(self.call_timeout);
        members.lent(rule, counts_for + self.late_arrival, now)
    }

    /// The provider's row, and what a missing row means; written down when that has changed.
    fn provider_row(
        &self,
        known: &KnownRows,
        reading: &Reading<'_>,
    ) -> (BatchRow<ProviderRow>, Loss) {
        let keeps = self.settings.durable || !self.settings.rules.close_after_promotion;
        // Calls that were on their way may arrive until then.
        let lost_at = Some(reading.now.hi + self.late_arrival);
        let everything = Loss {
            at: lost_at,
            is_all: true,
        };
        let seen = known.get(RowKey::Provider);
        let stored = seen.and_then(|known| known.row.as_ref());
        let read = match stored {
            Some(row) if row.meta().epoch == self.epoch.0 => {
                seen.and_then(|known| known.read(RowKey::Provider, None, reading))
            }
            // Its own loss is replaced below.
            other => other.map(|row| (row.clone(), false)),
        };
        let (mut row, mut must_write) = match read {
            Some((Row::Provider(row), must_write)) => (row, must_write),
            Some((row, _)) => {
                let meta = row.meta().clone();
                let row = ProviderRow {
                    loss: everything,
                    meta,
                    ..ProviderRow::default()
                };
                (row, true)
            }
            None => (ProviderRow::default(), true),
        };
        let is_of_before = match stored {
            Some(_) => row.meta.epoch != self.epoch.0,
            // It never reached this server. Who had no reply before cannot know.
            None => self.saw_promotion,
        };
        if self.is_wiped(stored) && !keeps {
            (row.loss, row.losses, must_write) = (everything, row.losses + 1, true);
        } else if is_of_before && !keeps {
            (row.loss.at, must_write) = (lost_at, true);
        }
        if row.incarnation.is_none() {
            (row.incarnation, must_write) = (Some(self.incarnation()), true);
        }
        if self.clock.must_count {
            (row.clock_changes, must_write) = (row.clock_changes + 1, true);
        }
        let loss = row.loss;
        let provider = BatchRow {
            expected: stored.map(|row| row.meta().version),
            row,
            must_write,
        };
        (provider, loss)
    }

    /// Has the store lost what this host knows of it? Rows that others have written since do not
    /// count what was used before. If one of them says that everything was lost, it is written down
    /// already.
    fn is_wiped(&self, stored: Option<&Row>) -> bool {
        match (self.past_use, stored) {
            (PastUse::Never, _) | (PastUse::Unnamed, Some(_)) => false,
            (PastUse::Unnamed | PastUse::Of(_), None) => true,
            (PastUse::Of(known), Some(Row::Provider(row))) => {
                row.incarnation != Some(known) && !row.loss.is_total()
            }
            // It cannot be read, which is written down as a loss of everything.
            (PastUse::Of(_), Some(_)) => false,
        }
    }

    fn incarnation(&self) -> Incarnation {
        Incarnation {
            owner: self.settings.owner,
            nonce: self.settings.process,
        }
    }

    /// This process waits for a row itself: a settle that frees capacity there must report it.
    pub(super) fn note_own_waits(&self, known: &KnownRows, rows: &mut BatchRows) {
        for (id, row) in &mut rows.cells {
            let noted = known.get(RowKey::Cell(*id)).map(|known| known.noted_until);
            if noted.is_some_and(|until| until > self.local) {
                row.row.cell.note_waiter(WakeOn::Event);
            }
        }
    }
}
