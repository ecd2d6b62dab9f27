//! Tollgate inside a program: providers, a store, and permits for calls.
//!
//! Promises: needs no daemon. Several processes, and a gateway, that open the same store share its
//! limits. A call that is wrong gets a typed error and counts nothing.
//!
//! Never: sends anything by itself. `tollgate::reqwest` and `tollgate::tower` send through the
//! program's own client.

mod builder;
mod call;
mod observed;
mod permit;
mod provider;
mod store;
pub use builder::{SetupError, TollgateBuilder};
pub use call::Call;
pub use observed::{Observation, Observed};
#[cfg(feature = "tower")]
pub(crate) use observed::{causes, observed_in_causes};
pub use permit::CallPermit;
pub use provider::Provider;

use crate::Error;
use crate::path::capacity::{self, Capacity};
use crate::path::{decide, permit_table};
use crate::providers::{EntityMetrics, ProviderRegistry, UnknownEntity};
use std::sync::Arc;
use tollgate_core::alert::Alert;

/// The limits of a program's calls. Clones share them.
#[derive(Clone, Debug)]
pub struct Tollgate {
    registry: ProviderRegistry,
    /// Of the builder.
    names: Arc<[String]>,
}

impl Tollgate {
    /// Begins with no provider, in memory.
    pub fn builder() -> TollgateBuilder {
        TollgateBuilder::default()
    }

    /// Waits for the permit of one call, at most as long as the call's timeout or the provider's
    /// `queue.timeout`. A future that is dropped before it is ready gives the permit back.
    ///
    /// # Errors
    /// No permit in time: [`Error::limit`], [`Error::reason`] and [`Error::retry_in`] say which
    /// limit, why, and when to come back. Or the call itself is wrong; then nothing is counted.
    pub async fn acquire(&self, call: impl Into<Call>) -> Result<CallPermit, Error> {
        let (target, key, options) = call.into().into_parts()?;
        let within = permit_table::USE_WITHIN;
        let acquired =
            decide::acquire_within(&self.registry, target, key.as_deref(), options, within);
        acquired.await.map(CallPermit::new)
    }

    /// What a call would find now, without taking a permit.
    ///
    /// # Errors
    /// The call itself is wrong.
    pub async fn capacity(&self, call: impl Into<Call>) -> Result<Capacity, Error> {
        let (target, key, options) = call.into().into_parts()?;
        capacity::capacity_of_key(&self.registry, target, key.as_deref(), options).await
    }

    /// The counts of one entity, or of all: `tollgate.metrics("fixtures")`, `tollgate.metrics(None)`
    /// (S9). A provider without entities is listed under its own name.
    ///
    /// # Errors
    /// No such entity has been called.
    pub async fn metrics<'a>(
        &self,
        entity: impl Into<Option<&'a str>>,
    ) -> Result<Vec<EntityMetrics>, UnknownEntity> {
        self.registry.start(self.names.iter().map(String::as_str));
        self.registry.metrics(entity.into(), None).await
    }

    /// What needs an operator now (S10): little remains, many 429s, a cache that serves little.
    pub async fn alerts(&self) -> Vec<Alert> {
        self.registry.start(self.names.iter().map(String::as_str));
        self.registry.alerts().await
    }

    /// Writes cached responses to the disk. Permits need no such call: each is on the disk before it
    /// is granted.
    pub async fn close(&self) {
        self.registry.cache().close().await;
    }

    /// The providers, for [`crate::path::call`] and for events.
    #[must_use]
    pub fn registry(&self) -> &ProviderRegistry {
        &self.registry
    }
}
