//! The conformance suite, run against every backend there is.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

mod bench;
mod conformance;
mod sharing;
mod memory;
