//! Govern calls to APIs from inside a program.
//!
//! Promises: every module here is usable without the daemon.
//!
//! Never: reads a clock outside a module called `clock`.

pub mod path;
mod permit;
pub use permit::{Answer, Permit};
pub mod guard;
