//! The ledger on a real redis-server: every behaviour of the conformance suite. Which owner goes first is decided on the node,
//! and milliseconds of virtual time matter there: `networked_suites.rs` runs the fairness suite on the simulated store.

use smallvec::smallvec;

use crate::backend::{Owner, secs, sliding, term};
use crate::conformance::conformance;
use crate::redis_server::Redis;

mod conforms {
    use super::*;
    conformance!(Redis::start().slow());
}

/// The lease in the store was 5 s whatever `node_lease` said.
#[tokio::test]
async fn a_registration_lasts_as_long_as_configured() {
    let mut redis = Redis::start().patient();
    redis.node_lease = secs(60);
    let mut owner = Owner::new(&redis, 1);
    let rule = sliding(1, secs(10));
    owner.take(smallvec![term("x", &rule)]).await.unwrap();
    let lease = "local t = redis.call('TIME') \
                 local e = string.match(redis.call('HVALS', 'tg:owners')[1], '[^ ]+$') \
                 return e - t[1] * 1000";
    let lease = redis.server.command(&["EVAL", lease, "0"]).unwrap();
    let lease: i64 = lease.trim_matches([':', '\r', '\n']).parse().unwrap();
    assert!((55_000..=61_000).contains(&lease), "{lease} ms");
}
