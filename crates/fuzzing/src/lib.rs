//! Fuzz targets as plain functions of bytes.
//!
//! `fuzz/` runs them under libFuzzer, on nightly; `tests/it` replays the corpora of `fuzz/corpus`
//! with the stable compiler, so that what was found once stays found.
//!
//! Promises: a target panics if its property does not hold, and for no other reason. The same bytes
//! give the same result.
//!
//! Never: reads a clock, the environment or a file. Only [`hits`] opens sockets, on loopback.

pub mod configuration;
#[cfg(feature = "gateway")]
pub mod costs;
pub mod feedback;
#[cfg(feature = "gateway")]
pub mod framing;
#[cfg(feature = "gateway")]
pub mod grpc;
#[cfg(feature = "gateway")]
pub mod hits;
pub mod provider_file;
#[cfg(feature = "gateway")]
pub mod resp;
pub mod rows;

/// A target: its name, which is that of its corpus, and its body.
pub type Target = (&'static str, fn(&[u8]));

/// All targets.
pub const TARGETS: &[Target] = &[
    ("configuration", configuration::run),
    #[cfg(feature = "gateway")]
    ("costs", costs::run),
    ("feedback", feedback::run),
    #[cfg(feature = "gateway")]
    ("framing", framing::run),
    #[cfg(feature = "gateway")]
    ("grpc", grpc::run),
    #[cfg(feature = "gateway")]
    ("grpc_parser", grpc::run_parser),
    #[cfg(feature = "gateway")]
    ("hits", hits::run),
    ("provider_file", provider_file::run),
    #[cfg(feature = "gateway")]
    ("resp", resp::run),
    #[cfg(feature = "gateway")]
    ("resp_parser", resp::run_parser),
    ("rows", rows::run),
];

/// The bytes before and after the first mark; without it, everything is before.
fn split<'a>(bytes: &'a [u8], mark: &[u8]) -> (&'a [u8], &'a [u8]) {
    let at = bytes.windows(mark.len()).position(|window| window == mark);
    match at.and_then(|at| bytes.split_at_checked(at)) {
        Some((before, rest)) => (before, rest.get(mark.len()..).unwrap_or_default()),
        None => (bytes, &[]),
    }
}
