//! The gateway: an address that applications call in place of the provider's; and the admin address
//! beside it, for those who run it.
//!
//! Promises: every call takes the path of `tollgate::path`; here are only the doors to it, the
//! headers around it, and the one place that turns errors into statuses. A new configuration takes
//! the place of the old one while calls go on.
//!
//! Never: decides about a permit.

pub mod admin;
pub mod daemon;
pub mod gateway;
mod accept_loop;
mod rejection;

pub use admin::{Admin, AdminOptions};
pub use daemon::Daemon;
pub use gateway::{
    ClientTimeouts, Gateway, GatewayOptions, ListenAddress, ListenerKind, Listeners,
};
