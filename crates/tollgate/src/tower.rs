//! Layers for tower: [`GovernLayer`] around an HTTP client, [`GuardLayer`] around a server.
//!
//! Promises: a governed client makes no attempt that was not counted. A guarded server is not asked
//! about requests that a guard rejects.
//!
//! Never: needs a particular client or server.

mod govern;
mod guard;
pub use govern::{Govern, GovernLayer};
pub use guard::{GuardLayer, GuardLayerBuilder, GuardedService};
pub use tollgate_config::config::Limiting;
