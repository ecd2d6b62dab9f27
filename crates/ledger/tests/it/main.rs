//! The conformance suite, run against every backend.

#![expect(
    clippy::unwrap_used,
    reason = "a test that cannot continue should stop"
)]

mod backend;
mod changes;
mod conformance;
mod sharing;
mod fairness;
mod memory;
mod networked;
mod networked_throughput;
mod networked_suites;
mod redis_server;
mod redis;
mod load;
mod redis_faults;
mod redis_failovers;
mod redis_replicas;
mod redis_evictions;
mod postgres_server;
mod postgres_state;
mod postgres;
mod postgres_faults;
mod rules_on_servers;
mod server_clocks;
mod lossy_promotions;
mod store_tls;
mod many_nodes;
mod random_faults;
mod stores;
mod front;
mod scripted_store;
#[cfg(feature = "sqlite")]
mod sqlite;
#[cfg(feature = "sqlite")]
mod child;
#[cfg(feature = "sqlite")]
mod process_group;
#[cfg(feature = "sqlite")]
mod role;
#[cfg(feature = "sqlite")]
mod kills;
#[cfg(feature = "sqlite")]
mod stopped;
#[cfg(feature = "sqlite")]
mod outage;
#[cfg(feature = "sqlite")]
mod faults;
#[cfg(feature = "sqlite")]
mod loss;
#[cfg(feature = "sqlite")]
mod processes;
#[cfg(feature = "sqlite")]
mod folder;
#[cfg(feature = "sqlite")]
mod boot;
#[cfg(feature = "sqlite")]
mod former_format;
