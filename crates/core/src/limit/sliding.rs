//! Rule A, the response-clocked log: a slot is taken at the grant and frees one period after the
//! response.
//!
//! Promises: in no window of the provider's more than N, for any latency, jitter and reordering.
//! Proof: take a window of length W with more than N arrivals and its last-granted member j. Every
//! other member i was granted before j, and its response came at r ≥ a, so its slot is held until
//! r + W ≥ a + W, which is after j's arrival and so after j's grant: N slots were held when j was
//! granted. Contradiction.
//!
//! A provider that is stricter than a sliding log (two counters, bins) limits calls although the
//! log had room. Then the log becomes stricter for good, one step at a time: hold W, hold 9/8 W,
//! and space the calls as well.
//!
//! Never: frees by the send time (unless the rule says `hold_until: send`), and never relaxes when
//! the limit's number changes.

use crate::ask::{Priority, WakeOn};
use crate::limit::holds::{Holds, PendingCall};
use crate::limit::inherit::CarriedUsage;
use crate::limit::paced;
use crate::limit::room::{CellRequest, CellWait, Grant, Settled};
use crate::limit::rule::{Rule, SLOTS_EXACT, SUB_WINDOWS};
use crate::time::{Micros, Span, TimeBounds};

/// How strict the provider's window is, as learned from its 429s.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Strictness {
    /// Slots free after W.
    #[default]
    Window,
    /// Slots free after 9/8 W: covers windows of eight or more bins.
    Eighth,
    /// And calls are spaced: covers two-counter windows.
    Spaced,
}

impl Strictness {
    fn next(self) -> Strictness {
        match self {
            Strictness::Window => Strictness::Eighth,
            Strictness::Eighth | Strictness::Spaced => Strictness::Spaced,
        }
    }
}

/// The longest window over which low priority is spread. A person who waits for a slot to come back waits
/// less than this, and low priority catches up within it.
const SPREAD_PERIOD_MAX: Span = Span::from_secs(60);

/// The log of one sliding or paced limit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Log {
    pub(crate) holds: Holds,
    pub(crate) strictness: Strictness,
    /// When the log was last tightened or the limit lowered: a 429 of a call granted before carries
    /// no new information.
    pub(crate) tightened_at: Micros,
    /// Spaced calls: the next one not before this.
    pub(crate) due: Micros,
    /// When a high-priority call was seen last.
    pub(crate) urgent_seen: Option<Micros>,
    /// When a call was granted last.
    pub(crate) last_grant: Micros,
}

impl Log {
    pub(crate) fn refresh(&mut self, now: Micros) -> u64 {
        self.holds.refresh(now)
    }

    /// A high-priority call was seen: low priority is paced for one window from now.
    pub(crate) fn note_urgent(&mut self, now: Micros) {
        self.urgent_seen = Some(now);
    }

    pub(crate) fn room(&self, rule: &Rule, want: CellRequest, now: Micros) -> Result<(), CellWait> {
        let held = self.holds.held();
        let wanted = held.saturating_add(want.cost);
        if wanted > want.room {
            let need = wanted - want.room;
            return Err(if need > held {
                // Outside use holds it, or the limit was just lowered: wait one window.
                CellWait {
                    after: self.hold(rule),
                    on: WakeOn::Time,
                }
            } else {
                self.holds.wait_for(need, now)
            });
        }
        if self.is_spaced(rule) {
            paced::room(self, want.limit, now)?;
        }
        self.low_pace(rule, want, now)
    }

    pub(crate) fn take(&mut self, rule: &Rule, grant: Grant) {
        if self.is_spaced(rule) && grant.cost > 0 {
            let gap = self.gap(rule, grant.limit);
            self.due = paced::next_due(self.due, gap, grant.cost, grant.latest);
        }
        self.last_grant = grant.at;
        if rule.holds_until_send() {
            let free_at = grant.latest + self.hold(rule);
            self.holds.push_done(grant.cost, free_at, self.grain(rule));
        } else {
            let free_at = grant.arrives_by + rule.lag() + self.hold(rule);
            let call = PendingCall::new(&grant, free_at);
            self.holds.pending.add(grant.id, call);
        }
    }

    /// The provider had counted the call by then.
    pub(crate) fn settle(&mut self, rule: &Rule, settled: Settled, limit: u64) -> bool {
        let Settled { id, cost, at, .. } = settled;
        let free_at = at + rule.lag() + self.hold(rule);
        debug_assert!(
            free_at >= at + rule.period(),
            "rule A holds a slot for a window after its response"
        );
        let known = self.holds.settle(id, cost, free_at, self.grain(rule));
        if known && cost > 0 && self.is_spaced(rule) && limit <= paced::ONE_AT_A_TIME {
            let gap = self.gap(rule, limit).scale_up(cost, 1);
            self.due = self.due.max(at + gap);
        }
        known
    }

