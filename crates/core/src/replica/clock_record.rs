//! What a host knows of the store's clock beyond one process: readings of it that later processes of
//! the same boot go on with.
//!
//! A reading (T, s, r) bounds the store's clock at any later local time x, as long as that clock does
//! not step. A process that has just started compares the first reply with the readings of
//! earlier processes. If it agrees with all of them, a row can be dated by one of them: it was
//! written after the reading, or nothing in it that is older matters any more. The row is then read as
//! on a clock that shows at least the reading's lower bound now, so that a step which hides in
//! the drift of a long silence frees nothing early.
//!
//! A clock that leaves and comes back between two readings would agree. So the provider's row
//! counts how often somebody wrote without knowing the clock before: whoever joins without readings, and
//! whoever sees a step. Readings count under that number only, in one epoch, for one incarnation.
//!
//! Promises: at most [`READINGS_MAX`] readings. Old readings are never trusted without the reply to a
//! request of this process.
//!
//! Never: reads a clock or a file.

use crate::row::{Incarnation, ProviderRow};
use crate::time::{Micros, Span};

use super::clock::{DRIFT_PPM, Stamp};
use super::row::Epoch;

/// Readings that are kept. Where they are crowded one is removed, so that they reach from
/// [`READ_EVERY`] back for more than two hours, and for any age there is one that is at most some
/// times older. What matters in a row for longer is dated by the row's own time.
pub const READINGS_MAX: usize = 12;

/// A new reading is kept, and stored, after this long: the bounds of an older one are 10 ms apart.
const READ_EVERY: Span = Span::from_secs(5);

/// What a host remembers of a store's clock, for one provider.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClockRecord {
    /// The store's epoch.
    pub epoch: Epoch,
    /// Whose rows they are.
    pub incarnation: Option<Incarnation>,
    /// [`ProviderRow::clock_changes`].
    pub changes: u64,
    /// Readings of the clock, the oldest first.
    pub readings: Vec<Stamp>,
}

/// The readings of this process and of those before it.
#[derive(Clone, Debug, Default)]
pub(super) struct ClockReadings {
    record: ClockRecord,
    /// Earlier processes have left something.
    is_from_before: bool,
    /// It comes from an earlier process, and no reply has confirmed it so far.
    is_unconfirmed: bool,
    /// This node cannot say that the clock is still the one of before: the next write must count it.
    pub(super) must_count: bool,
    /// The local time of the newest reading that is stored.
    stored_to: Option<Micros>,
}

impl ClockReadings {
    /// What earlier processes have left.
    pub(super) fn of(mut record: ClockRecord) -> ClockReadings {
        record.readings.truncate(READINGS_MAX);
        let stored_to = record.readings.last().map(|last| last.received);
        ClockReadings {
            record,
            is_from_before: true,
            is_unconfirmed: true,
            must_count: false,
            stored_to,
        }
    }

    /// A reply came, in this epoch; `is_step`: it does not agree with what this process knew.
    pub(super) fn observe(&mut self, stamp: Stamp, epoch: Epoch, is_step: bool) {
        let readings = &self.record.readings;
        let agrees = readings.iter().all(|reading| reading.agrees(stamp));
        let is_unknown = is_step || readings.is_empty() || !agrees;
        // Everybody sees the epoch, so nobody needs to count it.
        self.must_count |= is_unknown;
        if is_unknown || self.record.epoch != epoch {
            self.record.readings = vec![stamp];
            (self.record.epoch, self.stored_to) = (epoch, None);
            return;
        }
        let last = readings.last().map(|last| last.received);
        if last.is_none_or(|last| stamp.received >= last + READ_EVERY) {
            self.record.readings.push(stamp);
            self.thin_out(stamp.received);
        }
    }

    /// The provider's row, as the same reply has it. Others may have written without knowing the clock:
    /// only the present reading counts.
    pub(super) fn compare(&mut self, row: Option<&ProviderRow>, stamp: Stamp) {
        let (changes, incarnation) = row.map_or((0, None), |row| {
            let changes = row.clock_changes;
            (changes, row.incarnation)
        });
        let is_same = self.record.changes == changes && self.record.incarnation == incarnation;
        if !is_same {
            self.record.readings = vec![stamp];
            self.wrote(changes, incarnation);
            self.stored_to = None;
        }
        self.is_unconfirmed = false;
    }

    /// This node has written the provider's row.
    pub(super) fn wrote(&mut self, changes: u64, incarnation: Option<Incarnation>) {
        (self.record.changes, self.record.incarnation) = (changes, incarnation);
    }

    /// At least what the store's clock shows at local time `x`, if it is the clock on which a
    /// row was written at `time` that matters for so long; `None`: nothing is known of that row.
    pub(super) fn lower_bound(&self, time: Micros, matters_for: Span, x: Micros) -> Option<Micros> {
        if self.is_unconfirmed {
            return None;
        }
        let long = matters_for + matters_for.scale_up(2 * DRIFT_PPM, 1_000_000);
        let dates = |reading: &&Stamp| {
            // On a clock that was ahead it was written earlier, which frees it late.
            time > reading.hi(reading.received) || x.since(reading.received) >= long
        };
        let reading = self.record.readings.iter().rev().find(dates)?;
        Some(reading.lo(x))
    }

