//! The gateway over real sockets, loopback only, against providers that verify what they received.
#![expect(
    clippy::unwrap_used,
    reason = "a test that cannot set its stage should fail loudly"
)]

mod client;
mod test_daemon;
mod listeners;
mod log;
mod events;
mod issuer;
mod raw_upstream;
mod test_gateway;
mod upstream;

mod addressing;
mod contract;
mod requirements;
mod cancellation;
mod hostile_client;
mod hostile_upstream;
mod loops;
mod methods;
mod low_priority;
mod background_refresh;
mod failing_paths;
mod failure_attribution;
mod cache;
mod cache_edge_cases;
mod cache_faults;
mod cache_commands;
mod cache_privacy;
mod cache_poison;
mod cache_ranges;
mod cache_rfc9111;
mod flight_bodies;
mod flight_unshared;
mod flight_timeouts;
mod callers;
mod costs;
mod flights;
mod admin;
mod decisions;
mod decision_mistakes;
mod guards;
mod openapi;
mod desk;
mod config_changes;
mod cache_consistency;
mod keys;
mod key_origins;
mod killed_process;
mod disconnects;
mod documents;
mod limits;
mod rate_headers;
mod merge_results;
mod merging;
mod merging_privacy;
mod misconfigured;
mod operator;
mod client_timeouts;
mod key_pools;
mod rejections;
mod reload;
mod cooldowns;
mod cookies;
mod tls;
mod stale_permits;
mod store_loss;
mod slow_responses;
mod damaged_rows;
mod streaming;
mod upgrades;
mod uploads;
mod oauth2;
mod tokens;
