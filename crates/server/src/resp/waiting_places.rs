//! Places of commands that wait, of all connections of one listener.
//!
//! Promises: no caller has more than a quarter of them, and the last quarter is the operator's, so
//! that callers keep neither each other nor the operator from waiting.
//!
//! Never: is asked by a command that is decided at once.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use super::session::Identity;

/// The places.
#[derive(Debug)]
pub(super) struct WaitingPlaces {
    max: usize,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    all: usize,
    /// By the caller's name; only callers that wait now.
    of_callers: HashMap<Arc<str>, usize>,
}

/// One place, until it is dropped.
#[derive(Debug)]
pub(super) struct WaitingPlace {
    places: Arc<WaitingPlaces>,
    /// `None` = the operator.
    caller: Option<Arc<str>>,
}

impl WaitingPlaces {
    pub(super) fn new(max: usize) -> Arc<WaitingPlaces> {
        Arc::new(WaitingPlaces {
            max,
            taken: Mutex::default(),
        })
    }

    /// A place for a command of this client; `None` if there is none for it.
    pub(super) fn take(self: &Arc<WaitingPlaces>, who: &Identity) -> Option<WaitingPlace> {
        let caller: Option<Arc<str>> = match who {
            Identity::Stranger => return None,
            Identity::Operator => None,
            Identity::Caller(name, _) => Some(name.as_str().into()),
        };
        let share = (self.max / 4).max(1);
        let mut taken = self.taken.lock();
        let max = if caller.is_some() {
            (self.max - self.max / 4).max(1)
        } else {
            self.max
        };
        if taken.all >= max {
            return None;
        }
        if let Some(name) = &caller {
            let own = taken.of_callers.entry(name.clone()).or_default();
            if *own >= share {
                return None;
            }
            *own += 1;
        }
        taken.all += 1;
        drop(taken);
        Some(WaitingPlace {
            places: self.clone(),
            caller,
        })
    }
}

impl Drop for WaitingPlace {
    fn drop(&mut self) {
        let mut taken = self.places.taken.lock();
        taken.all = taken.all.saturating_sub(1);
        let Some(name) = &self.caller else { return };
        if let Some(own) = taken.of_callers.get_mut(name) {
            *own = own.saturating_sub(1);
            if *own == 0 {
                taken.of_callers.remove(name);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tollgate_config::Secret;

    use super::*;

    fn caller(name: &str) -> Identity {
        Identity::Caller(name.to_owned(), Secret::new("canary".to_owned()))
    }

    /// One caller took all places, and nobody else could wait.
    #[test]
    fn no_caller_takes_the_places_of_others() {
        let places = WaitingPlaces::new(8);
        let take = |name: &str| places.take(&caller(name));
        let held = [take("a").unwrap(), take("a").unwrap()];
        assert!(take("a").is_none(), "it has its share");
        let others: Vec<_> = ["b", "b", "c", "c"].into_iter().map(take).collect();
        assert!(others.iter().all(Option::is_some));
        assert!(take("d").is_none(), "the last quarter is the operator's");
        let operator = || places.take(&Identity::Operator);
        let (seventh, eighth) = (operator(), operator());
        assert!(seventh.is_some() && eighth.is_some() && operator().is_none());
        assert!(places.take(&Identity::Stranger).is_none());
        drop((held, others, seventh, eighth));
        assert!(take("a").is_some());
        let taken = places.taken.lock();
        assert_eq!((taken.all, taken.of_callers.len()), (0, 0));
    }
}
