//! What scopes looked like a moment ago, for those who must not wait for the ledger thread.
//!
//! Promises: reading costs one map lookup. What this process has settled shows at once; what others
//! have settled shows after at most [`FRESH_FOR`] and one further read.
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
const FRESH_FOR: Span = Span::from_millis(500);

/// How long after it was last seen a scope may be evicted.
const EVICTABLE_AFTER: Span = Span::from_secs(10);

/// What was last seen of scopes.
#[derive(Debug, Default)]
pub(crate) struct LastSeenScopes {
    scopes: Mutex<HashMap<ScopeId, SeenScope>>,
}

#[derive(Clone, Copy, Debug)]
struct SeenScope {
    view: ScopeView,
    /// When that was so.
    at: Micros,
    /// When the store was asked last.
    requested_at: Micros,
}

/// What can be said at once.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct LastSeenScope {
    pub(crate) view: ScopeView,
    /// It is not known, or old, and nobody has asked for it lately.
    pub(crate) needs_refresh: bool,
}

impl LastSeenScopes {
    /// What a scope looks like, as far as that is known.
    pub(crate) fn get(&self, scope: ScopeId, now: Micros) -> LastSeenScope {
        let mut scopes = self.scopes.lock();
        let Some(seen) = scopes.get_mut(&scope) else {
            let unseen = SeenScope {
                view: ScopeView::Open,
                at: now,
                requested_at: now,
            };
            return LastSeenScope {
                view: ScopeView::Open,
                // Without room for the reply the store is not asked.
                needs_refresh: insert(&mut scopes, scope, unseen),
            };
        };
        let needs_refresh = now.since(seen.at.max(seen.requested_at)) >= FRESH_FOR;
        if needs_refresh {
            seen.requested_at = now;
        }
        LastSeenScope {
            view: aged_view(seen.view, now.since(seen.at)),
            needs_refresh,
        }
    }

    /// This is what the store says.
    pub(crate) fn record(&self, scope: ScopeId, view: ScopeView, now: Micros) {
        let asked = now;
        let seen = SeenScope {
            view,
            at: now,
            requested_at: asked,
        };
        insert(&mut self.scopes.lock(), scope, seen);
    }

    /// This process has settled something: a scope that it closes or opens.
    pub(crate) fn on_settle(&self, settle: &Settle, now: Micros) {
        match settle {
            Settle::Close {
                scope, closed_for, ..
            } => {
                self.record(
                    *scope,
                    ScopeView::Closed {
                        remaining: *closed_for,
                    },
                    now,
                );
            }
            Settle::Limited {
                scope, closed_for, ..
            } => {
                let remaining = Some(*closed_for);
                self.record(*scope, ScopeView::Closed { remaining }, now);
            }
            Settle::Open { scope } => self.record(*scope, ScopeView::Open, now),
            Settle::Permit { .. }
            | Settle::Failed { .. }
            | Settle::Succeeded { .. }
            | Settle::Inherit { .. } => {}
        }
    }
}

/// What a view has become after this time, by itself.
fn aged_view(view: ScopeView, passed: Span) -> ScopeView {
    match view {
        ScopeView::Closed {
            remaining: Some(remaining),
        } if remaining <= passed => ScopeView::Open,
        ScopeView::Closed {
            remaining: Some(remaining),
        } => ScopeView::Closed {
            remaining: Some(remaining - passed),
        },
        ScopeView::Closed { remaining: None }
        | ScopeView::Open
        | ScopeView::Paced { .. }
        | ScopeView::Probing
        | ScopeView::CacheOnly { .. }
        | ScopeView::Paused { .. } => view,
    }
}

/// `false`: there was no room.
fn insert(scopes: &mut HashMap<ScopeId, SeenScope>, scope: ScopeId, seen: SeenScope) -> bool {
    if scopes.len() >= SCOPES_MAX && !scopes.contains_key(&scope) {
        scopes.retain(|_, known| seen.at.since(known.at) < EVICTABLE_AFTER);
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

    fn closed(remaining: Span) -> ScopeView {
        ScopeView::Closed {
            remaining: Some(remaining),
        }
    }

    #[test]
    fn a_scope_is_requested_once_and_again_when_its_view_is_old() {
        let last_seen = LastSeenScopes::default();
        let start = Micros(1_000_000);
        let asked = |now| last_seen.get(SCOPE, now).needs_refresh;
        assert!(asked(start));
        assert!(!asked(start + Span(1)), "the answer is on its way");
        last_seen.record(SCOPE, closed(Span::from_secs(9)), start + Span(2));
        assert!(!asked(start + FRESH_FOR));
        assert!(asked(start + Span(2) + FRESH_FOR));
        assert!(!asked(start + Span(3) + FRESH_FOR));
    }

    #[test]
    fn settles_of_this_process_show_at_once_and_expire() {
        let last_seen = LastSeenScopes::default();
        let (start, closed_for) = (Micros(1_000_000), Span::from_millis(200));
        let close = Settle::Close {
            scope: SCOPE,
            age: Span::ZERO,
            closed_for: Some(closed_for),
            reopen: Reopen::All,
        };
        last_seen.on_settle(&close, start);
        let view = |now| last_seen.get(SCOPE, now).view;
        assert_eq!(view(start), closed(closed_for));
        assert_eq!(view(start + Span(1)), closed(closed_for - Span(1)));
        assert_eq!(view(start + closed_for), ScopeView::Open);
        last_seen.on_settle(&close, start);
        last_seen.on_settle(&Settle::Open { scope: SCOPE }, start);
        assert_eq!(view(start), ScopeView::Open);
    }

    /// Entities come from callers: whoever names thousands fills no memory.
    #[test]
    fn no_more_scopes_are_stored_than_the_maximum() {
        let last_seen = LastSeenScopes::default();
        let start = Micros(1_000_000);
        for number in 0..=SCOPES_MAX as u64 {
            let seen = last_seen.get(ScopeId(number.into()), start);
            assert_eq!(seen.needs_refresh, number < SCOPES_MAX as u64);
        }
        assert_eq!(last_seen.scopes.lock().len(), SCOPES_MAX);
        let new = ScopeId(u64::MAX.into());
        assert!(last_seen.get(new, start + EVICTABLE_AFTER).needs_refresh);
        assert_eq!(last_seen.scopes.lock().len(), 1);
    }
}
