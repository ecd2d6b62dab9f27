//! Bounds the memory for scopes: cool-downs and degrade modes.
//!
//! Promises: bounded, whatever entities callers name; inactive scopes are dropped first.
//!
//! Never: drops an active scope for another.

use std::collections::HashMap;

use tollgate_core::ask::ScopeId;
use tollgate_core::time::{Micros, Span};

/// The number of scopes whose cool-downs and degrade modes are remembered. Entities come from
/// callers, so their number is unbounded; 4 096 at some 100 bytes are 400 KiB, and past that
/// inactive scopes are dropped first. If all are active, a further one cools down for the time that
/// it was told, but is not remembered.
const SCOPES_MAX: usize = 4_096;

/// How often inactive scopes are dropped while the map is full: each pass visits all scopes.
const CLEANUP_EVERY: Span = Span::from_secs(1);

/// May this scope be remembered? Drops inactive scopes if the map is full.
pub(super) fn has_capacity<T>(
    known: &mut HashMap<ScopeId, T>,
    scope: ScopeId,
    next_cleanup: &mut Micros,
    now: Micros,
    is_needed: impl Fn(&T) -> bool,
) -> bool {
    if known.len() < SCOPES_MAX || known.contains_key(&scope) {
        return true;
    }
    if now < *next_cleanup {
        return false;
    }
    *next_cleanup = now + CLEANUP_EVERY;
    known.retain(|_, known| is_needed(known));
    known.len() < SCOPES_MAX
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Entities come from callers: naming thousands that must cool down does not fill the memory.
    #[test]
    fn remembered_scopes_are_bounded() {
        let scope = |number: usize| ScopeId::named(&[&number.to_string()]);
        let (mut known, mut next_cleanup, mut now) = (HashMap::new(), Micros(0), Micros(1));
        for number in 0..SCOPES_MAX + 10 {
            if has_capacity(&mut known, scope(number), &mut next_cleanup, now, |_| true) {
                known.insert(scope(number), number);
            }
        }
        assert_eq!(known.len(), SCOPES_MAX);
        assert!(has_capacity(
            &mut known,
            scope(5),
            &mut next_cleanup,
            now,
            |_| { true }
        ));
        // Inactive scopes are dropped, but not searched for with every call.
        let is_needed = |number: &usize| *number > 0;
        let new = scope(SCOPES_MAX);
        assert!(!has_capacity(
            &mut known,
            new,
            &mut next_cleanup,
            now,
            is_needed
        ));
        now += CLEANUP_EVERY;
        assert!(has_capacity(
            &mut known,
            new,
            &mut next_cleanup,
            now,
            is_needed
        ));
        assert_eq!(known.len(), SCOPES_MAX - 1);
    }
}
