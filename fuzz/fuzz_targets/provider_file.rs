//! Runs the target `provider_file` of `crates/fuzzing` under libFuzzer.
//!
//! `cargo +nightly fuzz run provider_file -- -max_total_time=60`
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| tollgate_fuzzing::provider_file::run(input));
