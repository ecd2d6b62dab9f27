//! Runs the target `resp_parser` of `crates/fuzzing` under libFuzzer.
//!
//! `cargo +nightly fuzz run resp_parser -- -max_total_time=60`
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| tollgate_fuzzing::resp::run_parser(input));
