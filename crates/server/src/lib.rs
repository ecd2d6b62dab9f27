//! The gateway: an address that applications call in place of the provider's.
//!
//! Promises: every call takes the path of `tollgate::path`; here are only the doors to it, the
//! headers around it, and the one place that turns errors into statuses.
//!
//! Never: decides about a permit.

pub mod gateway;
mod refusal;

pub use gateway::{Door, Gateway, GatewayOptions, Listening};