    /// Has an earlier process left anything?
    pub(super) fn is_known(&self) -> bool {
        self.is_from_before
    }

    /// What to store with the next write, if that is due.
    pub(super) fn due(&self) -> Option<&ClockRecord> {
        let newest = self.record.readings.last()?.received;
        let is_due = self.stored_to.is_none_or(|stored| newest > stored);
        is_due.then_some(&self.record)
    }

    /// What was due is stored.
    pub(super) fn stored(&mut self) {
        self.stored_to = self.record.readings.last().map(|last| last.received);
    }

    /// Removes the first reading between two others of which the older is not twice as old.
    fn thin_out(&mut self, now: Micros) {
        let readings = &mut self.record.readings;
        if readings.len() <= READINGS_MAX {
            return;
        }
        let age = |reading: &Stamp| now.since(reading.received).0;
        let crowded = readings
            .windows(3)
            .position(|three| age(&three[0]) < age(&three[2]).saturating_mul(4));
        readings.remove(crowded.map_or(0, |before| before + 1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamp(store: u64, local: u64) -> Stamp {
        Stamp {
            stored_at: Micros(store),
            sent: Micros(local),
            received: Micros(local + 1_000),
        }
    }

    fn at(secs: u64) -> Stamp {
        stamp((5_000 + secs) * 1_000_000, secs * 1_000_000)
    }

    fn known(readings: Vec<Stamp>) -> ClockReadings {
        let epoch = Epoch(1);
        ClockReadings::of(ClockRecord {
            epoch,
            readings,
            ..ClockRecord::default()
        })
    }

    /// Is a row of that store time, which matters for ten seconds, dated after this reply?
    fn dates(mut readings: ClockReadings, reply: Stamp, time: u64) -> Option<Micros> {
        readings.observe(reply, Epoch(1), false);
        readings.compare(None, reply);
        let matters_for = Span::from_secs(10);
        readings.lower_bound(Micros(time * 1_000_000), matters_for, reply.received)
    }

    #[test]
    fn a_row_is_dated_by_a_reading_before_it_or_by_one_that_is_older_than_all_in_it() {
        let readings = || known(vec![at(100), at(108)]);
        // Written after the newer reading, and between the two.
        let after = dates(readings(), at(109), 5_109);
        assert_eq!(after, Some(Stamp::lo(&at(108), at(109).received)));
        let between = dates(readings(), at(109), 5_105);
        assert_eq!(between, Some(Stamp::lo(&at(100), at(109).received)));
        // Before both: only when the older one is as old as what it holds.
        assert_eq!(dates(readings(), at(109), 5_099), None);
        assert!(dates(readings(), at(111), 5_099).is_some());
    }

    #[test]
    fn a_reply_that_does_not_agree_ends_the_readings() {
        let (ahead, behind) = (
            stamp(5_130_000_000, 129_000_000),
            stamp(5_128_000_000, 129_000_000),
        );
        for reply in [ahead, behind] {
            let mut readings = known(vec![at(100)]);
            readings.observe(reply, Epoch(1), false);
            assert!(readings.must_count);
            assert_eq!(readings.record.readings, [reply]);
        }
        let mut promoted = known(vec![at(100)]);
        promoted.observe(at(129), Epoch(2), false);
        assert_eq!(promoted.record.readings, [at(129)], "another epoch");
        assert!(!promoted.must_count);
    }

    #[test]
    fn another_number_or_incarnation_ends_the_readings_and_is_not_counted_again() {
        let reply = at(129);
        let numbered = ProviderRow {
            clock_changes: 1,
            ..ProviderRow::default()
        };
        let named = ProviderRow {
            incarnation: Some(Incarnation {
                owner: crate::ask::OwnerId(1),
                nonce: 1,
            }),
            ..ProviderRow::default()
        };
        for row in [numbered, named] {
            let mut readings = known(vec![at(100)]);
            readings.observe(reply, Epoch(1), false);
            readings.compare(Some(&row), reply);
            assert_eq!(readings.record.readings, [reply]);
            assert!(!readings.must_count);
        }
    }

    #[test]
    fn nothing_is_dated_before_a_reply() {
        let readings = known(vec![at(100)]);
        let matters_for = Span::from_secs(1);
        assert_eq!(
            readings.lower_bound(Micros(0), matters_for, Micros(200_000_000)),
            None
        );
    }

    #[test]
    fn readings_reach_back_for_hours_and_stay_few() {
        let mut readings = known(vec![at(0)]);
        for secs in 1..20_000 {
            readings.observe(at(secs), Epoch(1), false);
            assert!(readings.record.readings.len() <= READINGS_MAX);
        }
        let kept = &readings.record.readings;
        let ages: Vec<u64> = kept
            .iter()
            .map(|one| 20_000 - one.sent.0 / 1_000_000)
            .collect();
        assert!(ages[0] >= 7_200, "{ages:?}");
        assert!(ages.iter().any(|age| (10..=40).contains(age)), "{ages:?}");
        assert!(readings.due().is_some());
        readings.stored();
        assert!(readings.due().is_none());
    }
}
