//! Configuration: provider files and presets, as written and as obeyed.
//!
//! Promises: every problem of a file is reported at once, with its place and a remedy; what comes
//! out is sane and needs no further check. Keys are [`Secret`] from the moment they are read, and
//! no message repeats a value of a file, so no message can show a key.
//!
//! Never: reads the environment or a file by itself. Both come in through [`Environment`]; only the edges,
//! [`disk`] and `watch`, touch the machine.

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
