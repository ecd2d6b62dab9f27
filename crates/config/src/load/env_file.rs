//! Files of variables: `KEY=VALUE`, one per line.
//!
//! Promises: every value becomes a secret at once, because such files hold keys; a line that is not
//! `KEY=VALUE` is a problem with its number.
//!
//! Never: runs or expands anything.

use std::collections::BTreeMap;

use crate::problem::{Level, Place, Problem, Problems};
use crate::raw::FILE_MAX;
use crate::secret::Secret;

/// Reads the lines of a file of variables.
pub fn parse(file: &str, text: &str) -> Result<BTreeMap<String, Secret>, Problems> {
    let mut variables = BTreeMap::new();
    let mut problems = Problems::default();
    let problem = |line: usize, what: &str, remedy: &str| Problem {
        level: Level::Error,
        place: Place {
            line: u64::try_from(line).unwrap_or(u64::MAX),
            column: 1,
            ..Place::whole(file)
        },
        path: String::new(),
        what: what.to_owned(),
        remedy: remedy.to_owned(),
    };
    if text.len() > FILE_MAX {
        let problem = problem(
            0,
            "the file is larger than 256 KiB",
            "is this the right one?",
        );
        return Err(problem.into());
    }
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let line = line.strip_prefix("export ").unwrap_or(line);
        let pair = line
            .split_once('=')
            .map(|(name, value)| (name.trim(), value.trim()));
        match pair.filter(|(name, _)| is_name(name)) {
            None => problems.push(problem(
                number,
                "this is not a variable",
                "write `KEY=VALUE`, one per line",
            )),
            Some((name, value)) => match unquoted(value) {
                Some(value) => {
                    variables.insert(name.to_owned(), Secret::new(value.to_owned()));
                }
                None => problems.push(problem(
                    number,
                    "the quotes are not closed",
                    "close them, or leave them out",
                )),
            },
        }
    }
    if problems.has_errors() {
        Err(problems)
    } else {
        Ok(variables)
    }
}

fn is_name(name: &str) -> bool {
    let part = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    let begins = name
        .bytes()
        .next()
        .is_some_and(|byte| !byte.is_ascii_digit());
    begins && name.bytes().all(part)
}

/// The value without its quotes; `None` if only one side has a quote.
fn unquoted(value: &str) -> Option<&str> {
    for quote in ['"', '\''] {
        if let Some(rest) = value.strip_prefix(quote) {
            return rest.strip_suffix(quote);
        }
    }
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_comments_and_quotes_are_read() {
        let read = parse(
            "x.env",
            "# keys\nA=1\n export B = two words \nC=\"q # \"\nD='s'\n\nE=\nF=a=b\n",
        )
        .unwrap();
        let shown: Vec<String> = read
            .iter()
            .map(|(name, value)| format!("{name}={}", value.expose()))
            .collect();
        assert_eq!(
            shown,
            ["A=1", "B=two words", "C=q # ", "D=s", "E=", "F=a=b"]
        );
    }

    /// H3: a line that cannot be read is reported by its number, not by its content.
    #[test]
    fn h3_a_broken_line_is_reported_by_its_number() {
        let problems = parse("x.env", "A=1\nCANARY\n1B=CANARY\nC=\"CANARY\n").unwrap_err();
        let text = problems.to_string();
        assert_eq!(problems.len(), 3);
        assert!(
            text.starts_with("x.env:2:1: this is not a variable; write `KEY=VALUE`"),
            "{text}"
        );
        assert!(!text.contains("CANARY"), "{text}");
    }
}
