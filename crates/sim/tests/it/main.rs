//! The simulator from outside: the provider over sockets, the TCP fault proxy and the program.
//!
//! Promises: loopback only, port 0 only. Time is paused or not waited for; a test that needs something
//! to have happened waits for that, not for a while.

#[cfg(feature = "http")]
mod client;
#[cfg(feature = "http")]
mod http_control;
#[cfg(feature = "http")]
mod http_faults;
#[cfg(feature = "http")]
mod http_limits;
#[cfg(feature = "http")]
mod http_styles;
#[cfg(feature = "cli")]
mod program;
#[cfg(feature = "http")]
mod proxy;
