//! What the simulator proves about Tollgate, judged by the provider's own log.

mod scenario;
mod proof;
mod fullness;
mod order;
