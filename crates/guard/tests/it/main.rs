//! All integration tests of the crate in one program, because linking is expensive.

mod behaviour;
mod huge_pages;
mod instructions;
mod memory;
mod model;
mod oracle;
mod snapshot;
mod table;
mod threads;
