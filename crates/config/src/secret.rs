//! Keys: where they come from, and a type that never shows them.
//!
//! Promises: a [`Secret`] has no `Display` and no `Serialize`, its `Debug` shows nothing of it, and
//! it is wiped on drop. Only [`Secret::expose`] returns its content, which is easy to search for.
//!
//! Never: reads the environment or a file by itself. [`Environment`] does, and tests pass their
//! own.

use std::fmt;

use secrecy::{ExposeSecret, SecretString};

/// A key, token or password.
#[derive(Clone)]
pub struct Secret(SecretString);

impl Secret {
    /// Makes a text a secret.
    #[must_use]
    pub fn new(text: String) -> Secret {
        Secret(SecretString::from(text))
    }

    /// The content. Only for the place that sends it to the provider it belongs to.
    #[must_use]
    pub fn expose(&self) -> &str {
        self.0.expose_secret()
    }
}

/// Compares in constant time, so that timing does not reveal how much of a guess is right.
impl PartialEq for Secret {
    fn eq(&self, other: &Secret) -> bool {
        let (ours, theirs) = (self.expose().as_bytes(), other.expose().as_bytes());
        let pairs = ours.iter().zip(theirs);
        let differs = pairs.fold(0, |differs, (a, b)| differs | (a ^ b));
        ours.len() == theirs.len() && differs == 0
    }
}

impl Eq for Secret {}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(hidden)")
    }
}

/// A file that was read.
pub struct FileContent {
    /// What is in it.
    pub text: String,
    /// Other users of the machine may read it too.
    pub readable_by_others: bool,
}

impl fmt::Debug for FileContent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FileContent(hidden)")
    }
}

/// What is at a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathKind {
    /// Nothing.
    Nothing,
    /// A file.
    File,
    /// A folder, with the names in it.
    Folder(Vec<String>),
}

/// Access to environment variables and files. All of it is by functions, so that everything can be
/// tested without touching the process.
#[derive(Clone, Copy)]
pub struct Environment<'a> {
    /// The value of an environment variable.
    pub env: &'a dyn Fn(&str) -> Option<String>,
    /// The names of all variables, to find mistyped ones.
    pub env_names: &'a dyn Fn() -> Vec<String>,
    /// The content of a file, or why it cannot be read (without its content).
    pub read_file: &'a dyn Fn(&str) -> Result<FileContent, String>,
    /// What is at a path, or why that is not known.
    pub path_kind: &'a dyn Fn(&str) -> Result<PathKind, String>,
    /// The value of a key whose variable or file is missing; `None`: that is a problem. For commands
    /// that send nothing.
    pub missing_key: Option<&'static str>,
}

impl Environment<'_> {
    /// No environment and no files: for presets, and for tests that need neither.
    #[must_use]
    pub fn empty() -> Environment<'static> {
        Environment {
            env: &|_| None,
            env_names: &Vec::new,
            path_kind: &|_| Ok(PathKind::Nothing),
            read_file: &|_| Err("there are no files here".to_owned()),
            missing_key: None,
        }
    }
}

impl fmt::Debug for Environment<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Environment")
    }
}

/// The most bytes of a key: the longest tokens (JWTs with claims) have some 4 KiB.
pub(crate) const SECRET_MAX: usize = 16 * 1024;

/// Where a secret comes from.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Lookup<'a> {
    /// `file:/path`.
    File(&'a str),
    /// Text in which every `${NAME}` is replaced.
    Text(&'a str),
}

pub(crate) fn lookup(text: &str) -> Lookup<'_> {
    match text.strip_prefix("file:") {
        Some(path) => Lookup::File(path),
        None => Lookup::Text(text),
    }
}

/// Replaces every `${NAME}` and `${NAME:-default}`; the error is the name of a variable that is not
/// set.
pub(crate) fn expand(text: &str, environment: &Environment<'_>) -> Result<String, String> {
    expand_with(text, environment, &str::to_owned)
}

/// The same, with every value escaped for its context by `written`.
pub(crate) fn expand_with(
    text: &str,
    environment: &Environment<'_>,
    written: &dyn Fn(&str) -> String,
) -> Result<String, String> {
    let mut whole = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("${") {
        let Some((name, tail)) = after.split_once('}') else {
            break;
        };
        let (name, default) = match name.split_once(":-") {
            Some((name, default)) => (name, Some(default)),
            None => (name, None),
        };
        whole.push_str(before);
        let value = (environment.env)(name).filter(|value| !value.is_empty());
        let value = value.or_else(|| default.map(str::to_owned));
        whole.push_str(&written(&value.ok_or_else(|| name.to_owned())?));
        rest = tail;
    }
    whole.push_str(rest);
    Ok(whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// H3: printing a secret never shows it.
    #[test]
    fn h3_a_secret_does_not_show_itself() {
        let secret = Secret::new("canary".to_owned());
        assert_eq!(
            format!("{secret:?} {:#?}", Some(&secret))
                .matches("canary")
                .count(),
            0
        );
        assert_eq!(secret.expose(), "canary");
    }

    #[test]
    fn variables_are_replaced_anywhere_in_a_value() {
        let environment = Environment {
            env: &|name| (name == "KEY").then(|| "abc".to_owned()),
            ..Environment::empty()
        };
        assert_eq!(expand("${KEY}", &environment).unwrap(), "abc");
        assert_eq!(
            expand("Bot ${KEY}.${KEY}", &environment).unwrap(),
            "Bot abc.abc"
        );
        assert_eq!(expand("plain", &environment).unwrap(), "plain");
        assert_eq!(expand("${OTHER}", &environment), Err("OTHER".to_owned()));
        assert_eq!(expand("${KEY", &environment).unwrap(), "${KEY");
        assert_eq!(
            expand("${KEY:-x}${OTHER:-10}", &environment).unwrap(),
            "abc10"
        );
    }
}
