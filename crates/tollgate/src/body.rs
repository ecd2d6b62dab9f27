//! The body of a response: to its caller in `reply`, to many callers in `shared`, and of an
//! upgraded call in `tunnel`.
//!
//! Promises: see each file; the permit and the connection travel with the body, whoever reads it.
//!
//! Never: changes a byte.

mod reply;
mod shared;
mod cost_reader;
mod tunnel;
mod wanted_cost;
mod websocket;
pub(crate) use cost_reader::{BodyFormat, CostReader, Decoder};
pub(crate) use reply::{BodyRecorder, IncomingBody, UpstreamBody};
pub use reply::{IdleTimeout, ReplyBody};
pub use shared::{Broken, SlowReader};
pub(crate) use shared::{JoinGuard, OBJECT_MAX, SharedBody};
pub use tunnel::Tunnel;
pub(crate) use wanted_cost::WantedCost;

pub use crate::body_memory::{body_memory_in_use, set_body_memory, take_body_memory_peak};
pub use crate::payload::{BodyError, WHOLE_MAX, set_spool_files_max};
