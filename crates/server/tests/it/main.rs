//! The gateway over real sockets, loopback only, against providers that judge what they saw.
#![expect(
    clippy::unwrap_used,
    reason = "a test that cannot set its stage should fail loudly"
)]

mod client;
mod desk;
mod doors;
mod log;
mod issuer;
mod rawhost;
mod stand;
mod upstream;

mod addressing;
mod contract;
mod documents;
mod dropped;
mod hostile_client;
mod hostile_upstream;
mod roundabout;
mod background;
mod beside;
mod blame;
mod cache;
mod cache_doubts;
mod cache_faults;
mod cache_orders;
mod cache_owners;
mod cache_poison;
mod cache_ranges;
mod cache_rfc9111;
mod flight_bodies;
mod flight_marks;
mod flight_times;
mod callers;
mod costs;
mod flights;
mod admin;
mod changes;
mod kept;
mod keys;
mod killed;
mod leaving;
mod limits;
mod rates;
mod merged;
mod merging;
mod merging_owners;
mod operating;
mod patience;
mod pools;
mod refusals;
mod reload;
mod resting;
mod secure;
mod stale;
mod store_loss;
mod streaming;
mod upgrades;
mod oauth2;
mod tokens;
