//! Fairness between owners: who goes first, who takes how much of what is free, and who is woken.
//!
//! Promises: an urgent ask goes before the less urgent ones of every owner, and among equals the
//! least served owner goes first: what is free is left for those who are expected this very moment
//! and go before, and saved up for those who go before and need more than there is. A batch takes
//! at most ⌈free / waiting owners⌉ of a cell for which others wait that are not less urgent, or what
//! comes free while it has its turn, where a turn takes time; what it leaves, it may come back for at
//! once. Of those who wait the first in this order are woken, and no
//! more than there is room for. An owner that was rejected and does not wait counts for nothing.
//!
//! Never: holds anything back when nobody else waits, or for longer than [`LATE_TOLERANCE`] after
//! its time for one who does not come.

mod turns;
pub(crate) use turns::{TURN, turns_before, turns_tolerance};

use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::ask::{Ask, BlockedBy, CellId, OwnerId, Priority, Term, Verdict, WakeOn};
use crate::limit::{CellView, Rule};
use crate::time::{Micros, Span, TimeBounds};
use crate::turn::CellStore;

use turns::{freed_within, late_tolerance};

/// Owners that one cell remembers as waiting. At some 30 bytes each they add 8 KiB to a row; one
/// that finds no place has no place in the order either, and asks again at its time.
pub const WAITERS_MAX: usize = 256;

/// When to come back for the rest of what is free: others have had their turn by then.
const ASK_AGAIN_AFTER: Span = Span::from_millis(1);

/// How long after its time one that goes before is waited for: its timer has a millisecond, its
/// thread and the lock another, and a busy machine some more. One that is dead, or stopped, costs
/// the others this much once.
const LATE_TOLERANCE: Span = Span::from_millis(6);

/// Timers of two processes for the same instant differ by this much.
const EARLY_TOLERANCE: Span = Span::from_millis(1);

/// How much longer than it said a waiter is expected. It asks at its time, or each second.
pub(crate) const GRACE: Span = Span::from_millis(1_500);

/// An owner that a cell has rejected and that waits for it: the most urgent of its asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiter {
    /// Which owner.
    pub owner: OwnerId,
    /// What ends its wait.
    pub on: WakeOn,
    /// How urgent its most urgent ask is.
    pub priority: Priority,
    /// What that ask takes.
    pub cost: u64,
    /// What it was granted since it waits: free units go to the least served.
    pub granted: u64,
    /// Since when it waits.
    pub since: Micros,
    /// When it asks again: at its time, or now that it was signalled.
    pub due: Micros,
    /// Until when it counts as waiting.
    pub until: Micros,
    /// Somebody has signalled it already.
    pub is_woken: bool,
}

/// The rows of one batch: cells and scopes, and the owners that wait for a cell.
pub trait Rows: CellStore {
    /// May another owner use these rows? If not, fairness costs nothing.
    fn is_shared(&self) -> bool;
    /// The owners that wait for a cell.
    fn waiters(&self, cell: CellId) -> &[Waiter];
    /// The same, to be changed.
    fn waiters_mut(&mut self, cell: CellId) -> &mut Vec<Waiter>;
    /// The visible state of a limit.
    fn peek(&self, cell: CellId, rule: &Rule, now: TimeBounds) -> CellView;
    /// How long an owner's turn takes, where others learn of it only then: a round trip to a
    /// networked store.
    fn turn_time(&self) -> Span {
        Span::ZERO
    }
}

/// Whom to wake for a cell that has come free: the first `at_most` of these that live.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wake {
    /// The cell.
    pub cell: CellId,
    /// In the order in which they are to be served.
    pub owners: Vec<OwnerId>,
    /// As many as there is room for.
    pub at_most: usize,
}

/// What became of the asks for one cell in this batch.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    granted: u64,
    /// The least urgent one that was granted.
    served: Option<Priority>,
    /// The most urgent one that was rejected and waits.
    waiting: Option<WaitingAsk>,
}

