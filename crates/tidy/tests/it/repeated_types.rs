//! One type name means one thing in a crate.
//!
//! Promises: a name that several modules of a crate define and show to others is always written
//! with its module (`bucket::State`), never imported on its own. Names that break this are listed
//! in `repeated_types.txt`, and that list only shrinks.

use crate::tokens::{Token, TokenFilter, flat, parse};
use crate::tree::{Source, Violation, assert_clean, tree};
use std::collections::{BTreeMap, BTreeSet};

const LIST: &str = "crates/tidy/repeated_types.txt";

/// Words that define a type.
const DEFINE: [&str; 5] = ["struct", "enum", "union", "trait", "type"];

/// The place of a definition or an import.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Place {
    path: String,
    line: usize,
}

/// The types of one crate, by name.
#[derive(Debug, Default)]
struct CrateTypes {
    visible: BTreeMap<String, Vec<Place>>,
    imported: BTreeMap<String, Vec<Place>>,
}

fn violations(sources: &[Source], list: &Source) -> Vec<Violation> {
    let mut crates: BTreeMap<&str, CrateTypes> = BTreeMap::new();
    for source in sources {
        let Some(inside) = source.path.strip_prefix("crates/") else {
            continue;
        };
        let Some((name, file)) = inside.split_once("/src/") else {
            continue;
        };
        // `no_tls.rs` is compiled in the place of `tls.rs`, never beside it.
        let is_stand_in = file
            .rsplit('/')
            .next()
            .is_some_and(|name| name.starts_with("no_"));
        if source.is_rust() && !file.ends_with("tests.rs") && !is_stand_in {
            // The size rule reports a file that is not Rust.
            let tokens = parse(source)
                .map(|stream| flat(stream, TokenFilter::Shipped))
                .unwrap_or_default();
            let types = crates.entry(name).or_default();
            types.add(&source.path, &tokens);
        }
    }
    let mut found = Vec::new();
    let mut repeated = BTreeSet::new();
    let listed: BTreeMap<&str, usize> = entries(list).collect();
    for (name, types) in &crates {
        for (type_name, places) in &types.visible {
            let Some(import) = types.first_import(type_name, places) else {
                continue;
            };
            let entry = format!("{name} {type_name}");
            if !listed.contains_key(entry.as_str()) {
                found.push(Violation {
                    path: import.path.clone(),
                    line: import.line,
                    what: format!(
                        "`{type_name}` is imported on its own, but {} modules of `{name}` define it",
                        places.len()
                    ),
                    remedy: "write it with its module, or rename it".to_owned(),
                });
            }
            repeated.insert(entry);
        }
    }
    for (entry, line) in listed {
        if !repeated.contains(entry) {
            let what = format!("`{entry}` no longer breaks the rule");
            found.push(list.violation(line, what, "remove the line"));
        }
    }
    found
}

fn entries(list: &Source) -> impl Iterator<Item = (&str, usize)> {
    let lines = list.text.lines().enumerate();
    lines
        .map(|(index, line)| (line.trim(), index + 1))
        .filter(|(line, _)| !line.is_empty() && !line.starts_with('#'))
}

impl CrateTypes {
    fn add(&mut self, path: &str, tokens: &[Token]) {
        for (at, token) in tokens.iter().enumerate() {
            let place = |line: usize| Place {
                path: path.to_owned(),
                line,
            };
            if DEFINE.contains(&token.text.as_str()) && is_visible(tokens, at) {
                if let Some(name) = tokens.get(at + 1) {
                    let places = self.visible.entry(name.text.clone()).or_default();
                    places.push(place(name.line));
                }
            } else if token.text == "use" {
                for (name, line) in imports(&tokens[at + 1..]) {
                    self.imported.entry(name).or_default().push(place(line));
                }
            }
        }
    }

    /// The first import of a name that several modules show.
    fn first_import(&self, name: &str, places: &[Place]) -> Option<&Place> {
        let files: BTreeSet<&str> = places.iter().map(|place| place.path.as_str()).collect();
        self.imported
            .get(name)
            .filter(|_| files.len() > 1)
            .and_then(|imports| imports.first())
    }
}

