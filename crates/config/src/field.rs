//! Fields: how a value of the tree becomes a value of ours, and how a problem finds its place.
//!
//! Promises: a name that is not known is a problem with the nearest one that is; a value that
//! cannot be read is a problem and everything around it is still read.
//!
//! Never: repeats a value in a problem.

use tollgate_core::time::Span;

use crate::amount::{self, Lifetime, Millionths, Part};
use crate::problem::{Level, Place, Problem, Problems, nearest};
use crate::raw::{Node, Value};

/// A value and the way to it from the top of the file.
#[derive(Clone, Debug)]
pub(crate) struct At<'a> {
    pub(crate) node: &'a Node,
    pub(crate) path: String,
}

impl<'a> At<'a> {
    pub(crate) fn problem(&self, level: Level, what: &str, remedy: &str) -> Problem {
        Problem {
            level,
            place: self.node.place.clone(),
            path: self.path.clone(),
            what: what.to_owned(),
            remedy: remedy.to_owned(),
        }
    }

    pub(crate) fn error(&self, what: &str, remedy: &str) -> Problem {
        self.problem(Level::Error, what, remedy)
    }

    /// A problem in the words of an error of `core`, which name the remedy after a `;`.
    pub(crate) fn refused(&self, error: &impl std::error::Error) -> Problem {
        let text = error.to_string();
        let (what, remedy) = text.split_once("; ").unwrap_or((&text, "change it"));
        self.error(what, remedy)
    }

    pub(crate) fn text(&self, problems: &mut Problems) -> Option<&'a str> {
        let text = self.node.text();
        if text.is_none() {
            problems.push(self.error("must be a single value", "write it behind the `:`"));
        }
        text
    }

    pub(crate) fn list(&self) -> Option<Vec<At<'a>>> {
        let Value::List(items) = &self.node.value else {
            return None;
        };
        let item = |(index, node)| At {
            node,
            path: format!("{}[{index}]", self.path),
        };
        Some(items.iter().enumerate().map(item).collect())
    }

    pub(crate) fn below(&self, name: &str, node: &'a Node) -> At<'a> {
        let path = match self.path.as_str() {
            "" => name.to_owned(),
            path => format!("{path}.{name}"),
        };
        At { node, path }
    }

    /// The names and values of a map whose names are free.
    pub(crate) fn entries(&self, problems: &mut Problems) -> Vec<(&'a str, Place, At<'a>)> {
        let Some(entries) = self.node.entries() else {
            problems.push(self.error("must be a block", "write `name: value` lines below it"));
            return Vec::new();
        };
        let entry = |entry: &'a crate::raw::Entry| {
            let at = self.below(&entry.name, &entry.node);
            (entry.name.as_str(), entry.place.clone(), at)
        };
        entries.iter().map(entry).collect()
    }
}

/// The fields of one block.
pub(crate) struct Fields<'a> {
    pub(crate) at: At<'a>,
}

impl<'a> Fields<'a> {
    /// Opens a block; names that are not known are problems.
    pub(crate) fn open(at: &At<'a>, names: &[&str], problems: &mut Problems) -> Option<Fields<'a>> {
        if at.node.entries().is_none() {
            let list = names
                .iter()
                .take(4)
                .map(|name| format!("`{name}:`"))
                .collect::<Vec<_>>();
            let remedy = format!("write lines such as {}", list.join(", "));
            problems.push(at.error("must be a block", &remedy));
            return None;
        }
        for (name, place, entry) in at.entries(problems) {
            if !names.contains(&name) {
                let mut problem = entry.error(unknown(name).as_str(), &meant(name, names));
                problem.place = place;
                problem.path.clone_from(&at.path);
                problems.push(problem);
            }
        }
        Some(Fields { at: at.clone() })
    }

    /// The value of a field, if something is written there.
    pub(crate) fn get(&self, name: &str) -> Option<At<'a>> {
        let node = self.at.node.get(name)?;
        (node.value != Value::Nothing).then(|| self.at.below(name, node))
    }

    /// The value of a field, read.
    pub(crate) fn read<T: Setting>(&self, name: &str, problems: &mut Problems) -> Option<T> {
        T::read(&self.get(name)?, problems)
    }
}

fn unknown(name: &str) -> String {
    // A name of this shape cannot be a key that slipped to the left of the colon by much.
    let telling = name.len() <= 32
        && name
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-');
    if telling {
        format!("`{name}` is not a field")
    } else {
        "there is a name here that is not a field".to_owned()
    }
}

fn meant(name: &str, names: &[&str]) -> String {
    match nearest(name, names) {
        Some(name) => format!("did you mean `{name}`?"),
        None if names.len() <= 12 => format!("the fields are {}", names.join(", ")),
        None => "see docs/providers.md for the fields".to_owned(),
    }
}