/// For what this owner waits.
#[derive(Clone, Copy, Debug)]
struct WaitingAsk {
    priority: Priority,
    cost: u64,
    on: WakeOn,
    /// When it asks again.
    after: Span,
    /// How long this owner counts as waiting.
    waits: Span,
}

/// What the asks of one batch must leave to others.
#[derive(Debug, Default)]
pub(crate) struct Withheld {
    /// Per ask: its verdict if it must wait so that others are served. Empty if none must.
    pub(crate) verdicts: Vec<Option<Verdict>>,
    /// For whom something is saved up. If one of them is dead, nobody else would find out.
    pub(crate) saved_for: Vec<OwnerId>,
}

/// Why an ask must leave what is free.
#[derive(Clone, Copy, Debug)]
enum Hold {
    /// One that goes before is expected this very moment.
    Expected,
    /// One that goes before needs more than there is. Its time comes then.
    Saved { for_owner: OwnerId, until: Micros },
}

/// A cell that has something free and for which others wait, as one batch meets it.
struct ContendedCell {
    now: Micros,
    turn_time: Span,
    free: u64,
    /// What this batch has taken so far.
    taken: u64,
    /// Whoever comes after one that was withheld must not overtake it.
    hold: Option<Hold>,
    /// This owner among equals: how much it got, since when it waits.
    own_rank: (u64, Micros, OwnerId),
    others: Vec<Waiter>,
    /// Of the others: is it expected this very moment?
    expected: Vec<bool>,
}

impl ContendedCell {
    /// `None`: nobody else waits, or there is nothing to share.
    fn of(
        rows: &impl Rows,
        term: &Term,
        is_freed: bool,
        owner: OwnerId,
        now: TimeBounds,
    ) -> Option<ContendedCell> {
        let waiters = rows.waiters(term.cell);
        let others: Vec<Waiter> = others(waiters, owner).collect();
        if others.is_empty() {
            return None;
        }
        let free = rows.peek(term.cell, &term.rule, now).remaining;
        if free == 0 {
            return None;
        }
        let own = waiters.iter().find(|waiter| waiter.owner == owner);
        let turn_time = rows.turn_time();
        let expected =
            |waiter: &Waiter| (is_freed && !waiter.is_woken) || is_due(waiter, now.lo, turn_time);
        Some(ContendedCell {
            now: now.lo,
            turn_time,
            free,
            taken: 0,
            hold: None,
            // Who does not wait yet comes after those who do.
            own_rank: own.map_or((u64::MAX, Micros(u64::MAX), owner), rank),
            expected: others.iter().map(expected).collect(),
            others,
        })
    }

    /// Is there so much at all? If not, the cell itself says when there is.
    fn has_room_for(&self, priority: Priority, term: &Term) -> bool {
        term.cost.saturating_add(term.reserve_for(priority)) <= self.free
    }

    /// Must an ask leave what is free to others?
    fn withholds(&self, priority: Priority, term: &Term) -> Option<Hold> {
        if self.hold.is_some() || !self.has_room_for(priority, term) {
            return self.hold;
        }
        let cost = term.cost;
        let goes_before = |waiter: &Waiter| {
            waiter.priority > priority
                || (waiter.priority == priority && rank(waiter) < self.own_rank)
        };
        let savers = self
            .others
            .iter()
            .filter(|one| self.is_saved_for(one, term));
        let savers = savers.filter(|one| goes_before(one));
        if let Some(first) = savers.min_by_key(|one| one.due) {
            return Some(Hold::Saved {
                for_owner: first.owner,
                until: first.due,
            });
        }
        let both = self.others.iter().zip(&self.expected);
        let before = both.filter(|(waiter, expected)| **expected && goes_before(waiter));
        let owed = before.fold(0_u64, |sum, (waiter, _)| sum.saturating_add(waiter.cost));
        let rivals = self.others.iter().filter(|one| one.priority >= priority);
        let rivals = rivals.count() as u64;
        let fair = self.free.div_ceil(rivals + 1);
        let fair = match self.turn_time {
            Span::ZERO => fair,
            turn_time => fair
                .max(freed_within(&term.rule, turn_time.scale_up(rivals + 1, 1)))
                .max(self.arrears(priority, &term.rule)),
        };
        let room = fair.min(self.free.saturating_sub(owed));
        let is_first = self.taken == 0 && owed == 0;
        (self.taken.saturating_add(cost) > room && !is_first).then_some(Hold::Expected)
    }

