//! The ledger on a real redis-server: every behaviour of the conformance and fairness suites.

use crate::conformance::conformance;
use crate::fairness::fairness;
use crate::redis_server::Redis;

/// Behaviours in which an owner joins long after the row that matters was written. It cannot tell
/// whether the clock has stepped meanwhile, and closes for as long again.
const OWNERS_JOIN_LATE: [&str; 1] = ["an_unreported_probe_frees_its_slot"];

fn redis(behaviour: &str) -> Redis {
    match OWNERS_JOIN_LATE.contains(&behaviour) {
        true => Redis::start().slow().trusting(),
        false => Redis::start().slow(),
    }
}

mod conforms {
    use super::*;
    conformance!(each named, redis);
}

mod is_fair {
    use super::*;
    fairness!(Redis::start().slow().trusting());
}
