//! Fields: typed access to the values of a tree, and the place of each problem.
//!
//! Promises: an unknown name is a problem that suggests the nearest known one; a value that cannot
//! be read is a problem, and everything around it is still read.
//!
//! Never: repeats a value in a problem.

use crate::problem::{Level, Place, Problem, Problems, nearest};
use crate::raw::{Node, Value};
use crate::setting::Setting;

/// A value and its path from the top of the file.
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

    /// A problem from an error of `core`, whose text has the remedy after a `;`.
    pub(crate) fn error_from(&self, error: &impl std::error::Error) -> Problem {
        let text = error.to_string();
        let (what, remedy) = text.split_once("; ").unwrap_or((&text, "change it"));
        self.error(what, remedy)
    }

    /// Adds the problems that a check of `core` found in this block, each at its field.
    pub(crate) fn add_core_problems(
        &self,
        found: &[tollgate_core::problem::Problem],
        problems: &mut Problems,
    ) {
        for problem in found {
            // `core` names a setting from the top of the file: `health.ramp.factor`.
            let mut at = self.clone();
            for name in problem.setting.split('.').skip(1) {
                if let Some(node) = at.node.get(name) {
                    at = at.below(name, node);
                }
            }
            problem.setting.clone_into(&mut at.path);
            let (what, remedy) = problem
                .remedy
                .split_once("; ")
                .unwrap_or((problem.remedy, "change it"));
            problems.push(at.error(what, remedy));
        }
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

    /// The names and values of a map whose names the user chooses.
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
    /// Opens a block; unknown names are problems.
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
                let mut problem = entry.error(unknown(name).as_str(), &suggestion(name, names));
                problem.place = place;
                problem.path.clone_from(&at.path);
                problems.push(problem);
            }
        }
        Some(Fields { at: at.clone() })
    }

    /// The value of a field, if it is set.
    pub(crate) fn get(&self, name: &str) -> Option<At<'a>> {
        let node = self.at.node.get(name)?;
        (node.value != Value::Null).then(|| self.at.below(name, node))
    }

    /// The value of a field, read.
    pub(crate) fn read<T: Setting>(&self, name: &str, problems: &mut Problems) -> Option<T> {
        T::read(&self.get(name)?, problems)
    }
}

fn unknown(name: &str) -> String {
    // A name of this form is unlikely to be a key that was pasted to the left of the colon.
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

fn suggestion(name: &str, names: &[&str]) -> String {
    match nearest(name, names) {
        Some(name) => format!("did you mean `{name}`?"),
        None if names.len() <= 12 => format!("the fields are {}", names.join(", ")),
        None => "see docs/providers.md for the fields".to_owned(),
    }
}
