//! All decisions of Tollgate, and nothing else.
//!
//! Promises: every function here is pure. Time, state and random numbers are arguments; the
//! decision is the return value. So the gateway, the library, the simulator and the property tests
//! run the same code.
//!
//! Never: a clock, a socket, a file, a lock, a log line, a random source of its own, a float in
//! anything that counts permits.
#![deny(clippy::wildcard_enum_match_arm)]

pub mod time;
pub mod ask;
pub mod rate;
pub mod learned;
pub mod limit;
pub mod scope;
pub mod turn;
pub mod fairness;
pub mod batch;
pub mod reservation;
pub mod row;
pub mod table;
pub mod replica;
pub mod gate;
pub mod store_loss;
pub mod ratio;
pub mod problem;
pub mod backoff;
pub mod retry;
pub mod renewal;
pub mod health;
pub mod cooldown;
pub mod degrade;
pub mod alert;
pub mod schedule;
pub mod eta;
pub mod domain;
pub mod entity;
pub mod feedback;
pub mod fresh;
#[cfg(test)]
mod test_ledger;
