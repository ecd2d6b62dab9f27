//! What scopes looked like a moment ago, for those who must not wait for the ledger thread.
//!
//! Promises: a glance is a look at memory. What this process has settled shows at once; what others
//! have settled shows after at most [`FRESH`] and one glance more.
//!
//! Never: decides whether a call goes. That is the ledger's transaction.

use std::collections::HashMap;

use parking_lot::Mutex;
use tollgate_core::ask::{ScopeId, Settle};
use tollgate_core::scope::ScopeView;
use tollgate_core::time::{Micros, Span};

/// Scopes that are remembered. Entities come from callers; 4 096 at some 60 bytes are 250 KiB. Past
/// that those nobody has asked for lately go, and if there are none, the new one looks open.
const SCOPES_MAX: usize = 4_096;

/// How old a view may be before it is asked for again.
const FRESH: Span = Span::from_millis(500);

/// How long after it was last seen a scope is kept where there is no room.
const KEPT: Span = Span::from_secs(10);

/// What was last seen of scopes.
#[derive(Debug, Default)]
pub(super) struct Glances {
    scopes: Mutex<HashMap<ScopeId, Seen>>,
}

#[derive(Clone, Copy, Debug)]
struct Seen {
    view: ScopeView,
    /// When that was so.
    at: Micros,
    /// When the store was asked last.
    asked: Micros,
}

/// What can be said at once.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Glance {
    pub(super) view: ScopeView,
    /// It is not known, or old, and nobody has asked for it lately.
    pub(super) is_to_be_asked: bool,
}

impl Glances {
    /// What a scope looks like, as far as that is known.
    pub(super) fn at(&self, scope: ScopeId, now: Micros) -> Glance {
        let mut scopes = self.scopes.lock();
        let Some(seen) = scopes.get_mut(&scope) else {
            let unseen = Seen {
                view: ScopeView::Open,
                at: now,
                asked: now,
            };
            return Glance {
                view: ScopeView::Open,
                // Without room for the answer nobody asks.
                is_to_be_asked: put(&mut scopes, scope, unseen),
            };
        };
        let is_to_be_asked = now.since(seen.at.max(seen.asked)) >= FRESH;
        if is_to_be_asked {
            seen.asked = now;
        }
        Glance {
            view: later(seen.view, now.since(seen.at)),
            is_to_be_asked,
        }
    }

    /// This is what the store says.
    pub(super) fn note(&self, scope: ScopeId, view: ScopeView, now: Micros) {
        let asked = now;
        let seen = Seen {
            view,
            at: now,
            asked,
        };
        put(&mut self.scopes.lock(), scope, seen);
    }

    /// This process has settled something: a scope that it closes or opens.
    pub(super) fn settled(&self, settle: &Settle, now: Micros) {
        match settle {
            Settle::Close { scope, rest, .. } => {
                self.note(*scope, ScopeView::Closed { left: *rest }, now);
            }
            Settle::Open { scope } => self.note(*scope, ScopeView::Open, now),
            Settle::Permit { .. }
            | Settle::Failed { .. }
            | Settle::Well { .. }
            | Settle::Carry { .. } => {}
        }
    }
}

/// What a view has become after this time, by itself.
fn later(view: ScopeView, passed: Span) -> ScopeView {
    match view {
        ScopeView::Closed { left: Some(left) } if left <= passed => ScopeView::Open,
        ScopeView::Closed { left: Some(left) } => ScopeView::Closed {
            left: Some(left - passed),
        },
        ScopeView::Closed { left: None }
        | ScopeView::Open
        | ScopeView::Probing
        | ScopeView::CacheOnly { .. } => view,
    }
}

/// `false`: there was no room.
fn put(scopes: &mut HashMap<ScopeId, Seen>, scope: ScopeId, seen: Seen) -> bool {
    if scopes.len() >= SCOPES_MAX && !scopes.contains_key(&scope) {
        scopes.retain(|_, known| seen.at.since(known.at) < KEPT);
        if scopes.len() >= SCOPES_MAX {
            return false;
        }
    }
    scopes.insert(scope, seen);
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_core::ask::Reopen;

    const SCOPE: ScopeId = ScopeId(7);

    fn closed(left: Span) -> ScopeView {
        ScopeView::Closed { left: Some(left) }
    }

    #[test]
    fn a_scope_is_asked_for_once_and_again_when_its_view_is_old() {
        let glances = Glances::default();
        let start = Micros(1_000_000);
        let asked = |now| glances.at(SCOPE, now).is_to_be_asked;
        assert!(asked(start));
        assert!(!asked(start + Span(1)), "the answer is on its way");
        glances.note(SCOPE, closed(Span::from_secs(9)), start + Span(2));
        assert!(!asked(start + FRESH));
        assert!(asked(start + Span(2) + FRESH));
        assert!(!asked(start + Span(3) + FRESH));
    }

    #[test]
    fn what_this_process_settles_shows_at_once_and_ends_by_itself() {
        let glances = Glances::default();
        let (start, rest) = (Micros(1_000_000), Span::from_millis(200));
        let close = Settle::Close {
            scope: SCOPE,
            age: Span::ZERO,
            rest: Some(rest),
            then: Reopen::All,
        };
        glances.settled(&close, start);
        let view = |now| glances.at(SCOPE, now).view;
        assert_eq!(view(start), closed(rest));
        assert_eq!(view(start + Span(1)), closed(rest - Span(1)));
        assert_eq!(view(start + rest), ScopeView::Open);
        glances.settled(&close, start);
        glances.settled(&Settle::Open { scope: SCOPE }, start);
        assert_eq!(view(start), ScopeView::Open);
    }

    /// Entities come from callers: whoever names thousands fills no memory.
    #[test]
    fn no_more_scopes_are_remembered_than_there_is_room_for() {
        let glances = Glances::default();
        let start = Micros(1_000_000);
        for number in 0..=SCOPES_MAX as u64 {
            let glance = glances.at(ScopeId(number.into()), start);
            assert_eq!(glance.is_to_be_asked, number < SCOPES_MAX as u64);
        }
        assert_eq!(glances.scopes.lock().len(), SCOPES_MAX);
        let new = ScopeId(u64::MAX.into());
        assert!(glances.at(new, start + KEPT).is_to_be_asked);
        assert_eq!(glances.scopes.lock().len(), 1);
    }
}
