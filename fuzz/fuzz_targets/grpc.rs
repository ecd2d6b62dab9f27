//! Runs the target `grpc` of `crates/fuzzing` under libFuzzer.
//!
//! `cargo +nightly fuzz run grpc -- -max_total_time=60`
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| tollgate_fuzzing::grpc::run(input));
