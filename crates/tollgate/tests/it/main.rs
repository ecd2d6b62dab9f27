//! All integration tests of the crate in one program, because linking is expensive.

mod features;
mod permits;
mod recall;
