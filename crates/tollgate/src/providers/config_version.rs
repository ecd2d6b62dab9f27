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
        let RegistryState { catalog, deps, .. } = &*self.shared;
        ConfigVersion {
            catalog: Arc::downgrade(&catalog.load()),
            callers: Arc::downgrade(&deps.callers.load()),
        }
    }

    /// Are these still the current providers and callers?
    pub(crate) fn is_current(&self, version: &ConfigVersion) -> bool {
        let RegistryState { catalog, deps, .. } = &*self.shared;
        std::ptr::eq(version.catalog.as_ptr(), Arc::as_ptr(&catalog.load()))
            && std::ptr::eq(version.callers.as_ptr(), Arc::as_ptr(&deps.callers.load()))
    }
}
