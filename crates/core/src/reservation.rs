//! Durable reservations: permits of a long limit that may be used before their row is on disk.
//!
//! A store that syncs keeps one of these in the row of each limit of a minute or longer. It says
//! how much may have been granted that a power cut would forget, and so how much counts as used
//! after the next boot. Commits that grant such permits have a number, the *generation*.
//!
//! Promises: what was handed out after the generation that is on disk is at most `reserved`, as the
//! row on disk says, whatever later rows say. Proof: a grant is covered only if the row of generation
//! `since` is on disk; every row from then on has the same `reserved`, so has the one that a power
//! cut leaves, whichever it is; and `older + newer` counts everything granted after the generation
//! on disk. A grant that is not covered is handed out when its own row is on disk.
//!
//! Under steady load a sync is always under way, so what was granted is counted in two parts:
//! `older` up to a generation, and `newer` after it. Once that generation is on disk, `newer` takes
//! the place of `older`.
//!
//! Never: counts what was granted as less than it was. What is given back unsent stays counted until
//! the next sync.

use crate::limit::{Cell, Rule};
use crate::time::{Micros, Span, TimeBounds};

/// What may be handed out of one limit before the next sync, for all processes of a folder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reservation {
    /// So much counts as used after a boot; 0 = there is none.
    pub(crate) reserved: u64,
    /// Rows of this generation and all later ones have this `reserved`.
    pub(crate) since: u64,
    /// Granted up to the generation `older_until`, and perhaps not on disk.
    pub(crate) older: u64,
    /// See `older`.
    pub(crate) older_until: u64,
    /// Granted after it.
    pub(crate) newer: u64,
    /// How long a call matters to the limit.
    pub(crate) hold: Span,
    /// Reserved before the last boot and not counted as used yet, because that takes the rule.
    pub(crate) lost: u64,
    /// When that boot was.
    pub(crate) lost_at: Micros,
}

/// One commit and what is on disk.
#[derive(Clone, Copy, Debug)]
pub struct Generations {
    /// The one that is being written.
    pub commit: u64,
    /// The last one that is known to be on disk.
    pub durable: u64,
}

impl Reservation {
    /// So much was granted in this commit; `true` if it may be used before the commit is on disk.
    pub fn grant(
        &mut self,
        cost: u64,
        (reserved, hold): (u64, Span),
        generations: Generations,
    ) -> bool {
        let Generations { commit, durable } = generations;
        if durable >= self.older_until {
            // All of `newer` was granted before this commit.
            (self.older, self.older_until) = (self.newer, commit.saturating_sub(1));
            self.newer = 0;
        }
        if durable >= self.older_until {
            self.older = 0;
        }
        if (self.reserved, self.hold) != (reserved, hold) {
            (self.reserved, self.hold, self.since) = (reserved, hold, commit);
        }
        self.newer = self.newer.saturating_add(cost);
        self.since <= durable && self.unsynced() <= self.reserved
    }

    /// Nothing more is covered until this commit is on disk: usage has come into the row that is not
    /// a grant.
    pub fn renew(&mut self, commit: u64) {
        self.since = commit;
    }

    /// A sync should begin: half of it is in use, so that the other half lasts until the sync is over.
    #[must_use]
    pub fn is_due(&self) -> bool {
        self.unsynced().saturating_mul(2) >= self.reserved
    }

    fn unsynced(&self) -> u64 {
        self.older.saturating_add(self.newer)
    }

    /// A new boot: `then` on the old clock is `now` on the new one. What was reserved counts as used
    /// from now on.
    #[must_use]
    pub fn after_boot(self, then: Micros, now: Micros) -> Reservation {
        let lost = self.lost.saturating_add(self.reserved);
        let lost_at = match self.reserved {
            // A time before the start of this clock is its start, which is later.
            0 => now - then.since(self.lost_at),
            _ => now,
        };
        Reservation {
            lost,
            lost_at: if lost == 0 { Micros(0) } else { lost_at },
            hold: if lost == 0 { Span::ZERO } else { self.hold },
            ..Reservation::default()
        }
    }

    /// Counts as used what was reserved before the boot.
    pub fn charge(&mut self, cell: &mut Cell, rule: &Rule, now: TimeBounds) {
        let (lost, at) = (self.lost, self.lost_at);
        (self.lost, self.lost_at) = (0, Micros(0));
        if lost > 0 {
            cell.count_lost(rule, lost.min(rule.max_cost()), at, now);
        }
    }

    /// Nothing is to be counted as used that still matters.
    #[must_use]
    pub fn is_idle(&self, now: Micros) -> bool {
        self.lost == 0 || now >= self.lost_at + self.hold
    }

    /// Is there nothing to be written?
    pub(crate) fn is_none(&self) -> bool {
        *self == Reservation::default()
    }

    /// The numbers of its field, in their order.
    pub(crate) fn numbers(&self) -> [u64; 8] {
        [
            self.reserved,
            self.since,
            self.older,
            self.older_until,
            self.newer,
            self.hold.0,
            self.lost,
            self.lost_at.0,
        ]
    }

