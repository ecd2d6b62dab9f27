//! The files of the repository, and the report of a file that breaks a rule.
//!
//! Promises: sees every file that git would commit (tracked, or new and not ignored); without git,
//! as in an unpacked archive, every file outside build folders. Paths are relative to the root and
//! use `/`.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// One text file.
#[derive(Debug, Clone)]
pub(crate) struct Source {
    pub(crate) path: String,
    pub(crate) text: String,
}

/// One broken rule, with its location and remedy.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Violation {
    pub(crate) path: String,
    pub(crate) line: usize,
    pub(crate) what: String,
    pub(crate) remedy: String,
}

impl Source {
    /// A file that exists only in a test.
    pub(crate) fn fixture(path: &str, text: &str) -> Source {
        Source {
            path: path.to_owned(),
            text: text.to_owned(),
        }
    }

    pub(crate) fn is_rust(&self) -> bool {
        self.extension() == Some("rs")
    }

    pub(crate) fn extension(&self) -> Option<&str> {
        self.path.rsplit_once('.').map(|(_, extension)| extension)
    }

    pub(crate) fn violation(&self, line: usize, what: String, remedy: &str) -> Violation {
        Violation {
            path: self.path.clone(),
            line,
            what,
            remedy: remedy.to_owned(),
        }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}:{}: {}; {}",
            self.path, self.line, self.what, self.remedy
        )
    }
}

/// Every text file of the repository, read once per run.
pub(crate) fn tree() -> &'static [Source] {
    static TREE: OnceLock<Vec<Source>> = OnceLock::new();
    TREE.get_or_init(|| {
        let root = root();
        let paths = listed_by_git(&root).unwrap_or_else(|| walk(&root));
        // Files that are not UTF-8 are images and the like; no rule applies to them.
        let read = |path: String| Some((fs::read_to_string(root.join(&path)).ok()?, path));
        let sources = paths.into_iter().filter_map(read);
        sources.map(|(text, path)| Source { path, text }).collect()
    })
}

/// Fails with one line per violation.
pub(crate) fn assert_clean(violations: &[Violation]) {
    let lines: Vec<String> = violations.iter().map(ToString::to_string).collect();
    assert!(
        violations.is_empty(),
        "{} violation(s):\n{}\n",
        lines.len(),
        lines.join("\n")
    );
}

fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors()
        .nth(2)
        .expect("this crate is in crates/tidy")
        .to_path_buf()
}

fn listed_by_git(root: &Path) -> Option<Vec<String>> {
    let arguments = [
        "ls-files",
        "-z",
        "--cached",
        "--others",
        "--exclude-standard",
    ];
    let output = Command::new("git")
        .current_dir(root)
        .args(arguments)
        .output()
        .ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let paths: Vec<String> = text.split_terminator('\0').map(str::to_owned).collect();
    (output.status.success() && !paths.is_empty()).then_some(paths)
}

fn walk(root: &Path) -> Vec<String> {
    let mut folders = vec![root.to_path_buf()];
    let mut paths = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder)
            .expect("a folder of the tree can be read")
            .flatten()
        {
            let name = entry.file_name();
            let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
            if is_folder && name != "target" && name != ".git" {
                folders.push(entry.path());
            } else if !is_folder && let Ok(path) = entry.path().strip_prefix(root) {
                paths.push(path.to_string_lossy().replace('\\', "/"));
            }
        }
    }
    paths.sort();
    paths
}

#[test]
fn the_tree_contains_this_file_with_either_way_of_listing() {
    let this = "crates/tidy/tests/it/tree.rs";
    assert!(tree().iter().any(|source| source.path == this));
    assert!(walk(&root()).iter().any(|path| path == this));
}

#[test]
fn a_violation_names_file_line_problem_and_remedy() {
    let violation = Source::fixture("a/b.rs", "").violation(7, "`x` is bad".into(), "write `y`");
    assert_eq!(violation.to_string(), "a/b.rs:7: `x` is bad; write `y`");
}
