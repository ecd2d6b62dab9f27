//! Places that callers share: of a table, of a queue.
//!
//! Promises: no caller has more than a quarter of them, and the last quarter is the operator's, so
//! that callers keep neither each other nor the operator out.
//!
//! Never: knows what a place is for.

use std::collections::HashMap;
use std::sync::Arc;

/// The taken places.
#[derive(Debug)]
pub struct CallerShares {
    max: usize,
    all: usize,
    /// By the caller's name; only callers that have places now.
    of_callers: HashMap<Arc<str>, usize>,
}

/// Who has a place: a caller, or the operator (`None`).
pub type PlaceHolder = Option<Arc<str>>;

impl CallerShares {
    /// So many places, none taken.
    #[must_use]
    pub fn new(max: usize) -> CallerShares {
        CallerShares {
            max,
            all: 0,
            of_callers: HashMap::new(),
        }
    }

    /// Whether there is a place for this caller.
    #[must_use]
    pub fn has_place(&self, holder: Option<&str>) -> bool {
        let Some(name) = holder else {
            return self.all < self.max;
        };
        let quarter = self.max / 4;
        let own = self.of_callers.get(name).copied().unwrap_or(0);
        self.all < (self.max - quarter).max(1) && own < quarter.max(1)
    }

    /// Takes a place. `false`: there is none for this caller.
    #[must_use]
    pub fn take(&mut self, holder: &PlaceHolder) -> bool {
        if !self.has_place(holder.as_deref()) {
            return false;
        }
        self.all += 1;
        if let Some(name) = holder {
            *self.of_callers.entry(name.clone()).or_default() += 1;
        }
        true
    }

    /// Gives a place back.
    pub fn give_back(&mut self, holder: Option<&str>) {
        self.all = self.all.saturating_sub(1);
        let Some(name) = holder else { return };
        if let Some(own) = self.of_callers.get_mut(name) {
            *own = own.saturating_sub(1);
            if *own == 0 {
                self.of_callers.remove(name);
            }
        }
    }

    /// The places that are taken.
    #[must_use]
    pub fn taken(&self) -> usize {
        self.all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One caller took all places, and nobody else got one.
    #[test]
    fn no_caller_takes_the_places_of_others() {
        let mut places = CallerShares::new(8);
        let mut take = |name: &str| places.take(&Some(name.into()));
        assert!(take("a") && take("a"));
        assert!(!take("a"), "it has its share");
        assert!(["b", "b", "c", "c"].into_iter().all(&mut take));
        assert!(!take("d"), "the last quarter is the operator's");
        assert!(places.take(&None) && places.take(&None));
        assert!(!places.take(&None));
        for name in ["a", "a", "b", "b", "c", "c"] {
            places.give_back(Some(name));
        }
        places.give_back(None);
        places.give_back(None);
        assert_eq!((places.taken(), places.of_callers.len()), (0, 0));
        assert!(places.has_place(Some("a")));
    }
}
