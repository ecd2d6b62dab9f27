//! The ledger on a real redis-server: every behaviour of the conformance suite. Which owner goes first is decided on the node,
//! and milliseconds of virtual time matter there: `networked_suites.rs` runs the fairness suite on the simulated store.

use crate::conformance::conformance;
use crate::redis_server::Redis;

mod conforms {
    use super::*;
    conformance!(Redis::start().slow());
}
