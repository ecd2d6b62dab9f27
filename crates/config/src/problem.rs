//! Problems of a file: the place, what is wrong, and the remedy.
//!
//! Promises: a problem names the file, the line and column where they are known, the field, what is
//! wrong and the remedy, in one line that editors can jump to.
//!
//! Never: repeats a value of the file. It may be a key; the place is enough to find it.

use std::fmt;
use std::sync::Arc;

/// The most problems in a list: nobody reads more, and a hostile file cannot fill the memory.
pub const PROBLEMS_MAX: usize = 100;

/// Where something is written.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The file, as the user named it; `preset NAME` for what is built in.
    pub file: Arc<str>,
    /// The line from 1; 0 if it is not known.
    pub line: u64,
    /// The column from 1; 0 if it is not known.
    pub column: u64,
}

impl Place {
    /// A file as a whole.
    #[must_use]
    pub fn whole(file: &str) -> Place {
        Place {
            file: Arc::from(file),
            line: 0,
            column: 0,
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        if self.line > 0 {
            write!(f, ":{}:{}", self.line, self.column)?;
        }
        Ok(())
    }
}

/// The severity of a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// The file is rejected.
    Error,
    /// The file is valid, but probably not as intended.
    Warning,
    /// The file is valid; this explains an effect of it.
    Note,
}

/// One problem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Its severity.
    pub level: Level,
    /// Where it is.
    pub place: Place,
    /// The field, from the top: `limits[0].period`. Empty for the file as a whole.
    pub path: String,
    /// What is wrong.
    pub what: String,
    /// What to do about it.
    pub remedy: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.place)?;
        match self.level {
            Level::Error => {}
            Level::Warning => f.write_str("warning: ")?,
            Level::Note => f.write_str("note: ")?,
        }
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        write!(f, "{}; {}", self.what, self.remedy)
    }
}

/// Every problem that was found, in the order of the files' lines.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Problems {
    all: Vec<Problem>,
    left_out: usize,
}

impl From<Problem> for Problems {
    fn from(problem: Problem) -> Problems {
        Problems {
            all: vec![problem],
            left_out: 0,
        }
    }
}

impl Problems {
    /// Adds one. Beyond [`PROBLEMS_MAX`] they are only counted; an error replaces a less severe
    /// one.
    pub fn push(&mut self, problem: Problem) {
        if self.all.len() < PROBLEMS_MAX {
            self.all.push(problem);
            return;
        }
        self.left_out += 1;
        let lighter = self
            .all
            .iter_mut()
            .find(|other| other.level > problem.level);
        if let Some(lighter) = lighter {
            *lighter = problem;
        }
    }

    /// Adds all of another list.
    pub fn extend(&mut self, other: Problems) {
        self.left_out += other.left_out;
        for problem in other.all {
            self.push(problem);
        }
    }

    /// Sorts them by file and line, notes last.
    pub fn sort(&mut self) {
        self.all.sort_by(|a, b| {
            (a.level == Level::Note, &a.place, &a.path).cmp(&(
                b.level == Level::Note,
                &b.place,
                &b.path,
            ))
        });
    }

    /// One by one.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Problem> {
        self.all.iter()
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.all.len() + self.left_out
    }

    /// There are none, not even notes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Whether at least one is an error.
    #[must_use]
    pub fn has_errors(&self) -> bool {
        self.all.iter().any(|problem| problem.level == Level::Error)
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.all.iter().enumerate() {
            if index > 0 {
                writeln!(f)?;
            }
            write!(f, "{problem}")?;
        }
        if self.left_out > 0 {
            write!(f, "\nand {} more", self.left_out)?;
        }
        Ok(())
    }
}

impl std::error::Error for Problems {}

/// The name that was probably meant: at most a third of its letters differ.
pub fn nearest<'a>(wrong: &str, names: &[&'a str]) -> Option<&'a str> {
    let wrong = wrong.to_ascii_lowercase().replace('-', "_");
    // Much longer than any name; the bound keeps the work small.
    if wrong.len() > 64 {
        return None;
    }
    names
        .iter()
        .map(|name| (distance(&wrong, &name.replace('-', "_")), *name))
        .filter(|(distance, name)| *distance <= name.len().max(3) / 3)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, name)| name)
}

/// Letters to insert, drop, replace or swap with their neighbour.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut before = Vec::new();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, left) in a.iter().enumerate() {
        let mut next = vec![i + 1];
        for (j, right) in b.iter().enumerate() {
            let replaced = row[j] + usize::from(left != right);
            let mut best = replaced.min(row[j + 1] + 1).min(next[j] + 1);
            let swapped = i > 0 && j > 0 && *left == b[j - 1] && a[i - 1] == *right;
            if swapped {
                let earlier: &Vec<usize> = &before;
                best = best.min(earlier[j - 1] + 1);
            }
            next.push(best);
        }
        before = std::mem::replace(&mut row, next);
    }
    row.last().copied().unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_reads_as_one_line_with_place_and_remedy() {
        let problem = Problem {
            level: Level::Error,
            place: Place {
                file: Arc::from("tmdb.yaml"),
                line: 3,
                column: 9,
            },
            path: "limits[0].period".to_owned(),
            what: "has no unit".to_owned(),
            remedy: "write `10s`".to_owned(),
        };
        assert_eq!(
            problem.to_string(),
            "tmdb.yaml:3:9: limits[0].period: has no unit; write `10s`"
        );
    }

    #[test]
    fn errors_are_kept_when_there_are_too_many_problems() {
        let problem = |level| Problem {
            level,
            place: Place::whole("a"),
            path: String::new(),
            what: "x".to_owned(),
            remedy: "y".to_owned(),
        };
        let mut problems = Problems::default();
        for _ in 0..PROBLEMS_MAX {
            problems.push(problem(Level::Note));
        }
        problems.push(problem(Level::Error));
        assert!(problems.has_errors());
        assert_eq!(problems.len(), PROBLEMS_MAX + 1);
        assert!(problems.to_string().ends_with("and 1 more"));
    }

    #[test]
    fn the_nearest_name_is_found_and_no_other() {
        let names = ["limit", "limits", "period", "token-bucket", "api_key"];
        assert_eq!(nearest("perod", &names), Some("period"));
        assert_eq!(nearest("apikey", &names), Some("api_key"));
        assert_eq!(nearest("api_kye", &names), Some("api_key"));
        assert_eq!(nearest("TOKEN_BUCKET", &names), Some("token-bucket"));
        assert_eq!(nearest("limtis", &names), Some("limits"));
        assert_eq!(nearest("banana", &names), None);
    }
}
