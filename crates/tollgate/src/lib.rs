//! Govern calls to APIs from inside a program.
//!
//! Promises: every module here is usable without the daemon.
//!
//! Never: reads a clock outside a module called `clock`.

pub mod body;
pub mod cache;
pub mod error;
pub mod event;
pub mod guard;
pub mod path;
mod permit;
pub mod pool;
pub mod shop;
mod timer;

pub use error::Error;
pub use permit::{Answer, Permit};
pub use shop::{Options, Shop};
