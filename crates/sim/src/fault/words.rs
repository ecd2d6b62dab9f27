//! The words of a fault's text, parsed one by one.
//!
//! Promises: an error names the word, its position and the fix.
//!
//! Never: knows what a fault is, except for when it is active.

use std::str::FromStr;

use tollgate_core::time::Span;

use super::{Amount, When};
use crate::rule::parse_length;

/// A fault that could not be parsed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("fault `{line}`, word {word}: {problem}; {remedy}")]
pub struct FaultParseError {
    /// The whole text.
    pub line: String,
    /// Which word is wrong, counted from 1.
    pub word: usize,
    /// What is wrong.
    pub problem: String,
    /// What to write instead.
    pub remedy: String,
}

/// The problem with a word, and the fix.
pub(super) type WordError = (String, String);

/// The words of a line, with the position of the last one.
pub(super) struct Words<'a> {
    line: &'a str,
    rest: std::str::SplitAsciiWhitespace<'a>,
    word: usize,
}

impl<'a> Words<'a> {
    pub(super) fn of(line: &'a str) -> Words<'a> {
        Words {
            line,
            rest: line.split_ascii_whitespace(),
            word: 0,
        }
    }

    pub(super) fn next(&mut self) -> Option<&'a str> {
        self.word += 1;
        self.rest.next()
    }

    pub(super) fn error(
        &self,
        problem: impl Into<String>,
        remedy: impl Into<String>,
    ) -> FaultParseError {
        let line = self.line.trim().to_owned();
        FaultParseError {
            line,
            word: self.word,
            problem: problem.into(),
            remedy: remedy.into(),
        }
    }

    pub(super) fn missing(&self, what: &str, remedy: &str) -> FaultParseError {
        self.error(format!("{what} is missing"), remedy)
    }

    fn read<T>(
        &self,
        word: &str,
        by: impl Fn(&str) -> Result<T, WordError>,
    ) -> Result<T, FaultParseError> {
        by(word).map_err(|(problem, remedy)| self.error(problem, remedy))
    }

    pub(super) fn required<T>(
        &mut self,
        by: impl Fn(&str) -> Result<T, WordError>,
    ) -> Result<T, FaultParseError> {
        // An empty word gets the error of the parser, which knows the fix.
        let word = self.next().unwrap_or("");
        self.read(word, by)
    }

    pub(super) fn optional<T>(
        &mut self,
        by: impl Fn(&str) -> Result<T, WordError>,
    ) -> Result<Option<T>, FaultParseError> {
        self.next().map(|word| self.read(word, by)).transpose()
    }

    pub(super) fn when(&mut self) -> Result<When, FaultParseError> {
        let remedy = "write `8s..11s`, `8s..`, `at 8s`, `now` or `next 3`";
        match self.next() {
            None => Err(self.missing("the time", remedy)),
            Some("now") => Ok(When::Now),
            Some("at") => Ok(When::Between {
                from: self.required(span)?,
                to: None,
            }),
            Some("next") => match self.required(count)? {
                0 => Err(self.error("no request at all", "write at least 1")),
                requests => Ok(When::Next { requests }),
            },
            Some(word) => match word.split_once("..") {
                None => Err(self.error(format!("`{word}` is not a time"), remedy)),
                Some((from, "")) => Ok(When::Between {
                    from: self.read(from, span)?,
                    to: None,
                }),
                Some((from, to)) => {
                    let (from, to) = (self.read(from, span)?, self.read(to, span)?);
                    if from >= to {
                        return Err(
                            self.error("it ends before it starts", "write the earlier time first")
                        );
                    }
                    Ok(When::Between { from, to: Some(to) })
                }
            },
        }
    }

    /// A time by the clock: a number holds until the next change, for every request.
    pub(super) fn time(&mut self) -> Result<When, FaultParseError> {
        match self.when()? {
            When::Next { .. } => Err(self.error(
                "a number does not change by request",
                "write `at 15s` or `now`",
            )),
            when @ (When::Now | When::Between { .. }) => Ok(when),
        }
    }

    /// `RULE to N` or `RULE halve`; `joiner` is the word in the middle.
    pub(super) fn number(&mut self, joiner: &str) -> Result<(usize, Amount), FaultParseError> {
        let rule = self.required(count)?;
        let to = match self.next() {
            Some("halve") => Amount::Half,
            Some(word) if word == joiner => Amount::Exactly(self.required(count)?),
            _ => {
                let remedy = format!("write for instance `0 {joiner} 20 at 15s`");
                return Err(self.error(format!("expected `{joiner}` or `halve`"), remedy));
            }
        };
        Ok((rule, to))
    }

    pub(super) fn end(&mut self) -> Result<(), FaultParseError> {
        match self.next() {
            None => Ok(()),
            Some(word) => Err(self.error(format!("`{word}` is one word too many"), "leave it out")),
        }
    }
}

/// Reads a length of time such as `500ms` or `1m30s`; an empty word is none.
#[must_use]
pub fn parse_span(word: &str) -> Option<Span> {
    parse_length(word).filter(|_| !word.is_empty())
}

/// The same, with an error.
pub(super) fn span(word: &str) -> Result<Span, WordError> {
    parse_span(word).ok_or_else(|| {
        let remedy = "write a number with a unit: `500ms`, `8s`, `1m30s`, `1h`".to_owned();
        (format!("`{word}` is not a length of time"), remedy)
    })
}

/// Reads a whole number.
pub(super) fn count<N: FromStr>(word: &str) -> Result<N, WordError> {
    word.parse().map_err(|_| {
        let remedy = "write digits; rules are counted from 0".to_owned();
        (format!("`{word}` is not a whole number"), remedy)
    })
}