    /// The provider limited a call that was granted at `granted`, although the log had room. Slots
    /// that are already held are held longer as well; otherwise they would cause another
    /// tightening.
    pub(crate) fn tighten(&mut self, rule: &Rule, granted: Micros, now: Micros) -> bool {
        if self.strictness == Strictness::Spaced || granted < self.tightened_at {
            return false;
        }
        let before = self.hold(rule);
        self.strictness = self.strictness.next();
        self.tightened_at = now;
        self.holds.lengthen(self.hold(rule) - before);
        true
    }

    /// Usage of another cell is held for one window since it was counted.
    pub(super) fn take_over(
        &mut self,
        rule: &Rule,
        usage: &CarriedUsage,
        limit: u64,
        now: TimeBounds,
    ) {
        let (hold, grain) = (self.hold(rule) + rule.lag(), self.grain(rule));
        for &(at, cost) in &usage.done {
            if at + hold > now.lo {
                self.holds.push_done(cost, at + hold, grain);
            }
        }
        for &(id, call) in &usage.pending {
            let free_at = call.free_at + hold;
            self.holds.pending.add(id, PendingCall { free_at, ..call });
        }
        if self.is_spaced(rule) {
            self.due = self.due.max(now.hi + self.gap(rule, limit));
        }
        self.last_grant = now.lo;
        // Those calls went under another limit: a 429 for them says nothing about this one.
        self.tightened_at = now.hi;
    }

    /// How long a slot is held after the response.
    pub(crate) fn hold(&self, rule: &Rule) -> Span {
        let period = rule.stretched(rule.period());
        match self.strictness {
            Strictness::Window => period,
            Strictness::Eighth | Strictness::Spaced => period.scale_up(9, 8),
        }
    }

    pub(crate) fn is_spaced(&self, rule: &Rule) -> bool {
        self.strictness == Strictness::Spaced
            || matches!(rule.algorithm(), crate::limit::Algorithm::Paced { .. })
    }

    pub(crate) fn gap(&self, rule: &Rule, limit: u64) -> Span {
        paced::gap(rule.stretched(rule.period()), limit, self.strictness)
    }

    /// Rule A frees slots in groups. While urgent calls are seen, low priority goes at the fastest
    /// even pace that never runs out of slots until the last held one frees, so an urgent call
    /// finds a free slot. All slots are still used. Without urgent calls nothing is delayed.
    fn low_pace(&self, rule: &Rule, want: CellRequest, now: Micros) -> Result<(), CellWait> {
        if want.priority != Priority::Low {
            return Ok(());
        }
        match self.low_in(rule, want.room - self.holds.held(), now) {
            Span::ZERO => Ok(()),
            after => Err(CellWait {
                after,
                on: WakeOn::Time,
            }),
        }
    }

    /// How long until low priority may go, with so much free.
    pub(crate) fn low_in(&self, rule: &Rule, free: u64, now: Micros) -> Span {
        match self.urgent_until(rule, now) {
            Some(until) if self.last_grant != Micros(0) => {
                self.low_due(rule, free).min(until).since(now)
            }
            Some(_) | None => Span::ZERO,
        }
    }

    /// Does low priority go at an even pace now?
    pub(crate) fn spreads_low(&self, rule: &Rule, now: Micros) -> bool {
        self.urgent_until(rule, now).is_some()
    }

    /// Until when an urgent call that was seen counts. Not under long windows: there one urgent call would
    /// make low priority crawl for hours, past hundreds of free slots; `reserve` keeps slots there.
    fn urgent_until(&self, rule: &Rule, now: Micros) -> Option<Micros> {
        if rule.period() > SPREAD_PERIOD_MAX {
            return None;
        }
        let until = self.urgent_seen.map(|seen| seen + rule.period());
        until.filter(|until| now < *until)
    }

    /// Until a slot frees, the free slots are spread evenly since the last call; the slot with the
    /// longest such spacing decides. The instant does not move while time passes or slots free, so
    /// one timer is enough.
    fn low_due(&self, rule: &Rule, free: u64) -> Micros {
        let mut free = free;
        let mut gap = 0;
        for (back_at, cost) in self.holds.release_times(self.hold(rule)) {
            gap = gap.max(back_at.since(self.last_grant).0 / free.saturating_add(1));
            free = free.saturating_add(cost);
        }
        self.last_grant + Span(gap)
    }

    fn grain(&self, rule: &Rule) -> Span {
        if rule.limit() <= SLOTS_EXACT {
            Span(1)
        } else {
            Span(rule.period().0.div_ceil(SUB_WINDOWS))
        }
    }
}
