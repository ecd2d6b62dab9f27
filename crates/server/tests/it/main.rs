//! The gateway over real sockets, loopback only, against providers that judge what they saw.
#![expect(
    clippy::unwrap_used,
    reason = "a test that cannot set its stage should fail loudly"
)]

mod client;
mod desk;
mod log;
mod issuer;
mod stand;
mod upstream;

mod addressing;
mod background;
mod cache;
mod cache_owners;
mod cache_rfc9111;
mod flight_bodies;
mod callers;
mod costs;
mod flights;
mod admin;
mod changes;
mod keys;
mod leaving;
mod limits;
mod merging;
mod pools;
mod refusals;
mod reload;
mod resting;
mod store_loss;
mod streaming;
mod oauth2;
mod tokens;
