//! Configuration: provider files and presets, as written and as obeyed.
//!
//! Promises: every problem of a file is reported at once, with its place and a remedy; what comes
//! out is sane and needs no further check. Keys are [`Secret`] from the moment they are read, and
//! no message repeats a value of a file, so no message can show a key.
//!
//! Never: reads the environment or a file by itself. Both come in through [`World`].

pub mod problem;
pub mod raw;
pub mod amount;
pub mod secret;
mod field;
mod setting;
pub mod shape;
pub mod settings;
pub mod provider;
pub mod check;
pub mod preset;

pub use check::{Checked, Draft};
pub use problem::{Level, Place, Problem, Problems};
pub use provider::Provider;
pub use secret::{KeyFile, Secret, World};
