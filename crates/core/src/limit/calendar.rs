//! Windows of the calendar: minute, hour, day, week or month of a time zone.
//!
//! Promises: edges follow the zone, so a day of 23 or 25 hours resets once, and a month ends at its
//! calendar end. A wall clock that jumps never opens a window: an edge counts only as far as the
//! ledger's own clock agrees (`TrustedClock`).
//!
//! Never: reads a clock or the time zone database; the zone is a value. Never reopens a window.

use jiff::civil::Weekday;
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan, Zoned};

use crate::ask::{PermitId, WakeOn};
use crate::limit::holds::{PendingCall, sum_of};
use crate::limit::inherit::CarriedUsage;
use crate::limit::room::{CellRequest, CellWait, Grant, Settled};
use crate::limit::rule::Rule;
use crate::limit::trusted_clock::{CLOCK_TOLERANCE, TrustedClock};
use crate::limit::window_counter::WindowCounter;
use crate::time::{Micros, Now, Span, Wall};

/// How far the provider's clock may be from ours around an edge.
pub const EDGE_MARGIN: Span = Span::from_secs(2);

/// The length of a calendar window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CalendarPeriod {
    /// From :00 to :00.
    Minute,
    /// From :00:00 to :00:00.
    Hour,
    /// From midnight to midnight.
    Day,
    /// From Monday to Monday.
    Week,
    /// From the first to the first.
    Month,
}

/// Which windows a calendar limit has.
#[derive(Clone, Debug, PartialEq)]
pub struct Calendar {
    period: CalendarPeriod,
    zone: TimeZone,
    edge_margin: Span,
}

impl Calendar {
    /// Windows of this length in this zone, with the default margin around edges.
    #[must_use]
    pub fn new(per: CalendarPeriod, zone: TimeZone) -> Calendar {
        Calendar {
            period: per,
            zone,
            edge_margin: EDGE_MARGIN,
        }
    }

    /// Sets how far the provider's clock may be from ours. At most a tenth of the window, because a
    /// call near an edge counts on both sides of it.
    #[must_use]
    pub fn edge_margin(mut self, margin: Span) -> Calendar {
        self.edge_margin = Span(margin.0.min(self.max_length().0 / 10));
        self
    }

