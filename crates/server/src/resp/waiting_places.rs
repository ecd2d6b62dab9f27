//! Places of commands that wait, of all connections of one listener.
//!
//! Promises: no caller has more than a quarter of them, and the last quarter is the operator's, so
//! that callers keep neither each other nor the operator from waiting.
//!
//! Never: is asked by a command that is decided at once.

use std::sync::Arc;

use parking_lot::Mutex;
use tollgate::caller_shares::{CallerShares, PlaceHolder};

use super::session::Identity;

/// The places.
#[derive(Debug)]
pub(super) struct WaitingPlaces {
    taken: Mutex<CallerShares>,
}

/// One place, until it is dropped.
#[derive(Debug)]
pub(super) struct WaitingPlace {
    places: Arc<WaitingPlaces>,
    holder: PlaceHolder,
}

impl WaitingPlaces {
    pub(super) fn new(max: usize) -> Arc<WaitingPlaces> {
        Arc::new(WaitingPlaces {
            taken: Mutex::new(CallerShares::new(max)),
        })
    }

    /// A place for a command of this client; `None` if there is none for it.
    pub(super) fn take(self: &Arc<WaitingPlaces>, who: &Identity) -> Option<WaitingPlace> {
        let holder: PlaceHolder = match who {
            Identity::Stranger => return None,
            Identity::Operator => None,
            Identity::Caller(name, _) => Some(name.as_str().into()),
        };
        let is_taken = self.taken.lock().take(&holder);
        is_taken.then(|| WaitingPlace {
            places: self.clone(),
            holder,
        })
    }
}

impl Drop for WaitingPlace {
    fn drop(&mut self) {
        self.places.taken.lock().give_back(self.holder.as_deref());
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
        assert_eq!(places.taken.lock().taken(), 0);
    }
}
