//! A setting that is wrong, and what to write instead.
//!
//! Promises: a check returns every problem at once, each with the setting's own name, so that a
//! user fixes a file in one pass.
//!
//! Never: a value that may be a key. Settings checked here are numbers and words.

use std::fmt;

/// One setting that cannot be applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The setting as users write it: `health.p_throttle`.
    pub setting: &'static str,
    /// What is wrong and what to write instead.
    pub remedy: &'static str,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.setting, self.remedy)
    }
}

/// Collects problems: one line per rule.
#[derive(Debug, Default)]
pub(crate) struct Problems(Vec<Problem>);

impl Problems {
    /// Adds a problem unless the setting is `fine`.
    pub(crate) fn unless(&mut self, fine: bool, setting: &'static str, remedy: &'static str) {
        if !fine {
            self.0.push(Problem { setting, remedy });
        }
    }

    pub(crate) fn found(self) -> Vec<Problem> {
        self.0
    }
}