    /// `min`, `1h`, `1d`, `week`, `month`: for messages.
    #[must_use]
    pub fn label(&self) -> &'static str {
        match self.period {
            CalendarPeriod::Minute => "1m",
            CalendarPeriod::Hour => "1h",
            CalendarPeriod::Day => "1d",
            CalendarPeriod::Week => "week",
            CalendarPeriod::Month => "month",
        }
    }

    /// The longest window of this kind.
    #[must_use]
    pub fn max_length(&self) -> Span {
        match self.period {
            CalendarPeriod::Minute => Span::from_secs(60),
            CalendarPeriod::Hour => Span::from_secs(3_600),
            CalendarPeriod::Day => Span::from_secs(25 * 3_600),
            CalendarPeriod::Week => Span::from_secs((7 * 24 + 1) * 3_600),
            CalendarPeriod::Month => Span::from_secs((31 * 24 + 1) * 3_600),
        }
    }

    /// The window for display: a day has 24 hours, and a month 31 days, in every zone.
    #[must_use]
    pub fn display_period(&self) -> Span {
        match self.period {
            CalendarPeriod::Minute | CalendarPeriod::Hour => self.max_length(),
            CalendarPeriod::Day => Span::from_secs(24 * 3_600),
            CalendarPeriod::Week => Span::from_secs(7 * 24 * 3_600),
            CalendarPeriod::Month => Span::from_secs(31 * 24 * 3_600),
        }
    }

    pub(crate) fn margin(&self) -> Span {
        self.edge_margin
    }

    /// The window that contains `wall`: its start and its end, the start of the next.
    ///
    /// Outside the years that the calendar library supports there are no edges: the window is
    /// unbounded, which can only reject.
    #[must_use]
    pub fn window(&self, wall: Wall) -> (Wall, Wall) {
        self.edges(wall).unwrap_or((Wall(0), Wall(u64::MAX)))
    }

    fn edges(&self, wall: Wall) -> Option<(Wall, Wall)> {
        if matches!(self.period, CalendarPeriod::Minute | CalendarPeriod::Hour) {
            return self.short_edges(wall);
        }
        let local = timestamp(wall)?.to_zoned(self.zone.clone());
        let first = local.start_of_day().ok()?;
        let (start, length) = match self.period {
            CalendarPeriod::Minute | CalendarPeriod::Hour | CalendarPeriod::Day => (first, 1.day()),
            CalendarPeriod::Week => {
                let back = local.weekday().since(Weekday::Monday);
                (
                    first
                        .checked_sub(i64::from(back).days())
                        .ok()?
                        .start_of_day()
                        .ok()?,
                    1.week(),
                )
            }
            CalendarPeriod::Month => (local.first_of_month().ok()?.start_of_day().ok()?, 1.month()),
        };
        // Civil arithmetic first, then the zone: the next start of day exists even where midnight
        // does not.
        let next = start
            .date()
            .checked_add(length)
            .ok()?
            .to_zoned(self.zone.clone())
            .ok()?;
        Some((from_zoned(&start)?, from_zoned(&next.start_of_day().ok()?)?))
    }

    /// Minutes and hours by arithmetic in the zone's offset: an hour that a clock change repeats
    /// is two windows, and one that it skips is none.
    fn short_edges(&self, wall: Wall) -> Option<(Wall, Wall)> {
        let length = self.max_length().0;
        let offset = self.zone.to_offset(timestamp(wall)?).seconds();
        let shift = u64::from(offset.unsigned_abs()) * 1_000_000 % length;
        let into = if offset >= 0 {
            (wall.0 + shift) % length
        } else {
            (wall.0 + length - shift) % length
        };
        let start = Wall(wall.0.saturating_sub(into));
        Some((start, start + Span(length)))
    }
}

/// The count of one calendar limit.
///
/// The provider's edge is within the margin of ours. Calls with a response after `edge − margin`
/// count on both sides of it, and the next window opens at `edge + margin`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CalendarCount {
    pub(crate) counter: WindowCounter,
    pub(crate) clock: Option<TrustedClock>,
    /// The end of the current window. It only moves ahead.
    pub(crate) edge: Wall,
}

impl CalendarCount {
    pub(crate) fn refresh(&mut self, calendar: &Calendar, now: Now) -> u64 {
        self.clock
            .get_or_insert_with(|| TrustedClock::new(now))
            .observe(now);
        let lapsed = self.counter.pending.drain_lapsed(now.at);
        let lapsed_cost = sum_of(&lapsed);
        self.counter.used = self.counter.used.saturating_sub(lapsed_cost);
        let since = self.roll_to(calendar, now.at);
        // After the edge: a call without a response may have arrived in the current window, however
        // long ago the last refresh was.
        for call in lapsed {
            if self.wall(call.free_at) >= since {
                let late = self.is_late(calendar, call.free_at);
                self.counter.take_settled(call.cost, late, Micros(u64::MAX));
            }
        }
        lapsed_cost
    }

    /// Moves to the next window if its edge has passed. Returns the time from which calls count in
    /// the current window.
    fn roll_to(&mut self, calendar: &Calendar, now: Micros) -> Wall {
        let wall = self.wall(now);
        let farthest =
            wall + calendar.max_length() + calendar.margin() + CLOCK_TOLERANCE + CLOCK_TOLERANCE;
        if self.edge > farthest {
            // The clock was far ahead and has been corrected: the count stays, and the window ends
            // at its true end.
            self.edge = calendar.window(wall).1;
        }
        if wall < self.edge + calendar.margin() {
            return Wall(0);
        }
        let (start, end) = calendar.window(wall - calendar.margin());
        if start > self.edge {
            // A whole window passed without a call: late calls are two windows back.
            self.counter.late = 0;
        }
        self.counter.roll(now);
        self.edge = end.max(self.edge);
        start - calendar.margin()
    }

