//! Limits: one rule, one cell of state, and what a cell answers.
//!
//! `rule` is what is configured, `cell` is what has happened, and each algorithm has a file.
//!
//! Promises: a cell stores facts (when calls were granted and settled, what the provider said) and
//! never levels, so a limit that changes while running is only another comparison: no reset, no
//! burst.
//!
//! Never: charges more than one cell. Several limits as one decision are `turn`'s.

mod algorithm;
pub use algorithm::{Algorithm, HoldUntil, RuleError, SettleAt};
mod rule;
pub use rule::{AMOUNT_MAX, DRIFT_PPM, IN_FLIGHT_TAIL, PERIOD_MAX, Rule, SLOTS_EXACT, SUB_WINDOWS};
mod part;
mod room;
pub(crate) use room::Settled;
mod holds;
mod sliding;
pub use sliding::Rung;
mod paced;
mod bucket;
mod phase;
mod fixed;
mod almanac;
pub use almanac::AGREE_WITHIN;
mod calendar;
pub use calendar::{Calendar, EDGE_MARGIN, Per};
mod in_flight;
mod told;
mod cell;
pub use cell::Cell;
mod look;
pub use look::View;
mod adopt;
mod inherit;
mod carry;
mod image;
mod image_read;
pub use image::Damaged;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod image_tests;
#[cfg(test)]
mod low_tests;
#[cfg(test)]
mod window_tests;
#[cfg(test)]
mod told_tests;
#[cfg(test)]
mod bucket_tests;
#[cfg(test)]
mod edge_tests;
#[cfg(test)]
mod hostile_tests;
#[cfg(test)]
mod safety_tests;
#[cfg(test)]
mod inherit_tests;
