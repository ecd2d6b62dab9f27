//! The simulator from outside: what it proves about Tollgate by the provider's own log; and the
//! provider over sockets, the TCP fault proxy and the program.
//!
//! Promises: loopback only, port 0 only. Time is virtual or paused; a test that needs an event
//! waits for that event, not for a fixed time.

mod scenario;
mod proof;
mod changes;
mod shared_key;
mod utilisation;
mod arrived;
mod local_share;
mod networked;
mod networked_rules;
mod short_lived;
mod order;
mod outage;
mod estimate;

#[cfg(feature = "http")]
mod client;
#[cfg(feature = "http")]
mod http_styles;
#[cfg(feature = "http")]
mod http_limits;
#[cfg(feature = "http")]
mod http_faults;
#[cfg(feature = "http")]
mod http_control;
#[cfg(feature = "http")]
mod proxy;
#[cfg(feature = "cli")]
mod program;