    /// What this owner may take so that all who wait have got the same, if those that got more take
    /// nothing: where turns take time, each should need only one.
    fn arrears(&self, priority: Priority, rule: &Rule) -> u64 {
        let rivals = self.others.iter().filter(|one| one.priority >= priority);
        let mut granted: Vec<u64> = rivals.map(|one| one.granted).collect();
        let own = match self.own_rank.0 {
            u64::MAX => return 0,
            own => own,
        };
        granted.push(own);
        granted.sort_unstable();
        // Whoever got less than this is raised to it: the highest level for which there is enough.
        let (mut sum, mut level) = (self.free, own);
        for (count, got) in (1_u64..).zip(&granted) {
            sum = sum.saturating_add(*got);
            if sum / count < *got {
                break;
            }
            level = sum / count;
        }
        level.saturating_sub(own).min(rule.limit())
    }

    /// Does it wait for more than there is? Whatever others take would put its time off, again and
    /// again. The reserve of a limit is the same for all of them.
    fn is_saved_for(&self, waiter: &Waiter, term: &Term) -> bool {
        let need = waiter
            .cost
            .saturating_add(term.reserve_for(waiter.priority));
        need > self.free && self.now <= waiter.due + late_tolerance(self.turn_time)
    }
}

impl Hold {
    /// What the ask hears. Something that is saved up may be left over earlier, if the one it is
    /// saved for leaves: that is signalled.
    fn verdict(self, term: usize, now: Micros, turn_time: Span) -> Verdict {
        let soon = ASK_AGAIN_AFTER + turn_time;
        let (after, on) = match self {
            Hold::Expected => (soon, WakeOn::Time),
            Hold::Saved { until, .. } if until <= now => (soon, WakeOn::Time),
            Hold::Saved { until, .. } => (until.since(now) + soon, WakeOn::Event),
        };
        let by = BlockedBy::Term(term);
        Verdict::Wait { after, on, by }
    }
}

/// The order among equals: the least served, then who waits longest.
fn rank(waiter: &Waiter) -> (u64, Micros, OwnerId) {
    (waiter.granted, waiter.since, waiter.owner)
}

/// Is it the time at which it wanted to come, and not long past it?
fn is_due(waiter: &Waiter, now: Micros, turn_time: Span) -> bool {
    let is_late = now > waiter.due + late_tolerance(turn_time);
    waiter.due <= now + EARLY_TOLERANCE && !is_late
}

