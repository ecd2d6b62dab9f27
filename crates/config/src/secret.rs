//! Keys: where they come from, and a type that does not let them out.
//!
//! Promises: a [`Secret`] has no `Display` and no `Serialize`, its `Debug` shows nothing of it, and
//! it is wiped when it goes. The one way to its content is [`Secret::expose`], easy to search for.
//!
//! Never: reads the environment or a file by itself. [`World`] does, and tests pass their own.

use std::fmt;

use secrecy::{ExposeSecret, SecretString};

/// A key, token or password.
#[derive(Clone)]
pub struct Secret(SecretString);

impl Secret {
    /// Takes a text out of sight.
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

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(hidden)")
    }
}

/// A key file that was read.
pub struct KeyFile {
    /// What is in it.
    pub text: String,
    /// Other users of the machine may read it too.
    pub open_to_others: bool,
}

impl fmt::Debug for KeyFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyFile(hidden)")
    }
}

/// What lies outside the files that are checked: the environment and key files.
#[derive(Clone, Copy)]
pub struct World<'a> {
    /// The value of an environment variable.
    pub env: &'a dyn Fn(&str) -> Option<String>,
    /// A key file, or why it cannot be read (without its content).
    pub key_file: &'a dyn Fn(&str) -> Result<KeyFile, String>,
}

impl World<'_> {
    /// No environment and no files: for presets, and for tests that need neither.
    #[must_use]
    pub fn empty() -> World<'static> {
        World {
            env: &|_| None,
            key_file: &|_| Err("there are no files here".to_owned()),
        }
    }
}

impl fmt::Debug for World<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("World")
    }
}

/// The most bytes of a key: the longest tokens (JWTs with claims) have some 4 KiB.
pub(crate) const SECRET_MAX: usize = 16 * 1024;

/// Where a secret is said to come from.
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

/// Replaces every `${NAME}`; the error is the name of the variable that is not set.
pub(crate) fn filled(text: &str, world: &World<'_>) -> Result<String, String> {
    let mut whole = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("${") {
        let Some((name, tail)) = after.split_once('}') else {
            break;
        };
        whole.push_str(before);
        let value = (world.env)(name).filter(|value| !value.is_empty());
        whole.push_str(&value.ok_or_else(|| name.to_owned())?);
        rest = tail;
    }
    whole.push_str(rest);
    Ok(whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// H3: no way of printing a secret shows it.
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
    fn variables_are_replaced_wherever_they_stand() {
        let world = World {
            env: &|name| (name == "KEY").then(|| "abc".to_owned()),
            ..World::empty()
        };
        assert_eq!(filled("${KEY}", &world).unwrap(), "abc");
        assert_eq!(filled("Bot ${KEY}.${KEY}", &world).unwrap(), "Bot abc.abc");
        assert_eq!(filled("plain", &world).unwrap(), "plain");
        assert_eq!(filled("${OTHER}", &world), Err("OTHER".to_owned()));
        assert_eq!(filled("${KEY", &world).unwrap(), "${KEY");
    }
}
