//! Replays the corpus of every fuzz target, and mutates some.

mod mutations;

use std::path::{Path, PathBuf};

/// The largest corpus: it is replayed by every test run and cloned by everybody.
const FILES_MAX: usize = 200;
const BYTES_MAX: usize = 300 * 1024;

/// A failure names the input; `cargo +nightly fuzz run TARGET FILE` shows more.
#[test]
#[expect(
    clippy::print_stdout,
    reason = "the name of the input is shown only if the test fails"
)]
fn every_committed_input_of_every_target_passes() {
    let corpora = corpora();
    for (name, run) in tollgate_fuzzing::TARGETS {
        let inputs = inputs(&corpora.join(name));
        assert!(!inputs.is_empty(), "{name} has no corpus");
        let bytes: usize = inputs.iter().map(|(_, input)| input.len()).sum();
        assert!(
            inputs.len() <= FILES_MAX && bytes <= BYTES_MAX,
            "the corpus of {name} has {} files and {bytes} bytes; minimise it",
            inputs.len()
        );
        for (file, input) in inputs {
            println!("{name}/{file}"); // shown if it fails
            run(&input);
        }
    }
}

fn corpora() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus")
}

/// Files that a fuzz run has left are not committed and end without `.txt`.
fn inputs(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let entries = std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{folder:?}: {error}"));
    let mut inputs: Vec<_> = entries
        .map(|entry| entry.expect("a readable folder").path())
        .filter(|path| path.extension().is_some_and(|ending| ending == "txt"))
        .map(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let input = std::fs::read(&path).expect("a readable file");
            (name.into_owned(), input)
        })
        .collect();
    inputs.sort();
    inputs
}
