//! Even spacing on top of rule A's log, for providers whose windows are stricter than a log.
//!
//! Promises: the spacing is (N−2)/W for N ≥ 3: an interval of length W + J holds at most (W +
//! J)/gap + 1 ≤ N grid points while J ≤ gap, so two-counter and binned windows stay within N for
//! jitter up to one gap. For N ≤ 2 one call goes at a time, and the next one goes W/N after the
//! response. A call that costs more than one takes as many gaps. The log also applies, so jitter
//! beyond that cannot break a sliding log.
//!
//! Never: records the due time as the time of the grant; a log counted from due times frees early.

use crate::ask::WakeOn;
use crate::limit::room::CellWait;
use crate::limit::sliding::{Log, Strictness};
use crate::time::{Micros, Span};

/// Up to this N one call goes at a time, spaced from its response.
pub(crate) const ONE_AT_A_TIME: u64 = 2;

/// The time between two calls.
pub(crate) fn gap(period: Span, limit: u64, strictness: Strictness) -> Span {
    if limit > ONE_AT_A_TIME {
        return Span(period.0.div_ceil(limit - 2));
    }
    let gap = Span(period.0.div_ceil(limit.max(1)));
    match strictness {
        Strictness::Window | Strictness::Eighth => gap,
        Strictness::Spaced => gap.scale_up(2, 1),
    }
}

pub(crate) fn room(log: &Log, limit: u64, now: Micros) -> Result<(), CellWait> {
    if limit <= ONE_AT_A_TIME
        && let Some(lapse) = log.holds.pending.first_lapse()
    {
        let last = log.holds.pending.last_lapse();
        return Err(match log.holds.pending.awaits_end() {
            true => CellWait {
                after: lapse.since(now),
                on: WakeOn::Event,
            },
            // No response is to come: the last one of them ends it.
            false => CellWait {
                after: last.max(Some(log.due)).unwrap_or(lapse).since(now),
                on: WakeOn::Time,
            },
        });
    }
    if now < log.due {
        return Err(CellWait {
            after: log.due.since(now),
            on: WakeOn::Time,
        });
    }
    Ok(())
}

/// The next point of the grid. A grant that is late by less than half a gap keeps the grid, so
/// that timers that fire late do not lower the rate; after a longer pause a new grid starts.
pub(crate) fn next_due(due: Micros, gap: Span, cost: u64, now: Micros) -> Micros {
    let taken = gap.scale_up(cost, 1);
    if now.since(due).0 < gap.0 / 2 {
        due + taken
    } else {
        now + taken
    }
}
