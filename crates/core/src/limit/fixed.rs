//! A window that opens with the first call and ends one period later.
//!
//! Promises: exact against a provider that counts the same way. The provider's window opens when
//! its first call arrives, which is after that call's grant and before any of its calls is
//! answered: so it ends not before `earliest + W` and not after the first answer + W. Calls that
//! are answered after the former count in the following window as well (`phase`). A window that
//! follows one with such calls may have been opened by them, so its `earliest` is the end of the
//! one before.
//!
//! Never: a new window because a clock went back; never more than O(1) state per key beside the
//! calls on their way.

use crate::ask::{On, PermitId};
use crate::limit::holds::Open;
use crate::limit::phase::Phase;
use crate::limit::room::{Grant, Wait, Want};
use crate::limit::rule::Rule;
use crate::time::{Micros, Span};

/// One window at a time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fixed {
    pub(crate) phase: Phase,
    /// When the first call of this window was granted; `None` between two windows.
    pub(crate) opened: Option<Micros>,
    /// The earliest instant at which the provider's window may end.
    pub(crate) touches: Micros,
    /// The latest instant at which it ends; known with the first answer.
    pub(crate) ends: Option<Micros>,
}

impl Fixed {
    pub(crate) fn refresh(&mut self, rule: &Rule, now: Micros) -> u64 {
        let window = window(rule);
        let mut lapsed = 0;
        for open in self.phase.open.lapsed(now) {
            lapsed += open.cost;
            // Answered, as far as we will ever know, when its last instant had passed.
            self.phase.used -= open.cost;
            let answered = open.free_at;
            self.phase
                .take_answered(open.cost, self.is_late(answered), answered + window);
            self.note_answer(&open, answered + window);
        }
        if self.opened.is_some() && self.ends.is_some_and(|ends| now >= ends) {
            self.phase.roll(now);
            self.opened = None;
            self.ends = None;
        }
        if self.opened.is_none() && self.phase.open.is_empty() && now >= self.phase.late_until {
            self.phase.used = 0;
            self.phase.late = 0;
        }
        lapsed
    }

    pub(crate) fn room(&self, rule: &Rule, want: Want, now: Micros) -> Result<(), Wait> {
        if self.phase.used + want.cost <= want.room {
            return Ok(());
        }
        if self.phase.used == 0 {
            // The provider told a limit below this cost: one window decides.
            return Err(Wait {
                after: window(rule),
                on: On::Event,
            });
        }
        let end = match self.opened {
            Some(_) => self.ends,
            None if self.phase.open.is_empty() => Some(self.phase.late_until),
            None => None,
        };
        Err(match end {
            Some(end) => Wait {
                after: end.since(now),
                on: On::Time,
            },
            None => {
                let lapse = self
                    .phase
                    .open
                    .first_lapse()
                    .map_or(Span::ZERO, |at| at.since(now));
                Wait {
                    after: lapse,
                    on: On::Event,
                }
            }
        })
    }

    pub(crate) fn take(&mut self, rule: &Rule, grant: Grant) {
        if self.opened.is_none() {
            let earliest = if self.phase.used == 0 {
                grant.at
            } else {
                self.touches
            };
            self.opened = Some(grant.at);
            self.touches = earliest + rule.shrunk(rule.period());
        }
        if rule.holds_until_send() {
            let end = grant.at + window(rule);
            self.ends = Some(self.ends.map_or(end, |ends| ends.min(end)));
            self.phase
                .take_answered(grant.cost, self.is_late(grant.at), end);
        } else {
            let free_at = grant.arrives_by + rule.lag();
            self.phase.take(
                grant.id,
                Open {
                    cost: grant.cost,
                    granted: grant.at,
                    free_at,
                },
            );
        }
    }

    /// The call had been counted by `at`.
    pub(crate) fn settle(&mut self, rule: &Rule, id: PermitId, cost: u64, at: Micros) -> bool {
        let at = at + rule.lag();
        let end = at + window(rule);
        let Some(open) = self.phase.settle(id, cost, self.is_late(at), end) else {
            return false;
        };
        self.note_answer(&open, end);
        true
    }

    pub(crate) fn undo(&mut self, id: PermitId) -> bool {
        let undone = self.phase.undo(id).is_some();
        if undone && self.phase.used == 0 {
            // The window never was: nothing that opened it has left this host.
            *self = Fixed::default();
        }
        undone
    }

    /// A call that was granted inside this window surely belongs to it, so the provider's window
    /// had begun when it was answered. One that was granted before proves nothing.
    fn note_answer(&mut self, open: &Open, end: Micros) {
        if self.opened.is_some_and(|opened| open.granted >= opened) {
            self.ends = Some(self.ends.map_or(end, |ends| ends.min(end)));
        }
    }

    /// Between two windows every answer is late: it may open the next one.
    fn is_late(&self, at: Micros) -> bool {
        self.opened.is_none() || at >= self.touches
    }
}

fn window(rule: &Rule) -> Span {
    rule.stretched(rule.period())
}
