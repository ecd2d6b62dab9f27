//! Files and functions stay small enough to be read at once.
//!
//! Promises: nothing grows past its bound unnoticed. Longer files and functions are listed in
//! `ratchet.txt` with their sizes, and that list only shrinks.

use crate::tokens::{functions, parse};
use crate::tree::{Source, Violation, assert_clean, tree};
use std::collections::BTreeMap;

/// A longer file has more than one subject. Aim for 400; the rest is for tests and for plain names,
/// which rustfmt wraps.
const FILE_LINES_MAX: usize = 550;
/// Aim for one screen (60). Past this a function cannot be checked in one view. The bound detects a
/// smell: a function that is cut in two only to satisfy it is worse than a long one.
const FUNCTION_LINES_MAX: usize = 80;

const RATCHET: &str = "crates/tidy/ratchet.txt";

/// The size of a file (`path`) or a function (`path::name`).
struct Measured {
    line: usize,
    lines: usize,
    bound: usize,
}

fn violations(sources: &[Source], ratchet: &Source) -> Vec<Violation> {
    let mut violations = Vec::new();
    let measured = measure(sources, &mut violations);
    let allowed = read_ratchet(ratchet, &mut violations);
    for (name, thing) in &measured {
        let path = name.split("::").next().unwrap_or(name);
        let bound = allowed.get(name).map_or(thing.bound, |entry| entry.lines);
        if thing.lines > bound {
            let what = format!("`{name}` has {} lines, {bound} are allowed", thing.lines);
            let remedy = "split it where its subject splits".to_owned();
            violations.push(Violation {
                path: path.to_owned(),
                line: thing.line,
                what,
                remedy,
            });
        }
    }
    for (name, entry) in &allowed {
        let lines = measured.get(name).map_or(0, |thing| thing.lines);
        let bound = measured.get(name).map_or(0, |thing| thing.bound);
        if lines <= bound {
            let what = format!("`{name}` is gone or within its bound now ({lines} lines)");
            violations.push(ratchet.violation(entry.line, what, "remove the line"));
        } else if lines < entry.lines {
            let what = format!("`{name}` has only {lines} lines now, not {}", entry.lines);
            violations.push(ratchet.violation(entry.line, what, "lower the number"));
        }
    }
    violations
}

fn measure(sources: &[Source], violations: &mut Vec<Violation>) -> BTreeMap<String, Measured> {
    let mut measured = BTreeMap::new();
    for source in sources.iter().filter(|source| source.is_rust()) {
        let lines = source.text.lines().count();
        let file = Measured {
            line: 1,
            lines,
            bound: FILE_LINES_MAX,
        };
        measured.insert(source.path.clone(), file);
        let stream = match parse(source) {
            Ok(stream) => stream,
            Err(violation) => {
                violations.push(violation);
                continue;
            }
        };
        for function in functions(stream) {
            let name = format!("{}::{}", source.path, function.name);
            let bound = FUNCTION_LINES_MAX;
            let new = Measured {
                line: function.line,
                lines: function.lines,
                bound,
            };
            // Of several functions with one name (`new`, `fmt`) the longest counts.
            let longest = measured.entry(name).or_insert(Measured {
                line: 0,
                lines: 0,
                bound,
            });
            if new.lines > longest.lines {
                *longest = new;
            }
        }
    }
    measured
}

fn read_ratchet(ratchet: &Source, violations: &mut Vec<Violation>) -> BTreeMap<String, Measured> {
    let mut entries = BTreeMap::new();
    for (index, text) in ratchet.text.lines().enumerate() {
        if text.trim().is_empty() || text.starts_with('#') {
            continue;
        }
        let entry = text.rsplit_once(' ').and_then(|(name, lines)| {
            let lines = lines.parse().ok()?;
            Some((
                name.trim().to_owned(),
                Measured {
                    line: index + 1,
                    lines,
                    bound: 0,
                },
            ))
        });
        match entry {
            Some((name, entry)) => drop(entries.insert(name, entry)),
            None => violations.push(ratchet.violation(
                index + 1,
                format!("`{text}` is not an entry"),
                "write `path lines` or `path::function lines`",
            )),
        }
    }
    entries
}

#[test]
fn every_file_and_function_is_within_its_bound() {
    let ratchet = tree().iter().find(|source| source.path == RATCHET);
    assert_clean(&violations(
        tree(),
        ratchet.expect("ratchet.txt is part of the tree"),
    ));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str, ratchet: &str) -> Vec<String> {
        let sources = [Source::fixture("a.rs", text)];
        let violations = violations(&sources, &Source::fixture("ratchet.txt", ratchet));
        violations.iter().map(ToString::to_string).collect()
    }

    fn function(lines: usize) -> String {
        format!("fn long() {{\n{}}}\n", "    step();\n".repeat(lines - 2))
    }

    #[test]
    fn a_file_at_the_bound_passes_and_one_line_more_does_not() {
        assert!(found(&"//\n".repeat(550), "").is_empty());
        let violations = found(&"//\n".repeat(551), "");
        assert!(violations[0].starts_with("a.rs:1: `a.rs` has 551 lines, 550 are allowed"));
    }

    #[test]
    fn a_function_at_the_bound_passes_and_one_line_more_does_not() {
        assert!(found(&function(80), "").is_empty());
        let violations = found(&format!("\n{}", function(81)), "");
        assert!(violations[0].starts_with("a.rs:2: `a.rs::long` has 81 lines, 80 are allowed"));
    }

    #[test]
    fn a_function_inside_a_macro_is_measured_too() {
        assert_eq!(
            found(&format!("proptest! {{\n{}}}", function(81)), "").len(),
            1
        );
    }

    #[test]
    fn an_entry_of_the_real_size_allows_it_and_nothing_more() {
        assert!(found(&function(90), "a.rs::long 90\n").is_empty());
        assert!(found(&function(91), "a.rs::long 90\n")[0].contains("91 lines, 90 are allowed"));
    }

    #[test]
    fn an_entry_above_the_real_size_must_be_lowered() {
        let violations = found(&function(90), "# why\na.rs::long 95\n");
        assert_eq!(
            violations,
            ["ratchet.txt:2: `a.rs::long` has only 90 lines now, not 95; lower the number"]
        );
    }

    #[test]
    fn an_entry_that_is_no_longer_needed_must_go() {
        assert!(found(&function(60), "a.rs::long 70\n")[0].ends_with("remove the line"));
        assert!(found("", "b.rs 700\n")[0].ends_with("remove the line"));
        assert!(found("", "b.rs seven\n")[0].contains("is not an entry"));
    }

    #[test]
    fn a_file_that_is_not_rust_is_reported() {
        assert!(found("fn {", "")[0].contains("is not Rust"));
    }
}
