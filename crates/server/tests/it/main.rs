//! The gateway over real sockets, loopback only, against providers that judge what they saw.
#![expect(
    clippy::unwrap_used,
    reason = "a test that cannot set its stage should fail loudly"
)]

mod client;
mod log;
mod issuer;
mod stand;
mod upstream;

mod addressing;
mod flights;
mod keys;
mod leaving;
mod limits;
mod refusals;
mod reload;
mod resting;
mod store_loss;
mod streaming;
mod oauth2;
mod tokens;
