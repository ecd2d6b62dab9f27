//! Providers that no file describes: the one for unknown domains, and the one for our own calls.
//!
//! Promises: neither limits nor retries nor keys.
//!
//! Never: listed among the configured providers.

use std::sync::Arc;

use tollgate_config::{Environment, Provider, ProviderFile};

use super::{ActiveProvider, ProviderRegistry};

impl ProviderRegistry {
    /// The provider of every domain that no file names.
    pub(crate) fn unknown(&self) -> Arc<ActiveProvider> {
        self.shared.unknown.clone()
    }

    /// The provider of our own calls, such as alerts to webhooks. It is never offline.
    pub(crate) fn own_calls(&self) -> Arc<ActiveProvider> {
        let start = || {
            let own = Provider {
                name: "tollgate".to_owned(),
                ..unknown_provider()
            };
            let started = self.shared.deps.start(own);
            Arc::new(started.expect("a registry has started with these settings"))
        };
        self.shared.own_calls.get_or_init(start).clone()
    }
}

/// Neither limits nor retries: calls to a domain without a file pass unchanged.
pub(super) fn unknown_provider() -> Provider {
    const FILE: &str = "name: unknown\nacquire_only: true\nhealth: off\nconnections: 256\n\
                        retry: {retries: {high: 0, normal: 0, low: 0}}\n";
    let checked =
        ProviderFile::read("unknown", FILE).map(|draft| draft.check(&Environment::empty()));
    let provider = checked.ok().and_then(|checked| checked.provider);
    provider.expect("a test builds a registry from it")
}
