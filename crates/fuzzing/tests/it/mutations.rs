//! A simple mutating loop on the stable compiler, where libFuzzer is not at hand.
//!
//! `TOLLGATE_FUZZ_SECONDS=600 cargo test -p tollgate-fuzzing mutations -- --nocapture`; without the variable a
//! moment of it. `TOLLGATE_FUZZ_SEED` repeats a run.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use crate::{corpora, inputs};

/// Of each target, without the variable.
const INPUTS: u64 = 40;

/// The longest input, and the most kept beside the corpus.
const LENGTH_MAX: usize = 4_096;
const KEPT_MAX: usize = 500;

#[test]
fn mutations_of_stored_rows_hold() {
    mutate("rows", tollgate_fuzzing::rows::run);
}

#[test]
#[cfg(feature = "gateway")]
fn mutations_of_the_redis_protocol_hold() {
    mutate("resp", tollgate_fuzzing::resp::run);
}

#[test]
#[cfg(feature = "gateway")]
fn mutations_of_grpc_messages_hold() {
    mutate("grpc", tollgate_fuzzing::grpc::run);
}

#[test]
fn mutations_of_the_parsers_hold() {
    mutate("resp_parser", tollgate_fuzzing::resp::run_parser);
    mutate("grpc_parser", tollgate_fuzzing::grpc::run_parser);
}

/// Runs mutated inputs until the time is over. A failing one is written to the folder for temporary files.
#[expect(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a loop for people, whose bound is a time"
)]
fn mutate(name: &str, run: fn(&[u8])) {
    let variable = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
    let seconds = variable("TOLLGATE_FUZZ_SECONDS").map(Duration::from_secs);
    let seed = variable("TOLLGATE_FUZZ_SEED").unwrap_or(0x9E37_79B9_7F4A_7C15);
    let mut dice = Dice(seed | 1);
    let corpus = inputs(&corpora().join(name)).into_iter();
    let mut kept: Vec<Vec<u8>> = corpus.map(|(_, input)| input).collect();
    let (began, mut count) = (Instant::now(), 0);
    while seconds.map_or(count < INPUTS, |seconds| began.elapsed() < seconds) {
        let mut input = kept[dice.below(kept.len())].clone();
        for _ in 0..=dice.below(6) {
            change(&mut input, &kept, &mut dice);
        }
        input.truncate(LENGTH_MAX);
        if catch_unwind(AssertUnwindSafe(|| run(&input))).is_err() {
            let file = std::env::temp_dir().join(format!("{name}-{count}.txt"));
            std::fs::write(&file, &input).expect("a folder for temporary files");
            panic!(
                "input {count} of seed {seed} fails; it is in {}",
                file.display()
            );
        }
        count += 1;
        // Changes add up: some inputs begin from others.
        if dice.below(50) == 0 {
            let at = dice.below(KEPT_MAX);
            match kept.get_mut(at) {
                Some(old) => *old = input,
                None => kept.push(input),
            }
        }
    }
    println!(
        "{name}: {count} inputs in {:.1} s",
        began.elapsed().as_secs_f64()
    );
}

/// One change: of a byte, of a number, of the length, or a piece of another input.
fn change(input: &mut Vec<u8>, others: &[Vec<u8>], dice: &mut Dice) {
    let at = dice.below(input.len() + 1);
    match dice.below(7) {
        0 if at < input.len() => input[at] ^= 1 << dice.below(8),
        1 if at < input.len() => {
            let edges = [0, 1, 0x7F, 0x80, 0xFF, b'\r', b'\n', b'*', b'$', b'-', b'9'];
            input[at] = edges[dice.below(edges.len())];
        }
        2 => input.truncate(at),
        3 if at < input.len() => {
            let end = at + dice.below((input.len() - at).min(64)) + 1;
            input.drain(at..end);
        }
        4 => {
            let byte = u8::try_from(dice.below(256)).unwrap_or(0);
            let times = dice.below(16) + 1;
            input.splice(at..at, std::iter::repeat_n(byte, times));
        }
        _ => {
            let other = &others[dice.below(others.len())];
            let begin = dice.below(other.len() + 1);
            let end = begin + dice.below((other.len() - begin).min(256) + 1);
            let piece = other[begin..end].to_vec();
            input.splice(at..at, piece);
        }
    }
}

/// Xorshift: the same seed, the same inputs.
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % end.max(1) as u64).unwrap_or(0)
    }
}
