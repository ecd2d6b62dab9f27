//! A file as it is written: a tree in which every value knows its place.
//!
//! Promises: values keep the text they were written with (an `api_key: 0012` stays `0012`), keys
//! keep their order, and trees can be merged before anything is checked, so a preset, a tier, a
//! file and a command-line setting become one tree.
//!
//! Never: knows a field's name or meaning. Never shows a value: `Debug` prints only the shape.

mod yaml;
pub use yaml::{FILE_MAX, read};

use std::fmt;

use crate::problem::Place;

/// A value and its place.
#[derive(Clone, PartialEq, Eq)]
pub struct Node {
    /// Its place in the file.
    pub place: Place,
    /// The value.
    pub value: Value,
}

/// A value of a file.
#[derive(Clone, PartialEq, Eq)]
pub enum Value {
    /// Nothing, `~` or `null`.
    Null,
    /// A text, number or switch, as it was written.
    Text(String),
    /// `[a, b]` or lines with `-`.
    List(Vec<Node>),
    /// Names and values, in order.
    Map(Vec<Entry>),
}

/// One line of a map.
#[derive(Clone, PartialEq, Eq)]
pub struct Entry {
    /// The name.
    pub name: String,
    /// The place of the name.
    pub place: Place,
    /// The value.
    pub node: Node,
}

impl Node {
    /// The value of a name, if this is a map that has it.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Node> {
        let entries = self.entries()?;
        let entry = entries.iter().find(|entry| entry.name == name)?;
        Some(&entry.node)
    }

    /// The text, if it is one.
    #[must_use]
    pub fn text(&self) -> Option<&str> {
        match &self.value {
            Value::Text(text) => Some(text),
            Value::Null | Value::List(_) | Value::Map(_) => None,
        }
    }

    /// The lines, if it is a map. A file with nothing in it is an empty map.
    #[must_use]
    pub fn entries(&self) -> Option<&[Entry]> {
        match &self.value {
            Value::Map(entries) => Some(entries),
            Value::Null => Some(&[]),
            Value::Text(_) | Value::List(_) => None,
        }
    }

    /// Removes a name from a map.
    pub fn remove(&mut self, name: &str) -> Option<Node> {
        let Value::Map(entries) = &mut self.value else {
            return None;
        };
        let at = entries.iter().position(|entry| entry.name == name)?;
        Some(entries.remove(at).node)
    }

    /// Merges another tree over this one: maps are joined name by name, everything else is
    /// replaced. A null removes the value below it.
    pub fn merge(&mut self, over: Node) {
        let (Value::Map(below), Value::Map(above)) = (&mut self.value, &over.value) else {
            *self = over;
            return;
        };
        for entry in above {
            match below.iter_mut().find(|old| old.name == entry.name) {
                Some(old) => {
                    old.place = entry.place.clone();
                    old.node.merge(entry.node.clone());
                }
                None => below.push(entry.clone()),
            }
        }
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} at {}", self.value, self.place)
    }
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Null => f.write_str("nothing"),
            Value::Text(_) => f.write_str("text"),
            Value::List(items) => f.debug_list().entries(items).finish(),
            Value::Map(entries) => f.debug_list().entries(entries).finish(),
        }
    }
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {:?}", self.name, self.node)
    }
}