/// What these asks must leave to others who are served first.
pub(crate) fn withheld(
    rows: &impl Rows,
    asks: &[Ask],
    freed: &[CellId],
    owner: OwnerId,
    now: TimeBounds,
) -> Withheld {
    let terms = asks.iter().flat_map(|ask| &ask.terms);
    let mut contests: BTreeMap<CellId, ContendedCell> = BTreeMap::new();
    for term in terms.filter(|term| !rows.waiters(term.cell).is_empty()) {
        if !contests.contains_key(&term.cell) {
            let is_freed = freed.contains(&term.cell);
            let contest = ContendedCell::of(rows, term, is_freed, owner, now);
            contests.extend(contest.map(|contest| (term.cell, contest)));
        }
    }
    if contests.is_empty() {
        return Withheld::default();
    }
    let (mut saved_for, turn_time) = (Vec::new(), rows.turn_time());
    let mut withhold = |ask: &Ask| {
        let over = ask.terms.iter().enumerate().find_map(|(index, term)| {
            let contest = contests.get(&term.cell)?;
            Some((index, contest.withholds(ask.priority, term)?))
        });
        for (index, term) in ask.terms.iter().enumerate() {
            if let Some(contest) = contests.get_mut(&term.cell) {
                // What is saved up is saved up in one cell; the others are only left alone for now.
                let hold = over.map(|(at, hold)| if at == index { hold } else { Hold::Expected });
                contest.hold = contest.hold.or(hold);
                if contest.has_room_for(ask.priority, term) {
                    contest.taken = contest.taken.saturating_add(term.cost);
                }
            }
        }
        if let Some((_, Hold::Saved { for_owner, .. })) = over
            && !saved_for.contains(&for_owner)
        {
            saved_for.push(for_owner);
        }
        over.map(|(term, hold)| hold.verdict(term, now.lo, turn_time))
    };
    let verdicts = asks.iter().map(&mut withhold).collect();
    Withheld {
        verdicts,
        saved_for,
    }
}

/// Counts what was granted and rejected, cell by cell.
pub(crate) fn tally(asks: &[Ask], verdicts: &[Verdict]) -> BTreeMap<CellId, Tally> {
    let mut tallies: BTreeMap<CellId, Tally> = BTreeMap::new();
    for (ask, verdict) in asks.iter().zip(verdicts) {
        match verdict {
            Verdict::Go { .. } => {
                for term in &ask.terms {
                    let tally = tallies.entry(term.cell).or_default();
                    tally.granted = tally.granted.saturating_add(term.cost);
                    let least = tally.served.unwrap_or(Priority::High);
                    tally.served = Some(least.min(ask.priority));
                }
            }
            Verdict::Wait {
                after,
                on,
                by: BlockedBy::Term(index),
            } => {
                if let Some(term) = ask.terms.get(*index)
                    && will_wait(ask, *after, *on)
                {
                    let tally = tallies.entry(term.cell).or_default();
                    tally.add_waiting(ask.priority, term.cost, *after, *on);
                }
            }
            Verdict::Wait { .. } | Verdict::Never(_) => {}
        }
    }
    tallies
}

/// Does an ask with this verdict wait? If not, no capacity is left for it.
#[must_use]
pub fn will_wait(ask: &Ask, after: Span, on: WakeOn) -> bool {
    match on {
        WakeOn::Time => ask.max_wait >= after,
        WakeOn::Event | WakeOn::Release => ask.max_wait > Span::ZERO,
    }
}

impl Tally {
    fn add_waiting(&mut self, priority: Priority, cost: u64, after: Span, on: WakeOn) {
        let waits = match on {
            WakeOn::Event | WakeOn::Release => GRACE,
            WakeOn::Time => after + GRACE,
        };
        // One that only a returned permit can serve in time is signalled, and nothing is saved up for it.
        let cost = if on == WakeOn::Release { 0 } else { cost };
        let one = WaitingAsk {
            priority,
            cost,
            on,
            after,
            waits,
        };
        self.waiting = Some(match self.waiting {
            Some(before) => before.merged_with(one),
            None => one,
        });
    }
}

impl WaitingAsk {
    /// Both of them wait: the more urgent one says when, and a signal is wanted if either wants it.
    fn merged_with(self, other: WaitingAsk) -> WaitingAsk {
        let first = if (other.priority, other.cost > 0) > (self.priority, self.cost > 0) {
            other
        } else {
            self
        };
        let on = match (self.on, other.on) {
            (WakeOn::Time, WakeOn::Time) => WakeOn::Time,
            (WakeOn::Event | WakeOn::Release, _) | (_, WakeOn::Event | WakeOn::Release) => {
                WakeOn::Event
            }
        };
        WaitingAsk {
            on,
            waits: self.waits.max(other.waits),
            ..first
        }
    }
}