/// `pub`, or `pub(crate)` and the like, stands before it.
fn is_visible(tokens: &[Token], at: usize) -> bool {
    let before = |steps: usize| {
        at.checked_sub(steps)
            .map(|index| tokens[index].text.as_str())
    };
    match before(1) {
        Some("pub") => true,
        Some(")") => {
            let open = tokens[..at].iter().rposition(|token| token.text == "(");
            open.and_then(|open| open.checked_sub(1))
                .is_some_and(|index| tokens[index].text == "pub")
        }
        _ => false,
    }
}

/// The names that a `use` of this crate brings in as they are, without `as`.
fn imports(statement: &[Token]) -> Vec<(String, usize)> {
    /// Other crates, whose names cannot be confused with a module of ours.
    const OTHERS: [&str; 3] = ["std", "core", "alloc"];
    let end = statement.iter().position(|token| token.text == ";");
    let statement = &statement[..end.unwrap_or(0)];
    let Some(first) = statement.first() else {
        return Vec::new();
    };
    let is_ours = matches!(first.text.as_str(), "crate" | "super" | "self")
        || (!OTHERS.contains(&first.text.as_str()) && is_local(statement));
    if !is_ours {
        return Vec::new();
    }
    let ends_path = |index: usize| {
        let next = statement.get(index + 1).map(|token| token.text.as_str());
        matches!(next, None | Some("," | "}"))
    };
    let is_type = |text: &str| text.starts_with(|first: char| first.is_ascii_uppercase());
    let named = statement.iter().enumerate().filter(|(index, token)| {
        let is_alias = *index > 0 && statement[index - 1].text == "as";
        is_type(&token.text) && ends_path(*index) && !is_alias
    });
    named
        .map(|(_, token)| (token.text.clone(), token.line))
        .collect()
}

/// `use module::Name`: a module below this file. Crates of others are dependencies, whose names
/// start their own paths; they never end in a type that we define, or the compiler would object.
fn is_local(statement: &[Token]) -> bool {
    const DEPENDENCIES: [&str; 3] = ["tollgate", "tokio", "http"];
    let first = statement.first().map(|token| token.text.as_str());
    first.is_some_and(|first| {
        !DEPENDENCIES
            .iter()
            .any(|dependency| first == *dependency || first.starts_with(&format!("{dependency}_")))
    })
}

#[test]
fn a_repeated_type_name_is_written_with_its_module() {
    let list = tree().iter().find(|source| source.path == LIST);
    assert_clean(&violations(
        tree(),
        list.expect("repeated_types.txt is part of the tree"),
    ));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)], list: &str) -> Vec<String> {
        let sources: Vec<Source> = files
            .iter()
            .map(|(path, text)| Source::fixture(&format!("crates/x/src/{path}"), text))
            .collect();
        let violations = violations(&sources, &Source::fixture("list.txt", list));
        violations.iter().map(ToString::to_string).collect()
    }

    const TWICE: [(&str, &str); 2] = [
        ("a.rs", "pub(crate) struct State;"),
        ("b.rs", "pub enum State {}"),
    ];

    #[test]
    fn a_name_of_two_modules_may_not_be_imported_on_its_own() {
        let [one, other] = TWICE;
        let files = [one, other, ("c.rs", "\nuse crate::a::{Other, State};")];
        let violations = found(&files, "");
        assert!(violations[0].starts_with("crates/x/src/c.rs:2: `State` is imported"));
        assert!(found(&files, "x State\n").is_empty());
        let files = [one, other, ("c.rs", "use crate::a; fn f(s: a::State) {}")];
        assert!(found(&files, "").is_empty());
        assert!(found(&files, "x State\n")[0].ends_with("remove the line"));
    }

    #[test]
    fn a_private_type_and_an_alias_may_have_the_name() {
        let files = [
            ("a.rs", "struct State;"),
            ("b.rs", "pub struct State;"),
            ("c.rs", "use crate::b::State;"),
        ];
        assert!(found(&files, "").is_empty());
        let [one, other] = TWICE;
        let files = [one, other, ("c.rs", "use crate::b::State as Other;")];
        assert!(found(&files, "").is_empty());
    }

    #[test]
    fn a_type_of_another_crate_is_none_of_ours() {
        let [one, other] = TWICE;
        let files = [one, other, ("c.rs", "use tollgate_core::a::State;")];
        assert!(found(&files, "").is_empty());
    }
}
