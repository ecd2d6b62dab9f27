//! The gateway over real sockets, loopback only, against providers that judge what they saw.
#![expect(
    clippy::unwrap_used,
    reason = "a test that cannot set its stage should fail loudly"
)]

mod client;
mod log;
mod issuer;
mod rawhost;
mod stand;
mod upstream;

mod addressing;
mod contract;
mod documents;
mod hostile_client;
mod hostile_upstream;
mod flights;
mod keys;
mod leaving;
mod limits;
mod rates;
mod refusals;
mod reload;
mod resting;
mod stale;
mod store_loss;
mod streaming;
mod upgrades;
mod oauth2;
mod tokens;
