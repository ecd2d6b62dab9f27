//! YAML: the only module that uses the parser.
//!
//! Promises: a file that is too large, too deep or full of aliases is rejected before it costs
//! anything; the parser's messages are replaced, because some of them quote the file. `${NAME}` and
//! `${NAME:-default}` need no quotes anywhere, not even between braces.
//!
//! Never: shows a snippet of the file.

use std::fmt;
use std::sync::Arc;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::Spanned;
use serde_saphyr::options::NonFiniteFloatPolicy;

use super::{Entry, Node, Value};
use crate::problem::{Level, Place, Problem};

/// The largest file: a provider file has some 2 KiB, so this is a hundred times more than anybody
/// writes by hand.
pub const FILE_MAX: usize = 256 * 1024;

/// Blocks inside blocks: `limits` in a tier in a preset are five deep.
const DEPTH_MAX: usize = 16;

/// Values of a file: one in three bytes of the largest file at most, and far above any real one.
const NODES_MAX: usize = 20_000;

/// Uses of `*alias`: handy for a few, a bomb for many.
const ALIASES_MAX: usize = 64;

/// Stand-ins for the braces of `${NAME}`, which a flow map would take for its own. Characters of
/// the private area, one for one, so that columns stay right.
const OPEN: char = '\u{f8f0}';
const CLOSE: char = '\u{f8f1}';

/// Reads a file into a tree.
pub fn read(file: &str, text: &str) -> Result<Node, Problem> {
    let file: Arc<str> = Arc::from(file);
    let whole = |what: &str, remedy: &str| Problem {
        level: Level::Error,
        place: Place::whole(&file),
        path: String::new(),
        what: what.to_owned(),
        remedy: remedy.to_owned(),
    };
    if text.len() > FILE_MAX {
        return Err(whole(
            "the file is larger than 256 KiB",
            "a provider file has some 2 KiB; is this the right one?",
        ));
    }
    if text.contains([OPEN, CLOSE]) {
        return Err(whole(
            "the file has a character of the private area (U+F8F0 or U+F8F1)",
            "remove it",
        ));
    }
    let shielded = mask_braces(text);
    let parsed: Spanned<Parsed> = serde_saphyr::from_str_with_options(&shielded, options())
        .map_err(|error| {
            let (what, remedy) = explain(&error);
            let mut problem = whole(what, remedy);
            if let Some(location) = error.location() {
                problem.place.line = location.line();
                problem.place.column = location.column();
            }
            problem
        })?;
    Ok(Tree {
        file,
        text: &shielded,
    }
    .node(parsed))
}

fn options() -> serde_saphyr::Options {
    let mut options = serde_saphyr::options! {
        with_snippet: false,
        non_finite_float_policy: NonFiniteFloatPolicy::PassThrough,
    };
    options.alias_limits.max_total_replayed_events = NODES_MAX;
    options.alias_limits.max_replay_stack_depth = DEPTH_MAX;
    options.alias_limits.max_alias_expansions_per_anchor = ALIASES_MAX;
    if let Some(budget) = &mut options.budget {
        budget.max_reader_input_bytes = Some(2 * FILE_MAX);
        budget.flow_nesting_limit = DEPTH_MAX;
        budget.max_depth = DEPTH_MAX;
        budget.max_nodes = NODES_MAX;
        budget.max_events = 3 * NODES_MAX;
        budget.max_aliases = ALIASES_MAX;
        budget.max_anchors = ALIASES_MAX;
        budget.max_recorded_anchor_events = NODES_MAX;
        budget.max_recorded_anchor_bytes = FILE_MAX;
        budget.max_total_scalar_bytes = 2 * FILE_MAX;
        budget.max_merge_keys = ALIASES_MAX;
        // One more than allowed, so that a second document is reported as such.
        budget.max_documents = 2;
    }
    options
}

/// Messages for the parser's errors; its own may quote the file.
fn explain(error: &serde_saphyr::Error) -> (&'static str, &'static str) {
    use serde_saphyr::Error;
    match error.without_snippet() {
        Error::DuplicateMappingKey { .. } => (
            "the same name is used twice in one block",
            "keep one of the two lines",
        ),
        Error::MultipleDocuments { .. } => (
            "the file holds more than one document (`---`)",
            "write one provider per file",
        ),
        Error::UnknownAnchor { .. } => (
            "an alias (`*name`) has no anchor (`&name`)",
            "quote the value if it only begins with `*`",
        ),
        Error::Budget { .. }
        | Error::AliasReplayLimitExceeded { .. }
        | Error::AliasExpansionLimitExceeded { .. }
        | Error::AliasReplayStackDepthExceeded { .. } => (
            "the file nests too deep or uses too many values or aliases",
            "a provider file needs 16 levels and 64 aliases at most; write the values out",
        ),
        Error::Eof { .. } => (
            "the file ends in the middle of a value",
            "close the quote, brace or bracket that is still open",
        ),
        _ => (
            "this is not valid YAML",
            "check indentation, the blank after `:`, and quotes around values that begin with @ % ` * & or ! or end with `:`",
        ),
    }
}

