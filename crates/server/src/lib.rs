//! The gateway: applications call its address instead of the provider's. Operators use the admin
//! address.
//!
//! Promises: every call takes the path of `tollgate::path`. This crate adds the listeners, the
//! headers and the one place that maps errors to responses. A new configuration replaces the old one
//! while calls continue.
//!
//! Never: decides about a permit.

pub mod admin;
pub mod alerts;
pub mod daemon;
pub mod gateway;
pub mod grpc;
pub mod decisions;
pub mod desk;
pub use tollgate::guards;
pub mod resp;
pub mod scheduler;
mod accept_loop;
mod api;
mod call_words;
mod connection_table;
mod decision_api;
mod decision_log;
mod history;
mod json;
mod unique_json;
mod metrics;
mod rejection;
mod serving_socket;
#[cfg(any(test, feature = "fuzzing"))]
mod test_config;

pub use admin::{Admin, AdminOptions};
pub use alerts::{AlertOptions, Alerts};
pub use daemon::{Daemon, unknown_domains};
pub use decisions::{DecisionError, Decisions};
pub use gateway::{
    ClientTimeouts, Gateway, GatewayOptions, ListenAddress, ListenerKind, Listeners,
};
pub use grpc::{Grpc, GrpcOptions};
pub use metrics::ndjson_lines;
pub use resp::{RespOptions, RespServer};
pub use scheduler::{Scheduler, SchedulerOptions};
pub use serving_socket::ServeError;