/// Notes that this owner waits for a cell, or that it does so no longer.
pub(crate) fn record(waiters: &mut Vec<Waiter>, owner: OwnerId, tally: Tally, now: Micros) {
    let known = waiters.iter().position(|waiter| waiter.owner == owner);
    if let Some(waiting) = tally.waiting {
        // Who is new here has not been served less than the others.
        let least = waiters.iter().map(|waiter| waiter.granted).min();
        let before = known.map(|index| waiters[index]);
        let granted = before.map_or(least.unwrap_or(0), |before| before.granted);
        let waiter = Waiter {
            owner,
            on: waiting.on,
            priority: waiting.priority,
            cost: waiting.cost,
            granted: granted.saturating_add(tally.granted),
            since: before.map_or(now, |before| before.since),
            due: now + waiting.after,
            until: now + waiting.waits,
            is_woken: false,
        };
        match known {
            Some(index) => waiters[index] = waiter,
            None if waiters.len() < WAITERS_MAX => waiters.push(waiter),
            None => {}
        }
        return;
    }
    match (known, tally.served) {
        // Something more urgent of this owner went past the one that waits.
        (Some(index), Some(served)) if served > waiters[index].priority => {
            let known = &mut waiters[index];
            known.granted = known.granted.saturating_add(tally.granted);
        }
        (Some(index), Some(_)) => {
            waiters.remove(index);
        }
        // Nobody was served: an ask that does not wait says nothing of one that does.
        (_, None) | (None, _) => {}
    }
}

/// Whom to wake for a cell that has come free and has this much room. They are expected from now on.
pub(crate) fn wake_for_room(
    cell: CellId,
    waiters: &mut [Waiter],
    room: u64,
    owner: OwnerId,
    now: Micros,
) -> Option<Wake> {
    // Without room, those who wait for a signal learn by asking when there will be: all of them,
    // for each will then have a timer.
    let mut woken: Vec<Waiter> = others(waiters, owner)
        .filter(|waiter| !waiter.is_woken && (room > 0 || waiter.on.is_event()))
        .collect();
    woken.sort_by_key(|waiter| (Reverse(waiter.priority), rank(waiter)));
    let at_most = match usize::try_from(room) {
        Ok(room @ 1..) => room.min(woken.len()),
        Ok(0) | Err(_) => woken.len(),
    };
    let owners = woken.iter().map(|waiter| waiter.owner).collect();
    wake(cell, waiters, owners, at_most, now)
}

/// This owner waits for a cell no longer. Whom to wake for it: what was saved up for it is theirs.
/// It does not happen often, so all of them are, and their order is kept when they ask.
pub(crate) fn leave(
    cell: CellId,
    waiters: &mut Vec<Waiter>,
    owner: OwnerId,
    now: Micros,
) -> Option<Wake> {
    let index = waiters.iter().position(|waiter| waiter.owner == owner)?;
    waiters.remove(index);
    let owners: Vec<OwnerId> = waiters.iter().map(|waiter| waiter.owner).collect();
    let at_most = owners.len();
    wake(cell, waiters, owners, at_most, now)
}

fn wake(
    cell: CellId,
    waiters: &mut [Waiter],
    owners: Vec<OwnerId>,
    at_most: usize,
    now: Micros,
) -> Option<Wake> {
    for waiter in waiters.iter_mut() {
        if owners.iter().take(at_most).any(|one| *one == waiter.owner) {
            (waiter.is_woken, waiter.due) = (true, now);
        }
    }
    (!owners.is_empty()).then_some(Wake {
        cell,
        owners,
        at_most,
    })
}

fn others(waiters: &[Waiter], owner: OwnerId) -> impl Iterator<Item = Waiter> {
    let waiters = waiters.iter().copied();
    waiters.filter(move |waiter| waiter.owner != owner)
}
