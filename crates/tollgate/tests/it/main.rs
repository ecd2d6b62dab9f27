//! All integration tests of the crate in one program, because linking is expensive.

mod features;
mod permits;
mod decide;
mod degrade;
mod eta;
mod permit_holders;
mod permit_table;
mod events;
// `make test` builds the whole workspace, in which this feature is on; the baseline is of that build.
#[cfg(feature = "failpoints")]
mod path_cost;
mod recall;
mod slow_store;
mod embed;
mod embed_metrics;
mod networked_store;
mod fake_client;
mod tower_client;
mod tower_server;
mod usage_state;
mod reqwest_client;
mod reqwest_redirects;
mod dropped_calls;
mod examples;
mod switches;
mod embed_builder;
