//! Limits: one rule, one cell of state, and what a cell decides.
//!
//! `rule` is the configuration, `cell` is the history, and each algorithm has a file.
//!
//! Promises: a cell stores facts (when calls were granted and settled, what the provider said) and
//! never levels. So a limit that changes at run time is only compared with another number: no
//! reset, no burst.
//!
//! Never: charges more than one cell. `turn` decides several limits together.

mod algorithm;
pub use algorithm::{Algorithm, HoldUntil, RuleError, SettleAt};
mod rule;
pub use rule::{AMOUNT_MAX, DRIFT_PPM, IN_FLIGHT_TAIL, PERIOD_MAX, Rule, SLOTS_EXACT, SUB_WINDOWS};
mod node_share;
pub(crate) use node_share::LentShares;
mod room;
pub(crate) use room::Settled;
mod holds;
mod sliding;
pub use sliding::Strictness;
mod paced;
mod bucket;
mod window_counter;
mod fixed;
mod trusted_clock;
pub use trusted_clock::CLOCK_TOLERANCE;
mod calendar;
pub use calendar::{Calendar, CalendarPeriod, EDGE_MARGIN};
mod in_flight;
mod reported;
mod presumed;
pub use presumed::STRICT_FOR;
mod cell;
pub use cell::Cell;
mod soonest;
mod view;
pub use view::CellView;
mod adopt;
mod learn;
mod inherit;
mod rebase;
mod encode;
mod decode;
pub use encode::Damaged;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod adopt_tests;
#[cfg(test)]
mod codec_tests;
#[cfg(test)]
mod low_priority_tests;
#[cfg(test)]
mod window_tests;
#[cfg(test)]
mod reported_tests;
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
#[cfg(test)]
mod bounds_tests;
#[cfg(test)]
mod presumed_tests;
