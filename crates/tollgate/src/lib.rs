//! Govern calls to APIs from inside a program.
//!
//! A [`ProviderRegistry`] over a ledger, and [`path::call`]: that is all of it. The daemon adds
//! addresses and files.
//!
//! Promises: needs no daemon, and no clock except its ledger's.
//!
//! Never: reads a configuration file; providers come in checked.

pub mod body;
pub mod cache;
pub mod error;
pub mod event;
mod failpoint;
pub mod path;
mod permit;
pub mod pool;
pub mod providers;
mod timer;

pub use error::Error;
pub use permit::{LimitReport, Permit};
pub use providers::{Options, ProviderRegistry};
