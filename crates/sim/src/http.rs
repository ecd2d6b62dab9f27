//! x
mod body;
mod clock;
pub mod style;
mod wire;
