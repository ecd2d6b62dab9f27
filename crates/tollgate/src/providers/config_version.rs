//! Which providers and callers there were at one time: what the same words may mean something else under.
//!
//! Promises: told apart from every later one.
//!
//! Never: keeps a provider alive.

use std::sync::{Arc, Weak};

use super::{Callers, Catalog, ProviderRegistry, RegistryState};

/// The providers and callers of one time. What a weak reference points to is not used again for anything
/// else, so that addresses can be compared.
#[derive(Debug)]
pub(crate) struct ConfigVersion {
    catalog: Weak<Catalog>,
    callers: Weak<Callers>,
}

impl ProviderRegistry {
    /// Which providers and callers there are now.
    pub(crate) fn config_version(&self) -> ConfigVersion {
        let RegistryState {
            catalog: shelf,
            deps: means,
            ..
        } = &*self.shared;
        ConfigVersion {
            catalog: Arc::downgrade(&shelf.load()),
            callers: Arc::downgrade(&means.callers.load()),
        }
    }

    /// Are there still the same providers and callers?
    pub(crate) fn is_current(&self, setup: &ConfigVersion) -> bool {
        let RegistryState {
            catalog: shelf,
            deps: means,
            ..
        } = &*self.shared;
        std::ptr::eq(setup.catalog.as_ptr(), Arc::as_ptr(&shelf.load()))
            && std::ptr::eq(setup.callers.as_ptr(), Arc::as_ptr(&means.callers.load()))
    }
}
