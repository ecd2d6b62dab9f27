//! `docs/requirements.md` is correct about what is proved.
//!
//! Promises: every requirement has its text and one row; a row that says `proved` names a test; a
//! named test exists and carries the requirement's id in its name or its `///` lines.
//!
//! Never: judges whether the test proves enough. That is what review is for.

use crate::tokens::{functions, parse};
use crate::tree::{Source, Violation, assert_clean, tree};

const PAGE: &str = "docs/requirements.md";

/// The letter of each document and the number of its last requirement.
const IDS: [(char, usize); 5] = [('M', 15), ('S', 15), ('H', 10), ('A', 18), ('C', 13)];

const PROOFS: &str = "| id | test | status |";
const TEXTS: &str = "| id | must |";

struct Row<'page> {
    line: usize,
    cells: Vec<&'page str>,
}

fn violations(page: &Source, sources: &[Source]) -> Vec<Violation> {
    let proofs = rows(page, PROOFS);
    let mut violations = ids_exactly_once(page, &proofs, "row in the table of proofs");
    violations.extend(ids_exactly_once(
        page,
        &rows(page, TEXTS),
        "row with its text",
    ));
    for row in &proofs {
        violations.extend(row_violations(page, row, sources));
    }
    violations
}

/// The rows of every table with this header.
fn rows<'page>(page: &'page Source, header: &str) -> Vec<Row<'page>> {
    let mut found = Vec::new();
    let mut inside = false;
    for (index, text) in page.text.lines().enumerate() {
        let is_row = inside && text.starts_with('|');
        inside = is_row || text.trim() == header;
        if is_row && !text.starts_with("|--") {
            // `\|` is a bar inside a cell; only the cells before it matter here.
            let cells = text.trim_matches('|').split('|').map(str::trim).collect();
            found.push(Row {
                line: index + 1,
                cells,
            });
        }
    }
    found
}

fn ids_exactly_once(page: &Source, rows: &[Row<'_>], what: &str) -> Vec<Violation> {
    let mut violations = Vec::new();
    let numbers = |(letter, last): &(char, usize)| -> Vec<String> {
        (1..=*last)
            .map(|number| format!("{letter}{number}"))
            .collect()
    };
    let known: Vec<String> = IDS.iter().flat_map(numbers).collect();
    for id in &known {
        let times = rows
            .iter()
            .filter(|row| row.cells.first() == Some(&id.as_str()))
            .count();
        if times != 1 {
            let problem = format!("`{id}` has {times} times a {what}");
            violations.push(page.violation(1, problem, "write exactly one"));
        }
    }
    for row in rows {
        let id = row.cells.first().copied().unwrap_or_default();
        if !known.iter().any(|name| name == id) {
            let remedy = "correct it, or add it to IDS in crates/tidy";
            violations.push(page.violation(
                row.line,
                format!("`{id}` is not a requirement"),
                remedy,
            ));
        }
    }
    violations
}

fn row_violations(page: &Source, row: &Row<'_>, sources: &[Source]) -> Vec<Violation> {
    let [id, tests, status] = row.cells[..] else {
        let what = format!("{} cells", row.cells.len());
        return vec![page.violation(row.line, what, "write `| id | test | status |`")];
    };
    let mut violations = Vec::new();
    let names: Vec<&str> = tests.split('`').skip(1).step_by(2).collect();
    let between: String = tests.split('`').step_by(2).collect();
    if between
        .replace("<br>", "")
        .chars()
        .any(|letter| letter != ',' && letter != ' ')
    {
        let what = format!("`{id}` has words between its tests");
        let remedy = "write only `path/to/file.rs::test_name`, several with <br> between";
        violations.push(page.violation(row.line, what, remedy));
    }
    match status {
        "open" => {}
        "proved" if !names.is_empty() => {}
        "proved" => {
            let what = format!("`{id}` is marked proved without a test");
            violations.push(page.violation(row.line, what, "name the test, or write `open`"));
        }
        _ => {
            let what = format!("status `{status}` of `{id}`");
            violations.push(page.violation(row.line, what, "write `proved` or `open`"));
        }
    }
    for name in names {
        if let Err(why) = test_proves(id, name, sources) {
            let what = format!("`{id}` names `{name}`, {why}");
            let remedy = "name a test that exists and has the id in its name or doc line";
            violations.push(page.violation(row.line, what, remedy));
        }
    }
    violations
}

fn test_proves(id: &str, name: &str, sources: &[Source]) -> Result<(), &'static str> {
    let (path, test) = name.split_once("::").ok_or("which is not `path::test`")?;
    let source = sources
        .iter()
        .find(|source| source.path == path)
        .ok_or("but has no such file")?;
    let stream = parse(source).map_err(|_| "whose file is not Rust")?;
    let mut named: Vec<_> = functions(stream)
        .into_iter()
        .filter(|f| f.name == test)
        .collect();
    named.retain(|function| function.is_test);
    if named.is_empty() {
        return Err("but its file has no test of that name");
    }
    let carries = named.iter().any(|function| {
        let in_name = function
            .name
            .split('_')
            .any(|word| word.eq_ignore_ascii_case(id));
        in_name
            || function
                .doc
                .split(|c: char| !c.is_alphanumeric())
                .any(|word| word == id)
    });
    if carries {
        Ok(())
    } else {
        Err("which does not carry the id")
    }
}

