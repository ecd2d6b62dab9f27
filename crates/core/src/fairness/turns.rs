//! Turns that take time: a networked store, where others learn of a turn a round trip later.
//!
//! Promises: nothing of it matters where a turn takes no time.
//!
//! Never: gives anybody more than there is.

use crate::ask::{OwnerId, Priority};
use crate::limit::Rule;
use crate::time::{Micros, Span};

use super::{EARLY_TOLERANCE, LATE_TOLERANCE, Waiter, others, rank};

/// How long the next owner in order waits for the one before it, in round trips: one until the
/// other's write is known, and with less than another one to spare both would write at once.
pub(crate) const TURN: u64 = 2;

/// How long after its time one is waited for where a turn takes so long: it must get there, and
/// others must hear of it.
pub(super) fn late_tolerance(turn_time: Span) -> Span {
    LATE_TOLERANCE + turn_time.scale_up(2, 1)
}

/// What comes free of a limit in this time, twice: while everybody has a turn, and until that is
/// known. Whoever takes less lets what is free grow, and nobody has it. Nobody knows when concurrent
/// calls end: they have no period.
pub(super) fn freed_within(rule: &Rule, turn_time: Span) -> u64 {
    if rule.period() == Span::ZERO {
        return 0;
    }
    let freed = u128::from(rule.limit()) * u128::from(turn_time.0) * 2;
    let freed = freed.div_ceil(u128::from(rule.period().0));
    u64::try_from(freed).unwrap_or(u64::MAX)
}

/// How long after there is room all of so many have had their turn.
pub(crate) fn turns_tolerance(waiters: usize, turn_time: Span) -> Span {
    late_tolerance(turn_time) + turn_time.scale_up(TURN * waiters as u64, 1)
}

/// How many of those who wait go before this owner's asks of this priority and come about now.
pub(crate) fn turns_before(
    waiters: &[Waiter],
    owner: OwnerId,
    priority: Priority,
    now: Micros,
    turn_time: Span,
) -> u64 {
    let own = waiters.iter().find(|waiter| waiter.owner == owner);
    let own_rank = own.map_or((u64::MAX, Micros(u64::MAX), owner), rank);
    let late = turns_tolerance(waiters.len(), turn_time);
    let goes_before = |waiter: &Waiter| {
        let order = waiter
            .priority
            .cmp(&priority)
            .then(own_rank.cmp(&rank(waiter)));
        let comes = waiter.due <= now + EARLY_TOLERANCE + turn_time && now <= waiter.due + late;
        comes && waiter.until > now && order.is_gt()
    };
    others(waiters, owner).filter(goes_before).count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_free_in_a_round_depends_on_the_rate() {
        let window = Rule::sliding(100, Span::from_secs(1)).expect("sane");
        assert_eq!(freed_within(&window, Span::from_millis(10)), 2);
        assert_eq!(freed_within(&window, Span::from_millis(80)), 16);
        assert_eq!(freed_within(&window, Span::ZERO), 0);
        let concurrent = Rule::in_flight(100).expect("sane");
        assert_eq!(freed_within(&concurrent, Span::from_millis(10)), 0);
    }
}
