//! Govern calls to APIs from inside a program.
//!
//! A [`ProviderRegistry`] over a ledger, and [`path::call`]: that is all of it. The daemon adds
//! addresses and files.
//!
//! Features, all on by default: `sqlite` (permits and cached responses in a folder), `tls` (calls to
//! `https:` upstreams), `cache` (cached responses). Without them the library is small: a test in
//! `crates/tidy` pins the number of crates that it compiles.
//!
//! Promises: needs no daemon, and no clock except its ledger's.
//!
//! Never: reads a configuration file; providers come in checked.

// Lowest first: a module uses only modules above it (a test in `crates/tidy` holds it).
mod failpoint;
mod timer;
mod query;
mod headers;
mod decode;
mod json_cost;
mod single_flight;
mod body_memory;
pub mod error;
pub mod metrics;
pub mod event;
mod payload;
pub mod permits;
pub mod pool;
#[cfg_attr(
    not(all(feature = "cache", feature = "sqlite")),
    allow(dead_code, reason = "the tiers that use it are not built")
)]
pub mod cache;
pub mod body;
mod reply;
mod flights;
mod credentials;
pub mod providers;
pub mod path;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;

pub use error::Error;
pub use path::{capacity, decide, permit_table};
pub use permits::{LimitReport, Permit};
pub use providers::{Options, ProviderRegistry};