    /// What [`Reservation::numbers`] says.
    pub(crate) fn of_numbers(numbers: [u64; 8]) -> Reservation {
        let [
            reserved,
            since,
            older,
            older_until,
            newer,
            hold,
            lost,
            lost_at,
        ] = numbers;
        Reservation {
            reserved,
            since,
            older,
            older_until,
            newer,
            hold: Span(hold),
            lost,
            lost_at: Micros(lost_at),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HOLD: Span = Span::from_secs(86_400);

    fn grant(reservation: &mut Reservation, cost: u64, commit: u64, durable: u64) -> bool {
        reservation.grant(cost, (10, HOLD), Generations { commit, durable })
    }

    #[test]
    fn the_first_grant_waits_and_those_after_its_sync_do_not() {
        let mut reservation = Reservation::default();
        assert!(!grant(&mut reservation, 1, 7, 6));
        assert!(!grant(&mut reservation, 1, 8, 6), "its row is not on disk");
        for commit in 9..19 {
            assert!(grant(&mut reservation, 1, commit, 8), "{commit}");
        }
        assert!(!grant(&mut reservation, 1, 19, 8), "ten are in use");
        assert!(grant(&mut reservation, 1, 20, 19));
        assert!(!grant(&mut reservation, 10, 21, 19), "one is in use");
        assert!(!grant(&mut reservation, 11, 22, 21), "more than all of it");
    }

    /// With a sync always under way, ten grants per sync are covered for ever.
    #[test]
    fn under_steady_load_it_never_runs_out() {
        let mut reservation = Reservation::default();
        grant(&mut reservation, 1, 1, 0);
        for commit in 2..1_000_u64 {
            // A sync takes as long as four commits, so what is on disk is four to eight behind.
            let durable = (commit / 4).saturating_sub(1) * 4;
            let covered = grant(&mut reservation, 1, commit, durable);
            assert!(covered || durable < 1, "{commit}: {reservation:?}");
        }
    }

    #[test]
    fn a_changed_limit_waits_for_its_own_row() {
        let mut reservation = Reservation::default();
        grant(&mut reservation, 1, 1, 0);
        assert!(grant(&mut reservation, 1, 2, 1));
        for reserved in [5, 10] {
            let mut changed = reservation;
            let now = |commit, durable| Generations { commit, durable };
            if reserved == 10 {
                changed.renew(3);
            }
            assert!(!changed.grant(1, (reserved, HOLD), now(3, 2)));
            assert!(changed.grant(1, (reserved, HOLD), now(4, 3)));
        }
    }

    #[test]
    fn what_was_reserved_is_lost_once_per_boot_and_keeps_its_time_over_another() {
        let mut reservation = Reservation::default();
        grant(&mut reservation, 1, 1, 0);
        let first = reservation.after_boot(Micros(500), Micros(20));
        assert_eq!((first.lost, first.lost_at), (10, Micros(20)));
        assert_eq!(first.hold, HOLD);
        let second = first.after_boot(Micros(120), Micros(300));
        assert_eq!((second.lost, second.lost_at), (10, Micros(200)));
        assert!(!second.is_idle(Micros(200) + HOLD - Span(1)));
        assert!(second.is_idle(Micros(200) + HOLD));
        assert!(
            Reservation::default()
                .after_boot(Micros(9), Micros(1))
                .is_none()
        );
    }

    proptest! {
        /// Whatever is on disk when the power goes: what was handed out since is at most what the row
        /// there says.
        #[test]
        fn no_power_cut_forgets_more_than_the_row_on_disk_has_reserved(
            steps in prop::collection::vec((1..6_u64, 0..3_u8, prop::sample::select(vec![1_u64, 4, 9])), 1..60),
            cut in any::<prop::sample::Index>(),
        ) {
            let mut row = Reservation::default();
            // The rows and what was handed out at once in each commit; generation 0 is empty.
            let (mut rows, mut covered) = (vec![row], vec![0]);
            let mut durable = 0_u64;
            for (cost, syncs, reserved) in steps {
                let commit = rows.len() as u64;
                let generations = Generations { commit, durable };
                let is_covered = row.grant(cost, (reserved, HOLD), generations);
                rows.push(row);
                covered.push(if is_covered { cost } else { 0 });
                durable = match syncs {
                    0 => commit,
                    1 => durable.max(commit - 1),
                    _ => durable,
                };
                for left in durable..=commit {
                    let left = usize::try_from(left).unwrap();
                    let lost: u64 = covered[left + 1..].iter().sum();
                    prop_assert!(lost <= rows[left].reserved, "{} lost, {:?}", lost, rows[left]);
                }
            }
            // Any row reads back.
            let row = rows[cut.index(rows.len())];
            prop_assert_eq!(Reservation::of_numbers(row.numbers()), row);
        }
    }
}
