//! Every link target in our pages exists: other pages, files, and targets of the Makefile.

use crate::tree::{Source, Violation, assert_clean, tree};

fn violations(sources: &[Source]) -> Vec<Violation> {
    let mut violations = Vec::new();
    for page in sources
        .iter()
        .filter(|source| source.extension() == Some("md"))
    {
        for (index, text) in page.text.lines().enumerate() {
            for target in text
                .split("](")
                .skip(1)
                .filter_map(|rest| rest.split(')').next())
            {
                if !link_exists(page, target, sources) {
                    let what = format!("link to `{target}` is broken");
                    violations.push(page.violation(index + 1, what, "correct or remove it"));
                }
            }
            for target in text
                .split("`make ")
                .skip(1)
                .filter_map(|rest| rest.split('`').next())
            {
                if !is_make_target(target, sources) {
                    let what = format!("`make {target}` is not a target of the Makefile");
                    violations.push(page.violation(index + 1, what, "correct or remove it"));
                }
            }
        }
    }
    violations
}

/// Whether the Makefile has the target; `fuzz FUZZ_SECONDS=60` names `fuzz`.
fn is_make_target(target: &str, sources: &[Source]) -> bool {
    let rule = format!("{}:", target.split(' ').next().unwrap_or(target));
    let makefile = sources.iter().find(|source| source.path == "Makefile");
    makefile.is_some_and(|makefile| makefile.text.lines().any(|line| line.starts_with(&rule)))
}

fn link_exists(page: &Source, target: &str, sources: &[Source]) -> bool {
    let file = target.split('#').next().unwrap_or(target);
    if target.contains("://") || target.starts_with("mailto:") || file.is_empty() {
        return true;
    }
    let mut segments: Vec<&str> = page.path.split('/').collect();
    segments.pop();
    for segment in file
        .split('/')
        .filter(|segment| !segment.is_empty() && *segment != ".")
    {
        if segment != ".." {
            segments.push(segment);
        } else if segments.pop().is_none() {
            return false;
        }
    }
    let wanted = segments.join("/");
    let folder = format!("{wanted}/");
    sources
        .iter()
        .any(|source| source.path == wanted || source.path.starts_with(&folder))
}

#[test]
fn every_link_and_every_make_target_in_our_pages_exists() {
    assert_clean(&violations(tree()));
}

#[test]
fn a_dead_link_is_found_and_valid_ones_are_not() {
    let page = "[a](b.md#x) [c](../README.md) [d](adr/)\n[up](https://example.org) [gone](nope.md)";
    let sources = [
        Source::fixture("docs/a.md", page),
        Source::fixture("docs/b.md", ""),
        Source::fixture("docs/adr/0001.md", ""),
        Source::fixture("README.md", ""),
    ];
    let violations: Vec<String> = violations(&sources)
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(
        violations,
        ["docs/a.md:2: link to `nope.md` is broken; correct or remove it"]
    );
}

#[test]
fn a_make_target_that_does_not_exist_is_found() {
    let sources = [
        Source::fixture(
            "a.md",
            "run `make test`, `make fuzz SECONDS=9` or\n`make coffee`",
        ),
        Source::fixture("Makefile", "test: tools\nfuzz:\n"),
    ];
    let violations: Vec<String> = violations(&sources)
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(violations.len(), 1);
    assert!(violations[0].starts_with("a.md:2: `make coffee` is not a target"));
}