#[test]
fn every_requirement_has_one_row_and_every_named_test_exists() {
    let page = tree().iter().find(|source| source.path == PAGE);
    assert_clean(&violations(
        page.expect("docs/requirements.md is part of the tree"),
        tree(),
    ));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A page on which every id is open, with the row of `M1` replaced.
    fn page(first: &str) -> Source {
        let all = IDS
            .iter()
            .flat_map(|(letter, last)| (1..=*last).map(move |n| (letter, n)));
        let rest: Vec<(&char, usize)> = all.skip(1).collect();
        let proofs: String = rest
            .iter()
            .map(|(l, n)| format!("| {l}{n} | | open |\n"))
            .collect();
        let texts: String = rest
            .iter()
            .map(|(l, n)| format!("| {l}{n} | Does. |\n"))
            .collect();
        let text = format!(
            "{PROOFS}\n|---|---|---|\n{first}\n{proofs}\n{TEXTS}\n|---|---|\n| M1 | Does. |\n{texts}"
        );
        Source::fixture(PAGE, &text)
    }

    fn found(first: &str) -> Vec<String> {
        let code = "/// M1: counts.\n#[test]\nfn counts() {}\n#[test]\nfn m1_drops() {}\n\
                    /// M10 is not M1x.\n#[test]\nfn other() {}\n/// M1\nfn no_test() {}\n\
                    proptest! { /// M1\n #[test]\n fn random(x in 0..9u8) {} }";
        let sources = [Source::fixture("a.rs", code)];
        violations(&page(first), &sources)
            .iter()
            .map(ToString::to_string)
            .collect()
    }

    #[test]
    fn an_open_row_and_a_proved_one_pass() {
        assert!(found("| M1 | | open |").is_empty());
        assert!(found("| M1 | `a.rs::counts` | open |").is_empty());
        assert!(
            found("| M1 | `a.rs::counts`<br>`a.rs::m1_drops`, `a.rs::random` | proved |")
                .is_empty()
        );
    }

    #[test]
    fn proved_without_a_test_is_found() {
        assert!(found("| M1 | | proved |")[0].contains(":3: `M1` is marked proved without a test"));
    }

    #[test]
    fn a_named_test_that_does_not_exist_is_found_whatever_the_status() {
        for status in ["open", "proved"] {
            let row = |name: &str| found(&format!("| M1 | `{name}` | {status} |"))[0].clone();
            assert!(row("a.rs::gone").contains("no test of that name"));
            assert!(row("a.rs::no_test").contains("no test of that name"));
            assert!(row("b.rs::counts").contains("no such file"));
            assert!(row("counts").contains("is not `path::test`"));
        }
    }

    #[test]
    fn a_test_that_does_not_carry_the_id_is_found() {
        assert!(found("| M1 | `a.rs::other` | proved |")[0].contains("does not carry the id"));
    }

    #[test]
    fn a_missing_a_double_and_an_unknown_id_are_found() {
        assert!(found("")[0].contains("`M1` has 0 times a row in the table of proofs"));
        assert!(
            found("| M2 | | open |")
                .iter()
                .any(|line| line.contains("`M2` has 2 times"))
        );
        assert!(
            found("| Z9 | | open |")
                .iter()
                .any(|line| line.contains("`Z9` is not a requirement"))
        );
    }

    #[test]
    fn an_unknown_status_and_words_between_tests_are_found() {
        assert!(found("| M1 | | done |")[0].contains("status `done`"));
        assert!(found("| M1 | soon | open |")[0].contains("words between its tests"));
        assert!(found("| M1 | open |")[0].contains("2 cells"));
    }
}
