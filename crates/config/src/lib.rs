//! Configuration: provider files and presets, as written and as checked.
//!
//! Promises: every problem of a file is reported at once, with its place and a remedy. A checked
//! configuration is valid and needs no further check. Keys are [`Secret`] from the moment they are
//! read, and no message repeats a value of a file, so no message can show a key.
//!
//! Never: reads the environment or a file by itself. Both come in through [`Environment`]; only
//! [`disk`] and `watch` access the operating system.

pub mod problem;
pub mod raw;
pub mod amount;
pub mod secret;
mod field;
mod setting;
pub mod shape;
pub mod origin;
pub mod overlay;
mod expand;
pub mod settings;
pub mod provider;
pub mod check;
pub mod preset;
pub mod guarantee;
pub mod config;
pub mod load;
pub mod disk;
#[cfg(feature = "watch")]
pub mod watch;

pub use check::{Checked, ProviderFile};
pub use config::Config;
pub use load::{Change, Flag, Loaded, LoadedProvider, ProviderSetting, Reloaded, Sources, reload};
pub use origin::{EffectiveValue, Origin};
pub use problem::{Level, Place, Problem, Problems};
pub use provider::Provider;
pub use secret::{Environment, FileContent, PathKind, Secret};
pub use setting::parse_address;
