//! A simulated provider that checks Tollgate: it enforces limits by its own rules, writes its own
//! log, and runs over HTTP and in virtual time.
//!
//! Promises: nothing in here shares counting code with `tollgate-core`; an oracle that copies the
//! arithmetic under test proves nothing. A run in virtual time is a function of its seed.
//!
//! Never: used by anything but tests, benches and the demo and simulate commands.

pub mod row_store;
pub mod test_host;
pub mod test_servers;
pub mod rule;
pub mod checker;
pub mod latency;
pub mod clock;
pub mod world;
pub mod peer;
pub mod exactness;
pub mod governed;
pub mod store_table;
pub mod governed_health;
pub mod fault;
#[cfg(feature = "http")]
mod real_time;
#[cfg(feature = "http")]
pub mod fault_proxy;
#[cfg(feature = "http")]
pub mod http;
#[cfg(feature = "http")]
pub mod llm;
