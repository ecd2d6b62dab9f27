//! Which providers and callers there were at one time: what the same words may mean something else under.
//!
//! Promises: told apart from every later one.
//!
//! Never: keeps a provider alive.

use std::sync::{Arc, Weak};

use super::{Callers, Shared, Shelf, Shop};

/// The providers and callers of one time. What a weak reference points to is not used again for anything
/// else, so that addresses can be compared.
#[derive(Debug)]
pub(crate) struct Setup {
    shelf: Weak<Shelf>,
    callers: Weak<Callers>,
}

impl Shop {
    /// Which providers and callers there are now.
    pub(crate) fn setup(&self) -> Setup {
        let Shared { shelf, means, .. } = &*self.shared;
        Setup {
            shelf: Arc::downgrade(&shelf.load()),
            callers: Arc::downgrade(&means.callers.load()),
        }
    }

    /// Are there still the same providers and callers?
    pub(crate) fn is_set_up(&self, setup: &Setup) -> bool {
        let Shared { shelf, means, .. } = &*self.shared;
        std::ptr::eq(setup.shelf.as_ptr(), Arc::as_ptr(&shelf.load()))
            && std::ptr::eq(setup.callers.as_ptr(), Arc::as_ptr(&means.callers.load()))
    }
}