/// Hides the braces of every `${NAME}` from the parser.
fn mask_braces(text: &str) -> String {
    let mut shielded = String::with_capacity(text.len() + 64);
    let mut rest = text;
    while let Some(at) = rest.find("${") {
        let (before, after) = rest.split_at(at);
        let name = after.strip_prefix("${").unwrap_or_default();
        shielded.push_str(before);
        match name.split_once('}') {
            Some((name, tail)) if is_variable(name) => {
                shielded.extend(['$', OPEN]);
                shielded.push_str(name);
                shielded.push(CLOSE);
                rest = tail;
            }
            Some(_) | None => {
                shielded.push_str("${");
                rest = name;
            }
        }
    }
    shielded.push_str(rest);
    shielded
}

/// `NAME`, or `NAME:-default` on one line.
fn is_variable(text: &str) -> bool {
    let (name, otherwise) = text.split_once(":-").unwrap_or((text, ""));
    let is_part = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    let plain = |letter: char| !letter.is_control() && !"{}#\"'".contains(letter);
    !name.is_empty() && name.chars().all(is_part) && otherwise.chars().all(plain)
}

fn unmask_braces(text: &str) -> String {
    text.replace(OPEN, "{").replace(CLOSE, "}")
}

/// A value from the parser. For numbers and booleans only the kind is recorded: their text is taken
/// from the file, so nothing is rounded or rewritten.
enum Parsed {
    Null,
    Scalar,
    Text(String),
    List(Vec<Spanned<Parsed>>),
    Map(Vec<(Spanned<String>, Spanned<Parsed>)>),
}

impl<'de> Deserialize<'de> for Parsed {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Parsed, D::Error> {
        deserializer.deserialize_any(ParsedVisitor)
    }
}

struct ParsedVisitor;

impl<'de> Visitor<'de> for ParsedVisitor {
    type Value = Parsed;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Parsed, E> {
        Ok(Parsed::Null)
    }

    fn visit_none<E>(self) -> Result<Parsed, E> {
        Ok(Parsed::Null)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Parsed, E> {
        Ok(Parsed::Scalar)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Parsed, E> {
        Ok(Parsed::Scalar)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Parsed, E> {
        Ok(Parsed::Scalar)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Parsed, E> {
        Ok(Parsed::Scalar)
    }

    fn visit_str<E>(self, text: &str) -> Result<Parsed, E> {
        Ok(Parsed::Text(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Parsed, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = list.next_element()? {
            items.push(item);
        }
        Ok(Parsed::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Parsed, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = map.next_entry()? {
            entries.push(entry);
        }
        Ok(Parsed::Map(entries))
    }
}

struct Tree<'a> {
    file: Arc<str>,
    text: &'a str,
}

impl Tree<'_> {
    fn node(&self, parsed: Spanned<Parsed>) -> Node {
        let place = self.place(&parsed.referenced);
        let value = match parsed.value {
            Parsed::Null => Value::Null,
            Parsed::Scalar => Value::Text(self.scalar_text(&parsed.defined)),
            Parsed::Text(text) => Value::Text(unmask_braces(&text)),
            Parsed::List(items) => {
                Value::List(items.into_iter().map(|item| self.node(item)).collect())
            }
            Parsed::Map(entries) => {
                let entry = |(name, node): (Spanned<String>, Spanned<Parsed>)| Entry {
                    name: unmask_braces(&name.value),
                    place: self.place(&name.referenced),
                    node: self.node(node),
                };
                Value::Map(entries.into_iter().map(entry).collect())
            }
        };
        Node { place, value }
    }

    fn place(&self, location: &serde_saphyr::Location) -> Place {
        Place {
            file: self.file.clone(),
            line: location.line(),
            column: location.column(),
        }
    }

    /// The text of a number or boolean, as written in the file.
    fn scalar_text(&self, location: &serde_saphyr::Location) -> String {
        let span = location.span();
        let part = |start: u64, length: u64| {
            let start = usize::try_from(start).ok()?;
            let end = start.checked_add(usize::try_from(length).ok()?)?;
            self.text.get(start..end)
        };
        let bytes = span.byte_offset().zip(span.byte_len());
        let text = bytes.and_then(|(start, length)| part(start, length));
        unmask_braces(text.unwrap_or_default().trim())
    }
}