    pub(crate) fn room(
        &self,
        calendar: &Calendar,
        want: CellRequest,
        now: Micros,
    ) -> Result<(), CellWait> {
        if self.counter.used.saturating_add(want.cost) <= want.room {
            return Ok(());
        }
        Err(CellWait {
            after: self.reset_after(calendar, now),
            on: WakeOn::Time,
        })
    }

    pub(crate) fn take(&mut self, rule: &Rule, calendar: &Calendar, grant: Grant) {
        if rule.holds_until_send() {
            let late = self.is_late(calendar, grant.latest);
            self.counter
                .take_settled(grant.cost, late, Micros(u64::MAX));
        } else {
            let free_at = grant.arrives_by + rule.lag();
            self.counter
                .take(grant.id, PendingCall::new(&grant, free_at));
        }
    }

    /// The provider had counted the call by then, if at all.
    pub(crate) fn settle(&mut self, rule: &Rule, calendar: &Calendar, settled: Settled) -> bool {
        let late = self.is_late(calendar, settled.at + rule.lag());
        self.counter
            .settle(settled.id, settled.cost, late, Micros(u64::MAX))
            .is_some()
    }

    /// Usage of another cell counts as counted now, whenever that was: a count that is too high
    /// ends with this window.
    pub(super) fn take_over(
        &mut self,
        rule: &Rule,
        calendar: &Calendar,
        usage: &CarriedUsage,
        now: Micros,
    ) {
        let late = self.is_late(calendar, now);
        let counted = usage.counted_up_to(rule.max_cost());
        self.counter.take_settled(counted, late, Micros(u64::MAX));
        for &(id, call) in &usage.pending {
            let free_at = call.free_at + rule.lag();
            self.counter.take(id, PendingCall { free_at, ..call });
        }
    }

    /// Calls that are missing from it had been counted by `at`, in this window or an earlier one.
    pub(super) fn count_lost(&mut self, calendar: &Calendar, cost: u64, at: Micros) {
        let (start, _) = calendar.window(self.edge - Span(1));
        if self.wall(at) + calendar.margin() + CLOCK_TOLERANCE >= start {
            let late = self.is_late(calendar, at);
            self.counter.take_settled(cost, late, Micros(u64::MAX));
        }
    }

    pub(crate) fn undo(&mut self, id: PermitId) -> bool {
        self.counter.undo(id).is_some()
    }

    /// How long until the next window opens.
    pub(crate) fn reset_after(&self, calendar: &Calendar, now: Micros) -> Span {
        self.clock.map_or(Span::ZERO, |clock| {
            clock.until(self.edge + calendar.margin(), now)
        })
    }

    /// How long ago the current window began.
    pub(crate) fn window_age(&self, calendar: &Calendar, now: Micros) -> Option<Span> {
        let (start, _) = calendar.window(self.edge - Span(1));
        self.clock.map(|clock| clock.wall_at(now).since(start))
    }

    /// The provider's `Date` confirms a wall clock that was changed.
    pub(crate) fn confirm(&mut self, now: Now, date: Wall) {
        if let Some(clock) = &mut self.clock {
            clock.confirm(now, date);
        }
    }

    fn is_late(&self, calendar: &Calendar, at: Micros) -> bool {
        self.wall(at) + calendar.margin() >= self.edge
    }

    fn wall(&self, at: Micros) -> Wall {
        self.clock.map_or(Wall(0), |clock| clock.wall_at(at))
    }
}

fn timestamp(wall: Wall) -> Option<Timestamp> {
    Timestamp::from_microsecond(i64::try_from(wall.0).ok()?).ok()
}

fn from_zoned(zoned: &Zoned) -> Option<Wall> {
    u64::try_from(zoned.timestamp().as_microsecond())
        .ok()
        .map(Wall)
}
