//! All integration tests of the crate in one program, because linking is expensive.

mod features;
mod permits;
mod decide;
mod events;
mod path_cost;
mod recall;
mod slow_store;
