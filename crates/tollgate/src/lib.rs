//! Govern calls to APIs from inside a program.
//!
//! Promises: every module here is usable without the daemon.
//!
//! Never: reads a clock outside a module called `clock`.

pub mod guard;
