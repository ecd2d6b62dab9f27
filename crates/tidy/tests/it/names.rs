//! Names and paths: every Rust file starts with a description, has an allowed depth, and is named
//! after its subject.

use crate::tokens::{TokenFilter, flat, parse};
use crate::tree::{Source, Violation, assert_clean, tree};

/// Names that do not describe the content; such a module collects unrelated code.
const EMPTY_NAMES: [&str; 7] = [
    "util", "utils", "common", "helper", "helpers", "types", "misc",
];

/// `crates/x/src/y/z.rs`, and so also `crates/x/tests/it/z.rs`.
const SEGMENTS_MAX: usize = 5;

fn violations(sources: &[Source]) -> Vec<Violation> {
    let mut violations = Vec::new();
    for source in sources {
        violations.extend(empty_name_in_path(source));
        if source.is_rust() {
            violations.extend(too_deep(source));
            violations.extend(no_module_doc(source));
            violations.extend(empty_module_names(source));
        }
    }
    violations
}

fn empty_name_in_path(source: &Source) -> Option<Violation> {
    let mut names = source
        .path
        .split('/')
        .filter_map(|segment| segment.split('.').next());
    let name = names.find(|name| EMPTY_NAMES.contains(name))?;
    let remedy = "name it after its subject, or move each part to its subject";
    Some(source.violation(1, format!("`{name}` in the path describes nothing"), remedy))
}

fn empty_module_names(source: &Source) -> Vec<Violation> {
    // The size rule reports a file that is not Rust.
    let tokens = parse(source)
        .map(|stream| flat(stream, TokenFilter::All))
        .unwrap_or_default();
    let named = tokens.windows(2).filter(|pair| {
        pair[0].text == "mod" && EMPTY_NAMES.iter().any(|name| pair[1].text == *name)
    });
    let remedy = "name it after its subject";
    named
        .map(|pair| source.violation(pair[1].line, format!("module `{}`", pair[1].text), remedy))
        .collect()
}

fn too_deep(source: &Source) -> Option<Violation> {
    let deep = source.path.starts_with("crates/") && source.path.split('/').count() > SEGMENTS_MAX;
    let remedy = "nothing lies deeper than crates/x/src/y/z.rs; lift it or move it to tests/it";
    deep.then(|| source.violation(1, "lies too deep".to_owned(), remedy))
}

fn no_module_doc(source: &Source) -> Option<Violation> {
    let first = source
        .text
        .lines()
        .find(|line| !line.trim().is_empty())
        .unwrap_or_default();
    let remedy = "start with what it is, what it promises and what it never does";
    (!first.starts_with("//!"))
        .then(|| source.violation(1, "does not start with `//!`".to_owned(), remedy))
}

#[test]
fn every_file_has_a_clear_name_an_allowed_depth_and_a_doc() {
    assert_clean(&violations(tree()));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> Vec<String> {
        violations(&[Source::fixture(path, text)])
            .iter()
            .map(ToString::to_string)
            .collect()
    }

    #[test]
    fn a_correct_file_passes() {
        assert!(found("crates/x/src/y/z.rs", "\n//! What.\nmod window;").is_empty());
        assert!(found("crates/x/tests/it/z.rs", "//! What.").is_empty());
        assert!(found("grafana/dashboards/by/team/a/b.json", "{}").is_empty());
    }

    #[test]
    fn empty_names_are_found_as_file_folder_and_module() {
        assert!(found("crates/x/src/utils.rs", "//! a")[0].contains("`utils` in the path"));
        assert!(found("crates/x/tests/common/a.rs", "//! a")[0].contains("`common`"));
        assert!(found("docs/misc/a.md", "a")[0].contains("`misc`"));
        let violations = found("crates/x/src/lib.rs", "//! a\npub(crate) mod helpers { }");
        assert_eq!(
            violations,
            ["crates/x/src/lib.rs:2: module `helpers`; name it after its subject"]
        );
    }

    #[test]
    fn a_file_below_the_second_folder_of_src_is_too_deep() {
        assert!(found("crates/x/src/y/z/tests.rs", "//! a")[0].contains("lies too deep"));
    }

    #[test]
    fn a_file_without_a_module_doc_is_found() {
        assert!(found("a.rs", "// a comment\n//! too late")[0].contains("does not start with"));
        assert!(found("a.rs", "")[0].contains("does not start with"));
    }
}