/// Something that can be read from one value.
pub(crate) trait Setting: Sized {
    fn read(at: &At<'_>, problems: &mut Problems) -> Option<Self>;
}

/// Reads a single value by a function; `what` and `remedy` are its problem.
pub(crate) fn read_text<T>(
    at: &At<'_>,
    problems: &mut Problems,
    read: impl FnOnce(&str) -> Option<T>,
    what: &str,
    remedy: &str,
) -> Option<T> {
    let text = at.text(problems)?;
    let value = read(text.trim());
    if value.is_none() {
        problems.push(at.error(what, remedy));
    }
    value
}

impl Setting for Span {
    fn read(at: &At<'_>, problems: &mut Problems) -> Option<Span> {
        read_text(
            at,
            problems,
            amount::span,
            "is not a length of time or has no unit",
            "write `10s`, `5m`, `6h`, `1d` or `1m30s`",
        )
    }
}

impl Setting for u64 {
    fn read(at: &At<'_>, problems: &mut Problems) -> Option<u64> {
        read_text(
            at,
            problems,
            amount::number,
            "is not a whole number",
            "write digits, such as `40`",
        )
    }
}

impl Setting for Millionths {
    fn read(at: &At<'_>, problems: &mut Problems) -> Option<Millionths> {
        let read = |text: &str| match text.strip_suffix('%') {
            Some(_) => amount::share(text),
            None => amount::millionths(text),
        };
        read_text(
            at,
            problems,
            read,
            "is not a number",
            "write `0.2`, `20%` or `1.5`, with six decimals at most",
        )
    }
}

impl Setting for Part {
    fn read(at: &At<'_>, problems: &mut Problems) -> Option<Part> {
        read_text(
            at,
            problems,
            amount::part,
            "is not a number or a share",
            "write `50` or `5%`",
        )
    }
}

impl Setting for Lifetime {
    fn read(at: &At<'_>, problems: &mut Problems) -> Option<Lifetime> {
        read_text(
            at,
            problems,
            amount::lifetime,
            "is not a lifetime",
            "write `24h`, `5m..10m` (least first), `forever`, or `0s` for none",
        )
    }
}

impl Setting for bool {
    fn read(at: &At<'_>, problems: &mut Problems) -> Option<bool> {
        let read = |text: &str| match text.to_ascii_lowercase().as_str() {
            "true" | "yes" | "on" => Some(true),
            "false" | "no" | "off" => Some(false),
            _ => None,
        };
        read_text(
            at,
            problems,
            read,
            "is not a switch",
            "write `true` or `false`",
        )
    }
}

impl Setting for String {
    fn read(at: &At<'_>, problems: &mut Problems) -> Option<String> {
        let read = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        read_text(
            at,
            problems,
            read,
            "is empty",
            "write a value or remove the line",
        )
    }
}

/// `off`, or a value.
impl<T: Setting> Setting for Option<T> {
    fn read(at: &At<'_>, problems: &mut Problems) -> Option<Option<T>> {
        let off = at
            .node
            .text()
            .is_some_and(|text| text == "off" || text == "false");
        if off {
            Some(None)
        } else {
            T::read(at, problems).map(Some)
        }
    }
}

/// One value, or a list of them.
impl<T: Setting> Setting for Vec<T> {
    fn read(at: &At<'_>, problems: &mut Problems) -> Option<Vec<T>> {
        match at.list() {
            Some(items) => Some(
                items
                    .iter()
                    .filter_map(|item| T::read(item, problems))
                    .collect(),
            ),
            None => T::read(at, problems).map(|one| vec![one]),
        }
    }
}

/// An enum whose variants are words of a file. The first is the default.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $(#[$first_doc:meta])* $first:ident = $first_word:literal, $( $(#[$variant_doc:meta])* $variant:ident = $word:literal, )* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub enum $name {
            $(#[$first_doc])* #[default] $first,
            $( $(#[$variant_doc])* $variant, )*
        }

        impl $name {
            /// The word as it is written.
            #[must_use]
            pub fn word(self) -> &'static str {
                match self { Self::$first => $first_word, $( Self::$variant => $word, )* }
            }
        }

        impl $crate::field::Setting for $name {
            fn read(at: &$crate::field::At<'_>, problems: &mut $crate::problem::Problems) -> Option<Self> {
                const WORDS: &[&str] = &[$first_word, $( $word, )*];
                match at.text(problems)?.trim() {
                    $first_word => Some(Self::$first),
                    $( $word => Some(Self::$variant), )*
                    other => {
                        problems.push($crate::field::not_a_word(at, other, WORDS));
                        None
                    }
                }
            }
        }
    };
}
pub(crate) use words;

pub(crate) fn not_a_word(at: &At<'_>, other: &str, words: &[&str]) -> Problem {
    let list = words
        .iter()
        .map(|word| format!("`{word}`"))
        .collect::<Vec<_>>()
        .join(", ");
    let remedy = match nearest(other, words) {
        Some(word) => format!("did you mean `{word}`?"),
        None => "write one of these".to_owned(),
    };
    at.error(&format!("is none of {list}"), &remedy)
}

/// A block of settings: names, types and defaults stand together, once.
macro_rules! block {
    ($(#[$doc:meta])* $name:ident { $( $(#[$field_doc:meta])* $field:ident: $kind:ty = $default:expr, )* }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct $name { $( $(#[$field_doc])* pub $field: $kind, )* }

        impl Default for $name {
            fn default() -> Self {
                $name { $( $field: $default, )* }
            }
        }

        impl $name {
            /// The names of the settings, in the order of the documentation.
            pub const NAMES: &[&str] = &[$( stringify!($field), )*];
        }

        impl $crate::field::Setting for $name {
            fn read(at: &$crate::field::At<'_>, problems: &mut $crate::problem::Problems) -> Option<Self> {
                let fields = $crate::field::Fields::open(at, Self::NAMES, problems)?;
                let mut block = Self::default();
                $( if let Some(value) = fields.read(stringify!($field), problems) { block.$field = value; } )*
                Some(block)
            }
        }
    };
}
pub(crate) use block;
