//! The providers and callers at one time: the same request may mean something else under others.
//!
//! Promises: differs from every later version.
//!
//! Never: keeps a provider alive.

use std::sync::{Arc, Weak};

use super::{Callers, Catalog, ProviderRegistry, RegistryState};

/// The providers and callers at one time. The target of a weak reference is not reused, so
/// addresses can be compared.
#[derive(Debug)]
pub(crate) struct ConfigVersion {
    catalog: Weak<Catalog>,
    callers: Weak<Callers>,
}

impl ProviderRegistry {
    /// The current providers and callers.
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

    /// Are these still the current providers and callers?
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
